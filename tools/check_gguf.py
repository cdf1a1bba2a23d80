#!/usr/bin/env python3
"""What `cutaway info --tensors --json` says of GGUF files, against the reader of PyPI `gguf`.

  check_gguf.py --bin build/release/cutaway FILE.gguf…

Compares every metadata key and value (arrays by count and first elements, as far as info shows
them) and every tensor's order, name, type, shape and size in bytes. Exit status 1 on a difference.
Needs PyPI `gguf` (tools/peers.sh installs it).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType


def theirs_value(field) -> object:
    """A reader's field as plain Python values; text as info shows it (invalid UTF-8 replaced)."""

    def text(part) -> str:
        return bytes(part).decode("utf-8", errors="replace")

    def number(part) -> object:
        value = part[0].item() if isinstance(part[0], np.generic) else part[0]
        return value

    is_text = field.types[-1] == GGUFValueType.STRING
    values = [text(field.parts[i]) if is_text else number(field.parts[i]) for i in field.data]
    return values if field.types[0] == GGUFValueType.ARRAY else values[0]


def equal(ours: object, theirs: object) -> bool:
    if isinstance(theirs, list):
        if isinstance(ours, dict):  # a long array: its count and its first elements
            first = ours["first"]
            return ours["count"] == len(theirs) and all(map(equal, first, theirs[: len(first)]))
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(theirs, float):
        if not math.isfinite(theirs):
            return ours is None  # JSON has no such number
        return isinstance(ours, (int, float)) and float(ours) == theirs
    return type(ours) is type(theirs) and ours == theirs


def differences(model: dict, reader: GGUFReader) -> list[str]:
    found = []
    fields = {name: f for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    if list(model["metadata"]) != list(fields):
        found.append(f"keys: {list(model['metadata'])} against {list(fields)}")
    for name, field in fields.items():
        expected = theirs_value(field)
        if not equal(model["metadata"].get(name), expected):
            found.append(f"{name}: {model['metadata'].get(name)!r:.200} against {expected!r:.200}")
    expected_tensors = [
        {
            "name": t.name,
            "dtype": t.tensor_type.name,
            "shape": [int(d) for d in reversed(t.shape)],
            "bytes": int(t.n_bytes),
        }
        for t in reader.tensors
    ]
    if len(model["tensors"]) != len(expected_tensors):
        found.append(f"{len(model['tensors'])} tensors against {len(expected_tensors)}")
    for ours, expected in zip(model["tensors"], expected_tensors):
        if {key: ours.get(key) for key in expected} != expected:
            found.append(f"tensor {ours} against {expected}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("files", nargs="+", metavar="FILE.gguf")
    args = parser.parse_args()
    failed = 0
    for path in args.files:
        command = [args.bin, "info", "-m", path, "--tensors", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            print(f"FAIL {path}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
            failed += 1
            continue
        model = json.loads(done.stdout)["model"]
        found = differences(model, GGUFReader(path))
        print(f"{'FAIL' if found else 'ok  '} {path}: {len(model['metadata'])} keys, "
              f"{len(model['tensors'])} tensors")
        for line in found:
            print("     " + line)
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
