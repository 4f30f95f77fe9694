"""Duplicate and fencing rules of producers (docs/design/identity.md). Pure; part of the topic ledger's fold.

The sequence of a query or a batch write is a whole micro-batch, so one number per incarnation is enough
(`ProducerTable`). The plain ``Producer`` has Kafka's sequence per record and partition (`SequenceTable`; source:
``ProducerStateManager`` and ``ProducerAppendInfo``). A ``ProducerInit`` stands for Kafka's marker in every partition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_replog.ids import TopicId
from spark_replog.log.model import (
    Append,
    BatchSequence,
    CommandResult,
    IdentityKind,
    OffsetRanges,
    Outcome,
    ProducerIdentity,
    ProducerInit,
    ResetPolicy,
    SequencedAppend,
)
from spark_replog.wire import (
    BOOL,
    BYTES,
    SINT,
    TEXT,
    UINT,
    Kind,
    Writer,
    enum_of,
    fields,
    list_of,
    map_of,
    optional,
    record,
)

BATCHES_KEPT = 5
"""Per partition, for the duplicate check: the most that may be in flight, or all of the newest append."""
SEQUENCE_COUNT = 2**31
"""0 follows the sequence 2**31 - 1."""

Place = tuple[TopicId, int]


class SequencedBatch(NamedTuple):
    """The records that one append wrote to one partition."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class PartitionSequences(NamedTuple):
    """The newest batches of one producer in one partition, oldest first; never empty."""

    epoch: int
    batches: tuple[SequencedBatch, ...]

    @property
    def next_sequence(self) -> int:
        """Return the first sequence of the batch that may follow."""
        return (self.batches[-1].last_sequence + 1) % SEQUENCE_COUNT

    def find(self, batch: BatchSequence) -> SequencedBatch | None:
        """Return the batch of the window with the same sequences."""
        if batch.epoch != self.epoch:
            return None
        for past_batch in self.batches:
            if past_batch.first_sequence == batch.first_sequence and past_batch.last_sequence == batch.last_sequence:
                return past_batch
        return None


@dataclass(slots=True)
class SequencedProducer:
    """One producer.

    Attributes:
        epoch: of the newest claim, -1 without one; older ones are refused in every partition.
        instance_id: of the process that claimed it; '' without a claim.
        partitions: its newest batches per partition. Values are replaced, never changed.
        last_generation: newest data generation it wrote to.
        is_forgettable: whether its id is random, so that it is never used again.
    """

    epoch: int = -1
    instance_id: str = ""
    partitions: dict[Place, PartitionSequences] = field(default_factory=dict)
    last_generation: int = 0
    is_forgettable: bool = False


class SequencedUndo(NamedTuple):
    """The newest batches of a producer before an append of it."""

    producer_id: str
    before: Mapping[Place, PartitionSequences | None]


