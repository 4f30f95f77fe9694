"""Gateways in this process, and a client that sends single requests to them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from dataclasses import dataclass
from typing import Any

from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from spark_replog.client.store import Store
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.gateway import GatewayConfig
from spark_replog.gateway.gateway import Gateway
from spark_replog.gateway.placement import Node
from spark_replog.gateway.server import Server
from spark_replog.gateway.user_file import UserFile
from spark_replog.ids import new_id
from tests.waiting import SECONDS_MAX


class RunningGateway:
    """A gateway of its own thread; use it in a ``with`` statement.

    Args:
        cluster: whose store it serves; None: a new store in memory.
        users: who may connect; None: everybody.
        tls: what encrypts connections; None: nothing does.
        rack: where it is.
        settings: of ``GatewayConfig``.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        node_id: int = 0,
        users: UserFile | None = None,
        tls: ssl.SSLContext | None = None,
        rack: str | None = None,
        **settings: Any,
    ) -> None:
        self.cluster = cluster or init_cluster(f"memory://gateway-{new_id()}", fsync=False)
        self.store = Store(self.cluster)
        self._config = GatewayConfig(**settings)
        self._node_id, self._users, self._tls, self._rack = node_id, users, tls, rack
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="gateway", daemon=True)

    def __enter__(self) -> RunningGateway:
        self._thread.start()
        assert self._ready.wait(SECONDS_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End it as SIGTERM does, if it has not ended."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        bound = socket.create_server(("127.0.0.1", 0))
        self.port = bound.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        node = Node(self._node_id, "127.0.0.1", self.port, self._rack)
        self.gateway = Gateway(self.cluster, self._config, node, self._users)
        self.server = server = Server(self.gateway)
        await server.start(sock=bound, **({} if self._tls is None else {"ssl": self._tls}))
        self._ready.set()
        await self._ended.wait()
        await server.close()

    def client(self, tls: ssl.SSLContext | None = None) -> WireClient:
        """Return a new connection."""
        return WireClient(self.port, tls)


class WireClient:
    """One connection; use it in a ``with`` statement."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self._file = self.socket.makefile("rb")
        self._sent: list[tuple[int, Any]] = []

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, request: Any, version: int) -> None:
        """Send a request."""
        request.API_VERSION = version
        request.with_header(correlation_id=len(self._sent), client_id="wire")
        self._sent.append((version, request))
        self.socket.sendall(request.encode(header=True, framed=True))

    def receive(self, number: int = -1) -> Any:
        """Return the next answer, which must be that of this request; by default of the last one."""
        version, request = self._sent[number]
        (size_bytes,) = struct.unpack(">i", self._file.read(4) or b"\xff\xff\xff\xff")
        if size_bytes < 0:
            raise ConnectionError("closed")
        frame = self._file.read(size_bytes)
        (correlation_id,) = struct.unpack(">i", frame[:4])
        assert correlation_id == number % len(self._sent)
        return request.header.get_response_class().decode(frame, version=version, header=True)

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and return its answer."""
        self.send(request, version)
        return self.receive()

    @property
    def is_closed(self) -> bool:
        """Wait for bytes; return whether the gateway has closed the connection instead."""
        return self._file.read(1) == b""


@dataclass(frozen=True)
class Sender:
    """An idempotent producer."""

    id: int
    epoch: int = 0


def record_batch(*values: bytes | None, sender: Sender | None = None, sequence: int = -1, key: bytes | None = None,
                 time_ms: int = 1_000) -> bytes:  # fmt: skip
    """Return one record batch of these values."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    if sender is not None:
        builder.set_producer_state(sender.id, sender.epoch, sequence, False)
    for value in values:
        assert builder.append(timestamp=time_ms, key=key, value=value, headers=[]) is not None
    builder.close()
    return bytes(builder.buffer())


def records_of(data: bytes | None) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of the records in record batches."""
    batches = MemoryRecords(data or b"")
    records = []
    while (batch := batches.next_batch()) is not None:
        records += [(record.offset, record.key, record.value) for record in batch]
    return records
