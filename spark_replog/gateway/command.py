"""Runs a gateway in this process until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

from spark_replog.cluster.cluster import Cluster
from spark_replog.config.gateway import GatewayConfig
from spark_replog.gateway.gateway import Gateway, Node
from spark_replog.gateway.server import Server


def serve(cluster: Cluster, config: GatewayConfig, bound: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serve a store on a bound socket until SIGTERM or Ctrl-C; then answer what was read, and return.

    Args:
        on_ready: called with the address, HOST:PORT, once clients can connect.
    """
    asyncio.run(_serve(cluster, config, bound, on_ready))


async def _serve(
    cluster: Cluster, config: GatewayConfig, bound: socket.socket, on_ready: Callable[[str], None]
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    host, port = bound.getsockname()[:2]
    gateway = Gateway(cluster, config, Node(0, host, port))
    await gateway.run(cluster.refresh)  # fails here if the store cannot be read
    server = Server(gateway)
    await server.start(sock=bound)
    on_ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    await ended.wait()
    await server.close()