@dataclass(slots=True)
class SequenceTable:
    """All sequenced producers of one topic ledger, by id."""

    producers: dict[str, SequencedProducer] = field(default_factory=dict)

    def apply_init(self, command: ProducerInit) -> CommandResult:
        """Give the producer id to an instance, under the next epoch."""
        state = self.producers.get(command.producer_id)
        epoch = -1 if state is None else state.epoch
        if state is not None and state.instance_id == command.instance_id and command.epoch == epoch:
            return CommandResult(Outcome.EXISTS, f"'{command.producer_id}' is at epoch {epoch} already")
        if command.epoch != epoch + 1:
            return CommandResult(Outcome.FENCED, f"'{command.producer_id}' is at epoch {epoch} of another instance")
        if state is None:
            self.producers[command.producer_id] = SequencedProducer(command.epoch, command.instance_id)
        else:
            state.epoch = command.epoch
            state.instance_id = command.instance_id
        return CommandResult(Outcome.APPLIED)

    def judge_duplicate(self, append: SequencedAppend) -> CommandResult | None:
        """Return DUPLICATE with the old offsets if every batch is in the window, else None.

        A producer repeats an append as a whole, so an append of which only some batches are known is INVALID.
        """
        state = self.producers.get(append.identity.producer_id)
        if state is None:
            return None
        ranges: dict[Place, tuple[int, int]] = {}
        new_count = found_count = 0
        for place, batches in append.batches_by_place.items():
            sequences = state.partitions.get(place)
            for batch in batches:
                duplicate = None if sequences is None else sequences.find(batch)
                if duplicate is None:
                    new_count += 1
                    continue
                found_count += 1
                base, _ = ranges.get(place, (duplicate.base_offset, 0))
                ranges[place] = (base, duplicate.end_offset)
        if not found_count or (new_count and max(sent_batch.epoch for sent_batch in append.batches) < state.epoch):
            return None  # in the latter case a newer instance's batches replaced some, and the append is fenced
        if new_count:
            detail = f"{found_count} of its batches are in the log and {new_count} are not"
            return CommandResult(Outcome.INVALID, detail)
        return CommandResult(Outcome.DUPLICATE, "", ranges)

    def judge_fenced(self, append: SequencedAppend) -> str | None:
        """Return why a transactional producer's append comes from a replaced instance, or None."""
        state = self.producers.get(append.identity.producer_id)
        epoch = max((batch.epoch for batch in append.batches), default=0)
        if state is None or epoch >= state.epoch or append.identity.kind is not IdentityKind.TRANSACTIONAL:
            return None
        return (
            f"epoch {epoch} of '{append.identity.producer_id}' was replaced by epoch {state.epoch}"
            f" of instance {state.instance_id or 'unknown'}"
        )

    def judge_sequence(self, append: SequencedAppend) -> CommandResult | None:
        """Return why an append that is not a duplicate is refused, or None."""
        state = self.producers.get(append.identity.producer_id)
        counts = append.row_counts
        for place, batches in append.batches_by_place.items():
            if sum(batch.row_count for batch in batches) != counts[place]:
                detail = f"its batches do not make up the {counts[place]} rows of partition {place[1]}"
                return CommandResult(Outcome.INVALID, detail)
            refused = _judge_partition(state, batches)
            if refused is not None:
                return refused
        return None

    def record(self, append: SequencedAppend, ranges: OffsetRanges) -> SequencedUndo:
        """Remember an applied append; return the argument that lets `undo` forget it. Claims of the id stay."""
        identity = append.identity
        state = self.producers.get(identity.producer_id)
        if state is None:
            state = self.producers[identity.producer_id] = SequencedProducer()
            state.is_forgettable = identity.kind is IdentityKind.ONE_SHOT
        before = {place: state.partitions.get(place) for place in append.batches_by_place}
        for place, batches in append.batches_by_place.items():
            # An append is repeated as a whole, so all of the newest one must be found again.
            kept_count = max(BATCHES_KEPT, len(batches))
            offset = ranges[place][0]
            sequences = state.partitions.get(place)
            for batch in batches:
                kept = sequences.batches if sequences is not None and sequences.epoch == batch.epoch else ()
                added = SequencedBatch(batch.first_sequence, batch.last_sequence, offset, offset + batch.row_count)
                sequences = PartitionSequences(batch.epoch, (*kept, added)[-kept_count:])
                offset += batch.row_count
            assert sequences is not None
            state.partitions[place] = sequences
        state.last_generation = max((o.id.generation for o in append.objects), default=state.last_generation)
        return SequencedUndo(identity.producer_id, before)

    def undo(self, change: SequencedUndo) -> None:
        """Restore what an append changed."""
        state = self.producers.get(change.producer_id)
        if state is None:
            return
        for place, sequences in change.before.items():
            if sequences is None:
                state.partitions.pop(place, None)
            else:
                state.partitions[place] = sequences

    def forget(self, floor: int) -> None:
        """Drop random ids whose objects are below the GC floor: the floor refuses their retries."""
        for producer_id, producer in list(self.producers.items()):
            if producer.is_forgettable and producer.last_generation < floor:
                del self.producers[producer_id]


