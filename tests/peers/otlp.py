"""A trace in OTLP is what OpenTelemetry's own protocol definition says: fields, ids, nesting, conventions.

CUTAWAY_BINARY names the program. protobuf's JSON parser takes ids as base64, so hex ids are checked here
as such and handed over in its form; every other field goes through it as it is.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
PROMPT = "What is 2 + 2? 한국어 \"인용\" \U0001F99C </script>"
passed = failed = 0


def check(what: str, good: bool, seen: object = "") -> None:
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAILED {what}: {str(seen)[:600]}")


def bytes_for_protobuf(request: dict) -> bool:
    """Hex ids to base64, in place; whether all were lower-case hex of the right length and not zero."""
    good = True
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in IDS.keys() & span.keys():
                    text = span[key]
                    good &= re.fullmatch(f"[0-9a-f]{{{2 * IDS[key]}}}", text) is not None and int(text, 16) != 0
                    span[key] = base64.b64encode(bytes.fromhex(text)).decode()
                good &= isinstance(span["startTimeUnixNano"], str) and isinstance(span["endTimeUnixNano"], str)
    return good


def value(any_value) -> object:
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(v) for v in any_value.array_value.values]
    return getattr(any_value, kind)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        trace, lines = Path(folder) / "t.otlp.jsonl", Path(folder) / "t.jsonl"
        args = [BINARY, "run", "-m", "smollm2-135m", "-n", "12", "--json", "--temperature", "0.7", "--top-p", "0.9",
                "--seed", "3", "--trace-out"]
        run = json.loads(subprocess.run([*args, str(trace), PROMPT], capture_output=True, check=True).stdout)
        subprocess.run([*args, str(lines), PROMPT], capture_output=True, check=True)
        requests = [json.loads(line) for line in trace.read_text().splitlines()]
        records = [json.loads(line) for line in lines.read_text().splitlines()]
    check("ids are hex of 16 and 8 bytes, times are text", all([bytes_for_protobuf(r) for r in requests]))
    parsed = [json_format.ParseDict(r, ExportTraceServiceRequest()) for r in requests]  # unknown fields raise
    service = {a.key: value(a.value) for a in parsed[0].resource_spans[0].resource.attributes}
    check("the service has its name", service.get("service.name") == "cutaway", service)
    spans = [s for r in parsed for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]
    exits = sum(r["kind"] == "exit" for r in records)
    # How many pieces a read has may differ from run to run; no more than a few spans in thousands.
    check("a span for every span", abs(len(spans) - exits) <= exits // 100, (len(spans), exits))
    by_id = {s.span_id: s for s in spans}
    check("ids are unique", len(by_id) == len(spans))
    children = [s for s in spans if s.parent_span_id]
    check("every parent is there", all(s.parent_span_id in by_id for s in children))
    check("a child lies within its parent, in the same trace", all(
        by_id[s.parent_span_id].start_time_unix_nano <= s.start_time_unix_nano <= s.end_time_unix_nano
        <= by_id[s.parent_span_id].end_time_unix_nano for s in children))
    chats = [s for s in spans if s.name.startswith("chat ")]
    check("one request", len(chats) == 1, [s.name for s in chats])
    chat = chats[0]
    got = {a.key: value(a.value) for a in chat.attributes}
    wanted = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "cutaway", "gen_ai.request.model": run["model"],
              "gen_ai.response.model": run["model"], "gen_ai.response.id": run["run"],
              "gen_ai.usage.input_tokens": run["usage"]["input_tokens"],
              "gen_ai.usage.output_tokens": run["usage"]["output_tokens"], "gen_ai.request.seed": 3,
              "gen_ai.response.finish_reasons": [run["finish_reason"]]}
    check("the conventions for generative AI", wanted.items() <= got.items(), got)
    check("sampling", abs(got["gen_ai.request.temperature"] - 0.7) < 1e-6 and
          abs(got["gen_ai.request.top_p"] - 0.9) < 1e-6, got)
    check("its kind is that of a server's span", chat.kind == 2 and not chat.parent_span_id)
    inside = [s for s in spans if s.trace_id == chat.trace_id]
    roots = {s.name for s in inside if not s.parent_span_id}
    check("all of the run is one trace, under its request", len(inside) > 1000
          and roots <= {chat.name, "api::Session::close"}, roots)
    texts = [value(a.value) for s in inside for a in s.attributes if a.key == "cutaway.in.text"]
    check("text arrives as it was", any("한국어 \"인용\" \U0001F99C" in str(t) for t in texts), texts[:3])
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
