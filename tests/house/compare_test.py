"""bench/compare.py: what it runs in which order, and what it makes of the figures; on stand-ins for both sides."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import compare  # noqa: E402
import figures  # noqa: E402
import sides  # noqa: E402

# Both write the command to a log; speeds come from lists, one number a call.
STAND_IN = """#!{python}
import json, os, sys
from pathlib import Path
here, args = Path({folder!r}), sys.argv[1:]
with open(here / "log", "a") as log:
    log.write({name!r} + " " + " ".join(args) + "\\n")
def speed():
    values = json.loads((here / "{name}.json").read_text())
    (here / "{name}.json").write_text(json.dumps(values[1:] + values[:1]))
    return values[0]
{body}
"""
OURS = """
if "--version" in args: print("cutaway 9.9"); sys.exit()
if args[0] == "synth":
    Path(args[3]).parent.mkdir(parents=True, exist_ok=True)
    Path(args[3]).write_text(args[1])
    print("{}"); sys.exit()
if args[0] == "info" and "-m" in args:
    out = {"model": {"bytes": 100_000_000, "kv_bytes_per_token": {"f16": 1000}}}
elif args[0] == "info":
    out = {"machine": {"kernels": {"chosen": "ref"}}}
elif args[0] == "run":
    out = {"usage": {"input_tokens": 60, "output_tokens": 10}, "timings": {"peak_rss_mb": 100}}
elif "--start" in args:
    out = {"start": {"load_ms": 3, "first_token_ms": 1, "total_ms": speed()}}
else:
    run = {"tps": {"median": speed()}, "bytes_per_token": 5, "achieved_gbps": 1}
    out = {"runs": [run if "--no-limits" in args else {**run, "limit_gbps": 2}]}
