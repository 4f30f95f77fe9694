"""Which gateways of a store run: each writes notes, and looks at those of the others. See ``cluster.gateway_notes``.

A process takes its node id before it answers clients. Of two that want one id, at least one sees the other's note,
since both write to and list a majority of the metadata roots; whoever sees another steps back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from spark_replog.clock import SYSTEM_RANDOM
from spark_replog.cluster.gateway_notes import GatewayNote, GatewayNoteName, GatewayNotes, newest
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.gateway.gateway import Gateway
from spark_replog.gateway.placement import Node, Placement
from spark_replog.ids import new_id
from spark_replog.logs import event

_LOG = logging.getLogger(__name__)
NEAR_INTERVAL_MS = 3_000
FAR_INTERVAL_MS = 10_000
"""Between two notes if a root is not a folder: there each costs money."""
MISSED_MAX = 3
"""A gateway whose note has not changed for so many of its intervals does not run."""
FORGOTTEN_MS = 3_600_000
"""After so long without a change another gateway removes a note."""
LOOKS_PER_INTERVAL = 4
CLAIMS_MAX = 100


@dataclass(slots=True)
class _Sight:
    """What this process has seen of one run of a gateway."""

    number: int
    changed_ms: int
    note: GatewayNote | None = None


class Sightings:
    """Tells from the numbers of notes which gateways run, by this process's own monotonic clock. Pure."""

    def __init__(self) -> None:
        self._sights: dict[tuple[int, str], _Sight] = {}

    def see(self, names: Iterable[GatewayNoteName], now_ms: int) -> list[GatewayNoteName]:
        """Take the notes that there are now; return those that must be read, since their gateway is new."""
        there = {(name.node_id, name.run): name for name in newest(names)}
        self._sights = {key: sight for key, sight in self._sights.items() if key in there}
        for key, name in there.items():
            sight = self._sights.get(key)
            if sight is None:
                self._sights[key] = _Sight(name.number, now_ms)
            elif sight.number < name.number:
                sight.number, sight.changed_ms = name.number, now_ms
        return [name for key, name in there.items() if self._sights[key].note is None]

    def learn(self, notes: Mapping[GatewayNoteName, GatewayNote]) -> None:
        """Take the contents of notes."""
        for name, note in notes.items():
            if (name.node_id, name.run) in self._sights:
                self._sights[name.node_id, name.run].note = note

    def nodes(self, now_ms: int) -> list[Node]:
        """Return the gateways that run; of two with one id, the one that gave the last sign."""
        last: dict[int, _Sight] = {}
        for (node_id, _), sight in sorted(self._sights.items(), key=lambda item: item[1].changed_ms):
            if sight.note is not None and now_ms - sight.changed_ms < MISSED_MAX * sight.note.interval_ms:
                last[node_id] = sight
        notes = {node_id: sight.note for node_id, sight in last.items() if sight.note is not None}
        return [Node(node_id, note.host, note.port, note.rack) for node_id, note in notes.items()]

    def forgotten(self, names: Iterable[GatewayNoteName], now_ms: int) -> list[GatewayNoteName]:
        """Return the notes of gateways that ended long ago."""
        sights = [(name, self._sights.get((name.node_id, name.run))) for name in names]
        return [name for name, sight in sights if sight is not None and now_ms - sight.changed_ms >= FORGOTTEN_MS]


