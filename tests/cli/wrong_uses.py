#!/usr/bin/env python3
"""Every wrong use of wrong_use_table.py: its exit status, and the message that docs/errors.md shows.

  wrong_uses.py              runs all; a message that the document does not show is a failure
  wrong_uses.py --update     writes docs/errors.md from what the program says
  wrong_uses.py --only TEXT  those whose first column has TEXT
CUTAWAY_BINARY names the program.
"""

from __future__ import annotations

import argparse
import atexit
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hostile_files
import program
from wrong_use_table import SECTIONS, WrongUse

DOCUMENT = program.ROOT / "docs" / "errors.md"
ABOUT = """# Wrong uses, and what they get

Every message names the field, the value and what would be accepted. Exit status 2 is a wrong use
of the command line, 1 is everything else that fails. Nothing is on
stdout, unless the answer was complete already. In this table
`tiny.gguf` is a small model with a context of 128 tokens and 287 token ids; the other files are
named after what is wrong with them. `tests/cli/wrong_uses.py` runs each row, compares what comes
with what is written here, and writes this page anew with `--update`.
"""
MEMORY = """
## When memory runs out

An allocation that fails while a model is loaded, a prompt is read or an answer is made is an error like any
other: `there is not enough memory for …` (exit status 1; `kTooLarge` in the library). The session stays usable:
its next answer is the one that it would have given. `tests/faults` lets every allocation fail once, in turn.
Nothing leaks, but for some bytes of a JSON value that the JSON library was just making. What ends the program
instead, each for a reason that lies in a library:

- **The destructor of the JSON library** allocates while it takes nested values apart; a destructor that cannot
  has no one to tell.
- **The template engine**, which is Rust: when it cannot have the few bytes that Rust keeps for a thread (it runs
  on one of its own, with a deep stack), or once a reserve of 256 KiB is used up; up to there a rendering that met
  the end of memory gets to its own end.
- **The background thread of a trace**: a record that cannot be formatted has no caller to go back to.

On Linux memory that was granted is there only when it is touched: a system without any left ends a process by
signal 9 instead of refusing. What is known to need much is therefore checked against the memory that is
available before it begins, and refused by its size.
"""


class Skip(Exception):
    """This machine cannot set up the case; the text says why."""


def small_disk() -> list[str]:
    """A command line prefix under which CUTAWAY_HOME is on a disk of 64 KiB."""
    wrapper = ["unshare", "--mount", "sh", "-c",
               'mount -t tmpfs -o size=64k tmpfs full-home && exec "$0" "$@"']
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "full-home").mkdir()
        if subprocess.run([*wrapper, "true"], cwd=folder, capture_output=True, check=False).returncode:
            raise Skip("this user may not mount a small disk")
    return wrapper


def perform(use: WrongUse, folder: Path) -> program.Result:
    env = {**use.env, **(use.prepare(folder) if use.prepare else {})}
    if use.how == "terminal":
        terminal = program.Terminal(use.args, folder, env)
        code = terminal.finish()
        return program.Result(code, b"", terminal.text.replace("\r\n", "\n"))
    if use.how == "closed stdout":
        return program.run_closed_pipe(use.args, folder)
    if use.how == "full stdout":
        with open("/dev/full", "wb") as full:
            return program.run(use.args, folder, stdout=full)
    if use.how == "small disk":
        return program.run(use.args, folder, env={"CUTAWAY_HOME": str(folder / "full-home")},
                           wrapper=small_disk())
    return program.run(use.args, folder, stdin=use.stdin, env=env, before=use.before)


def message(result: program.Result, folder: Path) -> str:
    """Stderr as the table shows it: one line, without paths and numbers of this machine."""
    lines = [line for line in result.err.strip().splitlines() if not line.endswith("shows what there is.")
             or line.startswith("cutaway: a command")]
    text = " ".join(lines).replace(str(folder / "home"), "$CUTAWAY_HOME").replace(str(folder) + "/", "")
    text = re.sub(r"after \d+ ms", "after N ms", text)
    text = re.sub(r"\.partial-\w{6}", ".partial-XXXXXX", text)
    text = re.sub(r"available here: [\w, ]*\w", "available here: …", text)
    text = re.sub(r"[\d.]+ [kMGTP]B of memory are available \([^)]*\)",
                  "N GB of memory are available (MemAvailable)", text)
    text = re.sub(r"threads share \d+ processors?", "threads share N processors", text)
    return re.sub(r", \d+ (MB|bytes) are free", r", N \1 are free", text)


def problems(use: WrongUse, result: program.Result, folder: Path) -> list[str]:
    text, found = message(result, folder), []
    if result.code != use.code:
        found.append(f"exit status {result.code}, expected {use.code}")
    found += [f"the message does not name {part!r}" for part in use.names if part not in text]
    if result.out and not use.answered:
        found.append(f"stdout has {result.out[:80]!r}")
    if any(word in text for word in ("terminate called", "Segmentation", "CHECK failed")):
        found.append("the program broke down")
    left = [p.name for pattern in (".partial-*", "*.part", "o.gguf") for p in folder.rglob(pattern)]
    if left:
        found.append(f"{left[0]} was left behind")
    return [f"{p}: {text!r}" for p in found]


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def row(use: WrongUse, result: program.Result, folder: Path) -> str:
    return f"| {use.what} | `{cell(use.command())}` | {result.code} | {cell(message(result, folder))} |"


def documented() -> dict[str, str]:
    """The rows of the document by their first column."""
    if not DOCUMENT.exists():
        return {}
    lines = (line for line in DOCUMENT.read_text().splitlines() if line.startswith("| "))
    return {line.split(" | ")[0][2:]: line for line in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")
    known, page = documented(), ABOUT
    passed = failed = skipped = 0
    folder = Path(tempfile.mkdtemp(prefix="cutaway-cli-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    hostile_files.make(folder)
    for section, uses in SECTIONS.items():
        page += f"\n## {section}\n\n| wrong use | command | exit | message |\n|---|---|---|---|\n"
        for use in uses:
            if args.only not in use.what:
                continue
            for left in ("home", "fake-path"):
                shutil.rmtree(folder / left, ignore_errors=True)
            try:
                result = perform(use, folder)
                line, faults = row(use, result, folder), problems(use, result, folder)
                if not args.update and known.get(use.what) != line:
                    faults.append(f"docs/errors.md has {known.get(use.what)!r}, the program gives {line!r}")
            except Skip as reason:
                print(f"skipped: {use.what}: {reason}")
                skipped += 1
                page += known.get(use.what, "") + "\n"
                continue
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                line, faults = known.get(use.what, ""), [f"{type(error).__name__}: {error}"]
            page += line + "\n"
            passed, failed = passed + (not faults), failed + bool(faults)
            for fault in faults:
                print(f"FAILED: {use.what}: {fault}")
    page += MEMORY
    if args.update and not args.only:
        DOCUMENT.write_text(page)
    elif not args.only and len(known) != 1 + sum(map(len, SECTIONS.values())):
        print(f"FAILED: docs/errors.md has {len(known) - 1} rows; --update writes it anew")
        failed += 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
