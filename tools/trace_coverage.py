#!/usr/bin/env python3
"""Finds functions that a real request enters and that open no trace span themselves.

    cmake --preset trace-coverage && cmake --build --preset trace-coverage --target cutaway
    tools/trace_coverage.py --bin build/trace-coverage/cutaway --model MODEL

The check build calls a small runtime (src/trace/coverage_runtime.cc) at every entry and exit of a
function; a span tells it that the innermost function opened one. Here the counts are joined with
the functions that headers declare. Judged is every function declared in a header of a folder in
FOLDERS or of include/cutaway, apart from

  - accessors: what a header defines in line (it is small, and called for every element), and in a
    .cc file a body of at most one statement that calls nothing with arguments;
  - destructors, operators, and default, copy and move constructors;
  - the exceptions in tools/trace_coverage_exceptions.txt, one "name: reason" a line, at most 30.

Exit status: 0 all covered, 1 functions without a span (listed), 2 the check could not run.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# text/, and every folder of level 3 and up of docs/architecture.md.
FOLDERS = ["text", "formats", "kv", "sampling", "constraint", "ops", "arch", "model", "inference",
           "inspect", "store", "retrieval", "remote", "agent", "api"]
MAX_EXCEPTIONS = 30
QUESTION = "What is 2 + 2?"
SAMPLED = ["--ledger", "--temperature", "0.9", "--top-k", "40", "--top-p", "0.9",
           "--min-p", "0.01", "--typical-p", "0.95", "--repeat-penalty", "1.1",
           "--presence-penalty", "0.1", "--frequency-penalty", "0.1", "--logit-bias", "5=1",
           "--seed", "7", "--stop", "\n\n\n", "--top-logprobs", "3"]


class CheckFailed(Exception):
    """The check itself could not run."""


def run_tool(command, **options):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except FileNotFoundError as error:
        package = {"ctags": "universal-ctags", "nm": "binutils", "addr2line": "binutils"}
        raise CheckFailed(f"{command[0]} is missing (apt package "
                          f"{package.get(command[0], '?')})") from error
    except subprocess.CalledProcessError as error:
        raise CheckFailed(f"{' '.join(command)}: exit {error.returncode}\n"
                          f"{error.stderr[-2000:]}") from error


def strip_template_arguments(name):
    out, depth = [], 0
    for i, c in enumerate(name):
        if c == "<" and not name[:i].endswith("operator"):
            depth += 1
        elif c == ">" and depth > 0:
            depth -= 1
        elif depth == 0:
            out.append(c)
    return "".join(out)


def qualified_name(demangled):
    """cutaway::a::B::f of a demangled symbol; None for what is local to a function (lambdas)."""
    text = demangled.split(" [clone")[0].replace("(anonymous namespace)", "{anonymous}")
    text = re.sub(r"\[abi:\w+\]", "", text).replace("operator()", "operator{}")
    text = strip_template_arguments(text)
    opening = text.find("(")
    if opening < 0:
        return text
    depth = 0
    for closing in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[closing], 0)
        if depth == 0:
            break
    if "::" in text[closing + 1:]:
        return None
    return text[:opening].split(" ")[-1]


def read_tags(files):
    """What ctags finds in `files`: dicts with name, path, line, end, kind, scope, signature."""
    if not files:
        return []
    lines = run_tool(["ctags", "--languages=C++", "--language-force=C++", "--kinds-C++=pf",
                      "--fields=+neKSsa", "--output-format=json", "-o", "-", *map(str, files)])
    tags = [json.loads(line) for line in lines.splitlines()]
    return [tag for tag in tags if tag["_type"] == "tag"]


def tag_name(tag):
    scope = re.sub(r"__anon\w+", "{anonymous}", tag.get("scope", ""))
    return strip_template_arguments(f"{scope}::{tag['name']}" if scope else tag["name"])


def parameters_of(symbol):
    text = symbol.replace("(anonymous namespace)", "").replace("operator()", "")
    return text[text.find("("):] if "(" in text else ""


def is_special_member(name, signature):
    parts = name.split("::")
    function, owner = parts[-1], parts[-2] if len(parts) > 1 else ""
    if function.startswith(("~", "operator")):
        return True
    if function != owner:
        return False
    parameters = signature.strip()
    of_owner = rf"\((const\s+)?(\w+::)*{re.escape(owner)}(\s+const)?\s*(&|&&)\s*\w*\)"
    return parameters in ("()", "(void)") or bool(re.match(of_owner, parameters))


def body_of(tag, sources):
    path = tag["path"]
    if path not in sources:
        sources[path] = pathlib.Path(path).read_text(errors="replace").splitlines()
    text = "\n".join(sources[path][tag["line"] - 1:tag.get("end", tag["line"])])
    text = re.sub(r"//[^\n]*", "", text)
    if re.search(r"\{\s*\}\s*$", text):
        return ""  # a constructor that only sets members
    opening = text.find("{")
    return None if opening < 0 else text[opening + 1:text.rfind("}")]


def is_accessor(body):
    """At most one statement, and no call with arguments (casts apart)."""
    if body is None:
        return True  # = default
    body = re.sub(r"\b(static|const|reinterpret)_cast<[^<>]*(<[^<>]*>)?[^<>]*>\s*\(", "cast ", body)
    if body.count(";") > 1 or re.search(r"\b(for|while|if|switch|do)\b", body):
        return False
    return not re.search(r"[\w>]\s*\(\s*[^)\s]", re.sub(r"\breturn\s*\(", "return ", body))


def is_guarded(body):
    """The whole of it is `return guarded("…", [&] { … });`: the lambda is the function's own body."""
    return body is not None and re.match(r"\s*return\s+guarded\(", body) is not None


