"""A trace in OTLP, in a file and in a collector, is what OpenTelemetry's own protocol definition says: fields, ids,
nesting, conventions.

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
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from collector import Collector, Reply  # noqa: E402

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


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def main() -> int:
    in_a_file()
    for replies in ([], [Reply(status=503), Reply()], [Reply(delay=0.5)]):
        in_a_collector(*replies)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def in_a_collector(*replies: Reply) -> None:
    """Every request is a message of the protocol, byte for byte as the collector got it, in the caller's trace."""
    with Collector(*replies) as collector, tempfile.TemporaryDirectory() as folder:
        args = [BINARY, "run", "-m", "smollm2-135m", "-n", "6", "--json", "--raw", "--seed", "3"]
        env = {**os.environ, "TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
        done = subprocess.run([*args, "--trace-out", collector.url, PROMPT], capture_output=True, check=True, env=env)
        run, requests, refused = json.loads(done.stdout), collector.delivered(), len(collector.requests)
        lines = Path(folder) / "t.jsonl"
        plain = json.loads(subprocess.run([*args, "--trace-out", str(lines), PROMPT], capture_output=True,
                                          check=True).stdout)
        exits = lines.read_text().count('"kind":"exit"')
    refused -= len(requests)
    check("nothing was lost", b"warning" not in done.stderr, done.stderr)
    check("what was refused came again", refused == sum(r.status != 200 for r in replies), refused)
    check("the answer is that without a collector", run["logits_hash"] == plain["logits_hash"])
    check("ids are hex of 16 and 8 bytes, times are text", all([bytes_for_protobuf(r) for r in requests]))
    parsed = [json_format.ParseDict(r, ExportTraceServiceRequest()) for r in requests]
    spans = [s for r in parsed for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]
    check("a span for every span", abs(len(spans) - exits) <= exits // 100, (len(spans), exits))
    check("batches have 512 spans at most", all(
        sum(len(ss.spans) for rs in r.resource_spans for ss in rs.scope_spans) <= 512 for r in parsed))
    ids = {s.span_id for s in spans}
    check("ids are unique", len(ids) == len(spans))
    check("all of it is the caller's trace", {s.trace_id.hex() for s in spans} == {TRACE})
    check("what has no parent here is below the caller's span",
          {s.parent_span_id.hex() for s in spans if s.parent_span_id not in ids} == {PARENT})
    chats = [s for s in spans if s.name.startswith("text_completion ")]
    got = {a.key: value(a.value) for a in chats[0].attributes} if len(chats) == 1 else {}
    check("a raw prompt is a text completion", got.get("gen_ai.operation.name") == "text_completion", got)
    check("its limit", got.get("gen_ai.request.max_tokens") == 6, got)


def in_a_file() -> None:
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
    check("its kind is that of a model in the same process", chat.kind == 1 and not chat.parent_span_id)
    inside = [s for s in spans if s.trace_id == chat.trace_id]
    roots = {s.name for s in inside if not s.parent_span_id}
    check("all of the run is one trace, under its request", len(inside) > 1000
          and roots <= {chat.name, "api::Session::close"}, roots)
    texts = [value(a.value) for s in inside for a in s.attributes if a.key == "cutaway.in.text"]
    check("text arrives as it was", any("한국어 \"인용\" \U0001F99C" in str(t) for t in texts), texts[:3])


if __name__ == "__main__":
    sys.exit(main())
