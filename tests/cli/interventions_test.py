#!/usr/bin/env python3
"""Interventions: `run --intervene`, `capture --intervene`, and their recordings. CUTAWAY_BINARY names the
program."""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
from pathlib import Path

import cli_test
import program
from cli_test import FOLDER, TINY, answer, document, ok
from json_schema import faults
from recording_test import tensors

FIXED = ["-n", "6", "--temperature", "1", "--seed", "5"]
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "schema" / "interventions.schema.json").read_text())
HEAD = {"tap": "blocks.1.attn.hook_z", "op": "zero", "heads": [1]}
LAST = {"tap": "blocks.0.hook_resid_post", "op": "scale", "value": -2, "positions": [-1]}


def spec(*items: dict, name: str = "spec.json", **tokens) -> str:
    content: dict = {"interventions": list(items)} if items else {}
    if tokens:
        content["tokens"] = tokens
    assert not faults(SCHEMA, content), faults(SCHEMA, content)
    (FOLDER / name).write_text(json.dumps(content))
    return name


def intervened(name: str, *args: str, prompt: str = "hello there") -> dict:
    return answer("--intervene", name, *FIXED, *args, prompt)


def record(folder: str, *args: str, prompt: str = "hello there") -> dict:
    shutil.rmtree(FOLDER / folder, ignore_errors=True)
    return answer("--record", folder, *FIXED, *args, prompt)


def captured(name: str | None, *args: str, taps: str = "logits", prompt: str = "hello there") -> dict:
    file = "captured.safetensors"
    got = document(["capture", *TINY, "--taps", taps, "-o", file, "--json",
                    *(["--intervene", name] if name else []), *args, prompt])
    got["tensors"] = tensors(FOLDER / file)
    return got


def floats(tensor: tuple[list[int], bytes]) -> tuple[float, ...]:
    return struct.unpack(f"<{len(tensor[1]) // 4}f", tensor[1])


def test_an_intervention_changes_the_answer_and_says_how_often():
    plain = answer(*FIXED, "hello there")
    got = intervened(spec(HEAD, LAST))
    assert got["logits_hash"] != plain["logits_hash"]
    positions = len(got["prompt_tokens"]) + len(got["tokens"]) - 1
    assert got["interventions"] == {
        "taps": [{"item": 0, "tap": HEAD["tap"], "op": "zero", "fired": positions},
                 {"item": 1, "tap": LAST["tap"], "op": "scale", "fired": 1}], "force": [], "ban": []}
    assert "interventions" not in plain


def test_a_specification_can_stand_in_the_file_s_place():
    written = json.loads((FOLDER / spec(HEAD, LAST)).read_text())
    assert intervened(json.dumps(written))["logits_hash"] == intervened(spec(HEAD, LAST))["logits_hash"]
    error = ok(["run", *TINY, "-n", "1", "--intervene", '{"interventions": [', "hi"], 1).err
    assert "the specification is no JSON" in error and "./{" in error, error
    indented = "\n  " + json.dumps(written, indent=2)
    assert intervened(indented)["logits_hash"] == intervened(spec(HEAD, LAST))["logits_hash"]
    shutil.copyfile(FOLDER / spec(HEAD, LAST), FOLDER / "{odd.json")
    assert intervened("./{odd.json")["logits_hash"] == intervened(spec(HEAD, LAST))["logits_hash"]


def test_a_recording_may_have_any_name():
    ok(["run", *TINY, *FIXED, "--record", "{odd", "--intervene", spec(HEAD), "hello there"])
    got = document(["report", "{odd", "--json", *TINY])
    assert got["replay"]["equal"] and got["lens"]["interventions"]["taps"][0]["fired"] > 0


def test_one_that_changes_nothing_leaves_every_bit():
    plain = answer(*FIXED, "hello there")
    taps = ["hook_embed", "logits", "ln_final.hook_normalized", "blocks.0.mlp.hook_post", "blocks.1.attn.hook_k",
            "blocks.0.hook_attn_out", "blocks.1.ln1.hook_scale"]
    got = intervened(spec({"tap": taps, "op": "scale", "value": 1}))
    assert got["logits_hash"] == plain["logits_hash"] and got["text"] == plain["text"]
    assert len(got["interventions"]["taps"]) == len(taps)


def test_chunks_and_threads_do_not_change_a_bit():
    items = [HEAD, LAST, {"tap": "blocks.0.attn.hook_pattern", "op": "scale", "value": 0.5, "keys": 0},
             {"tap": "blocks.1.attn.hook_result", "op": "add", "value": 0.1, "steps": ["prompt", 1]}]
    name = spec(*items)
    first = intervened(name)
    for args in (["--prefill-chunk", "1"], ["--prefill-chunk", "3", "-t", "3"], ["-t", "1"]):
        assert intervened(name, *args)["logits_hash"] == first["logits_hash"], args