def _judge_partition(producer: SequencedProducer | None, batches: Sequence[BatchSequence]) -> CommandResult | None:
    """Return why a partition's batches do not follow its known ones, or each other, or None."""
    first = batches[0]
    sequences = None if producer is None else producer.partitions.get((first.topic_id, first.partition))
    epoch = -1 if producer is None else producer.epoch
    expected: int | None = None if epoch < 0 else 0  # as with Kafka's marker, a claimed id begins with 0
    if sequences is not None and sequences.epoch >= epoch:
        epoch, expected = sequences.epoch, sequences.next_sequence
    for batch in batches:
        if batch.epoch < epoch:
            return CommandResult(Outcome.OLD_EPOCH, f"epoch {batch.epoch} is older than {epoch}")
        if batch.epoch > epoch and epoch >= 0:
            expected = 0
        if expected is not None and batch.first_sequence != expected:
            return CommandResult(
                Outcome.OUT_OF_SEQUENCE,
                f"sequence {batch.first_sequence} of epoch {batch.epoch} comes for partition {batch.partition} of"
                f" topic {batch.topic_id}, where {expected} is next",
            )
        epoch, expected = batch.epoch, (batch.last_sequence + 1) % SEQUENCE_COUNT
    return None


RowCounts = Mapping[tuple[TopicId, int], int]
RUNS_KEPT = 100
"""How many past runs, and other incarnations, of a producer stay known after a snapshot: the newest ones.

If an older run wakes up, its batches are judged by their sequences: only the newest one may be a duplicate."""
TXN_VERSIONS_KEPT = 1000
"""Digests kept per txnAppId. An older version that comes again is refused, never silently dropped."""


@dataclass(slots=True)
class ProducerState:
    """The fold's state of one producer.

    Attributes:
        epoch: how many runs were current before this one.
        past_runs: runs that were current before, oldest first; they are fenced.
        last_sequences: incarnation -> its last applied sequence.
        last_ranges: where the last append went.
        last_generation: newest data generation it wrote to.
        digests: what tells batches of one sequence apart. TXN_BATCH: version -> digest of its rows, oldest first.
            STREAM and TRANSACTIONAL: the last append's sequence -> its evidence.
    """

    incarnation: str
    run_id: str
    epoch: int = 0
    past_runs: dict[str, None] = field(default_factory=dict)
    last_sequences: dict[str, int] = field(default_factory=dict)
    last_ranges: OffsetRanges = field(default_factory=dict)
    last_generation: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)


def _rows_by_topic(counts: RowCounts) -> dict[TopicId, int]:
    """Not by partition: a repeated write may have other tasks, and then rows without a key go to other partitions."""
    rows_of: dict[TopicId, int] = {}
    for (topic, _), rows in counts.items():
        rows_of[topic] = rows_of.get(topic, 0) + rows
    return rows_of


def _counts_of(ranges: OffsetRanges) -> RowCounts:
    return {where: end - base for where, (base, end) in ranges.items()}


def _digest(counts: RowCounts, evidence: bytes) -> bytes:
    """Return a digest of a write's topics, rows per topic, and evidence."""
    text = "\n".join(f"{topic} {rows}" for topic, rows in sorted(_rows_by_topic(counts).items()))
    return hashlib.sha256(text.encode() + evidence).digest()[:8]


class ProducerUndo(NamedTuple):
    """The change of an append to its producer.

    Attributes:
        before: the producer before, None for a new one; without `past_runs` and `digests`, and with only its own
            incarnation and the append's in `last_sequences` (TXN_BATCH: all).
        dropped: the digest that the append pushed out.
    """

    kind: IdentityKind
    producer_id: str
    before: ProducerState | None = None
    is_new_run: bool = False
    incarnation: str = ""
    sequence: int = 0
    dropped: Mapping[int, bytes] = {}


