#!/usr/bin/env python3
"""`cutaway synth` as people and scripts use it. CUTAWAY_BINARY names the program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import cli_test
import program
from cli_test import FOLDER, document, ok
from program import Terminal

SMALL = ["synth", "smollm2-135m", "Q4_1"]


def parts() -> list[str]:
    return [p.name for p in FOLDER.iterdir() if p.name.endswith(".part")]


def test_a_file_is_made_and_runs():
    got = document([*SMALL, "s.gguf", "--layers", "2", "--json"])
    assert got["bytes"] == (FOLDER / "s.gguf").stat().st_size
    assert {k: got[k] for k in ("file", "shape", "architecture", "type", "layers", "seed")} == {
        "file": "s.gguf", "shape": "smollm2-135m", "architecture": "llama", "type": "Q4_1", "layers": 2,
        "seed": 0}
    assert got["timings"]["write_ms"] > 0 and got["tensors"] == 20
    info = document(["info", "-m", "s.gguf", "--json"])["model"]
    assert info["parameters"] == got["parameters"] and info["layers"] == 2 and info["vocab"] == 49152
    assert "random weights" in str(info["metadata"]["general.name"])
    run = document(["run", "-m", "s.gguf", "--raw", "-n", "4", "--json", "hello  world"])
    assert run["usage"] == {**run["usage"], "input_tokens": 12, "output_tokens": 4}, run["usage"]
    runs = document(["bench", "-m", "s.gguf", "-p", "8", "-n", "2", "--reps", "1", "--json"])["runs"]
    assert all(r["tps"]["median"] > 0 for r in runs)


def test_text_comes_back_through_the_made_up_vocabulary():
    ok([*SMALL, "v.gguf", "--layers", "1"])
    text = "three   spaces, 한국어 🙂\n"
    got = document(["tokenize", "-m", "v.gguf", "--json", text])
    assert bytes(b for t in got["tokens"] for b in t["bytes"]) == text.encode()
    assert got["n"] == len(text.encode()) - 1  # the one merge
    assert document(["tokenize", "-m", "v.gguf", "--special", "--json", "<|end|>"])["n"] == 1


def test_the_same_seed_is_the_same_file():
    for name, more in (("a", []), ("b", ["-t", "1"]), ("c", ["--seed", "0"]), ("d", ["--seed", "1"])):
        ok([*SMALL, f"{name}.gguf", "--layers", "1", *more])
    a, b, c, d = ((FOLDER / f"{name}.gguf").read_bytes() for name in "abcd")
    assert a == b == c and a != d and len(a) == len(d)


def test_force_replaces():
    (FOLDER / "f.gguf").write_text("mine")
    ok([*SMALL, "f.gguf", "--layers", "1"], code=1)
    assert (FOLDER / "f.gguf").read_text() == "mine"
    ok([*SMALL, "f.gguf", "--layers", "1", "--force"])
    assert (FOLDER / "f.gguf").read_bytes()[:4] == b"GGUF"


def test_two_at_once_keep_the_first():
    """Neither saw the other's file when it began; only one may have the name."""
    for turn in range(8):  # each may meet the other at any of its steps
        name = f"two-{turn}.gguf"
        both = [subprocess.Popen([program.binary(), *SMALL, name, "--layers", "1", "--seed", str(seed)], cwd=FOLDER,
                                 env=program.environment(FOLDER), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE) for seed in (1, 2)]
        said = [process.communicate()[1] for process in both]
        assert sorted(process.returncode for process in both) == [0, 1], said
        assert f"{name} exists; --force replaces it".encode() in b"".join(said), said
        assert not parts()


def test_a_link_is_not_replaced():
    (FOLDER / "link.gguf").symlink_to("nowhere.gguf")
    for extra in ([], ["--force"]):
        done = program.run([*SMALL, "link.gguf", *extra], FOLDER)
        assert done.code == 1 and "link.gguf is a symbolic link" in done.err, done
    assert (FOLDER / "link.gguf").is_symlink() and not (FOLDER / "nowhere.gguf").exists()


def test_a_result_for_people():
    out = ok(["synth", "smollm2-135m", "q8_0", "p.gguf", "--layers", "1"]).out.decode()
    assert re.fullmatch(r"p\.gguf: smollm2-135m, 1 layer, 31\.9 M random parameters, Q8_0, "
                        r"3\d\.\d MB in \d+\.\d s\n", out), out


