#!/usr/bin/env python3
"""Cutaway against llama.cpp, side by side: A B A B … on one file, one machine, in one run.

  compare.py -m F.gguf [-m G.gguf] [--bin build/release/cutaway] [--threads 1,2] [--reps 5]
             [--tests pp512,tg128,tg128@2048,tg32b16,start,memory,busy] [--flash-attn both]
  compare.py --set targets [--results bench/results]
                                           every row that the targets name, each file's document
                                           written to the folder as it is ready; --set shapes the
                                           same for random weights at the shapes of 1.5B and 7B
  compare.py -m F.gguf --trace-overhead    decode speed at trace levels off, functions and tensors,
                                           alternating, relative to off
  compare.py -m F.gguf --peer-only         the peer alone

Tests: pp512 a prompt of 512 tokens; tg128 decoding 128, @2048 with that many tokens in the cache,
b16 sixteen sequences at once (one token each a call), all in tokens per second. start: from the load
call to the first token in ms, in process on both sides, the file in the page cache. memory: the peak
of a one-answer `run` in MB. busy: decoding with two threads while a loop occupies one processor, and
with one free thread.

Every figure is the median of --reps runs, each in a process of its own with its own warm-up; min and
max are kept beside it. With --flash-attn both the peer runs with it on and off, and its better median
counts. One JSON document on stdout (a list for several files), progress on stderr. The peer is run by
the interpreter of tools/peers.sh's `llama_cpp` environment. Nothing but Python is needed. A slow
figure is no failure: the exit status says only whether the runs worked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import statistics
import sys
from pathlib import Path

import sides

FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
         "avx512_vbmi", "amx_int8", "asimd", "asimddp", "i8mm")
TRACE_LEVELS = ("off", "functions", "tensors")
LIMIT_KEYS = ("bytes_per_token", "achieved_gbps", "limit_gbps", "achieved_gops", "limit_gops")

# What `--set` measures: the file, the tests and the threads. A file is None (the installed one), a type
# that make_types.py makes, or a shape and a type for `cutaway synth`.
SETS = {
    "targets": [
        (None, ["pp512", "tg128", "tg128@2048", "tg128@6000", "tg32b16"], [1, 2]),
        (None, ["start", "memory", "busy"], [2]),
        ("q4_0", ["pp512", "tg128"], [1, 2]),
        ("q8_0", ["pp512", "tg128"], [1, 2]),
        ("f16", ["pp512", "tg128"], [1, 2]),
        ("q4_k_m", ["pp512", "tg128"], [1, 2]),
        ("q5_0", ["pp512", "tg128"], [1, 2]),
        ("q5_1", ["pp512", "tg128"], [1, 2]),
        ("iq4_nl", ["pp512", "tg128"], [1, 2]),
    ],
    "shapes": [
        ("qwen2.5-1.5b Q4_1", ["pp512", "tg128"], [1, 2]),
        ("qwen2.5-1.5b Q8_0", ["pp512", "tg128"], [2]),
        ("qwen2.5-1.5b Q4_K", ["pp512", "tg128"], [1, 2]),
        ("qwen2.5-1.5b Q6_K", ["pp512", "tg128"], [1, 2]),
        ("llama-2-7b Q4_1", ["pp128", "tg32"], [2]),
    ],
}


def file_of(kind: str | None) -> tuple[str, Path]:
    """The stem of the document and the file."""
    if kind is None:
        return "smollm2-135m-q4_1", home() / "models" / "smollm2-135m.gguf"
    stem = kind.lower().replace(" ", "-") + "-random" if " " in kind else f"smollm2-135m-{kind}"
    return stem, home() / "peers" / "types" / f"{stem}.gguf"


def home() -> Path:
    return Path(os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stats(values: list[float]) -> dict:
    if not values:
        return {}
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class Comparison:
    def __init__(self, ours: sides.Ours | None, theirs: sides.Theirs | None, reps: int, flash: str):
        self.ours, self.theirs, self.reps = ours, theirs, reps
        self.flash = ["on", "off"] if flash == "both" else [flash]

    def row(self, model: str, test: str, threads: int) -> dict:
        parsed = sides.parse_test(test)
        how = {"start": self.start, "memory": self.memory, "busy": self.busy}
        measure = how.get(parsed.kind, self.speed)
        return {"test": test, "threads": threads, **measure(model, parsed, threads, test)}

    def best_flash(self, by_flash: dict[str, list[float]], better=max) -> tuple[str, list[float]]:
        """The setting with the better median, and its values."""
        name = better(by_flash, key=lambda n: statistics.median(by_flash[n]))
        return name, by_flash[name]

    def speed(self, model: str, test: sides.Test, threads: int, name: str) -> dict:
        a, limits = [], {}
        by_flash: dict[str, list[float]] = {flash: [] for flash in self.flash}
        for rep in range(self.reps):
            if self.ours:
                run = self.ours.bench(model, test, threads, limits=rep == 0)
                a.append(run["tps"]["median"])
                if rep == 0:
                    limits = {key: run[key] for key in LIMIT_KEYS if key in run}
            if self.theirs:
                for flash, values in by_flash.items():
                    values.append(self.theirs.bench(model, test, threads, flash))
            say(f"{name} t={threads} {rep + 1}/{self.reps}: ours {a[-1] if a else float('nan'):.1f}, "
                "llama.cpp " + ", ".join(f"{v[-1]:.1f}" for v in by_flash.values() if v) + " tok/s")
        row = {"unit": "tok/s", "cutaway": stats(a), "limits": limits}
        return {**row, **self.against(a, by_flash, max)}

    def against(self, a: list[float], by_flash: dict[str, list[float]], better) -> dict:
        """The peer's part of a row, and the ratio ours / theirs."""
        if not self.theirs:
            return {}
        flash, b = self.best_flash(by_flash, better)
        out = {"llama_cpp": stats(b), "flash_attention": flash}
        if len(by_flash) > 1:
            out["llama_cpp_by_flash_attention"] = {n: stats(v) for n, v in by_flash.items()}
        if a:
            out["ratio"] = statistics.median(a) / statistics.median(b)
            # Of each pair that ran one after the other: the machine's drift falls out.
            out["ratio_of_pairs"] = stats([x / y for x, y in zip(a, b)])
        return out

    def start(self, model: str, _test: sides.Test, threads: int, name: str) -> dict:
        a = []
        by_flash: dict[str, list[dict]] = {flash: [] for flash in self.flash}
        Path(model).read_bytes()  # into the page cache, for both
        for rep in range(self.reps):
            if self.ours:
                a.append(self.ours.start(model, threads))
            if self.theirs:
                for flash, values in by_flash.items():
                    values.append(self.theirs.start(model, threads, flash))
            say(f"{name} t={threads} {rep + 1}/{self.reps}: ours "
                f"{a[-1]['total_ms'] if a else float('nan'):.0f}, llama.cpp "
                + ", ".join(f"{v[-1]['total_ms']:.0f}" for v in by_flash.values() if v) + " ms")
        total = lambda runs: [run["total_ms"] for run in runs]
        row = {"unit": "ms", "lower_is_better": True, "cutaway": stats(total(a))}
        if a:
            row["cutaway_parts"] = {key: stats([run[key] for run in a])
                                    for key in ("load_ms", "first_token_ms")}
        return {**row, **self.against(total(a), {n: total(v) for n, v in by_flash.items()}, min)}

    def memory(self, model: str, _test: sides.Test, threads: int, name: str) -> dict:
        a, allowed, before = [], 0.0, 0.0
        by_flash: dict[str, list[float]] = {flash: [] for flash in self.flash}
        for rep in range(self.reps):
            if self.ours:
                run = self.ours.memory(model, threads)
                a.append(run["peak_bytes"] / 1e6)
                allowed = run["allowed_bytes"] / 1e6
            if self.theirs:
                for flash, values in by_flash.items():
                    peer = self.theirs.start(model, threads, flash)
                    values.append(peer["peak_rss_mb"] * 2**20 / 1e6)
                    before = peer["peak_rss_before_load_mb"] * 2**20 / 1e6
            say(f"{name} t={threads} {rep + 1}/{self.reps}: ours {a[-1] if a else float('nan'):.0f} MB"
                f" (to stay under {allowed:.0f}), llama.cpp "
                + ", ".join(f"{v[-1]:.0f}" for v in by_flash.values() if v) + " MB")
        row = {"unit": "MB", "lower_is_better": True, "cutaway": stats(a),
               "file_and_kv_and_48_mb": allowed, "llama_cpp_before_load": before}
        return {**row, **self.against(a, by_flash, min)}

    def busy(self, model: str, _test: sides.Test, threads: int, name: str) -> dict:
        test = sides.parse_test("tg128")
        runners = {"cutaway": self.ours and (lambda t: self.ours.bench(model, test, t)["tps"]["median"]),
                   "llama_cpp": self.theirs and (
                       lambda t: self.theirs.bench(model, test, t, self.flash[0]))}
        runners = {side: run for side, run in runners.items() if run}
        free: dict[str, list[float]] = {side: [] for side in runners}
        busy: dict[str, list[float]] = {side: [] for side in runners}
        for rep in range(self.reps):
            for side, run in runners.items():
                free[side].append(run(1))
            with sides.busy_core():
                for side, run in runners.items():
                    busy[side].append(run(threads))
            say(f"{name} t={threads} {rep + 1}/{self.reps}: "
                + ", ".join(f"{side} {busy[side][-1]:.1f} beside the loop, {free[side][-1]:.1f} with "
                            "one free thread" for side in runners) + " tok/s")
        out: dict = {"unit": "tok/s"}
        for side in runners:
            relative = [b / f for b, f in zip(busy[side], free[side])]
            out[side] = stats(busy[side])
            out[f"{side}_one_free_thread"] = stats(free[side])
            out[f"{side}_relative"] = stats(relative)
        if len(runners) == 2:
            out["ratio"] = out["cutaway"]["median"] / out["llama_cpp"]["median"]
            out["ratio_of_pairs"] = stats([x / y for x, y in zip(busy["cutaway"], busy["llama_cpp"])])
        return out

    def trace_overhead(self, model: str, test: str, threads: int) -> dict:
        tps: dict[str, list[float]] = {level: [] for level in TRACE_LEVELS}
        for rep in range(self.reps):
            for level in TRACE_LEVELS:
                # Console lines: formatted as for a person, written to nowhere.
                run = self.ours.bench(model, sides.parse_test(test), threads, extra=("--trace", level))
                tps[level].append(run["tps"]["median"])
            say(f"{test} t={threads} {rep + 1}/{self.reps}: "
                + ", ".join(f"{k} {v[-1]:.1f}" for k, v in tps.items()))
        row: dict = {"test": test, "threads": threads, "levels": {}}
        for level in TRACE_LEVELS:
            pairs = [x / y for x, y in zip(tps[level], tps["off"])]
            row["levels"][level] = {
                "tps": stats(tps[level]),
                "relative_to_off": statistics.median(tps[level]) / statistics.median(tps["off"]),
                "relative_to_off_of_pairs": stats(pairs),
            }
        return row


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


