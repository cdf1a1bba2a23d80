#!/usr/bin/env python3
"""Builds and runs the test suite, and ends with one plain line: `N passed, N failed`.

  run_tests.py                          everything that `make test` runs
  run_tests.py --only build,ctest       some suites; --list names them
  run_tests.py --preset asan-ubsan --only build,ctest

Each suite prints one line; what it wrote is kept in build/PRESET/test-logs, and the end of it is
shown when something failed. A runner that crashed, timed out or counted nothing is one failure.
Exit status 1 when anything failed. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNT_LINE = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(?: \((.*)\))?$", re.MULTILINE)


@dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)  # printed under the suite's line

    def add(self, other: "Outcome") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.notes += other.notes


class Run:
    """What the suites share: options, directories, and the way to start a process."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.build = Path(args.build or ROOT / "build" / args.preset).resolve()
        self.logs = self.build / "test-logs"
        self.binary = Path(args.binary).resolve() if args.binary else self.build / "cutaway"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.env = dict(os.environ, CUTAWAY_BINARY=str(self.binary), CUTAWAY_SOURCE_DIR=str(ROOT))

    def call(self, name: str, command: list[str], timeout: float = 1800,
             env: dict[str, str] | None = None) -> tuple[int, str]:
        """Runs one command in the root; (exit status, all that it wrote). 124 after a timeout."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as out:
            try:
                status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, timeout=timeout,
                                        env={**self.env, **(env or {})}, check=False).returncode
            except subprocess.TimeoutExpired:
                status = 124
            except OSError as error:
                out.write(f"{command[0]}: {error}\n".encode())
                status = 127
        return status, log.read_text(errors="replace")

    def counted(self, name: str, command: list[str], timeout: float = 1800) -> Outcome:
        """A runner that ends with the count line, or else is one test by its exit status."""
        status, text = self.call(name, command, timeout)
        outcome = counts_of(text) or Outcome(int(status == 0), int(status != 0))
        if (status != 0 and outcome.failed == 0) or outcome.passed + outcome.failed == 0:
            outcome.failed = 1
        if outcome.failed:
            outcome.notes.append(f"{name}: exit {status}\n{tail(text)}")
        return outcome


def counts_of(text: str) -> Outcome | None:
    """What a runner says of itself: the count line, or the end of Python's unittest."""
    lines = COUNT_LINE.findall(text)
    if lines:
        passed, failed, skipped = (int(n or 0) for n in lines[-1])
        return Outcome(passed, failed, skipped)
    match = UNITTEST.search(text)
    if not match:
        return None
    said = {key.strip(): int(n) for key, n in re.findall(r"([a-z ]+)=(\d+)", match[2] or "")}
    failed = said.get("failures", 0) + said.get("errors", 0) + said.get("unexpected successes", 0)
    skipped = said.get("skipped", 0)
    return Outcome(int(match[1]) - failed - skipped, failed, skipped)


def tail(text: str, lines: int = 40) -> str:
    return "\n".join("    | " + line for line in text.strip().splitlines()[-lines:])


