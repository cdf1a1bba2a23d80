#!/usr/bin/env python3
"""Runs the commands that the documentation shows, and puts what they print where it is shown.

  update_docs.py              writes the blocks anew, with build/release/cutaway
  update_docs.py --check      fails when a block is not what the program prints today; times, rates,
                              sizes and ids of a run, and hashes but that of the logits, are not compared
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
import tempfile
from pathlib import Path

import figures

MODEL = "smollm2-135m"
ROOT = Path(__file__).resolve().parent.parent
FIGURES = re.compile(r"(<!-- figures: (?P<files>[^>]+?) -->\n).*?(<!-- /figures -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- run: (?P<command>.+?) -->\n(?:<!-- show: (?P<show>[-\d ]+) -->\n)?"
                   r"```[a-z]*\n)(?P<body>.*?)(^```$)", re.DOTALL | re.MULTILINE)
# What differs from run to run or from machine to machine, and never means that the text is wrong.
VOLATILE = [
    re.compile(r"read_record OUT line=\"[^\"]*\""),  # where the model came from
    re.compile(r"\"?\b\w*(ms|_tps|_mb|_gbps|_gops)\"?[:=] ?[\d.]+"),
    re.compile(r"\bthreads=\d+"),
    re.compile(r"\bsha256=\"[0-9a-f]*\""),  # nothing where the model was not pulled
    re.compile(r"\bseed=\d{9,}"),  # one that was drawn from the system
    re.compile(r"\d\d:\d\d:\d\d\.\d{3}"),
    re.compile(r"\(\d[\d.]* ?(ns|µs|us|ms|s)\)"),
    re.compile(r"(?<![=\w.])\d[\d.,]* ?(ns|µs|us|ms|s|tok/s|tokens/s|MB|MiB|GiB|GB/s)\b"),
    # A hash of the file or of its packing; that of the logits is what the page proves.
    re.compile(r"(?<!logits_hash=\")(?<!\"logits_hash\":\")\b[0-9a-f]{32}\b"),
    re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"),
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


def environment(scratch: str) -> dict[str, str]:
    """A home with the default model alone, and one kernel table: what machines have in common."""
    home = Path(os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway")
    (Path(scratch) / "models").mkdir(exist_ok=True)
    for file in (home / "models").glob(f"{MODEL}.gguf*"):
        (Path(scratch) / "models" / file.name).symlink_to(file)
    return dict(os.environ, LC_ALL="C.UTF-8", TERM="dumb", CUTAWAY_FORCE_ISA="avx2",
                CUTAWAY_HOME=scratch)


def printed(command: str, show: str | None, binary: Path, env: dict[str, str]) -> str:
    """The block's body for a command, as bash runs it with `cutaway` being the binary."""
    function = f'set -o pipefail\ncutaway() {{ "{binary}" "$@"; }}\n'
    done = subprocess.run(["bash", "-c", function + command], cwd=ROOT, env=env, text=True, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL if "2>" not in command else None, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode}: {command}\n{done.stdout}")
    text = done.stdout.replace(env["CUTAWAY_HOME"], "~/.cache/cutaway")
    lines = [line.rstrip() for line in text.rstrip("\n").split("\n")]
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
    if masked("took (41 µs)") != masked("took (7 ms)") or masked("p=1 s=2") == masked("p=2 s=2"):
        faults.append("self-test: the mask hides too much or too little")
    logits = [f'logits_hash="{digit * 32}" file_xxh3="{digit * 32}"' for digit in "12"]
    if masked(logits[0]) == masked(logits[1]) or masked(logits[0]).count("·") != 1:
        faults.append("self-test: a hash of logits is to be compared, any other not")
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
    args.binary = args.binary.resolve()
    with tempfile.TemporaryDirectory(prefix="cutaway-docs-") as scratch:
        env = environment(scratch)
        if subprocess.run([args.binary, "info"], env=env, check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 2:
            print("not compared: the blocks were made with AVX2 kernels, which cannot run here")
            return 0 if args.check else 1
        faults = self_test() + renew_all(args, env)
    print("\n".join(faults) or "every block is as the program prints it")
    return 1 if faults else 0


def renew_all(args: argparse.Namespace, env: dict[str, str]) -> list[str]:
    faults: list[str] = []
    cache: dict[tuple, str] = {}

    def renew(match: re.Match[str], name: Path) -> str:
        key = (match["command"], match["show"])
        if key not in cache:
            cache[key] = printed(*key, args.binary, env)
        old, new = masked(match["body"]), masked(cache[key])
        if old == new:
            return match[0]
        if args.check:
            faults.append(f"{name}: not what the program prints: {match['command']}")
            faults.extend(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1))
        return match[1] + cache[key] + match[5]

    for path in documents():
        if not path.exists():
            continue
        name, text = path.relative_to(ROOT), path.read_text()
        figured = FIGURES.sub(lambda match, path=path: renew_figures(match, path), text)
        if args.check and figured != text:
            faults.append(f"{name}: the figures are not those of bench/results")
        renewed = BLOCK.sub(lambda match, name=name: renew(match, name), figured)
        if not args.check and renewed != text:
            path.write_text(renewed)
            print(f"{name}: renewed")
    return faults


if __name__ == "__main__":
    sys.exit(main())