class LiveGateways:
    """Keeps a gateway's note, and its view of the others. Belongs to one event loop.

    Args:
        node_id: None: the lowest that no note has.
        fixed: addresses that clients get in place of those of the gateways; empty: none.
        counts: what the gateway has done.
        run: of this process; None: a new one.
        ended_run: of one that has surely ended, whose note is in the way.
    """

    def __init__(
        self,
        gateway: Gateway,
        node_id: int | None,
        fixed: Collection[Node],
        counts: Callable[[], Mapping[str, int]],
        *,
        run: str | None = None,
        ended_run: str | None = None,
    ) -> None:
        self._gateway, self._wanted_id, self._fixed = gateway, node_id, tuple(fixed)
        self._counts = counts
        self._notes = GatewayNotes(gateway.cluster)
        self._clock = gateway.cluster.clock
        self._run, self._number = run or new_id(), 0
        self._ended_run = ended_run
        self._sightings = Sightings()
        self._started_ms = self._clock.now_ms()
        interval_ms = gateway.config.gateway_heartbeat_interval_ms
        self._interval_ms = interval_ms or (NEAR_INTERVAL_MS if gateway.is_near else FAR_INTERVAL_MS)
        self._is_told = False

    async def start(self) -> None:
        """Take the node id, and learn of the others.

        Raises:
            InvalidConfigError: DUPLICATE_BROKER_REGISTRATION: a gateway with this id runs.
            RetriableError: REPLOG_NO_QUORUM.
        """
        if self._ended_run is not None:
            names = await self._gateway.run(self._notes.names)
            await self._gateway.run(self._notes.remove, [name for name in names if name.run == self._ended_run])
        for _ in range(CLAIMS_MAX):
            names = await self._names()
            taken = {name.node_id for name in names}
            node_id = self._wanted_id
            if node_id is None:
                node_id = next(number for number in range(len(taken) + 1) if number not in taken)
            elif node_id in taken:
                await self._outlive(node_id)
            self._gateway.node = self._gateway.node._replace(node_id=node_id)
            await self._gateway.run(self._put)
            names = await self._names()
            if not any(name.node_id == node_id and name.run != self._run for name in names):
                await self._look(names)
                return
            await self._gateway.run(self._notes.remove, [self._name])
            await asyncio.sleep(SYSTEM_RANDOM.uniform(0.0, 1.0))  # two that started together do not meet again
        raise _taken(self._gateway.node.node_id)

    async def _names(self) -> list[GatewayNoteName]:
        """Return the notes but those of the run that has ended, which may be there for a moment yet."""
        names = await self._gateway.run(self._notes.names)
        return [name for name in names if name.run != self._ended_run]

    async def _outlive(self, node_id: int) -> None:
        """Wait until it is sure that the gateways that left notes under an id do not run, and remove the notes."""
        sightings, begun_ms = Sightings(), self._clock.monotonic_ms()
        _LOG.info("a gateway with the id %d left a note: waiting until it is sure that it has ended", node_id)
        before: list[GatewayNoteName] | None = None
        while True:
            names = [name for name in await self._names() if name.node_id == node_id]
            if before is not None and any(name not in before for name in newest(names)):
                raise _taken(node_id)
            before = newest(names)
            unread = sightings.see(names, self._clock.monotonic_ms())
            sightings.learn(await self._gateway.run(self._notes.read, unread))
            silent_ms = self._clock.monotonic_ms() - begun_ms
            if not names or (silent_ms >= self._interval_ms and not sightings.nodes(self._clock.monotonic_ms())):
                await self._gateway.run(self._notes.remove, names)
                return
            await asyncio.sleep(self._interval_ms / LOOKS_PER_INTERVAL / 1000)

    async def run(self) -> None:
        """Write and look, again and again, until cancelled.

        Raises:
            InvalidConfigError: DUPLICATE_BROKER_REGISTRATION: this process was stopped for long, and another has taken
                its id.
        """
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                names = await self._gateway.run(self._notes.names)
                of_id = [name for name in names if name.node_id == self._gateway.node.node_id]
                if of_id and all(name.run != self._run for name in of_id):
                    raise _taken(self._gateway.node.node_id)
                before = [name for name in of_id if name.run == self._run]
                await self._gateway.run(self._put)
                await self._gateway.run(
                    self._notes.begin_remove, before[:-1]
                )  # who has listed the last one reads it yet
                await self._look([*names, self._name])
                self._is_told = False
            except InvalidConfigError:
                raise
            except ReplogError as error:
                if not self._is_told:
                    _LOG.warning("other gateways are not seen while the store does not answer: %s", error)
                self._is_told = True

    async def stop(self) -> None:
        """Remove the note: other gateways send clients here no more."""
        try:
            names = await self._gateway.run(self._notes.names)
            await self._gateway.run(self._notes.remove, [name for name in names if name.run == self._run])
        except ReplogError as error:
            _LOG.warning("the gateway's note stays until others see that it ended: %s", error)

    async def _look(self, names: list[GatewayNoteName]) -> None:
        now_ms = self._clock.monotonic_ms()
        unread = self._sightings.see(names, now_ms)
        if unread:
            self._sightings.learn(await self._gateway.run(self._notes.read, unread))
        if forgotten := self._sightings.forgotten(names, now_ms):
            await self._gateway.run(self._notes.begin_remove, forgotten)
        others = [node for node in self._sightings.nodes(now_ms) if node.node_id != self._gateway.node.node_id]
        nodes = self._fixed or (self._gateway.node, *others)
        if tuple(sorted(nodes)) != self._gateway.placement.nodes:
            shown = ", ".join(f"{node.node_id} at {node.host}:{node.port}" for node in sorted(nodes))
            event(_LOG, "gateways-changed", f"gateways: {shown}", {"gateways": len(nodes)})
            self._gateway.placement = Placement(nodes)

    @property
    def _name(self) -> GatewayNoteName:
        return GatewayNoteName(self._gateway.node.node_id, self._run, self._number)

    def _put(self) -> None:
        self._number += 1
        node, now_ms = self._gateway.node, self._clock.now_ms()
        times = self._interval_ms, self._started_ms, now_ms
        self._notes.put(self._name, GatewayNote(node.host, node.port, node.rack, *times, self._counts()))


def _taken(node_id: int) -> InvalidConfigError:
    text = f"a gateway with the id {node_id} runs. Give another --id, or none: then the gateway takes a free one."
    return InvalidConfigError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, text)
