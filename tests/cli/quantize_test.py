#!/usr/bin/env python3
"""`cutaway eval`, `quantize` and `imatrix` as people and scripts use them. CUTAWAY_BINARY names the
program."""

from __future__ import annotations

import json
import math
import signal
import struct
import subprocess
import sys
import time

import cli_test
import program
from cli_test import FOLDER, document, ok

TEXT = "the answer in a hat, and the hat on a cat. " * 12


def setup() -> None:
    (FOLDER / "f16.gguf").write_bytes((program.GOLDEN / "llama-f16.gguf").read_bytes())
    (FOLDER / "text.txt").write_text(TEXT)


def parts() -> list[str]:
    return [p.name for p in FOLDER.iterdir() if p.name.endswith(".part")]


def logits_of(tokens: list[int]) -> list[list[float]]:
    ok(["capture", "-m", "f16.gguf", "--tokens", ",".join(map(str, tokens)), "--taps", "logits", "-o", "l.st"])
    data = (FOLDER / "l.st").read_bytes()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + size])["logits"]
    _, rows, width = entry["shape"]
    values = struct.unpack(f"<{rows * width}f", data[8 + size :][: 4 * rows * width])
    return [list(values[r * width : (r + 1) * width]) for r in range(rows)]


def test_perplexity_is_that_of_the_logits():
    """llama.cpp's arithmetic, written out: windows, their second halves, the standard error."""
    got = document(["eval", "-m", "f16.gguf", "--text", "text.txt", "-c", "40", "--json"])
    tokens = [t["id"] for t in document(["tokenize", "-m", "f16.gguf", "--json", TEXT])["tokens"]]
    windows = len(tokens) // 40
    assert windows >= 3 and (got["windows"], got["window"], got["warmup"]) == (windows, 40, 20), got
    assert got["left_out"] == len(tokens) - 40 * windows and got["tokens"] == len(tokens)
    losses = []
    for w in range(windows):
        window = tokens[40 * w : 40 * w + 40]
        for i, row in enumerate(logits_of(window)[:-1]):
            if i >= 20:
                top = max(row)
                losses.append(top + math.log(sum(math.exp(x - top) for x in row)) - row[window[i + 1]])
    mean = sum(losses) / len(losses)
    variance = sum(x * x for x in losses) / len(losses) - mean * mean
    perplexity = math.exp(mean)
    assert got["scored"] == len(losses) == 19 * windows
    assert math.isclose(got["perplexity"]["value"], perplexity, rel_tol=1e-9), (got, perplexity)
    assert math.isclose(got["perplexity"]["standard_error"],
                        perplexity * math.sqrt(variance / (len(losses) - 1)), rel_tol=1e-6)


def test_threads_and_chunks_change_no_digit():
    runs = [document(["eval", "-m", "f16.gguf", "--text", "text.txt", "-c", "64", "--json", *more])
            for more in ([], ["-t", "1"], ["--prefill-chunk", "7"])]
    for run in runs:
        del run["timings"]
    assert runs[0] == runs[1] == runs[2]


def test_a_model_against_itself():
    got = document(["eval", "-m", "f16.gguf", "--baseline", "f16.gguf", "--text", "text.txt", "-c", "64", "--json"])
    base = got["baseline"]
    assert base["perplexity"] == got["perplexity"] and base["perplexity_ratio"]["value"] == 1
    assert base["top1_agreement"]["value"] == 1 and base["kl"]["max"] < 1e-12
    assert [row["layer"] for row in base["layers"]] == [-1, 0, 1]
    assert all(row["relative_error"] == 0 for row in base["layers"])


def test_a_quantised_file_runs_and_eval_says_what_it_lost():
    lost = {}
    for name in ("Q8_0", "Q4_0"):
        made = document(["quantize", "f16.gguf", f"{name}.gguf", name.lower(), "--force", "--json"])
        assert made["bytes"] == (FOLDER / f"{name}.gguf").stat().st_size and made["type"] == name
        assert all(t["to"] == name for t in made["tensors"] if t["name"].startswith("blk.0.attn_q"))
        got = document(["eval", "-m", f"{name}.gguf", "--baseline", "f16.gguf", "--text", "text.txt", "--json"])
        lost[name] = got["baseline"]["kl"]["mean"], got["baseline"]["layers"][-1]["relative_error"]
    assert 0 < lost["Q8_0"][0] < lost["Q4_0"][0] and 0 < lost["Q8_0"][1] < lost["Q4_0"][1], lost
    shown = ok(["eval", "-m", "Q4_0.gguf", "--baseline", "f16.gguf", "--text", "text.txt"]).out.decode()
    assert "perplexity ×" in shown and "KL divergence" in shown and "embed" in shown, shown


