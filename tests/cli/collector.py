"""A collector-shaped server for tests: takes OTLP over HTTP in JSON, and fails as a test wants."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0  # before the answer; a server that hangs has a long one
    kind: str = "application/json"


class Collector:
    """`replies` answers one request each, in their order; then the last one, or 200, answers all."""

    def __init__(self, *replies: Reply, port: int = 0):
        self.replies, self.requests, self.times = list(replies), [], []
        self.paths, self.headers = [], []
        self._lock, self._closing = threading.Lock(), threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # noqa: N802: the name that http.server calls
                body = self.rfile.read(int(self.headers["Content-Length"]))
                reply = collector.take(self, body)
                collector._closing.wait(reply.delay)
                try:
                    self.send_response(reply.status)
                    for name, value in {"Content-Type": reply.kind, **reply.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(reply.body)))
                    self.end_headers()
                    self.wfile.write(reply.body)
                except OSError:
                    pass  # the program has left

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, handler, body: bytes) -> Reply:
        with self._lock:
            self.paths.append(handler.path)
            self.headers.append(dict(handler.headers.items()))
            self.times.append(time.monotonic())
            reply = self.replies.pop(0) if len(self.replies) > 1 else (self.replies or [Reply()])[0]
            self.requests.append((reply.status, body))
            return reply

    def delivered(self) -> list[dict]:
        """The requests that were answered with a 2xx status."""
        return [json.loads(body) for status, body in self.requests if 200 <= status < 300]

    def spans(self) -> list[dict]:
        return [span for request in self.delivered() for resource in request["resourceSpans"]
                for scope in resource["scopeSpans"] for span in scope["spans"]]

    def close(self) -> None:
        self._closing.set()
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_) -> None:
        self.close()
