"""Listens, reads requests frame by frame, and answers each connection in the order of its requests.

A request begins when all before it on its connection are answered, as in a broker of Kafka. Only produce requests begin
while others are open: they are taken in their order, and their answers come in this order too.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_key import ApiKey

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.api_table import API_TABLE, request_classes, versions_offered
from spark_replog.gateway.gateway import Call, Gateway

_LOG = logging.getLogger(__name__)
READ_BYTES = 1 << 20
"""What a connection's buffer holds before its socket is read no further."""
HEADER_BYTES_MAX = 34_000
"""A header holds a client's id of up to 32,767 bytes, and hardly more."""
DRAIN_SECONDS = 30.0
"""How long a gateway that ends waits for the answers to what it has read."""


class MemoryBudget:
    """Bytes of requests that are not answered yet. Whoever wants more than is left waits; first come, first served."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self.left_bytes = total_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size_bytes: int) -> int:
        """Wait for that many bytes, at most all of them; return how many are to be given back."""
        size_bytes = min(size_bytes, self._total_bytes)
        if self._waiting or self.left_bytes < size_bytes:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back(size_bytes)
                raise
        else:
            self.left_bytes -= size_bytes
        return size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Return bytes, and let those go on who waited for them."""
        self.left_bytes += size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self.left_bytes):
            wanted_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.left_bytes -= wanted_bytes
                turn.set_result(None)


class _CloseConnectionError(Exception):
    """The client sent what has no answer."""


@dataclass(slots=True)
class _Pending:
    """A request whose answer is not sent yet; the answer is None if there is none to send."""

    api_key: int
    answer: asyncio.Task[bytes | None]
    held_bytes: int


class Connection:
    """One client: reads its requests, and sends its answers in their order."""

    def __init__(
        self, gateway: Gateway, budget: MemoryBudget, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._gateway, self._budget = gateway, budget
        self._reader, self._writer = reader, writer
        limit = gateway.config.max_in_flight_requests
        self._pending: asyncio.Queue[_Pending | None] = asyncio.Queue(limit)
        self._last: asyncio.Task[bytes | None] | None = None
        self._last_key = -1
        self.principal = gateway.principal
        peer = writer.get_extra_info("peername")
        self.host = str(peer[0]) if isinstance(peer, tuple) and peer else ""

    async def serve(self) -> None:
        """Read until the client goes, or sends what has no answer; what was read before is answered."""
        sender = asyncio.create_task(self._send())
        try:
            while True:
                size_bytes = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
                if not 0 < size_bytes <= self._gateway.config.socket_request_max_bytes:
                    _LOG.warning("closing %s: a request of %d bytes", self.host, size_bytes)
                    break
                held_bytes = await self._budget.take(size_bytes)
                try:
                    await self._take(await self._reader.readexactly(size_bytes), held_bytes)
                except BaseException:
                    self._budget.give_back(held_bytes)
                    raise
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        except _CloseConnectionError as error:
            _LOG.warning("closing %s: %s", self.host, error)
        finally:
            await self._finish(sender)

    def stop_reading(self) -> None:
        """Read no more requests."""
        self._reader.feed_eof()

    async def _finish(self, sender: asyncio.Task[None]) -> None:
        """Send the answers to what was read, unless the gateway's own end does not wait for them."""
        try:
            if not sender.done():
                await self._pending.put(None)
            await sender
        finally:
            sender.cancel()
            while not self._pending.empty():
                left = self._pending.get_nowait()
                if left is not None:
                    left.answer.cancel()
                    self._budget.give_back(left.held_bytes)
            self._writer.close()

    async def _take(self, frame: bytes, held_bytes: int) -> None:
        """Begin the request of a frame, in its turn."""
        header, call, handler = _decoded(frame, self)
        is_after_all = header.request_api_key != ApiKey.Produce or self._last_key != ApiKey.Produce
        if is_after_all and self._last is not None:
            await asyncio.wait([self._last])
        answer = asyncio.create_task(_answer(self._gateway, header, call, handler))
        self._last, self._last_key = answer, header.request_api_key
        await self._pending.put(_Pending(header.request_api_key, answer, held_bytes))

    async def _send(self) -> None:
        """Send answers in the order of their requests, until one says that there are no more."""
        while (item := await self._pending.get()) is not None:
            try:
                data = await item.answer
                if data is not None:
                    self._writer.write(data)
                    await self._writer.drain()
            except asyncio.CancelledError:
                item.answer.cancel()
                raise
            except Exception as error:
                if isinstance(error, ReplogError):
                    _LOG.warning("closing %s: its request %d failed: %s", self.host, item.api_key, error)
                elif not isinstance(error, ConnectionError):
                    _LOG.exception("closing %s: its request %d failed", self.host, item.api_key)
                self._reader.feed_eof()
                self._writer.close()
                return
            finally:
                self._budget.give_back(item.held_bytes)


def _decoded(frame: bytes, connection: Connection) -> tuple[Any, Call | None, Callable[..., Any] | None]:
    """Return a request's header, and the call with its handler: none for a version of ApiVersions that is not offered.

    Raises:
        _CloseConnectionError: it is no request of an API and version that is offered.
    """
    try:
        key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        api, request_class = API_TABLE.get(key), request_classes().get(key)
        is_offered = api is not None and api.min_version <= version <= api.max_version
        if api is None or request_class is None or not (is_offered or key == ApiKey.ApiVersions):
            raise _CloseConnectionError(f"API {key} in version {version} is not offered")
        stream = io.BytesIO(frame[:HEADER_BYTES_MAX])
        header = RequestHeader.decode(stream, flexible=is_offered and request_class.flexible_version_q(version))
        if not is_offered:
            return header, None, None
        request = request_class.decode(memoryview(frame)[stream.tell() :], version=version)
    except _CloseConnectionError:
        raise
    except Exception as error:  # whatever the decoder meets in bytes that are no request
        raise _CloseConnectionError(f"a request cannot be decoded: {error!r}") from error
    call = Call(request, version, header.client_id or "", connection.host, connection.principal)
    return header, call, api.handler


async def _answer(gateway: Gateway, header: Any, call: Call | None, handler: Callable[..., Any] | None) -> bytes | None:
    """Return the frame that answers a request; None if its client expects none."""
    version = header.request_api_version
    if call is None or handler is None:  # a version of ApiVersions that is not offered: Kafka answers this in version 0
        version, response = 0, versions_offered(ErrorCode.UNSUPPORTED_VERSION)
    else:
        response = await handler(gateway, call)
    if response is None:
        return None
    response.API_VERSION = version
    response.with_header(correlation_id=header.correlation_id)
    data: bytes = response.encode(header=True, framed=True)
    return data


class Server:
    """The listening gateway.

    Args:
        gateway: whose node gives the address to listen on.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._budget = MemoryBudget(gateway.config.queued_max_request_bytes)
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._server: asyncio.Server | None = None

    async def start(self, **address: Any) -> None:
        """Begin to listen: on a socket (``sock=``), or on ``host=`` and ``port=``."""
        self._server = await asyncio.start_server(self._connect, limit=READ_BYTES, **address)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self._gateway, self._budget, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        try:
            await connection.serve()
        finally:
            del self._connections[task]

    async def close(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Listen no more, read no more requests, answer those that were read, and end."""
        assert self._server is not None
        self._server.close()
        for connection in self._connections.values():
            connection.stop_reading()
        self._gateway.drain()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=drain_seconds)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._gateway.close()
