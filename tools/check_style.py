#!/usr/bin/env python3
"""Rules of the house that a program can check: sizes, words, paths, format.

  check_style.py          files ≤ 600 lines, functions ≤ 80, no note without a place to find it, no
                          path of one machine, no registry host, clang-format
  check_style.py --fix    applies clang-format to every C++ file

Exceptions are lines `PATH: reason` of tools/style_exceptions.txt; they lift the limits of size and
the format (generated tables), never the words.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE, MAX_FUNCTION = 600, 80
CPP = (".h", ".cc", ".cpp", ".c")
TEXT = CPP + (".py", ".sh", ".md", ".txt", ".cmake", ".rs", ".toml", ".json", ".yml", ".html", "")
# Written in pieces, so that this file passes its own check.
WORDS = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"), "a note to be done some day"),
    (re.compile(r"(?<![\w.~$}/-])/(wo" r"rk|ro" r"ot|ho" r"me/\w+|Us" r"ers/\w+)/"), "a path of one machine"),
    (re.compile(r"\b(py" r"pi\.org|crates\.io(?!-index)|registry\.npm" r"js|deb\.deb" r"ian\.org"
                r"|files\.python" r"hosted)"), "a registry's host"),
    (re.compile(r"\b(Cla" r"ude|Chat" r"GPT|Co-Auth" r"ored-By|sub-?ag" r"ents?)\b", re.I), "a tool's name"),
    (re.compile(r"\bissues? #?\d+\b", re.I), "the number of an issue"),
]
STRIP = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/'
                   r"|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
NOT_FUNCTION = re.compile(r"^\s*(?:(?:inline|export|template\s*<.*>)\s*)*"
                          r"(namespace|class|struct|enum|union|extern)\b|=\s*$", re.DOTALL)


def blank(match: re.Match[str]) -> str:
    """Keeps the lines of what is taken out. A digit separator (1'000) is no character."""
    return "\n" * match.group().count("\n")


def cpp_functions(text: str) -> list[tuple[str, int, int]]:
    """(head, first line, lines) of each function; nested ones count in the outer one."""
    code = STRIP.sub(blank, re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "", text))
    found, depth, head_start, function_depth, start = [], 0, 0, None, 0
    head = ""
    for i, c in enumerate(code):
        if c == "{":
            candidate = code[head_start:i]
            if function_depth is None and "(" in candidate and not NOT_FUNCTION.search(candidate):
                function_depth, start = depth, head_start + len(candidate) - len(candidate.lstrip())
                head = " ".join(candidate.split())
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == function_depth:
                first = code.count("\n", 0, start) + 1
                found.append((head, first, code.count("\n", 0, i) + 2 - first))
                function_depth = None
        if c in "{};":
            head_start = i + 1
    return found


def python_functions(text: str) -> list[tuple[str, int, int]]:
    return [(node.name, node.lineno, node.end_lineno - node.lineno + 1)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def size_faults(path: str, text: str) -> list[str]:
    lines = text.count("\n")
    found = [f"{path}: {lines} lines (at most {MAX_FILE})"] if lines > MAX_FILE else []
    functions = cpp_functions if path.endswith(CPP) else python_functions
    return found + [f"{path}:{first}: {n} lines (at most {MAX_FUNCTION}): {head[:70]}"
                    for head, first, n in functions(text) if n > MAX_FUNCTION]


def word_faults(path: str, text: str) -> list[str]:
    return [f"{path}:{text.count(chr(10), 0, m.start()) + 1}: {what}: {m.group()!r}"
            for pattern, what in WORDS for m in pattern.finditer(text)]


def tree() -> list[str]:
    """Files that are committed or about to be."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    return [p for p in sorted(listed) if (ROOT / p).is_file()
            and not p.startswith(("tests/golden/", "fuzz/corpus/")) and p != "LICENSE"]


def exceptions() -> set[str]:
    lines = (ROOT / "tools" / "style_exceptions.txt").read_text().splitlines()
    return {line.split(":")[0] for line in lines if line and not line.startswith("#")}


def format_faults(paths: list[str]) -> list[str]:
    try:
        done = subprocess.run(["clang-format-19", "--dry-run", *paths], cwd=ROOT, check=False,
                              capture_output=True, text=True)
    except FileNotFoundError:
        return ["clang-format-19 is not installed (tools/bootstrap.sh test)"]
    bad = dict.fromkeys(re.findall(r"^(\S+?):\d+:\d+: warning: code should be", done.stderr, re.M))
    return [f"{path}: not as clang-format writes it (make format)" for path in bad]


def self_test() -> list[str]:
    body = "  f();\n" * 90
    long_cpp = "namespace a {\nstruct S {\n  int g(int x) const {\n" + body + "  }\n};\n}\n"
    faults = []
    if not size_faults("x.cc", long_cpp):
        faults.append("self-test: a C++ function of 92 lines went unnoticed")
    if size_faults("x.cc", long_cpp.replace(body, "  if (x) { return '{'; }\n")):
        faults.append("self-test: a short C++ function was refused")
    if not size_faults("x.py", "def f():\n" + "    g()\n" * 90):
        faults.append("self-test: a Python function of 91 lines went unnoticed")
    for text in ("// TO" "DO: later", "open('/ro" "ot/x')", "see issue " "12"):
        if not word_faults("x.cc", text):
            faults.append(f"self-test: {text!r} went unnoticed")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fix", action="store_true", help="apply clang-format")
    args = parser.parse_args()
    paths, excepted = tree(), exceptions()
    cpp = [p for p in paths if p.endswith(CPP) and p not in excepted]
    if args.fix:
        return subprocess.run(["clang-format-19", "-i", *cpp], cwd=ROOT, check=False).returncode
    faults = self_test() + format_faults(cpp)
    checked = 0
    for path in paths:
        if Path(path).suffix not in TEXT or path.endswith("Cargo.lock"):
            continue
        checked += 1
        text = (ROOT / path).read_text(errors="replace")
        faults += word_faults(path, text)
        if path.endswith(CPP + (".py",)) and path not in excepted:
            faults += size_faults(path, text)
    print("\n".join(faults) or f"{checked} files, nothing to say")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
