#!/usr/bin/env python3
"""Views: `lens`, `attention`, `report`, their schemas and their pages. CUTAWAY_BINARY names the program."""

from __future__ import annotations

import base64
import copy
import html.parser
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import cli_test
import program
import schemas
from cli_test import FOLDER, TINY, Skip, answer, document, need_model, ok

# What pages must survive: an end of a script, a comment, another language, a character of four bytes,
# half a character, controls, a character that turns the reading order round.
HOSTILE = "</script><img src=x onerror=alert(1)><!-- 한국어 \U0001F99C \t\n \x07 \u202eabc \u2028 \\u003c 'q\" &amp;"
sys.path.insert(0, str(program.ROOT / "tools"))


def check(name: str, got: dict, part: str = "") -> None:
    if schemas.validator(name) is None:
        raise Skip("python3-jsonschema is not installed")
    found = schemas.faults(name, got, part)
    assert not found, found[:5]


def page_data(path: Path) -> dict:
    """The JSON that a page holds, as an HTML parser finds it."""
    class Finder(html.parser.HTMLParser):
        inside, text, elements = False, "", 0

        def handle_starttag(self, tag, attrs):
            self.elements += 1
            self.inside = tag == "script" and ("id", "data") in attrs

        def handle_endtag(self, tag):
            self.inside = False

        def handle_data(self, data):
            self.text += data if self.inside else ""

    finder = Finder()
    finder.feed(path.read_text(encoding="utf-8"))
    return json.loads(finder.text)


def without_times(view: dict) -> dict:
    view = copy.deepcopy(view)
    view.pop("timings", None)
    for key in ("lens", "attention", "replay"):
        if isinstance(view.get(key), dict):
            view[key].pop("timings", None)
    return view


