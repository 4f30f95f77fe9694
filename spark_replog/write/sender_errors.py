"""What a producer is told when an object did not get its copies."""

from __future__ import annotations

from collections.abc import Mapping

from spark_replog.config import ProducerConfig
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import BrokerId
from spark_replog.write.in_flight import DataRequest, Put
from spark_replog.write.producer_batch import ProducerBatch

PARTITIONS_NAMED_MAX = 3


def expired(request: DataRequest, config: ProducerConfig) -> RetriableError:
    """Return REQUEST_TIMED_OUT: ``delivery.timeout.ms`` passed first."""
    return RetriableError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"expiring {request.row_count} records for {_partitions(request)}: delivery.timeout.ms "
        f"({config.delivery_timeout_ms}) passed with copies on brokers {_brokers(request.holders)}; "
        f"needed: {_needed(request, config.acks)}. {_reasons(request, {})}"
        "Nothing was committed. Repair the roots named here or raise delivery.timeout.ms.",
        records=request.row_count,
    )


def batch_expired(batch: ProducerBatch, delivery_timeout_ms: int, *, is_on_its_way: bool) -> RetriableError:
    """Return REQUEST_TIMED_OUT for one batch: ``delivery.timeout.ms`` passed since it was made.

    Args:
        batch: the batch.
        delivery_timeout_ms: of the producer.
        is_on_its_way: whether an attempt is not answered, so that nobody knows whether it is appended.
    """
    name = batch.topic_partition
    last = batch.last_error
    why = "" if last is None else f"Its last attempt failed: [{last.code.name}] {last.args[0]} "
    if is_on_its_way:
        why = "Its last attempt is not answered, so it may still be appended. "
    return RetriableError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"expiring {batch.row_count} records for {name.topic}-{name.partition}: delivery.timeout.ms "
        f"({delivery_timeout_ms}) passed since the batch was made. {why}Look for slow roots with replog store "
        "info, or raise delivery.timeout.ms.",
        records=batch.row_count,
    )


def invalid_record(error: ReplogError, text: str | None) -> ReplogError:
    """Return INVALID_RECORD for one record, with its own text where it has one."""
    return ReplogError(ErrorCode.INVALID_RECORD, text or str(error.args[0]), **error.context)


def other_record_invalid(error: ReplogError) -> ReplogError:
    """Return the error of the records that share a batch with an invalid one."""
    return ReplogError(
        ErrorCode.INVALID_REQUEST,
        "the record was not appended, as other records of its batch are invalid. Send it again without them: "
        f"{error.args[0]}",
    )


def too_few_copies(request: DataRequest, out: Mapping[BrokerId, ReplogError]) -> RetriableError:
    """Return NOT_ENOUGH_REPLICAS: not enough roots are left to try."""
    return RetriableError(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        f"{request.row_count} records for {_partitions(request)} need {request.required_count} copies "
        f"(min.insync.replicas); in sync are brokers {_brokers(request.destination.brokers)}, holding them "
        f"{_brokers(request.holders)}. {_reasons(request, out)}Nothing was committed. Bring the missing roots "
        "back or lower min.insync.replicas of the topic.",
        records=request.row_count,
    )


def leader_away(request: DataRequest, out: Mapping[BrokerId, ReplogError]) -> RetriableError:
    """Return LEADER_NOT_AVAILABLE: with acks=1 the leader's copy counts, or that of who may be elected next."""
    return RetriableError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        f"{request.row_count} records for {_partitions(request)} cannot be put on their leader, broker "
        f"{request.destination.leader}, nor on another in-sync replica that could lead. {_reasons(request, out)}"
        "Nothing was committed. Bring one of these roots back and repeat the batch.",
        records=request.row_count,
    )


def dropped(request: DataRequest) -> ReplogError:
    """Return REPLOG_ACKS0_DROPPED: with acks=0 nobody waits for a second try."""
    return ReplogError(
        ErrorCode.REPLOG_ACKS0_DROPPED,
        f"{request.row_count} rows for {_partitions(request)} were dropped, as no root took them and acks=0 does "
        f"not retry. {_reasons(request, {})}Use acks=all or acks=1 where rows matter.",
        rows=request.row_count,
    )


def copy_missed(request: DataRequest, put: Put, config: ProducerConfig) -> RetriableError:
    """Return the line about a root that did not take its copy while the others did."""
    reason = f"{put.error}" if put.error is not None else "it has not answered yet."
    return RetriableError(
        ErrorCode.REPLOG_STORE_UNAVAILABLE,
        f"broker {put.broker_id} did not take its copy within replica.grace.ms ({config.replica_grace_ms}), "
        f"brokers {_brokers(request.holders)} did. It is copied later or leaves the ISR. Look at that root: "
        f"{reason}",
        broker=put.broker_id,
    )


def _partitions(request: DataRequest) -> str:
    names = sorted({batch.topic_partition for batch in request.batches})
    text = ", ".join(f"{name.topic}-{name.partition}" for name in names[:PARTITIONS_NAMED_MAX])
    rest_count = len(names) - PARTITIONS_NAMED_MAX
    return f"{text} and {rest_count} more partitions" if rest_count > 0 else text


def _brokers(broker_ids: frozenset[BrokerId] | tuple[BrokerId, ...]) -> str:
    return str(sorted(broker_ids))


def _needed(request: DataRequest, acks: int) -> str:
    return f"broker {request.destination.leader}" if acks == 1 else f"{request.required_count}"


def _reasons(request: DataRequest, out: Mapping[BrokerId, ReplogError]) -> str:
    errors = {broker_id: out[broker_id] for broker_id in request.destination.brokers if broker_id in out}
    errors |= {put.broker_id: put.error for put in request.puts.values() if put.error is not None}
    return "".join(f"Broker {broker_id}: {error} " for broker_id, error in sorted(errors.items()))


__all__ = [
    "batch_expired",
    "copy_missed",
    "dropped",
    "expired",
    "invalid_record",
    "leader_away",
    "other_record_invalid",
    "too_few_copies",
]
