"""bootstrap.sh says what it installs, installs only what is missing, and needs root or sudo."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

BOOTSTRAP = Path(__file__).resolve().parent.parent.parent / "tools" / "bootstrap.sh"


class Machine(unittest.TestCase):
    """A machine made of scripts: dpkg-query, apt-get, id, sudo, rustc and cargo."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.bin = Path(self.scratch.name) / "bin"
        self.bin.mkdir()
        self.log = Path(self.scratch.name) / "log"
        self.log.touch()
        for tool in ("bash", "cut", "sort", "head", "env", "cat", "touch"):
            (self.bin / tool).symlink_to(Path("/usr/bin") / tool)
        self.script("apt-get", f'echo "apt-get $*" >>{self.log}\n'
                               f'case "$*" in *rustc-web*) touch {self.bin}/fresh;; esac')
        self.installed("")
        self.user(0)
        self.rust("1.95.0")

    def script(self, name: str, body: str):
        path = self.bin / name
        path.write_text(f"#!/usr/bin/bash\n{body}\n")
        path.chmod(0o755)

    def installed(self, without: str):
        """Every package that is asked for is there, but one."""
        self.script("dpkg-query", 'shift 2; for p in "$@"; do\n'
                                  f'  [[ "$p" == "{without}" ]] && continue\n  echo "ii  $p"\ndone')

    def user(self, number: int):
        self.script("id", f"echo {number}")

    def rust(self, version: str):
        self.script("cargo", "true")
        self.script("rustc", f'if [[ -e {self.bin}/fresh ]]; then echo "rustc 1.96.0 (x)"; '
                             f'else echo "rustc {version} (x)"; fi')

    def run_(self, profile: str = "build"):
        return subprocess.run(["/usr/bin/bash", str(BOOTSTRAP), profile], text=True, check=False,
                              capture_output=True, timeout=30,
                              env={"PATH": str(self.bin), "HOME": self.scratch.name})

    def test_everything_there_does_nothing_and_says_nothing(self):
        done = self.run_("all")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(self.log.read_text(), "")

    def test_installs_only_what_is_missing_and_says_so_first(self):
        self.installed("mold")
        done = self.run_()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("installing with apt-get: mold\n", done.stderr)
        calls = self.log.read_text().splitlines()
        self.assertEqual(len(calls), 2)
        self.assertIn("update", calls[0])
        self.assertTrue(calls[1].endswith("--no-install-recommends mold"), calls[1])

    def test_build_does_not_ask_for_what_only_tests_need(self):
        for package in ("clang-19", "g++-aarch64-linux-gnu", "qemu-user"):
            with self.subTest(package):
                self.log.write_text("")
                self.installed(package)
                self.assertEqual(self.run_("build").returncode, 0)
                self.assertEqual(self.log.read_text(), "")
                self.assertEqual(self.run_("test").returncode, 0)
                self.assertIn(f" {package}\n", self.log.read_text())

    @unittest.skipIf(os.path.exists("/usr/bin/cargo"), "this machine's /usr/bin has a cargo")
    def test_an_old_rust_is_replaced(self):
        self.rust("1.63.0")
        done = self.run_()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rustc-web cargo-web", self.log.read_text())

    def test_cargo_names_the_directory(self):
        self.assertEqual(self.run_("cargo").stdout.strip(), str(self.bin))

    def test_neither_root_nor_sudo(self):
        self.installed("mold")
        self.user(1000)
        done = self.run_()
        self.assertEqual(done.returncode, 1)
        self.assertIn("apt-get install --no-install-recommends mold", done.stderr)
        self.assertEqual(self.log.read_text(), "")

    def test_sudo(self):
        self.installed("mold")
        self.user(1000)
        self.script("sudo", f'echo sudo >>{self.log}\nexec "$@"')
        self.assertEqual(self.run_().returncode, 0)
        self.assertEqual(self.log.read_text().count("sudo\n"), 2)

    def test_an_unknown_profile(self):
        done = self.run_("everything")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no such profile: everything (build, test, peers, all, cargo)", done.stderr)


if __name__ == "__main__":
    unittest.main()
