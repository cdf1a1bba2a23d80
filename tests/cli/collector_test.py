#!/usr/bin/env python3
"""A run's trace in a collector: what arrives, and that no failure of the collector's fails the run.

Each test is a function named test_…; the last line counts. CUTAWAY_BINARY names the program.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time

import cli_test
import program
from cli_test import FOLDER, TINY, answer, document, ok
from collector import Collector, Reply

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SECRET = "wealth-of-nations"
PROMPT = "What is 2 + 2? 한국어 \"quoted\""


def traced(target: str, *args: str, env: dict[str, str] | None = None, tokens: str = "3"):
    """The answer's document, what was on stderr, and the seconds that it took."""
    begin = time.monotonic()
    done = ok(["run", *TINY, "--json", "-n", tokens, "--trace-out", target, *args, PROMPT], env=env)
    return json.loads(done.out), done.err, time.monotonic() - begin


def plain_hash() -> str:
    return answer("-n", "3", PROMPT)["logits_hash"]


def attributes(span: dict) -> dict:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def spans_in_order(spans: list[dict]) -> None:
    """Ids, parents and times are what OTLP wants."""
    by_id = {span["spanId"]: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and int(span["traceId"], 16)
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"]) and int(span["spanId"], 16)
        begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        assert begin <= end and abs(begin / 1e9 - time.time()) < 300
        parent = by_id.get(span.get("parentSpanId"))
        if parent is not None:
            assert parent["traceId"] == span["traceId"]
            assert int(parent["startTimeUnixNano"]) <= begin <= end <= int(parent["endTimeUnixNano"])


def test_every_span_arrives_as_one_trace():
    with Collector() as collector:
        got, err, _ = traced(collector.url)
        spans = collector.spans()
    assert err == "" and got["logits_hash"] == plain_hash()
    assert set(collector.paths) == {"/v1/traces"}
    assert all(h["Content-Type"] == "application/json" for h in collector.headers)
    spans_in_order(spans)
    ids = {span["spanId"] for span in spans}
    assert all(span["parentSpanId"] in ids for span in spans if "parentSpanId" in span)
    [chat] = [span for span in spans if span["name"].startswith("chat ")]
    seen = attributes(chat)
    assert seen["gen_ai.operation.name"] == "chat" and seen["gen_ai.request.model"] == got["model"]
    assert seen["gen_ai.usage.output_tokens"] == str(got["usage"]["output_tokens"])
    assert seen["gen_ai.request.max_tokens"] == "3" and seen["gen_ai.response.id"] == got["run"]
    assert len([s for s in spans if s["traceId"] == chat["traceId"]]) > 100
    resource = attributes({"attributes": collector.delivered()[0]["resourceSpans"][0]["resource"]["attributes"]})
    assert resource == {"service.name": "cutaway"}


def test_the_environment_s_endpoint_headers_and_resource():
    with Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url + "/otlp/",
               "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}%2C1,x-tenant=a",
               "OTEL_SERVICE_NAME": "kitchen", "OTEL_RESOURCE_ATTRIBUTES": "deployment=test%20bed"}
        _, err, _ = traced("otlp", env=env)
    assert err == ""
    assert set(collector.paths) == {"/otlp/v1/traces"}
    assert all(h["api-key"] == SECRET + ",1" and h["x-tenant"] == "a" for h in collector.headers)
    resource = attributes({"attributes": collector.delivered()[0]["resourceSpans"][0]["resource"]["attributes"]})
    assert resource == {"service.name": "kitchen", "deployment": "test bed"}


def test_keys_are_nowhere_but_in_their_header():
    with Collector(Reply(status=401, body=b"who are you?")) as collector:
        url = collector.url.replace("http://", f"http://user:{SECRET}@")
        env = {"OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}"}
        done = ok(["run", *TINY, "--json", "-n", "2", "--trace", "functions", "--trace-out", url, "hi"], env=env)
        bodies = b"".join(body for _, body in collector.requests)
    assert collector.headers[0]["api-key"] == SECRET
    assert SECRET not in done.err and SECRET.encode() not in done.out + bodies
    assert "401, who are you?" in done.err and collector.url + "/v1/traces" in done.err


