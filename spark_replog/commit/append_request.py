"""The request and the response of an append, and the error that a caller gets for each refusal of the fold.

Source: Kafka's ``ProduceResponse`` and ``ReplicaManager.appendToLocalLog``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from spark_replog.errors import ErrorCode, FencedError, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId, PartitionKey
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    UNKNOWN_OFFSET,
    Append,
    CommandResult,
    IdentityKind,
    Outcome,
    PartitionResponse,
    SequencedAppend,
)

_log = logging.getLogger(__name__)

SUCCESSES = frozenset({Outcome.APPLIED, Outcome.DUPLICATE, Outcome.SKIPPED})


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """One append to one ledger, and how to treat it: Kafka's produce request.

    Attributes:
        append: what to decide; its time is set when it is proposed.
        timeout_ms: how long replicas may take (``request.timeout.ms``).
        required_acks: -1 (all), 0 or 1; anything else is answered by INVALID_REQUIRED_ACKS.
        is_atomic: True (a micro-batch): one refused partition refuses the whole append. False (a produce request): it
            is left out with its own error, and the other partitions' rows are appended.
        deadline_ms: on the monotonic clock: what is not decided by then gets an error. None: ``delivery.timeout.ms``
            from the start.
        copied: brokers that hold older objects, not recorded in an entry yet; decided with the append.
        after_sequence: the newest append of this producer must have this sequence (-1: it has none), else
            PRODUCER_FENCED and nothing is decided. None: any. For a writer that continues after its last append.
        when_queued: see ``Ledger.append``.
    """

    append: Append
    timeout_ms: int
    required_acks: int = -1
    is_atomic: bool = True
    deadline_ms: int | None = None
    copied: Mapping[ObjectId, Collection[BrokerId]] = field(default_factory=dict)
    after_sequence: int | None = None
    when_queued: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The answer for one ledger.

    Attributes:
        error: None: the append is decided and folded, or needs no effect (``result.outcome`` is DUPLICATE or SKIPPED).
            Else nothing of it is in the log, except with NOT_ENOUGH_REPLICAS_AFTER_APPEND (it is) and
            REPLOG_COMMIT_OUTCOME_UNKNOWN (unknown): repeat it.
        result: the fold's, with the rows' offsets; None with an error other than a refusal by the fold.
        partitions: the answer for each. Without ``error`` some may have their own (``is_atomic=False``).
        throttle_time_ms: how long the answer was held back by the client's quota, or the client is to be held back.
    """

    error: ReplogError | None
    result: CommandResult | None
    partitions: Mapping[PartitionKey, PartitionResponse] = field(default_factory=dict)
    throttle_time_ms: int = 0


def refuse_all(
    append: Append,
    error: ReplogError,
    result: CommandResult | None = None,
    refused: Mapping[PartitionKey, ReplogError] | None = None,
) -> ProduceResponse:
    """Answer an append that failed: each partition gets its own error, else the common one."""
    errors = refused or {}
    return ProduceResponse(error, result, {key: PartitionResponse(errors.get(key, error)) for key in append.row_counts})


def respond(
    state: TopicLedgerState, request: AppendRequest, result: CommandResult, refused: Mapping[PartitionKey, ReplogError]
) -> ProduceResponse:
    """Answer an append that the fold has judged; log one that had no effect. Called under the ledger's lock.

    Args:
        request: the whole append, refused partitions included; with acks=0 no offsets are returned.
        result: the fold's result for the rest.
    """
    append = request.append
    if result.outcome not in SUCCESSES:
        identity, is_sequenced = append.identity, isinstance(append, SequencedAppend)
        error = refusal(
            result.outcome, result.detail, is_sequenced=is_sequenced,
            ledger=state.ledger_id, producer=identity.producer_id, sequence=identity.sequence,
        )  # fmt: skip
        return refuse_all(append, error, result, refused)
    if result.outcome is not Outcome.APPLIED:
        _log_without_effect(state.ledger_id, append, result)
    bases = result.base_offsets if request.required_acks else {}
    partitions = {}
    for key in append.row_counts:
        if key in refused:
            partitions[key] = PartitionResponse(refused[key])
            continue
        partition = state.topics[key[0]].partitions[key[1]]
        partitions[key] = PartitionResponse(
            None,
            bases[key][0] if key in bases else UNKNOWN_OFFSET,
            state.append_time_ms if partition.log_append_time else None,
            partition.log_start_offset,
        )
    return ProduceResponse(None, result, partitions)


