"""The committed goldens are what the reference computes today."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_golden.py"
sys.exit(subprocess.run([sys.executable, TOOL, "--check"]).returncode)
