"""A server shaped like a Hugging Face hub, and the host that its files are kept on, both local.

Repositories are dictionaries of path to bytes. What a request for a file's bytes meets is decided
by `plan`: one entry of it is used up by each such request (see Meet); without entries all goes well.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Meet:
    """How one request for bytes is answered."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None  # instead of the file
    cut_after: int | None = None  # bytes of the body, then the connection closes
    chunked: bool = False  # no Content-Length: the end is where the connection closes
    ranges: bool = True
    shift: int = 0  # a range that begins elsewhere than was asked
    part: int = 1 << 16  # bytes written at once
    pause: float = 0  # seconds between them
    hang: float = 0  # seconds before anything is answered


class Hub:
    def __init__(self, repos: dict[str, dict[str, bytes]]):
        self.repos = repos
        self.plan: list[Meet] = []
        self.always: Meet | None = None
        self.etag: str | None = None  # instead of the hash
        self.plain_files: dict[str, bytes] = {}  # /files/…, as an ordinary server has them
        self.page_size = 1000
        self.token = ""  # when set, needed for everything
        self.error_code = ""
        self.wrong_hash = False
        self.requests: list[tuple[str, str, dict[str, str]]] = []  # host, path, headers
        self.lock = threading.Lock()
        self.hub = self._serve("hub")
        self.cdn = self._serve("cdn")
        self.url = f"http://127.0.0.1:{self.hub.server_port}"
        self.cdn_url = f"http://127.0.0.1:{self.cdn.server_port}"

    def _serve(self, role: str) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                with hub.lock:
                    hub.requests.append((role, self.path, {k.lower(): v for k, v in self.headers.items()}))
                try:
                    hub._answer(role, self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # clients that go away are what is tested
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def close(self) -> None:
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def of(self, role: str) -> list[tuple[str, dict[str, str]]]:
        return [(path, headers) for where, path, headers in self.requests if where == role]

    def transferred(self) -> list[dict[str, str]]:
        """The headers of every request for a file's bytes."""
        return [h for path, h in self.of("cdn")]

    def _answer(self, role: str, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path
        if path.startswith("http://"):  # we are asked as a proxy
            path = "/" + path.split("/", 3)[3]
        path, _, query = path.partition("?")
        if path.startswith("/files/"):
            name = urllib.parse.unquote(path.removeprefix("/files/"))
            return self._bytes(handler, self.plain_files.get(name), f'"{len(name)}"')
        if role == "hub" and self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self._status(handler, 401)
        if self.error_code:
            status = 403 if self.error_code == "GatedRepo" else 404
            return self._status(handler, status)
        parts = [urllib.parse.unquote(p) for p in path.strip("/").split("/")]
        if role == "cdn":
            content = self.repos.get("/".join(parts[:2]), {}).get("/".join(parts[2:]))
            return self._bytes(handler, content, self.etag or self._hash(content or b""))
        if parts[:2] == ["api", "models"] and len(parts) == 6 and parts[4] == "tree":
            return self._tree(handler, "/".join(parts[2:4]), urllib.parse.parse_qs(query))
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._resolve(handler, "/".join(parts[:2]), "/".join(parts[4:]))
        return self._status(handler, 404)

    @staticmethod
    def _hash(content: bytes) -> str:
        return f'"{hashlib.sha256(content).hexdigest()}"'

    def _status(self, handler, status: int, headers: dict[str, str] | None = None, body: bytes = b"no") -> None:
        handler.send_response(status)
        if self.error_code:
            handler.send_header("X-Error-Code", self.error_code)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _tree(self, handler, repo: str, query: dict) -> None:
        if repo not in self.repos:
            return self._status(handler, 404, {"X-Error-Code": "RepoNotFound"})
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        for path, content in self.repos[repo].items():
            entry = {"type": "file", "oid": "0" * 40, "size": len(content), "path": path}
            if path.endswith((".gguf", ".safetensors")):
                oid = "0" * 64 if self.wrong_hash else hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        begin = int(query.get("cursor", ["0"])[0])
        page, headers = entries[begin:begin + self.page_size], {}
        if begin + self.page_size < len(entries):
            headers["Link"] = (f'<{self.url}/api/models/{repo}/tree/main?recursive=true&cursor='
                               f'{begin + self.page_size}>; rel="next"')
        return self._status(handler, 200, headers, json.dumps(page).encode())

    def _resolve(self, handler, repo: str, path: str) -> None:
        if path not in self.repos.get(repo, {}):
            return self._status(handler, 404, {"X-Error-Code": "EntryNotFound"})
        quoted = urllib.parse.quote(f"/{repo}/{path}")
        return self._status(handler, 302, {"Location": f"{self.cdn_url}{quoted}?X-Signature=secret",
                                           "X-Linked-Etag": self._hash(self.repos[repo][path])}, b"")

    def _bytes(self, handler, content: bytes | None, etag: str) -> None:
        with self.lock:
            meet = self.plan.pop(0) if self.plan else self.always or Meet()
        time.sleep(meet.hang)
        if content is None:
            return self._status(handler, 404)
        if meet.status != 200:
            return self._status(handler, meet.status, meet.headers, meet.body or b"no")
        status, begin, body = 200, 0, content if meet.body is None else meet.body
        asked = handler.headers.get("Range", "")
        fresh = handler.headers.get("If-Range") in (None, etag)
        headers = {"ETag": etag, "Content-Type": "application/octet-stream",
                   "Content-Disposition": 'attachment; filename="../../evil.gguf"', **meet.headers}
        if meet.ranges and asked and fresh:
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                return self._status(handler, 416, {"Content-Range": f"bytes */{len(body)}"})
            status, begin = 206, begin + meet.shift
            headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if meet.chunked:
            handler.send_header("Connection", "close")
            handler.close_connection = True
        else:
            handler.send_header("Content-Length", str(len(body) - begin))
        handler.end_headers()
        rest = body[begin:]
        if meet.cut_after is not None:
            rest = rest[:meet.cut_after]
            handler.close_connection = True
        for at in range(0, len(rest), meet.part):
            handler.wfile.write(rest[at:at + meet.part])
            time.sleep(meet.pause)
        handler.wfile.flush()
        return None
