"""ISR and high-watermark rules of one partition. Pure: no I/O, no clock, no lock.

Source: Kafka's ``Partition`` and ``Replica``. A follower's log end offset is not a fetch position
here but follows from the objects it holds: it ends before the first object it lacks. A shrink
needs no confirmation by a controller: it is decided by the same ENTRY as the append that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from spark_replog.errors import ErrorCode
from spark_replog.ids import BrokerId


class ObjectCopies:
    """Who holds one data object; shared by all partitions that have rows in it."""

    __slots__ = ("holders",)

    def __init__(self, holders: Iterable[BrokerId]) -> None:
        self.holders = set(holders)


class Partition:
    """The provisional tail of one partition, above its high watermark.

    Args:
        replicas: assigned brokers.
        isr: in-sync brokers of the newest fold.
        min_insync: effective ``min.insync.replicas``.
        high_watermark: of the newest fold; the tail starts here.
        leader_epoch: of the newest fold; the tail is worth nothing under another.
        now_ms: the time from which on a replica without the whole tail lags.
    """

    __slots__ = (
        "_departed",
        "_high_watermark",
        "_isr",
        "_since_ms",
        "_tail",
        "leader_epoch",
        "log_end_offset",
        "min_insync",
        "replicas",
    )

    def __init__(
        self,
        replicas: Iterable[BrokerId],
        isr: Iterable[BrokerId],
        min_insync: int,
        high_watermark: int,
        *,
        leader_epoch: int = 0,
        now_ms: int = 0,
    ) -> None:
        self.replicas = tuple(replicas)
        self.min_insync = min_insync
        self.log_end_offset = high_watermark
        self.leader_epoch = leader_epoch
        self._isr = frozenset(isr)
        self._departed: frozenset[BrokerId] = frozenset()
        self._high_watermark = high_watermark
        self._tail: deque[tuple[int, ObjectCopies]] = deque()
        self._since_ms = now_ms

    @property
    def in_sync(self) -> frozenset[BrokerId]:
        """Return the in-sync brokers without those that leave with this append."""
        return self._isr - self._departed

    def append(self, row_count: int, copies: ObjectCopies) -> int:
        """Add rows to the tail and return the new log end offset."""
        self.log_end_offset += row_count
        self._tail.append((self.log_end_offset, copies))
        return self.log_end_offset

    def shrink(self, broker_id: BrokerId) -> None:
        """Take a broker out of the ISR, by the ENTRY that is being prepared."""
        self._departed |= {broker_id}

    def follow_shrink(self, isr: Collection[BrokerId]) -> None:
        """Wait no more for who has left the ISR by another's ENTRY; who joined is for the next judgement."""
        if not self._isr.issubset(isr):
            self._isr = self._isr.intersection(isr)

    def replica_end_offset(self, broker_id: BrokerId) -> int:
        """Return where the replica's log ends: before the first object that it lacks."""
        end = self._high_watermark
        for tail_end, copies in self._tail:
            if broker_id not in copies.holders:
                break
            end = tail_end
        return end

    def is_caught_up(self, broker_id: BrokerId, now_ms: int, lag_ms: int) -> bool:
        """Return whether the replica is at the log end, or the tail is not older than ``lag_ms``."""
        return self.replica_end_offset(broker_id) == self.log_end_offset or now_ms - self._since_ms <= lag_ms

    def out_of_sync_replicas(self, now_ms: int, lag_ms: int) -> list[BrokerId]:
        """Return the in-sync replicas that lag, ascending: those that ``shrink`` should take out.

        The leader too: here it is a root like the others, and rows that it lacks are elsewhere.
        """
        return [each for each in sorted(self.in_sync) if not self.is_caught_up(each, now_ms, lag_ms)]

    def high_watermark(self) -> int:
        """Return the least end of the in-sync replicas; never falls, frozen below ``min_insync``."""
        in_sync = self.in_sync
        if len(in_sync) >= self.min_insync:
            while self._tail and in_sync <= self._tail[0][1].holders:
                self._high_watermark = self._tail.popleft()[0]
        return self._high_watermark

    def check_enough_replicas_reach_offset(self, required_offset: int) -> tuple[bool, ErrorCode | None]:
        """Return whether an append up to ``required_offset`` need not wait any longer, and its error.

        NOT_ENOUGH_REPLICAS where the high watermark has not reached the offset and, since it is frozen,
        cannot: Kafka lets that append wait for its time-out.
        """
        is_enough = len(self.in_sync) >= self.min_insync
        if self.high_watermark() >= required_offset:
            return True, None if is_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return (False, None) if is_enough else (True, ErrorCode.NOT_ENOUGH_REPLICAS)
