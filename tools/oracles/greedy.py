"""Ten prompts × 64 greedy tokens by transformers on the dequantised model in f32."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import jinja2
import torch

from oracles import gguf_model, hf_tokenizer
from oracles.prompts import PROMPTS

STEPS = 64
END_TOKENS = ("<|im_end|>", "<|endoftext|>")


def render_chat(reader, message: str) -> str:
    """The file's own template over one user message, as transformers sets Jinja up."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = env.from_string(gguf_model.metadata(reader, "tokenizer.chat_template"))
    messages = [{"role": "user", "content": message}]
    return template.render(messages=messages, add_generation_prompt=True)


def greedy_steps(model, prompt_ids: list[int], end_ids: set[int]) -> dict:
    """Up to STEPS choices; an end token is the last one listed."""
    steps: dict[str, list] = {"ids": [], "second": [], "gap": [], "spread": []}
    ids, cache = torch.tensor([prompt_ids]), None
    with torch.no_grad():
        for _ in range(STEPS):
            out = model(ids, cache=cache, use_cache=True)
            cache = out.cache
            logits = out.logits[0, -1]
            top = logits.topk(2)
            steps["ids"].append(int(top.indices[0]))
            steps["second"].append(int(top.indices[1]))
            steps["gap"].append(round(float(top.values[0] - top.values[1]), 6))
            steps["spread"].append(round(float(logits.max() - logits.min()), 4))
            if steps["ids"][-1] in end_ids:
                break
            ids = top.indices[:1][None]
    return steps


def make(model_path: Path, out: Path) -> None:
    """Writes the oracle file and prints a line a prompt."""
    import transformers

    model, reader = gguf_model.load_f32(model_path)
    tokenizer = hf_tokenizer.from_gguf(reader)
    end_ids = {tokenizer.token_to_id(t) for t in END_TOKENS} - {None}
    cases = []
    for name, mode, text in PROMPTS:
        start = time.time()
        rendered = render_chat(reader, text) if mode == "chat" else text
        ids = hf_tokenizer.encode(tokenizer, rendered)
        steps = greedy_steps(model, ids, end_ids)
        cases.append({"name": name, "mode": mode, "text": text, "prompt_ids": ids, **steps})
        closest = min(g / s for g, s in zip(steps["gap"], steps["spread"]))
        print(f"{name}: {len(ids)} -> {len(steps['ids'])} tokens, closest gap {closest:.3%} of "
              f"the spread, {time.time() - start:.1f} s: {tokenizer.decode(steps['ids'])!r}")
    document = {
        "model_sha256": hashlib.sha256(model_path.read_bytes()).hexdigest(),
        "reference": f"transformers {transformers.__version__}, torch "
        f"{torch.__version__.split('+')[0]}, f32 of the dequantised weights",
        "end_ids": sorted(end_ids),
        "cases": cases,
    }
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in document.pop("cases"))
    head = json.dumps(document, ensure_ascii=False)[:-1]
    out.write_text(f'{head}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
