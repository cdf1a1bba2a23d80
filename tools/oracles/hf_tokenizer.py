"""HF `tokenizers` objects built from a GGUF's vocabulary, with the published pre-tokenizers."""

from __future__ import annotations

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece

from oracles.gguf_model import metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

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
    """The tokenizer of a GGUF. No BOS is ever added."""
    kinds = {"gpt2": byte_level_bpe, "llama": sentencepiece_bpe, "bert": word_piece}
    kind = metadata(reader, "tokenizer.ggml.model")
    if kind not in kinds:
        raise ValueError(f"tokenizer.ggml.model is {kind!r}; known are {', '.join(kinds)}")
    tokens = metadata(reader, "tokenizer.ggml.tokens")
    tokenizer = kinds[kind](reader, tokens)
    types = metadata(reader, "tokenizer.ggml.token_type")
    # One call a token, in order of id: a batch would hand out ids of its own to unknown ones.
    for token, kind in zip(tokens, types):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            special = kind != USER_DEFINED
            added = AddedToken(token, normalized=False, special=special)
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])
    if tokenizer.get_vocab_size() != len(tokens):
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens, the file lists {len(tokens)}")
    return tokenizer


def byte_level_bpe(reader: gguf.GGUFReader, tokens: list[str]) -> Tokenizer:
    pre = metadata(reader, "tokenizer.ggml.pre")
    model = BPE(
        vocab={t: i for i, t in enumerate(tokens)},
        merges=[tuple(m.split(" ")) for m in metadata(reader, "tokenizer.ggml.merges")],
        ignore_merges=pre == "llama-bpe",  # as Llama 3's tokenizer.json: a whole piece that is
    )                                      # a token is taken without merging
    tokenizer = Tokenizer(model)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_bpe(reader: gguf.GGUFReader, tokens: list[str]) -> Tokenizer:
    """As transformers converts a SentencePiece model: the pairs that make a token, by its score."""
    scores = metadata(reader, "tokenizer.ggml.scores")
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for i in sorted(range(len(tokens)), key=lambda i: -scores[i]):
        cuts = [(tokens[i][:k], tokens[i][k:]) for k in range(1, len(tokens[i]))]
        merges += sorted((c for c in cuts if c[0] in vocab and c[1] in vocab),
                         key=lambda c: (vocab[c[0]], vocab[c[1]]))
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True,
                              byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    return tokenizer


def word_piece(reader: gguf.GGUFReader, tokens: list[str]) -> Tokenizer:
    """BERT's. GGUF marks the tokens that begin a word, BERT's own files those that do not."""
    def own(token: str) -> str:
        if token.startswith("[") and token.endswith("]") and len(token) > 1:
            return token
        return token[1:] if token.startswith("\u2581") else "##" + token

    vocab = {own(t): i for i, t in enumerate(tokens)}
    tokenizer = Tokenizer(WordPiece(vocab=vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(True, True, None, True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##", cleanup=False)
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids
