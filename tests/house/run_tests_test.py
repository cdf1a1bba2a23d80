"""The runner counts what passed and what failed, and loses nothing on the way."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("run_tests", ROOT / "tools" / "run_tests.py")
run_tests = importlib.util.module_from_spec(spec)
sys.modules["run_tests"] = run_tests
spec.loader.exec_module(run_tests)


class Counts(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.dir = Path(self.scratch.name)
        self.run_ = run_tests.Run(argparse.Namespace(build=self.scratch.name, preset="dev",
                                                     binary=None, jobs=1))

    def counted(self, script: str):
        outcome = self.run_.counted("x", ["bash", "-c", script], timeout=20)
        return outcome.passed, outcome.failed, outcome.skipped

    def test_by_exit_status(self):
        self.assertEqual(self.counted("echo fine"), (1, 0, 0))
        self.assertEqual(self.counted("exit 3"), (0, 1, 0))

    def test_by_the_count_line(self):
        self.assertEqual(self.counted("echo 12 passed, 0 failed"), (12, 0, 0))
        self.assertEqual(self.counted("echo 12 passed, 2 failed, 1 skipped; exit 1"), (12, 2, 1))

    def test_a_crash_after_good_counts_is_a_failure(self):
        self.assertEqual(self.counted("echo 12 passed, 0 failed; kill -SEGV $$"), (12, 1, 0))

    def test_a_runner_that_ran_nothing_is_a_failure(self):
        self.assertEqual(self.counted("echo 0 passed, 0 failed"), (0, 1, 0))

    def test_unittest(self):
        text = "Ran 7 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=1)\n"
        outcome = run_tests.counts_of(text)
        self.assertEqual((outcome.passed, outcome.failed, outcome.skipped), (3, 3, 1))
        outcome = run_tests.counts_of("Ran 2 tests in 0.1s\n\nOK\n")
        self.assertEqual((outcome.passed, outcome.failed), (2, 0))

    def test_timeout_and_missing_program(self):
        self.assertEqual(self.run_.call("t", ["sleep", "9"], timeout=0.1)[0], 124)
        self.assertEqual(self.run_.call("m", ["/nonexistent/program"])[0], 127)

    def entry(self, state: str, cases: str | None, output: str = ""):
        element = ET.fromstring(f'<testcase name="t" status="{state}"><system-out/></testcase>')
        element.find("system-out").text = output
        report = self.dir / "t.xml"
        if cases is not None:
            report.write_text(cases)
        outcome = run_tests.ctest_entry(element, report)
        return outcome.passed, outcome.failed, outcome.skipped

    def test_gtest_cases(self):
        cases = ('<testsuites><testsuite><testcase status="run"/><testcase status="run"><failure/>'
                 '</testcase><testcase status="run" result="skipped"/></testsuite></testsuites>')
        self.assertEqual(self.entry("fail", cases), (1, 1, 1))

    def test_a_binary_that_died_without_a_report(self):
        self.assertEqual(self.entry("fail", None), (0, 1, 0))

    def test_a_binary_that_died_after_its_report(self):
        cases = '<testsuites><testsuite><testcase status="run"/></testsuite></testsuites>'
        self.assertEqual(self.entry("fail", cases), (1, 1, 0))

    def test_a_torn_report(self):
        self.assertEqual(self.entry("fail", "<testsuites><tes"), (0, 1, 0))

    def test_not_run(self):
        self.assertEqual(self.entry("notrun", None), (0, 0, 1))


class LastLine(unittest.TestCase):
    def test_stands_alone_and_decides_the_exit_status(self):
        with tempfile.TemporaryDirectory() as build:
            done = subprocess.run(
                [sys.executable, str(ROOT / "tools" / "run_tests.py"), "--only", "model,peers",
                 "--build", build, "--binary", "/nonexistent/cutaway"],
                capture_output=True, text=True, env=dict(os.environ, CUTAWAY_HOME=build), check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout.splitlines()[-1], r"^0 passed, \d+ failed$")


if __name__ == "__main__":
    unittest.main()
