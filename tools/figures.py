"""The tables of measured figures in the READMEs, from what bench/compare.py wrote (bench/results)."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = {
    "en": {"pp": "prefill {n}", "tg": "decode {n}", "depth": " at depth {d}", "threads": "threads",
           "test": "tokens per second, median (min–max)", "ratio": "ratio (of pairs, min–max)",
           "level": "decode speed with the trace, relative to `off`",
           "where": "{cpu}, {cores} cores ({flags}); {file}; {versions}; {reps} alternating runs each."},
    "ko": {"pp": "프리필 {n}", "tg": "디코드 {n}", "depth": " (깊이 {d})", "threads": "스레드",
           "test": "초당 토큰 수, 중앙값(최소–최대)", "ratio": "비율(짝끼리, 최소–최대)",
           "level": "추적을 켰을 때의 디코드 속도, `off` 대비",
           "where": "{cpu}, 코어 {cores}개({flags}). {file}. {versions}. 번갈아 {reps}번씩 측정."},
}


def spread(stats: dict, digits: int) -> str:
    return f"{stats['median']:.{digits}f} ({stats['min']:.{digits}f}–{stats['max']:.{digits}f})"


def test_name(test: str, words: dict) -> str:
    kind, _, depth = test.partition("@")
    return words[kind[:2]].format(n=kind[2:]) + (words["depth"].format(d=depth) if depth else "")


def where(document: dict, words: dict) -> str:
    machine, versions = document["machine"], document["versions"]
    peer = versions.get("llama_cpp")
    names = [versions["cutaway"]] if versions.get("cutaway") else []
    if peer and document.get("tests"):
        names.append("llama-cpp-python " + str(peer.get("version", "")))
    return words["where"].format(cpu=" ".join(machine["cpu"].split()), cores=machine["cores"],
                                 flags=", ".join(machine["flags"]), file=document["model"]["file"],
                                 versions=", ".join(names), reps=document["reps"])


def tests_table(document: dict, words: dict) -> list[str]:
    lines = [f"| {words['test']} | {words['threads']} | Cutaway | llama.cpp | {words['ratio']} |",
             "|---|---|---|---|---|"]
    for row in document["tests"]:
        pairs = row["ratio_of_pairs"]
        lines.append(f"| {test_name(row['test'], words)} | {row['threads']}"
                     f" | {spread(row['cutaway'], 1)} | {spread(row['llama_cpp'], 1)}"
                     f" | **{row['ratio']:.2f}×** ({pairs['min']:.2f}–{pairs['max']:.2f}) |")
    return lines


def overhead_table(document: dict, words: dict) -> list[str]:
    levels = [level for level in document["trace_overhead"][0]["levels"] if level != "off"]
    lines = [f"| {words['level']} | {words['threads']} | " + " | ".join(f"`{n}`" for n in levels) + " |",
             "|---|---|" + "---|" * len(levels)]
    for row in document["trace_overhead"]:
        cells = [f"{(row['levels'][n]['relative_to_off'] - 1) * 100:+.1f} %" for n in levels]
        lines.append(f"| {test_name(row['test'], words)} | {row['threads']} | " + " | ".join(cells) + " |")
    return lines


def tables(paths: list[Path], language: str) -> str:
    """Markdown for the documents at `paths`, in order."""
    words, parts = WORDS[language], []
    for path in paths:
        document = json.loads(path.read_text())
        lines = tests_table(document, words) if document.get("tests") else []
        lines += overhead_table(document, words) if document.get("trace_overhead") else []
        parts.append("\n".join([*lines, "", where(document, words)]))
    return "\n" + "\n\n".join(parts) + "\n\n"
