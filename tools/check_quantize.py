#!/usr/bin/env python3
"""What `cutaway quantize` writes, beside llama.cpp's own quantiser on the same F16 file.

  check_quantize.py --bin build/release/cutaway -m F16.gguf [--types Q4_0,Q4_K_M] [--pure Q2_K,Q4_K]
                    [--windows N] [--out FOLDER] [--keep]

For each type: the tensors' types and the file's size are the same, PyPI `gguf` reads the file, each
tensor's squared error against F16 is at most llama.cpp's, and, with --windows, llama.cpp loads it
and finds a perplexity of at most 1.01 times that of its own quantiser's file (teacher-forced windows
of 512 tokens, as tools/make_oracle.py left them; where the limit is within a few windows' error, all of
them decide). --pure: types that every matrix gets (where its
rows allow it), so that true K-quants are compared. One JSON document; exit status 1 on a failure.
Runs in the `torch` environment (NumPy, gguf).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "bench" / "peers" / "llama_cpp_worker.py"
TYPES = ("Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q5_1,Q5_0,Q4_K_M,Q4_K_S,IQ4_NL,IQ4_XS,Q4_1,Q4_0,Q3_K_L,Q3_K_M,"
         "Q3_K_S,Q2_K")
PURE = "Q6_K,Q5_K_S,Q4_K_S,Q3_K_S,Q2_K"
PERPLEXITY_RATIO = 1.01
# Of the squared error over a whole file's tensors; each tensor by itself may be a little worse,
# since searches end in different places.
ERROR_RATIO, TENSOR_RATIO = 1.0, 1.03


def peers() -> Path:
    return Path(os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway") / "peers"


def worker(*words: object) -> dict:
    python = peers() / "llama_cpp" / "bin" / "python"
    done = subprocess.run([str(w) for w in (python, WORKER, *words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"llama.cpp {words[0]}: {(done.stderr or done.stdout).strip()[-400:]}")
    return json.loads(done.stdout)


def seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def make(args, name: str, pure: bool, folder: Path) -> tuple[Path, Path, dict]:
    ours, theirs = folder / f"ours-{name}.gguf", folder / f"theirs-{name}.gguf"
    extra = ["--pure"] if pure else []
    command = [args.bin, "quantize", args.model, ours, name, "--force", "-t", args.threads, *extra]
    took = {"ours": seconds(lambda: subprocess.run([str(c) for c in command], check=True, capture_output=True)),
            "llama_cpp": seconds(lambda: worker("quantize", "-m", args.model, "--type", name, "--out",
                                                theirs, "--threads", args.threads, *extra))}
    return ours, theirs, took


def tensors(path: Path) -> dict:
    return {t.name: t for t in GGUFReader(path).tensors}


def errors(source: dict, ours: dict, theirs: dict) -> dict:
    """Of every tensor that was quantised: √(Σw(y − x)² / Σwx²) on both sides, w as ours counts the values: all alike,
    by √(mean² + x²), or, where codes lie closer about zero, by their magnitude (llama.cpp: by their square)."""
    found = {}
    for name, tensor in source.items():
        if ours[name].tensor_type == tensor.tensor_type or theirs[name].tensor_type == tensor.tensor_type:
            continue
        rows = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        size, x = np.abs(rows), rows.ravel()
        kind = ours[name].tensor_type.name
        w = np.ones_like(x)
        if kind in ("IQ4_NL", "IQ4_XS"):
            w = size.ravel()
        elif kind in ("Q4_0", "Q5_0", "Q3_K", "Q4_K"):
            w = np.sqrt(np.square(size.mean(-1, keepdims=True)) + np.square(size)).ravel()
        off = lambda t: float(np.sqrt((w * np.square(dequantize(t.data, t.tensor_type).ravel() - x)).sum()
                                      / (w * np.square(x)).sum()))
        found[name] = off(ours[name]), off(theirs[name])
    return found


def losses(model: Path, windows: Path) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        worker("teacher", "-m", model, "--windows", windows, "--window", 512, "--out-top1",
               f"{folder}/top1", "--out-nll", f"{folder}/nll")
        return np.fromfile(f"{folder}/nll", dtype="<f4").astype(np.float64)


def perplexities(ours: Path, theirs: Path, tokens: np.ndarray, count: int, folder: Path) -> dict:
    """Of `count` windows, spread over the text."""
    windows = folder / "windows.i32"
    tokens[np.linspace(0, len(tokens) - 1, count).astype(int)].tofile(windows)
    a, b = losses(ours, windows), losses(theirs, windows)
    return {"windows": count, "ours": float(np.exp(a.mean())), "llama_cpp": float(np.exp(b.mean())),
            "ratio": float(np.exp((a - b).mean())), "standard_error": float((a - b).std() / np.sqrt(a.size))}


def compare(args, name: str, pure: bool, folder: Path, source: dict, tokens: np.ndarray | None) -> dict:
    ours_path, theirs_path, took = make(args, name, pure, folder)
    ours, theirs = tensors(ours_path), tensors(theirs_path)
    differing = [n for n in source if ours[n].tensor_type != theirs[n].tensor_type]
    both = np.array(list(errors(source, ours, theirs).values()) or [(0.0, 0.0)])
    row = {
        "type": name, "pure": pure, "bytes": ours_path.stat().st_size,
        "same_size": ours_path.stat().st_size == theirs_path.stat().st_size,
        "same_types": not differing, "seconds": {k: round(v, 2) for k, v in took.items()},
        "error": {"ours": float(np.sqrt(np.square(both[:, 0]).mean())),
                  "llama_cpp": float(np.sqrt(np.square(both[:, 1]).mean()))},
        "worst_tensor_ratio": float((both[:, 0] / np.maximum(both[:, 1], 1e-12)).max()),
    }
    tiny = row["error"]["llama_cpp"] < 1e-5  # both give back what they got
    row["passed"] = row["same_size"] and row["same_types"] and (tiny or (
        row["error"]["ours"] <= ERROR_RATIO * row["error"]["llama_cpp"] + 1e-6
        and row["worst_tensor_ratio"] <= TENSOR_RATIO))
    if tokens is not None:
        found = perplexities(ours_path, theirs_path, tokens, args.windows, folder)
        if abs(found["ratio"] - PERPLEXITY_RATIO) <= 2 * found["standard_error"] and args.windows < len(tokens):
            found = perplexities(ours_path, theirs_path, tokens, len(tokens), folder)
        row["perplexity"] = found
        row["passed"] = row["passed"] and row["perplexity"]["ratio"] <= PERPLEXITY_RATIO
    if not args.keep:
        ours_path.unlink()
        theirs_path.unlink()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/cutaway")
    parser.add_argument("-m", "--model", type=Path, default=peers() / "types" / "smollm2-135m-f16.gguf")
    parser.add_argument("--types", type=lambda t: [x for x in t.split(",") if x], default=TYPES.split(","))
    parser.add_argument("--pure", type=lambda t: [x for x in t.split(",") if x], default=PURE.split(","))
    parser.add_argument("--windows", type=int, default=0, help="of text for the perplexity (0: none)")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the files in --out")
    args = parser.parse_args()
    if not args.model.is_file():
        parser.error(f"--model {args.model}: no such file (bench/make_types.py makes it)")
    with tempfile.TemporaryDirectory() as temp:
        folder = args.out or Path(temp)
        folder.mkdir(parents=True, exist_ok=True)
        tokens = None
        if args.windows:
            tokens = np.fromfile(peers() / "oracle" / "tokens.i32", dtype="<i4").reshape(-1, 512)
        source = tensors(args.model)
        rows = []
        for name, pure in [*((t, False) for t in args.types), *((t, True) for t in args.pure)]:
            rows.append(compare(args, name, pure, folder, source, tokens))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"model": args.model.name, "types": rows}, indent=1))
    failed = sum(not row["passed"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
