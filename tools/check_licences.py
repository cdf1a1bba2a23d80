#!/usr/bin/env python3
"""Fails when something that is linked is not on the list, or has a licence that is not allowed.

  check_licences.py        libraries that CMake links and headers that are included, against
                           tools/licenses.json; crates as cargo lists them from rust/Cargo.lock
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = re.compile(r"\b[A-Za-z_]\w*::[\w-]+")
SYSTEM = {"Threads::Threads"}  # the C and C++ runtimes
TOKEN = re.compile(r"[()]|[^\s()]+")


def allowed(expression: str, listed: dict) -> bool:
    """An SPDX expression: one side of OR (or of the older `/`) is enough, both of AND are needed."""
    tokens = TOKEN.findall(expression.replace("/", " OR "))

    def either() -> bool:
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both() -> bool:
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one() -> bool:
        if not tokens:
            return False
        token = tokens.pop(0)
        if token == "(":
            value = either()
            return bool(tokens) and tokens.pop(0) == ")" and value
        value = token in listed["allowed"]
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            exception = tokens.pop(0) if tokens else ""
            value = value and exception in listed["allowed_exceptions"]
        return value

    return either() and not tokens


def linked_targets(text: str) -> set[str]:
    return set(TARGET.findall(re.sub(r"#.*", "", text))) - SYSTEM


def library_faults(listed: dict) -> list[str]:
    known = {target for part in listed["components"] for target in part["targets"]}
    faults = []
    for top in ("src", "cli", "server", "rust"):
        for path in sorted((ROOT / top).rglob("CMakeLists.txt")):
            if "target" in path.relative_to(ROOT).parts:
                continue
            faults += [f"{path.relative_to(ROOT)}: {target} is not in tools/licenses.json"
                       for target in sorted(linked_targets(path.read_text()) - known)]
    return faults


def crates() -> list[dict]:
    """The crates that end up in the static library: no development dependencies of theirs."""
    manifest = ROOT / "rust" / "Cargo.toml"
    if not manifest.exists():
        return []
    done = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path",
                           str(manifest), "--filter-platform", "x86_64-unknown-linux-gnu"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError("cargo metadata: " + done.stderr.strip()[-300:])
    return [p for p in json.loads(done.stdout)["packages"] if p["source"]]


def self_test(listed: dict) -> list[str]:
    good = ["MIT", "MIT OR GPL-3.0-only", "MIT/Apache-2.0", "(MIT OR GPL-2.0-only) AND ISC",
            "Apache-2.0 WITH LLVM-exception"]
    bad = ["GPL-3.0-only", "MIT AND GPL-3.0-only", "", "MIT WITH Some-exception", "(MIT", "AGPL-3.0"]
    return ([f"self-test: {e!r} was refused" for e in good if not allowed(e, listed)] +
            [f"self-test: {e!r} was allowed" for e in bad if allowed(e, listed)] +
            (["self-test: a linked library went unnoticed"]
             if linked_targets("DEPS base GPL::thing)  # Other::one") != {"GPL::thing"} else []))


def main() -> int:
    listed = json.loads((ROOT / "tools" / "licenses.json").read_text())
    faults = self_test(listed) + library_faults(listed)
    packages = crates()
    for part in listed["components"]:
        if not allowed(part["licence"], listed):
            faults.append(f"{part['name']}: licence {part['licence']!r} is not allowed")
    for package in packages:
        licence = package["license"] or ""
        if not allowed(licence, listed):
            faults.append(f"crate {package['name']} {package['version']}: licence {licence!r} is not allowed")
    print("\n".join(faults) or f"{len(listed['components'])} libraries and {len(packages)} crates, all allowed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
