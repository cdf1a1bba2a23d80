"""The keys of a GGUF file. The `gguf` package makes arrays of every string: 15 s for Gemma 4's
vocabulary, which is read here in a third of a second.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

_STRING, _ARRAY = 8, 9
# value type -> its format for `struct`
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _Reader:
    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        begin = self.at + 8
        self.at = begin + int.from_bytes(self.data[self.at : begin], "little")
        return self.data[begin : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        kind, count = self.number("I"), self.number("Q")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(count)]
        form = f"<{count}{_NUMBERS[kind]}"
        values = list(struct.unpack_from(form, self.data, self.at))
        self.at += struct.calcsize(form)
        return values


def gguf_keys(path: Path | str) -> dict[str, Any]:
    """Every metadata key and its value. Raises ValueError for a file that is no GGUF."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise ValueError(f"{path}: no GGUF")
        reader = _Reader(data)
        reader.at = 16  # after the magic, the version and how many tensors there are
        out = {}
        for _ in range(reader.number("Q")):
            key = reader.string()
            out[key] = reader.value(reader.number("I"))
        return out
