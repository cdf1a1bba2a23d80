#!/usr/bin/env python3
"""Writes src/text/tokenizer/unicode_tables.cc: the classes of every code point.

The pre-tokenizers must split text where Hugging Face `tokenizers` splits it, so the classes are
not read from a Unicode database but asked of `tokenizers` itself, one code point after another:
its regex engine's \\p{…} and \\s, its Digits pre-tokenizer, its NFC, and its BERT steps. They follow
Unicode versions of their own. Run it with the interpreter of tools/peers.sh's `torch`
environment, from anywhere; it needs no argument.
"""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, DIGIT, NFC_UNSAFE = 1, 2, 4, 8, 16
PUNCTUATION, SYMBOL, MARK, UPPER, LOWER = 32, 64, 128, 256, 512
BERT_PUNCTUATION, BERT_REMOVED, BERT_SPACE, BERT_ACCENT = 1024, 2048, 4096, 8192
OUT = Path(__file__).resolve().parent.parent / "src/text/tokenizer/unicode_tables.cc"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matching(pattern: str) -> set[int]:
    """The code points that the regex engine matches: "removed" leaves the others."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for start in range(0, len(CODE_POINTS), 4096):
        part = CODE_POINTS[start : start + 4096]
        kept = set()
        for _, (begin, end) in split.pre_tokenize_str("".join(map(chr, part))):
            kept.update(range(begin, end))
        found.update(c for i, c in enumerate(part) if i not in kept)
    return found


def isolated_digits() -> set[int]:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in CODE_POINTS if len(digits.pre_tokenize_str("a" + chr(c))) == 2}


def bert_punctuation() -> set[int]:
    """What BertPreTokenizer makes a word of its own."""
    split = pre_tokenizers.BertPreTokenizer()
    return {c for c in CODE_POINTS if len(split.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def bert_cleaning() -> tuple[set[int], set[int]]:
    """What BertNormalizer leaves out, and what it makes a space (or its pre-tokenizer takes for
    one)."""
    clean = normalizers.BertNormalizer(True, False, False, False).normalize_str
    split = pre_tokenizers.BertPreTokenizer()
    removed = {c for c in CODE_POINTS if clean(chr(c)) == ""}
    spaces = {c for c in CODE_POINTS if c not in removed
              and len(split.pre_tokenize_str("a" + clean(chr(c)) + "a")) == 2}
    return removed, spaces


def bert_accents() -> set[int]:
    strip = normalizers.BertNormalizer(False, False, True, False).normalize_str
    return {c for c in CODE_POINTS if strip(chr(c)) == ""}


def nfc_unsafe() -> set[int]:
    """What can change under NFC together with what stands before it, or by itself.

    Everything else begins a piece that can be normalised on its own (UAX 15: quick check Yes and
    combining class 0)."""
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    unsafe = {0x345}  # the one mark of class 240, so that it cannot be found by the next test
    for c in CODE_POINTS:
        text = chr(c)
        decomposed = nfd(text)
        if nfd("x\u0345" + text) != "x\u0345" + decomposed:  # a mark: it moves in front
            unsafe.add(c)
        if nfc(text) != text:
            unsafe.add(c)
        elif decomposed != text:  # a composition: its later parts join what precedes
            unsafe.update(ord(part) for part in decomposed[1:])
    return unsafe


def main() -> None:
    flags = [0] * 0x110000
    removed, spaces = bert_cleaning()
    classes = [
        (LETTER, matching(r"\p{L}")),
        (NUMBER, matching(r"\p{N}")),
        (SPACE, matching(r"\s")),
        (DIGIT, isolated_digits()),
        (NFC_UNSAFE, nfc_unsafe()),
        (PUNCTUATION, matching(r"\p{P}")),
        (SYMBOL, matching(r"\p{S}")),
        (MARK, matching(r"\p{M}")),
        (UPPER, matching(r"[\p{Lu}\p{Lt}]")),
        (LOWER, matching(r"\p{Ll}")),
        (BERT_PUNCTUATION, bert_punctuation()),
        (BERT_REMOVED, removed),
        (BERT_SPACE, spaces),
        (BERT_ACCENT, bert_accents()),
    ]
    for flag, members in classes:
        for c in members:
            flags[c] |= flag
    ranges, begin = [], 0
    for c in range(1, 0x110001):
        if c == 0x110000 or flags[c] != flags[begin]:
            if flags[begin]:
                ranges.append(f"{{0x{begin:X}, 0x{c - 1:X}, {flags[begin]}}},")
            begin = c
    lines, line = [], " "
    for item in ranges:
        if len(line) + 1 + len(item) > 100:
            lines.append(line)
            line = " "
        line += " " + item
    lines.append(line)
    body = "\n".join(lines)
    OUT.write_text(
        f"""// Made by tools/make_unicode_tables.py from tokenizers {tokenizers.__version__}: do not edit.
// clang-format off
#include "text/tokenizer/unicode.h"

namespace cutaway::text {{

const UnicodeRange kUnicodeRanges[] = {{
{body}
}};
const size_t kUnicodeRangeCount = sizeof(kUnicodeRanges) / sizeof(kUnicodeRanges[0]);

}}  // namespace cutaway::text
"""
    )
    print(f"{len(ranges)} ranges, " + ", ".join(f"{f}: {len(m)}" for f, m in classes))


if __name__ == "__main__":
    main()
