"""What all connections of one gateway share: the opened store, the settings, and threads for calls of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

from spark_replog.cluster.authorizer import default_principal
from spark_replog.cluster.cluster import Cluster
from spark_replog.config.gateway import GatewayConfig
from spark_replog.storage.io_pool import IoPool

P = ParamSpec("P")
T = TypeVar("T")
THREADS_MAX = 32
"""Calls of the store at once; each waits for storage most of its time."""


class Node(NamedTuple):
    """A gateway as clients see it: one of Kafka's brokers."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client."""

    request: Any
    """Decoded, in the class of its API."""
    version: int
    client_id: str
    client_host: str
    principal: str


class Gateway:
    """An opened store that answers Kafka's clients. Belongs to one event loop.

    Args:
        node: the address that clients get.
    """

    def __init__(self, cluster: Cluster, config: GatewayConfig, node: Node) -> None:
        self.cluster = cluster
        self.config = config
        self.node = node
        self.clock = cluster.clock
        self.principal = default_principal()
        """Of clients that have not said who they are."""
        self._threads = IoPool(lane_threads_max=THREADS_MAX)

    def nodes(self) -> list[Node]:
        """Return the gateways that clients may connect to."""
        return [self.node]

    def leader(self, topic: str, partition: int) -> Node:
        """Return the gateway that clients should ask for a partition. Any gateway serves any partition."""
        return self.node

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may block, such as every call of the store, on a thread. Raises what it raises."""
        return await asyncio.wrap_future(self._threads.submit(function, *args, **kwargs))


class Api(NamedTuple):
    """One API of Kafka: the versions that are offered, and who answers."""

    min_version: int
    max_version: int
    handler: Callable[[Gateway, Call], Awaitable[Any]]
    """Returns the response object."""
