"""Handmade files that no reader may trust: each a name, what makes it, and words of its refusal."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import gguf_edit
from gguf_edit import ARRAY, STRING, string
from program import GOLDEN

BASE = "llama-gqa3-tied.gguf"
U8, I32, F32, BOOL, U64 = 0, 5, 6, 7, 10
HUGE = 2**63
ALL_ONES = 2**64 - 1


@dataclass
class Case:
    name: str
    words: str  # that the message must have
    make: Callable[[Path], None]  # writes what is at this path


def _bytes(name: str, words: str, data: bytes) -> Case:
    return Case(name, words, lambda path: path.write_bytes(data))


def _edit(name: str, words: str, edit: Callable[[gguf_edit.Gguf], None], base: str = BASE) -> Case:
    def make(path: Path) -> None:
        model = gguf_edit.read(GOLDEN / base)
        edit(model)
        path.write_bytes(model.to_bytes())
    return Case(name, words, make)


def _u32(key: str, value: int):
    return lambda m: m.set_u32(key, value)


def _f32(key: str, value: float):
    return lambda m: m.keys.__setitem__(key, (F32, struct.pack("<f", value)))


def _raw(key: str, kind: int, raw: bytes):
    return lambda m: m.keys.__setitem__(key, (kind, raw))


def _array(kind: int, count: int, raw: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + raw


def _strings(items: list[bytes]) -> bytes:
    return _array(STRING, len(items), b"".join(struct.pack("<Q", len(i)) + i for i in items))


def _without(*keys: str):
    def edit(m: gguf_edit.Gguf) -> None:
        for key in keys:
            del m.keys[key]
    return edit


def _tensor(name: str, change: Callable[[gguf_edit.Tensor], None]):
    return lambda m: change(m.tensors[name])


def _set(**fields):
    def change(tensor: gguf_edit.Tensor) -> None:
        for key, value in fields.items():
            setattr(tensor, key, value)
    return change


def _poke(at: int, raw: bytes):
    def change(tensor: gguf_edit.Tensor) -> None:
        tensor.data = tensor.data[:at] + raw + tensor.data[at + len(raw):]
    return change


def _places() -> dict[str, int]:
    """Where the parts of the base's header begin, one place of each kind."""
    raw = (GOLDEN / BASE).read_bytes()
    model = gguf_edit.read(GOLDEN / BASE)
    key = next(iter(model.keys))
    tokens = raw.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens")
    tensor = next(iter(sorted(model.tensors, key=lambda n: raw.index(string(n)))))
    entry = raw.index(string(tensor))
    rank = len(model.tensors[tensor].dims)
    after = entry + 8 + len(tensor)
    return {"in the magic": 2, "after the magic": 4, "in the version": 6, "after the version": 8,
            "after the tensor count": 16, "after the header": 24, "in a key's length": 28,
            "in a key": 33, "after a key": 32 + len(key), "after a value's type": 36 + len(key),
            "after an array's type": tokens + 8, "after an array's length": tokens + 16,
            "in the vocabulary": tokens + 400, "before the tensors": entry, "in a tensor's name": after - 2,
            "after a tensor's name": after, "after a rank": after + 4, "in the dimensions": after + 9,
            "after the dimensions": after + 4 + 8 * rank, "after a type": after + 8 + 8 * rank,
            "after an offset": after + 16 + 8 * rank, "in the data": len(raw) // 2, "near the end": len(raw) - 200}


def _patched(at: int, raw: bytes) -> bytes:
    whole = (GOLDEN / BASE).read_bytes()
    return whole[:at] + raw + whole[at + len(raw):]


def truncations() -> list[Case]:
    whole = (GOLDEN / BASE).read_bytes()
    return [_bytes(f"cut {where}", "cut short" if at < 4 else ": byte ", whole[:at])
            for where, at in _places().items()]


def counts() -> list[Case]:
    p = _places()
    u64 = lambda n: struct.pack("<Q", n)  # noqa: E731
    n_tensors, n_keys = struct.unpack_from("<QQ", (GOLDEN / BASE).read_bytes(), 8)
    array = p["after an array's type"]
    rank = p["after a tensor's name"]
    cases = [("tensor count 2^63", "tensor count", 8, u64(HUGE)), ("tensor count 2^64-1", "tensor count", 8, u64(ALL_ONES)),
             ("one tensor more", "", 8, u64(n_tensors + 1)), ("no tensors", "tensor", 8, u64(0)),
             ("metadata count 2^63", "metadata count", 16, u64(HUGE)),
             ("one pair more", "", 16, u64(n_keys + 1)), ("one pair less", "", 16, u64(n_keys - 1)),
             ("key length 2^63", "metadata key 0", 24, u64(HUGE)), ("key length 0", "metadata key 0 is empty", 24, u64(0)),
             ("key length 65536", "at most 65535", 24, u64(65536)),
             ("array length 2^63", "tokenizer.ggml.tokens", array, u64(HUGE)),
             ("array length 2^64-1", "tokenizer.ggml.tokens", array, u64(ALL_ONES)),
             ("token length 2^63", "element 0", array + 8, u64(HUGE)),
             ("rank 0", "0 dimensions", rank, struct.pack("<I", 0)), ("rank 5", "5 dimensions", rank, struct.pack("<I", 5)),
             ("rank 2^32-1", "dimensions", rank, b"\xff" * 4), ("dimension 0", "dimension 0 of 0", rank + 4, u64(0)),
             ("dimension 2^63", "dimension 0 of 9223372036854775808", rank + 4, u64(HUGE)),
             ("dimension 2^62", "dimension", rank + 4, u64(2**62)),
             ("offset 2^63", "offset", p["after a type"], u64(HUGE)), ("offset 2^64-32", "offset", p["after a type"], u64(2**64 - 32)),
             ("offset 1", "multiple of the alignment", p["after a type"], u64(1))]
    return [_bytes(name, words, _patched(at, raw)) for name, words, at, raw in cases]


def _sparse(name: str, words: str, head: bytes, size: int) -> Case:
    def make(path: Path) -> None:
        path.write_bytes(head)
        os.truncate(path, size)
    return Case(name, words, make)


def _header(n_tensors: int, n_keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys)


def large() -> list[Case]:
    """Sparse files: what they claim is there, as zeros."""
    key = _header(0, 1) + string("k")
    return [
        _sparse("a string of 2^39", "at most", key + struct.pack("<IQ", STRING, 2**39), 2**40),
        _sparse("an array of 2^40 bytes", "at most", key + struct.pack("<I", ARRAY) + _array(U8, 2**39, b""), 2**40),
        _sparse("an array of 2^30 strings", "at most", key + struct.pack("<I", ARRAY) + _array(STRING, 2**30, b""), 2**40),
        _sparse("2^34 tensors", "tensor name 0 is empty", _header(2**34, 0), 2**40),
        _sparse("2^35 pairs", "metadata key 0 is empty", _header(0, 2**35), 2**40),
        _sparse("a terabyte of zeros", "zeros", b"\0", 2**40),
    ]


def structure() -> list[Case]:
    q, up = "blk.0.attn_q.weight", "blk.1.ffn_up.weight"

    def twice(path: Path) -> None:
        data = bytearray((GOLDEN / BASE).read_bytes())
        n = struct.unpack_from("<Q", data, 16)[0]
        struct.pack_into("<Q", data, 16, n + 1)
        pair = string("general.architecture") + struct.pack("<I", STRING) + string("llama")
        path.write_bytes(bytes(data[:24]) + pair + bytes(data[24:]))

    def renamed(old: str, new: bytes):
        raw = (GOLDEN / BASE).read_bytes()
        assert len(new) == len(old)
        return raw.replace(string(old), struct.pack("<Q", len(old)) + new)

    def with_offsets(change: Callable[[list[int]], None]) -> bytes:
        raw = bytearray((GOLDEN / BASE).read_bytes())
        model = gguf_edit.read(GOLDEN / BASE)
        at = [raw.index(string(n)) + 8 + len(n) + 4 + 8 * len(t.dims) + 4 for n, t in model.tensors.items()]
        offsets = [struct.unpack_from("<Q", raw, a)[0] for a in at]
        change(offsets)
        for a, offset in zip(at, offsets):
            struct.pack_into("<Q", raw, a, offset)
        return bytes(raw)

    deep = _array(ARRAY, 1, _array(ARRAY, 1, _array(U8, 1, b"\1")))
    return [
        Case("a key twice", "twice", twice),
        _bytes("a tensor twice", "twice", renamed("blk.0.attn_q.weight", b"blk.1.attn_q.weight")),
        _bytes("a tensor's name in no encoding", "", renamed("blk.0.attn_q.weight", b"blk.0.attn_q\xff\xfe\xfd\x80\x80\x80\x80")),
        _bytes("a key in no encoding", "", renamed("llama.block_count", b"llama\xff\xc0\x80\xfeck_count")),
        _bytes("a key with escapes", "", renamed("llama.block_count", b"llama\x1b[2J\x1b[31m_co")),
        _bytes("tensors that overlap", "overlaps", with_offsets(lambda o: o.__setitem__(1, o[0] + 32))),
        _bytes("tensors at one place", "overlaps", with_offsets(lambda o: o.__setitem__(1, o[0]))),
        _bytes("all tensors at 0", "overlaps", with_offsets(lambda o: o.__setitem__(slice(None), [0] * len(o)))),
        _edit("an array of arrays", "array of arrays", _raw("a.b", ARRAY, _array(ARRAY, 1, _array(U8, 1, b"\1")))),
        _edit("arrays nested thrice", "array of arrays", _raw("a.b", ARRAY, deep)),
        _edit("an array of type 13", "value type 13", _raw("a.b", ARRAY, _array(13, 1, b"\0" * 8))),
        _edit("a value of type 13", "value type 13", _raw("a.b", 13, b"\0" * 8)),
        _edit("a boolean of 2", "boolean 2", _raw("a.b", BOOL, b"\2")),
        _edit("alignment 0", "general.alignment", _u32("general.alignment", 0)),
        _edit("alignment 12", "general.alignment", _u32("general.alignment", 12)),
        _edit("alignment 64 that is none", "alignment 64", _u32("general.alignment", 64)),
        _edit("alignment 2^31", "general.alignment", _u32("general.alignment", 2**31)),
        _edit("alignment as text", "general.alignment", lambda m: m.set_string("general.alignment", "32")),
        _edit("a type of 99", "unknown type 99", _tensor(q, _set(type=99))),
        _edit("a type that was removed", "removed", _tensor(q, _set(type=4))),
        _edit("a weight of integers", "I32", _tensor(q, _set(type=26))),
        _edit("rows of no whole blocks", "needs a multiple of 32", _tensor(q, _set(type=8))),
        _edit("a norm of integers", "I32", _tensor("blk.0.attn_norm.weight", _set(type=26))),
        _edit("a matrix transposed", "expected", _tensor(up, lambda t: t.dims.reverse())),
        _edit("a matrix of one dimension", "expected", _tensor(up, lambda t: t.dims.__setitem__(slice(None), [36 * 48]))),
        _edit("a tensor missing", "blk.1.ffn_up.weight is missing", lambda m: m.tensors.pop(up)),
        _edit("a tensor too many", "does not use", lambda m: m.tensors.__setitem__("blk.0.extra", m.tensors[q])),
        _edit("an embedding of another width", "token_embd.weight",
              _tensor("token_embd.weight", lambda t: t.dims.reverse())),
    ]


def values() -> list[Case]:
    nan, inf = struct.pack("<f", float("nan")), struct.pack("<f", float("-inf"))
    half_nan, half_inf = b"\x01\x7e", b"\x00\x7c"
    down = "blk.1.ffn_down.weight"
    return [
        _edit("NaN in a weight", "not finite", _tensor(down, _poke(400, nan))),
        _edit("infinity in a weight", "not finite", _tensor(down, _poke(0, inf))),
        _edit("NaN in the last weight", "not finite", _tensor(down, lambda t: _poke(4 * t.dims[0] * t.dims[1] - 4, nan)(t))),
        _edit("NaN in the embedding", "not finite", _tensor("token_embd.weight", _poke(4, nan))),
        _edit("NaN in a norm", "not finite", _tensor("blk.0.attn_norm.weight", _poke(8, nan))),
        _edit("NaN as a scale of Q4_0", "not finite", _tensor(down, _poke(0, half_nan)), "llama-q4_0.gguf"),
        _edit("infinity as a minimum of Q4_1", "not finite", _tensor(down, _poke(2, half_inf)), "llama-q4_1.gguf"),
        _edit("NaN as a scale of Q8_0", "not finite", _tensor(down, _poke(34, half_nan)), "llama-q8_0.gguf"),
        _edit("NaN as F16", "not finite", _tensor(down, _poke(20, half_nan)), "llama-f16.gguf"),
        _edit("infinity as BF16", "not finite", _tensor(down, _poke(20, b"\x80\xff")), "llama-bf16.gguf"),
    ]


def parameters() -> list[Case]:
    heads, kv = "llama.attention.head_count", "llama.attention.head_count_kv"
    eps, base = "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"
    return [
        _edit("no architecture", "general.architecture", _without("general.architecture")),
        _edit("an architecture by number", "general.architecture", _u32("general.architecture", 1)),
        _edit("an empty architecture", "general.architecture", lambda m: m.set_string("general.architecture", "")),
        _edit("no layers", "block_count", _u32("llama.block_count", 0)),
        _edit("2^31 layers", "block_count", _u32("llama.block_count", 2**31)),
        _edit("a layer too many", "missing", _u32("llama.block_count", 4)),
        _edit("a layer too few", "does not use", _u32("llama.block_count", 2)),
        _edit("layers as text", "block_count", lambda m: m.set_string("llama.block_count", "3")),
        _edit("-3 layers", "block_count", _raw("llama.block_count", I32, struct.pack("<i", -3))),
        _edit("layers as an array", "block_count", _raw("llama.block_count", ARRAY, _array(4, 1, b"\3\0\0\0"))),
        _edit("no context", "context_length", _u32("llama.context_length", 0)),
        _edit("a context of 2^63", "context_length", _raw("llama.context_length", U64, struct.pack("<Q", HUGE))),
        _edit("no width", "embedding_length", _u32("llama.embedding_length", 0)),
        _edit("a width of 2^32-1", "embedding_length", _u32("llama.embedding_length", 2**32 - 1)),
        _edit("another width", "rotates the whole head", _u32("llama.embedding_length", 48)),
        _edit("heads of 0", "head_count", _u32(heads, 0)), _edit("seven heads", "head_count", _u32(heads, 7)),
        _edit("2^31 heads", "head_count", _u32(heads, 2**31)), _edit("five KV heads", "head_count_kv", _u32(kv, 5)),
        _edit("no KV heads", "head_count_kv", _u32(kv, 0)), _edit("more KV heads than heads", "head_count_kv", _u32(kv, 12)),
        _edit("an MLP of nothing", "feed_forward_length", _u32("llama.feed_forward_length", 0)),
        _edit("an MLP of 2^32-1", "feed_forward_length", _u32("llama.feed_forward_length", 2**32 - 1)),
        _edit("epsilon NaN", eps, _f32(eps, float("nan"))), _edit("epsilon -1", eps, _f32(eps, -1)),
        _edit("epsilon as text", eps, lambda m: m.set_string(eps, "1e-5")),
        _edit("rope base 0", base, _f32(base, 0)), _edit("rope base NaN", base, _f32(base, float("nan"))),
        _edit("rope base -1", base, _f32(base, -1)),
        _edit("rope of 7 dimensions", "rope.dimension_count", _u32("llama.rope.dimension_count", 7)),
        _edit("rope of 2^30 dimensions", "rope.dimension_count", _u32("llama.rope.dimension_count", 2**30)),
        _edit("an unknown rope scaling", "rope.scaling.type", lambda m: m.set_string("llama.rope.scaling.type", "spiral")),
        _edit("a rope factor of 0", "rope.scaling.factor", lambda m: (
            m.set_string("llama.rope.scaling.type", "linear"), _f32("llama.rope.scaling.factor", 0)(m))),
        _edit("a rope factor of infinity", "rope.scaling.factor", lambda m: (
            m.set_string("llama.rope.scaling.type", "linear"), _f32("llama.rope.scaling.factor", float("inf"))(m))),
        _edit("keys of 2^31", "key_length", _u32("llama.attention.key_length", 2**31)),
        _edit("one part of three", "split", lambda m: (
            _raw("split.count", 2, struct.pack("<H", 3))(m), _raw("split.no", 2, b"\0\0")(m))),
        _edit("a split count as text", "split.count", lambda m: m.set_string("split.count", "three")),
        _edit("a part of 65535", "split", _raw("split.count", 2, b"\xff\xff")),
    ]


def vocabulary() -> list[Case]:
    ggml = "tokenizer.ggml."

    def tokens(change: Callable[[list[bytes]], list[bytes]]):
        def edit(m: gguf_edit.Gguf) -> None:
            raw, at, items = m.keys[ggml + "tokens"][1], 12, []
            while at < len(raw):
                n = struct.unpack_from("<Q", raw, at)[0]
                items.append(raw[at + 8:at + 8 + n])
                at += 8 + n
            m.keys[ggml + "tokens"] = (ARRAY, _strings(change(items)))
        return edit

    return [
        _edit("no tokens", "tokens", _without(ggml + "tokens")),
        _edit("tokens of nothing", "tokens", tokens(lambda t: [])),
        _edit("tokens as numbers", "tokens", _raw(ggml + "tokens", ARRAY, _array(4, 2, b"\0" * 8))),
        _edit("one token as text", "tokens", lambda m: m.set_string(ggml + "tokens", "a")),
        _edit("more tokens than rows", "token", tokens(lambda t: t + [b"x%d" % i for i in range(40)])),
        _edit("a token less than types", "token", tokens(lambda t: t[:-1])),
        _edit("all tokens equal", "token", tokens(lambda t: [b"a"] * len(t))),
        _edit("types of another number", "token_type", _raw(ggml + "token_type", ARRAY, _array(I32, 3, b"\1\0\0\0" * 3))),
        _edit("types as text", "token_type", _raw(ggml + "token_type", ARRAY, _strings([b"1"] * 287))),
        _edit("a token type of 99", "token_type", _raw(ggml + "token_type", ARRAY, _array(I32, 287, b"\x63\0\0\0" * 287))),
        _edit("scores of another number", "scores", _raw(ggml + "scores", ARRAY, _array(F32, 3, b"\0" * 12))),
        _edit("a merge of one word", "merge", _raw(ggml + "merges", ARRAY, _strings([b"ab"]))),
        _edit("a merge of no tokens", "merge", _raw(ggml + "merges", ARRAY, _strings([b"\xff\xfe qqqq"]))),
        _edit("merges as numbers", "merges", _raw(ggml + "merges", ARRAY, _array(4, 1, b"\0" * 4))),
        _edit("BOS past the end", "bos_token_id", _u32(ggml + "bos_token_id", 100_000)),
        _edit("EOS of 2^32-1", "eos_token_id", _u32(ggml + "eos_token_id", 2**32 - 1)),
        _edit("EOS as text", "eos_token_id", lambda m: m.set_string(ggml + "eos_token_id", "2")),
        _edit("an unknown tokenizer", "tokenizer.ggml.model", lambda m: m.set_string(ggml + "model", "runes")),
        _edit("a tokenizer by number", "tokenizer.ggml.model", _u32(ggml + "model", 1)),
        _edit("an unknown pre-tokenizer", "tokenizer.ggml.pre", lambda m: m.set_string(ggml + "pre", "no-such")),
        _edit("add BOS as a number", "add_bos_token", _u32(ggml + "add_bos_token", 1)),
        _edit("a template of numbers", "chat_template", _u32("tokenizer.chat_template", 1)),
        _edit("a template that does not parse", "chat_template:1", lambda m: m.set_string("tokenizer.chat_template", "{% if %}")),
        _edit("a template of a megabyte", "bytes", lambda m: m.set_string("tokenizer.chat_template", "x" * 2**20)),
        _edit("a template in no encoding", "UTF-8", _raw("tokenizer.chat_template", STRING, struct.pack("<Q", 2) + b"\xff\xfe")),
    ]


def other_files() -> list[Case]:
    def unreadable(path: Path) -> None:
        path.write_bytes((GOLDEN / BASE).read_bytes())
        path.chmod(0)

    def bound(path: Path) -> None:
        server = socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)
            server.close()

    whole = (GOLDEN / BASE).read_bytes()
    return [
        _bytes("empty", "empty", b""), _bytes("zeros", "zeros", bytes(10_000)),
        _bytes("an LFS pointer", "Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"),
        _bytes("a page", "HTML", b"<!DOCTYPE html><html><body>Log in</body></html>"),
        _bytes("an archive", "ZIP", b"PK\x03\x04" + bytes(100)), _bytes("JSON", "JSON", b'{"error": "gone"}'),
        _bytes("the old format", "GGML", b"lmgg" + bytes(100)), _bytes("the other magic", "unknown kind", b"GGUX" + whole[4:]),
        _bytes("big-endian", "big-endian", b"GGUF" + struct.pack(">I", 3) + whole[8:]),
        _bytes("version 1", "version 1", b"GGUF" + struct.pack("<I", 1) + whole[8:]),
        _bytes("version 4", "version 4", b"GGUF" + struct.pack("<I", 4) + whole[8:]),
        _bytes("version 2^32-1", "version", b"GGUF" + b"\xff" * 4 + whole[8:]),
        _bytes("safetensors", "safetensors", struct.pack("<Q", 2) + b"{}" + bytes(8)),
        _bytes("the file behind a mark", "unknown kind", b"\xef\xbb\xbf" + whole),
        Case("a folder", "folder", lambda path: path.mkdir()),
        Case("a pipe", "not a regular file", lambda path: os.mkfifo(path)),
        Case("a socket", "not a regular file", bound),
        Case("a device", "not a regular file", lambda path: path.symlink_to("/dev/zero")),
        Case("a link to nothing", "no file", lambda path: path.symlink_to("nowhere")),
        Case("a link to itself", "", lambda path: path.symlink_to(path.name)),
        Case("a file that may not be read", "Permission denied", unreadable),
    ]


def cases() -> list[Case]:
    return (truncations() + counts() + large() + structure() + values() + parameters() + vocabulary() + other_files())
