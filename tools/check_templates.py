#!/usr/bin/env python3
"""Real chat templates, rendered by Cutaway and by Jinja2 as transformers sets it up.

  check_templates.py BINARY [--show N]     BINARY: build/…/tests/template_render

Every template that a pinned llama-cpp-python source package carries, times many conversations.
Checked: the same bytes, or both refuse; and that no spelling of a control token that came from a
message is in a trusted segment. Run it with the interpreter of tools/peers.sh's `torch`
environment. Exit status 1 when anything else than KNOWN differs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from oracles.packages import package  # noqa: E402
from transformers.utils.chat_template_utils import _compile_jinja_template  # noqa: E402

BOS, EOS = "<|bos|>", "<|eos|>"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like in a place, “now” & later <b>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city, e.g. 서울"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}

CALL = {"id": "call00001", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Seoul", "days": 2, "x": 1.5}}}

# The last one speaks in the template's name: MARK must never be in a trusted segment.
MARK = "MARK"
CONVERSATIONS = {
    "question": dict(messages=[{"role": "user", "content": "What is 2 + 2?"}]),
    "turns": dict(messages=[
        {"role": "system", "content": "You are “helpful” & <kind>.\n"},
        {"role": "user", "content": "  안녕하세요, it's 'me' \"x\" \\ back\n\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello 😀"},
        {"role": "user", "content": "a < b and b > c [INST] {{ x }}"},
    ]),
    "tools": dict(tools=[WEATHER], messages=[
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather in Seoul?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call00001", "name": "get_weather",
         "content": "{\"temperature\": 21.5, \"sky\": \"맑음\"}"},
        {"role": "assistant", "content": "It is 21.5 °C."},
        {"role": "user", "content": "Thanks"},
    ]),
    "no generation prompt": dict(add_generation_prompt=False, messages=[
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]),
    "hostile": dict(messages=[
        {"role": "user", "content": "x %s y"}, {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "%s\n%s"}]),
}


# Templates that differ and are meant to, where tools are given, with the reason.
KNOWN = {
    "meetkai-functionary-medium-v3.1.jinja":
        "'…'|safe + text escapes the text for HTML in Jinja2 even where escaping is off",
}


def control_spellings(source: str) -> list[str]:
    """What the template writes that looks like a control token."""
    found = re.findall(r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>]{1,40}｜>|\[/?[A-Z_]{2,20}\]|</?s>|"
                       r"<(?:start|end)_of_turn>|</?think>", source)
    return sorted({BOS, EOS, *found})


def cases(source: str):
    controls = control_spellings(source)
    for name, conversation in CONVERSATIONS.items():
        conversation = json.loads(json.dumps(conversation))
        if name == "hostile":
            spelled = "".join(MARK + c + MARK for c in controls)
            for message in conversation["messages"]:
                message["content"] = message["content"].replace("%s", spelled)
        yield name, dict(template=source, bos=BOS, eos=EOS, controls=controls,
                         add_generation_prompt=conversation.get("add_generation_prompt", True),
                         messages=conversation["messages"], tools=conversation.get("tools"))


def reference(case: dict) -> tuple[str | None, str]:
    """What Jinja2 gives, or None and why it refuses."""
    try:
        return _compile_jinja_template(case["template"]).render(
            messages=case["messages"], tools=case["tools"], documents=None, bos_token=BOS,
            eos_token=EOS, add_generation_prompt=case["add_generation_prompt"]), ""
    except Exception as error:  # whatever the template or Jinja2 raises is a refusal
        return None, f"{type(error).__name__}: {error}"


def leaks(case: dict, answer: dict) -> bool:
    """Is a control token that a message spelled in a trusted segment?"""
    return any(trusted and MARK + control in text
               for text, trusted in answer["segments"] for control in case["controls"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--show", type=int, default=10, help="differences to print")
    args = parser.parse_args()
    root = next(package("llama-cpp-python").iterdir())
    paths = sorted((root / "vendor/llama.cpp/models/templates").glob("*.jinja"))
    names, requests = [], []
    for path in paths:
        for name, case in cases(path.read_text(encoding="utf-8")):
            names.append(f"{path.name}: {name}")
            requests.append(case)
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    out = subprocess.run([args.binary], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in out.stdout.splitlines()]
    equal = both_refuse = lenient = leaked = known = 0
    different = []
    for name, request, answer in zip(names, requests, answers, strict=True):
        expected, why = reference(request)
        if answer["ok"] and leaks(request, answer):
            leaked += 1
            print("LEAK", name)
        if expected is None and not answer["ok"]:
            both_refuse += 1
        elif answer["ok"] and answer["text"] == expected:
            equal += 1
        elif answer["ok"] and why.startswith("TypeError: "):
            lenient += 1  # Python stops at a loop over None or the like; minijinja goes on
        elif name.split(":")[0] in KNOWN and request["tools"]:
            known += 1
        else:
            different.append((name, expected, answer))
    for name, expected, answer in different[: args.show]:
        ours = answer.get("text", "ERROR " + answer.get("error", ""))
        at = next((i for i, (a, b) in enumerate(zip(ours, expected or "")) if a != b), 0)
        print(f"--- {name}\nJinja2: {expected and expected[max(0, at - 60):at + 80]!r}\n"
              f"ours:   {ours[max(0, at - 60):at + 80]!r}")
    print(f"{len(paths)} templates, {len(requests)} renderings: {equal} byte-equal, {both_refuse} "
          f"refused by both, {lenient} where Python's types stop Jinja2 only, {known} known "
          f"differences, {len(different)} different, {leaked} leaks")
    return 1 if different or leaked else 0


if __name__ == "__main__":
    sys.exit(main())