def home_directory() -> Path:
    return Path(os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway")


def build(run: Run) -> Outcome:
    """Configures and builds the preset, tests included."""
    for name, command in (
            ("configure", ["cmake", "--preset", run.args.preset, "-B", str(run.build)]),
            ("build", ["cmake", "--build", str(run.build), "--parallel", str(run.args.jobs)])):
        status, text = run.call(name, command)
        if status != 0:
            return Outcome(failed=1, notes=[f"{name}: exit {status}\n{tail(text)}"])
    return Outcome(passed=1)


def model(run: Run) -> Outcome:
    """Gets the default model, once, for the tests on the real model."""
    return run.counted("pull", [str(run.binary), "pull", "smollm2-135m"])


def oracles(run: Run) -> Outcome:
    """Makes what tokenisation is compared with, once: vocabularies and cases by Hugging Face."""
    home = home_directory()
    tools = [ROOT / "tools" / "oracles" / name for name in
             ("tok_oracle.py", "tok_cases.py", "hf_tokenizer.py", "gguf_keys.py", "packages.py",
              "published_pre.py", "sentencepiece_model.py")]
    tools.append(ROOT / "tools" / "peers" / "tokenizers.txt")
    names = ["smollm2", "gpt-2", "qwen2", "llama-spm", "bert-bge", "baichuan", "nomic-bert-moe", "command-r",
             "deepseek-coder", "deepseek-llm", "falcon", "mpt", "refact", "starcoder", "qwen35", "phi-3", "gemma-4",
             "aquila", "gpt-neox"]
    if shutil.which("npm"):  # the vocabularies that npm packages carry
        names += ["qwen3", "llama-3.1", "gemma-3", "deepseek-v3", "gpt-oss"]
    digest = hashlib.sha256(",".join(names).encode() + b"".join(t.read_bytes() for t in tools))
    stamp = home / "peers" / "oracle" / "tok" / "made-by"
    notes = [] if "qwen3" in names else ["oracles: without npm, not for the five tokenizers of npm"]
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return Outcome(passed=1, notes=notes)
    for name, command in (
            ("oracle-environment", ["bash", str(ROOT / "tools" / "peers.sh"), "tokenizers"]),
            ("oracle", [str(home / "peers" / "tokenizers" / "bin" / "python"),
                        str(ROOT / "tools" / "make_oracle.py"), "tokenizers", "--only",
                        ",".join(names), "-m", str(home / "models" / "smollm2-135m.gguf")])):
        status, text = run.call(name, command)
        if status != 0:
            return Outcome(failed=1, notes=[f"{name}: exit {status}\n{tail(text)}"])
    stamp.write_text(digest.hexdigest())
    return Outcome(passed=1, notes=notes)


def checks(run: Run) -> Outcome:
    """Checks of the tree: includes, style and format, licences, the documentation's blocks."""
    total = Outcome()
    for script in ("check_includes", "check_style", "check_licences", "update_docs"):
        options = ["--check", "--binary", str(run.binary)] if script == "update_docs" else []
        total.add(run.counted(script, [sys.executable, str(ROOT / "tools" / f"{script}.py"), *options]))
    return total


def ctest(run: Run) -> Outcome:
    """Every test that CTest knows; GoogleTest binaries count by their cases."""
    return ctest_in(run, "ctest", run.build)


def ctest_in(run: Run, name: str, directory: Path) -> Outcome:
    cases = run.logs / f"{name}-gtest"
    shutil.rmtree(cases, ignore_errors=True)
    cases.mkdir(parents=True)
    junit = run.logs / f"{name}.xml"
    junit.unlink(missing_ok=True)
    status, text = run.call(
        name, ["ctest", "--test-dir", str(directory), "--output-on-failure", "--no-tests=error",
               "-j", str(run.args.jobs), "--output-junit", str(junit)],
        timeout=5400, env={"GTEST_OUTPUT": f"xml:{cases}/"})
    if not junit.exists():
        return Outcome(failed=1, notes=[f"{name}: exit {status}\n{tail(text)}"])
    total = Outcome()
    for entry in ET.parse(junit).getroot().iter("testcase"):
        total.add(ctest_entry(entry, cases / f"{entry.get('name')}.xml"))
    if status != 0 and total.failed == 0:
        total.failed = 1
        total.notes.append(f"{name}: exit {status}\n{tail(text)}")
    return total


def ctest_entry(entry: ET.Element, report: Path) -> Outcome:
    name, state = entry.get("name"), entry.get("status")
    output = entry.findtext("system-out") or ""
    outcome = Outcome(int(state == "run"), int(state == "fail"), int(state not in ("run", "fail")))
    counts = counts_of(output)
    if report.exists():
        try:
            outcome = gtest_cases(report)
        except ET.ParseError:
            outcome = Outcome(failed=1)
    elif counts:
        outcome = counts
    if state == "fail":
        outcome.failed = max(outcome.failed, 1)
        outcome.notes.append(f"{name}: failed\n{tail(output)}")
    if outcome.skipped:
        outcome.notes.append(f"{name}: {outcome.skipped} skipped" + skip_reasons(output))
    return outcome


def gtest_cases(report: Path) -> Outcome:
    outcome = Outcome()
    for case in ET.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None:
            outcome.failed += 1
        elif case.get("result") == "skipped" or case.find("skipped") is not None:
            outcome.skipped += 1
        elif case.get("status") == "run":
            outcome.passed += 1
    return outcome


def skip_reasons(output: str) -> str:
    reasons = dict.fromkeys(re.findall(r"^.*: Skipped\n(.+)$", output, re.MULTILINE))
    return "".join(f"\n    | {reason}" for reason in list(reasons)[:8])


def greedy(run: Run) -> Outcome:
    """Ten prompts × 64 greedy tokens against the committed answers of the reference."""
    return run.counted("greedy", [sys.executable, str(ROOT / "tools" / "check_greedy.py"), "--bin",
                                  str(run.binary), "-m", "smollm2-135m"])


def build_preset(run: Run, preset: str, target: str = "all") -> list[str]:
    """Builds one target of another preset; what went wrong, if anything."""
    directory = ROOT / "build" / preset
    for name, command in ((f"{preset}-configure", ["cmake", "--preset", preset]),
                          (f"{preset}-build", ["cmake", "--build", str(directory), "--parallel",
                                               str(run.args.jobs), "--target", target])):
        status, text = run.call(name, command)
        if status != 0:
            return [f"{name}: exit {status}\n{tail(text)}"]
    return []


def neon(run: Run) -> Outcome:
    """The kernels' tests for AArch64, cross-compiled, under user-mode QEMU."""
    if notes := build_preset(run, "neon"):
        return Outcome(failed=1, notes=notes)
    return ctest_in(run, "neon", ROOT / "build" / "neon")


def trace_coverage(run: Run) -> Outcome:
    """Finds functions that a request enters and that no trace span covers."""
    if notes := build_preset(run, "trace-coverage", "cutaway"):
        return Outcome(failed=1, notes=notes)
    return run.counted("trace-coverage", [
        sys.executable, str(ROOT / "tools" / "trace_coverage.py"), "--bin",
        str(ROOT / "build" / "trace-coverage" / "cutaway"), "--model", "smollm2-135m"])


def fuzz(run: Run) -> Outcome:
    """Each fuzzer on its saved corpus; what it newly finds stays out of the tree."""
    if notes := build_preset(run, "fuzz", "fuzzers"):
        return Outcome(failed=1, notes=notes)
    total = Outcome()
    programs = sorted(p for p in (ROOT / "build" / "fuzz" / "fuzz").glob("*")
                      if p.is_file() and os.access(p, os.X_OK))
    if not programs:
        return Outcome(failed=1, notes=["fuzz: no fuzzer was built"])
    for program in programs:
        total.add(fuzz_one(run, program))
    return total


def fuzz_one(run: Run, program: Path) -> Outcome:
    corpus = ROOT / "fuzz" / "corpus" / program.name.removesuffix("_fuzz")
    if not corpus.is_dir() or not any(corpus.iterdir()):
        return Outcome(failed=1, notes=[f"{program.name}: no saved corpus in fuzz/corpus"])
    seconds, beside = run.args.fuzz_seconds, corpus.parent.parent / corpus.name
    words, options = beside.with_suffix(".dict"), beside.with_suffix(".options")
    with tempfile.TemporaryDirectory(prefix="cutaway-fuzz-") as scratch:
        found = run.logs / "fuzz-findings"
        found.mkdir(exist_ok=True)
        status, text = run.call(
            program.name, [str(program), f"-max_total_time={seconds}", "-timeout=25",
                           *([f"-dict={words}"] if words.is_file() else []),
                           *(options.read_text().split() if options.is_file() else []),
                           "-rss_limit_mb=2048", "-print_final_stats=1",
                           f"-artifact_prefix={found}/{program.name}-", scratch, str(corpus)],
            timeout=seconds + 300)
    executions = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    count = executions.group(1) if executions else "0"
    outcome = Outcome(int(status == 0), int(status != 0), notes=[f"{program.name}: {count} executions"])
    if status != 0:
        outcome.notes.append(f"{program.name}: exit {status}\n{tail(text)}")
    return outcome


def tidy(run: Run) -> Outcome:
    """clang-tidy over every source in the compilation database."""
    status, text = run.call("configure", ["cmake", "--preset", run.args.preset, "-B", str(run.build)])
    if status != 0:
        return Outcome(failed=1, notes=[f"configure: exit {status}\n{tail(text)}"])
    return run.counted("tidy", ["run-clang-tidy-19", "-quiet", "-p", str(run.build), "-j",
                                str(run.args.jobs), f"{ROOT}/(src|cli|include)/.*"], timeout=5400)


def peers(run: Run) -> Outcome:
    """What needs the reference's environment: tests/peers/*.py, by its own Python."""
    home = home_directory()
    total = Outcome()
    for script in sorted((ROOT / "tests" / "peers").glob("*.py")):
        total.add(run.counted(script.stem, [str(home / "peers" / "torch" / "bin" / "python"), str(script)],
                              timeout=7200))
    return total if total.passed + total.failed else Outcome(failed=1, notes=["peers: nothing ran"])


SUITES = {"checks": checks, "build": build, "model": model, "oracles": oracles, "ctest": ctest, "greedy": greedy,
          "neon": neon, "trace-coverage": trace_coverage, "fuzz": fuzz, "tidy": tidy, "peers": peers}
IN_MAKE_TEST = ["build", "model", "oracles", "checks", "ctest", "neon", "greedy", "trace-coverage",
                "fuzz"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="dev")
    parser.add_argument("--build", help="the build directory, instead of build/PRESET")
    parser.add_argument("--binary", help="the program under test, instead of the build's own")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--only", help="suites, separated by commas")
    parser.add_argument("--fuzz-seconds", type=int, default=10)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    args.suites = args.only.split(",") if args.only else IN_MAKE_TEST
    unknown = [name for name in args.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    return args


def main() -> int:
    args = parse()
    if args.list:
        for name, suite in SUITES.items():
            print(f"{name:15} {suite.__doc__.splitlines()[0]}")
        return 0
    run = Run(args)
    total = Outcome()
    for name in args.suites:
        print(f"{name}: {SUITES[name].__doc__.splitlines()[0]}", flush=True)
        start = time.monotonic()
        try:
            outcome = SUITES[name](run)
        except Exception as error:  # a runner that crashed is a failure, and the rest still runs
            outcome = Outcome(failed=1, notes=[f"{name}: {type(error).__name__}: {error}"])
        total.add(outcome)
        skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
        print(f"{name}: {outcome.passed} passed, {outcome.failed} failed{skipped}"
              f" ({time.monotonic() - start:.0f} s)", flush=True)
        for note in outcome.notes:
            print(f"  {note}", flush=True)
        if name == "build" and outcome.failed:
            print("  nothing can be run", flush=True)
            break
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
