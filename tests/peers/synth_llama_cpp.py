"""Files of `cutaway synth` in llama.cpp: it loads every type, and its logits are ours.

What is compared is the relative distance of all logits, |ours − theirs| / |ours|, for ours under
--precise. llama.cpp rounds activations to the type that it multiplies in: not at all for F32, to
halves for F16, to bfloat16 for BF16, to 8 bits for the quantised types, with a scale for 32 of them,
or for 256 where the weights' blocks have 256. What 8 bits cost is computed (eight_bits below); the
bound is twice that. Those of F32, F16 and BF16 are 2.3 to 4 times what was measured. A mistake in the
blocks or the order of rows is of order 1.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.packages import peers_home  # noqa: E402

CUTAWAY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
PEER = [str(peers_home() / "llama_cpp" / "bin" / "python"), str(ROOT / "bench" / "peers" / "llama_cpp_worker.py")]
SHAPES = ["qwen2.5-1.5b", "llama-3.2-1b"]
LAYERS = 2


def eight_bits(block: int) -> float:
    """The relative error of the logits when activations are rounded to 8 bits, `block` to a scale.

    Rounding is an error of its own at each element, and random weights pass relative errors on as they
    are: those of independent roundings add up in squares. `r` is that of normal numbers, which norms
    and attention give, `s` that of silu(a)·b of such. A layer has r before the queries, keys and
    values, r before their output, r in both factors of silu(a)·b, s before its output: as if all of
    the residual stream came from each, which is the most. The head has r.
    """
    rng = np.random.default_rng(0)

    def rounding(x: np.ndarray) -> float:
        scale = np.abs(x).max(axis=1, keepdims=True) / 127
        return float(np.linalg.norm(np.round(x / scale) * scale - x) / np.linalg.norm(x))

    a, b = rng.standard_normal((2, 1 << 20)).reshape(2, -1, block)
    r, s = rounding(a), rounding(a / (1 + np.exp(-a)) * b)
    return float(np.sqrt(LAYERS * (4 * r**2 + s**2) + r**2))


BOUNDS = {"F32": 1e-5, "F16": 1.5e-3, "BF16": 1.2e-2,
          **dict.fromkeys(["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"], 2 * eight_bits(32)),
          **dict.fromkeys(["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"], 2 * eight_bits(256))}
# Bytes, made-up tokens, the one merge and a control token.
TOKENS = [72, 105, 4000, 256, 300, 31999, 258, 10]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[:3]}: exit {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def ours(model: Path, folder: Path) -> np.ndarray:
    out = folder / "ours.safetensors"
    run([CUTAWAY, "capture", "-m", str(model), "--tokens", ",".join(map(str, TOKENS)), "--taps", "logits",
         "--precise", "-o", str(out)])
    raw = out.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    return np.frombuffer(raw[begin:], "<f4").reshape(len(TOKENS), -1)


def theirs(model: Path, folder: Path) -> np.ndarray:
    out = folder / "theirs.f32"
    run([*PEER, "logits", "-m", str(model), "--tokens", ",".join(map(str, TOKENS)), "--f32-cache",
         "--out", str(out)])
    return np.fromfile(out, "<f4").reshape(len(TOKENS), -1)


def distance(shape: str, kind: str, folder: Path) -> float:
    model = folder / "model.gguf"
    made = json.loads(run([CUTAWAY, "synth", shape, kind, str(model), "--layers", str(LAYERS), "--force", "--json"]))
    assert made["layers"] == LAYERS and made["type"] == kind, made
    a, b = ours(model, folder), theirs(model, folder)
    assert a.shape == b.shape, (a.shape, b.shape)
    assert 0.5 < a.std() < 2, f"logits of order 1, found a deviation of {a.std()}"
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


def main() -> int:
    types = run([CUTAWAY, "synth", "--list"]).splitlines()[0].split()[3:]
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="cutaway-synth-") as folder:
        for shape in SHAPES:
            for kind in types:
                try:
                    if kind not in BOUNDS:
                        raise RuntimeError("this type has no bound here; add it")
                    found = distance(shape, kind, Path(folder))
                    good = found <= BOUNDS[kind]
                    print(f"{shape} {kind}: {found:.2e}, at most {BOUNDS[kind]:.1e}" + ("" if good else ": FAILED"))
                except (RuntimeError, AssertionError, ValueError) as error:
                    good = False
                    print(f"{shape} {kind}: FAILED: {error}")
                passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