def test_list():
    listed = document(["synth", "--list", "--json"])["shapes"]
    by_name = {s["name"]: s for s in listed}
    assert by_name["llama-3.1-8b"]["parameters"] == 8_030_261_248
    assert by_name["qwen2.5-0.5b"]["tied"] and not by_name["qwen2.5-7b"]["tied"]
    types = list(listed[0]["bytes"])
    shown = ok(["synth", "--list"]).out.decode().splitlines()
    columns = shown[0].split()[3:]
    assert shown[0].split()[:3] == ["shape", "arch", "parameters"]
    assert len(columns) > 5 and set(columns) <= set(types) and columns == [t for t in types if t in columns]
    assert [line.split()[0] for line in shown[1:]] == list(by_name)
    helped = ok(["synth", "--help"]).out.decode()
    assert all(name in helped for name in types)


def test_ctrl_c_leaves_nothing():
    process = subprocess.Popen([program.binary(), "synth", "llama-3.1-8b", "Q4_1", "big.gguf", "-t", "1"],
                               cwd=FOLDER, env=program.environment(FOLDER), stderr=subprocess.PIPE)
    end = time.monotonic() + 30
    while not parts() and time.monotonic() < end:
        time.sleep(0.02)
    assert parts(), "the file was not begun"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and b"cancelled" in err, (process.returncode, err)
    assert not parts() and not (FOLDER / "big.gguf").exists()


def begun(target: str) -> subprocess.Popen:
    process = subprocess.Popen([program.binary(), "synth", "llama-3.1-8b", "Q4_1", target, "-t", "1"],
                               cwd=FOLDER, env=program.environment(FOLDER), stderr=subprocess.PIPE)
    end = time.monotonic() + 30
    while not parts() and time.monotonic() < end:
        time.sleep(0.02)
    assert parts(), "the file was not begun"
    return process


def test_termination_leaves_nothing():
    for number in (signal.SIGTERM, signal.SIGHUP):
        process = begun("big.gguf")
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 128 + number and b"cancelled" in err, (process.returncode, err)
        assert not parts() and not (FOLDER / "big.gguf").exists()


def test_what_a_killed_one_left_goes_with_the_next():
    """But not what another that still runs is writing, nor files of other names."""
    killed = begun("m.gguf")
    killed.kill()
    killed.communicate()
    left = set(parts())
    assert len(left) == 1, left
    others = [FOLDER / "m.gguf.notes.part", FOLDER / "m.gguf.1.x.part", FOLDER / "mm.gguf.1.2.part"]
    for other in others:
        other.write_text("mine")
    running = subprocess.Popen([program.binary(), "synth", "llama-3.1-8b", "Q4_1", "m.gguf", "-t", "1"],
                               cwd=FOLDER, env=program.environment(FOLDER), stderr=subprocess.PIPE)
    end = time.monotonic() + 30
    while left & set(parts()) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left & set(parts()), "what the killed one left is still there"
    time.sleep(0.2)
    ok(["synth", "smollm2-135m", "Q4_1", "m.gguf", "--layers", "1"])
    assert running.poll() is None
    assert [p for p in parts() if f".{running.pid}." in str(p)], "a running writer lost its file"
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert all(other.read_text() == "mine" for other in others)
    for path in (*others, FOLDER / "m.gguf"):
        path.unlink()


def test_progress_on_a_terminal_is_drawn_and_removed():
    terminal = Terminal(["synth", "smollm2-1.7b", "Q8_0", "t.gguf"], FOLDER)
    terminal.wait_for("write ")
    terminal.wait_for(" of 1.8 GB")
    os.kill(terminal.pid, signal.SIGINT)
    terminal.wait_for("\r\033[K")
    terminal.wait_for("cancelled")
    assert terminal.finish() == 130
    assert not parts() and not (FOLDER / "t.gguf").exists()


def test_memory_stays_flat():
    """286 MB of weights in far less memory."""
    # AddressSanitizer keeps what was freed, up to this much.
    environment = program.environment(FOLDER, {"ASAN_OPTIONS": "quarantine_size_mb=1"})
    ok(["synth", "smollm2-360m", "F16", "m.gguf", "--layers", "10"])
    script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); " \
             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", script, program.binary(), "synth", "smollm2-360m", "F16",
                           "m.gguf", "--layers", "10", "--force", "--json"], cwd=FOLDER, check=True,
                          env=environment, capture_output=True, text=True)
    kilobytes = int(done.stdout.splitlines()[-1])
    assert (FOLDER / "m.gguf").stat().st_size > 250e6 and kilobytes < 100_000, kilobytes


if __name__ == "__main__":
    sys.exit(cli_test.main(globals()))
