"""Takes a GGUF file apart and puts it together again, with something wrong in it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
U32, STRING, ARRAY = 4, 8, 9
ALIGNMENT = 32


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


@dataclass
class Tensor:
    dims: list[int]  # innermost first, as the file has them
    type: int
    data: bytes


@dataclass
class Gguf:
    """`keys` maps a key to (type, bytes of the value as the file has them)."""

    version: int = 3
    keys: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def set_string(self, key: str, value: str) -> None:
        self.keys[key] = (STRING, string(value))

    def set_u32(self, key: str, value: int) -> None:
        self.keys[key] = (U32, struct.pack("<I", value))

    def to_bytes(self) -> bytes:
        out = bytearray(b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys)))
        for key, (kind, raw) in self.keys.items():
            out += string(key) + struct.pack("<I", kind) + raw
        data = bytearray()
        for name, tensor in self.tensors.items():
            data += b"\0" * (-len(data) % ALIGNMENT)
            out += string(name) + struct.pack("<I", len(tensor.dims))
            out += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
            out += struct.pack("<IQ", tensor.type, len(data))
            data += tensor.data
        out += b"\0" * (-len(out) % ALIGNMENT)
        return bytes(out + data + b"\0" * (-len(data) % ALIGNMENT))


class _Reader:
    def __init__(self, raw: bytes):
        self.raw, self.at = raw, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.raw[self.at - size:self.at]

    def number(self, form: str) -> int:
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> bytes:
        start = self.at
        if kind == STRING:
            self.take(self.number("Q"))
        elif kind == ARRAY:
            item, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.value(item)
        else:
            self.take(_SIZES[kind])
        return self.raw[start:self.at]


def read(path: Path) -> Gguf:
    r = _Reader(path.read_bytes())
    if r.take(4) != b"GGUF":
        raise ValueError(f"{path} is no GGUF file")
    out = Gguf(version=r.number("I"))
    n_tensors, n_keys = r.number("Q"), r.number("Q")
    for _ in range(n_keys):
        key, kind = r.text(), r.number("I")
        out.keys[key] = (kind, r.value(kind))
    places = []
    for _ in range(n_tensors):
        name, rank = r.text(), r.number("I")
        dims = [r.number("Q") for _ in range(rank)]
        places.append((name, dims, r.number("I"), r.number("Q")))
    base = r.at + (-r.at % ALIGNMENT)
    ends = sorted(offset for *_, offset in places)[1:] + [len(r.raw) - base]
    for (name, dims, kind, offset), end in zip(sorted(places, key=lambda p: p[3]), ends):
        out.tensors[name] = Tensor(dims, kind, r.raw[base + offset:base + end])
    return out
