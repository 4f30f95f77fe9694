"""The commands of ledger entries, and the results of folding them: frozen values, no behaviour."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import ObjectId, PartitionKey, TopicId
from spark_replog.log.acl import AclsAdd, AclsRemove
from spark_replog.log.codec.group_records import Record
from spark_replog.log.quotas import QuotaAlter

if TYPE_CHECKING:
    from spark_replog.log.row_schema import RowSchema

INPUTS_DIGEST_BYTES = 16
EVIDENCE_BYTES = 8


class IdentityKind(IntEnum):
    """Which duplicate rule an append follows."""

    STREAM = 0
    """A streaming query: producer id = query id, sequence = batch id."""
    TRANSACTIONAL = 1
    """A query under a user's `transactional.id`; the query id is its incarnation."""
    TXN_BATCH = 2
    """A batch write under `txnAppId`; sequence = `txnVersion`."""
    ONE_SHOT = 3
    """A batch write under a random producer id."""


class ResetPolicy(IntEnum):
    """What to do with another batch under a sequence that was applied (`onCheckpointReset`)."""

    FAIL = 0
    APPEND = 1
    """STREAM and TRANSACTIONAL only."""
    SKIP = 2
    """Its rows are dropped."""


class Section(NamedTuple):
    """The records of one topic-partition inside a data object. (A tuple: an entry may hold thousands.)."""

    topic_id: str
    partition: int
    row_count: int
    start_byte: int
    """First byte in the object; sections of one object ascend and do not overlap."""
    size_bytes: int
    crc32c: int
    min_timestamp_ms: int
    """Floored."""
    max_timestamp_ms: int
    """Ceiled."""


@dataclass(frozen=True, slots=True)
class DataObject:
    """One immutable Arrow file and the brokers that hold it durably."""

    id: ObjectId
    size_bytes: int
    has_headers: bool
    holders: frozenset[int]
    sections: tuple[Section, ...]
    has_offsets: bool = False
    """Whether the rows' offsets are stored, as in a segment of compaction that has gaps."""
    after_index: int = field(default=-1, compare=False)
    """An entry of the ledger that was decided before the first put began, -1: none is known. Not stored: with it the
    commit knows which holders may have lost their disk since (ADR 8)."""
    inline: bytes = b""
    """The object's bytes, if the entry itself carries them: then no root has a file, and the ledger holds it for every
    replica (ADR 32). Only in appends."""
    schema_version: int = 0
    """Of the topic of all its rows; 0: they have the columns key and value."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who appends, so that a repeated append is found (docs/design/identity.md)."""

    producer_id: str
    incarnation: str
    """Query id; equal to producer_id if the kind has none."""
    sequence: int
    run_id: str
    """One start of the query; if the kind has none, the process that appends: whose clock the append's time is from."""
    kind: IdentityKind
    on_reset: ResetPolicy = ResetPolicy.FAIL
    evidence: bytes = b""
    """Which batch has this sequence: EVIDENCE_BYTES that are equal in every repeat of it, and in no other batch; b'' if
    there is none. Of STREAM and TRANSACTIONAL made from the checkpoint, of TXN_BATCH from the rows."""


@dataclass(frozen=True, slots=True)
class Append:
    """One micro-batch (or batch write): all sections become visible at once or none."""

    identity: ProducerIdentity
    principal: str
    client_id: str
    append_time_ms: int
    """Proposer's clock; see `fold.topic_state.AppendTime`."""
    objects: tuple[DataObject, ...]
    """In task order, then drain order: offsets are prefix sums in this order."""
    row_counts: Mapping[PartitionKey, int] = field(init=False, repr=False, compare=False)
    """Rows per partition, in order of first appearance; computed once from the sections."""

    def __post_init__(self) -> None:
        counts: dict[PartitionKey, int] = {}
        for item in self.objects:
            for section in item.sections:
                key = (section.topic_id, section.partition)
                counts[key] = counts.get(key, 0) + section.row_count
        object.__setattr__(self, "row_counts", counts)


class BatchSequence(NamedTuple):
    """A batch of an idempotent producer inside an append: fields of Kafka's batch header."""

    topic_id: str
    partition: int
    epoch: int
    first_sequence: int
    row_count: int

    @property
    def last_sequence(self) -> int:
        """Return the last record's sequence; 0 follows 2**31 - 1."""
        return (self.first_sequence + self.row_count - 1) % 2**31


