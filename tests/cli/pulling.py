"""What the tests of `cutaway pull` share: a home, a local hub, and what a pull must leave behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import program
from hub_server import Hub
from program import GOLDEN

FOLDER = Path(tempfile.mkdtemp(prefix="cutaway-pull-"))
MODELS = FOLDER / "home" / "models"
WHOLE = (GOLDEN / "llama-gqa3-tied.gguf").read_bytes()
OTHER = (GOLDEN / "llama-mqa.gguf").read_bytes()
SHA256 = hashlib.sha256(WHOLE).hexdigest()
SOURCE = "hf:owner/repo:tiny.gguf"
DEAD = "http://127.0.0.1:9"  # nothing listens there


@contextlib.contextmanager
def hub(repo: dict[str, bytes] | None = None, **settings):
    """A hub with one repository, owner/repo; the models of the home are removed afterwards."""
    server = Hub({"owner/repo": {"tiny.gguf": WHOLE} if repo is None else repo})
    for name, value in settings.items():
        setattr(server, name, value)
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(MODELS, ignore_errors=True)


def env_of(server: Hub, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": server.url, **more}


def pull(server: Hub, *args: str, code: int = 0, env: dict[str, str] | None = None, **more) -> program.Result:
    result = program.run(["pull", *args], FOLDER, env=env_of(server, **(env or {})), **more)
    assert result.code == code, f"pull {args}: exit {result.code}, {result.err!r}"
    return result


def refused(server: Hub, *args: str, names: tuple[str, ...], code: int = 1, kept: bool = False, **more) -> str:
    """A pull that fails, says why, installs nothing and leaves no part behind (unless `kept`)."""
    result = pull(server, *args, code=code, **more)
    for part in names:
        assert part in result.err, f"{part!r} is not in {result.err!r}"
    assert result.out == b"", result.out
    left = sorted(p.name for p in MODELS.iterdir() if p.name != ".pull.lock") if MODELS.exists() else []
    assert bool(left) == kept and not any(n.endswith(".gguf") for n in left), left
    return result.err


def installed(name: str = "tiny", content: bytes = WHOLE) -> dict:
    assert (MODELS / f"{name}.gguf").read_bytes() == content
    left = [p.name for p in MODELS.iterdir() if p.name.startswith((".resume", ".partial"))]
    assert not left, left
    return next(m for m in listed()["models"] if m["name"] == name)


def listed() -> dict:
    return json.loads(program.run(["list", "--json"], FOLDER).out)
