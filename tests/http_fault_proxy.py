"""An HTTP proxy that knows request boundaries, so that an answer can be lost AFTER the server took effect."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from spark_replog.clock import SYSTEM_CLOCK

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


class HttpFault(Enum):
    """When the server sees the request."""

    BEFORE = "before"
    """Never: the proxy answers in its place."""
    AFTER = "after"
    """It does, and its answer is replaced."""
    HANG = "hang"
    """It does, and the client waits for its answer until ``HttpFaultProxy.clear``."""
    CUT_ANSWER = "cut answer"
    """It does, and the connection ends in the middle of its answer's body."""
    CUT_REQUEST = "cut request"
    """It never does: the connection ends in the middle of the request's body."""


@dataclass(frozen=True, slots=True)
class PlannedAnswer:
    """What the client gets instead of the server's answer.

    Args:
        when: whether the server sees the request.
        status: HTTP status; 0 drops the connection without any answer. Of BEFORE and AFTER only.
        body: the answer's body (an S3 error document, say).
    """

    when: HttpFault
    status: int = 0
    body: bytes = b""


class HttpFaultProxy:
    """Forwards to one server.

    Args:
        upstream_port: the server's port on the loopback interface.
        one_at_a_time: whether one request waits for another, which makes a check-then-store server atomic.
        delay_ms: how long each request waits here, beside others: a network's round trip.

    Attributes:
        port: where clients connect.
        requests: methods and paths that arrived.
    """

    def __init__(self, upstream_port: int, *, one_at_a_time: bool = True, delay_ms: float = 0) -> None:
        self.requests: list[tuple[str, str]] = []
        self.delay_ms = delay_ms
        self._turn = threading.Lock() if one_at_a_time else contextlib.nullcontext()
        self._released = threading.Event()
        self._upstream_port = upstream_port
        self._planned: dict[str, deque[tuple[str, PlannedAnswer]]] = {}
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
        self.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def plan(self, method: str, answer: PlannedAnswer, *, times: int = 1, part: str = "") -> None:
        """Use the answer for the next requests of a method whose path and query hold ``part``."""
        with self._lock:
            self._planned.setdefault(method, deque()).extend([(part, answer)] * times)

    def is_planned(self) -> bool:
        """Return whether a plan still waits for its request."""
        with self._lock:
            return any(self._planned.values())

    def clear(self) -> None:
        """Forget plans and recorded requests; who hangs is hung up on."""
        with self._lock:
            self._planned.clear()
            self.requests.clear()
            self._released.set()
            self._released = threading.Event()

    def arrive(self, method: str, path: str) -> PlannedAnswer | None:
        """Record a request; return what is planned for it."""
        with self._lock:
            self.requests.append((method, path))
            waiting = self._planned.get(method)
            return waiting.popleft()[1] if waiting and waiting[0][0] in path else None

    def exchange(
        self, planned: PlannedAnswer | None, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body for the client; status 0 means: hang up."""
        released = self._released
        if planned is not None and planned.when is HttpFault.BEFORE:
            return planned.status, [], planned.body
        with self._turn:
            connection = http.client.HTTPConnection("127.0.0.1", self._upstream_port, timeout=30)
            try:
                connection.request(method, path, body=body or None, headers=headers)
                answer = connection.getresponse()
                answer_body = answer.read()
                answer_headers = answer.getheaders()
            except (OSError, http.client.HTTPException):  # the server is away
                return 0, [], b""
            finally:
                connection.close()
        if planned is not None and planned.when is HttpFault.HANG:
            released.wait()
            return 0, [], b""
        if planned is not None and planned.when is HttpFault.AFTER:
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
        size_bytes = int(self.headers.get("Content-Length", 0))
        planned = self.owner.arrive(self.command, self.path)
        if planned is not None and planned.when is HttpFault.CUT_REQUEST:
            self.rfile.read(size_bytes // 2)
            self._cut()
            return
        body = self.rfile.read(size_bytes)
        SYSTEM_CLOCK.sleep_ms(self.owner.delay_ms)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        status, answer_headers, answer_body = self.owner.exchange(planned, self.command, self.path, headers, body)
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
        if planned is not None and planned.when is HttpFault.CUT_ANSWER:
            self.wfile.write(answer_body[: len(answer_body) // 2])
            self._cut()
        elif self.command != "HEAD":
            self.wfile.write(answer_body)

    def _cut(self) -> None:
        """Reset the connection."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve


__all__ = ["HttpFault", "HttpFaultProxy", "PlannedAnswer"]
