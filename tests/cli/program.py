"""Runs the program under test, with hostile surroundings where a test asks for them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import resource
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _PR_CAPBSET_DROP = 1, 2, 24
TIMEOUT = 120


def binary() -> str:
    return os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "dev" / "cutaway"))


def installed_model() -> Path | None:
    """The real model, where the user's own home has it."""
    home = Path(os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway")
    path = home / "models" / "smollm2-135m.gguf"
    return path if path.is_file() else None


@dataclass
class Result:
    code: int  # as a shell shows it: 128 + signal when one ended the program
    out: bytes
    err: str


def environment(home: Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "CUTAWAY_HOME": str(home / "home"),
           "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    if "TMPDIR" in os.environ:
        env["TMPDIR"] = os.environ["TMPDIR"]
    env.update(extra or {})
    return env


def drop_file_privileges() -> None:
    """Root may read everything: without these two capabilities permissions hold for it as well."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def _reset_sigpipe() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def run(args: list[str], folder: Path, *, stdin: bytes = b"", env: dict[str, str] | None = None,
        stdout=subprocess.PIPE, before=None, wrapper: list[str] | None = None) -> Result:
    def prepare() -> None:
        _reset_sigpipe()
        if before:
            before()

    done = subprocess.run([*(wrapper or []), binary(), *args], cwd=folder, input=stdin,
                          stdout=stdout, stderr=subprocess.PIPE, env=environment(folder, env),
                          preexec_fn=prepare, timeout=TIMEOUT, check=False)
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Result(code, done.stdout or b"", done.stderr.decode(errors="replace"))


def run_closed_pipe(args: list[str], folder: Path, read_first: int = 0) -> Result:
    """Stdout is a pipe that closes after `read_first` bytes (0: before anything is written)."""
    reader, writer = os.pipe()
    if read_first == 0:
        os.close(reader)
    process = subprocess.Popen([binary(), *args], cwd=folder, stdin=subprocess.DEVNULL,
                               stdout=writer, stderr=subprocess.PIPE, env=environment(folder),
                               preexec_fn=_reset_sigpipe)
    os.close(writer)
    got = b""
    if read_first > 0:
        while len(got) < read_first:
            part = os.read(reader, read_first - len(got))
            if not part:
                break
            got += part
        os.close(reader)
    err = process.communicate(timeout=TIMEOUT)[1]
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Result(code, got, err.decode(errors="replace"))


class Terminal:
    """The program on a terminal of its own: stdin, stdout and stderr are one screen."""

    def __init__(self, args: list[str], folder: Path, env: dict[str, str] | None = None, columns: int = 0):
        self.text = ""
        self._read_until = 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if columns:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.chdir(folder)
            os.execve(binary(), [binary(), *args], environment(folder, env))

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Until `text` appears after what the last call found."""
        end = time.monotonic() + seconds
        while text not in self.text[self._read_until:]:
            if time.monotonic() > end or not self._read(end):
                raise AssertionError(f"{text!r} never came; the screen has {self.text!r}")
        self._read_until = self.text.index(text, self._read_until) + len(text)

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
        try:
            part = os.read(self.fd, 65536) if ready else b""
        except OSError:  # how Linux says that the other end is gone
            part = b""
        self.text += part.decode(errors="replace")
        return bool(part)

    def finish(self, seconds: float = 60) -> int:
        """The exit status, once the program ends by itself."""
        end = time.monotonic() + seconds
        while self._read(end):
            pass
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"the program did not end; the screen has {self.text!r}")


def fake_python(folder: Path, script: str) -> dict[str, str]:
    """A PATH on which `python3` is this shell script."""
    place = folder / "fake-path"
    place.mkdir(exist_ok=True)
    program = place / "python3"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    for tool in ("cp", "sleep", "cat"):
        if not (place / tool).exists():
            (place / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    return {"PATH": str(place)}
