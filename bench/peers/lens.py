#!/usr/bin/env python3
"""The lens of all layers of 64 tokens: Cutaway beside TransformerLens, on the same shape and threads.

Run by a Python that has transformer_lens 4 (`pip install transformer-lens`):
    python bench/peers/lens.py --bin build/release/cutaway -m smollm2-135m [--tokens 64] [--threads 2] [--reps 3]

TransformerLens (through its bridge to transformers) runs the shape with random weights (its speed does not depend on them) in f32: the pass with
its cache of residual streams, accumulated_resid, the final norm of each layer's own scale, the head, and of every row what a cell
of ours has: the five largest with their probabilities, entropy, KL from the last layer, two ranks.
`streams and head alone` stops at the logits. Prints JSON; times are medians in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time


def ours(args, tokens: list[int]) -> dict:
    runs = []
    for _ in range(args.reps):
        out = subprocess.run([args.bin, "lens", "-m", args.model, "--json", "-t", str(args.threads), "--tokens",
                              ",".join(map(str, tokens))], capture_output=True, check=True, text=True)
        runs.append(json.loads(out.stdout)["timings"])
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return {**middle, "all_ms": statistics.median(sum(run.values()) for run in runs),
            "least_ms": min(sum(run.values()) for run in runs)}


def bridged(model):
    """The model behind TransformerLens's hooks. The bridge reads a folder with a tokenizer; none is used here."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, unk_token="x")), bos_token="x",
                                eos_token="x", pad_token="x", unk_token="x").save_pretrained(folder)
        return TransformerBridge.boot_transformers(folder, hf_model=model)


def model_of(info: dict, threads: int, **options):
    """The shape with random weights, in transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=info["vocab"], hidden_size=info["d_model"], intermediate_size=info["d_mlp"],
        num_hidden_layers=info["layers"], num_attention_heads=info["heads"], num_key_value_heads=info["kv_heads"],
        head_dim=info["d_head"], max_position_embeddings=2048, tie_word_embeddings=True, **options)).eval()


def theirs(args, tokens: list[int], info: dict) -> dict:
    import torch

    model = bridged(model_of(info, args.threads))
    ids = torch.tensor([tokens])
    following = torch.tensor(tokens[1:] + tokens[:1])

    def logits():
        final, cache = model.run_with_cache(ids, names_filter=lambda name: "resid" in name or "embed" in name)
        streams = cache.accumulated_resid(layer=-1, incl_mid=False)[:, 0]
        return model.unembed(model.ln_final(streams)), final[0]

    def cells():
        rows, final = logits()
        log = rows.log_softmax(-1)
        p = log.exp()
        top = log.topk(5, -1)
        last = final.log_softmax(-1)
        kl = (last.exp() * (last - log)).sum(-1)
        entropy = -(p * log).sum(-1)
        ranks = [(log > log.gather(-1, wanted.expand(log.shape[0], -1)[..., None])).sum(-1)
                 for wanted in (following, final.argmax(-1))]
        return top, kl, entropy, ranks

    out = {}
    for name, run in (("streams_and_head_alone_ms", logits), ("all_ms", cells)):
        run()
        times = []
        for _ in range(args.reps):
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
        out[name] = statistics.median(times)
        out[name.replace("_ms", "_least_ms")] = min(times)
    return out


def info_of(binary: str, model: str) -> dict:
    out = subprocess.run([binary, "info", "-m", model, "--json"], capture_output=True, check=True, text=True)
    info = json.loads(out.stdout)
    return info.get("model", info)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/cutaway")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    info = info_of(args.bin, args.model)
    tokens = [(i * 7919 + 13) % 40000 for i in range(args.tokens)]
    print(json.dumps({"tokens": args.tokens, "threads": args.threads, "cutaway": ours(args, tokens),
                      "transformer_lens": theirs(args, tokens, info)}, indent=1))


if __name__ == "__main__":
    main()
