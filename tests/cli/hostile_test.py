#!/usr/bin/env python3
"""Every file of hostile_gguf.py is refused by the real program: by name, at once, in little memory.

The last lines say how many, how long the slowest took and how much memory the largest: measured for
each process by itself (wait4). CUTAWAY_BINARY names the program; `hostile_test.py --list` shows all
messages.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import hostile_gguf
import program

MAX_MB = 64
# A sanitizer's own memory is not the program's; its builds say so.
SANITIZED = bool(os.environ.get("CUTAWAY_SANITIZED"))
CAP_SECONDS = 20  # of a machine under load; what is printed is what it took


def run(path: Path, folder: Path) -> tuple[int, str, float, float]:
    """Exit status (128 + signal), stderr, seconds, MB."""
    start = time.monotonic()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            program.drop_file_privileges()
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(writer, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.execve(program.binary(), [program.binary(), "run", "-m", path.name, "-n", "1", "hi"],
                      program.environment(folder))
        finally:
            os._exit(127)
    os.close(writer)
    err = b""
    while part := os.read(reader, 65536):
        err += part
    os.close(reader)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return (code if code >= 0 else 128 - code, err.decode(errors="replace"), time.monotonic() - start,
            usage.ru_maxrss / 1024)


def wrong(case: hostile_gguf.Case, name: str, code: int, err: str, seconds: float, mb: float) -> str:
    if code not in (1, 2):
        return f"exit status {code}"
    if err.count("\n") != 1 or not err.startswith("cutaway: "):
        return "not one line"
    if name not in err:
        return "does not name the file"
    if case.words not in err:
        return f"does not say {case.words!r}"
    if any(c < " " and c != "\n" for c in err):
        return "control characters"
    if seconds > CAP_SECONDS:
        return f"took {seconds:.1f} s"
    if mb > MAX_MB and not SANITIZED:
        return f"took {mb:.0f} MB"
    return ""


def main() -> int:
    sys.stdout.reconfigure(encoding="utf-8")
    folder = Path(tempfile.mkdtemp(prefix="cutaway-hostile-"))
    cases = hostile_gguf.cases()
    failed, slowest, largest = 0, (0.0, ""), (0.0, "")
    assert len({case.name for case in cases}) == len(cases)
    for i, case in enumerate(cases):
        path = folder / f"hostile-{i}.gguf"
        case.make(path)
        code, err, seconds, mb = run(path, folder)
        if path.is_file() and not path.is_symlink():
            path.unlink()  # one at a time: some are large
        slowest, largest = max(slowest, (seconds, case.name)), max(largest, (mb, case.name))
        problem = wrong(case, path.name, code, err, seconds, mb)
        if problem:
            failed += 1
            print(f"FAILED: {case.name}: {problem}: {err!r}", flush=True)
        elif "--list" in sys.argv:
            print(f"{case.name}: {err.strip()}")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"slowest: {slowest[0]:.3f} s ({slowest[1]}); largest: {largest[0]:.1f} MB ({largest[1]})")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
