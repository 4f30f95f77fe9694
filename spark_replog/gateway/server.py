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
from ssl import SSLError
from typing import Any

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_key import ApiKey

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.access import Session, certificate_principal
from spark_replog.gateway.api_table import API_TABLE, versions_offered
from spark_replog.gateway.frame_stream import FrameStream
from spark_replog.gateway.gateway import Call, Gateway
from spark_replog.gateway.request_decoder import ITEM_BYTES, UndecodableError, decode_request, request_classes
from spark_replog.logs import Once

_LOG = logging.getLogger(__name__)
HEADER_BYTES_MAX = 34_000
"""A header holds a client's id of up to 32,767 bytes, and hardly more."""
CLOSE_SECONDS = 1.0
"""How long a client has to say goodbye, by TLS."""
DRAIN_SECONDS = 30.0
"""How long a gateway that ends waits for the answers to what it has read."""


_told = Once()


class MemoryBudget:
    """Bytes of requests that are not answered yet. Whoever wants more than is left waits; first come, first served."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self.left_bytes = total_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        """Return how much is taken."""
        return self._total_bytes - self.left_bytes

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


class HeldBytes:
    """The share of the budget that one request holds."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget, self._size_bytes = budget, 0

    async def take(self, size_bytes: int) -> None:
        """Wait for that many bytes. A request that holds some already may not wait: see `add`."""
        self._size_bytes += await self._budget.take(size_bytes)

    def add(self, size_bytes: int) -> None:
        """Take bytes whether they are left or not; then others wait for longer."""
        self._budget.left_bytes -= size_bytes
        self._size_bytes += size_bytes

    def release(self) -> None:
        """Give all of them back."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._budget.give_back(size_bytes)


@dataclass(slots=True)
class Traffic:
    """What all connections of a gateway have carried."""

    request_count: int = 0
    refused_count: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


class _CloseConnectionError(Exception):
    """The client sent what has no answer."""


@dataclass(slots=True)
class _Pending:
    """A request whose answer is not sent yet; the answer is None if there is none to send."""

    api_key: int
    answer: asyncio.Task[bytes | None]
    held: HeldBytes
    gone: asyncio.Event
    """Set once its answer was sent, or never will be."""


class Connection:
    """One client: reads its requests, and sends its answers in their order."""

    def __init__(
        self,
        gateway: Gateway,
        budget: MemoryBudget,
        traffic: Traffic,
        stream: FrameStream,
        principal: str,
    ) -> None:
        self._gateway, self._budget, self._traffic = gateway, budget, traffic
        self._stream = stream
        limit = gateway.config.max_in_flight_requests
        self._pending: asyncio.Queue[_Pending | None] = asyncio.Queue(limit)
        self._last: _Pending | None = None
        self._is_broken = False
        self._is_ending = asyncio.Event()
        self._muted_until = 0.0
        self.session = Session(gateway.users, principal)
        self._session_until = asyncio.get_running_loop().time() + self._receive_seconds
        self.host = stream.host

    async def serve(self) -> None:
        """Read until the client goes, or sends what has no answer; what was read before is answered."""
        sender = asyncio.create_task(self._send())
        try:
            while not self._is_broken and not self.session.is_refused:
                size_bytes = await self._next_size()
                await self._unmuted()
                held = HeldBytes(self._budget)
                try:
                    if self.session.is_open:
                        await held.take(size_bytes)
                    async with asyncio.timeout(self._receive_seconds):
                        frame = await self._stream.read(size_bytes)
                    self._traffic.request_count += 1
                    self._traffic.received_bytes += 4 + size_bytes
                    await self._take(frame, held)
                    del frame  # else it stays while the next one waits for memory
                except BaseException:
                    held.release()
                    raise
        except (asyncio.IncompleteReadError, ConnectionError, SSLError):
            pass  # the client is gone
        except TimeoutError:
            _LOG.warning("closing %s: it sent a part of a request for %.0f s", self.host, self._receive_seconds)
        except _CloseConnectionError as error:
            _LOG.warning("closing %s: %s", self.host, error)
        except asyncio.CancelledError:
            sender.cancel()  # the gateway waits for no more answers
            raise
        finally:
            await self._finish(sender)

    @property
    def _receive_seconds(self) -> float:
        return self._gateway.config.gateway_receive_timeout_ms / 1000

    async def _next_size(self) -> int:
        """Wait for the next request, as long as a client may be silent, and return its size.

        Raises:
            _CloseConnectionError: it was silent for too long, or wants to send too much.
        """
        config, loop = self._gateway.config, asyncio.get_running_loop()
        while True:
            idle_seconds = config.connections_max_idle_ms / 1000
            if not self.session.is_open:
                idle_seconds = max(0.0, self._session_until - loop.time())
            try:
                async with asyncio.timeout(idle_seconds):
                    size_bytes = await self._stream.read_size()
                break
            except TimeoutError:
                if self.session.is_open and self._last is not None and not self._last.gone.is_set():
                    continue  # it waits for us
                raise _CloseConnectionError(f"it asked nothing for {idle_seconds:.0f} s") from None
        size_max = config.socket_request_max_bytes
        if not self.session.is_open:
            size_max = min(size_max, config.sasl_server_max_receive_size)
        if not 0 < size_bytes <= size_max:
            raise _CloseConnectionError(f"a request of {size_bytes} bytes; at most {size_max} are read")
        return size_bytes

    def mute(self, duration_ms: int) -> None:
        """Begin no other request for so long."""
        self._muted_until = max(self._muted_until, asyncio.get_running_loop().time() + duration_ms / 1000)

    async def _unmuted(self) -> None:
        """Wait until requests may begin. Raises ConnectionAbortedError: the gateway ends first."""
        while (left_seconds := self._muted_until - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(left_seconds):
                    await self._is_ending.wait()
            except TimeoutError:
                continue  # it may have been muted again
            raise ConnectionAbortedError("muted")

    def stop_reading(self) -> None:
        """Read no more requests."""
        self._is_ending.set()
        self._stream.stop_reading()

    async def _finish(self, sender: asyncio.Task[None]) -> None:
        """Send the answers to what was read, unless the gateway's own end does not wait for them."""
        try:
            if not sender.cancelling():
                await self._pending.put(None)
                await sender
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._stream.close()
        except (TimeoutError, OSError):
            pass  # it does not say goodbye; all answers were sent
        finally:
            sender.cancel()
            while not self._pending.empty():
                left = self._pending.get_nowait()
                if left is not None:
                    left.answer.cancel()
                    left.held.release()
            self._stream.abort()

    async def _take(self, frame: bytearray, held: HeldBytes) -> None:
        """Begin the request of a frame, in its turn: only produce requests begin before the last answer is sent."""
        key = int.from_bytes(frame[:2], "big")
        is_after_all = key != ApiKey.Produce or (self._last is not None and self._last.api_key != ApiKey.Produce)
        if is_after_all and self._last is not None:
            await self._last.gone.wait()
            await self._unmuted()
        if not self.session.may_ask(key):
            raise _CloseConnectionError(f"API {key} before the client has said who it is")
        header, call, handler, item_count = _decoded(frame, self)
        held.add(item_count * ITEM_BYTES)
        answer = asyncio.create_task(_answer(self._gateway, header, call, handler))
        self._last = _Pending(key, answer, held, asyncio.Event())
        await self._pending.put(self._last)

    async def _send(self) -> None:
        """Send answers in the order of their requests, until one says that there are no more."""
        while (item := await self._pending.get()) is not None:
            try:
                if self._is_broken:
                    item.answer.cancel()
                    continue
                data = await item.answer
                if data is not None:
                    self._traffic.sent_bytes += len(data)
                    async with asyncio.timeout(self._gateway.config.connections_max_idle_ms / 1000):
                        await self._stream.write(data)
                del data  # else it stays while this waits for the next one
                if self.session.is_refused:
                    self.stop_reading()
            except asyncio.CancelledError:
                item.answer.cancel()
                raise
            except Exception as error:
                self._break(item.api_key, error)
            finally:
                item.held.release()
                item.gone.set()

    def _break(self, api_key: int, error: Exception) -> None:
        """End the connection, since its order of answers has a gap."""
        if isinstance(error, ReplogError):
            _LOG.warning("closing %s: its request %d failed: %s", self.host, api_key, error)
        elif isinstance(error, TimeoutError):
            _LOG.warning("closing %s: it does not read its answers", self.host)
        elif not isinstance(error, ConnectionError | SSLError):
            trace = error if _told.is_first((api_key, type(error))) else None  # a client may repeat it without end
            _LOG.error("closing %s: its request %d failed: %r", self.host, api_key, error, exc_info=trace)
        self._is_broken = True
        self.stop_reading()
        self._stream.abort()


