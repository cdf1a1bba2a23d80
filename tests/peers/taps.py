"""Every tap of SmolLM2 with --precise against TransformerLens and transformers, and attention as
bertviz and circuitsvis draw it from the captured arrays.

Runs in the environment of tools/peers.sh lens, which it makes. CUTAWAY_BINARY names the program; the
default model is installed (`cutaway pull smollm2-135m`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.packages import peers_home  # noqa: E402

BINARY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
MODEL = peers_home().parent / "models" / "smollm2-135m.gguf"
TEXT = "The Eiffel Tower, which stands in Paris, was painted brown. What colour was it painted? It was"
BOUND = 1e-3  # of a tap's spread

if os.environ.get("CUTAWAY_LENS") != "1":
    if not MODEL.is_file():
        sys.exit(f"{MODEL} is missing: cutaway pull smollm2-135m")
    subprocess.run([str(ROOT / "tools" / "peers.sh"), "lens"], check=True)
    python = peers_home() / "lens" / "bin" / "python"
    sys.exit(subprocess.run([python, __file__], env={**os.environ, "CUTAWAY_LENS": "1"}).returncode)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from oracles.gguf_model import load_f32  # noqa: E402
from oracles.lens import bridge_of  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

# Taps that TransformerLens does not have, or not under this name: compared otherwise.
OTHERWISE = {"hook_tokens", "logits"}


def capture(folder: Path) -> tuple[dict, list[int]]:
    output = folder / "taps.safetensors"
    command = [BINARY, "capture", "-m", str(MODEL), TEXT, "--taps", "all", "--precise", "--json",
               "-o", str(output)]
    done = subprocess.run(command, capture_output=True, check=True)
    return load_file(output), json.loads(done.stdout)["tokens"]


def distance(expected: np.ndarray, actual: np.ndarray) -> float:
    """The largest difference as a share of the spread; what is −inf is so in both."""
    assert expected.shape == actual.shape, (expected.shape, actual.shape)
    low = torch.finfo(torch.float32).min / 2
    seen = expected > low
    assert (seen == (actual > low)).all(), "another mask"
    expected, actual = expected[seen].astype(np.float64), actual[seen].astype(np.float64)
    spread = expected.max() - expected.min()
    return float(np.abs(expected - actual).max() / (spread if spread > 0 else 1))


def compare(ours: dict, tokens: list[int], model) -> None:
    ids = torch.tensor([tokens])
    with torch.no_grad():
        plain = model(ids, output_attentions=True, output_hidden_states=True)
        hidden = [h.numpy() for h in plain.hidden_states]
        attentions = [a.numpy() for a in plain.attentions]
        projections = [layer.self_attn.o_proj.weight.detach().clone() for layer in model.model.layers]
        logits, cache = bridge_of(model).run_with_cache(ids)
    worst, compared = {}, 0
    for name, values in ours.items():
        if name in OTHERWISE:
            continue
        if name.endswith("hook_result"):
            layer = int(name.split(".")[1])
            z = cache[name.replace("hook_result", "hook_z")]
            by_head = projections[layer].reshape(values.shape[-1], z.shape[2], z.shape[3])
            expected = torch.einsum("bphd,mhd->bphm", z, by_head).numpy()
        else:
            expected = cache[name].numpy()
        site = name.split("blocks.")[-1].split(".", 1)[-1] if name.startswith("blocks") else name
        worst[site] = max(worst.get(site, 0), distance(expected, values))
        compared += 1
    for layer, pattern in enumerate(attentions):
        name = "transformers attentions"
        worst[name] = max(worst.get(name, 0), distance(pattern, ours[f"blocks.{layer}.attn.hook_pattern"]))
    for layer, h in enumerate(hidden[1:-1]):  # the last one is behind the final norm
        name = "transformers hidden_states"
        worst[name] = max(worst.get(name, 0), distance(h, ours[f"blocks.{layer}.hook_resid_post"]))
    worst["logits"] = distance(logits.numpy(), ours["logits"])
    assert (ours["hook_tokens"] == np.array([tokens])).all()
    for site, value in sorted(worst.items()):
        print(f"{site:32} {value:.2e}")
    bad = {site: value for site, value in worst.items() if not value < BOUND}
    assert not bad, f"beyond {BOUND} of the spread: {bad}"
    assert compared + len(OTHERWISE) == len(ours) and compared > 600
    print(f"{compared} taps within {BOUND} of the spread")


def draw(ours: dict, tokens: list[int]) -> None:
    from bertviz import head_view
    from circuitsvis.attention import attention_patterns

    words = [str(t) for t in tokens]
    n_layers = sum(name.endswith("hook_pattern") for name in ours)
    attention = [torch.from_numpy(ours[f"blocks.{i}.attn.hook_pattern"]) for i in range(n_layers)]
    view = head_view(attention, words, html_action="return")
    probability = f"{float(attention[3][0, 2, -1, 0]):.4f}"[:5]
    assert probability in view.data, "bertviz's page does not hold our numbers"
    pattern = ours["blocks.3.attn.hook_pattern"][0]
    shown = str(attention_patterns(tokens=words, attention=pattern))
    assert str(float(pattern[2, -1, 0]))[:6] in shown, "circuitsvis's page does not hold our numbers"
    print("bertviz and circuitsvis draw the captured arrays")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours, tokens = capture(Path(folder))
    model, _ = load_f32(MODEL)
    model.config._attn_implementation = "eager"
    draw(ours, tokens)
    compare(ours, tokens, model)


main()