@dataclass(slots=True)
class ProducerTable:
    """All producers of one topic ledger."""

    producers: dict[tuple[IdentityKind, str], ProducerState] = field(default_factory=dict)
    sequenced: SequenceTable = field(default_factory=SequenceTable)

    def get(self, identity: ProducerIdentity) -> ProducerState | None:
        """Return the producer's state, None if it is unknown."""
        return self.producers.get((identity.kind, identity.producer_id))

    def last_sequence(self, identity: ProducerIdentity) -> int:
        """Return the sequence of the producer's newest append under its newest incarnation; -1 without one."""
        state = self.get(identity)
        return -1 if state is None else state.last_sequences[state.incarnation]

    def has_passed(self, identity: ProducerIdentity) -> bool:
        """Return whether the incarnation has this sequence or a later one in the log."""
        state = self.get(identity)
        return state is not None and state.last_sequences.get(identity.incarnation, -1) >= identity.sequence

    def judge_duplicate(self, append: Append) -> CommandResult | None:
        """Return DUPLICATE (or TXN_MISMATCH) with its reason and old offsets, or None for a new append."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.judge_duplicate(append)
        identity = append.identity
        state = self.get(identity)
        if state is None:
            return None
        if identity.kind is IdentityKind.ONE_SHOT:
            return CommandResult(Outcome.DUPLICATE, _difference(state, append), state.last_ranges)
        last = state.last_sequences.get(identity.incarnation, -1)
        if identity.kind is IdentityKind.TXN_BATCH:
            return _judge_version(state, append, last)
        if identity.sequence != last or identity.incarnation != state.incarnation or _other_batch(state, append):
            return None
        return CommandResult(Outcome.DUPLICATE, _difference(state, append), state.last_ranges)

    def judge_fenced(self, append: Append) -> str | None:
        """Return why the append's run is fenced, or None."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.judge_fenced(append)
        identity = append.identity
        state = self.get(identity)
        if state is not None and identity.run_id in state.past_runs:
            return (
                f"run {identity.run_id} of '{identity.producer_id}' was replaced by run {state.run_id}"
                f" (epoch {state.epoch})"
            )
        return None

    def judge_sequence(self, append: Append) -> CommandResult | None:
        """Return the sequence's refusal, or None."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.judge_sequence(append)
        identity = append.identity
        if identity.sequence < 0:
            return CommandResult(Outcome.OUT_OF_SEQUENCE, f"sequence {identity.sequence} is negative")
        state = self.get(identity)
        if state is None or identity.kind not in (IdentityKind.STREAM, IdentityKind.TRANSACTIONAL):
            return None
        detail = _reset(state, append)
        if detail is None or identity.on_reset is ResetPolicy.APPEND:
            return None
        outcome = Outcome.SKIPPED if identity.on_reset is ResetPolicy.SKIP else Outcome.CHECKPOINT_RESET
        return CommandResult(outcome, detail)

    def record(self, append: Append, ranges: OffsetRanges) -> SequencedUndo | ProducerUndo:
        """Remember an applied append; return what `undo` needs to forget it. Both cost O(1)."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.record(append, ranges)
        identity = append.identity
        key = (identity.kind, identity.producer_id)
        state = self.producers.get(key)
        if state is None:
            state = self.producers[key] = ProducerState(identity.incarnation, identity.run_id)
            _remember(state, append, ranges)
            return ProducerUndo(*key)
        before = replace(state, past_runs={}, digests={})
        if identity.kind is not IdentityKind.TXN_BATCH:
            last, incarnations = state.last_sequences, (state.incarnation, identity.incarnation)
            before.last_sequences = {query: last[query] for query in incarnations if query in last}
        dropped = _remember(state, append, ranges)
        is_new_run = state.run_id != before.run_id
        return ProducerUndo(*key, before, is_new_run, identity.incarnation, identity.sequence, dropped)

    def undo(self, change: SequencedUndo | ProducerUndo) -> None:
        """Restore what an append changed; undo the newest append first."""
        if isinstance(change, SequencedUndo):
            return self.sequenced.undo(change)
        key = (change.kind, change.producer_id)
        state, before = self.producers.get(key), change.before
        if before is None or state is None:
            self.producers.pop(key, None)
            return None
        if change.is_new_run:
            state.past_runs.pop(before.run_id, None)
        sequences, digests = state.last_sequences, state.digests
        digests.pop(change.sequence, None)
        digests = {**change.dropped, **digests}
        if change.kind is IdentityKind.TXN_BATCH:
            sequences = dict(before.last_sequences)
        elif change.incarnation in before.last_sequences:
            sequences[change.incarnation] = before.last_sequences[change.incarnation]
        else:
            sequences.pop(change.incarnation, None)
        # `forget_runs` may have dropped it meanwhile.
        sequences.setdefault(before.incarnation, before.last_sequences.get(before.incarnation, -1))
        self.producers[key] = replace(before, past_runs=state.past_runs, last_sequences=sequences, digests=digests)
        return None

    def forget_runs(self) -> None:
        """Forget the oldest runs and incarnations of each producer; at the same entry in every process."""
        for producer in self.producers.values():
            for run_id in list(producer.past_runs)[:-RUNS_KEPT]:
                del producer.past_runs[run_id]
            others = [other for other in producer.last_sequences if other != producer.incarnation]
            for incarnation in others[:-RUNS_KEPT]:
                del producer.last_sequences[incarnation]

    def forget_one_shots(self, floor: int) -> None:
        """Drop one-shot producers whose objects are below the GC floor: the floor refuses their retries."""
        self.sequenced.forget(floor)
        for key, producer in list(self.producers.items()):
            if key[0] is IdentityKind.ONE_SHOT and producer.last_generation < floor:
                del self.producers[key]