def _decoded(frame: bytearray, connection: Connection) -> tuple[Any, Call | None, Callable[..., Any] | None, int]:
    """Return a request's header, the call with its handler, and its number of items.

    There is no call for a version of ApiVersions that is not offered.

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
            return header, None, None, 0
        request, item_count = decode_request(key, version, memoryview(frame)[stream.tell() :])
    except UndecodableError as error:
        raise _CloseConnectionError(str(error)) from error
    except _CloseConnectionError:
        raise
    except Exception as error:  # whatever the decoder of headers meets
        raise _CloseConnectionError(f"a request's header cannot be decoded: {error!r}") from error
    session = connection.session
    call = Call(request, version, header.client_id or "", connection.host, session.principal, session, connection.mute)
    return header, call, api.handler, item_count


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
        self._told = Once()
        self._traffic = Traffic()

    async def start(self, **address: Any) -> None:
        """Begin to listen: on a socket (``sock=``), or on ``host=`` and ``port=``."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FrameStream(self._connect), **address)

    async def _connect(self, stream: FrameStream) -> None:
        if not self._has_room_for(stream.host):
            stream.abort()
            return
        try:
            principal = certificate_principal(stream.ssl_object) or self._gateway.principal
        except ValueError as error:
            _LOG.warning("closing %s: the name in its certificate cannot be read: %s", stream.host, error)
            stream.abort()
            return
        connection = Connection(self._gateway, self._budget, self._traffic, stream, principal)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        try:
            await connection.serve()
        except asyncio.CancelledError:
            pass  # by `close`, which waits no longer
        finally:
            del self._connections[task]

    def counts(self) -> dict[str, int]:
        """Return what this gateway has done since it started, and what it does now."""
        traffic = self._traffic
        return {
            "connections": len(self._connections),
            "requests": traffic.request_count,
            "refusedConnections": traffic.refused_count,
            "receivedBytes": traffic.received_bytes,
            "sentBytes": traffic.sent_bytes,
            "heldBytes": self._budget.held_bytes,
        }

    def _has_room_for(self, host: str) -> bool:
        config, connections = self._gateway.config, self._connections.values()
        if len(connections) >= config.max_connections:
            name, limit = "max.connections", config.max_connections
        elif sum(connection.host == host for connection in connections) >= config.max_connections_per_ip:
            name, limit = "max.connections.per.ip", config.max_connections_per_ip
        else:
            return True
        self._traffic.refused_count += 1
        if self._told.is_first((name, host)):
            _LOG.warning("refusing connections of %s: %s is %d", host, name, limit)
        return False

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