def new_document(model: Path, comparison: Comparison) -> dict:
    versions, kernels = {}, None
    if comparison.theirs:
        versions["llama_cpp"] = comparison.theirs.info()
    if comparison.ours:
        versions["cutaway"] = comparison.ours.version()
        kernels = comparison.ours.machine()["kernels"]["chosen"]
    with open(model, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "machine": machine(),
        "model": {"file": model.name, "bytes": model.stat().st_size, "sha256": sha256},
        "versions": versions,
        "kernels": kernels,
        "reps": comparison.reps,
        "peer_flash_attention": "/".join(comparison.flash),
    }


def measure(comparison: Comparison, model: Path, tests: list[str], threads: list[int],
            trace: bool) -> dict:
    document = new_document(model, comparison)
    say(f"{model.name}: {document['kernels'] or 'peer only'}")
    rows = [(test, t) for t in threads for test in tests]
    if trace:
        document["trace_overhead"] = [comparison.trace_overhead(str(model), *row) for row in rows]
    else:
        document["tests"] = [comparison.row(str(model), *row) for row in rows]
    document["load_average_after"] = list(os.getloadavg())
    return document


def run_set(comparison: Comparison, name: str, folder: Path) -> list[dict]:
    """One document a file; each is in the folder as soon as it is measured."""
    folder.mkdir(parents=True, exist_ok=True)
    documents: dict[str, dict] = {}
    for kind, tests, threads in SETS[name]:
        stem, path = file_of(kind)
        if kind and " " in kind and not path.is_file():
            comparison.ours.synth(*kind.split(), path)
        got = measure(comparison, path, tests, threads, False)
        if stem in documents:
            documents[stem]["tests"] += got["tests"]
            documents[stem]["load_average_after"] = got["load_average_after"]
        else:
            documents[stem] = got
        (folder / f"{stem}.json").write_text(json.dumps(documents[stem], indent=1) + "\n")
        say(f"written: {folder / stem}.json")
    if name == "targets":
        document = measure(comparison, file_of(None)[1], ["tg128"], [1, 2], True)
        (folder / "smollm2-135m-q4_1-trace.json").write_text(json.dumps(document, indent=1) + "\n")
        documents["trace"] = document
    return list(documents.values())


