"""What must hold in ``whole_system``: by what writers were told, what readers saw, and a fold of every entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import decode_commands
from spark_replog.log.codec.group_records import GroupRecord, OffsetRecord
from spark_replog.log.fold.partition_state import PartitionState, SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    Command,
    CommandResult,
    GroupRecords,
    IdentityKind,
    LogStartAdvance,
    Outcome,
    PartitionChange,
    ProducerInit,
    SequencedAppend,
    SnapshotCommit,
    TopicClose,
)
from spark_replog.snapshot import DecidedSnapshot
from tests.simulation.ledger_invariants import Violation

Place = tuple[str, int]


class Row(NamedTuple):
    """A row that its writer can tell from all others."""

    uid: str
    key: bytes
    is_tombstone: bool


def _is_same(mine: CommandResult, reference: CommandResult) -> bool:
    """Return whether a process answers as the reference. Objects without rows may be remembered here, and not there."""
    if reference.detail.startswith(("object '", "entry ")):
        return True
    return (mine.outcome, mine.base_offsets) == (reference.outcome, reference.base_offsets)


class Checker:
    """The reference. Its fold begins with the first entry and never meets a snapshot.

    Args:
        holds: whether a broker has an object.
        content: the rows of each object's sections by start byte, each with its offset if the section stores offsets.
        pages, heads: what is stored of snapshots.
    """

    def __init__(
        self,
        holds: Callable[[int, ObjectId], bool],
        content: Mapping[ObjectId, Mapping[int, Sequence[tuple[int | None, Row]]]],
        pages: Mapping[str, bytes],
        heads: Mapping[str, tuple[bytes, DecidedSnapshot]],
    ) -> None:
        self.state = TopicLedgerState("L")
        self.results: list[tuple[CommandResult, ...]] = []
        self.live_pages: set[str] = set()
        self.named_pages: dict[str, set[str]] = {}
        self.seen: dict[Place, dict[int, Row]] = {}
        self._written: dict[Place, dict[int, Row]] = {}
        """All rows that entries have named; above the log's end there may be rows that were cut."""
        self.acknowledged: dict[str, tuple[Place, int]] = {}
        self.counts: dict[str, int] = {}
        self.unclean: set[Place] = set()
        self._holds, self._content, self._pages, self._heads = holds, content, pages, heads
        self.generation = 0
        self.commits: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._closed: set[str] = set()
        self._claims: dict[str, int] = {}
        self._live: set[ObjectId] = set()
        self._ends: dict[Place, tuple[int, int]] = {}
        self._log_ends: dict[Place, int] = {}

    def count(self, what: str, number: int = 1) -> None:
        """Count what happened: a schedule in which nothing does proves nothing."""
        self.counts[what] = self.counts.get(what, 0) + number

    def partitions(self) -> Iterator[tuple[Place, PartitionState]]:
        """Yield all partitions of topics that are not deleted."""
        for topic_id, topic in self.state.topics.items():
            for number, partition in enumerate(topic.partitions if topic_id not in self._closed else ()):
                yield (topic_id, number), partition

    def sections(self, place: Place) -> list[SectionRef]:
        """Return the live sections of a partition."""
        partition = self.state.topics[place[0]].partitions[place[1]]
        return self.state.sections(*place, partition.log_start_offset, partition.log_end_offset)

    def rows_of(self, section: SectionRef) -> dict[int, Row]:
        """Return a section's rows by offset."""
        rows = self._content[section.object.id][section.start_byte]
        return {section.base_offset + at if offset is None else offset: row for at, (offset, row) in enumerate(rows)}

    # -- after each entry ---------------------------------------------------------------------------

    def decided(self, index: int, payload: bytes) -> None:
        """Fold an entry and look at everything."""
        floor, snapshot = self.state.generations.floor, self.state.snapshot
        self.results.append(self.state.apply(index, payload))
        moved: set[Place] = set()
        changed: set[Place] | None = set()
        for command, result in zip(decode_commands(payload), self.results[-1], strict=True):
            if isinstance(command, LogStartAdvance):
                moved.update((command.topic_id, number) for number, _ in command.offsets)
            if result.outcome is Outcome.APPLIED:
                self._check_command(command)
            if isinstance(command, Append):
                if changed is not None and result.outcome is Outcome.APPLIED:
                    changed.update(command.row_counts)
            elif not isinstance(command, ProducerInit | GroupRecords | SnapshotCommit):
                changed = None  # any of them
        # Where there are appends only, objects are added and none go.
        live: set[ObjectId] = set() if changed is None else set(self._live)
        for place, partition in self.partitions():
            if changed is not None and place not in changed:
                continue
            self._check_ends(place, partition, is_moved=place in moved)
            first = partition.log_start_offset if changed is None else self._log_ends.get(place, 0)
            for section in self.state.sections(*place, first, partition.log_end_offset):
                live.add(section.object.id)
                if section.object.id not in self._live:
                    self._written.setdefault(place, {}).update(self.rows_of(section))
                for broker_id in section.object.holders if not section.object.inline else ():
                    if not self._holds(broker_id, section.object.id):
                        raise Violation(f"I10 broker {broker_id} lacks {section.object.id}, which entry {index} names")
                if section.base_offset < partition.high_watermark and not section.object.holders.issuperset(
                    partition.isr
                ):
                    raise Violation(f"I2 {section} of {place} is readable, and one of {partition.isr} lacks it")
            self._log_ends[place] = partition.log_end_offset
        for item in live - self._live:
            if item.generation < floor:
                raise Violation(f"I12 entry {index} names {item}, which is below the floor {floor}")
        self._live = live
        if self.state.snapshot != snapshot:
            self._check_snapshot()

    def _check_command(self, command: Command | object) -> None:
        """Look whether an applied command may have been applied, by what was applied before."""
        if isinstance(command, Append) and not self._closed.isdisjoint(topic for topic, _ in command.row_counts):
            raise Violation(f"rows of {command.identity.producer_id} are in a topic that was deleted")
        if isinstance(command, TopicClose):
            self._closed.add(command.topic_id)
        elif isinstance(command, ProducerInit):
            self.count("claims")
            self._claims[command.producer_id] = command.epoch
        elif isinstance(command, SequencedAppend):
            self.count("sequenced appends")
            claimed = self._claims.get(command.identity.producer_id, 0)
            if command.identity.kind is IdentityKind.TRANSACTIONAL and command.batches[0].epoch != claimed:
                raise Violation(f"epoch {command.batches[0].epoch} of a transactional id writes after {claimed}")
        elif isinstance(command, PartitionChange) and command.is_unclean:
            self._cut((command.topic_id, command.partition))
        elif isinstance(command, GroupRecords):
            for record in command.records:
                self._check_record(command.generation, record)

    def _check_record(self, generation: int, record: GroupRecord | OffsetRecord) -> None:
        if isinstance(record, GroupRecord):
            assert record.value is not None
            self.generation = record.value.generation
        elif record.value is not None:
            self.count("commits")
            if generation != self.generation:
                raise Violation(f"a member of generation {generation} commits in generation {self.generation}")
            if record.value.offset <= self._committed.get(generation, -1):
                raise Violation(f"generation {generation} commits {record.value.offset} again")
            self._committed[generation] = record.value.offset

    def _cut(self, place: Place) -> None:
        """Forget what an unclean election has cut: the one loss that someone asked for."""
        end = self.state.topics[place[0]].partitions[place[1]].log_end_offset
        self.count("unclean elections")
        self.unclean.add(place)
        self.seen[place] = {offset: row for offset, row in self.seen.get(place, {}).items() if offset < end}
        lost = [uid for uid, (where, offset) in self.acknowledged.items() if where == place and offset >= end]
        self.count("rows lost", len(lost))
        for uid in lost:
            del self.acknowledged[uid]
        start, high = self._ends.get(place, (0, 0))
        self._ends[place] = (start, min(high, end))

    def _check_ends(self, place: Place, partition: PartitionState, *, is_moved: bool) -> None:
        start, high = partition.log_start_offset, partition.high_watermark
        start_before, high_before = self._ends.get(place, (0, 0))
        if not start <= high <= partition.log_end_offset or high < high_before or start < start_before:
            raise Violation(f"I9 {place} is at {start}, {high}, {partition.log_end_offset} after {self._ends[place]}")
        if start > start_before and not is_moved:
            raise Violation(f"I9 no entry moved the log start of {place} to {start}")
        self._ends[place] = (start, high)

    def _check_snapshot(self) -> None:
        """Look whether the snapshot that counts now is there, with all of its pages."""
        self.count("snapshots")
        name = self.state.snapshot.name
        if name not in self._heads:
            raise Violation(f"I11 the decided snapshot {name} is gone")
        restored = TopicLedgerState("L")
        restored.restore(self._heads[name][0], self._page)
        self.live_pages = self.named_pages[name] = set(restored.page_names())
        for page in self.live_pages:
            self._page(page)
        self.count("pages", len(self.live_pages))

    def _page(self, name: str) -> bytes:
        if name not in self._pages:
            raise Violation(f"I11 page {name} of the decided snapshot {self.state.snapshot.no} is gone")
        return self._pages[name]

    # -- what processes do --------------------------------------------------------------------------

    def agrees(self, process: str, state: TopicLedgerState) -> None:
        """Take what a process knows of groups and producers at the end: what a fold of every entry knows."""
        mine = self.state
        committed = {key: value for group in mine.groups.groups.values() for key, value in group.offsets.items()}
        for (_, number), value in committed.items():
            if value.offset < self.commits.get(self.generation, 0):
                raise Violation(f"offset {self.commits[self.generation]} of {number} was committed, not {value}")
        if state.groups.groups != mine.groups.groups:
            raise Violation(f"{process} knows groups {state.groups.groups}, not {mine.groups.groups}")
        for producer_id in self._claims:
            if state.producers.sequenced.producers.get(producer_id) != mine.producers.sequenced.producers.get(
                producer_id
            ):
                raise Violation(f"{process} knows another state of producer {producer_id}")

    def folded(self, process: str, index: int, results: tuple[CommandResult, ...]) -> None:
        """Take what a process made of an entry: the same as every other."""
        expected = self.results[index]
        if results != expected and not all(_is_same(*pair) for pair in zip(results, expected, strict=True)):
            raise Violation(f"{process} folds entry {index} to {results}, not {self.results[index]}")

    def check_copies(self) -> None:
        """Look whether every broker has what the log says that it has."""
        for place, _ in self.partitions():
            for section in self.sections(place):
                for broker_id in section.object.holders if not section.object.inline else ():
                    if not self._holds(broker_id, section.object.id):
                        raise Violation(f"I10 broker {broker_id} is whole again, and lacks {section.object.id}")

    def deletes(self, item: ObjectId) -> None:
        """Take that a copy of an object goes."""
        self.count("deleted objects")
        if item in self._live:
            raise Violation(f"I11 {item} is deleted, and rows are in it")

    def deletes_page(self, name: str) -> None:
        """Take that a page goes."""
        self.count("deleted pages")
        if name in self.live_pages:
            raise Violation(f"I11 page {name} is deleted, and snapshot {self.state.snapshot.no} names it")

    def saw(self, place: Place, offset: int, row: Row) -> None:
        """Take what a reader saw: it is so for ever."""
        self.count("rows read")
        before = self.seen.setdefault(place, {}).setdefault(offset, row)
        if before != row:
            raise Violation(f"offset {offset} of {place} was {before}, and is {row}")

    def told(self, place: Place, base: int, rows: list[Row]) -> None:
        """Take that a writer was told that its rows are in the log from an offset on."""
        self.count("rows acknowledged", len(rows))
        for offset, row in enumerate(rows, base):
            before = self.acknowledged.setdefault(row.uid, (place, offset))
            if before != (place, offset):
                raise Violation(f"row {row.uid} was acknowledged at {before} and at {(place, offset)}")
            if self.seen.setdefault(place, {}).setdefault(offset, row) != row:
                raise Violation(f"offset {offset} of {place} was given to {row} and to {self.seen[place][offset]}")

    def read_all(self, place: Place, rows: dict[int, Row], *, is_compacted: bool) -> None:
        """Take all rows of a partition: what was told is there, once; gaps are only where keys made them."""
        partition = self.state.topics[place[0]].partitions[place[1]]
        start, high = partition.log_start_offset, partition.high_watermark
        if len({row.uid for row in rows.values()}) != len(rows):
            raise Violation(f"a row is in {place} twice")
        ranks: dict[str, tuple[int, int]] = {}
        for _, row in sorted(rows.items()):
            producer, number, _, at = row.uid.split("/")
            if producer[0] in "it":  # in the order of its sequences
                if ranks.get(producer, (-1, 0)) >= (int(number), int(at)):
                    raise Violation(f"row {row.uid} of {place} comes after {ranks[producer]}")
                ranks[producer] = int(number), int(at)
        written = {offset: row for offset, row in self._written.get(place, {}).items() if start <= offset < high}
        latest = {row.key: offset for offset, row in sorted(written.items())}
        for offset in range(start, high):
            row = written[offset]
            if rows.get(offset, row) != row:
                raise Violation(f"offset {offset} of {place} was {row}, and is {rows[offset]}")
            if offset not in rows and not (is_compacted and (latest[row.key] > offset or row.is_tombstone)):
                raise Violation(f"offset {offset} of {place} holds no row; it was {row}")
        for uid, (where, offset) in self.acknowledged.items():
            if (
                where == place
                and offset >= start
                and not is_compacted
                and (offset not in rows or rows[offset].uid != uid)
            ):
                raise Violation(f"row {uid} was acknowledged at offset {offset} of {place}")