@dataclass(frozen=True, slots=True)
class SequencedAppend(Append):
    """An append of an idempotent producer: its batches are judged by epoch and sequence.

    The identity's kind is TRANSACTIONAL for an id that a user gave and ONE_SHOT for a random one.
    """

    batches: tuple[BatchSequence, ...]
    """In the order of each partition's rows; ignored if the partition has no section."""

    batches_by_place: Mapping[PartitionKey, list[BatchSequence]] = field(init=False, repr=False, compare=False)
    """The batches of each partition that has rows; computed once."""

    def __post_init__(self) -> None:
        Append.__post_init__(self)
        batches: dict[PartitionKey, list[BatchSequence]] = {place: [] for place in self.row_counts}
        for batch in self.batches:
            place = (batch.topic_id, batch.partition)
            if place in batches:
                batches[place].append(batch)
        object.__setattr__(self, "batches_by_place", batches)


@dataclass(frozen=True, slots=True)
class MirrorAppend(Append):
    """Rows of a mirrored topic at the offsets that they have at their source, which may have gaps.

    Applied only where each partition ends where it follows, so that the log's own end is the mirror's position.
    """

    follows: tuple[int, ...]
    """Of each partition, in the order of `row_counts`: the log end that its rows come after."""
    ends: tuple[int, ...]
    """Of each section, in order: where the offsets that it spans end. The next one of its partition begins there."""
    is_append_time: bool = False
    """Whether the rows' times are those of their append at the source (LogAppendTime): they are stored, as others."""

    def spans(self) -> list[tuple[int, int]]:
        """Return the offsets [first, end) that each section spans, in order."""
        ends = dict(zip(self.row_counts, self.follows, strict=True))
        sections = (section for item in self.objects for section in item.sections)
        spans = []
        for section, end in zip(sections, self.ends, strict=True):
            place = (section.topic_id, section.partition)
            spans.append((ends[place], end))
            ends[place] = end
        return spans


@dataclass(frozen=True, slots=True)
class MirrorSet:
    """Makes an empty topic a mirrored one, or (source '') ends that: ordinary writers go on at its ends."""

    topic_id: str
    source: str
    """What is mirrored, so that nothing else is mixed in; '' ends it."""
    starts: tuple[int, ...] = ()
    """The offset at which each partition begins; partitions without one begin at 0."""


@dataclass(frozen=True, slots=True)
class MirrorAdvance:
    """Moves the ends of partitions of a mirrored topic that hold no row: the source has none up to there."""

    topic_id: str
    ends: tuple[tuple[int, int, int], ...]
    """(partition, log end that it has, new log end)."""


@dataclass(frozen=True, slots=True)
class ProducerInit:
    """An instance of a program claims a `transactional.id`; applied only if `epoch` is the next one."""

    producer_id: str
    instance_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicInit:
    """Creates a topic. assignments: replicas per partition, preferred leader first."""

    topic_id: str
    name: str
    assignments: tuple[tuple[int, ...], ...]
    config: tuple[tuple[str, str], ...]
    schema: RowSchema | None = None
    """Version 1 of the columns of its rows; None: rows are bytes, for ever."""


@dataclass(frozen=True, slots=True)
class SchemaEvolve:
    """Gives a topic the next version of its schema, which must be able to hold all older rows."""

    topic_id: str
    version: int
    """The new one's: applied only after the version before it, so of two writers at once one wins."""
    schema: RowSchema


@dataclass(frozen=True, slots=True)
class TopicClose:
    """Deletes a topic: every later append is refused."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionsAdd:
    """Grows a topic to `total` partitions; `assignments` holds only the new ones, in order."""

    topic_id: str
    total: int
    assignments: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ConfigSet:
    """Changes topic settings; None removes one."""

    topic_id: str
    changes: tuple[tuple[str, str | None], ...]


class LogStartReason(IntEnum):
    """Why a log start moved (Kafka: ``LogStartOffsetIncrementReason``)."""

    DELETE_RECORDS = 0
    """On request."""
    RETENTION = 1
    """By age or size."""


@dataclass(frozen=True, slots=True)
class LogStartAdvance:
    """Removes rows below an offset, per partition.

    An offset above the high watermark refuses the whole command; one below the log start changes nothing.
    """

    topic_id: str
    reason: LogStartReason
    offsets: tuple[tuple[int, int], ...]
    """(partition, new log start offset)."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Compaction: sections of one partition are replaced by others of the same offsets (Kafka: a cleaned segment).

    Applied only if the live sections of the range are exactly those that the digest names. So of two compactors one
    wins, and a stale one changes nothing.
    """

    topic_id: str
    partition: int
    first_offset: int
    end_offset: int
    inputs: bytes
    """`inputs_digest` of the sections that are replaced."""
    outputs: tuple[DataObject, ...]
    """Sections of this partition only; each spans the offsets up to the next one's base, and may hold fewer rows."""
    base_offsets: tuple[int, ...]
    """Of the outputs' sections, in order; the first is `first_offset`."""


