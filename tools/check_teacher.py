#!/usr/bin/env python3
"""Teacher-forced text: our top-1 and perplexity against f32's and llama.cpp's.

  check_teacher.py --bin build/release/cutaway -m MODEL [--windows N] [-- FLAGS of capture]

Reads what `make_oracle.py teacher` left in $CUTAWAY_HOME/peers/oracle, runs `cutaway capture
--taps logits` once per window of 512 tokens, and prints one JSON document. Exit status 1 if our
top-1 agreement with f32 is more than 0.3 points under llama.cpp's, or our perplexity over 1.001
times llama.cpp's, on the same windows. Needs NumPy (the `torch` environment has it).

MODEL may be another file than the oracle was made of, with the same vocabulary (bench/make_types.py
makes some). Then the f32 reference is Cutaway's own `--precise` with an f32 cache on that file
(which equals transformers' on the oracle's model), and llama.cpp runs on that file; both are kept
in the oracle's folder under the hashes of what made them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

AGREEMENT_MARGIN = 0.003
PERPLEXITY_RATIO = 1.001


PRECISE = ["--precise", "--cache-type", "f32"]
WORKER = Path(__file__).resolve().parent.parent / "bench" / "peers" / "llama_cpp_worker.py"


def home() -> Path:
    return Path(os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway")


def oracle_folder() -> Path:
    return home() / "peers" / "oracle"


def model_file(model: str) -> Path:
    """Of a path or an installed name."""
    path = Path(model)
    return path if path.is_file() else home() / "models" / f"{model}.gguf"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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


def run_windows(binary: str, model: str, windows: np.ndarray, extra: list[str], what: str):
    """Top-1 ids [windows, size] and -ln p of the next token [windows, size - 1]."""
    top1 = np.empty(windows.shape, dtype=np.int64)
    nll = np.empty((windows.shape[0], windows.shape[1] - 1))
    with tempfile.TemporaryDirectory() as temp:
        for row, window in enumerate(windows):
            logits = capture_logits(binary, model, window, extra, temp)
            top1[row], nll[row] = predictions(logits, window)
            print(f"{what}: window {row + 1}/{len(windows)}", file=sys.stderr, end="\r")
    print(file=sys.stderr)
    return top1, nll


def kept(path: Path, make):
    """What `make` returns, a pair of arrays; from `path` where it is there already."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        first, second = make()
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, first=first, second=second)
        partial.rename(path)
    with np.load(path) as arrays:
        return arrays["first"], arrays["second"]


def peer_windows(model: Path, windows: np.ndarray, threads: int):
    """llama.cpp's on this file."""
    python = home() / "peers" / "llama_cpp" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is missing: run tools/peers.sh llama_cpp")
    print("llama.cpp …", file=sys.stderr)
    with tempfile.TemporaryDirectory() as temp:
        names = {n: Path(temp) / n for n in ("windows", "top1", "nll")}
        windows.astype("<i4").tofile(names["windows"])
        done = subprocess.run(
            [python, WORKER, "teacher", "-m", model, "--threads", str(threads), "--window", str(windows.shape[1]), "--windows",
             names["windows"], "--out-top1", names["top1"], "--out-nll", names["nll"]],
            capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"llama.cpp: {(done.stderr or done.stdout).strip()[-400:]}")
        return (np.fromfile(names["top1"], dtype="<i4").reshape(windows.shape),
                np.fromfile(names["nll"], dtype="<f4").reshape(len(windows), -1))


def references_of(args, model: Path, tokens: np.ndarray, chosen: np.ndarray):
    """f32's and llama.cpp's predictions of the chosen windows, where the oracle has none."""
    windows = tokens[chosen]
    text = hashlib.sha256(windows.tobytes()).hexdigest()[:12]
    folder, file = oracle_folder() / "files", sha256(model)[:12]
    ours = kept(folder / f"{file}-{text}-precise-{sha256(Path(args.bin))[:12]}.npz",
                lambda: run_windows(args.bin, str(model), windows, PRECISE, "f32"))
    peer = kept(folder / f"{file}-{text}-llama.npz", lambda: peer_windows(model, windows, args.peer_threads))
    return ours, peer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/cutaway")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--windows", type=int, help="only the first N of each kind of text")
    parser.add_argument("--peer-threads", type=int, default=2,
                        help="of llama.cpp, on other files than the oracle's (1 on a busy machine)")
    args, extra = parser.parse_known_args()
    extra = [e for e in extra if e != "--"]
    folder = oracle_folder()
    if not (folder / "teacher.json").is_file():
        parser.error(f"{folder}/teacher.json is missing: run tools/make_oracle.py teacher")
    notes = json.loads((folder / "teacher.json").read_text())
    size, kinds = notes["window"], np.array(notes["kinds"])
    load = lambda name, kind, width: np.fromfile(folder / name, dtype=kind).reshape(-1, width)
    tokens = load("tokens.i32", "<i4", size)
    limit = args.windows or len(tokens)
    chosen = np.concatenate([np.flatnonzero(kinds == k)[:limit] for k in dict.fromkeys(kinds)])
    model = model_file(args.model)
    if not model.is_file():
        parser.error(f"--model {args.model}: no such file or installed model")
    if sha256(model) == notes["model_sha256"]:
        made_by = notes["reference"]
        f32 = load("f32_top1.i32", "<i4", size)[chosen], load("f32_nll.f32", "<f4", size - 1)[chosen]
        peer = (load("llama_top1.i32", "<i4", size)[chosen],
                load("llama_nll.f32", "<f4", size - 1)[chosen])
    else:
        made_by = "cutaway capture " + " ".join(PRECISE)
        f32, peer = references_of(args, model, tokens, chosen)
    top1, nll = run_windows(args.bin, str(model), tokens[chosen], extra, "ours")

    result = {}
    for kind in ["all", *dict.fromkeys(kinds)]:
        rows = [i for i, w in enumerate(chosen) if kind in ("all", kinds[w])]
        result[str(kind)] = {
            "positions": len(rows) * size,
            "ours": score(top1[rows], nll[rows], f32[0][rows]),
            "llama_cpp": score(peer[0][rows], peer[1][rows], f32[0][rows]),
            "perplexity_f32": float(np.exp(f32[1][rows].astype(np.float64).mean())),
        }
    whole = result["all"]
    agreement_ok = whole["ours"]["agreement"] >= whole["llama_cpp"]["agreement"] - AGREEMENT_MARGIN
    ratio = whole["ours"]["perplexity"] / whole["llama_cpp"]["perplexity"]
    passed = [agreement_ok, ratio <= PERPLEXITY_RATIO]
    print(json.dumps({"model": model.name, "reference": made_by, "flags": extra,
                      "texts": result, "perplexity_ratio": ratio, "agreement_ok": agreement_ok,
                      "perplexity_ok": passed[1]}, indent=1))
    print(f"{sum(passed)} passed, {2 - sum(passed)} failed", file=sys.stderr)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
