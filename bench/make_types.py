#!/usr/bin/env python3
"""The default model in other types, by llama.cpp's own quantiser: one set of weights, many files.

  make_types.py [-m F.gguf] [--types F16,Q8_0,Q4_0] [--out FOLDER] [--force]

Makes $CUTAWAY_HOME/peers/types/NAME-TYPE.gguf, each from the F16 one (which holds the dequantised
weights of the file given), and prints one JSON document of their paths. Files that are there stay.
What comes of it: each type can be compared in speed and in perplexity with llama.cpp on the same
file. The weights have gone through the first file's type already, so a type's own loss against the
original model is not what these files show.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The embedding is the head too (tied); what llama.cpp gives a head by itself would be another type
# than the file is named after.
TYPES = {"F16": None, "Q8_0": None, "Q4_0": "Q8_0", "Q4_1": "Q8_0", "Q5_0": "Q8_0", "Q5_1": "Q8_0",
         "IQ4_NL": "Q8_0", "Q4_K_M": None}


def home() -> Path:
    return Path(os.environ.get("CUTAWAY_HOME") or Path.home() / ".cache" / "cutaway")


def quantize(peer: Path, source: Path, type_name: str, out: Path) -> None:
    """Writes beside `out` first: a file that is there is whole."""
    partial = out.with_suffix(".partial")
    command = [peer, HERE / "peers" / "llama_cpp_worker.py", "quantize", "-m", source, "--type",
               type_name, "--out", partial]
    if TYPES[type_name]:
        command += ["--embedding-type", TYPES[type_name]]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise SystemExit(f"{type_name}: {(done.stderr or done.stdout).strip()[-400:]}")
    partial.rename(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=home() / "models" / "smollm2-135m.gguf")
    parser.add_argument("--types", type=lambda t: t.split(","), default=["F16", "Q8_0", "Q4_0"])
    parser.add_argument("--out", type=Path, default=home() / "peers" / "types")
    parser.add_argument("--peer", type=Path, default=home() / "peers" / "llama_cpp" / "bin" / "python")
    parser.add_argument("--force", action="store_true", help="make files anew that are there")
    args = parser.parse_args()
    for name in args.types:
        if name not in TYPES:
            parser.error(f"--types {name}: expected some of {', '.join(TYPES)}")
    if not args.model.is_file():
        parser.error(f"--model {args.model}: no such file (cutaway pull smollm2-135m)")
    if not args.peer.exists():
        parser.error(f"--peer {args.peer}: missing (tools/peers.sh llama_cpp makes it)")
    args.out.mkdir(parents=True, exist_ok=True)
    path = lambda name: args.out / f"{args.model.stem}-{name.lower()}.gguf"
    made = {}
    for name in ["F16", *[n for n in args.types if n != "F16"]]:
        if args.force or not path(name).is_file():
            print(f"making {path(name).name}", file=sys.stderr)
            quantize(args.peer, args.model if name == "F16" else path("F16"), name, path(name))
        made[name] = str(path(name))
    print(json.dumps({"files": made}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
