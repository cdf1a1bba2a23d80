"""Pre-tokenizers by the values of `tokenizer.ggml.pre`, made by Hugging Face of published expressions.

The expressions are read out of a source file of llama.cpp, which lists them by those values; where it
also says how the model's own tokenizer.json has one, that is taken. Steps that a tokenizer.json has and
that are no expressions stand here.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from tokenizers import Regex, pre_tokenizers

from oracles.packages import package

_LITERAL = r'"((?:[^"\\]|\\.)*)"'
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True)
class Published:
    """What the source says of one name."""

    kind: str  # names of the same kind share their expressions
    expressions: tuple[str, ...]
    ignore_merges: bool


def _unescaped(literal: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES[m.group(1)], literal)


def _expressions(source: str) -> dict[str, tuple[str, ...]]:
    """By kind. A string in a comment is the original of the next one that is none.

    What such pairs show of one group, the contractions in any case, is put back in all.
    """
    switch = source[source.index("switch (vocab.get_pre_type())") :]
    out: dict[str, tuple[str, ...]] = {}
    kinds: list[str] = []
    found: list[str] = []
    original = None
    group = re.compile(r"\(\?[^)]*\)")  # the first of an expression that begins with one
    originals: dict[str, str] = {}
    for line in map(str.strip, switch.splitlines()):
        if line == "default:":
            if len(originals) != 1:
                raise ValueError(f"llama-vocab.cpp: {len(originals)} ways to write the contractions")
            return {kind: tuple(e.replace(*pair) for pair in originals.items() for e in expressions)
                    for kind, expressions in out.items()}
        if match := re.fullmatch(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):", line):
            kinds.append(match.group(1))
        elif match := re.match(r"//\s*(?:original[^\"]*:\s*)?" + _LITERAL, line):
            original = _unescaped(match.group(1))
        elif match := re.match(_LITERAL, line):
            expression = _unescaped(match.group(1))
            if original is not None:
                was, became = group.match(original), group.match(expression)
                if was and became:
                    originals[became.group()] = was.group()
                expression, original = original, None
            found.append(expression)
        elif line == "break;":
            out |= dict.fromkeys(kinds, tuple(found))
            kinds, found = [], []
    raise ValueError("llama-vocab.cpp: the list of expressions has no end")


@functools.cache
def published() -> dict[str, Published]:
    """By the names that the source knows."""
    root = next(package("llama-cpp-python").iterdir())
    source = (root / "vendor" / "llama.cpp" / "src" / "llama-vocab.cpp").read_text(encoding="utf-8")
    by_kind = _expressions(source)
    out: dict[str, Published] = {}
    names: list[str] = []
    done = False
    known = re.compile(r'tokenizer_pre == "([^"]+)"|pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);|'
                       r"(ignore_merges) = true;")
    for name, kind, ignores in known.findall(source):
        if name:
            names = [name] if done else [*names, name]
            done = False
        elif kind:
            done = True
            if kind in by_kind:  # "default" is of none
                out |= {n: Published(kind, by_kind[kind], False) for n in names}
        else:
            out |= {n: replace(out[n], ignore_merges=True) for n in names if n in out}
    if len(out) < 80:
        raise ValueError(f"llama-vocab.cpp: only {len(out)} names of pre-tokenizers found")
    return out


def gpt2_steps() -> pre_tokenizers.PreTokenizer:
    """GPT-2's expression is that of ByteLevel itself, and so it stands in each tokenizer.json."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Digits(individual_digits=True)


def _punctuation() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Punctuation("contiguous")


# kind -> which of its expressions is another step in tokenizer.json, and that step
_OTHER_STEPS = {
    "FALCON": (0, _punctuation),
    "DEEPSEEK_LLM": (5, _digits),
    "DEEPSEEK_CODER": (4, _digits),
} | dict.fromkeys(["STARCODER", "REFACT", "COMMAND_R", "SMOLLM", "CODESHELL", "EXAONE", "MINERVA",
                   "MELLUM2"], (0, _digits))


# Kinds that Cutaway does not know (AFMOE's and KIMI_K2's expressions are names of code), and those
# that cut characters, not what stands for bytes.
UNUSED_KINDS = ("AFMOE", "CHAMELEON", "EXAONE_MOE", "GRANITE_EMB_MULTI", "KIMI_K2", "SPARK2_5", "SUPERBPE",
                "TINY_AYA", "YOUTU", "GEMMA4", "SARVAM_MOE", "WHITESPACE")


def alike(kind: str, expressions: tuple[str, ...]) -> tuple:
    """Equal for kinds that cut alike."""
    return expressions, _OTHER_STEPS.get(kind)


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """Raises KeyError for a name that the source does not list."""
    known = published()[name]
    other, other_step = _OTHER_STEPS.get(known.kind, (-1, None))
    steps = []
    for i, expression in enumerate(known.expressions):
        if known.kind == "FALCON" and i == 2:  # the source leaves out a step in front of the last
            steps.append(pre_tokenizers.Digits(individual_digits=False))
        if i == other:
            steps.append(other_step())
        elif expression.startswith("'s|'t|'re|"):
            steps.append(gpt2_steps())
        else:
            steps.append(pre_tokenizers.Split(Regex(expression), behavior="isolated", invert=False))
    if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
