#!/usr/bin/env python3
"""Recordings: `run --record` and `cutaway replay`. CUTAWAY_BINARY names the program."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import sys
from pathlib import Path

import cli_test
import program
from cli_test import FOLDER, TINY, answer, document, need_model, ok

FILES = ("run.json", "events.jsonl", "trace.jsonl", "tensors.safetensors")
TAPS = "hook_embed,blocks.1.attn.hook_pattern,blocks.0.hook_resid_post,logits"


def record(name: str, *args: str) -> dict:
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    return answer("--record", name, *args)


def replay(name: str, *args: str, code: int = 0, env: dict[str, str] | None = None) -> dict:
    return document(["replay", name, "--json", *args], code, env=env)


def refused(name: str, *words: str, args: tuple[str, ...] = (), code: int = 1) -> None:
    error = ok(["replay", name, "--verify", *args], code).err
    assert all(word in error for word in words), (words, error)


def tensors(path: Path) -> dict[str, tuple[list[int], bytes]]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: (entry["shape"], data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


def test_a_recording_holds_what_the_run_said():
    got = record("r1", "-n", "5", "--record-taps", TAPS, "hi")
    assert sorted(p.name for p in (FOLDER / "r1").iterdir()) == sorted(FILES)
    run = json.loads((FOLDER / "r1" / "run.json").read_text())
    assert run["run"] == got["run"] and run["text"] == got["text"] and run["logits_hash"] == got["logits_hash"]
    assert run["tokens"] == [t["id"] for t in got["tokens"]] and run["prompt_tokens"] == got["prompt_tokens"]
    assert run["sampling"] == got["sampling"] and run["session"] == got["session"]
    events = [json.loads(line) for line in (FOLDER / "r1" / "events.jsonl").read_text().splitlines()]
    samples = [e for e in events if e["kind"] == "sample"]
    hashes = [e for e in events if e["kind"] == "hashes"]
    assert [e["ledger"]["chosen"]["id"] for e in samples] == run["tokens"]
    assert [e["position"] for e in hashes] == list(range(len(run["prompt_tokens"]) + len(run["tokens"]) - 1))
    assert all(len(e["resid_post"]) == run["layers"] for e in hashes)
    assert "ledger" not in got["tokens"][0]  # only with --ledger


def test_recording_changes_no_bit():
    plain = answer("-n", "8", "--temperature", "1", "--seed", "3", "hello")
    for level in ("off", "phases", "functions", "tensors"):
        recorded = record("bits", "--record-trace", level, "-n", "8", "--temperature", "1", "--seed", "3", "hello")
        assert plain["logits_hash"] == recorded["logits_hash"] and plain["text"] == recorded["text"]
        assert (FOLDER / "bits" / "trace.jsonl").exists() == (level != "off")


def test_settings_are_echoed_as_they_were_written():
    given = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9, "repeat_penalty": 1.1,
             "presence_penalty": 0.3, "frequency_penalty": 0.7}
    flags = [text for name, value in given.items() for text in ("--" + name.replace("_", "-"), str(value))]
    got = record("echo", *flags, "--logit-bias", "5=0.1", "--ledger", "-n", "2", "--seed", "3", "hi")
    run = json.loads((FOLDER / "echo" / "run.json").read_text())
    for sampling in (got["sampling"], run["sampling"], document(["report", "echo", "--json"])["run"]["sampling"]):
        assert {name: sampling[name] for name in given} == given and sampling["logit_bias"] == {"5": 0.1}
    for ledger in (got["tokens"][1]["ledger"], replay("echo", "--step", "1")["step"]["ledger"]):
        said = {name: value for stage in ledger["stages"] for name, value in stage["params"].items()}
        assert {name: said[name] for name in given} == given and said["logit_bias"] == {"5": 0.1}
    assert replay("echo")["equal"]


def test_a_recording_keeps_the_run_s_own_trace():
    for level in ("phases", "functions"):
        # Another sink at another level changes nothing of it.
        got = record("traced", "--record-trace", level, "--trace-out", "beside.jsonl", "--trace", "tensors", "-n", "4", "hi")
        lines = [json.loads(line) for line in (FOLDER / "traced" / "trace.jsonl").read_text().splitlines()]
        assert {line["run"] for line in lines} == {got["run"]}
        ended = [line for line in lines if line["kind"] == "exit"]
        assert [line["step"] for line in ended if line["name"] == "inference::Decoder::token"] == [0, 1, 2, 3]
        assert {line["phase"] for line in ended} >= {"prompt", "prefill", "generate"}
        inside = [line for line in ended if line["name"].startswith("ops::")]
        assert bool(inside) == (level == "functions")
        assert all("min" not in json.dumps(line["fields"]) for line in inside)  # no digests
        assert replay("traced")["equal"]


def check_twenty(model: list[str], longest: int) -> None:
    rng = random.Random(1)
    for i in range(20):
        settings = ["-n", str(rng.choice([1, 2, 9, longest])), "-t", str(rng.choice([1, 2, 3])),
                    "--prefill-chunk", str(rng.choice([1, 7, 512]))]
        if i % 2:
            settings += ["--temperature", "1.1", "--top-p", "0.95", "--repeat-penalty", "1.2", "--logit-bias", "5=1"]
        if i % 5 == 0:
            settings += ["--precise"]
        if i % 5 == 1:
            settings += ["--cache-type", "q8"]
        prompt = "word " * rng.choice([1, 3, 12])
        shutil.rmtree(FOLDER / "many", ignore_errors=True)
        run = document(["run", *model, "--record", "many", "--json", *settings, prompt])
        got = replay("many", "-t", str(rng.choice([1, 2])))
        positions = len(run["prompt_tokens"]) + len(run["tokens"]) - 1
        layers = json.loads((FOLDER / "many" / "run.json").read_text())["layers"]
        assert got["equal"] and got["difference"] is None, (settings, got)
        assert got["compared"] == {"positions": positions, "hashes": positions * layers,
                                   "choices": len(run["tokens"])}, (got["compared"], positions)


def test_twenty_recordings_of_the_tiny_model_are_proved():
    check_twenty(TINY, 30)


def test_twenty_recordings_of_the_real_model_are_proved():
    check_twenty(need_model(), 24)


def test_a_step_is_computed_again():
    run = record("step", "-n", "6", "--temperature", "1", "--seed", "5", "--ledger", "hi")
    for step in (0, 3, 5):
        got = replay("step", "--step", str(step))
        assert got["step"]["ledger"] == run["tokens"][step]["ledger"], step
        assert got["compared"]["choices"] == step + 1
    shown = ok(["replay", "step", "--step", "2"]).out.decode()
    assert "step 2 at position" in shown and "fell into its interval" in shown and "the same" in shown
    error = ok(["replay", "step", "--step", "6"], 2).err
    assert "step is 6" in error and "0 to 5" in error, error


def test_a_tap_is_computed_again():
    record("taps", "-n", "5", "--record-taps", TAPS, "hi there")
    replay("taps", "--tap", TAPS, "-o", "again.safetensors")
    recorded, again = tensors(FOLDER / "taps" / "tensors.safetensors"), tensors(FOLDER / "again.safetensors")
    assert recorded == again and sorted(recorded) == sorted(TAPS.split(","))
    got = replay("taps", "--step", "0", "--tap", "hook_embed", "-o", "first.safetensors")
    prompt = len(json.loads((FOLDER / "taps" / "run.json").read_text())["prompt_tokens"])
    assert got["taps"][0]["shape"][1] == prompt


def test_a_rotary_scaling_that_follows_the_context_is_repeated():
    for name in ("long", "partial", "short"):
        model = ["-m", str(program.GOLDEN / f"phi3-longrope-{name}.gguf")]
        hashes = set()
        for context in ("24", "64"):  # on both sides of the context before scaling, 32
            shutil.rmtree(FOLDER / "longrope", ignore_errors=True)
            run = document(["run", *model, "-c", context, "--raw", "-n", "6", "--record", "longrope", "--json",
                            "--record-taps", "logits", "word and word"])
            assert replay("longrope")["equal"], (name, context)
            replay("longrope", "--tap", "logits", "-o", "longrope.safetensors")
            kept = tensors(FOLDER / "longrope" / "tensors.safetensors")
            assert kept == tensors(FOLDER / "longrope.safetensors"), (name, context)
            hashes.add(run["logits_hash"])
        assert len(hashes) == 2, f"{name}: the context makes no difference, so this proves nothing"


def test_what_ends_early_is_recorded_too():
    run = record("stopped", "-n", "40", "--stop", answer("-n", "40", "hi")["text"][3:6], "hi")
    assert run["finish_reason"] == "stop" and replay("stopped")["equal"]
    record("nothing", "-n", "0", "hi")
    assert replay("nothing")["compared"] == {"positions": 0, "hashes": 0, "choices": 0}


def test_a_flipped_bit_is_found_wherever_it_is():
    record("flip", "-n", "4", "--record-taps", "hook_embed", "hi")
    rng = random.Random(2)
    for name in FILES:
        path = FOLDER / "flip" / name
        good = path.read_bytes()
        for at in [0, len(good) - 1, *(rng.randrange(len(good)) for _ in range(40))]:
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            path.write_bytes(bad)
            refused("flip", f"flip/{name}")
        path.write_bytes(good)
    assert replay("flip")["equal"]


def test_a_cut_or_missing_file_is_named():
    record("cut", "-n", "4", "--record-taps", "hook_embed", "hi")
    for name in FILES:
        path = FOLDER / "cut" / name
        good = path.read_bytes()
        for keep in (0, 1, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:keep])
            refused("cut", f"cut/{name}")
        path.unlink()
        refused("cut", f"cut/{name} is not there")
        path.write_bytes(good)
    refused("no-such-folder", "no-such-folder/run.json is not there")


def test_what_is_no_file_is_named():
    record("odd", "-n", "2", "--record-taps", "hook_embed", "hi")
    for name in FILES:
        path = FOLDER / "odd" / name
        good = path.read_bytes()
        path.unlink()
        path.mkdir()
        refused("odd", f"odd/{name} is not a regular file")
        path.rmdir()
        os.mkfifo(path)
        refused("odd", f"odd/{name} is not a regular file")
        path.unlink()
        path.write_bytes(good)
    assert replay("odd")["equal"]


def test_what_was_not_kept_is_a_warning():
    for args in (["-n", "4", "--steps", "9:"], ["-n", "4", "--positions", "9999"], ["-n", "0"]):
        shutil.rmtree(FOLDER / "unkept", ignore_errors=True)
        made = ok(["run", *TINY, "--record", "unkept", "--record-taps", "hook_embed", *args, "hi"])
        assert made.err.count("no tensors were kept") == 1, (args, made.err)
        run = json.loads((FOLDER / "unkept" / "run.json").read_text())
        assert sum("no tensors were kept" in warning for warning in run["warnings"]) == 1
        assert not (FOLDER / "unkept" / "tensors.safetensors").exists() and replay("unkept")["equal"]
    shutil.rmtree(FOLDER / "unkept")
    assert "kept" not in ok(["run", *TINY, "--record", "unkept", "--record-taps", "hook_embed", "-n", "4", "--steps",
                             "0", "hi"]).err


def test_a_run_that_is_ended_from_outside_is_recorded():
    for end in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        shutil.rmtree(FOLDER / "ended", ignore_errors=True)
        process = cli_test.start(["run", *need_model(), "--record", "ended", "--logit-bias", "2=-100", "Tell a long story."])
        first = process.stdout.read(8)
        process.send_signal(end)
        rest, err = process.communicate(timeout=60)
        assert process.returncode == 128 + end and first and rest.endswith(b"\n"), (end, process.returncode, err)
        assert replay("ended")["equal"]
        assert not [p for p in FOLDER.iterdir() if p.name.startswith("ended.")]


def test_another_model_is_named():
    record("model", "-n", "4", "hi")
    ok(["synth", "smollm2-135m", "Q4_1", "other.gguf", "--layers", "1"])
    refused("model", "another model", "other.gguf", args=("-m", "other.gguf"), code=2)


def test_another_kernel_table_proves_what_it_can():
    run = record("kernels", "-n", "4", "hi")
    got = replay("kernels", env={"CUTAWAY_FORCE_ISA": "ref"}, code=1)
    assert got["kernels"] == {"recorded": run["session"]["kernels"], "here": "ref"} and not got["equal"]
    assert "ref" in got["difference"]["why"] and "nothing is proved" in got["difference"]["why"]
    if run["session"]["kernels"] == "avx512":  # the two have the same bits
        assert replay("kernels", env={"CUTAWAY_FORCE_ISA": "avx2"})["equal"]


def test_a_folder_that_is_taken_is_refused_before_anything_is_computed():
    record("taken", "-n", "1", "hi")
    error = ok(["run", *TINY, "-n", "1", "--record", "taken", "hi"], 2).err
    assert "taken is there already" in error
    (FOLDER / "empty").mkdir(exist_ok=True)
    record("empty/", "-n", "1", "hi")
    assert replay("empty/")["equal"]
    error = ok(["run", *TINY, "-n", "1", "--record", "new", "--record-taps", "hook_nothing", "hi"], 2).err
    assert "hook_nothing" in error and not (FOLDER / "new").exists()
    assert not [p for p in FOLDER.iterdir() if p.name.endswith(".part")]


if __name__ == "__main__":
    sys.exit(cli_test.main(globals()))
