"""A web server that can be made to fail."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` everywhere; breaks off after `cut` bytes of an answer for the first
    `failures` answers."""

    content = CONTENT
    ranges = True
    cut = 0
    failures = 0
    status = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    def url(self, name: str = "data.bin") -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.server.status:
            self.send_error(self.server.status)
            return
        start = (
            int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        )
        total = len(self.server.content)
        if start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        failing = self.server.failures > 0
        self.server.failures -= failing
        self.wfile.write(
            self.server.content[start : start + self.server.cut]
            if failing
            else self.server.content[start:]
        )

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""
