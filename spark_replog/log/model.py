"""What a ledger entry holds, and what a fold answers to its commands: frozen values, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId, ObjectId, TopicId
from spark_replog.log.acl import AclsAdd, AclsRemove
from spark_replog.log.codec.group_records import Record
from spark_replog.log.quotas import QuotaAlter


class IdentityKind(IntEnum):
    """Which identity rule of the duplicate check an append follows."""

    STREAM = 0
    """A streaming query: producer id = query id, sequence = batch id."""
    TRANSACTIONAL = 1
    """A query under a user's `transactional.id`; the query id is its incarnation."""
    TXN_BATCH = 2
    """A batch write under `txnAppId`; sequence = `txnVersion`."""
    ONE_SHOT = 3
    """A batch write under a random producer id."""


class ResetPolicy(IntEnum):
    """What to do when another incarnation comes with a sequence that was passed (`onCheckpointReset`)."""

    FAIL = 0
    APPEND = 1
    SKIP = 2


class Section(NamedTuple):
    """The records of one topic-partition inside a data object. (A tuple: an entry may hold thousands.)"""

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


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who appends, so that a repeated append is found. docs/design/identity.md."""

    producer_id: str
    incarnation: str
    """Query id; equal to producer_id where the kind has none."""
    sequence: int
    run_id: str
    """One start of the query; '' where the kind has none."""
    kind: IdentityKind
    on_reset: ResetPolicy = ResetPolicy.FAIL


@dataclass(frozen=True, slots=True)
class Append:
    """One micro-batch (or batch write): all sections become visible at once or none."""

    identity: ProducerIdentity
    principal: str
    client_id: str
    append_time_ms: int
    """Proposer's clock; see `fold.topic_state.AppendTime`."""
    objects: tuple[DataObject, ...]
    """In task order, then drain order: offsets are given by prefix sums over it."""


def row_counts(append: Append) -> dict[tuple[str, int], int]:
    """Return the rows an append brings per (topic id, partition), in order of first appearance."""
    counts: dict[tuple[str, int], int] = {}
    for item in append.objects:
        for section in item.sections:
            key = (section.topic_id, section.partition)
            counts[key] = counts.get(key, 0) + section.row_count
    return counts


class BatchSequence(NamedTuple):
    """A batch of an idempotent producer inside an append: Kafka's header fields of it."""

    topic_id: str
    partition: int
    epoch: int
    first_sequence: int
    row_count: int

    @property
    def last_sequence(self) -> int:
        """Return the last record's; after 2**31 - 1 comes 0."""
        return (self.first_sequence + self.row_count - 1) % 2**31


@dataclass(frozen=True, slots=True)
class SequencedAppend(Append):
    """An append of an idempotent producer: its batches are judged by epoch and sequence.

    The identity's kind is TRANSACTIONAL for an id that a user gave and ONE_SHOT for a random one.
    """

    batches: tuple[BatchSequence, ...]
    """In the order of each partition's rows. Those of partitions without a section are ignored, so that
    a partition that was refused can be taken out of the objects alone."""

    def batches_by_place(self) -> dict[tuple[str, int], list[BatchSequence]]:
        """Return the batches of each (topic id, partition) that has rows."""
        found: dict[tuple[str, int], list[BatchSequence]] = {place: [] for place in row_counts(self)}
        for batch in self.batches:
            if (batch.topic_id, batch.partition) in found:
                found[batch.topic_id, batch.partition].append(batch)
        return found


@dataclass(frozen=True, slots=True)
class ProducerInit:
    """An instance of a program takes a `transactional.id`; applied only if `epoch` is the next one."""

    producer_id: str
    instance_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicInit:
    """Makes a topic. assignments: replicas per partition, preferred leader first."""

    topic_id: str
    name: str
    assignments: tuple[tuple[int, ...], ...]
    config: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TopicClose:
    """Fences every later append to the topic."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionsAdd:
    """Grows a topic to `total` partitions; assignments are those of the NEW partitions only, in order."""

    topic_id: str
    total: int
    assignments: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ConfigSet:
    """Changes topic settings; None removes one."""

    topic_id: str
    changes: tuple[tuple[str, str | None], ...]


class LogStartReason(IntEnum):
    """Why offsets were taken from the beginning of a log (Kafka: ``LogStartOffsetIncrementReason``)."""

    DELETE_RECORDS = 0
    """Somebody asked for it."""
    RETENTION = 1
    """They aged out, or the partition grew too large."""


@dataclass(frozen=True, slots=True)
class LogStartAdvance:
    """Takes away what lies below an offset, per partition; never what cannot be read yet.

    An offset above the high watermark refuses the whole command, one below the log start changes nothing.
    """

    topic_id: str
    reason: LogStartReason
    offsets: tuple[tuple[int, int], ...]
    """(partition, new log start offset)."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A broker leaves or joins the in-sync replicas of one topic's partitions, or of all (topic_id None)."""

    topic_id: str | None
    broker_id: int
    in_sync: bool
    time_ms: int
    """Proposer's clock; only paces later growth."""


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The controller's word on one partition, made from one state of it and right for that one only.

    Source: Kafka's ``PartitionChangeRecord`` and the checks of its ``AlterPartition`` request.
    """

    topic_id: str
    partition: int
    leader_epoch: int
    """Of the state it was made from, as is the next."""
    partition_epoch: int
    leader: int
    """-1: none."""
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    """While a reassignment runs: the target, then the replicas that leave."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_unclean: bool = False
    """The leader is out of sync: the log is cut where it ends."""


