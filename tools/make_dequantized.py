#!/usr/bin/env python3
"""Writes tests/golden/dequantize/types.safetensors: blocks of every stored type, and the values that
PyPI `gguf` reads from them.

Run it with the interpreter of tools/peers.sh's `torch` environment. --check compares instead of
writing. Exit status: 0 done or equal, 1 different.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "dequantize" / "types.safetensors"
SEED = 20250101

# Type -> where its 16-bit scales lie in a block.
SCALES = {
    "F16": [0], "BF16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
    "IQ4_XS": [0], "MXFP4": [],
}
# Halves: zeros, least and largest subnormal, least and largest normal, infinities, NaN.
EDGES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0xFE00]
# E8M0: subnormal halves (0, 1), the first normal one, 1, the last, and NaN, which ggml reads as 2^128.
EDGES_E8M0 = [0, 1, 2, 3, 127, 128, 252, 253, 254, 255]


def blocks_of(name: str, rng: np.random.Generator) -> np.ndarray:
    """uint8 [blocks, bytes of a block]: random bytes under random and extreme scales."""
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = {1: 512, 32: 48, 256: 20}[elements]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name in ("F16", "BF16"):
        blocks[:len(EDGES)] = np.array(EDGES, dtype="<u2")[:, None].view(np.uint8)
        return blocks
    for at in SCALES[name]:
        scales = rng.normal(0, 0.1, count).astype("<f2").view("<u2")
        scales[:len(EDGES)] = rng.permutation(EDGES) if at else EDGES
        blocks[:, at:at + 2] = scales[:, None].view(np.uint8)
    if name == "MXFP4":
        blocks[:len(EDGES_E8M0), 0] = EDGES_E8M0
    return blocks


def make() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    out = {}
    with np.errstate(all="ignore"):
        for name in SCALES:
            blocks = blocks_of(name, rng)
            kind = gguf.GGMLQuantizationType[name]
            out[f"{name}.blocks"] = blocks
            out[f"{name}.values"] = gguf.quants.dequantize(blocks, kind).astype(np.float32)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    args = parser.parse_args()
    tensors = make()
    if not args.check:
        GOLDEN.parent.mkdir(exist_ok=True)
        save_file(tensors, GOLDEN)
        print(f"{GOLDEN.name}: {len(SCALES)} types, {GOLDEN.stat().st_size} bytes")
        return 0
    stored = load_file(GOLDEN)
    wrong = sorted(stored.keys() ^ tensors.keys())
    wrong += [k for k in stored if k in tensors and stored[k].tobytes() != tensors[k].tobytes()]
    print("\n".join(f"{name} differs" for name in wrong) or "equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
