"""A TCP relay in a process of its own that holds what clients send for a while: a network's round trip.

It knows no requests and shares no interpreter with the client that is measured, so it takes some 0.1 ms of another
processor for each call.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

CHUNK_BYTES = 1 << 18


class DelayRelay:
    """Relays to one server on the loopback interface, from entering it on until it is left.

    Args:
        upstream_port: the server's.
        delay_ms: how long each piece of what clients send is held, beside others.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, upstream_port: int, delay_ms: float) -> None:
        self.port = 0
        self._upstream_port, self._delay_ms = upstream_port, delay_ms

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        arguments = there, self._upstream_port, self._delay_ms / 1e3
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        self.port = here.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()


def _run(pipe: Connection, upstream_port: int, delay_seconds: float) -> None:
    async def serve() -> None:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
            await asyncio.gather(
                _pump(reader, server_writer, delay_seconds), _pump(server_reader, writer, 0), return_exceptions=True
            )

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_seconds: float) -> None:
    """Pass on what comes, each piece as long after it came, until one side ends."""
    loop, held = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def write() -> None:
        while (piece := await held.get())[1]:
            await asyncio.sleep(piece[0] - loop.time())
            writer.write(piece[1])
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                held.put_nowait((loop.time() + delay_seconds, data))
        held.put_nowait((0, b""))
        with suppress(ConnectionError):
            await writing
    finally:
        writer.close()