def _remember(state: ProducerState, append: Append, ranges: OffsetRanges) -> dict[int, bytes]:
    """Note an applied append in O(1); return the digest that it pushed out."""
    identity = append.identity
    dropped: dict[int, bytes] = {}
    keeps_runs = identity.kind in (IdentityKind.STREAM, IdentityKind.TRANSACTIONAL)
    if keeps_runs and identity.run_id != state.run_id:
        state.past_runs[state.run_id] = None
        state.run_id = identity.run_id
        state.epoch += 1
    state.incarnation = identity.incarnation
    if keeps_runs:
        dropped = state.digests
        state.digests = {identity.sequence: identity.evidence} if identity.evidence else {}
    elif identity.kind is IdentityKind.TXN_BATCH:
        state.last_sequences = {}
        state.digests[identity.sequence] = _digest(_counts_of(ranges), identity.evidence)
        if len(state.digests) > TXN_VERSIONS_KEPT:
            oldest = next(iter(state.digests))
            dropped = {oldest: state.digests.pop(oldest)}
    state.last_sequences[identity.incarnation] = identity.sequence
    state.last_ranges = ranges
    state.last_generation = max((o.id.generation for o in append.objects), default=state.last_generation)
    return dropped


def _judge_version(state: ProducerState, append: Append, last: int) -> CommandResult | None:
    """Judge a txnVersion; None if it is new."""
    identity, version = append.identity, append.identity.sequence
    if version > last:
        return None
    is_last = version == last
    if state.digests.get(version) == _digest(append.row_counts, identity.evidence):
        detail, ranges = (_difference(state, append), state.last_ranges) if is_last else ("", {})
        return CommandResult(Outcome.DUPLICATE, detail, ranges)
    name = f"txnVersion {version} of '{identity.producer_id}'"
    if version not in state.digests:
        detail = f"{name} is not after {last}, and its rows are not known"
    elif is_last:
        detail = f"{name} was written with {_other_rows(state, append) or 'other contents of its rows'}"
    else:
        detail = f"{name} was written with other rows, before version {last}"
    outcome = Outcome.SKIPPED if identity.on_reset is ResetPolicy.SKIP else Outcome.TXN_MISMATCH
    return CommandResult(outcome, detail)


def _other_rows(state: ProducerState, append: Append) -> str:
    """Return how the topics and rows of the producer's last append differ from those of another; '' if they do not."""
    before, now = _rows_by_topic(_counts_of(state.last_ranges)), _rows_by_topic(append.row_counts)
    if before.keys() != now.keys():
        return f"other topics (ids {', '.join(sorted(before)) or 'none'}, now {', '.join(sorted(now)) or 'none'})"
    if before != now:
        topic = next(topic_id for topic_id in sorted(before) if before[topic_id] != now[topic_id])
        return f"{before[topic]} rows where this one has {now[topic]} (topic id {topic})"
    return ""