def test_a_dry_run_writes_nothing_and_knows_the_size():
    planned = document(["quantize", "f16.gguf", "Q4_K_M", "--dry-run", "--json"])
    assert planned["file"] is None and not (FOLDER / "Q4_K_M").exists()
    made = document(["quantize", "f16.gguf", "k.gguf", "Q4_K_M", "--json"])
    assert planned["bytes"] == made["bytes"] == (FOLDER / "k.gguf").stat().st_size
    assert planned["tensors"] == made["tensors"]
    fallen = [t for t in made["tensors"] if t["fell_back"]]
    assert fallen and made["warnings"] and "smaller blocks" in made["warnings"][0]
    table = ok(["quantize", "f16.gguf", "Q4_K_M", "--dry-run"]).out.decode()
    assert "blk.1.ffn_down.weight" in table and "would be: Q4_K_M" in table, table


def test_tensor_types_and_pure():
    made = document(["quantize", "f16.gguf", "t.gguf", "Q4_0", "--tensor-type", "ffn_down=q8_0",
                     "--tensor-type", r"blk\.0\.attn_(q|k)=F32", "--json"])
    types = {t["name"]: t["to"] for t in made["tensors"]}
    assert types["blk.1.ffn_down.weight"] == "Q8_0" and types["blk.0.attn_q.weight"] == "F32"
    assert types["blk.1.attn_q.weight"] == "Q4_0" and types["output_norm.weight"] == "F32"
    pure = document(["quantize", "f16.gguf", "p.gguf", "Q4_0", "--pure", "--json"])
    assert all(t["to"] in ("Q4_0", "F32") for t in pure["tensors"])


def test_the_same_bytes_for_any_number_of_threads():
    for name, more in (("a", ["-t", "1"]), ("b", ["-t", "3"])):
        ok(["quantize", "f16.gguf", f"{name}.gguf", "IQ4_NL", *more])
    assert (FOLDER / "a.gguf").read_bytes() == (FOLDER / "b.gguf").read_bytes()


def test_force_replaces_and_a_link_stays():
    (FOLDER / "mine.gguf").write_text("mine")
    ok(["quantize", "f16.gguf", "mine.gguf", "Q4_0"], code=1)
    assert (FOLDER / "mine.gguf").read_text() == "mine"
    ok(["quantize", "f16.gguf", "mine.gguf", "Q4_0", "--force"])
    assert (FOLDER / "mine.gguf").read_bytes()[:4] == b"GGUF"
    (FOLDER / "link.gguf").symlink_to("f16.gguf")
    ok(["quantize", "f16.gguf", "link.gguf", "Q4_0", "--force"], code=1)
    assert (FOLDER / "link.gguf").is_symlink()


def test_importance_is_measured_and_used():
    made = document(["imatrix", "-m", "f16.gguf", "--text", "text.txt", "-c", "64", "-o", "i.gguf", "--json"])
    assert made["tensors"] == 14 and made["windows"] >= 2 and made["left_out"] < 64
    got = document(["quantize", "f16.gguf", "w.gguf", "Q4_0", "--imatrix", "i.gguf", "--json"])
    assert got["importance"] == {"file": "i.gguf", "tensors": 14, "chunks": made["windows"]}
    weighted = [t["name"] for t in got["tensors"] if t["importance"]]
    assert len(weighted) == 14 and all(name.startswith("blk.") for name in weighted)
    keys = document(["info", "-m", "w.gguf", "--json"])["model"]["metadata"]
    assert keys["quantize.imatrix.dataset"] == "text.txt" and keys["quantize.imatrix.entries_count"] == 14
    # What the layers lose on the text that it was measured on is less.
    ok(["quantize", "f16.gguf", "u.gguf", "Q4_1"])
    ok(["quantize", "f16.gguf", "v.gguf", "Q4_1", "--imatrix", "i.gguf"])
    lost = [document(["eval", "-m", f, "--baseline", "f16.gguf", "--text", "text.txt", "--precise", "--json"])
            ["baseline"]["layers"][-1]["relative_error"] for f in ("u.gguf", "v.gguf")]
    assert lost[1] < 0.97 * lost[0], lost


def test_ctrl_c_leaves_nothing():
    ok(["synth", "smollm2-135m", "F16", "big.gguf"])
    process = subprocess.Popen([program.binary(), "quantize", "big.gguf", "small.gguf", "IQ4_XS", "-t", "1"],
                               cwd=FOLDER, env=program.environment(FOLDER), stderr=subprocess.PIPE)
    end = time.monotonic() + 30
    while not parts() and time.monotonic() < end:
        time.sleep(0.02)
    assert parts(), "the file was not begun"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"cancelled" in err, (process.returncode, err)
    assert not parts() and not (FOLDER / "small.gguf").exists()


def test_an_interrupted_eval_shows_whole_windows():
    ok(["synth", "smollm2-135m", "Q4_1", "slow.gguf", "--layers", "6"])
    (FOLDER / "long.txt").write_text(TEXT * 400)
    process = subprocess.Popen([program.binary(), "eval", "-m", "slow.gguf", "--text", "long.txt", "-c", "64",
                                "--warmup", "0", "-t", "1", "--json"], cwd=FOLDER,
                               env=program.environment(FOLDER), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, err)
    got = json.loads(out)
    assert got["cancelled"] and got["scored"] == 63 * got["windows"], got


if __name__ == "__main__":
    setup()
    sys.exit(cli_test.main(globals()))