print(json.dumps(out))
"""
THEIRS = """
command = args[1]
if command == "info": out = {"version": "1.2"}
elif command == "start": out = {"total_ms": speed(), "peak_rss_mb": 200, "peak_rss_before_load_mb": 40}
else: out = {"tps": [speed()]}
print(json.dumps(out))
"""


class Compare(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="cutaway-compare-")
        self.addCleanup(self._folder.cleanup)
        self.folder = Path(self._folder.name)
        for name, body in (("ours", OURS), ("theirs", THEIRS)):
            path = self.folder / name
            path.write_text(STAND_IN.format(python=sys.executable, folder=str(self.folder), name=name,
                                            body=body))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (self.folder / "m.gguf").write_bytes(b"model")
        self.speeds([10, 30, 20], [5])

    def speeds(self, ours: list[float], theirs: list[float]) -> None:
        (self.folder / "ours.json").write_text(json.dumps(ours))
        (self.folder / "theirs.json").write_text(json.dumps(theirs))

    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def run_compare(self, *arguments: str, model: bool = True):
        out = io.StringIO()
        given = ["--bin", str(self.folder / "ours"), "--peer", str(self.folder / "theirs"), *arguments]
        given += ["-m", str(self.folder / "m.gguf")] if model else []
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(compare.main(given), 0)
        return json.loads(out.getvalue())

    @contextlib.contextmanager
    def at_home(self, home: Path):
        before = os.environ.get("CUTAWAY_HOME")
        os.environ["CUTAWAY_HOME"] = str(home)
        try:
            yield
        finally:
            os.environ.pop("CUTAWAY_HOME") if before is None else os.environ.update(CUTAWAY_HOME=before)

    def refused(self, *arguments: str) -> str:
        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as caught:
            compare.arguments(["--peer", str(self.folder / "theirs"), *arguments])
        self.assertEqual(caught.exception.code, 2)
        return err.getvalue()

    def test_tests_are_parsed(self):
        self.assertEqual(sides.parse_test("pp512"), ("pp", 512, 1, 0))
        self.assertEqual(sides.parse_test("tg128@6000"), ("tg", 128, 1, 6000))
        self.assertEqual(sides.parse_test("tg32b16"), ("tg", 32, 16, 0))
        self.assertEqual(sides.parse_test("tg32b16@512"), ("tg", 32, 16, 512))
        self.assertEqual(sides.parse_test("busy").kind, "busy")
        for wrong in ("tg", "tg0", "pp512@5", "pp5b2", "tg3b0", "tg128@", "memory2", ""):
            with self.assertRaisesRegex(ValueError, "expected"):
                sides.parse_test(wrong)

    def test_the_sides_alternate_and_medians_count(self):
        document = self.run_compare("--tests", "tg4b2@8", "--threads", "2", "--reps", "3")
        calls = [line.split()[0] for line in self.log() if " bench " in line]
        self.assertEqual(calls, ["ours", "theirs"] * 3)
        row = document["tests"][0]
        self.assertEqual(row["cutaway"], {"median": 20, "min": 10, "max": 30})
        self.assertEqual((row["ratio"], row["ratio_of_pairs"]["max"]), (4, 6))
        ours = next(line for line in self.log() if line.startswith("ours bench"))
        self.assertIn("-n 4 -b 2 --depth 8", ours)
        self.assertIn("bench -m " + str(self.folder / "m.gguf") + " --test tg4b2@8 --threads 2",
                      " ".join(line for line in self.log() if line.startswith("theirs")))
        # Limits are measured once, beside the first repetition.
        self.assertEqual(row["limits"], {"bytes_per_token": 5, "achieved_gbps": 1, "limit_gbps": 2})
        self.assertEqual(sum("--no-limits" in line for line in self.log()), 2)
        self.assertEqual((document["kernels"], document["versions"]["cutaway"]), ("ref", "cutaway 9.9"))
        self.assertEqual(document["model"]["bytes"], 5)

    def test_of_both_flash_settings_the_better_median_counts(self):
        self.speeds([10], [5, 9, 5, 8, 50, 7])  # on, off, on, off, on, off: medians 5 and 8
        row = self.run_compare("--tests", "tg4", "--threads", "1", "--reps", "3", "--flash-attn",
                               "both")["tests"][0]
        self.assertEqual((row["flash_attention"], row["llama_cpp"]["median"]), ("off", 8))
        self.assertEqual(row["llama_cpp_by_flash_attention"]["on"], {"median": 5, "min": 5, "max": 50})

    def test_of_times_the_smaller_counts(self):
        self.speeds([4], [20, 10])
        row = self.run_compare("--tests", "start", "--threads", "1", "--reps", "1", "--flash-attn",
                               "both")["tests"][0]
        self.assertEqual((row["ratio"], row["unit"], row["flash_attention"]), (0.4, "ms", "off"))
        self.assertEqual(row["cutaway_parts"]["load_ms"]["median"], 3)

    def test_memory_is_held_against_the_file_its_cache_and_48_mb(self):
        row = self.run_compare("--tests", "memory", "--threads", "1", "--reps", "1")["tests"][0]
        # 70 tokens are two pages of 64.
        self.assertAlmostEqual(row["file_and_kv_and_48_mb"], 100 + 128 * 1000 / 1e6 + 48)
        self.assertAlmostEqual(row["cutaway"]["median"], 100 * 2**20 / 1e6)

    def test_busy_runs_one_free_thread_then_two_beside_a_loop(self):
        self.speeds([10, 9], [8, 4])
        row = self.run_compare("--tests", "busy", "--threads", "2", "--reps", "1")["tests"][0]
        self.assertEqual((row["cutaway_relative"]["median"], row["llama_cpp_relative"]["median"]), (0.9, 0.5))
        threads = [line.split("-t ")[1].split()[0] for line in self.log() if line.startswith("ours bench")]
        self.assertEqual(threads, ["1", "2"])
        with sides.busy_core() as core:
            self.assertIn(core, os.sched_getaffinity(0))

    def test_several_models_give_a_list(self):
        (self.folder / "n.gguf").write_bytes(b"other")
        got = self.run_compare("-m", str(self.folder / "n.gguf"), "--tests", "tg4", "--threads", "1",
                               "--reps", "1")
        self.assertEqual([d["model"]["file"] for d in got], ["n.gguf", "m.gguf"])

    def test_the_peer_alone_and_the_trace_alone(self):
        row = self.run_compare("--peer-only", "--tests", "tg4", "--threads", "1", "--reps", "1")["tests"][0]
        self.assertEqual((row["cutaway"], "ratio" in row), ({}, False))
        self.speeds([10, 5, 4], [1])
        row = self.run_compare("--trace-overhead", "--threads", "1", "--reps", "1")["trace_overhead"][0]
        self.assertEqual(row["levels"]["functions"]["relative_to_off"], 0.5)

    def test_a_set_writes_a_document_for_every_file_that_the_tables_take(self):
        home = self.folder / "home"
        for path in ("models/smollm2-135m.gguf", *(f"peers/types/smollm2-135m-{t}.gguf"
                                                   for t in ("q4_0", "q8_0", "f16", "q4_k_m", "q5_0",
                                                             "q5_1", "iq4_nl"))):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_bytes(path.encode())
        with self.at_home(home):
            self.run_compare("--set", "targets", "--reps", "1", "--results", str(self.folder / "results"),
                             model=False)
        written = sorted(p.name for p in (self.folder / "results").iterdir())
        self.assertEqual(written, [f"smollm2-135m-{t}.json" for t in (
            "f16", "iq4_nl", "q4_0", "q4_1-trace", "q4_1", "q4_k_m", "q5_0", "q5_1", "q8_0")])
        main = json.loads((self.folder / "results" / "smollm2-135m-q4_1.json").read_text())
        self.assertEqual(len(main["tests"]), 13)
        for language in figures.WORDS:
            table = figures.tables([self.folder / "results" / name for name in written], language)
            self.assertEqual(table.count("smollm2-135m"), len(written))
            for part in ("6000", "16", "48", "**"):
                self.assertIn(part, table)

    def test_shapes_are_made_where_they_are_missing(self):
        with self.at_home(self.folder / "home"):
            self.run_compare("--set", "shapes", "--reps", "1", "--results", str(self.folder / "results"),
                             model=False)
        documents = [json.loads(p.read_text()) for p in sorted((self.folder / "results").iterdir())]
        self.assertEqual([d["model"]["file"] for d in documents],
                         ["llama-2-7b-q4_1-random.gguf", "qwen2.5-1.5b-q4_1-random.gguf",
                          "qwen2.5-1.5b-q4_k-random.gguf", "qwen2.5-1.5b-q6_k-random.gguf",
                          "qwen2.5-1.5b-q8_0-random.gguf"])
        self.assertEqual([(r["test"], r["threads"]) for r in documents[0]["tests"]], [("pp128", 2), ("tg32", 2)])

    def test_wrong_uses_name_what_is_accepted(self):
        model = str(self.folder / "m.gguf")
        self.assertIn("--model and --set", self.refused())
        self.assertIn("--model and --set", self.refused("-m", model, "--set", "targets"))
        self.assertIn("no such file", self.refused("-m", "none.gguf"))
        self.assertIn("expected pp512", self.refused("-m", model, "--tests", "pp512,tg"))
        self.assertIn("at least 1", self.refused("-m", model, "--reps", "0"))
        self.assertIn("from 1 on", self.refused("-m", model, "--threads", "0"))
        self.assertIn("--trace-overhead", self.refused("-m", model, "--trace-overhead", "--tests", "busy"))
        self.assertIn("targets", self.refused("--set", "all"))
        self.assertIn("leave --peer-only out", self.refused("--set", "shapes", "--peer-only"))
        self.assertIn("--peer", self.refused("-m", model, "--peer", "none"))


if __name__ == "__main__":
    unittest.main()