def _other_batch(state: ProducerState, append: Append) -> str:
    """Return why an append with the last sequence is another batch than the last one, or ''.

    With evidence on both sides, counts do not matter: a query that is not deterministic repeats a batch with other
    rows. Rows for a topic that got none are never dropped.
    """
    evidence, theirs = append.identity.evidence, state.digests.get(append.identity.sequence, b"")
    if not theirs:  # it was written when the checkpoint could not be read, and no later read can tell more
        other = _other_rows(state, append)
        return other and f"{other}, and the checkpoint could not be read then"
    if not evidence:
        return "a checkpoint that could be read, and now `offsets` of it cannot be: it may be another batch"
    if evidence != theirs:
        return "another `offsets` file of the checkpoint"
    topics = {topic for topic, _ in state.last_ranges}
    added = sorted({topic for topic, _ in append.row_counts} - topics)
    return f"no rows of topic id {added[0]}" if added else ""


def _reset(state: ProducerState, append: Append) -> str | None:
    """Return why a query's append, which is no duplicate, does not come after the batches that are known, or None."""
    identity = append.identity
    name, sequence, incarnation = identity.producer_id, identity.sequence, identity.incarnation
    own_last, last = state.last_sequences.get(incarnation, -1), state.last_sequences[state.incarnation]
    if incarnation == state.incarnation and sequence == last:
        return f"batch {sequence} of '{name}' was written from {_other_batch(state, append)}"
    if sequence > max(own_last, last):
        return None
    if incarnation == state.incarnation:
        return f"'{name}' is at batch {last}, and batch {sequence} comes: Spark repeats only the newest batch"
    return f"'{name}' is at batch {last} of query {state.incarnation}; query {incarnation} comes with batch {sequence}"


def _difference(state: ProducerState, append: Append) -> str:
    before, now = _counts_of(state.last_ranges), append.row_counts
    if before == now:
        return ""
    where = next(key for key in sorted(before.keys() | now.keys()) if before.get(key, 0) != now.get(key, 0))
    return (
        f"the repeated append brings {sum(now.values())} rows where {sum(before.values())} were applied;"
        f" first difference in partition {where[1]} of topic {where[0]}:"
        f" {now.get(where, 0)} instead of {before.get(where, 0)}"
    )


_PLACE = fields(TEXT, UINT)
_RANGES = map_of(_PLACE, fields(UINT, UINT))
_BATCH = record(SequencedBatch, first_sequence=UINT, last_sequence=UINT, base_offset=UINT, end_offset=UINT)
_SEQUENCES = record(PartitionSequences, epoch=UINT, batches=list_of(_BATCH))
_SEQUENCED = record(
    SequencedProducer,
    epoch=SINT,
    instance_id=TEXT,
    partitions=map_of(_PLACE, _SEQUENCES),
    last_generation=UINT,
    is_forgettable=BOOL,
)
_NAMES = list_of(TEXT)
_RUNS = Kind(_NAMES.write, lambda reader: dict.fromkeys(_NAMES.read(reader)))
_PRODUCER = record(
    ProducerState,
    incarnation=TEXT,
    run_id=TEXT,
    epoch=UINT,
    past_runs=_RUNS,
    last_sequences=map_of(TEXT, SINT),
    last_ranges=_RANGES,
    last_generation=UINT,
    digests=map_of(SINT, BYTES),
)
_KIND = enum_of(IdentityKind)
PRODUCERS = record(
    ProducerTable,
    producers=map_of(fields(_KIND, TEXT), _PRODUCER),
    sequenced=record(SequenceTable, producers=map_of(TEXT, _SEQUENCED)),
)
_SEQUENCED_UNDO = record(SequencedUndo, producer_id=TEXT, before=map_of(_PLACE, optional(_SEQUENCES)))
_PRODUCER_UNDO = record(
    ProducerUndo,
    kind=_KIND,
    producer_id=TEXT,
    before=optional(_PRODUCER),
    is_new_run=BOOL,
    incarnation=TEXT,
    sequence=SINT,
    dropped=map_of(SINT, BYTES),
)


def _write_undo(writer: Writer, value: SequencedUndo | ProducerUndo) -> None:
    is_sequenced = isinstance(value, SequencedUndo)
    writer.byte(is_sequenced)
    (_SEQUENCED_UNDO if is_sequenced else _PRODUCER_UNDO).write(writer, value)


UNDO = Kind(_write_undo, lambda reader: (_SEQUENCED_UNDO if reader.byte() else _PRODUCER_UNDO).read(reader))
"""In a snapshot: how to undo the producer's change by an append that may still be cut."""
