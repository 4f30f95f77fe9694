"""One partition in the fold: who leads it, its leader epochs, its offsets. Pure.

Source of elections and epochs: Kafka's ``PartitionLeaderElectionAlgorithms`` and ``LeaderEpochFileCache`` (KIP-101,
KIP-279). The caller decides which brokers are live: the fold takes those that are not fenced, an admin command those
whose root answers as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.log.codec.snapshot import damaged
from spark_replog.log.fold.paged_table import Piece, SectionPages
from spark_replog.log.fold.section_table import SectionRow, SectionTable
from spark_replog.log.model import LogStartReason, Section
from spark_replog.wire import BROKER_ID, SINT, TIME_MS, UINT, Kind, Reader, Writer, enum_of, list_of

NO_LEADER: BrokerId = -1
"""The leader of a partition that has none."""


def passes_high_watermark(holders: Collection[BrokerId], isr: Collection[BrokerId], min_insync: int) -> bool:
    """Return whether the high watermark may pass an object's rows: the only place of this rule.

    Every in-sync replica holds the object, and at least ``min_insync`` replicas are in sync. Source: Kafka's
    ``Partition.checkEnoughReplicasReachOffset``.
    """
    return len(isr) >= min_insync and all(map(holders.__contains__, isr))


class Election(NamedTuple):
    """An election's outcome. ``is_unclean``: the leader was out of sync, so rows that were readable may be lost."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_unclean: bool = False


def elect_offline(
    assignment: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    live: Collection[BrokerId],
    *,
    is_unclean_allowed: bool = False,
) -> Election | None:
    """Elect after the leader was lost: the first live in-sync replica, or (unclean) the first live one.

    In a controlled shutdown the brokers that stay are the live ones.
    """
    for broker_id in assignment:
        if broker_id in live and broker_id in isr:
            return Election(broker_id, tuple(replica for replica in isr if replica in live))
    if is_unclean_allowed:
        for broker_id in assignment:
            if broker_id in live:
                return Election(broker_id, (broker_id,), True)
    return None


def elect_reassigned(
    target: Sequence[BrokerId], isr: Sequence[BrokerId], live: Collection[BrokerId]
) -> Election | None:
    """Elect among the target of a reassignment: its first live in-sync replica."""
    for broker_id in target:
        if broker_id in live and broker_id in isr:
            return Election(broker_id, tuple(isr))
    return None


def elect_preferred(
    assignment: Sequence[BrokerId], isr: Sequence[BrokerId], live: Collection[BrokerId]
) -> Election | None:
    """Elect the first assigned replica, if it is live and in sync."""
    first = assignment[0]
    return Election(first, tuple(isr)) if first in live and first in isr else None


UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEntry(NamedTuple):
    """An epoch and the offset of the first row that could be appended under it."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """(epoch, start offset), both strictly increasing. Mutable by the fold only."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: tuple[EpochEntry, ...] = ()

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin an epoch, and remove entries that contradict it. Negative values are ignored."""
        if epoch < 0 or start_offset < 0:
            return
        last = self.entries[-1] if self.entries else None
        if last is not None and last.epoch == epoch and start_offset >= last.start_offset:
            return
        kept = tuple(entry for entry in self.entries if entry.epoch < epoch and entry.start_offset < start_offset)
        self.entries = (*kept, EpochEntry(epoch, start_offset))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """Return the largest known epoch at or below the one asked for, and where it ended.

        (-1, -1) for no epoch, and for one newer than all; the log end for the latest.
        """
        undefined = EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == UNDEFINED_EPOCH or not self.entries:
            return undefined
        if epoch == self.entries[-1].epoch:
            return EpochEntry(epoch, log_end_offset)
        above = [entry for entry in self.entries if entry.epoch > epoch]
        below = [entry for entry in self.entries if entry.epoch <= epoch]
        if not above:
            return undefined
        if not below:
            return EpochEntry(epoch, above[0].start_offset)
        return EpochEntry(below[-1].epoch, above[0].start_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that began at or after a new log end."""
        if end_offset >= 0:
            self.entries = tuple(entry for entry in self.entries if entry.start_offset < end_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs below a new log start; the one that holds it begins there now."""
        if start_offset < 0:
            return
        below = [entry for entry in self.entries if entry.start_offset <= start_offset]
        if below:
            rest = tuple(entry for entry in self.entries if entry.start_offset > start_offset)
            self.entries = (EpochEntry(below[-1].epoch, start_offset), *rest)


TIMESTAMP_CREATE_TIME = 0
TIMESTAMP_LOG_APPEND_TIME = 1
TIMESTAMP_STORED_APPEND_TIME = 2
"""LogAppendTime of rows that were compacted: each row stores it. Shown as 1."""


CLEAN_POINTS_MAX = 16


class ObjectRef(NamedTuple):
    """A data object as a reader needs it; one instance per object of an answer."""

    ledger_id: LedgerId
    id: ObjectId
    size_bytes: int
    has_headers: bool
    holders: frozenset[BrokerId]
    has_offsets: bool = False
    """Whether the rows store their offsets: a segment with gaps."""
    inline: bytes = b""
    """The object's bytes, if the ledger holds them: then there is no file."""
    schema_version: int = 0
    """Of its topic, that its rows have; 0: bytes."""


class SectionRef(NamedTuple):
    """A section with its offsets [base_offset, end_offset); with fewer rows than offsets it has gaps."""

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
    """0 CreateTime, 1 LogAppendTime: as the topic was set when the rows were appended; 2: 1, stored in the rows."""
    end_offset: int


class Moves(NamedTuple):
    """The replicas that a running reassignment adds and removes."""

    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()


class PartitionState:
    """One partition. Mutable by the fold only.

    Attributes:
        replicas: assigned brokers, preferred leader first.
        moves: of a running reassignment.
        isr: in-sync brokers, in the order of `replicas`; never empty.
        leader: -1 if every in-sync replica is fenced.
        partition_epoch: counts changes of leader, ISR or replicas.
        min_insync: effective `min.insync.replicas`: below it the high watermark does not move.
        log_append_time: whether rows show the time of their append.
        retired: its topic is closed, so it has no rows and holds no high watermark back.
        leader_epochs: where each leader epoch began.
        clean_points: (offset, ms), ascending: below the offset each key had one row at that time (`LogClean`).
        log_start_offset: rows below it are no longer read; log_start_reason: why it moved last.
    """

    def __init__(self, replicas: tuple[BrokerId, ...], slot: int = 0, pages: SectionPages | None = None) -> None:
        self.replicas = replicas
        self.isr = replicas
        self.leader = replicas[0]
        self.leader_epoch = 0
        self.partition_epoch = 0
        self.moves = Moves()
        self.leader_epochs = LeaderEpochCache()
        self.leader_epochs.assign(0, 0)
        self.min_insync = 1
        self.log_append_time = False
        self.retired = False
        self.log_start_offset = 0
        self.log_start_reason = LogStartReason.DELETE_RECORDS
        self.log_end_offset = 0
        self.high_watermark = 0
        self.clean_points: tuple[tuple[int, int], ...] = ()
        self.sections = SectionTable(slot, pages)

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the offsets [log start, log end) that have rows."""
        return (0, 0) if self.retired else (self.log_start_offset, self.log_end_offset)

    @property
    def live_bytes(self) -> int:
        """Return the bytes of the sections with rows at or above the log start."""
        return self.sections.live_bytes(*self.bounds)

    @property
    def slot(self) -> int:
        """Return its number in the ledger, for ever."""
        return self.sections.slot

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        """Return the replicas that a running reassignment adds."""
        return self.moves.adding

    @property
    def removing(self) -> tuple[BrokerId, ...]:
        """Return the replicas that a running reassignment removes."""
        return self.moves.removing

    def add(self, section: Section, object_number: int, append_ms: int) -> None:
        """Append a section's rows at the log end.

        Args:
            section: as its entry describes it.
            object_number: of the object that holds it, counted over the ledger.
            append_ms: the time of the append; on a LogAppendTime topic the rows get it.
        """
        assert section.row_count > 0 and section.size_bytes > 0, section
        end = self.log_end_offset + section.row_count
        low_ms, high_ms = section.min_timestamp_ms, section.max_timestamp_ms
        if self.log_append_time:
            low_ms = high_ms = append_ms
        self.sections.add(section, self.log_end_offset, end, object_number, low_ms, high_ms, self.log_append_time)
        self.log_end_offset = end

    def add_mirrored(self, section: Section, end: int, object_number: int, *, is_append_time: bool) -> None:
        """Append a section's rows, which store their times, at the log end; it spans the offsets up to an end."""
        kind = TIMESTAMP_STORED_APPEND_TIME if is_append_time else TIMESTAMP_CREATE_TIME
        times_ms = section.min_timestamp_ms, section.max_timestamp_ms
        self.sections.add(section, self.log_end_offset, end, object_number, *times_ms, kind)
        self.log_end_offset = end

    def move_empty(self, offset: int) -> None:
        """Begin a partition without rows at a later offset."""
        assert self.log_start_offset == self.log_end_offset <= offset, (self.bounds, offset)
        self.log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.leader_epochs.truncate_from_start(offset)

    def extend(self, end_offset: int) -> None:
        """End later, after offsets without rows; the caller lets the last section span them."""
        assert self.high_watermark == self.log_end_offset < end_offset, (self.bounds, end_offset)
        self.log_end_offset = self.high_watermark = end_offset

    def _clip(self, start_offset: int, end_offset: int) -> tuple[int, int]:
        low, high = self.bounds
        return max(low, start_offset), min(high, end_offset)

    def sections_between(self, start_offset: int, end_offset: int) -> Iterator[SectionRow]:
        """Return the live sections that hold any offset in [start_offset, end_offset); O(log n + result)."""
        return self.sections.between(*self._clip(start_offset, end_offset))

    def replace(self, rows: Sequence[SectionRow]) -> list[int]:
        """Replace the rows that span the same offsets, which are below the high watermark.

        Returns:
            The numbers of the objects of the sections that left memory. Those in pages are hidden from now on.
        """
        assert rows[-1].end_offset <= self.high_watermark, rows
        return self.sections.replace(rows)

    def in_pages(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the live offsets of [start, end) that pages cover, as intervals; loads none."""
        return self.sections.in_pages(*self._clip(start_offset, end_offset))

    def clean(self, offset: int, time_ms: int) -> bool:
        """Note that the log is clean below an offset since a time; return whether that is new.

        Above `CLEAN_POINTS_MAX` points it drops the one whose tombstones then have the least extra time to wait.
        """
        points = self.clean_points
        if offset <= (points[-1][0] if points else 0):
            return False
        points = (*points, (offset, max(time_ms, points[-1][1] if points else time_ms)))
        if len(points) > CLEAN_POINTS_MAX:
            at = min(range(len(points) - 1), key=lambda number: points[number + 1][1] - points[number][1])
            points = points[:at] + points[at + 1 :]
        self.clean_points = points
        return True

    def advance_log_start(self, offset: int, reason: LogStartReason) -> list[int]:
        """Remove the rows below an offset, at most the high watermark and above the log start.

        Returns:
            The numbers of the objects of the sections that left memory, one for each section.
        """
        assert self.log_start_offset < offset <= self.high_watermark, (offset, self.high_watermark)
        self.log_start_offset = offset
        self.log_start_reason = reason
        self.leader_epochs.truncate_from_start(offset)
        return self.cut_dead()

    def retire(self) -> list[int]:
        """Remove all rows of a deleted topic; return the numbers of the objects of those in memory."""
        self.retired = True
        return self.sections.cut_from(0)

    def cut_dead(self) -> list[int]:
        """Remove the rows in memory that are below the log start; return the numbers of their objects."""
        return self.sections.cut_below(self.log_start_offset)

    def live_sections(self) -> Iterator[SectionRow]:
        """Return the sections with rows from the log start on, oldest first."""
        return self.sections_between(*self.bounds)

    def object_spans(self) -> dict[int, tuple[int, int]]:
        """Return the numbers of all objects with live rows, and their offsets [first, end). Loads all of its pages."""
        spans: dict[int, tuple[int, int]] = {}
        for row in self.live_sections():
            base, _ = spans.get(row.object_number, (row.base_offset, 0))
            spans[row.object_number] = (base, row.end_offset)
        return spans

    def end_within_bytes(self, start_offset: int, end_offset: int, size_max_bytes: int) -> tuple[int, int]:
        """Return the (exclusive end, bytes) of the rows from ``start_offset`` that fit in ``size_max_bytes``.

        A section's bytes are spread evenly over its offsets. O(log n + sections within the bytes).
        """
        total = 0
        for part in self.sections.parts(*self._clip(start_offset, end_offset)):
            if isinstance(part, Piece) and part.is_whole and total + part.size_bytes <= size_max_bytes:
                total += part.size_bytes
                continue
            for row in self.sections.rows_of(part):
                first = max(row.base_offset, start_offset)
                last, span = min(row.end_offset, end_offset), row.end_offset - row.base_offset
                size_bytes = row.size_bytes * (last - first) // span
                if total + size_bytes > size_max_bytes:
                    rows = (size_max_bytes - total) * span // max(row.size_bytes, 1)
                    return min(first + rows, last), size_max_bytes
                total += size_bytes
        return end_offset, total

    def end_within_rows(self, start_offset: int, end_offset: int, row_count_max: int) -> tuple[int, int]:
        """Return the (exclusive end, rows) of at most ``row_count_max`` rows from ``start_offset`` on.

        For partitions whose offsets have gaps: exact for whole sections, and at most so many rows where a section is
        cut, since its gaps are not known. O(log n + sections up to there), and their pages are loaded.
        """
        total = 0
        for row in self.sections_between(start_offset, end_offset):
            first, last = max(row.base_offset, start_offset), min(row.end_offset, end_offset)
            count = min(row.row_count, last - first)
            if total + count > row_count_max:
                return first + row_count_max - total, row_count_max
            total += count
        return end_offset, total

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the base offset of the first live section with a row at or after the time; O(pages + rows of one)."""
        bases = (self.sections.first_late(part, timestamp_ms) for part in self.sections.parts(*self.bounds))
        return next((base for base in bases if base is not None), None)

    def shrink(self, broker_id: BrokerId) -> bool:
        """Remove a broker from the ISR, and elect the first in-sync replica if it led; return whether it was removed.

        The last in-sync replica stays, as in Kafka: no other has the rows.
        """
        if broker_id not in self.isr or len(self.isr) == 1:
            return False
        self.isr = tuple(replica for replica in self.isr if replica != broker_id)
        self.partition_epoch += 1
        if self.leader == broker_id:
            elected = elect_offline(self.replicas, self.isr, self.isr)
            self.elect(NO_LEADER if elected is None else elected.leader)
        return True

    def fence(self, broker_id: BrokerId, fenced: Collection[BrokerId]) -> bool:
        """Remove a fenced broker from the ISR; without another in-sync replica the partition loses its leader.

        Returns:
            Whether anything changed.
        """
        if broker_id not in self.isr:
            return False
        elected = elect_offline(self.replicas, self.isr, [replica for replica in self.isr if replica not in fenced])
        if elected is None:  # as in Kafka the last in-sync replicas stay: no other has the rows
            if self.leader == NO_LEADER:
                return False
            self.partition_epoch += 1
            self.elect(NO_LEADER)
            return True
        self.isr = elected.isr
        self.partition_epoch += 1
        if self.leader not in self.isr:
            self.elect(elected.leader)
        return True

    def elect_if_offline(self, fenced: Collection[BrokerId]) -> bool:
        """Elect an in-sync replica in service if the partition has no leader; return whether one was elected."""
        if self.leader != NO_LEADER:
            return False
        elected = elect_offline(self.replicas, self.isr, [replica for replica in self.isr if replica not in fenced])
        if elected is None:
            return False
        self.isr = elected.isr
        self.partition_epoch += 1
        self.elect(elected.leader)
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

        The caller elects, so that offsets that are assigned again have a new epoch.

        Returns:
            The number of rows cut; 0 at or after the log end.
        """
        cut_count = self.log_end_offset - end_offset
        if cut_count <= 0:
            return 0
        self.sections.cut_from(end_offset)
        self.log_end_offset = end_offset
        self.high_watermark = min(self.high_watermark, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.leader_epochs.truncate_from_end(end_offset)
        self.clean_points = tuple(point for point in self.clean_points if point[0] <= end_offset)
        return cut_count


_IDS = list_of(BROKER_ID)
_FIELDS = {
    "slot": UINT,
    "replicas": _IDS,
    "isr": _IDS,
    "adding": _IDS,
    "removing": _IDS,
    "leader": SINT,
    "leader_epoch": UINT,
    "partition_epoch": UINT,
    "log_start_offset": UINT,
    "log_start_reason": enum_of(LogStartReason),
    "log_end_offset": UINT,
    "high_watermark": UINT,
    "clean_points": list_of(UINT, TIME_MS),
}
_EPOCHS = list_of(UINT, UINT)


def _write_partition(writer: Writer, partition: PartitionState) -> None:
    for name, kind in _FIELDS.items():
        kind.write(writer, getattr(partition, name))
    _EPOCHS.write(writer, partition.leader_epochs.entries)


def _read_partition(reader: Reader) -> PartitionState:
    values = {name: kind.read(reader) for name, kind in _FIELDS.items()}
    if not values["replicas"]:
        raise damaged("a partition has no replicas")
    partition = PartitionState(values["replicas"], values.pop("slot"))
    partition.moves = Moves(values.pop("adding"), values.pop("removing"))
    for name, value in values.items():
        setattr(partition, name, value)
    partition.leader_epochs.entries = tuple(EpochEntry(*entry) for entry in _EPOCHS.read(reader))
    return partition


PARTITION = Kind(_write_partition, _read_partition)
"""A partition in a snapshot, without its rows and without its topic's settings and state."""