def numbers(text: str) -> list[int]:
    values = [int(t) for t in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 1 on are expected")
    return values


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", help="a .gguf file; may be repeated")
    parser.add_argument("--set", choices=sorted(SETS), help="the rows of a set, on its own files")
    parser.add_argument("--results", type=Path, default=Path("bench/results"),
                        help="of --set: the folder of the documents")
    parser.add_argument("--bin", default="build/release/cutaway")
    parser.add_argument("--threads", type=numbers, default=None)
    parser.add_argument("--tests", type=lambda t: t.split(","), default=None)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--peer", default=home() / "peers" / "llama_cpp" / "bin" / "python",
                        help="interpreter with llama_cpp")
    parser.add_argument("--flash-attn", choices=["auto", "on", "off", "both"], default=None,
                        help="of the peer: auto is its default, and ours without --set (then both)")
    parser.add_argument("--peer-only", action="store_true")
    parser.add_argument("--trace-overhead", action="store_true")
    args = parser.parse_args(argv)
    if bool(args.model) == bool(args.set):
        parser.error("one of --model and --set is needed, and not both")
    if args.set and (args.tests or args.threads or args.trace_overhead):
        parser.error("--set has its own tests and threads: leave --tests, --threads and "
                     "--trace-overhead out")
    if args.set and args.peer_only:
        parser.error("--set compares both: leave --peer-only out")
    if args.trace_overhead and args.peer_only:
        parser.error("--trace-overhead measures Cutaway alone: leave --peer-only out")
    for model in args.model or []:
        if not Path(model).is_file():
            parser.error(f"--model {model}: no such file")
    for kind, _, _ in SETS.get(args.set, []):
        path = file_of(kind)[1]
        if not path.is_file() and " " not in (kind or ""):
            parser.error(f"--set {args.set} needs {path}: " +
                         ("cutaway pull smollm2-135m" if kind is None else "bench/make_types.py"))
    if args.reps < 1:
        parser.error(f"--reps {args.reps}: at least 1")
    args.tests = args.tests or (["tg128"] if args.trace_overhead else ["pp512", "tg128"])
    for test in args.tests:
        try:
            parsed = sides.parse_test(test)
        except ValueError as error:
            parser.error(f"--tests {error}")
        if args.trace_overhead and parsed.kind not in ("pp", "tg"):
            parser.error(f"--tests {test}: --trace-overhead takes pp… and tg… tests")
    if not args.trace_overhead and not Path(args.peer).exists():
        parser.error(f"--peer {args.peer}: missing (tools/peers.sh llama_cpp makes it)")
    args.threads = args.threads or [1, 2]
    args.flash_attn = args.flash_attn or ("both" if args.set else "auto")
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    comparison = Comparison(None if args.peer_only else sides.Ours(args.bin),
                            None if args.trace_overhead else sides.Theirs(str(args.peer)),
                            args.reps, args.flash_attn)
    if args.set:
        documents = run_set(comparison, args.set, args.results)
    else:
        documents = [measure(comparison, Path(model), args.tests, args.threads, args.trace_overhead)
                     for model in args.model]
    print(json.dumps(documents if len(documents) > 1 else documents[0], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