def _log_without_effect(ledger_id: LedgerId, append: Append, result: CommandResult) -> None:
    identity = append.identity
    if result.outcome is Outcome.DUPLICATE:
        _log.log(
            logging.WARNING if result.detail else logging.INFO,
            "batch %d of %s was applied before in ledger %s. %s",
            identity.sequence, identity.producer_id, ledger_id, result.detail,
        )  # fmt: skip
        return
    _log.warning(
        "[%s] %d rows of batch %d of %s were DROPPED in ledger %s, as onCheckpointReset=skip says: %s",
        _SKIPPED_AS.get(identity.kind, ErrorCode.REPLOG_CHECKPOINT_RESET).name,
        sum(append.row_counts.values()), identity.sequence, identity.producer_id, ledger_id, result.detail,
    )  # fmt: skip


_SKIPPED_AS = {IdentityKind.TXN_BATCH: ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH}
_REFUSALS: Mapping[Outcome, tuple[type[ReplogError], ErrorCode, str]] = {
    Outcome.TOPIC_CLOSED: (
        NotFoundError,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "the topic was deleted while rows were written to it ({}). Restart the query or the producer.",
    ),
    Outcome.UNKNOWN_TOPIC: (
        NotFoundError,
        ErrorCode.UNKNOWN_TOPIC_ID,
        "the ledger does not know the topic's id ({}). Restart the query or the producer.",
    ),
    Outcome.FENCED: (
        FencedError,
        ErrorCode.PRODUCER_FENCED,
        "{}. A newer run of the same query or program took over: stop this one, or give each its own checkpoint or "
        "transactional.id.",
    ),
    Outcome.BELOW_FLOOR: (
        ReplogError,
        ErrorCode.REPLOG_JOB_TOO_LONG,
        "the write took longer than garbage collection waits, which may have deleted its files ({}). Write it again: "
        "nothing of it is in the log. For more time raise gc.floor.lag.ms, or --older-than of store gc.",
    ),
    Outcome.CHECKPOINT_RESET: (
        ReplogError,
        ErrorCode.REPLOG_CHECKPOINT_RESET,
        "{}. Nothing was written. The checkpoint was copied, restored, edited or lost. Run one query per checkpoint, "
        "and go on with its newest state, or with a new one and startingOffsets (and a new transactional.id, if any). "
        "Or set onCheckpointReset for this run: 'append' writes the rows, though they may be there already; 'skip' "
        "DROPS the rows of all batches up to that one.",
    ),
    Outcome.TXN_MISMATCH: (
        ReplogError,
        ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH,
        "{}. Nothing was written. If it is another write, give it a txnVersion above the last one, or its own txnAppId "
        "(each write of one foreachBatch needs one). If it is a repeat whose rows differ each time, set "
        "onCheckpointReset=skip for this run: it drops them.",
    ),
    Outcome.MIRRORED: (
        InvalidConfigError,
        ErrorCode.REPLOG_MIRRORED_TOPIC,
        "{}. Nothing was written. Only `replog mirror` writes to a mirrored topic: write to another one, or end its "
        "mirroring for good with `replog topic promote NAME`.",
    ),
    Outcome.NOT_NEXT: (
        FencedError,
        ErrorCode.PRODUCER_FENCED,
        "{}: another mirror appended meanwhile, or rows were cut. Nothing was written. Go on from the log's end.",
    ),
    Outcome.OLD_EPOCH: (FencedError, ErrorCode.INVALID_PRODUCER_EPOCH, "{}. Close this producer and open a new one."),
    Outcome.OUT_OF_SEQUENCE: (
        InvalidConfigError,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "{}. Count batches and txnVersion from 0.",
    ),
}
_GAP = (
    ReplogError,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    "{}. Nothing was appended; close this producer, check which of its rows are in the log, and open a new one.",
)
_CONTRADICTION = (
    ReplogError,
    ErrorCode.INVALID_REQUEST,
    "the append contradicts the log: {}. Restart the query or the producer.",
)


def refusal(outcome: Outcome, detail: str, *, is_sequenced: bool = False, **context: object) -> ReplogError:
    """Return the error of an append that the fold refuses, or would refuse; ``detail`` is what the fold says of it."""
    kind, code, text = _REFUSALS.get(outcome, _CONTRADICTION)
    if outcome is Outcome.OUT_OF_SEQUENCE and is_sequenced:
        kind, code, text = _GAP
    return kind(code, text.format(detail or outcome.value), **context)


def without_partitions(append: Append, refused: Collection[PartitionKey]) -> Append:
    """Return the append without the rows of the refused partitions; their bytes stay in the objects, unnamed."""
    objects = []
    for item in append.objects:
        sections = tuple(section for section in item.sections if (section.topic_id, section.partition) not in refused)
        if sections:
            objects.append(item if len(sections) == len(item.sections) else replace(item, sections=sections))
    return replace(append, objects=tuple(objects))
