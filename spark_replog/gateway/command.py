"""Runs a gateway in this process until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_replog.cluster.cluster import Cluster
from spark_replog.config.gateway import GatewayConfig
from spark_replog.gateway.gateway import Gateway
from spark_replog.gateway.live_gateways import LiveGateways
from spark_replog.gateway.placement import Node
from spark_replog.gateway.server import Server
from spark_replog.gateway.user_file import UserFile


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a gateway is, and who may connect.

    Attributes:
        bound: socket to listen on.
        advertised: addresses that clients get: none is that of the socket, one is this gateway's, more are a list that
            is the same whatever gateways run.
        node_id: None: a free one.
        users: None: everybody may connect.
        parent: descriptor that can be read once the process that started this one has ended: then this one ends too.
        run, ended_run: see ``LiveGateways``.
    """

    bound: socket.socket
    advertised: Sequence[tuple[str, int]] = ()
    node_id: int | None = None
    rack: str | None = None
    users: UserFile | None = None
    tls: ssl.SSLContext | None = None
    parent: int | None = None
    run: str | None = None
    ended_run: str | None = None


def serve(cluster: Cluster, config: GatewayConfig, endpoint: Endpoint, on_ready: Callable[[str], None]) -> None:
    """Serve a store until SIGTERM or Ctrl-C; then answer what was read, and return.

    Args:
        on_ready: called with the address, HOST:PORT, once clients can connect.

    Raises:
        InvalidConfigError: DUPLICATE_BROKER_REGISTRATION: another gateway has the id.
        RetriableError: REPLOG_NO_QUORUM: the store cannot be read.
    """
    asyncio.run(_serve(cluster, config, endpoint, on_ready))


async def _serve(cluster: Cluster, config: GatewayConfig, endpoint: Endpoint, on_ready: Callable[[str], None]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if endpoint.parent is not None:
        loop.add_reader(endpoint.parent, ended.set)
    host, port = (endpoint.advertised if len(endpoint.advertised) == 1 else [endpoint.bound.getsockname()[:2]])[0]
    gateway = Gateway(cluster, config, Node(0, host, port, endpoint.rack), endpoint.users)
    await gateway.run(cluster.refresh)  # fails here if the store cannot be read
    server = Server(gateway)
    fixed = (
        [Node(at, *address) for at, address in enumerate(endpoint.advertised)] if len(endpoint.advertised) > 1 else []
    )
    runs = {"run": endpoint.run, "ended_run": endpoint.ended_run}
    live = LiveGateways(gateway, endpoint.node_id, fixed if len(fixed) > 1 else [], server.counts, **runs)
    await live.start()
    beats = asyncio.create_task(live.run())
    beats.add_done_callback(lambda _: ended.set())
    try:
        options: dict[str, Any] = {}
        if endpoint.tls is not None:
            options = {"ssl": endpoint.tls, "ssl_handshake_timeout": config.gateway_receive_timeout_ms / 1000}
        await server.start(sock=endpoint.bound, **options)
        on_ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await ended.wait()
        if beats.done():
            beats.result()  # another gateway has this one's id
    finally:
        if endpoint.parent is not None:
            loop.remove_reader(endpoint.parent)
        beats.cancel()
        await live.stop()
        await server.close()
