"""One partition in the fold: replicas, offsets, and the table of its sections.

The table is columns of machine integers, about 55 bytes a section; no object per section or row.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from typing import NamedTuple

from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.log.fold.leader import NO_LEADER, LeaderEpochCache, elect_controlled_shutdown, elect_offline
from spark_replog.log.model import LogStartReason, Section

TIMESTAMP_CREATE_TIME = 0
TIMESTAMP_LOG_APPEND_TIME = 1


class ObjectRef(NamedTuple):
    """A data object as a reader needs it; one instance per object of an answer."""

    ledger_id: LedgerId
    id: ObjectId
    size_bytes: int
    has_headers: bool
    holders: frozenset[BrokerId]


class SectionRef(NamedTuple):
    """A section with its offsets: rows [base_offset, base_offset + row_count)."""

    base_offset: int
    row_count: int
    object: ObjectRef
    start_byte: int
    size_bytes: int
    crc32c: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    append_time_ms: int
    timestamp_type: int
    """0 CreateTime, 1 LogAppendTime: as the topic was set when the rows were appended."""


class SectionRow(NamedTuple):
    """One row of the table; `object_number` counts the ledger's objects."""

    base_offset: int
    row_count: int
    object_number: int
    start_byte: int
    size_bytes: int
    crc32c: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    timestamp_type: int