def pattern(head: dict, n: int) -> list[list[float]]:
    values = struct.unpack(f"<{n * (n + 1) // 2}e", base64.b64decode(head["pattern"]))
    return [list(values[q * (q + 1) // 2:(q + 1) * (q + 2) // 2]) for q in range(n)]


# --- schemas -----------------------------------------------------------------------------------

def test_every_view_follows_its_schema():
    check("tokens", document(["tokenize", *TINY, "--json", HOSTILE]))
    check("tokens", document(["tokenize", *TINY, "--json", "--merges", "hello world"]))
    check("tokens", answer("-n", "6", "--top-logprobs", "3", "--ledger", "--temperature", "0.9", "hi"), "generation")
    check("lens", document(["lens", *TINY, "--json", HOSTILE]))
    check("lens", document(["lens", *TINY, "--json", "--top", "0", "--layer", "-1,1", "--last", "2", "hello there"]))
    check("attention", document(["attention", *TINY, "--json", HOSTILE]))
    check("attention", document(["attention", *TINY, "--json", "--no-patterns", "--top", "1", "hello"]))
    ok(["run", *TINY, "-n", "3", "--trace", "tensors", "--trace-out", "views.jsonl", "hi"])
    for line in (FOLDER / "views.jsonl").read_text().splitlines():
        check("trace", json.loads(line))


def test_the_schemas_refuse_what_is_wrong():
    if schemas.validator("lens") is None:
        raise Skip("python3-jsonschema is not installed")
    lens, attention = document(["lens", *TINY, "--json", "hi"]), document(["attention", *TINY, "--json", "hi"])
    for view, name, change in (
            (lens, "lens", lambda d: d["layers"][0].update(layer=-2)),
            (lens, "lens", lambda d: d["layers"][0]["cells"][0].pop("kl")),
            (lens, "lens", lambda d: d["layers"][0]["cells"][0]["top"][0].update(prob=1.5)),
            (lens, "lens", lambda d: d["tokens"][0].update(bytes=[256])),
            (attention, "attention", lambda d: d["heads"][0]["keys"][0].append(-1)),
            (attention, "attention", lambda d: d.update(extra=1))):
        bad = copy.deepcopy(view)
        change(bad)
        assert schemas.faults(name, bad), change


# --- lens --------------------------------------------------------------------------------------

def test_the_last_layer_of_the_lens_is_what_run_says():
    for model, prompt in ((TINY, "hello"), (None, "The capital of France is")):
        model = model or need_model()
        lens = document(["lens", *model, "--json", "--top", "3", prompt])
        run = document(["run", *model, "--raw", "--json", "-n", "1", "--temperature", "0", "--top-logprobs", "3", prompt])
        cell, token = lens["layers"][-1]["cells"][-1], run["tokens"][0]
        assert [t["id"] for t in cell["top"]] == [t["id"] for t in token["top"]]
        for mine, theirs in zip(cell["top"], token["top"]):
            assert abs(mine["prob"] - math.exp(theirs["logprob"])) < 1e-6, (mine, theirs)
        assert cell["kl"] == 0 and cell["last"]["rank"] == 0 and cell["next"] is None
        assert lens["positions"][-1]["choice"]["id"] == token["id"]


def test_the_lens_says_the_same_whatever_the_chunks_and_threads():
    text = "one two three four five six seven eight nine ten eleven twelve " * 2
    plain = without_times(document(["lens", *TINY, "--json", text]))
    for args in (["--prefill-chunk", "3"], ["-t", "1"], ["-t", "3", "--trace", "functions", "--trace-out", "x.jsonl"]):
        got = without_times(document(["lens", *TINY, "--json", *args, text]))
        got["session"], got["warnings"] = plain["session"], plain["warnings"]
        assert got == plain, args


def test_layers_and_positions_of_the_lens_are_chosen():
    whole = document(["lens", *TINY, "--json", "hello world again"])
    some = document(["lens", *TINY, "--json", "--layer", "1,-1", "--last", "2", "hello world again"])
    assert [layer["layer"] for layer in some["layers"]] == [-1, 1] and len(some["positions"]) == 2
    for layer in some["layers"]:
        twin = next(other for other in whole["layers"] if other["layer"] == layer["layer"])
        assert layer["cells"] == twin["cells"][-2:]
    for chosen, expected in [("embedding", [-1]), ("-1", [-1]), ("embedding,0-1", [-1, 0, 1]), ("1:", None)]:
        got = [layer["layer"] for layer in document(["lens", *TINY, "--json", "--layers", chosen, "hi"])["layers"]]
        assert got == (expected or list(range(1, whole["n_layers"]))), (chosen, got)
    for twice in ("embedding,embedding", "-1,0,embedding"):
        assert "layers has embedding twice" in ok(["lens", *TINY, "--layers", twice, "hi"], 2).err
    ids = ",".join(str(token["id"]) for token in whole["tokens"])
    assert document(["lens", *TINY, "--json", "--tokens", ids])["layers"] == whole["layers"]


def test_a_lens_that_is_too_large_says_what_would_fit():
    lens = document(["lens", *TINY, "--json", "--top", "100", "word " * 30])  # the tiny model's fits
    assert len(lens["layers"]) > 1
    long = ok(["lens", *need_model(), "--top", "100", "word " * 400], 1)
    assert "31 layers" in long.err and "400000" in long.err and "129 positions fit" in long.err, long.err


# --- attention ---------------------------------------------------------------------------------

def test_patterns_are_distributions_over_the_past():
    for model in (TINY, need_model() if program.installed_model() else TINY):
        got = document(["attention", *model, "--json", "--top", "4", "hello world, hello again"])
        n = len(got["tokens"])
        assert len(got["heads"]) == got["n_layers"] * got["n_heads"]
        for head in got["heads"]:
            assert len(base64.b64decode(head["pattern"])) == n * (n + 1)
            for q, row in enumerate(pattern(head, n)):
                assert abs(sum(row) - 1) < 1e-3, (head["layer"], head["head"], q, sum(row))
                entropy = -sum(p * math.log(p) for p in row if p > 0)
                assert abs(entropy - head["entropy"][q]) < 5e-3
                assert sorted(head["weights"][q], reverse=True) == head["weights"][q]
                assert len(head["keys"][q]) <= min(4, q + 1)
                for key, weight in zip(head["keys"][q], head["weights"][q]):
                    assert abs(row[key] - weight) <= max(weight * 2 ** -11, 2 ** -25), (key, weight)
                assert abs(max(row) - head["weights"][q][0]) < 1e-3


def test_layers_and_heads_are_chosen():
    whole = document(["attention", *TINY, "--json", "hello world"])
    some = document(["attention", *TINY, "--json", "--layers", "1:2", "--heads", "0-1", "hello world"])
    assert [(h["layer"], h["head"]) for h in some["heads"]] == [(1, 0), (1, 1)]
    assert some["heads"] == [h for h in whole["heads"] if h["layer"] == 1 and h["head"] < 2]
    bare = document(["attention", *TINY, "--json", "--no-patterns", "hello world"])
    assert all("pattern" not in head for head in bare["heads"])
    assert [h["keys"] for h in bare["heads"]] == [h["keys"] for h in whole["heads"]]


def test_patterns_beyond_the_limit_say_what_would_fit():
    text = "word " * 600
    error = ok(["attention", *need_model(), "-o", "big.html", text], 1).err
    assert "270 heads" in error and "67.1 MB" in error and "fit" in error, error
    assert not (FOLDER / "big.html").exists()


# --- pages -------------------------------------------------------------------------------------

def make_report(name: str, *args: str, run: tuple[str, ...] = ("-n", "6", "--temperature", "0.9", "--seed", "7", "hi")) -> dict:
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    ok(["run", *TINY, "--record", name, *run])
    return document(["report", name, "--json", *args])


def test_a_page_holds_the_view_and_asks_for_nothing_else():
    for command in ("lens", "attention"):
        ok([command, *TINY, "-o", "page.html", HOSTILE])
        ok([command, *TINY, "-o", "page.json", HOSTILE])
        view = json.loads((FOLDER / "page.json").read_text())
        assert without_times(page_data(FOLDER / "page.html")) == without_times(view)
        check_page(FOLDER / "page.html")
        assert "".join(bytes(t["bytes"]).decode("utf-8", "replace") for t in view["tokens"][-3:])


def check_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.count("</script>") == 2, text.count("</script>")
    assert "<img" not in text and "<!--" not in text
    for link in re.findall(r"https?://[^\s'\"`)]+", text):
        assert link == "http://www.w3.org/2000/svg", link
    assert "default-src 'none'" in text


def test_a_file_that_cannot_be_written_is_an_error():
    (FOLDER / "a-folder.html").mkdir(exist_ok=True)
    for command in ("lens", "attention"):
        assert "not a regular file" in ok([command, *TINY, "-o", "a-folder.html", "hi"], 1).err
        assert "no/such" in ok([command, *TINY, "-o", "no/such/page.html", "hi"], 1).err
    (FOLDER / "old.html").write_text("old")
    ok(["lens", *TINY, "-o", "old.html", "hi"])
    assert (FOLDER / "old.html").read_text().startswith("<!doctype html>")
    assert not [p for p in FOLDER.iterdir() if p.name.startswith("old.html.")]


# --- report ------------------------------------------------------------------------------------

def test_a_report_shows_the_run_and_its_proof():
    got = make_report("rep")
    run = json.loads((FOLDER / "rep" / "run.json").read_text())
    assert [c["token"]["id"] for c in got["answer"]] == run["tokens"]
    assert [t["id"] for t in got["prompt"]] == run["prompt_tokens"]
    assert all("piece" in t for t in got["prompt"]) and got["replay"]["equal"] and got["without_model"] is None
    assert b"".join(bytes(c["token"]["bytes"]) for c in got["answer"]).decode("utf-8", "replace")
    for choice in got["answer"]:
        check("ledger", choice["ledger"])
        assert choice["ledger"]["chosen"]["id"] == choice["token"]["id"] and choice["ms"] > 0
        assert all(str(entry["id"]) in got["pieces"] for entry in choice["ledger"]["raw"]["top"])
    check("lens", got["lens"])
    check("attention", got["attention"])
    assert [t["id"] for t in got["lens"]["tokens"]] == run["prompt_tokens"] + run["tokens"]
    ok(["report", "rep", "-o", "rep.html"])
    check_page(FOLDER / "rep.html")
    assert page_data(FOLDER / "rep.html")["answer"] == got["answer"]


def test_a_report_holds_the_run_s_own_trace():
    for level in ("phases", "functions"):
        got = make_report("spans", run=("--record-trace", level, "-n", "5", "hi"))
        lines = [json.loads(line) for line in (FOLDER / "spans" / "trace.jsonl").read_text().splitlines()]
        assert got["trace"] == lines
        for line in lines[::7]:
            check("trace", line)
        tokens = [line for line in lines if line["kind"] == "exit" and line["name"] == "inference::Decoder::token"]
        assert [line["step"] for line in tokens] == list(range(5))
        assert document(["report", "spans", "--json", "--no-model"])["trace"] == lines
    ok(["report", "spans", "-o", "spans.html"])
    check_page(FOLDER / "spans.html")
    assert make_report("spanless", run=("--record-trace", "off", "-n", "2", "hi"))["trace"] is None
    long = make_report("spans", run=("--record-trace", "functions", "-n", "90", "--logit-bias", "2=-100", "hi"))
    left = next(part for part in long["left_out"] if part["what"] == "trace lines")
    assert left["shown"] == len(long["trace"]) == 12000 < left["of"] and "trace.jsonl" in left["how"]


def test_a_damaged_trace_is_named():
    make_report("torn", run=("-n", "2", "hi"))
    path = FOLDER / "torn" / "trace.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    assert "trace.jsonl" in ok(["report", "torn", "--json"], 1).err


def test_the_lens_of_a_report_is_the_run_s_own():
    got = make_report("own", run=("-n", "5", "--temperature", "0", "hi"))
    first = len(got["prompt"]) - 1 - got["lens"]["positions"][0]["position"]
    for step, choice in enumerate(got["answer"]):
        cell = got["lens"]["layers"][-1]["cells"][first + step]
        assert cell["top"][0]["id"] == choice["token"]["id"] and abs(cell["top"][0]["prob"] - choice["prob"]) < 1e-6


def test_a_report_without_its_model_shows_the_rest():
    shutil.copy(FOLDER / "tiny.gguf", FOLDER / "moved.gguf")
    shutil.rmtree(FOLDER / "gone", ignore_errors=True)
    ok(["run", "-m", "moved.gguf", "--record", "gone", "-n", "4", "hi"])
    full = document(["report", "gone", "--json"])
    (FOLDER / "moved.gguf").unlink()
    result = ok(["report", "gone", "--json"])
    got = json.loads(result.out)
    assert "moved.gguf is not there" in result.err and "moved.gguf" in got["without_model"]
    assert got["replay"] is None and got["lens"] is None and got["attention"] is None
    assert [c["ledger"] for c in got["answer"]] == [c["ledger"] for c in full["answer"]]
    plain = [{key: t[key] for key in ("id", "piece", "bytes")} for t in got["prompt"]]
    assert plain == [{key: t[key] for key in ("id", "piece", "bytes")} for t in full["prompt"]]
    assert document(["report", "gone", "--json", "-m", "tiny.gguf"])["replay"]["equal"]
    assert document(["report", "gone", "--json", "--no-model"])["replay"] is None
    # Another model in its place is no proof; one that the user names is an error.
    ok(["synth", "smollm2-135m", "Q4_1", "moved.gguf", "--layers", "1"])
    assert "another model" in json.loads(ok(["report", "gone", "--json"]).out)["without_model"]
    assert "another model" in ok(["report", "gone", "--json", "-m", "moved.gguf"], 2).err


def test_a_long_run_is_shown_in_part_and_says_so():
    shutil.rmtree(FOLDER / "long", ignore_errors=True)
    ok(["run", *need_model(), "--record", "long", "-n", "450", "--temperature", "0.7", "--seed", "1", "--logit-bias", "2=-100",
        "Write a very long story about a lighthouse."])
    made = ok(["report", "long", "-o", "long.html"])
    got = page_data(FOLDER / "long.html")
    n = len(got["answer"])
    assert n > 400 and got["answer"][400]["ledger"] is None and got["answer"][399]["ledger"] is not None
    left = {part["what"]: part for part in got["left_out"]}
    assert left["ledgers"]["shown"] == 400 and left["lens positions"]["shown"] == 96
    assert 0 < left["attention layers"]["shown"] < 30 and "lens positions" in made.err
    assert (FOLDER / "long.html").stat().st_size < 60_000_000


CHANGES = [{"tap": "blocks.0.hook_resid_post", "op": "scale", "value": -1, "positions": [-1]},
           {"tap": "pattern", "op": "zero", "heads": [1], "keys": [0], "steps": "1:"},
           {"tap": "logits", "op": "add", "value": 4, "features": [70], "steps": 2}]


def test_a_run_with_interventions_is_shown_as_it_was():
    (FOLDER / "change.json").write_text(json.dumps({"interventions": CHANGES, "tokens": {"force": [{"step": 1, "id": 70}]}}))
    got = make_report("changed", run=("--intervene", "change.json", "-n", "5", "--temperature", "0", "hi"))
    assert got["answer"][1]["token"]["id"] == 70 and got["replay"]["equal"], got["replay"]
    assert got["left_out"] == []
    check("lens", got["lens"])
    check("attention", got["attention"])
    # The last layer of the lens is what the run chose from, forced tokens apart.
    first = len(got["prompt"]) - 1 - got["lens"]["positions"][0]["position"]
    for step, choice in enumerate(got["answer"]):
        cell = got["lens"]["layers"][-1]["cells"][first + step]
        if step != 1:
            assert cell["top"][0]["id"] == choice["token"]["id"] and abs(cell["top"][0]["prob"] - choice["prob"]) < 1e-6
    # The looks that were taken away are not there.
    n = len(got["prompt"]) + len(got["answer"])
    for head in got["attention"]["heads"]:
        rows = pattern(head, n)
        for q in range(n):
            gone = head["head"] == 1 and q >= len(got["prompt"])
            assert (rows[q][0] == 0) == gone, (head["layer"], head["head"], q)
    assert all(tap["fired"] > 0 for tap in got["lens"]["interventions"]["taps"])
    ok(["report", "changed", "-o", "changed.html"])
    check_page(FOLDER / "changed.html")
    # Tokens alone leave the model as it is.
    (FOLDER / "forced.json").write_text(json.dumps({"tokens": {"force": [{"step": 1, "id": 70}]}}))
    forced = make_report("forced", run=("--intervene", "forced.json", "-n", "3", "hi"))
    assert forced["replay"]["equal"] and "interventions" not in forced["lens"] and forced["attention"]


def test_lens_and_attention_take_interventions():
    plain = document(["lens", *TINY, "--json", "hello there"])
    n = len(plain["tokens"])
    (FOLDER / "view.json").write_text(json.dumps({"interventions": [
        {"tap": "logits", "op": "add", "value": 9, "features": [70], "positions": [1]},
        {"tap": "blocks.1.hook_resid_mid", "op": "add", "value": 0.5, "positions": [-1]}]}))
    got = document(["lens", *TINY, "--json", "--intervene", "view.json", "hello there"])
    check("lens", got)
    for a, b in zip(plain["layers"], got["layers"]):
        for position in range(n):
            # Logits change wherever the head is read; the stream from layer 1 on.
            changed = position == 1 or (position == n - 1 and b["layer"] >= 1)
            same = [a["cells"][position][k] for k in ("top", "entropy")] == [b["cells"][position][k] for k in ("top", "entropy")]
            assert same != changed, (b["layer"], position)
    assert [tap["fired"] for tap in got["interventions"]["taps"]] == [1, 1]
    assert "interventions" not in plain
    (FOLDER / "view.json").write_text(json.dumps({"interventions": [{"tap": "z-0", "op": "zero", "positions": [9]}]}))
    assert "changed nothing" in document(["attention", *TINY, "--json", "--intervene", "view.json", "hi"])["warnings"][0]
    (FOLDER / "view.json").write_text(json.dumps({"tokens": {"force": [{"step": 1, "id": 70}]}}))
    for command in ("lens", "attention"):
        assert "a view chooses no token" in ok([command, *TINY, "--intervene", "view.json", "hi"], 2).err
        assert "none.json" in ok([command, *TINY, "--intervene", "none.json", "hi"], 1).err


def test_a_recording_of_before_is_shown_too():
    make_report("before")
    run_path, events_path = FOLDER / "before" / "run.json", FOLDER / "before" / "events.jsonl"
    assert "pieces" in json.loads(run_path.read_text())
    got = document(["replay", "before", "--json"])
    assert got["equal"] and all('"ms":' in line for line in events_path.read_text().splitlines() if '"sample"' in line)


# --- in a browser --------------------------------------------------------------------------------

def browser() -> tuple[str, str]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None or shutil.which("node") is None:
        raise Skip("no Chromium or no Node.js here")
    from oracles.packages import PINNED, package, peers_home
    version = PINNED["playwright-core"][1]
    if not (peers_home() / "packages" / f"playwright-core-{version}").is_dir() and "CUTAWAY_PEERS" not in os.environ:
        raise Skip("playwright-core is not here (make peers gets it)")
    return chromium, str(package("playwright-core") / "package")


def in_browser(page: Path, *args: str) -> dict:
    chromium, playwright = browser()
    out = subprocess.run(["node", str(Path(__file__).with_name("page_check.mjs")), playwright, str(page), *args],
                         env={**os.environ, "CHROMIUM": chromium}, capture_output=True, text=True, timeout=240)
    assert out.returncode == 0, out.stderr[-3000:]
    return json.loads(out.stdout)


def test_pages_draw_in_a_browser_without_errors_or_requests():
    browser()
    text = HOSTILE + " 서울특별시청은"
    ok(["lens", *TINY, "-o", "lens.html", text])
    ok(["attention", *TINY, "-o", "attention.html", text])
    make_report("shown", run=("-n", "8", "--temperature", "0.9", "--seed", "7", "hi 한국어"))
    ok(["report", "shown", "-o", "report.html"])
    ok(["report", "shown", "--no-model", "-o", "bare.html"])
    make_report("inside", run=("-n", "3", "--record-trace", "functions", "hi \U0001F99C"))
    ok(["report", "inside", "-o", "inside.html"])
    make_report("spanless", run=("--record-trace", "off", "-n", "2", "hi"))
    ok(["report", "spanless", "-o", "spanless.html"])
    for name in ("lens", "attention", "report", "bare", "inside", "spanless"):
        got = in_browser(FOLDER / f"{name}.html")
        assert got["errors"] == [] and got["requests"] == [], (name, got["errors"][:3], got["requests"][:3])
        for state in got["states"]:  # each language in each theme
            assert state["blank"] == [], (name, state)
            assert state["injected"] == 0 and state["overflow"] <= 1, (name, state)
        texts = [state["title"] for state in got["states"]]
        assert len(set(texts)) == 2, texts
        assert got["keyboard"], name
        assert got["timeline"] == (name in ("report", "bare", "inside")), name


if __name__ == "__main__":
    sys.exit(cli_test.main(globals()))
