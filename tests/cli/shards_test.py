#!/usr/bin/env python3
"""Split models and `info -m`, as people and scripts see them: on a small model cut into shards.

Each test is a function named test_…; the last line counts. CUTAWAY_BINARY names the program.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tempfile
import traceback
from pathlib import Path

import gguf_edit
import program
from hub_server import Hub
from program import GOLDEN, Terminal

FOLDER = Path(tempfile.mkdtemp(prefix="cutaway-shards-"))
WHOLE = GOLDEN / "llama-gqa3-tied.gguf"
U16, I32 = 2, 5
COUNT = 3


def split(model: gguf_edit.Gguf, count: int) -> list[gguf_edit.Gguf]:
    """As llama.cpp's gguf-split does it: the metadata in the first shard, the tensors in order."""
    names, shards = list(model.tensors), []
    share = -(-len(names) // count)
    for no in range(count):
        shard = gguf_edit.Gguf(keys=dict(model.keys) if no == 0 else {})
        shard.keys["split.no"] = (U16, struct.pack("<H", no))
        shard.keys["split.count"] = (U16, struct.pack("<H", count))
        shard.keys["split.tensors.count"] = (I32, struct.pack("<i", len(names)))
        shard.tensors = {n: model.tensors[n] for n in names[no * share:(no + 1) * share]}
        shards.append(shard)
    return shards


def shard_files(prefix: str, count: int = COUNT) -> dict[str, bytes]:
    return {f"{prefix}-{no:05}-of-{count:05}.gguf": shard.to_bytes()
            for no, shard in enumerate(split(gguf_edit.read(WHOLE), count), 1)}


def write_shards(prefix: str) -> list[str]:
    files = shard_files(prefix)
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
    return list(files)


def document(args: list[str], **more) -> dict:
    result = program.run([*args, "--json"], FOLDER, **more)
    assert result.code == 0, result.err
    return json.loads(result.out)


def answer(model: str, **more) -> dict:
    return document(["run", "-m", model, "-n", "8", "hi"], **more)


def failed(args: list[str], code: int, *parts: str) -> None:
    result = program.run(args, FOLDER)
    assert result.code == code, (result.code, result.err)
    for part in parts:
        assert part in result.err, (part, result.err)


def test_shards_answer_as_the_whole_does():
    names = write_shards("big")
    got, whole = answer(names[0]), answer(str(WHOLE))
    assert got["logits_hash"] == whole["logits_hash"] and got["text"] == whole["text"]
    assert got["model"] == "big", got["model"]
    traced = program.run(["run", "-m", names[0], "-n", "1", "--trace", "functions", "hi"], FOLDER)
    assert traced.code == 0 and "open_shards" in traced.err, traced.err[:500]


def test_shards_are_quantised_into_the_file_that_the_whole_gives():
    for source, target in ((write_shards("in")[0], "of_shards.gguf"), (str(WHOLE), "of_whole.gguf")):
        result = program.run(["quantize", source, target, "Q8_0"], FOLDER)
        assert result.code == 0, result.err
    assert (FOLDER / "of_shards.gguf").read_bytes() == (FOLDER / "of_whole.gguf").read_bytes()


def test_wrong_shards_are_named():
    first, second, third = write_shards("bad")
    run = ["run", "-n", "1", "hi", "-m"]
    failed([*run, second], 2, "shard 2 of 3", f"'{first}'")
    (FOLDER / third).rename(FOLDER / "kept")
    failed([*run, first], 1, "shard 3 of 3 is missing", third)
    shutil.copy(FOLDER / second, FOLDER / third)
    failed([*run, first], 1, third, "called shard 3 of 3", "shard 2 of 3")
    (FOLDER / third).write_bytes((FOLDER / "kept").read_bytes()[:2000])
    failed([*run, first], 1, "shard 3 of 3", third)
    (FOLDER / first).rename(FOLDER / "renamed.gguf")
    failed([*run, "renamed.gguf"], 1, "renamed.gguf", "-00001-of-00003.gguf")


def test_shards_that_were_pulled_run_by_name():
    files = {f"Q4_K_M/{n}": c for n, c in shard_files("pulled").items()}
    server = Hub({"owner/repo": files})
    try:
        env = {"HF_ENDPOINT": server.url}
        result = program.run(["pull", "hf:owner/repo"], FOLDER, env=env)
        assert result.code == 0, result.err
        got = answer("pulled")
        assert got["model"] == "pulled" and got["logits_hash"] == answer(str(WHOLE))["logits_hash"]
        assert len(document(["info", "-m", "pulled"])["model"]["files"]) == COUNT
    finally:
        server.close()
        shutil.rmtree(FOLDER / "home", ignore_errors=True)


def test_info_adds_up():
    names = write_shards("sum")
    for path, shards in ((names[0], COUNT), (str(WHOLE), 1)):
        model = document(["info", "-m", path, "--tensors"])["model"]
        edited = gguf_edit.read(WHOLE)
        assert [t["name"] for t in model["tensors"]] == list(edited.tensors) or shards == 1
        assert {t["name"] for t in model["tensors"]} == set(edited.tensors)
        assert sum(t["tensors"] for t in model["types"]) == len(edited.tensors) == model["tensor_count"]
        assert sum(t["bytes"] for t in model["types"]) == sum(t["bytes"] for t in model["tensors"])
        bits = 8 * sum(t["bytes"] for t in model["types"]) / sum(t["parameters"] for t in model["types"])
        assert abs(model["bits_per_weight"] - bits) < 1e-9
        for tensor in model["tensors"]:
            assert ("shard" in tensor) == (shards > 1)
            file = FOLDER / names[tensor["shard"] - 1] if shards > 1 else WHOLE
            raw = file.read_bytes()[tensor["offset"]:tensor["offset"] + tensor["bytes"]]
            assert raw == edited.tensors[tensor["name"]].data[:tensor["bytes"]], tensor["name"]
            assert tensor["shape"] == edited.tensors[tensor["name"]].dims[::-1]
        assert ("files" in model) == (shards > 1)
        assert "split.count" not in model["metadata"]


def test_info_for_people():
    model = gguf_edit.read(WHOLE)
    model.set_string("general.name", "한국어 모델 " * 20)
    model.set_string("general.license", "apache-2.0")
    model.set_string("general.hostile", "a\x1b[31mb\x07\u202e")
    (FOLDER / "모델 하나.gguf").write_bytes(model.to_bytes())
    args = ["info", "-m", "모델 하나.gguf"]
    piped = program.run(args, FOLDER).out.decode()
    for part in ("모델 하나: llama", "bits per weight", "licence        id apache-2.0", "tokenizer", "bos 0",
                 "chat template", "keys and values of a token: f32", "F32"):
        assert part in piped, (part, piped)
    assert "\x1b" not in piped and "\u202e" not in piped, "control characters reach the terminal"
    for columns in (40, 72, 120):
        terminal = Terminal(["info", "-m", "모델 하나.gguf"], FOLDER, columns=columns)
        assert terminal.finish() == 0
        lines = [line for line in terminal.text.replace("\r\n", "\n").split("metadata\n")[1].splitlines()]
        wide = [line for line in lines if width(line) > max(columns, 60)]
        assert not wide, (columns, wide)
    assert program.run([*args, "--tensors"], FOLDER).out.decode().count("blk.") >= 27


def width(line: str) -> int:
    return sum(2 if "\uac00" <= c <= "\ud7a3" else 1 for c in line)


def test_aliases_wherever_a_model_is_named():
    shutil.copy(WHOLE, FOLDER / "tiny.gguf")
    for args in (["run", "-n", "1", "hi"], ["tokenize", "hi"], ["info"], ["bench", "-p", "4", "-n", "0", "--reps", "1"],
                 ["capture", "hi", "--taps", "logits", "-o", "a.safetensors"]):
        for extra, env in ((["--alias", "gpt=tiny.gguf"], {}), ([], {"CUTAWAY_ALIASES": "x=y,gpt=tiny.gguf"}),
                           (["--alias", "gpt=other", "--alias", "other=tiny.gguf"], {"CUTAWAY_ALIASES": "gpt=none"})):
            result = program.run([*args, "-m", "gpt", *extra], FOLDER, env=env)
            assert result.code == 0, (args, extra, result.err)


def main(tests: dict) -> int:
    sys.stdout.reconfigure(encoding="utf-8")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failures = 0
    for name, test in [(n, f) for n, f in tests.items() if n.startswith("test_") and wanted in n]:
        try:
            test()
            passed += 1
        except Exception:  # one failure is one failure; the rest still runs
            failures += 1
            print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"{passed} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(globals()))
