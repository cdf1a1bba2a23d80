"""HF `tokenizers` objects built from a GGUF's vocabulary, with the published pre-tokenizers."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece

from oracles import published_pre

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

# Pre-tokenizers whose tokenizer.json has NFC in front; GGUF does not say it.
NFC = ("qwen2", "qwen35", "command-r", "mpt")


def pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer that `tokenizer.ggml.pre` stands for; without that key GPT-2's."""
    if pre in ("", "default"):
        return published_pre.gpt2_steps()
    return published_pre.pre_tokenizer(pre)


def from_gguf(keys: dict) -> Tokenizer:
    """The tokenizer of a GGUF's keys. No BOS is ever added."""
    kinds = {"gpt2": byte_level_bpe, "llama": sentencepiece_bpe, "gemma4": character_bpe,
             "bert": word_piece}
    kind = keys["tokenizer.ggml.model"]
    if kind not in kinds:
        raise ValueError(f"tokenizer.ggml.model is {kind!r}; known are {', '.join(kinds)}")
    tokens = keys["tokenizer.ggml.tokens"]
    tokenizer = kinds[kind](keys, tokens)
    types = keys["tokenizer.ggml.token_type"]
    # One call a token, in order of id: a batch would hand out ids of its own to unknown ones.
    for token, kind in zip(tokens, types):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            special = kind != USER_DEFINED
            added = AddedToken(token, normalized=False, special=special)
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])
    if tokenizer.get_vocab_size() != len(tokens):
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens, the file lists {len(tokens)}")
    return tokenizer


def byte_level_bpe(keys: dict, tokens: list[str]) -> Tokenizer:
    pre = keys.get("tokenizer.ggml.pre", "")
    model = BPE(
        vocab={t: i for i, t in enumerate(tokens)},
        merges=[tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]],
        # as in Llama 3's tokenizer.json: a whole piece that is a token is taken without merging
        ignore_merges=bool(pre) and published_pre.published()[pre].ignore_merges,
    )
    tokenizer = Tokenizer(model)
    if pre in NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_bpe(keys: dict, tokens: list[str]) -> Tokenizer:
    """As transformers converts a SentencePiece model: the pairs that make a token, by its score."""
    scores = keys["tokenizer.ggml.scores"]
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


def character_bpe(keys: dict, tokens: list[str]) -> Tokenizer:
    """Gemma 4's: merges as they are listed, over characters of SentencePiece's spelling."""
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges,
                              unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def word_piece(keys: dict, tokens: list[str]) -> Tokenizer:
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
