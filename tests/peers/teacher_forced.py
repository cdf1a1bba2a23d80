"""Top-1 agreement and perplexity over 20,480 teacher-forced tokens, beside llama.cpp's.

CUTAWAY_BINARY names the binary; the default model is installed (`cutaway pull smollm2-135m`).
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.packages import peers_home  # noqa: E402

NAME = "smollm2-135m"
binary = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
model = peers_home().parent / "models" / f"{NAME}.gguf"
if not model.is_file():
    sys.exit(f"{model} is missing: cutaway pull {NAME}")

# The oracle belongs to one model file and takes minutes: made once for it.
notes = peers_home() / "oracle" / "teacher.json"
digest = hashlib.sha256(model.read_bytes()).hexdigest()
if not notes.is_file() or json.loads(notes.read_text())["model_sha256"] != digest:
    maker = ROOT / "tools" / "make_oracle.py"
    subprocess.run([sys.executable, maker, "teacher", "-m", model], check=True)

check = ROOT / "tools" / "check_teacher.py"
sys.exit(subprocess.run([sys.executable, check, "--bin", binary, "-m", model]).returncode)