def test_a_run_joins_its_caller_s_trace():
    env = {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01", "TRACESTATE": "vendor=1"}
    with Collector() as collector:
        traced(collector.url, env=env)
        spans = collector.spans()
    traced("t.otlp.jsonl", env=env)
    for line in (FOLDER / "t.otlp.jsonl").read_text().splitlines():
        spans += [s for r in json.loads(line)["resourceSpans"] for c in r["scopeSpans"] for s in c["spans"]]
    spans_in_order(spans)
    assert {span["traceId"] for span in spans} == {TRACE}
    assert {span["traceState"] for span in spans} == {"vendor=1"}
    ids = {span["spanId"] for span in spans}
    assert {span["parentSpanId"] for span in spans if span["parentSpanId"] not in ids} == {PARENT}
    assert len([span for span in spans if span["name"].startswith("chat ")]) == 2
    _, err, _ = traced("t.otlp.jsonl", env={"TRACEPARENT": "yesterday"})
    assert "TRACEPARENT is 'yesterday'" in err


def test_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    got, err, seconds = traced(url)
    assert got["logits_hash"] == plain_hash()
    warning = re.fullmatch(r"cutaway: warning: (\d+) of (\d+) spans of the trace did not reach "
                           + re.escape(url) + r"/v1/traces; \1 were given up \(.*\)\n", err)
    assert warning and warning[1] == warning[2], err
    assert seconds < 5


def test_busy_then_ok_loses_nothing():
    busy = Reply(status=503, headers={"Retry-After": "1"})
    with Collector(busy, Reply(status=429, headers={"Retry-After": "0"}), Reply()) as collector:
        _, err, _ = traced(collector.url, "--trace", "phases")
    assert "warning" not in err, err
    assert [status for status, _ in collector.requests][:3] == [503, 429, 200]
    assert 0.9 < collector.times[1] - collector.times[0] < 3, collector.times
    assert len({body for _, body in collector.requests[:3]}) == 1, "a retry is the same request"
    spans_in_order(collector.spans())


def test_a_retry_without_a_hint_comes_later():
    with Collector(Reply(status=502), Reply(status=504), Reply()) as collector:
        _, err, _ = traced(collector.url, "--trace", "phases")
    first, second = (b - a for a, b in zip(collector.times, collector.times[1:3]))
    assert "warning" not in err and 0.5 < first < second, collector.times


def test_an_answer_that_says_no_is_not_asked_again():
    with Collector(Reply(status=400, body=b"bad \x1b[31mdata")) as collector:
        got, err, seconds = traced(collector.url, "--trace", "phases")
    assert len(collector.requests) == 1 and got["logits_hash"] == plain_hash()
    assert "the answer was 400" in err and "\x1b" not in err and seconds < 5, err


def test_a_redirect_is_not_followed():
    with Collector() as other, Collector(Reply(status=307, headers={"Location": other.url})) as collector:
        _, err, _ = traced(collector.url, "--trace", "phases", env={"OTEL_EXPORTER_OTLP_HEADERS": f"k={SECRET}"})
    assert other.requests == [] and "307" in err


def test_a_collector_that_hangs_ends_after_the_timeout():
    with Collector(Reply(delay=60)) as collector:
        got, err, seconds = traced(collector.url, env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1500"})
    assert got["logits_hash"] == plain_hash()
    assert "did not reach" in err and seconds < 15, (err, seconds)


def test_the_answer_is_there_before_the_collector_has_its_trace():
    with Collector(Reply(delay=60)) as collector:
        begin = time.monotonic()
        env = program.environment(FOLDER, {"OTEL_EXPORTER_OTLP_TIMEOUT": "8000"})
        process = subprocess.Popen([program.binary(), "run", *TINY, "-n", "2", "--trace-out", collector.url, "hi"],
                                   cwd=FOLDER, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = process.stdout.readline()
        answered = time.monotonic() - begin
        _, err = process.communicate(timeout=60)
    assert line and process.returncode == 0 and b"did not reach" in err
    assert answered + 3 < time.monotonic() - begin


def test_a_slow_collector_gets_all_of_it():
    with Collector(Reply(delay=0.3)) as collector:
        _, err, _ = traced(collector.url)
        assert err == "", err
        spans = collector.spans()
    spans_in_order(spans)
    assert len(spans) > 300


def test_a_huge_answer_is_not_read():
    with Collector(Reply(body=b"{" + b" " * 50_000_000 + b"}")) as collector:
        got, err, _ = traced(collector.url, "--trace", "phases")
    assert "warning" not in err and got["timings"]["peak_rss_mb"] < 100


def test_an_answer_that_is_no_json_is_an_answer():
    for body, kind in ((b"\x0a\x00\xff", "application/x-protobuf"), (b"", "text/plain"), (b"[1]", "application/json")):
        with Collector(Reply(body=body, kind=kind)) as collector:
            _, err, _ = traced(collector.url, "--trace", "phases")
        assert "warning" not in err, (body, err)


def test_a_partial_success_is_reported():
    partial = {"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old \x1b[31m" + "x" * 5000}}
    with Collector(Reply(body=json.dumps(partial).encode())) as collector:
        _, err, _ = traced(collector.url, "--trace", "phases")
    warning = [line for line in err.splitlines() if "warning" in line]
    assert len(warning) == 1 and "refused 3 of" in warning[0] and "too old" in warning[0], err
    assert "\x1b" not in err and len(warning[0]) < 500


def test_a_url_that_is_none():
    for target, env, said in (("otlp:localhost:4318", {}, "http://HOST:PORT"),
                              ("otlp", {"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://h"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
                              ("otlp", {"OTEL_EXPORTER_OTLP_TIMEOUT": "x"}, "milliseconds"),
                              ("otlp", {"OTEL_EXPORTER_OTLP_HEADERS": f"a=1,{SECRET}"}, "entry 2")):
        done = ok(["run", *TINY, "--trace-out", target, "hi"], 2, env=env)
        assert said in done.err and SECRET not in done.err and done.out == b"", done.err
    done = ok(["run", *TINY, "--trace-out", "otlp", "hi"], 1, env={"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "http/json" in done.err


def test_ctrl_c_while_a_collector_hangs():
    with Collector(Reply(delay=60)) as collector:
        process = subprocess.Popen([program.binary(), "run", *TINY, "-n", "2", "--trace-out", collector.url, "hi"],
                                   cwd=FOLDER, env=program.environment(FOLDER), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        assert process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)  # the second one ends the program as usual
        process.communicate(timeout=5)
    assert process.returncode == -signal.SIGINT


if __name__ == "__main__":
    sys.exit(cli_test.main(globals()))
