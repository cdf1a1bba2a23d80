"""HF `tokenizers` objects built from a GGUF's vocabulary, with the published pre-tokenizers."""

from __future__ import annotations

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from oracles.gguf_model import metadata

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

# The regular expressions of the published tokenizer.json files.
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
QWEN2 = CONTRACTIONS + WORDS + r"|\p{N}" + TAIL
LLAMA3 = CONTRACTIONS + WORDS + r"|\p{N}{1,3}" + TAIL


def pre_tokenizer(pre: str):
    """The pre-tokenizer that `tokenizer.ggml.pre` stands for."""
    byte_level = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    if pre in ("gpt-2", "default"):
        return byte_level(True)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level(True)])
    if pre in ("qwen2", "llama-bpe"):
        pattern = Regex(QWEN2 if pre == "qwen2" else LLAMA3)
        split = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
        return pre_tokenizers.Sequence([split, byte_level(False)])
    raise ValueError(f"tokenizer.ggml.pre is {pre!r}; known: smollm, gpt-2, qwen2, llama-bpe")


def from_gguf(reader: gguf.GGUFReader) -> Tokenizer:
    """The tokenizer of a byte-level BPE GGUF. No BOS is ever added."""
    kind = metadata(reader, "tokenizer.ggml.model")
    if kind != "gpt2":
        raise ValueError(f"tokenizer.ggml.model is {kind!r}; only 'gpt2' (byte-level BPE) is known")
    tokens = metadata(reader, "tokenizer.ggml.tokens")
    types = metadata(reader, "tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in metadata(reader, "tokenizer.ggml.merges")]
    pre = metadata(reader, "tokenizer.ggml.pre")
    model = BPE(
        vocab={t: i for i, t in enumerate(tokens)},
        merges=merges,
        ignore_merges=pre == "llama-bpe",  # as Llama 3's tokenizer.json: a whole piece that is
    )                                      # a token is taken without merging
    tokenizer = Tokenizer(model)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    # One call a token, in order of id: a batch would hand out ids of its own to unknown ones.
    for token, kind in zip(tokens, types):
        if kind in (CONTROL, USER_DEFINED):
            added = AddedToken(token, normalized=False, special=kind == CONTROL)
            (tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens)([added])
    if tokenizer.get_vocab_size() != len(tokens):
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens, the file lists {len(tokens)}")
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids
