#!/usr/bin/env python3
"""Teacher-forced text: our top-1 and perplexity against f32's and llama.cpp's.

  check_teacher.py --bin build/release/cutaway -m MODEL [--windows N] [-- FLAGS of capture]

Reads what `make_oracle.py teacher` left in $CUTAWAY_HOME/peers/oracle, runs `cutaway capture
--taps logits` once per window of 512 tokens, and prints one JSON document. Exit status 1 if our
top-1 agreement with f32 is more than 0.3 points under llama.cpp's, or our perplexity over 1.001
times llama.cpp's, on the same windows. Needs NumPy (the `torch` environment has it).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

AGREEMENT_MARGIN = 0.003
PERPLEXITY_RATIO = 1.001


def oracle_folder() -> Path:
    home = os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway"
    return Path(home) / "peers" / "oracle"


def read_tensor(path: Path, name: str) -> np.ndarray:
    """One f32 tensor of a safetensors file, mapped."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    if name not in header:
        raise SystemExit(f"{path}: no tensor {name!r}, only {sorted(header)}")
    entry = header[name]
    if entry["dtype"] != "F32":
        raise SystemExit(f"{path}: {name} is {entry['dtype']}, expected F32")
    start = 8 + size + entry["data_offsets"][0]
    return np.memmap(path, dtype="<f4", mode="r", offset=start, shape=tuple(entry["shape"]))


def capture_logits(binary: str, model: str, tokens: np.ndarray, extra: list[str], folder: str):
    """Logits [positions, vocabulary] of one window."""
    out = Path(folder) / "window.safetensors"
    ids = ",".join(str(t) for t in tokens)
    command = [binary, "capture", "-m", model, "--tokens", ids, "--taps", "logits", "-o", str(out),
               "--json", *extra]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"cutaway capture: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    listed = {t["name"]: t["shape"] for t in json.loads(done.stdout)["taps"]}
    logits = read_tensor(out, "logits")
    if list(logits.shape) != listed.get("logits"):
        raise SystemExit(f"logits: {list(logits.shape)} in the file, {listed} in --json")
    if logits.ndim != 3 or logits.shape[:2] != (1, len(tokens)):
        raise SystemExit(
            f"logits have shape {list(logits.shape)}, expected [1,{len(tokens)},vocab]")
    return logits[0]


def predictions(logits: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Top-1 ids and -ln p of the next token."""
    if not np.isfinite(logits).all():
        raise SystemExit("a logit is not finite")
    values = logits[:-1].astype(np.float64)
    peak = values.max(axis=1)
    log_sum = np.log(np.exp(values - peak[:, None]).sum(axis=1)) + peak
    return logits.argmax(axis=1), log_sum - values[np.arange(len(values)), tokens[1:]]


def score(top1: np.ndarray, nll: np.ndarray, reference: np.ndarray) -> dict:
    return {
        "agreement": float((top1 == reference).mean()),
        "perplexity": float(np.exp(nll.astype(np.float64).mean())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/cutaway")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--windows", type=int, help="only the first N of each kind of text")
    args, extra = parser.parse_known_args()
    extra = [e for e in extra if e != "--"]
    folder = oracle_folder()
    if not (folder / "teacher.json").is_file():
        parser.error(f"{folder}/teacher.json is missing: run tools/make_oracle.py teacher")
    notes = json.loads((folder / "teacher.json").read_text())
    size, kinds = notes["window"], np.array(notes["kinds"])
    load = lambda name, kind, width: np.fromfile(folder / name, dtype=kind).reshape(-1, width)
    tokens, reference = load("tokens.i32", "<i4", size), load("f32_top1.i32", "<i4", size)
    peer = load("llama_top1.i32", "<i4", size), load("llama_nll.f32", "<f4", size - 1)
    f32_nll = load("f32_nll.f32", "<f4", size - 1)
    limit = args.windows or len(tokens)
    chosen = np.concatenate([np.flatnonzero(kinds == k)[:limit] for k in dict.fromkeys(kinds)])

    top1 = np.empty((len(chosen), size), dtype=np.int64)
    nll = np.empty((len(chosen), size - 1))
    with tempfile.TemporaryDirectory() as temp:
        for row, window in enumerate(chosen):
            logits = capture_logits(args.bin, args.model, tokens[window], extra, temp)
            top1[row], nll[row] = predictions(logits, tokens[window])
            print(f"window {row + 1}/{len(chosen)}", file=sys.stderr, end="\r")
    print(file=sys.stderr)

    result = {}
    for kind in ["all", *dict.fromkeys(kinds)]:
        rows = [i for i, w in enumerate(chosen) if kind in ("all", kinds[w])]
        at = chosen[rows]
        result[str(kind)] = {
            "positions": len(rows) * size,
            "ours": score(top1[rows], nll[rows], reference[at]),
            "llama_cpp": score(peer[0][at], peer[1][at], reference[at]),
            "perplexity_f32": float(np.exp(f32_nll[at].astype(np.float64).mean())),
        }
    whole = result["all"]
    agreement_ok = whole["ours"]["agreement"] >= whole["llama_cpp"]["agreement"] - AGREEMENT_MARGIN
    ratio = whole["ours"]["perplexity"] / whole["llama_cpp"]["perplexity"]
    passed = [agreement_ok, ratio <= PERPLEXITY_RATIO]
    print(json.dumps({"texts": result, "perplexity_ratio": ratio, "agreement_ok": agreement_ok,
                      "perplexity_ok": passed[1]}, indent=1))
    print(f"{sum(passed)} passed, {2 - sum(passed)} failed", file=sys.stderr)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