def test_what_never_fires_is_a_warning():
    got = intervened(spec(HEAD | {"steps": 50}, force=[{"step": 40, "id": 5}], ban=[{"ids": [5], "steps": "90:"}]))
    assert got["interventions"]["taps"][0]["fired"] == 0
    warnings = " ".join(got["warnings"])
    for part in ("interventions[0] changed nothing", "tokens.force[0] was not reached",
                 "tokens.ban[0] was not reached", "6 tokens"):
        assert part in warnings, warnings


def test_tokens_are_forced_and_banned_in_the_ledger():
    plain = answer(*FIXED, "--ledger", "--top-logprobs", "3", "hello there")
    banned = plain["tokens"][0]["id"]
    name = spec(ban=[{"ids": [banned]}], force=[{"step": 2, "text": "xy"}])
    got = intervened(name, "--ledger", "--top-logprobs", "3")
    assert banned not in [t["id"] for t in got["tokens"]]
    assert got["text"][2:4] == "xy" or "xy" in got["text"]
    first, forced = got["tokens"][0], got["tokens"][2]
    # The model's own numbers stay: the first choice is made from the same logits.
    assert first["ledger"]["raw"] == plain["tokens"][0]["ledger"]["raw"]
    assert first["top"] == plain["tokens"][0]["top"]
    mask = first["ledger"]["mask"]
    assert [r["id"] for r in mask["removed"]] == [banned] and 0 < mask["removed_mass"] <= 1
    assert forced["ledger"]["forced"]["by"] == "intervention" and forced["ledger"]["stages"] == []
    assert forced["ledger"]["draw"]["u"] is None and forced["piece"] == "x"
    assert forced["ledger"]["chosen"]["prob"] == 1 and forced["logprob"] < 0
    assert "forced" not in first["ledger"] and "mask" not in forced["ledger"]
    assert [f["fired"] for f in got["interventions"]["force"]] == [1, 1]
    assert got["interventions"]["ban"][0]["fired"] == 6


