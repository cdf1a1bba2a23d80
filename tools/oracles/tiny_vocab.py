"""A small real byte-level BPE vocabulary for the tiny models: 256 bytes, merges, control tokens."""

from __future__ import annotations

from dataclasses import dataclass

NORMAL, CONTROL, UNUSED = 1, 3, 5  # GGUF tokenizer.ggml.token_type

# Pairs of already known tokens, in rank order; several levels deep, so that order matters.
# "Ġ" stands for the space byte. The last rows build the Hangul syllable U+C548 and the emoji
# prefix F0 9F 98 from their bytes.
MERGES = """Ġ t|h e|i n|Ġ a|r e|o n|Ġt he|e r|Ġ s|a t|in g|Ġ w|Ġ 2|o r|Ġa n|l l|Ġ =|e s
Ġan d|Ċ Ċ|Ġ Ġ|ĠĠ ĠĠ|he ll|hell o|ì ķ|ìķ Ī|ð Ł|ðŁ ĺ"""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable character of each byte, in GPT-2's order: printable bytes first."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]


@dataclass
class TinyVocab:
    """Tokens by id with their types, merges by rank, and the ids of the control tokens."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str
    endoftext: int
    im_end: int


def tiny_vocab(pre: str, controls_first: bool, size: int | None = None) -> TinyVocab:
    """The vocabulary, padded by unused tokens up to `size`."""
    merges = [m for line in MERGES.splitlines() for m in line.split("|")]
    words = byte_alphabet()
    for merge in merges:
        left, right = merge.split(" ")
        if left not in words or right not in words or left + right in words:
            raise ValueError(f"merge {merge!r} is not of two known tokens, or repeats a token")
        words.append(left + right)
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = controls + words if controls_first else words + controls
    types = [CONTROL if t in controls else NORMAL for t in tokens]
    for i in range(len(tokens), size or len(tokens)):
        tokens.append(f"[PAD{i}]")
        types.append(UNUSED)
    return TinyVocab(
        tokens, types, merges, pre, tokens.index("<|endoftext|>"), tokens.index("<|im_end|>")
    )
