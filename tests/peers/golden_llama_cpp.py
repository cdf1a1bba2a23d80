"""The committed goldens are also what llama.cpp computes: two engines that share no code."""

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
from oracles.packages import peers_home  # noqa: E402

peer = peers_home() / "llama_cpp" / "bin" / "python"
sys.exit(subprocess.run([sys.executable, TOOLS / "make_golden.py", "--peer", peer]).returncode)
