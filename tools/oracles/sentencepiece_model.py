"""A SentencePiece model file from the vocabulary of a GGUF, so that SentencePiece itself can be asked.

Protocol buffers by hand: three messages of a few fields each.
"""

from __future__ import annotations

import struct


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


UNIGRAM, BPE = 1, 2
UNKNOWN = 2


def model_proto(keys: dict) -> bytes:
    """The bytes of a .model file. GGUF took the numbers of the token types from SentencePiece."""
    def key(name: str, default=None):
        return keys.get(f"tokenizer.ggml.{name}", default)

    tokens, scores, types = key("tokens"), key("scores"), key("token_type")
    out = []
    for token, score, kind in zip(tokens, scores, types, strict=True):
        piece = _bytes(1, token.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", score)
        out.append(_bytes(1, piece + _number(3, kind)))
    bpe = key("model") == "llama"
    unknown = tokens[types.index(UNKNOWN)].encode()
    trainer = _number(3, BPE if bpe else UNIGRAM) + _number(35, int(6 in types))
    trainer += _bytes(45, unknown) + _number(40, types.index(UNKNOWN))
    normalizer = _bytes(1, b"gguf") + _bytes(2, bytes(key("precompiled_charsmap", [])))
    normalizer += _number(3, int(key("add_space_prefix", True)))
    normalizer += _number(4, int(key("remove_extra_whitespaces", False))) + _number(5, 1)
    return b"".join(out) + _bytes(2, trainer) + _bytes(3, normalizer)
