"""The lens of the real model against transformers: hidden_states through its own norm and head, in f32.

CUTAWAY_BINARY names the binary; the default model is installed (`cutaway pull smollm2-135m`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.gguf_model import load_f32  # noqa: E402
from oracles.packages import peers_home  # noqa: E402

BINARY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
MODEL = peers_home().parent / "models" / "smollm2-135m.gguf"
TEXTS = ["The capital of France is Paris, and the capital of Italy is",
         "서울특별시청은 어디에 있습니까? def fib(n): return n if n < 2 else"]
BOUND = 1e-3  # of a layer's spread of logits; of nats for entropies, of 1 for probabilities
passed = failed = 0


def check(what: str, good: bool, seen: object = "") -> None:
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAILED {what}: {seen}")


def compare(text: str, model) -> None:
    out = subprocess.run([BINARY, "lens", "-m", str(MODEL), "--precise", "--json", "--top", "10", text],
                         capture_output=True, check=True, text=True)
    lens = json.loads(out.stdout)
    ids = torch.tensor([[token["id"] for token in lens["tokens"]]])
    with torch.no_grad():
        result = model(ids, output_hidden_states=True)
        streams = list(result.hidden_states[:-1])
        # The last entry has the final norm in it already: its logits are the result's.
        logits = [model.lm_head(model.model.norm(stream))[0] for stream in streams] + [result.logits[0]]
    logs = [x.double().log_softmax(-1) for x in logits]
    last = logs[-1]
    worst = {"logit": 0.0, "prob": 0.0, "entropy": 0.0, "kl": 0.0}
    ranks = first = cells = 0
    for layer in lens["layers"]:
        x, log = logits[layer["layer"] + 1], logs[layer["layer"] + 1]
        spread = float(x.max() - x.min())
        for position, cell in enumerate(layer["cells"]):
            for token in cell["top"]:
                worst["logit"] = max(worst["logit"], abs(token["logit"] - float(x[position, token["id"]])) / spread)
                worst["prob"] = max(worst["prob"], abs(token["prob"] - float(log[position, token["id"]].exp())))
            p = log[position].exp()
            worst["entropy"] = max(worst["entropy"], abs(cell["entropy"] - float(-(p * log[position]).sum())))
            kl = float((last[position].exp() * (last[position] - log[position])).sum())
            worst["kl"] = max(worst["kl"], abs(cell["kl"] - kl) / max(1.0, kl))
            first += cell["top"][0]["id"] == int(x[position].argmax())
            choice = int(last[position].argmax())
            ranks += cell["last"]["rank"] == int((x[position] > x[position, choice]).sum())
            cells += 1
    print(f"{cells} cells: " + ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
          + f", first choice {first}, rank {ranks}")
    for name, value in worst.items():
        check(f"{name} of {text[:20]!r}", value < BOUND, value)
    check("first choices", first >= cells - 1, f"{first} of {cells}")
    check("ranks", ranks >= 0.98 * cells, f"{ranks} of {cells}")  # near-ties of unlikely tokens change places


def main() -> int:
    if not MODEL.is_file():
        print(f"{MODEL} is missing: cutaway pull smollm2-135m")
        return 1
    loaded = load_f32(MODEL)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    for text in TEXTS:
        compare(text, model)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