def test_a_capture_shows_what_was_changed():
    plain = captured(None, taps="blocks.1.attn.hook_z,logits")
    got = captured(spec(HEAD), taps="blocks.1.attn.hook_z,logits")
    shape, _ = got["tensors"]["blocks.1.attn.hook_z"]
    _, n, heads, d = shape
    before, after = (floats(x["tensors"]["blocks.1.attn.hook_z"]) for x in (plain, got))
    for i, (a, b) in enumerate(zip(before, after)):
        assert b == (0 if i // d % heads == 1 else a), i
    assert floats(plain["tensors"]["logits"]) != floats(got["tensors"]["logits"])
    assert got["interventions"]["taps"][0]["fired"] == n


def test_the_standing_form_is_that_of_the_changed_pattern():
    name = spec({"tap": "pattern", "op": "scale", "value": 0.5, "heads": [1], "keys": [0]})
    got = captured(name, "--attention-top", "2", taps="pattern")["tensors"]
    plain = captured(None, "--attention-top", "2", taps="pattern")["tensors"]
    assert floats(got["blocks.0.attn.top_probs"]) != floats(plain["blocks.0.attn.top_probs"])
    for layer in range(3):
        (_, heads, n, _), _ = got[f"blocks.{layer}.attn.hook_pattern"]
        pattern = floats(got[f"blocks.{layer}.attn.hook_pattern"])
        probs, rest = (floats(got[f"blocks.{layer}.attn.{part}"]) for part in ("top_probs", "top_rest"))
        for i in range(heads * n):
            row = sorted(pattern[i * n:(i + 1) * n], reverse=True)
            assert list(probs[2 * i:2 * i + 2]) == row[:2] and abs(sum(row[2:]) - rest[i]) < 1e-5, (layer, i)


def test_a_patch_from_a_capture_or_a_recording_is_the_other_run():
    # Everything that a layer gives to those after it, from another prompt, which is longer: its logits.
    other = "jumbo whale"
    theirs = captured(None, taps="logits,blocks.1.hook_resid_post", prompt=other)
    shutil.copy(FOLDER / "captured.safetensors", FOLDER / "theirs.safetensors")
    record("other", "--raw", prompt=other)
    record("kept", "--raw", "--record-taps", "blocks.1.hook_resid_post", prompt=other)
    record("part", "--raw", "--record-taps", "blocks.1.hook_resid_post", "--positions", "1:4", prompt=other)
    layers = theirs["tensors"]["blocks.1.hook_resid_post"]
    assert layers[0][1] == theirs["tensors"]["logits"][0][1]
    for origin in ({"file": "theirs.safetensors"}, {"run": "other"}, {"run": "kept"}, {"run": "part"}):
        name = spec({"tap": "blocks.1.hook_resid_post", "op": "patch", "from": origin})
        got = captured(name)
        own, other_logits = (x["tensors"]["logits"][1] for x in (got, theirs))
        assert len(own) < len(other_logits) and other_logits.startswith(own), origin
        assert got["interventions"]["taps"][0]["fired"] == got["tensors"]["logits"][0][1]


def test_a_recording_keeps_and_repeats_what_was_done():
    record("source", prompt="jumbo whale")
    name = spec(HEAD, {"tap": "blocks.0.hook_resid_mid", "op": "patch", "positions": [1, -1],
                       "from": {"run": "source", "positions": [-1, 0]}},
                force=[{"step": 1, "text": "q"}], ban=[{"ids": [7], "steps": [0, "3:"]}])
    run = record("changed", "--intervene", name, "--record-taps", "blocks.0.hook_resid_mid,logits")
    folder = FOLDER / "changed"
    assert {"interventions.json", "interventions.safetensors"} <= {p.name for p in folder.iterdir()}
    replayed = document(["replay", "changed", "--json"])
    assert replayed["equal"] and replayed["interventions"] == run["interventions"]
    document(["replay", "changed", "--json", "--tap", "blocks.0.hook_resid_mid,logits", "-o", "again.safetensors"])
    assert tensors(FOLDER / "again.safetensors") == tensors(folder / "tensors.safetensors")
    # What it keeps is a specification that does the same, without the run that it came from.
    shutil.rmtree(FOLDER / "source")
    assert intervened("changed/interventions.json")["logits_hash"] == run["logits_hash"]


def test_a_changed_or_missing_intervention_is_found_and_named():
    record("source", prompt="jumbo whale")
    record("found", "--intervene", spec(HEAD, {"tap": "logits", "op": "patch", "positions": 0,
                                               "from": {"run": "source"}}))
    rng = random.Random(4)
    for file in ("interventions.json", "interventions.safetensors"):
        path = FOLDER / "found" / file
        good = path.read_bytes()
        for _ in range(10):
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            path.write_bytes(bad)
            assert f"found/{file}" in ok(["replay", "found", "--verify"], 1).err
        path.unlink()
        assert f"found/{file} is not there" in ok(["replay", "found", "--verify"], 1).err
        path.write_bytes(good)
    assert document(["replay", "found", "--json"])["equal"]


def test_taps_and_indices_are_written_as_flags_are():
    prompt = len(answer(*FIXED, "hello there")["prompt_tokens"])
    assert prompt > 4

    def fired(**members) -> tuple[list[str], set[int], int]:
        """The taps, how often each was changed, and the positions that there were."""
        got = intervened(spec({"op": "scale", "value": 0.5} | members))
        taps = got["interventions"]["taps"]
        return [tap["tap"] for tap in taps], {tap["fired"] for tap in taps}, prompt + len(got["tokens"]) - 1

    posts = [f"blocks.{layer}.hook_resid_post" for layer in (0, 1, 2)]
    for tap in ("resid_post", "blocks.*.hook_resid_post", "blocks.0-2.hook_resid_post", "l_out-0,resid_post-1,l_out-2",
                ["resid_post-1", "model.layers.0", "blocks.2:.hook_resid_post"]):
        names, times, positions = fired(tap=tap)
        assert names == posts and times == {positions}, (tap, names, times, positions)
    assert fired(tap="resid_post", layers="1")[0] == posts[1:2]
    for written, count in (("1-3", 3), ("1:3", 2), ("0,2-3", 3), ([0, "2:4"], 3), ("-2:-1", 1), ("-1", 1), (":2,3", 3)):
        assert fired(tap="z-0", positions=written)[1] == {count}, written
    for written, before in (("-2:", prompt - 2), ("3:", 3), (["0:2", "4:"], 2)):
        _, times, positions = fired(tap="z-0", positions=written)
        assert times == {positions - before}, written
    for written, count in (("prompt", prompt), (0, 1), ("0-1", 2), ("prompt,1", prompt + 1), ([0, "0:2"], 2)):
        assert fired(tap="z-0", steps=written)[1] == {count}, written
    plain = answer(*FIXED, "hello there")
    # Step s chooses token s: a change there is the first to move it.
    for step in range(3):
        got = intervened(spec({"tap": "logits", "op": "add", "value": 5, "features": [7], "steps": step},
                              force=[{"step": s, "id": t["id"]} for s, t in enumerate(plain["tokens"][:step])]))
        moved = [a["logprob"] != b["logprob"] for a, b in zip(plain["tokens"], got["tokens"])]
        assert moved.index(True) == step, (step, moved)


def test_schema_and_program_refuse_the_same_forms():
    def both(**members) -> tuple[bool, bool]:
        content = {"interventions": [{"tap": "resid_post", "op": "zero"} | members]}
        (FOLDER / "form.json").write_text(json.dumps(content))
        result = program.run(["run", *TINY, "-n", "1", "--intervene", "form.json", "hello there"], FOLDER)
        return not faults(SCHEMA, content), result.code == 0

    for field in ("positions", "steps", "layers", "features", "keys", "heads"):
        tap = {"keys": "pattern", "heads": "z"}.get(field, "resid_post")
        for good in (0, "1", "0:1", "0-1", ":1", [0, 1], ["0", 1], "0,1"):
            assert both(tap=tap, **{field: good}) == (True, True), (field, good)
        for bad in ("", "x", "1,", [], 1.5, "1:2:3", "0;1", True, {}, [[0]], "--1", "1--2", [0, ""], "1 "):
            assert both(tap=tap, **{field: bad}) == (False, False), (field, bad)
        for negative in (-1, "-1", "-2:"):
            allowed = field in ("positions", "keys")
            assert both(tap=tap, **{field: negative}) == (allowed, allowed), (field, negative)
    assert both(steps=["prompt", 1]) == both(steps="prompt,1:") == (True, True)
    for wrong in ({"tap": []}, {"tap": 3}, {"layer": 0}, {"op": "drop"}, {"op": "scale", "value": "2"}):
        assert both(**wrong) == (False, False), wrong


def test_wrong_specifications_are_named():
    def wrong(content: str, *parts: str) -> None:
        (FOLDER / "wrong.json").write_text(content)
        result = program.run(["run", *TINY, "-n", "1", "--intervene", "wrong.json", "hi"], FOLDER)
        assert result.code in (1, 2) and not result.out and all(p in result.err for p in parts), result

    def item(**members) -> str:
        return json.dumps({"interventions": [HEAD, {"tap": "logits", "op": "zero"} | members]})

    wrong("{", "wrong.json", "JSON")
    wrong("{}", "changes nothing")
    wrong('{"interventions": [{"tap": "z-0", "tap": "z-1", "op": "zero"}]}', "wrong.json", '"tap" is there twice')
    wrong('{"tokens": {"ban": [{"ids": [1]}]}, "tokens": {}}', '"tokens" is there twice')
    assert '"op" is there twice' in ok(["run", *TINY, "--intervene", '{"interventions": [{"tap": "z-0", "op": "zero", '
                                        '"op": "zero"}]}', "hi"], 1).err
    for tap in ("logits", "blocks.0.hook_resid_post"):  # the weights are not to blame
        wrong(item(tap=tap, op="scale", value=1e38), "expected a finite number", "under these interventions")
    wrong(item(tap="blocks.0.hook_resid_pst"), "interventions[1].tap", "hook_resid_post")
    wrong(item(tap="hook_tokens"), "interventions[1].tap", "hook_embed")
    wrong(item(heads=[0]), "interventions[1].heads", "has no heads")
    wrong(item(op="add", value=[1, 2]), "interventions[1].value", "2 numbers")
    wrong(item(positions=[-99]), "interventions[1].positions", "-99", "tokens")
    wrong(item(op="patch", **{"from": {"file": "absent.safetensors"}}), "interventions[1].from.file", "absent")
    wrong(item(op="patch", **{"from": {"run": "absent"}}), "interventions[1].from.run", "absent")
    shutil.rmtree(FOLDER / "whole", ignore_errors=True)
    record("whole", prompt="hi")
    wrong(item(tap="z-0", op="patch", **{"from": {"run": "whole", "tap": "logits"}}), "takes",
          "cutaway: interventions[1].from: whole: logits has the shape")
    (FOLDER / "cut.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{}")
    wrong(item(op="patch", **{"from": {"file": "cut.safetensors"}}), "interventions[1].from.file", "cut")
    (FOLDER / "odd.safetensors").write_bytes(
        (header := json.dumps({"logits": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode())
        and struct.pack("<Q", len(header)) + header + bytes(12))
    wrong(item(op="patch", **{"from": {"file": "odd.safetensors"}}), "interventions[1].from", "{3}", "takes")
    wrong(json.dumps({"tokens": {"force": [{"step": 0, "id": 10**9}]}}), "tokens.force[0]", "ids are 0 to")
    error = ok(["run", *TINY, "-n", "1", "--intervene", "nowhere.json", "hi"], 1).err
    assert "nowhere.json" in error
    error = ok(["capture", *TINY, "--taps", "logits", "-o", "x.safetensors", "--intervene",
                spec(force=[{"step": 0, "id": 1}]), "hi"], 2).err
    assert "a capture chooses no token" in error and not (FOLDER / "x.safetensors").exists()


if __name__ == "__main__":
    sys.exit(cli_test.main(globals()))
