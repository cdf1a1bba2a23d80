"""The tables of measured figures in the READMEs, from what bench/compare.py wrote (bench/results)."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = {
    "en": {"pp": "prefill {n}", "tg": "decode {n}", "batch": ", {b} sequences at once",
           "depth": " at depth {d}", "threads": "threads",
           "test": "tokens per second, median (min–max)", "ratio": "ratio (of pairs, min–max)",
           "other": "also measured, median (min–max)",
           "start": "from the load call to the first token, ms",
           "memory": "peak memory of one answer, MB (file, KV cache and 48 MB: {allowed:.0f})",
           "busy": "decode 128 beside a loop on one processor, tokens per second",
           "relative": "the same, relative to one free thread",
           "level": "decode speed with the trace, relative to `off`",
           "where": "{cpu}, {cores} cores ({flags}); {file}; {versions}; {reps} alternating runs each."},
    "ko": {"pp": "프리필 {n}", "tg": "디코드 {n}", "batch": ", 시퀀스 {b}개 동시에",
           "depth": " (깊이 {d})", "threads": "스레드",
           "test": "초당 토큰 수, 중앙값(최소–최대)", "ratio": "비율(짝끼리, 최소–최대)",
           "other": "그 밖의 측정, 중앙값(최소–최대)",
           "start": "불러오기 시작부터 첫 토큰까지, ms",
           "memory": "답변 한 번의 최대 메모리, MB (파일, KV 캐시, 48 MB의 합: {allowed:.0f})",
           "busy": "한 프로세서에 다른 루프가 돌 때의 디코드 128, 초당 토큰 수",
           "relative": "같은 값, 방해 없는 스레드 하나 대비",
           "level": "추적을 켰을 때의 디코드 속도, `off` 대비",
           "where": "{cpu}, 코어 {cores}개({flags}). {file}. {versions}. 번갈아 {reps}번씩 측정."},
}
OTHER = ("start", "memory", "busy")


def spread(stats: dict, digits: int) -> str:
    return f"{stats['median']:.{digits}f} ({stats['min']:.{digits}f}–{stats['max']:.{digits}f})"


def test_name(test: str, words: dict) -> str:
    """`tg32b16@512` in words."""
    test, _, depth = test.partition("@")
    count, _, batch = test[2:].partition("b")
    return (words[test[:2]].format(n=count) + (words["batch"].format(b=batch) if batch else "")
            + (words["depth"].format(d=depth) if depth else ""))


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
    rows = [row for row in document["tests"] if row["test"] not in OTHER]
    lines = [f"| {words['test']} | {words['threads']} | Cutaway | llama.cpp | {words['ratio']} |",
             "|---|---|---|---|---|"] if rows else []
    for row in rows:
        lines.append(f"| {test_name(row['test'], words)} | {row['threads']}"
                     f" | {spread(row['cutaway'], 1)} | {spread(row['llama_cpp'], 1)}"
                     f" | {ratio(row)} |")
    return lines


def ratio(row: dict) -> str:
    pairs = row["ratio_of_pairs"]
    return f"**{row['ratio']:.2f}×** ({pairs['min']:.2f}–{pairs['max']:.2f})"


def other_table(document: dict, words: dict) -> list[str]:
    """Start, memory, a busy processor."""
    lines = []
    for row in document["tests"]:
        if row["test"] not in OTHER:
            continue
        name = words[row["test"]].format(allowed=row.get("file_and_kv_and_48_mb", 0))
        lines.append(f"| {name} | {row['threads']} | {spread(row['cutaway'], 0)}"
                     f" | {spread(row['llama_cpp'], 0)} | {ratio(row)} |")
        if row["test"] == "busy":
            lines.append(f"| {words['relative']} | {row['threads']} | {spread(row['cutaway_relative'], 2)}"
                         f" | {spread(row['llama_cpp_relative'], 2)} | |")
    head = [f"| {words['other']} | {words['threads']} | Cutaway | llama.cpp | {words['ratio']} |",
            "|---|---|---|---|---|"]
    return head + lines if lines else []


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
        other = other_table(document, words) if document.get("tests") else []
        lines += [*([""] if lines and other else []), *other]
        lines += overhead_table(document, words) if document.get("trace_overhead") else []
        parts.append("\n".join([*lines, "", where(document, words)]))
    return "\n" + "\n\n".join(parts) + "\n\n"
