"""Files of `cutaway quantize` beside llama.cpp's own: the same tensors and sizes, smaller errors, and
a perplexity that is no worse.

CUTAWAY_BINARY names the binary; the F16 file is made when it is not there (bench/make_types.py).
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.packages import peers_home  # noqa: E402

binary = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
source = peers_home() / "types" / "smollm2-135m-f16.gguf"
if not source.is_file():
    subprocess.run([sys.executable, ROOT / "bench" / "make_types.py", "--types", "F16"], check=True)
tool = ROOT / "tools" / "check_quantize.py"
sys.exit(subprocess.run([sys.executable, tool, "--bin", binary, "-m", source, "--windows", "8"]).returncode)
