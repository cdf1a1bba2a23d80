#!/usr/bin/env python3
"""Runs the commands that the documentation shows, and puts what they print where it is shown.

  update_docs.py              writes the blocks anew, with build/release/cutaway
  update_docs.py --check      fails when a block is not what the program prints today; times, rates,
                              sizes, hashes and ids of a run are not compared
  --binary PROGRAM            another program

`<!-- figures: bench/results/A.json … -->` … `<!-- /figures -->` holds the tables of measured figures.
A block in a Markdown file:

  <!-- run: cutaway tokenize -m smollm2-135m "Hello" -->
  <!-- show: 1-12 -4 -->      optional: lines 1 to 12 and the last 4, `…` between them
  ```
  $ cutaway tokenize …
  what it printed, stderr first where the command says 2>&1
  ```
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import figures

ROOT = Path(__file__).resolve().parent.parent
FIGURES = re.compile(r"(<!-- figures: (?P<files>[^>]+?) -->\n).*?(<!-- /figures -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- run: (?P<command>.+?) -->\n(?:<!-- show: (?P<show>[-\d ]+) -->\n)?"
                   r"```[a-z]*\n)(?P<body>.*?)(^```$)", re.DOTALL | re.MULTILINE)
# What differs from run to run or from machine to machine, and never means that the text is wrong.
VOLATILE = [
    re.compile(r"\d\d:\d\d:\d\d\.\d{3}"),
    re.compile(r"\(\d[\d.]* ?(ns|µs|us|ms|s)\)"),
    re.compile(r"\b\d[\d.,]* ?(ns|µs|us|ms|s|tok/s|tokens/s|MB|MiB|GiB|GB/s)\b"),
    re.compile(r"\b[0-9a-f]{32}\b"),
    re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"),
    re.compile(r"\"?\b\w*(_ms|_tps|_mb|_gbps)\"?[:=] ?[\d.]+"),
]


def select(lines: list[str], show: str | None) -> list[str]:
    """`1-12 -4`: those lines, with `…` where lines are left out."""
    if not show:
        return lines
    kept: list[int] = []
    for part in show.split():
        if part.startswith("-"):
            kept += range(max(len(lines) - int(part[1:]), 0), len(lines))
        else:
            first, _, last = part.partition("-")
            kept += range(int(first) - 1, min(int(last or first), len(lines)))
    out: list[str] = []
    previous = -1
    for index in sorted(set(kept)):
        if index != previous + 1:
            out.append("…")
        out.append(lines[index])
        previous = index
    return out + (["…"] if previous != len(lines) - 1 else [])


def printed(command: str, show: str | None, binary: Path) -> str:
    """The block's body for a command, as bash runs it with `cutaway` being the binary."""
    env = dict(os.environ, LC_ALL="C.UTF-8", TERM="dumb")
    function = f'cutaway() {{ "{binary}" "$@"; }}\n'
    done = subprocess.run(["bash", "-c", function + command], cwd=ROOT, env=env, text=True, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL if "2>" not in command else None, timeout=600)
    lines = [line.rstrip() for line in done.stdout.rstrip("\n").split("\n")]
    return "\n".join([f"$ {command}", *select(lines, show)]) + "\n"


def masked(text: str) -> str:
    for pattern in VOLATILE:
        text = pattern.sub("·", text)
    return text


def renew_figures(match: re.Match[str], path: Path) -> str:
    language = "ko" if path.name.endswith(".ko.md") else "en"
    return match[1] + figures.tables([ROOT / name for name in match["files"].split()], language) + match[3]


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "README.ko.md", *sorted((ROOT / "docs").rglob("*.md"))]


def self_test() -> list[str]:
    faults = []
    if masked("took (41 µs)") != masked("took (7 ms)") or masked("ids=[1]") == masked("ids=[2]"):
        faults.append("self-test: the mask hides too much or too little")
    if select(list("abcdef"), "1-2 -1") != ["a", "b", "…", "f"]:
        faults.append("self-test: the wrong lines are shown")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "cutaway")
    args = parser.parse_args()
    if not args.binary.is_file():
        print(f"{args.binary} is not there (make build)")
        return 1
    faults, cache, blocks = self_test(), {}, 0
    for path in documents():
        if not path.exists():
            continue
        text = path.read_text()

        def renew(match: re.Match[str]) -> str:
            nonlocal blocks
            blocks += 1
            key = (match["command"], match["show"])
            if key not in cache:
                cache[key] = printed(*key, args.binary.resolve())
            if args.check and masked(cache[key]) != masked(match["body"]):
                faults.append(f"{path.relative_to(ROOT)}: not what the program prints: {match['command']}")
                faults.extend(difflib.unified_diff(masked(match["body"]).splitlines(),
                                                   masked(cache[key]).splitlines(), lineterm="", n=1))
            return match[1] + cache[key] + match[5]

        renewed = FIGURES.sub(lambda match: renew_figures(match, path), BLOCK.sub(renew, text))
        if args.check and FIGURES.sub(lambda match: renew_figures(match, path), text) != text:
            faults.append(f"{path.relative_to(ROOT)}: the figures are not those of bench/results")
        if not args.check and renewed != text:
            path.write_text(renewed)
            print(f"{path.relative_to(ROOT)}: renewed")
    print("\n".join(faults) or f"{blocks} blocks, all as the program prints them")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
