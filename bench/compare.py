#!/usr/bin/env python3
"""Cutaway against llama.cpp, side by side: A B A B … on one file, one machine, in one run.

  compare.py -m F.gguf [--bin build/release/cutaway] [--threads 1,2] [--reps 5]
             [--tests pp512,tg128,tg128@2048]     tokens per second of both, and the ratio
  compare.py -m F.gguf --trace-overhead           decode speed at trace levels off, functions and
                                                  tensors, alternating, relative to off
  compare.py -m F.gguf --peer-only                the peer alone

Every figure is the median of --reps runs, each in a process of its own with its own warm-up;
min and max are kept beside it. One JSON document on stdout, progress on stderr. The peer is run
by the interpreter of tools/peers.sh's `llama_cpp` environment. Nothing but Python is needed.
A slow figure is no failure: the exit status says only whether the runs worked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
         "avx512_vbmi", "amx_int8", "asimd", "asimddp", "i8mm")
TRACE_LEVELS = ("off", "functions", "tensors")


def peer_python() -> Path:
    home = os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway"
    return Path(home) / "peers" / "llama_cpp" / "bin" / "python"


def call(command: list, keep_stderr: bool = True) -> dict:
    """Runs one command and reads the JSON document on its stdout. A trace is not kept: reading
    megabytes of it would be measured too."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE if keep_stderr else subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}:\n"
                         f"{(done.stderr or '').strip()[-800:]}")
    return json.loads(done.stdout)


def parse_test(test: str) -> tuple[str, int, int]:
    """`tg128@2048` -> ("tg", 128, 2048): kind, tokens, tokens already in the cache."""
    match = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:@(\d+))?", test)
    if not match:
        raise SystemExit(f"--tests {test!r}: expected pp512, tg128 or tg128@2048")
    return match[1], int(match[2]), int(match[3] or 0)


def ours(args, test: str, threads: int, extra: tuple = ()) -> float:
    """Tokens per second of one run of `cutaway bench`."""
    kind, count, depth = parse_test(test)
    command = [args.bin, "bench", "-m", args.model, "-t", threads, "--reps", 1, "--json",
               "-p", count if kind == "pp" else 0, "-n", count if kind == "tg" else 0]
    if depth:
        command += ["--depth", depth]
    runs = [r for r in call([*command, *extra], keep_stderr=not extra)["runs"] if r["test"].startswith(kind)]
    if len(runs) != 1:
        raise SystemExit(f"cutaway bench: {len(runs)} runs of {kind!r} where one was asked for")
    return runs[0]["tps"]["median"]


def theirs(args, test: str, threads: int) -> float:
    command = [args.peer, HERE / "peers" / "llama_cpp_worker.py", "bench", "-m", args.model,
               "--test", test, "--threads", threads, "--flash-attn", args.flash_attn]
    return call(command)["tps"][0]


def stats(values: list[float]) -> dict:
    if not values:
        return {}
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(args) -> list[dict]:
    rows = []
    for threads in args.threads:
        for test in args.tests:
            a, b = [], []
            for rep in range(args.reps):
                if not args.peer_only:
                    a.append(ours(args, test, threads))
                b.append(theirs(args, test, threads))
                print(f"{test} t={threads} {rep + 1}/{args.reps}: "
                      f"ours {a[-1] if a else float('nan'):.1f}, llama.cpp {b[-1]:.1f} tok/s",
                      file=sys.stderr)
            row = {"test": test, "threads": threads, "cutaway": stats(a), "llama_cpp": stats(b)}
            if a:
                row["ratio"] = statistics.median(a) / statistics.median(b)
                # Of each pair that ran one after the other: the machine's drift falls out.
                pairs = [x / y for x, y in zip(a, b)]
                row["ratio_of_pairs"] = stats(pairs)
            rows.append(row)
    return rows


def trace_overhead(args) -> list[dict]:
    rows = []
    for threads in args.threads:
        for test in args.tests:
            tps: dict[str, list[float]] = {level: [] for level in TRACE_LEVELS}
            for rep in range(args.reps):
                for level in TRACE_LEVELS:
                    # Console lines: formatted as for a person, written to nowhere.
                    tps[level].append(ours(args, test, threads, ("--trace", level)))
                print(f"{test} t={threads} {rep + 1}/{args.reps}: "
                      + ", ".join(f"{k} {v[-1]:.1f}" for k, v in tps.items()), file=sys.stderr)
            row = {"test": test, "threads": threads, "levels": {}}
            for level in TRACE_LEVELS:
                pairs = [x / y for x, y in zip(tps[level], tps["off"])]
                row["levels"][level] = {
                    "tps": stats(tps[level]),
                    "relative_to_off":
                        statistics.median(tps[level]) / statistics.median(tps["off"]),
                    "relative_to_off_of_pairs": stats(pairs),
                }
            rows.append(row)
    return rows


def machine() -> dict:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    first = lambda key: (re.search(rf"^{key}\s*:\s*(.*)$", text, re.M) or [None, ""])[1]
    have = set((first("flags") or first("Features")).split())
    return {
        "cpu": first("model name"),
        "cores": os.cpu_count(),
        "flags": [f for f in FLAGS if f in have],
        "load_average": list(os.getloadavg()),
    }


def versions(args) -> dict:
    out = {}
    if args.peer and Path(args.peer).exists():
        out["llama_cpp"] = call([args.peer, HERE / "peers" / "llama_cpp_worker.py", "info"])
    if not args.peer_only:
        done = subprocess.run([args.bin, "--version"], capture_output=True, text=True)
        out["cutaway"] = done.stdout.strip()
    return out


def numbers(text: str) -> list[int]:
    return [int(t) for t in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="a .gguf file")
    parser.add_argument("--bin", default="build/release/cutaway")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--tests", type=lambda t: t.split(","), default=None)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--peer", default=peer_python(), help="interpreter with llama_cpp")
    parser.add_argument("--flash-attn", choices=["auto", "on", "off"], default="auto",
                        help="of the peer (auto is its default)")
    parser.add_argument("--peer-only", action="store_true")
    parser.add_argument("--trace-overhead", action="store_true")
    args = parser.parse_args()
    if not Path(args.model).is_file():
        parser.error(f"--model {args.model}: no such file")
    if args.reps < 1:
        parser.error(f"--reps {args.reps}: at least 1")
    args.tests = args.tests or (["tg128"] if args.trace_overhead else ["pp512", "tg128"])
    for test in args.tests:
        parse_test(test)
    if not args.trace_overhead and not Path(args.peer).exists():
        parser.error(f"--peer {args.peer}: missing (tools/peers.sh llama_cpp makes it)")
    before = machine()
    document = {
        "machine": before,
        "model": {"file": Path(args.model).name,
                  "sha256": hashlib.sha256(Path(args.model).read_bytes()).hexdigest()},
        "versions": versions(args),
        "reps": args.reps,
        "peer_flash_attention": args.flash_attn,
    }
    if args.trace_overhead:
        document["trace_overhead"] = trace_overhead(args)
    else:
        document["tests"] = compare(args)
    document["load_average_after"] = list(os.getloadavg())
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
