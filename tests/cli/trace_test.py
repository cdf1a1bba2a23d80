#!/usr/bin/env python3
"""Traces in files: every line follows the schema, a killed run leaves whole lines, a full disk costs no answer.

Each test is a function named test_…; the last line counts. CUTAWAY_BINARY names the program.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import cli_test
import program
from cli_test import FOLDER, TINY, Skip, answer, ok, start
from json_schema import faults

SCHEMA = json.loads((program.ROOT / "schema" / "trace.schema.json").read_text())
ODD = "Schrödinger 한국어 \U0001F99C \x1b[31m\u2028 \"quoted\" \\ " + "long " * 5


def valid(path: str) -> list[dict]:
    records = [json.loads(line) for line in (FOLDER / path).read_text().splitlines()]
    for record in records:
        wrong = faults(SCHEMA, record)
        assert not wrong, (wrong, record)
    return records


def test_the_schema_is_no_rubber_stamp():
    ok(["run", *TINY, "-n", "1", "--trace-out", "t.jsonl", "hi"])
    good = valid("t.jsonl")[-1]
    for change in ({"kind": "x"}, {"depth": -1}, {"more": 1}, {"fields": {"a": None}}, {"duration_us": "1"}):
        assert faults(SCHEMA, {**good, **change}), change
    assert faults(SCHEMA, {k: v for k, v in good.items() if k != "duration_us"})


def test_every_line_of_every_level_follows_the_schema():
    kinds, names = set(), set()
    for level in ("phases", "functions", "tensors"):
        for args in ([*TINY, ODD], [*TINY, "--raw", "--temperature", "1.2", "--top-p", "0.9", "--min-p", "0.02", ODD],
                     ["-m", str(program.GOLDEN / "mixtral-8-use-2.gguf"), "--raw", "the hat"],
                     [*TINY, "--stop", "e", "--logit-bias", "70=2", "--repeat-penalty", "1.2", "hi"]):
            ok(["run", "-n", "4", "--trace", level, "--trace-out", "t.jsonl", "--json", *args])
            for record in valid("t.jsonl"):
                kinds.add(record["kind"])
                names.add(record["name"])
    assert kinds == {"enter", "exit", "event"} and len(names) > 60, (kinds, len(names))


def test_a_failed_request_s_trace_follows_the_schema_too():
    ok(["run", *TINY, "-c", "8", "--trace-out", "t.jsonl", "a prompt that is longer than its context"], 1)
    assert any("error" in record["fields"] for record in valid("t.jsonl"))


def test_numbers_that_json_has_not():
    ok(["run", "-m", str(program.GOLDEN / "llama-mqa.gguf"), "--raw", "-n", "2", "--trace", "tensors", "--trace-out",
        "t.jsonl", "the hat"])
    tensors = [v for r in valid("t.jsonl") for v in r["fields"].values() if isinstance(v, dict) and "l2" in v]
    assert len(tensors) > 20


def kill_when(size: int, args: list[str], path: str) -> bytes:
    """What is in the file of a run that was killed as soon as the file had `size` bytes."""
    file = FOLDER / path
    file.unlink(missing_ok=True)
    process = subprocess.Popen([program.binary(), "run", *args, "--trace-out", path, "Tell me a story"], cwd=FOLDER,
                               env=program.environment(FOLDER), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while (not file.exists() or os.stat(file).st_size < size) and process.poll() is None:
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait()
    return file.read_bytes()


def test_a_killed_run_leaves_whole_lines():
    model = ["-m", str(program.installed_model())] if program.installed_model() else None
    if model is None:
        raise Skip("smollm2-135m is not installed")
    draw, lines, crossed = random.Random(4), 0, 0
    for _ in range(12):
        data = kill_when(draw.randrange(1, 3_000_000), [*model, "-n", "200"], "killed.jsonl")
        assert data.endswith(b"\n"), data[-300:]
        for line in data.splitlines():
            json.loads(line)
            lines += 1
        crossed += sum(data[at - 1:at] != b"\n" for at in range(4096, len(data), 4096))
    assert lines > 1000 and crossed == 0, (lines, crossed)


def test_a_killed_run_leaves_whole_requests_in_otlp():
    data = kill_when(200_000, [*TINY, "-n", "100", "--temperature", "2"], "killed.otlp.jsonl")
    whole = data[:data.rfind(b"\n") + 1]
    assert whole and all("resourceSpans" in json.loads(line) for line in whole.splitlines())


def test_pages_of_a_long_trace_begin_with_a_line():
    ok(["run", *TINY, "-n", "20", "--trace-out", "t.jsonl", "the answer"])
    data = (FOLDER / "t.jsonl").read_bytes()
    assert len(data) > 20 * 4096
    assert all(data[at - 1:at] == b"\n" for at in range(4096, len(data), 4096))
    valid("t.jsonl")


def test_a_full_disk_gets_one_sentence_and_the_answer():
    expected = answer("-n", "6", "hi")["text"]
    for level in ("functions", "tensors"):
        done = ok(["run", *TINY, "-n", "6", "--trace", level, "--trace-out", "/dev/full", "hi"], 1)
        said = [line for line in done.err.splitlines() if "[TRACE]" not in line]
        assert len(said) == 1 and "/dev/full" in said[0] and "No space left" in said[0], said
        assert done.out.decode(errors="replace").rstrip("\n") == expected.rstrip("\n")


def test_ctrl_c_while_nobody_reads_the_trace():
    os.mkfifo(FOLDER / "unread.jsonl")
    process = start(["run", *TINY, "-n", "2", "--trace-out", "unread.jsonl", "hi"])
    time.sleep(1)  # it waits, whatever the machine's speed: nobody will ever read
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"a reader of unread.jsonl" in err and not out, (process.returncode, err)


if __name__ == "__main__":
    sys.exit(cli_test.main(globals()))
