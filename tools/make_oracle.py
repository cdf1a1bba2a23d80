#!/usr/bin/env python3
"""Makes the oracles that the product's answers are compared with.

Run it with the interpreter of tools/peers.sh's `torch` environment:
  make_oracle.py greedy      -m F   tests/golden/oracle_greedy.json: ten prompts × 64 tokens
  make_oracle.py teacher     -m F   $CUTAWAY_HOME/peers/oracle/: ~20,000 teacher-forced tokens,
                                    in f32 and by llama.cpp (environment `llama_cpp`)
  make_oracle.py tokenizers  -m F   $CUTAWAY_HOME/peers/oracle/tok/: vocabularies and cases
-m is the default model's GGUF. check_teacher.py takes the teacher's text to other files of the same
vocabulary by itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["greedy", "teacher", "tokenizers"])
    parser.add_argument("-m", "--model", required=True, help="the default model's GGUF")
    parser.add_argument("--only", help="tokenizers: names, separated by commas")
    parser.add_argument("--folder", default="tok", help="tokenizers: where under the oracle's folder")
    parser.add_argument("--random", type=int, default=10_000, help="tokenizers: random texts each")
    parser.add_argument("--corpus", type=int, default=0, help="tokenizers: pieces of real texts each")
    args = parser.parse_args()
    model = Path(args.model)
    if not model.is_file():
        parser.error(f"--model {args.model}: no such file")
    if args.what == "greedy":
        from oracles import greedy

        greedy.make(model, ROOT / "tests" / "golden" / "oracle_greedy.json")
    elif args.what == "teacher":
        from oracles import teacher

        teacher.make(model, ROOT / "bench" / "peers" / "llama_cpp_worker.py")
    else:
        from oracles import tok_oracle

        tok_oracle.make(model, args.only.split(",") if args.only else None, args.folder, args.random,
                        args.corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
