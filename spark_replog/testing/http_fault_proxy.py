"""An HTTP proxy that knows request boundaries, so that an answer can be lost AFTER the server took effect."""

from __future__ import annotations

import http.client
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


class HttpFault(Enum):
    """When the server sees the request."""

    BEFORE = "before"
    """Never: the proxy answers in its place."""
    AFTER = "after"
    """It does, and its answer is replaced."""


@dataclass(frozen=True, slots=True)
class PlannedAnswer:
    """What the client gets instead of the server's answer.

    Args:
        when: whether the server sees the request.
        status: HTTP status; 0 drops the connection without any answer.
        body: the answer's body (an S3 error document, say).
    """

    when: HttpFault
    status: int
    body: bytes = b""


class HttpFaultProxy:
    """Forwards to one server; one request at a time, which makes a check-then-store server atomic.

    Args:
        upstream_port: the server's port on the loopback interface.

    Attributes:
        port: where clients connect.
        requests: methods and paths that arrived.
    """

    def __init__(self, upstream_port: int) -> None:
        self.requests: list[tuple[str, str]] = []
        self._upstream_port = upstream_port
        self._planned: dict[str, deque[PlannedAnswer]] = {}
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> HttpFaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def plan(self, method: str, answer: PlannedAnswer, *, times: int = 1) -> None:
        """Use the answer for the next requests of a method."""
        with self._lock:
            self._planned.setdefault(method, deque()).extend([answer] * times)

    def clear(self) -> None:
        """Forget plans and recorded requests."""
        with self._lock:
            self._planned.clear()
            self.requests.clear()

    def exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body for the client; status 0 means: hang up."""
        with self._lock:
            self.requests.append((method, path))
            waiting = self._planned.get(method)
            planned = waiting.popleft() if waiting else None
            if planned is not None and planned.when is HttpFault.BEFORE:
                return planned.status, [], planned.body
            connection = http.client.HTTPConnection("127.0.0.1", self._upstream_port, timeout=30)
            try:
                connection.request(method, path, body=body or None, headers=headers)
                answer = connection.getresponse()
                answer_body = answer.read()
                answer_headers = answer.getheaders()
            finally:
                connection.close()
            if planned is not None:
                return planned.status, [], planned.body
            return answer.status, answer_headers, answer_body


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of 5, a burst of connections loses some, and each is tried again a second later


class _Handler(BaseHTTPRequestHandler):
    owner: ClassVar[HttpFaultProxy]
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer: else Nagle and delayed acknowledgements cost 40 ms each

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: tests read ``requests``."""

    def handle_expect_100(self) -> bool:
        """Let the client send its body now."""
        told = super().handle_expect_100()
        self.wfile.flush()
        return told

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        status, answer_headers, answer_body = self.owner.exchange(self.command, self.path, headers, body)
        if status == 0:
            self.close_connection = True
            return
        self.send_response_only(status)
        length = str(len(answer_body))
        for name, value in answer_headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD answer
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer_body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve


__all__ = ["HttpFault", "HttpFaultProxy", "PlannedAnswer"]
