"""One connection's bytes: requests are received into their own memory, without a copy in between."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

AHEAD_BYTES = 8 * 1024
"""What is received of a connection while no request of it is read; further bytes wait in its socket."""
SIZE_BYTES = 4


class FrameStream(asyncio.BufferedProtocol):
    """Reads frames, and writes answers. Belongs to one event loop; one task reads and one writes.

    Args:
        serve: called with this object once a client has connected; the coroutine is run as a task.

    Attributes:
        host: the client's address without its port.
        ssl_object: of the connection, once a client has connected; None without TLS.
    """

    def __init__(self, serve: Callable[[FrameStream], Coroutine[Any, Any, None]]) -> None:
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._ahead = bytearray(AHEAD_BYTES)
        self._start = self._end = 0
        self._body: memoryview | None = None
        self._filled = 0
        self._is_ended = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_full = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self.host = ""
        self.ssl_object: ssl.SSLObject | None = None

    # ------------------------------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # so `drain` waits until all was sent
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self.ssl_object = transport.get_extra_info("ssl_object")
        self._task = self._loop.create_task(self._serve(self))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: into the request that is read, else ahead."""
        if self._body is not None and self._filled < len(self._body):
            return self._body[self._filled :]
        if self._start:
            kept = self._end - self._start
            self._ahead[:kept] = self._ahead[self._start : self._end]
            self._start, self._end = 0, kept
        return memoryview(self._ahead)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were received."""
        if self._body is not None and self._filled < len(self._body):
            self._filled += nbytes
            if self._filled < len(self._body):
                return
        else:
            self._end += nbytes
            if self._end - self._start == AHEAD_BYTES:
                self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Read no further; without TLS the answers can still be sent."""
        self._is_ended = True
        self._wake()
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """End whatever waits."""
        self._is_ended = True
        self._error = exc or ConnectionResetError("the connection was closed")
        self._wake()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Let `drain` wait."""
        self._is_full = True

    def resume_writing(self) -> None:
        """All was sent."""
        self._is_full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # ------------------------------------------------------------------------------------ reading

    async def read_size(self) -> int:
        """Return the number that a frame begins with, once it is there. If this is cancelled, no byte is lost.

        Raises:
            asyncio.IncompleteReadError: the client sends no more.
        """
        while self._end - self._start < SIZE_BYTES:
            await self._more(SIZE_BYTES)
        return int.from_bytes(self._taken(SIZE_BYTES), "big", signed=True)

    async def read(self, size_bytes: int) -> bytearray:
        """Return the next bytes, once all are there. Not to be read on after this was cancelled.

        Raises:
            asyncio.IncompleteReadError: the client sends no more.
        """
        body = bytearray(size_bytes)
        taken = self._taken(min(size_bytes, self._end - self._start))
        body[: len(taken)] = taken
        if len(taken) < size_bytes:
            self._body, self._filled = memoryview(body), len(taken)
            try:
                while self._filled < size_bytes:
                    await self._more(size_bytes)
            finally:
                self._body = None
        return body

    def _taken(self, size_bytes: int) -> bytes:
        """Take bytes that were received ahead."""
        taken = bytes(memoryview(self._ahead)[self._start : self._start + size_bytes])
        self._start += size_bytes
        return taken

    async def _more(self, size_bytes: int) -> None:
        """Wait until bytes have come."""
        if self._is_ended:
            raise asyncio.IncompleteReadError(b"", size_bytes)
        self._transport.resume_reading()
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def stop_reading(self) -> None:
        """Read no more: it is as if the client had ended here."""
        self._transport.pause_reading()
        self._is_ended = True
        self._wake()

    # ------------------------------------------------------------------------------------ writing

    async def write(self, data: bytes) -> None:
        """Send bytes; return when all were given to the machine's network.

        Raises:
            ConnectionError: the client is gone.
        """
        if self._error is None:
            self._transport.write(data)
            if self._is_full:
                self._drained = self._loop.create_future()
                try:
                    await self._drained
                finally:
                    self._drained = None
        if self._error is not None:
            raise ConnectionResetError("the client is gone") from self._error

    async def close(self) -> None:
        """Close once all was sent, and wait for it."""
        self._transport.close()
        await asyncio.shield(self._closed)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
