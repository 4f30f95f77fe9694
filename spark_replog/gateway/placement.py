"""Which gateway clients ask for a partition or a group: a rendezvous hash over those that run. Pure.

Any gateway serves any partition. A hash that all share keeps the rows of a partition in one gateway's cache, and moves
only the partitions of a gateway that goes or comes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

_RACK = re.compile(r"(?:^|[,;&\s])rack=([^,;&\s]+)")
_KEPT_MAX = 100_000


class Node(NamedTuple):
    """A gateway as clients see it: one of Kafka's brokers."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def rack_of(client_id: str) -> str | None:
    """Return the rack that a client names in its client.id, as in ``billing,rack=eu-1a``; None without one."""
    match = _RACK.search(client_id)
    return None if match is None else match[1]


class Placement:
    """The gateways that run, at least one, and what each is asked for. Thread-safe."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(sorted(nodes))
        self._seeds = {node: node.node_id.to_bytes(8, "big") for node in self.nodes}
        self._racks: dict[str | None, tuple[Node, ...]] = {None: self.nodes}
        for rack in {node.rack for node in self.nodes} - {None}:
            self._racks[rack] = tuple(node for node in self.nodes if node.rack == rack)
        self._kept: dict[tuple[str, str | None], Node] = {}

    def nodes_of(self, key: str, rack: str | None = None) -> list[Node]:
        """Return the gateway for a key, then, if there are racks, that of each other one: a client may ask any."""
        first = self.node_of(key, rack)
        others = sorted(other for other in self._racks if other is not None and other != first.rack)
        return [first, *(self.node_of(key, other) for other in others)]

    def nearer(self, key: str, rack: str, here: Node) -> Node | None:
        """Return the gateway of a client's rack for a key; None: this one is as near, or the rack has none."""
        return None if not rack or rack == here.rack or rack not in self._racks else self.node_of(key, rack)

    def node_of(self, key: str, rack: str | None = None) -> Node:
        """Return the gateway for a key; of a rack that has gateways, one of these."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        node = self._kept.get((key, rack))
        if node is None:
            data = key.encode(errors="surrogatepass")
            of_rack = self._racks.get(rack, self.nodes)
            node = max(of_rack, key=lambda at: hashlib.blake2b(data, digest_size=8, key=self._seeds[at]).digest())
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[key, rack] = node
        return node
