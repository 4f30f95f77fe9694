"""A TCP relay in a process of its own that passes on only so many bytes a second of EACH connection, as clouds do."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

_PIECE_BYTES = 256 << 10


class LimitedRelay:
    """Relays to one server on the loopback interface, from entering it on until it is left.

    Args:
        upstream_port: the server's.
        connection_mb_s: how many MB (10^6 bytes) of what a client sends are passed on a second, of each connection.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, upstream_port: int, connection_mb_s: float) -> None:
        self.port = 0
        self._upstream_port, self._connection_mb_s = upstream_port, connection_mb_s

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        arguments = there, self._upstream_port, self._connection_mb_s * 1e6
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        self.port = here.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()


def _run(pipe: Connection, upstream_port: int, bytes_a_second: float) -> None:
    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, pace: float | None) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while piece := await source.read(_PIECE_BYTES):
                sink.write(piece)
                await sink.drain()
                if pace is not None:
                    due = max(due, loop.time() - 0.01) + len(piece) / pace
                    await asyncio.sleep(max(0.0, due - loop.time()))
        except OSError:
            pass
        finally:
            sink.close()

    async def serve(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            up_source, up_sink = await asyncio.open_connection("127.0.0.1", upstream_port, limit=_PIECE_BYTES)
        except OSError:
            sink.close()
            return
        await asyncio.gather(pass_on(source, up_sink, bytes_a_second), pass_on(up_source, sink, None))

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_PIECE_BYTES)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())