@dataclass(frozen=True, slots=True)
class LogExtend(Replace):
    """Moves the end of a mirrored partition: its last sections are replaced by others that span more offsets.

    The source has no rows there: markers of transactions, aborted or compacted rows.
    """

    log_end_offset: int
    """The new log end; `end_offset` is the one that the partition has."""

    @classmethod
    def of(cls, command: Replace, log_end_offset: int) -> LogExtend:
        """Return the extension that a replacement of a partition's last sections becomes with a later end."""
        span = command.topic_id, command.partition, command.first_offset, command.end_offset
        return cls(*span, command.inputs, command.outputs, command.base_offsets, log_end_offset)


@dataclass(frozen=True, slots=True)
class LogClean:
    """A pass of compaction by key is over: below an offset each key has only its latest row of that range.

    Decided after all replacements of the pass.
    """

    topic_id: str
    partition: int
    clean_offset: int
    time_ms: int
    """When tombstones below the offset began to wait for `delete.retention.ms`."""


def inputs_digest(sections: Iterable[tuple[ObjectId, int, int]]) -> bytes:
    """Return 16 bytes that identify sections, given as (object id, start byte, base offset) in offset order."""
    digest = hashlib.sha256()
    for (generation, name), start_byte, base_offset in sections:
        digest.update(f"{generation}/{name}/{start_byte}/{base_offset}\n".encode())
    return digest.digest()[:INPUTS_DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A broker leaves or joins the in-sync replicas of one topic's partitions, or of all (topic_id None)."""

    topic_id: str | None
    broker_id: int
    in_sync: bool
    time_ms: int
    """Proposer's clock; delays only when the broker may join again."""


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A new leader, ISR or replicas of one partition, valid only for the state that it was computed from.

    Source: Kafka's ``PartitionChangeRecord`` and the checks of its ``AlterPartition`` request.
    """

    topic_id: str
    partition: int
    leader_epoch: int
    """Of that state, as is the partition epoch."""
    partition_epoch: int
    leader: int
    """-1: none."""
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    """While a reassignment runs: the target, then the replicas that leave."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_unclean: bool = False
    """The leader is out of sync: the log is cut at its log end."""


@dataclass(frozen=True, slots=True)
class BrokerFence:
    """Takes a broker out of service, or back: requested in the cluster ledger, applied in each topic ledger."""

    broker_id: int
    is_fenced: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cuts all appends after an entry, in all partitions, with their producers' sequences.

    Never below the stable index, so no reader has seen the rows.
    """

    after_index: int


@dataclass(frozen=True, slots=True)
class HoldersAdd:
    """More brokers hold object `object_no` of the append that is command `command_no` of an entry."""

    entry_index: int
    command_no: int
    object_no: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GenerationAdvance:
    """New objects go to `generation`; objects below `floor` are refused from now on.

    Objects below the floor that no live row names are garbage.

    Attributes:
        began_ms: the proposer's clock: when the generation begins, if that is after the last append. It only chooses
            when the floor passes the generations before.
    """

    generation: int
    floor: int
    began_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupRecords:
    """Records of one consumer group, inline in the ledger of `__consumer_offsets` (ADR 7)."""

    topic_id: str
    group: str
    writer_id: str
    """The proposing process; with `sequence` it identifies a repeated command."""
    sequence: int
    member_id: str
    """'' without a member."""
    instance_id: str
    generation: int
    """The member's; -1 without a member."""
    revision: int
    """A change of membership applies only to this revision of the group; -1: a commit, judged by generation."""
    time_ms: int
    """Proposer's clock; used only to expire offsets."""
    records: tuple[Record, ...]
    """Empty: a heartbeat."""


@dataclass(frozen=True, slots=True)
class BrokerRegister:
    """Adds or updates a broker; `probe` is the report of the create-if-absent probe, JSON."""

    broker_id: int
    url: str
    rack: str | None
    probe: str
    root_id: str | None = None
    """Identity of the root that `store repair` made for the broker; None for its first root."""

    @property
    def file_system(self) -> str:
        """Kind of file system that the root was on when it was registered, "" if unknown."""
        try:
            name = json.loads(self.probe).get("fileSystem")
        except (ValueError, AttributeError, RecursionError):  # it came from storage
            return ""
        return name if isinstance(name, str) else ""


@dataclass(frozen=True, slots=True)
class LedgerRegister:
    """Gives a ledger name its id; the first one wins."""

    name: str
    ledger_id: str


@dataclass(frozen=True, slots=True)
class TopicPublish:
    """Gives a topic name its id and ledger; the first one wins."""

    name: str
    topic_id: str
    ledger_id: str


@dataclass(frozen=True, slots=True)
class TopicUnpublish:
    """Frees a topic name if it still means this id."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """Raises a ledger's feature level: releases that do not know it refuse the ledger. In both kinds of ledger.

    Every ledger begins at level 1. A release with other rules of judging writes its own level first.
    """

    level: int


@dataclass(frozen=True, slots=True)
class ClusterConfigSet:
    """Sets (value) or unsets (None) settings of the whole store."""

    changes: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class SnapshotCommit:
    """Makes a snapshot the decided one, if it derives from the present one; in both kinds of ledger.

    Attributes:
        base_no: number of the decided snapshot that it derives from, 0 before the first.
        index: it holds the state after this entry.
        name: of its head.
    """

    base_no: int
    index: int
    name: str


Command = (
    Append
    | TopicInit
    | SchemaEvolve
    | TopicClose
    | PartitionsAdd
    | ConfigSet
    | IsrChange
    | HoldersAdd
    | GenerationAdvance
    | GroupRecords
    | ProducerInit
    | SequencedAppend
    | MirrorAppend
    | MirrorSet
    | MirrorAdvance
    | LogExtend
    | LogStartAdvance
    | Replace
    | LogClean
    | PartitionChange
    | BrokerFence
    | Truncate
    | SnapshotCommit
    | BrokerRegister
    | LedgerRegister
    | TopicPublish
    | TopicUnpublish
    | FeatureSet
    | AclsAdd
    | AclsRemove
    | QuotaAlter
    | ClusterConfigSet
)
OffsetRanges = Mapping[tuple[TopicId, int], tuple[int, int]]
"""(topic id, partition) -> (first offset, end offset), ends exclusive."""

UNKNOWN_OFFSET = -1


class Outcome(Enum):
    """The fold's result for a command. Only APPLIED changed the state."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """Applied before: success for its producer."""
    SKIPPED = "skipped"
    """By `onCheckpointReset=skip`: its rows are dropped. Or an ISR change without effect."""
    EXISTS = "exists"
    """Done before: a repeated step."""
    UNKNOWN_TOPIC = "unknown_topic"
    TOPIC_CLOSED = "topic_closed"
    FENCED = "fenced"
    """A newer run replaced the writer's."""
    BELOW_FLOOR = "below_floor"
    """An object's generation may be collected already: the writer was too slow."""
    OUT_OF_SEQUENCE = "out_of_sequence"
    OLD_EPOCH = "old_epoch"
    """The epoch of an idempotent producer is older than its current one."""
    CHECKPOINT_RESET = "checkpoint_reset"
    """A sequence that was applied, and another batch, or one that Spark does not repeat."""
    TXN_MISMATCH = "txn_mismatch"
    """Same txnVersion, other rows."""
    MIRRORED = "mirrored"
    """The topic is a mirror's, and the append is not; or the other way round."""
    NOT_NEXT = "not_next"
    """A mirror's append that does not begin where the log ends."""
    REFUSED = "refused"
    """The state of a partition does not allow the change; `error_code` is Kafka's."""
    INVALID = "invalid"
    """Undecodable, or contradicts the state (partition out of range, unknown object); see `detail`."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The fold's answer to one command, or what it would answer if the command were decided next.

    Attributes:
        detail: why, for people; for a DUPLICATE non-empty when its row counts differ from what was applied.
        base_offsets: APPLIED appends: where each partition's rows went. DUPLICATE of the producer's LAST
            append: where they went then. Else empty.
        error_code: REFUSED: Kafka's code.
    """

    outcome: Outcome
    detail: str = ""
    base_offsets: OffsetRanges = field(default_factory=dict)
    error_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class PartitionResponse:
    """The answer for one partition of an append. Source: Kafka's ``ProduceResponse.PartitionResponse``.

    Attributes:
        error: why its rows are not in the log; None: they are (with acks=0: as far as is known).
        base_offset: of its first row; -1 if unknown: refused, acks=0, or a repeated append that is
            not the producer's last.
        log_append_time_ms: None unless the topic shows LogAppendTime.
        log_start_offset: -1 if unknown.
    """

    error: ReplogError | None = None
    base_offset: int = UNKNOWN_OFFSET
    log_append_time_ms: int | None = None
    log_start_offset: int = UNKNOWN_OFFSET


OK = CommandResult(Outcome.APPLIED)
