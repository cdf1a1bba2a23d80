"""100,000 varied texts for each of five real tokenizers: our tokens, and the text that they become
again, are those of Hugging Face `tokenizers`.

70,000 random strings and 30,000 pieces of English prose, Korean and code; half of them with the
spellings of control tokens looked for. CUTAWAY_BINARY names the program: the test beside it compares.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.packages import peers_home  # noqa: E402

NAMES = ["qwen3", "llama-3.1", "gemma-3", "deepseek-v3", "gpt-oss"]


def compare(name: str) -> bool:
    # Of this process alone: a second comparison beside it has its own.
    folder = peers_home() / "oracle" / f"tok-100k-{os.getpid()}"
    try:
        return compare_in(folder, name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # hundreds of megabytes


def compare_in(folder: Path, name: str) -> bool:
    home = peers_home().parent
    made = subprocess.run([sys.executable, ROOT / "tools" / "make_oracle.py", "tokenizers", "--only",
                           name, "--folder", folder.name, "--random", "70000", "--corpus", "30000",
                           "-m", home / "models" / "smollm2-135m.gguf"])
    if made.returncode != 0:
        return False
    test = Path(os.environ["CUTAWAY_BINARY"]).resolve().parent / "tests" / "tokenizer_oracle_test"
    case = re.sub(r"\W", "_", name)
    ran = subprocess.run(
        [test, f"--gtest_filter=*SameTokensOnEveryCase/{case}"],
        env=dict(os.environ, CUTAWAY_TOKENIZER_ORACLE=str(folder)), capture_output=True, text=True)
    print(ran.stdout[-3000:])
    # A case that was skipped, or not there, has no line of its own.
    return ran.returncode == 0 and f"{name}: " in ran.stdout


def main() -> int:
    names = sys.argv[1:] or NAMES
    results = [compare(name) for name in names]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
