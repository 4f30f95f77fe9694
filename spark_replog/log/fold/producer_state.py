"""Duplicate and fencing rules of producers (DESIGN section 7). Pure; part of the topic ledger's fold.

The sequence of a query or a batch write is a whole micro-batch, so one number per incarnation is
enough. The plain ``Producer`` has Kafka's sequence per record and partition: ``sequence_state``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from spark_replog.ids import TopicId
from spark_replog.log.fold.sequence_state import SequenceTable
from spark_replog.log.model import Append, IdentityKind, ProducerIdentity, ResetPolicy, SequencedAppend, row_counts
from spark_replog.log.results import OffsetRanges, Outcome

RowCounts = Mapping[tuple[TopicId, int], int]
TXN_VERSIONS_KEPT = 1000
"""Digests kept per txnAppId. An older version that comes again is refused, never dropped in silence."""


@dataclass(slots=True)
class ProducerState:
    """What the fold keeps of one producer.

    Attributes:
        epoch: how many runs were current before this one.
        past_runs: runs that were current before; they are fenced.
        last_sequences: incarnation -> its last applied sequence.
        last_ranges: where the last append went.
        last_generation: newest data generation it wrote to.
        txn_digests: TXN_BATCH only: version -> digest of its row counts, oldest first.
    """

    incarnation: str
    run_id: str
    epoch: int = 0
    past_runs: set[str] = field(default_factory=set)
    last_sequences: dict[str, int] = field(default_factory=dict)
    last_ranges: OffsetRanges = field(default_factory=dict)
    last_generation: int = 0
    txn_digests: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> ProducerState:
        """Return an independent state."""
        containers = {"past_runs": set(self.past_runs), "last_sequences": dict(self.last_sequences)}
        return replace(self, **containers, txn_digests=dict(self.txn_digests))  # type: ignore[arg-type]


def _digest(counts: RowCounts) -> bytes:
    """Return what tells other rows under the same txnVersion, by topic.

    Not by partition: a repeated write may come in other tasks, and then rows without a key lie elsewhere.
    """
    rows_of: dict[TopicId, int] = {}
    for (topic, _), rows in counts.items():
        rows_of[topic] = rows_of.get(topic, 0) + rows
    text = "\n".join(f"{topic} {rows}" for topic, rows in sorted(rows_of.items()))
    return hashlib.sha256(text.encode()).digest()[:8]


class ProducerTable:
    """All producers of one topic ledger."""

    __slots__ = ("_producers", "sequenced")

    def __init__(self) -> None:
        self.sequenced = SequenceTable()
        self._producers: dict[tuple[IdentityKind, str], ProducerState] = {}

    def get(self, identity: ProducerIdentity) -> ProducerState | None:
        """Return what is known of the producer."""
        return self._producers.get((identity.kind, identity.producer_id))

    def judge_duplicate(self, append: Append) -> tuple[Outcome, str, OffsetRanges] | None:
        """Return DUPLICATE (or TXN_MISMATCH) with its reason and old offsets, or None for a new append."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.judge_duplicate(append)
        identity = append.identity
        known = self.get(identity)
        if known is None:
            return None
        if identity.kind is IdentityKind.ONE_SHOT:
            return Outcome.DUPLICATE, _difference(known, append), known.last_ranges
        if identity.kind is IdentityKind.TXN_BATCH:
            last = known.last_sequences[known.incarnation]
            if identity.sequence > last:
                return None
            if known.txn_digests.get(identity.sequence) != _digest(row_counts(append)):
                return (
                    Outcome.TXN_MISMATCH,
                    f"txnVersion {identity.sequence} of '{identity.producer_id}' is not after {last}, and its"
                    " row counts per topic are not those of that version",
                    {},
                )
            if identity.sequence == last:
                return Outcome.DUPLICATE, _difference(known, append), known.last_ranges
            return Outcome.DUPLICATE, "", {}
        incarnation_last = known.last_sequences.get(identity.incarnation)
        if incarnation_last is None or identity.sequence > incarnation_last:
            return None
        if identity.sequence == incarnation_last and identity.incarnation == known.incarnation:
            return Outcome.DUPLICATE, _difference(known, append), known.last_ranges
        return Outcome.DUPLICATE, "", {}

    def judge_fenced(self, append: Append) -> str | None:
        """Return why the append's run is fenced, or None."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.judge_fenced(append)
        identity = append.identity
        known = self.get(identity)
        if known is not None and identity.run_id in known.past_runs:
            return (
                f"run {identity.run_id} of '{identity.producer_id}' was replaced by run {known.run_id}"
                f" (epoch {known.epoch})"
            )
        return None

    def judge_sequence(self, append: Append) -> tuple[Outcome, str] | None:
        """Return the sequence's refusal, or None."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.judge_sequence(append)
        identity = append.identity
        if identity.sequence < 0:
            return Outcome.OUT_OF_SEQUENCE, f"sequence {identity.sequence} is negative"
        known = self.get(identity)
        if known is None or identity.incarnation == known.incarnation:
            return None
        if identity.kind not in (IdentityKind.STREAM, IdentityKind.TRANSACTIONAL):
            return None
        last = known.last_sequences[known.incarnation]
        if identity.sequence > last or identity.on_reset is ResetPolicy.APPEND:
            return None
        detail = (
            f"'{identity.producer_id}' is at batch {last} of query {known.incarnation}; query"
            f" {identity.incarnation} comes with batch {identity.sequence}"
        )
        if identity.on_reset is ResetPolicy.SKIP:
            return Outcome.SKIPPED, detail
        return Outcome.CHECKPOINT_RESET, detail

    def record(self, append: Append, ranges: OffsetRanges) -> Callable[[], None]:
        """Remember an applied append; return what forgets it again, newest first."""
        if isinstance(append, SequencedAppend):
            return self.sequenced.record(append, ranges)
        identity = append.identity
        key = (identity.kind, identity.producer_id)
        known = self._producers.get(key)
        before = None if known is None else known.copy()
        if known is None:
            known = self._producers[key] = ProducerState(identity.incarnation, identity.run_id)
        keeps_runs = identity.kind in (IdentityKind.STREAM, IdentityKind.TRANSACTIONAL)
        if keeps_runs and identity.run_id != known.run_id:
            known.past_runs.add(known.run_id)
            known.run_id = identity.run_id
            known.epoch += 1
        known.incarnation = identity.incarnation
        if identity.kind is IdentityKind.TXN_BATCH:
            known.last_sequences.clear()
            counts = {where: end - base for where, (base, end) in ranges.items()}
            known.txn_digests[identity.sequence] = _digest(counts)
            if len(known.txn_digests) > TXN_VERSIONS_KEPT:
                del known.txn_digests[next(iter(known.txn_digests))]
        known.last_sequences[identity.incarnation] = identity.sequence
        known.last_ranges = ranges
        known.last_generation = max((o.id.generation for o in append.objects), default=known.last_generation)
        return lambda: self._put(key, before)

    def _put(self, key: tuple[IdentityKind, str], known: ProducerState | None) -> None:
        if known is None:
            self._producers.pop(key, None)
        else:
            self._producers[key] = known

    def forget_one_shots(self, floor: int) -> None:
        """Drop one-shot producers whose objects lie below the GC floor: the floor refuses their retries."""
        self.sequenced.forget(floor)
        gone = [
            key
            for key, known in self._producers.items()
            if key[0] is IdentityKind.ONE_SHOT and known.last_generation < floor
        ]
        for key in gone:
            del self._producers[key]


def _difference(known: ProducerState, append: Append) -> str:
    before = {where: end - base for where, (base, end) in known.last_ranges.items()}
    now = row_counts(append)
    if before == now:
        return ""
    where = next(key for key in sorted(before.keys() | now.keys()) if before.get(key, 0) != now.get(key, 0))
    return (
        f"the repeated append brings {sum(now.values())} rows where {sum(before.values())} were applied;"
        f" first difference in partition {where[1]} of topic {where[0]}:"
        f" {now.get(where, 0)} instead of {before.get(where, 0)}"
    )