def around_lambda(symbol):
    """The symbol of the function whose lambda this is; None when it is none, or a lambda's lambda."""
    outer, found, inner = symbol.split(" [clone")[0].partition("::{lambda(")
    return outer if found and "{lambda(" not in inner else None


class Declared:
    """The functions that headers declare, and where functions are defined."""

    def __init__(self, root, folders, public):
        headers, sources = [], []
        for folder in folders:
            base = root / "src" / folder
            headers += sorted(base.rglob("*.h"))
            sources += sorted(base.rglob("*.cc"))
        if public:
            headers += sorted((root / "include" / "cutaway").rglob("*.h"))
        self.texts = {}
        self.header_of = {}
        self.private = set()
        self.definitions = {}
        header_tags = read_tags(headers)
        for tag in header_tags:
            name = tag_name(tag)
            if is_special_member(name, tag.get("signature", "")):
                continue
            self.header_of.setdefault(name, f"{tag['path']}:{tag['line']}")
            if tag.get("access") == "private":
                self.private.add(name)
        for tag in header_tags + read_tags(sources):
            if tag["kind"] == "function":
                self.definitions.setdefault(tag_name(tag), []).append(tag)

    def definition(self, name, path, line):
        tags = self.definitions.get(name, [])
        for tag in tags:
            same = os.path.realpath(tag["path"]) == os.path.realpath(path)
            if same and tag["line"] <= line <= tag.get("end", tag["line"]):
                return tag
        # A function may begin with a line of what is put into it in line; headers define all of the name or none.
        in_headers = all(tag["path"].endswith(".h") for tag in tags)
        return tags[0] if tags and (len(tags) == 1 or in_headers) else None

    def judged(self, name, symbol, path, line):
        if name not in self.header_of or is_special_member(name, parameters_of(symbol)):
            return False
        tag = self.definition(name, path, line)
        if (tag["path"] if tag else path).endswith(".h"):
            return False
        return tag is None or not is_accessor(body_of(tag, self.texts))

    def held_in_guarded(self, name, path, line):
        tag = self.definition(name, path, line)
        return tag is not None and is_guarded(body_of(tag, self.texts))


def symbols(binary):
    """address → demangled names of the functions in `binary`."""
    names = {}
    for line in run_tool(["nm", "--demangle", "--defined-only", str(binary)]).splitlines():
        fields = line.split(" ", 2)
        if len(fields) == 3 and fields[1] in "tTwWiuV":
            names.setdefault(int(fields[0], 16), []).append(fields[2])
    return names


def source_lines(binary, addresses):
    """address → (path, line) of the function's beginning, as the debug information says."""
    if not addresses:
        return {}
    text = "\n".join(hex(a) for a in addresses)
    out = run_tool(["addr2line", "-e", str(binary)], input=text).splitlines()
    places = {}
    for address, place in zip(addresses, out):
        path, _, line = place.split(" ")[0].rpartition(":")
        places[address] = (path, int(line) if line.isdigit() else 0)
    return places


def read_exceptions(path):
    exceptions = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, separator, reason = line.partition(": ")
        if not separator or len(reason.split()) < 3:
            raise CheckFailed(f"{path}:{number}: needs \"name: reason\", a reason of some words")
        if name in exceptions:
            raise CheckFailed(f"{path}:{number}: {name} is listed twice")
        exceptions[name] = reason
    if len(exceptions) > MAX_EXCEPTIONS:
        raise CheckFailed(f"{path}: {len(exceptions)} exceptions, at most {MAX_EXCEPTIONS}")
    return exceptions


