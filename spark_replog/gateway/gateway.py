"""What all connections of one gateway share: the opened store, the settings, and threads for calls of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from spark_replog.cluster.authorizer import default_principal
from spark_replog.cluster.cluster import Cluster
from spark_replog.config.gateway import GatewayConfig
from spark_replog.errors import ErrorCode
from spark_replog.gateway.placement import Node, Placement, rack_of
from spark_replog.gateway.user_file import UserFile
from spark_replog.ids import LedgerId
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.storage.io_pool import IoPool

P = ParamSpec("P")
T = TypeVar("T")
THREADS_MAX = 32
"""Calls of the store at once; each waits for storage most of its time."""


UNKNOWN_LEADER_EPOCH = 75


def epoch_error(asked_epoch: int, leader_epoch: int) -> int:
    """Return the error code for the leader epoch that a client believes in; -1 is none."""
    if asked_epoch < 0 or asked_epoch == leader_epoch:
        return 0
    return int(ErrorCode.FENCED_LEADER_EPOCH) if asked_epoch < leader_epoch else UNKNOWN_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client."""

    request: Any
    """Decoded, in the class of its API."""
    version: int
    client_id: str
    client_host: str
    principal: str
    session: Any = None
    """Of the connection: see ``access.Session``."""
    mute: Callable[[int], None] = lambda _: None
    """Begins no other request of the connection for so many ms: its client was told to wait, and may not."""


class Gateway:
    """An opened store that answers Kafka's clients. Belongs to one event loop.

    Args:
        node: the address that clients get.
        users: who may connect; None: everybody.
    """

    def __init__(self, cluster: Cluster, config: GatewayConfig, node: Node, users: UserFile | None = None) -> None:
        self.cluster = cluster
        self.config = config
        self.node = node
        self.placement = Placement([node])
        self.clock = cluster.clock
        self.principal = default_principal()
        """Of clients that need not say who they are."""
        self.users = users
        self._threads = IoPool(lane_threads_max=THREADS_MAX)
        self._parts: dict[Callable[[Gateway], Any], Any] = {}
        self._names: dict[UUID, str] = {}
        self._listeners: list[Callable[[LedgerId], object]] = []
        self._releases: list[Callable[[], object]] = []
        self._ends: list[Callable[[], object]] = []

    def part(self, kind: Callable[[Gateway], T]) -> T:
        """Return this gateway's one object of a class that is made with the gateway alone."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        made: T = self._parts[kind]
        return made

    def on_appended(self, listener: Callable[[LedgerId], object]) -> None:
        """Call a function after each append of this gateway, on the thread that appended."""
        self._listeners.append(listener)

    def appended(self, ledger_id: LedgerId) -> None:
        """Tell that this process appended to a ledger, and has folded it. Any thread."""
        for listener in self._listeners:
            listener(ledger_id)

    def on_drain(self, release: Callable[[], object]) -> None:
        """Call a function when the gateway begins to end: what waits for other clients is to be answered now."""
        self._releases.append(release)

    def drain(self) -> None:
        """Answer what waits for other clients."""
        for release in self._releases:
            release()

    def on_close(self, end: Callable[[], object]) -> None:
        """Call a function when the gateway ends, on a thread."""
        self._ends.append(end)

    async def close(self) -> None:
        """End what runs beside the answers. Nothing may be asked of the gateway afterwards."""
        for end in self._ends:
            await self.run(end)

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with this id, as folded so far; None: there is none."""

        def is_still(state: ClusterLedgerState) -> bool:
            name = self._names.get(topic_id)
            return name is not None and state.topics.get(name, ("", ""))[0] == topic_id.hex

        if not self.cluster.cluster_ledger.ask(is_still):
            topics = self.cluster.cluster_ledger.ask(lambda state: dict(state.topics))
            self._names = {UUID(hex=ids[0]): name for name, ids in topics.items()}
        return self._names.get(topic_id)

    @property
    def is_near(self) -> bool:
        """Return whether all roots that hold journals are folders, where a call costs no money."""
        brokers = self.cluster.brokers
        return brokers.near_ids.issuperset(brokers.metadata_broker_ids)

    def nodes(self) -> Sequence[Node]:
        """Return the gateways that clients may connect to."""
        return self.placement.nodes

    def controller(self) -> Node:
        """Return the gateway that clients should ask to change topics: this one, if clients may know it."""
        return self.node if self.node in self.placement.nodes else self.placement.nodes[0]

    def replicas(self, topic: str, partition: int, client_id: str = "") -> list[Node]:
        """Return the gateways for a partition: the leader, which is of the rack that a client.id names, and one of each
        other rack.
        """
        return self.placement.nodes_of(f"{topic}-{partition}", rack_of(client_id))

    def preferred_replica(self, topic: str, partition: int, rack: str) -> int:
        """Return the gateway that a consumer of a rack should fetch a partition from (KIP-392); -1: this one."""
        node = self.placement.nearer(f"{topic}-{partition}", rack, self.node)
        return -1 if node is None else node.node_id

    def coordinator(self, key: str) -> Node:
        """Return the gateway to ask for a group: this one, which is alive; of a fixed list one by hash."""
        return self.node if self.node in self.placement.nodes else self.placement.node_of(key)

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may block, such as every call of the store, on a thread. Raises what it raises."""
        return await self.run_on("", function, *args, **kwargs)

    async def run_on(self, lane: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call on other threads than those of other lanes: one that may take long takes none of theirs."""
        return await asyncio.wrap_future(self._threads.submit_to(lane, function, *args, **kwargs))


class Api(NamedTuple):
    """One API of Kafka: the versions that are offered, and who answers."""

    min_version: int
    max_version: int
    handler: Callable[[Gateway, Call], Awaitable[Any]]
    """Returns the response object."""