@dataclass(frozen=True, slots=True)
class BrokerFence:
    """Takes a broker out of service, or back. In the cluster ledger the wish, in a topic ledger its effect."""

    broker_id: int
    is_fenced: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cuts all appends behind an entry, in all partitions, and what producers are known by them.

    Never below the stable index, so nobody has read them.
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

    What no entry names below the floor is garbage for good; a later release may collect it.
    """

    generation: int
    floor: int


@dataclass(frozen=True, slots=True)
class GroupRecords:
    """Records of one consumer group, inline in the ledger of `__consumer_offsets` (ADR 7)."""

    topic_id: str
    group: str
    writer_id: str
    """Of the process that proposes; with `sequence` it finds a repeated command."""
    sequence: int
    member_id: str
    """'' from no member."""
    instance_id: str
    generation: int
    """The member's; -1 from no member."""
    revision: int
    """A change of membership: refused unless the group's is this one. -1: a commit, judged by generation."""
    time_ms: int
    """Proposer's clock; only for the expiry of offsets."""
    records: tuple[Record, ...]
    """None: a mere sign of life."""


@dataclass(frozen=True, slots=True)
class BrokerRegister:
    """Adds or updates a broker; `probe` is the report of the create-if-absent probe, JSON."""

    broker_id: int
    url: str
    rack: str | None
    probe: str


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
    """Raises the feature level; readers below it must stop."""

    level: int


@dataclass(frozen=True, slots=True)
class ClusterConfigSet:
    """Sets (value) or unsets (None) settings of the whole store."""

    changes: tuple[tuple[str, str | None], ...]


TopicCommand = (
    Append
    | TopicInit
    | TopicClose
    | PartitionsAdd
    | ConfigSet
    | IsrChange
    | HoldersAdd
    | GenerationAdvance
    | GroupRecords
    | ProducerInit
    | SequencedAppend
    | LogStartAdvance
    | PartitionChange
    | BrokerFence
    | Truncate
)
ClusterCommand = (
    BrokerRegister
    | LedgerRegister
    | TopicPublish
    | TopicUnpublish
    | FeatureSet
    | AclsAdd
    | AclsRemove
    | QuotaAlter
    | ClusterConfigSet
    | BrokerFence
)
Command = TopicCommand | ClusterCommand


OffsetRanges = Mapping[tuple[TopicId, int], tuple[int, int]]
"""(topic id, partition) -> (first offset, end offset), ends exclusive."""


UNKNOWN_OFFSET = -1


class Outcome(Enum):
    """How the fold judged a command. All but APPLIED left the state as it was."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """This append was applied before: success for its producer."""
    SKIPPED = "skipped"
    """Nothing to do: `onCheckpointReset=skip`, or an ISR change that changes nothing."""
    EXISTS = "exists"
    """The thing is there already (or gone already): a repeated step."""
    UNKNOWN_TOPIC = "unknown_topic"
    TOPIC_CLOSED = "topic_closed"
    FENCED = "fenced"
    """The run that appends was replaced by a newer one."""
    BELOW_FLOOR = "below_floor"
    """An object's generation may be collected already: the writer was too slow."""
    OUT_OF_SEQUENCE = "out_of_sequence"
    OLD_EPOCH = "old_epoch"
    """An idempotent producer's epoch was passed."""
    CHECKPOINT_RESET = "checkpoint_reset"
    TXN_MISMATCH = "txn_mismatch"
    """Same txnVersion, other row counts per topic."""
    REFUSED = "refused"
    """A change of a partition that its state does not allow; `error_code` says why, as Kafka would."""
    INVALID = "invalid"
    """The command contradicts the state (partition out of range, unknown object); see `detail`."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The fold's answer to one command.

    Attributes:
        base_offsets: APPLIED appends: where each partition's rows went. DUPLICATE of the producer's LAST
            append: where they went then. Else empty.
        detail: why, for people; for a DUPLICATE non-empty when its row counts differ from what was applied.
        leader_changes: partitions whose leader moved, as (topic id, partition, new leader; -1 none).
        error_code: REFUSED: Kafka's code.
    """

    outcome: Outcome
    base_offsets: OffsetRanges = field(default_factory=dict)
    detail: str = ""
    leader_changes: tuple[tuple[TopicId, int, BrokerId], ...] = ()
    error_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class PartitionResponse:
    """The answer for one partition of an append. Source: Kafka's ``ProduceResponse.PartitionResponse``.

    Attributes:
        error: why its rows are not in the log; None: they are (with acks=0: as far as is known).
        base_offset: of its first row; -1 where unknown: refused, acks=0, or a repeated append that is
            not the producer's last.
        log_append_time_ms: None unless the topic shows LogAppendTime.
        log_start_offset: -1 where unknown.
    """

    error: ReplogError | None = None
    base_offset: int = UNKNOWN_OFFSET
    log_append_time_ms: int | None = None
    log_start_offset: int = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the fold would answer to an append if it were decided next.

    Attributes:
        ranges: APPLIED: the offsets it would get; DUPLICATE of the last append: those it got.
    """

    outcome: Outcome
    detail: str = ""
    ranges: OffsetRanges = field(default_factory=dict)


OK = CommandResult(Outcome.APPLIED)