def collect_profiles(arguments, folder):
    """Runs the requests; the paths of what the runtime wrote."""
    if arguments.profile:
        return arguments.profile
    trace = ["--trace", "functions", "--trace-out", str(folder / "trace.jsonl")]
    model = ["-m", arguments.model]
    requests = [arguments.command.split()] if arguments.command is not None else [
        ["run", *model, QUESTION, "-n", "8", "--json", "--system", "Be brief.", *trace],
        ["run", *model, QUESTION, "-n", "4", "--json", "--prefill-chunk", "4", "--precise", "--raw",
         *SAMPLED, *trace],
    ]
    profiles = []
    for index, request in enumerate(requests):
        profile = folder / f"profile-{index}.json"
        environment = dict(os.environ, CUTAWAY_TRACE_COVERAGE=str(profile))
        run_tool([str(arguments.bin), *request], env=environment, timeout=1800)
        if not profile.exists():
            raise CheckFailed(f"{arguments.bin} wrote no profile: is it a build of the preset "
                              "trace-coverage?")
        profiles.append(profile)
    return profiles


def merge(profiles):
    total = {}
    for path in profiles:
        data = json.loads(pathlib.Path(path).read_text())
        if data["overflows"]:
            raise CheckFailed(f"{path}: the runtime ran out of room {data['overflows']} times")
        for entry in data["functions"]:
            sums = total.setdefault(entry["address"], {"entered": 0, "covered": 0, "untraced": 0})
            for key in sums:
                sums[key] += entry[key]
    return total


def judge(binary, counts, declared):
    """One row for each judged function that was entered: name, symbol, counts, place."""
    names = symbols(binary)
    places = source_lines(binary, sorted(counts))
    in_lambdas = {}  # what opened a span in a function's own lambdas
    for address, sums in counts.items():
        for outer in map(around_lambda, names.get(address, [])):
            if outer is not None:
                in_lambdas[outer] = in_lambdas.get(outer, 0) + sums["covered"]
    rows = []
    for address in sorted(counts):
        path, line = places[address]
        for symbol in names.get(address, []):
            name = qualified_name(symbol)
            if name is not None and declared.judged(name, symbol, path, line):
                row = {"name": name, "symbol": symbol, "declared": declared.header_of[name],
                       "defined": f"{path}:{line}", "private": name in declared.private, **counts[address]}
                inside = in_lambdas.get(symbol.split(" [clone")[0], 0)
                if inside > 0 and declared.held_in_guarded(name, path, line):
                    row["covered"] += inside
                rows.append(row)
                break
    if not rows:
        raise CheckFailed("no function that a header declares was entered")
    return rows


def report(rows, exceptions):
    missing = [row for row in rows if row["covered"] == 0 and row["name"] not in exceptions]
    covered = sum(row["covered"] > 0 for row in rows)
    excused = len(rows) - covered - len(missing)
    for row in sorted(missing, key=lambda row: row["declared"]):
        off = f", {row['untraced']} of them without tracing" if row["untraced"] else ""
        declared = os.path.relpath(row["declared"], ROOT)
        private = ", private" if row["private"] else ""
        print(f"{declared}: {row['symbol']}: entered {row['entered']} times{off}{private}, no span")
    uncovered = {row["name"] for row in rows if row["covered"] == 0}
    for name in exceptions:
        if name not in uncovered:
            print(f"note: the exception {name} was not needed in this run")
    print(f"{len(rows)} functions entered: {covered} with a span, {excused} excused, "
          f"{len(missing)} without")
    return missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="from preset trace-coverage")
    parser.add_argument("--model", help="what `cutaway run -m` gets")
    parser.add_argument("--command", help="arguments of the program, instead of the usual requests")
    parser.add_argument("--profile", action="append", help="a profile that is there already")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="of the sources")
    parser.add_argument("--folders", nargs="+", default=FOLDERS)
    parser.add_argument("--exceptions", type=pathlib.Path,
                        default=ROOT / "tools" / "trace_coverage_exceptions.txt")
    parser.add_argument("--json", type=pathlib.Path, help="write every judged function there")
    arguments = parser.parse_args()
    if not (arguments.model or arguments.profile or arguments.command is not None):
        parser.error("one of --model, --command, --profile is needed")
    try:
        exceptions = read_exceptions(arguments.exceptions)
        declared = Declared(arguments.root, arguments.folders, arguments.folders == FOLDERS)
        with tempfile.TemporaryDirectory() as folder:
            counts = merge(collect_profiles(arguments, pathlib.Path(folder)))
        rows = judge(arguments.bin, counts, declared)
    except CheckFailed as error:
        print(f"trace_coverage: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 1 if report(rows, exceptions) else 0


if __name__ == "__main__":
    sys.exit(main())
