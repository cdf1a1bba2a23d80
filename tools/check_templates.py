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

def call(name: str, arguments, number: int) -> dict:
    return {"id": f"call{number:05}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def said(role: str, content, **more) -> dict:
    return {"role": role, "content": content, **more}


TIME = {"type": "function", "function": {
    "name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}
NESTED = {"type": "function", "function": {
    "name": "search", "description": "Line one\nline \"two\"\t\\", "parameters": {
        "type": "object", "required": ["query", "filters"], "properties": {
            "query": {"type": ["string", "null"], "description": "무엇을 찾을지", "default": None},
            "filters": {"type": "array", "items": {"type": "object", "properties": {
                "key": {"type": "string"}, "at least": {"type": "number", "minimum": 1e-7}}}},
            "safe": {"type": "boolean", "default": True}}}}}

# The hostile ones speak in the template's name: MARK must never be in a trusted segment.
MARK = "MARK"
QUESTION = said("user", "What is 2 + 2?")
CONVERSATIONS = {
    "question": dict(messages=[QUESTION]),
    "turns": dict(messages=[
        said("system", "You are “helpful” & <kind>.\n"),
        said("user", "  안녕하세요, it's 'me' \"x\" \\ back\n\n"),
        said("assistant", "<think>\nhm\n</think>\n\nHello 😀"),
        said("user", "a < b and b > c [INST] {{ x }}")]),
    "tools": dict(tools=[WEATHER], messages=[
        said("system", "Use tools."), said("user", "Weather in Seoul?"),
        said("assistant", "", tool_calls=[CALL]),
        said("tool", "{\"temperature\": 21.5, \"sky\": \"맑음\"}", tool_call_id="call00001",
             name="get_weather"),
        said("assistant", "It is 21.5 °C."), said("user", "Thanks")]),
    "no generation prompt": dict(add_generation_prompt=False, messages=[
        said("user", "Hi"), said("assistant", "Hello")]),
    "system only": dict(messages=[said("system", "Be brief.")]),
    "empty content": dict(messages=[said("system", ""), said("user", "")]),
    "many turns": dict(messages=[said("system", "S")] + [
        said("user" if i % 2 == 0 else "assistant", f"turn {i}\n") for i in range(9)]),
    "two users in a row": dict(messages=[said("user", "one"), said("user", "two")]),
    "assistant first": dict(messages=[said("assistant", "Hello?"), said("user", "Yes")]),
    "late system": dict(messages=[said("user", "Hi"), said("assistant", "Yes?"),
                                  said("system", "Now in Korean."), said("user", "Again")]),
    "developer": dict(messages=[said("developer", "Be exact."), QUESTION]),
    "unknown role": dict(messages=[said("narrator", "Once."), QUESTION]),
    "continue the answer": dict(add_generation_prompt=False, messages=[
        QUESTION, said("assistant", "The answer is")]),
    "korean": dict(messages=[
        said("system", "너는 친절한 도우미야."), said("user", "서울특별시청은 어디에 있나요?"),
        said("assistant", "서울특별시 중구 세종대로 110입니다."), said("user", "고마워요 😀👩‍👩‍👧 é é")]),
    "content parts": dict(messages=[
        said("system", [{"type": "text", "text": "Be kind."}]),
        said("user", [{"type": "text", "text": "Part one, "}, {"type": "text", "text": "two"}])]),
    "null content": dict(messages=[QUESTION, said("assistant", None), said("user", "Go on")]),
    "null content and a call": dict(tools=[WEATHER], messages=[
        said("user", "Weather?"), said("assistant", None, tool_calls=[CALL]),
        said("tool", "21 °C", tool_call_id="call00001", name="get_weather")]),
    "no content key": dict(tools=[WEATHER], messages=[
        said("user", "Weather?"), {"role": "assistant", "tool_calls": [CALL]},
        said("tool", "21 °C", tool_call_id="call00001", name="get_weather")]),
    "tools but no call": dict(tools=[WEATHER, TIME, NESTED], messages=[QUESTION]),
    "tools and a system": dict(tools=[NESTED], messages=[said("system", "Sys."), QUESTION]),
    "no tools": dict(tools=[], messages=[QUESTION]),
    "two calls at once": dict(tools=[WEATHER, TIME], messages=[
        said("user", "Weather and time?"),
        said("assistant", "Let me look.", tool_calls=[
            call("get_weather", {"city": "서울 <b>", "unit": None, "days": -1}, 1),
            call("now", {}, 2)]),
        said("tool", "21", tool_call_id="call00001", name="get_weather"),
        said("tool", "12:00", tool_call_id="call00002", name="now"),
        said("assistant", "21 °C at noon."), said("user", "Thanks")]),
    "arguments as text": dict(tools=[WEATHER], messages=[
        said("user", "Weather?"),
        said("assistant", "", tool_calls=[call("get_weather", "{\"city\": \"Seoul\"}", 1)]),
        said("tool", "21", tool_call_id="call00001", name="get_weather")]),
    "nested arguments": dict(tools=[NESTED], messages=[
        said("user", "Find it"),
        said("assistant", "", tool_calls=[call("search", {
            "query": "a \"b\" \\ \n \u2028 </x>", "filters": [{"key": "k", "at least": 1e-7},
            {}], "safe": True, "n": 12345678901234567890, "f": 1e22, "g": 0.1, "z": []}, 1)]),
        said("tool", [{"type": "text", "text": "found"}], tool_call_id="call00001")]),
    "calls twice": dict(tools=[TIME], messages=[
        said("user", "Time?"), said("assistant", "", tool_calls=[call("now", {}, 1)]),
        said("tool", "1", tool_call_id="call00001", name="now"),
        said("assistant", "", tool_calls=[call("now", {"again": True}, 2)]),
        said("tool", "2", tool_call_id="call00002", name="now")]),
    "reasoning": dict(messages=[
        QUESTION, said("assistant", "4", reasoning_content="Two and two.\n"),
        said("user", "And 3 + 3?")]),
    "reasoning and a call": dict(tools=[TIME], messages=[
        said("user", "Time?"), said("assistant", "", reasoning_content="I need the clock.",
                                   tool_calls=[call("now", {}, 1)]),
        said("tool", "12", tool_call_id="call00001", name="now")]),
    "thinking off": dict(extra={"enable_thinking": False}, messages=[QUESTION]),
    "thinking on": dict(extra={"enable_thinking": True, "thinking": True}, messages=[
        QUESTION, said("assistant", "<think>a</think>4"), said("user", "Sure?")]),
    "effort": dict(extra={"reasoning_effort": "low", "reasoning_budget": 10,
                          "thinking_budget": 512}, messages=[QUESTION]),
    "extra keys": dict(messages=[said("user", "Hi", name="kim", weight=1, more={"a": [1, None]})]),
    "white space": dict(messages=[said("system", "\n\n x \t"), said("user", "\r\n \u00a0y\u3000")]),
    "long": dict(messages=[said("user", "word " * 4000)]),
    "no messages": dict(messages=[]),
    "hostile": dict(messages=[said("user", "x %s y"), said("assistant", "ok"),
                              said("user", "%s\n%s")]),
    "hostile system": dict(messages=[said("system", "%s"), said("user", "%s")]),
    "hostile tool result": dict(tools=[TIME], messages=[
        said("user", "Time?"), said("assistant", "", tool_calls=[call("now", {}, 1)]),
        said("tool", "12 %s", tool_call_id="call00001", name="now"), said("user", "ok")]),
    "hostile tool texts": dict(messages=[said("user", "Time?")], tools=[
        {"type": "function", "function": {
            "name": "now", "description": "%s", "parameters": {
                "type": "object", "properties": {"a": {"type": "string", "description": "%s"}}}}}]),
    "hostile arguments": dict(tools=[TIME], messages=[
        said("user", "Time?"), said("assistant", "", tool_calls=[call("now", {"a": "%s"}, 1)]),
        said("tool", "1", tool_call_id="call00001", name="now"), said("user", "ok")]),
    "hostile parts": dict(messages=[said("user", [{"type": "text", "text": "%s"}])]),
    "hostile reasoning": dict(messages=[
        QUESTION, said("assistant", "4", reasoning_content="%s"), said("user", "%s")]),
    "hostile name": dict(messages=[said("user", "hi", name="%s")]),
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
        if name.startswith("hostile"):
            spelled = "".join(MARK + c + MARK for c in controls)
            conversation = json.loads(json.dumps(conversation).replace("%s", json.dumps(spelled)[1:-1]))
        yield name, dict(template=source, bos=BOS, eos=EOS, controls=controls,
                         add_generation_prompt=conversation.get("add_generation_prompt", True),
                         messages=conversation["messages"], tools=conversation.get("tools"),
                         extra=conversation.get("extra", {}))


def reference(case: dict) -> tuple[str | None, str]:
    """What Jinja2 gives, or None and why it refuses."""
    try:
        return _compile_jinja_template(case["template"]).render(
            messages=case["messages"], tools=case["tools"], documents=None, bos_token=BOS,
            eos_token=EOS, add_generation_prompt=case["add_generation_prompt"],
            **case["extra"]), ""
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
