#!/usr/bin/env python3
"""Fails on an include that the table of folders (tools/include_table.txt) does not allow.

  check_includes.py            checks the tree, after proving on made-up includes that it can fail
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
PLACES = {"include/cutaway": "public", "cli": "cli", "server": "server", "python": "python",
          "tests": "tests", "bench": "bench", "fuzz": "fuzz"}


def read_table(text: str) -> dict[str, set[str]]:
    lines = (line.split("#")[0] for line in text.splitlines())
    rows = (line.split(":", 1) for line in lines if line.strip())
    return {name.strip(): set(allowed.split()) for name, allowed in rows}


def folder_of(path: str) -> str:
    """The table's row for a file of the tree."""
    if path.startswith("src/"):
        return path.split("/")[1]
    return next((row for place, row in PLACES.items() if path.startswith(place + "/")), path)


def faults(path: str, text: str, table: dict[str, set[str]]) -> list[str]:
    folder = folder_of(path)
    if folder not in table:
        return [f"{path}: the table has no row {folder!r}"]
    found = []
    for name in INCLUDE.findall(text):
        target = "public" if name.startswith("cutaway/") else name.split("/")[0]
        # Programs and tests may include a neighbour by its name alone; libraries write the folder.
        local = not path.startswith(("src/", "include/")) and ("/" not in name or target == folder)
        if not local and ("/" not in name or target not in table):
            if table[folder] == {"*"} or target == "cutaway_rust.h":
                continue
            found.append(f'{path}: "{name}" is not written as "folder/file.h"')
        elif target != folder and not local and not table[folder] & {target, "*"}:
            found.append(f'{path}: {folder} may not include "{name}"'
                         f" (allowed: {', '.join(sorted(table[folder])) or 'nothing'})")
    return found


def self_test(table: dict[str, set[str]]) -> list[str]:
    wrong = {"src/arch/x.cc": "formats/gguf.h", "cli/run.cc": "inference/decoder.h",
             "src/base/x.h": "tensor/tensor.h", "include/cutaway/x.h": "model/loaded_model.h",
             "src/text/x.cc": "x.h", "src/new_folder/x.cc": "base/result.h"}
    right = {"src/arch/x.cc": "ops/norm.h", "cli/run.cc": "cutaway/engine.h", "tests/x.cc": "kv/pages.h"}
    return [f"self-test: {path} with {name} went unnoticed" for path, name in wrong.items()
            if not faults(path, f'#include "{name}"\n', table)] + [
            f"self-test: {path} with {name} was refused" for path, name in right.items()
            if faults(path, f'#include "{name}"\n', table)]


def main() -> int:
    table = read_table((ROOT / "tools" / "include_table.txt").read_text())
    problems = self_test(table)
    files = [p for top in ("src", "include", "cli", "server", "tests", "bench", "fuzz")
             for p in sorted((ROOT / top).rglob("*")) if p.suffix in (".h", ".cc", ".cpp", ".c")]
    for path in files:
        problems += faults(str(path.relative_to(ROOT)), path.read_text(), table)
    print("\n".join(problems) or f"{len(files)} files, every include allowed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
