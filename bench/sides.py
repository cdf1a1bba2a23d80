"""Our side and the peer's side of compare.py: how each is run, and what its output means."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
WORKER = HERE / "peers" / "llama_cpp_worker.py"
QUESTION = "What is 2 + 2?"
ANSWER_TOKENS = 32
PAGE_TOKENS = 64  # of the KV cache
OVERHEAD_BYTES = 48e6  # what one answer may take beside the file and its KV cache


class Test(NamedTuple):
    kind: str  # "pp", "tg", "start", "memory", "busy"
    count: int = 0
    batch: int = 1
    depth: int = 0


def parse_test(test: str) -> Test:
    """`tg32b16@2048` -> ("tg", 32, 16, 2048). ValueError says what is accepted."""
    if test in ("start", "memory", "busy"):
        return Test(test)
    match = re.fullmatch(r"pp([1-9]\d*)|tg([1-9]\d*)(?:b([1-9]\d*))?(?:@(\d+))?", test)
    if not match:
        raise ValueError(f"{test!r}: expected pp512, tg128, tg128@2048, tg32b16, tg32b16@512, start, "
                         "memory or busy")
    if match[1]:
        return Test("pp", int(match[1]))
    return Test("tg", int(match[2]), int(match[3] or 1), int(match[4] or 0))


def call(command: list, keep_stderr: bool = True) -> dict:
    """Runs one command and reads the JSON document on its stdout. A trace is not kept: reading
    megabytes of it would be measured too."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, check=False,
                          stderr=subprocess.PIPE if keep_stderr else subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}:\n"
                         f"{(done.stderr or '').strip()[-800:]}")
    return json.loads(done.stdout)


@dataclass
class Ours:
    """`cutaway`, a process for each measurement."""

    binary: str

    def bench(self, model: str, test: Test, threads: int, limits: bool = False,
              extra: tuple = ()) -> dict:
        """The run of `cutaway bench --json` that the test is; its `tps` holds one repetition."""
        command = [self.binary, "bench", "-m", model, "-t", threads, "--reps", 1, "--json",
                   "-p", test.count if test.kind == "pp" else 0,
                   "-n", test.count if test.kind == "tg" else 0,
                   *([] if limits else ["--no-limits"]), *extra]
        if test.kind == "tg":
            command += ["-b", test.batch, "--depth", test.depth]
        document = call(command, keep_stderr=not extra)
        if len(document["runs"]) != 1:
            raise SystemExit(f"cutaway bench: {len(document['runs'])} runs where one was asked for")
        return document["runs"][0]

    def start(self, model: str, threads: int) -> dict:
        return call([self.binary, "bench", "--start", "-m", model, "-t", threads, "--json"])["start"]

    def memory(self, model: str, threads: int) -> dict:
        """Peak of a one-answer `run`, in bytes, and what it is to stay under."""
        answer = call([self.binary, "run", "-m", model, "-t", threads, "-n", ANSWER_TOKENS, "--json",
                       "--temperature", 0, QUESTION])
        info = call([self.binary, "info", "-m", model, "-t", threads, "--json"])["model"]
        usage = answer["usage"]
        pages = -(-(usage["input_tokens"] + usage["output_tokens"]) // PAGE_TOKENS)
        cache = pages * PAGE_TOKENS * info["kv_bytes_per_token"]["f16"]
        return {"peak_bytes": answer["timings"]["peak_rss_mb"] * 2**20, "kv_bytes": cache,
                "allowed_bytes": info["bytes"] + cache + OVERHEAD_BYTES}

    def synth(self, shape: str, type_name: str, out: Path) -> None:
        """Random weights at a real model's shape."""
        call([self.binary, "synth", shape, type_name, out, "--json"])

    def machine(self) -> dict:
        return call([self.binary, "info", "--json"])["machine"]

    def version(self) -> str:
        return subprocess.run([self.binary, "--version"], capture_output=True, text=True,
                              check=True).stdout.strip()


@dataclass
class Theirs:
    """llama.cpp in its own environment, a process for each measurement."""

    python: str

    def _call(self, *arguments) -> dict:
        return call([self.python, WORKER, *arguments])

    def bench(self, model: str, test: Test, threads: int, flash: str) -> float:
        name = f"{test.kind}{test.count}"
        if test.kind == "tg":
            name += (f"b{test.batch}" if test.batch > 1 else "") + (f"@{test.depth}" if test.depth else "")
        return self._call("bench", "-m", model, "--test", name, "--threads", threads, "--flash-attn",
                          flash)["tps"][0]

    def start(self, model: str, threads: int, flash: str) -> dict:
        return self._call("start", "-m", model, "--threads", threads, "--flash-attn", flash)

    def info(self) -> dict:
        return self._call("info")


@contextmanager
def busy_core():
    """One processor that something else wants all the time: a loop pinned to it."""
    core = min(os.sched_getaffinity(0))
    loop = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()  # pinned, and about to begin
            yield core
        finally:
            process.kill()