class PartitionState:
    """Mutable by the fold only.

    Attributes:
        replicas: assigned brokers, preferred leader first.
        adding, removing: replicas that a running reassignment brings and takes away.
        isr: in-sync brokers, in the order of `replicas`; never empty.
        leader: -1 where every in-sync replica is fenced.
        partition_epoch: counts changes of leader, ISR or replicas.
        min_insync: effective `min.insync.replicas`: below it the high watermark does not move.
        retired: its topic is closed, so it holds no high watermark back.
        leader_epochs: where each leader epoch began.
        log_start_offset: rows below it are not read any more; log_start_reason: why it moved last.
    """

    def __init__(self, replicas: tuple[BrokerId, ...], min_insync: int) -> None:
        self.replicas = replicas
        self.isr = replicas
        self.leader = replicas[0]
        self.leader_epoch = 0
        self.partition_epoch = 0
        self.adding: tuple[BrokerId, ...] = ()
        self.removing: tuple[BrokerId, ...] = ()
        self.leader_epochs = LeaderEpochCache()
        self.leader_epochs.assign(0, 0)
        self.min_insync = min_insync
        self.retired = False
        self.log_start_offset = 0
        self.log_start_reason = LogStartReason.DELETE_RECORDS
        self.log_end_offset = 0
        self.high_watermark = 0
        self._bases = array("q")
        self._objects = array("q")
        self._starts = array("q")
        self._sizes = array("q")
        self._crcs = array("I")
        self._min_ms = array("q")
        self._max_ms = array("q")
        self._newest_ms = array("q")
        self._types = array("b")

    def add(self, section: Section, object_number: int, log_append_ms: int | None) -> None:
        """Append a section's rows at the log end.

        Args:
            section: as its entry describes it.
            object_number: of the object that holds it, counted over the ledger.
            log_append_ms: the time of the append on a LogAppendTime topic, else None.
        """
        assert section.row_count > 0 and section.size_bytes > 0, section
        low_ms, high_ms = section.min_timestamp_ms, section.max_timestamp_ms
        if log_append_ms is not None:
            low_ms = high_ms = log_append_ms
        self._bases.append(self.log_end_offset)
        self._objects.append(object_number)
        self._starts.append(section.start_byte)
        self._sizes.append(section.size_bytes)
        self._crcs.append(section.crc32c)
        self._min_ms.append(low_ms)
        self._max_ms.append(high_ms)
        newest = self._newest_ms
        newest.append(max(newest[-1], high_ms) if newest else high_ms)
        self._types.append(log_append_ms is not None)
        self.log_end_offset += section.row_count

    def sections_between(self, start_offset: int, end_offset: int) -> Iterator[SectionRow]:
        """Yield the sections that hold any offset in [start_offset, end_offset); O(log n + result)."""
        bases = self._bases
        first = max(bisect_right(bases, start_offset) - 1, 0)
        last = bisect_left(bases, end_offset)
        for at in range(first, last):
            end = bases[at + 1] if at + 1 < len(bases) else self.log_end_offset
            if end <= start_offset:
                continue
            yield SectionRow(
                bases[at],
                end - bases[at],
                self._objects[at],
                self._starts[at],
                self._sizes[at],
                self._crcs[at],
                self._min_ms[at],
                self._max_ms[at],
                self._types[at],
            )

    def advance_log_start(self, offset: int, reason: LogStartReason) -> bool:
        """Remove the rows below an offset, at most the high watermark; return whether anything changed."""
        assert offset <= self.high_watermark, (offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.log_start_reason = reason
        self.leader_epochs.truncate_from_start(offset)
        return True

    def end_within_bytes(self, start_offset: int, end_offset: int, size_max_bytes: int) -> tuple[int, int]:
        """Return the (exclusive end, bytes) of the rows from ``start_offset`` that fit in ``size_max_bytes``.

        A section's bytes are spread evenly over its rows. O(log n + sections within the bytes).
        """
        total = 0
        for row in self.sections_between(start_offset, end_offset):
            first = max(row.base_offset, start_offset)
            last = min(row.base_offset + row.row_count, end_offset)
            size_bytes = row.size_bytes * (last - first) // row.row_count
            if total + size_bytes > size_max_bytes:
                rows = (size_max_bytes - total) * row.row_count // max(row.size_bytes, 1)
                return min(first + rows, last), size_max_bytes
            total += size_bytes
        return end_offset, total

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the base offset of the first section with a row at or after the time; O(log n)."""
        at = bisect_left(self._newest_ms, timestamp_ms)
        return self._bases[at] if at < len(self._bases) else None

    def shrink(self, broker_id: BrokerId) -> bool:
        """Remove a broker from the ISR, and elect the first in-sync replica if it led; return whether it was removed.

        The last in-sync replica stays, as in Kafka: no other has the rows.
        """
        if broker_id not in self.isr or len(self.isr) == 1:
            return False
        self.isr = tuple(replica for replica in self.isr if replica != broker_id)
        self.partition_epoch += 1
        if self.leader == broker_id:
            found = elect_offline(self.replicas, self.isr, self.isr)
            self.elect(NO_LEADER if found is None else found.leader)
        return True

    def fence(self, broker_id: BrokerId, fenced: Collection[BrokerId]) -> bool:
        """Remove a fenced broker from the ISR; without another in-sync replica the partition loses its leader.

        Args:
            broker_id: the broker.
            fenced: all fenced brokers, this one included.

        Returns:
            Whether anything changed.
        """
        if broker_id not in self.isr:
            return False
        found = elect_controlled_shutdown(self.replicas, self.isr, self.isr, fenced)
        if found is None:  # as in Kafka the last in-sync replicas stay: no other has the rows
            if self.leader == NO_LEADER:
                return False
            self.partition_epoch += 1
            self.elect(NO_LEADER)
            return True
        self.isr = found.isr
        self.partition_epoch += 1
        if self.leader not in self.isr:
            self.elect(found.leader)
        return True

    def elect_if_offline(self, fenced: Collection[BrokerId]) -> bool:
        """Elect an in-sync replica in service if the partition has no leader; return whether one was elected."""
        if self.leader != NO_LEADER:
            return False
        found = elect_offline(self.replicas, self.isr, [each for each in self.isr if each not in fenced])
        if found is None:
            return False
        self.isr = found.isr
        self.partition_epoch += 1
        self.elect(found.leader)
        return True

    def elect(self, leader: BrokerId) -> None:
        """Make a broker the leader under the next epoch, which begins at the log end."""
        assert leader == NO_LEADER or leader in self.isr, (leader, self.isr)
        self.leader = leader
        self.leader_epoch += 1
        self.leader_epochs.assign(self.leader_epoch, self.log_end_offset)

    def grow(self, broker_id: BrokerId) -> bool:
        """Add an assigned broker to the ISR; return whether that changed anything."""
        if broker_id in self.isr or broker_id not in self.replicas:
            return False
        self.isr = tuple(r for r in self.replicas if r in self.isr or r == broker_id)
        self.partition_epoch += 1
        return True

    def truncate(self, end_offset: int) -> int:
        """Cut the log at the base offset of a section, and lower high watermark and log start to it.

        The caller elects, so that offsets that are given again differ in their epoch.

        Returns:
            The number of rows cut; 0 at or after the log end.
        """
        cut_count = self.log_end_offset - end_offset
        if cut_count <= 0:
            return 0
        at = bisect_left(self._bases, end_offset)
        if at == len(self._bases) or self._bases[at] != end_offset:
            raise ValueError(f"offset {end_offset} is inside a section: an append is cut as a whole")
        columns = (self._bases, self._objects, self._starts, self._sizes, self._crcs, self._min_ms, self._max_ms)
        for column in (*columns, self._newest_ms, self._types):
            del column[at:]
        self.log_end_offset = end_offset
        self.high_watermark = min(self.high_watermark, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.leader_epochs.truncate_from_end(end_offset)
        return cut_count

    def object_numbers(self, start_offset: int) -> list[int]:
        """Return the numbers of the objects with rows at or after an offset, in order."""
        first = max(bisect_right(self._bases, start_offset) - 1, 0)
        return list(dict.fromkeys(self._objects[first:]))

    def base_of_object(self, object_number: int) -> int | None:
        """Return the partition's first offset in an object, None without one."""
        at = bisect_left(self._objects, object_number)
        is_there = at < len(self._objects) and self._objects[at] == object_number
        return self._bases[at] if is_there else None
