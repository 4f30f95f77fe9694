"""Finds what changed in the log since a query's last offset: new and deleted topics and partitions, and lost rows.

Pure: takes a position and a view of the log, returns starts and ends. Topics are identified by id, so that a recreated
topic is read from its beginning. ``failOnDataLoss`` decides whether a loss fails the query or is logged. The conditions
are those of Spark's Kafka connector (``KafkaExceptions``, ``KAFKA_DATA_LOSS.*``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.log.log_offset import Ends, LogOffset
from spark_replog.logs import Once
from spark_replog.spark.source.sizing import OffsetRange
from spark_replog.spark.source.topics import LogView

_LOG = logging.getLogger(__name__)

FinalEnds = Callable[[TopicId], Mapping[int, int]]
"""Topic id to the high watermarks of its partitions, as far as this process still knows them."""


class Loss(Enum):
    """Kafka's condition of a loss."""

    ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO = "a partition that is new to the query begins above 0"
    COULD_NOT_READ_OFFSET_RANGE = "offsets that are due are not in the log"
    INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS = "a new partition is gone before it was read"
    PARTITIONS_DELETED = "a partition that was read is gone"
    PARTITION_OFFSET_CHANGED = "the log ends before a position"


class LossPolicy:
    """Raises a loss, or logs it once, as ``failOnDataLoss`` says."""

    def __init__(self, *, fail: bool) -> None:
        self.fail = fail
        self._reported = Once()

    def report(self, loss: Loss, message: str) -> None:
        """Raise REPLOG_DATA_LOSS (nothing was skipped), or log it and return."""
        if self.fail:
            raise ReplogError(
                ErrorCode.REPLOG_DATA_LOSS,
                f"{message} Some data may have been lost because they are not available in Kafka any more: set "
                "failOnDataLoss=false to read what still exists.",
                condition=f"KAFKA_DATA_LOSS.{loss.name}",
            )
        if self._reported.is_first(message):
            _LOG.warning("[%s] %s condition=`KAFKA_DATA_LOSS.%s`", ErrorCode.REPLOG_DATA_LOSS.name, message, loss.name)


def removed_offsets(log_start: int, *, is_trimmed: bool) -> str:
    """Return the cause of a loss before the log start; follows the offsets."""
    cause = "were trimmed (replog topic trim)" if is_trimmed else "aged out (retention)"
    return f"are no longer in the log, which begins at {log_start} now: they {cause} before they were read."


def offset_changed(topic: str, partition: int, position: int, end: int) -> str:
    """Return the text of a position past the end of the log."""
    return (
        f"partition {topic}-{partition}'s offset was changed from {position} to {end}: the position {position} is past "
        f"the end {end} of the log. Either it was set too high, or rows were lost with a replica that held them."
    )


def undecided_tail(topic: str) -> RetriableError:
    """Return the error for a log that ends before a known position while too few roots answer."""
    return RetriableError(
        ErrorCode.REPLOG_TAIL_UNDECIDED,
        f"topic '{topic}': too few metadata roots answer to know where the log ends, or whether rows "
        "are lost. Bring the roots back, then start the query again.",
        topic=topic,
    )


@dataclass(frozen=True)
class Span:
    """Offsets that the next micro-batch may read.

    Attributes:
        starts: start of the batch, for every partition of the view.
        ends: end of the log, for the same partitions.
        topic_ids: to be recorded with them; an id without partitions is a named topic that is gone.
    """

    starts: Ends
    ends: Ends
    topic_ids: dict[str, TopicId]


def reconcile(at: LogOffset, view: LogView, losses: LossPolicy, final_ends: FinalEnds) -> Span:
    """Return the span that can be read after ``at``.

    A new partition begins at its log start; one that is gone is left out.

    Raises:
        ReplogError: REPLOG_DATA_LOSS, if the policy says so.
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: a topic subscribed by name has never existed.
    """
    for name, error in view.missing.items():
        if name not in at.topic_ids:
            raise error
    ids = view.topic_ids
    gone_keys = (key for key in at.ends if key not in view.bounds or ids[key.topic] != at.topic_ids.get(key.topic))
    for name in sorted({key.topic for key in gone_keys}.intersection(at.topic_ids)):
        _report_gone(name, at.topic_ids[name], at, view, losses, final_ends)
    starts: Ends = {}
    ends: Ends = {}
    for key, (log_start, high_watermark) in view.bounds.items():
        is_known = key in at.ends and at.topic_ids.get(key.topic) == ids[key.topic]
        if not is_known and log_start > 0:
            losses.report(
                Loss.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO,
                f"Added partition {key.topic}-{key.partition} starts from {log_start} instead of 0: "
                f"offsets 0 to {log_start} (exclusive) " + removed_offsets(log_start, is_trimmed=key in view.trimmed),
            )
        start = starts[key] = at.ends[key] if is_known else log_start
        ends[key] = high_watermark
        if high_watermark < start:
            if key.topic in view.unclear:
                ends[key] = start  # too few roots answer: keep the known position
            else:
                message = offset_changed(key.topic, key.partition, start, high_watermark)
                losses.report(Loss.PARTITION_OFFSET_CHANGED, message)
    gone = {name: at.topic_ids[name] for name in view.missing}
    return Span(starts, ends, {**gone, **ids})


def check_ranges(ranges: Iterable[OffsetRange], view: LogView, losses: LossPolicy) -> list[OffsetRange]:
    """Return the ranges, reduced to offsets that the log holds now.

    Raises:
        ReplogError: REPLOG_DATA_LOSS: a range begins before the log or ends after its high watermark.
        RetriableError: REPLOG_TAIL_UNDECIDED: a range ends after the known high watermark, and too few roots answer.
    """
    result: list[OffsetRange] = []
    for item in ranges:
        key = item.topic_partition
        log_start, high_watermark = view.bounds[key]
        start, end = max(item.start, log_start), min(item.end, high_watermark)
        if item.start < log_start and item.row_count > 0:
            gone = min(item.end, log_start)
            losses.report(
                Loss.COULD_NOT_READ_OFFSET_RANGE,
                f"Could not read records: offsets {item.start} to {gone} (exclusive) of {key.topic}-{key.partition} "
                + removed_offsets(log_start, is_trimmed=key in view.trimmed),
            )
        if max(item.start, item.end) > high_watermark:
            if key.topic in view.unclear:
                raise undecided_tail(key.topic)
            losses.report(
                Loss.PARTITION_OFFSET_CHANGED,
                offset_changed(key.topic, key.partition, max(item.start, item.end), high_watermark),
            )
        if end > start:
            result.append(OffsetRange(key, start, end))
    return result


def check_target(target: LogOffset, view: LogView) -> None:
    """Fail an AvailableNow run that can no longer reach its end; before a loss is reported, as in the connector.

    Raises:
        ReplogError: REPLOG_DATA_LOSS, whatever ``failOnDataLoss`` is. The next run gets a new end.
    """
    ids, ends = view.topic_ids, view.high_watermarks
    lost = sorted(key for key in target.ends if key not in ends)
    less = sorted(key for key, end in target.ends.items() if not lost and ends[key] < end)
    if not less:  # the connector detects a recreated topic only by lower offsets, and reports those
        lost = sorted(key for key in target.ends if key in lost or ids[key.topic] != target.topic_ids[key.topic])
    if lost:
        raise _unreachable(
            "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
            "have been lost",
            f"{_names(lost)} were deleted, or their topic was deleted and created again; topic-partitions for latest "
            f"offset: {_names(sorted(ends))}, topic-partitions for end offset: {_names(sorted(target.ends))}",
        )
    if less:
        raise _unreachable(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
            "report available offset which is less than end offset",
            "; ".join(f"{_names([key])} latest offset: {ends[key]}, end offset: {target.ends[key]}" for key in less),
        )


def _unreachable(condition: str, what: str, details: str) -> ReplogError:
    return ReplogError(
        ErrorCode.REPLOG_DATA_LOSS,
        f"Some of partitions in Kafka topic(s) {what} during running query with Trigger.AvailableNow: {details}. "
        "Start the query again: the new run reads what exists then.",
        condition=condition,
    )


def _report_gone(
    name: str, topic_id: TopicId, at: LogOffset, view: LogView, losses: LossPolicy, final_ends: FinalEnds
) -> None:
    """Report the partitions of a topic that were read and are gone."""
    handle = view.handles.get(name)
    is_same = handle is not None and handle.topic_id == topic_id
    keys = sorted(key for key in at.ends if key.topic == name and not (is_same and key in view.bounds))
    if name in view.unclear:
        raise undecided_tail(name)
    if is_same:
        cause = "they are not among those that are read any more"
    elif handle is not None:
        cause = (
            f"topic '{name}' was deleted and created again, or the checkpoint is of another store (its id was "
            f"{topic_id}, now {handle.topic_id})"
        )
    elif name in view.unsubscribed:
        cause = f"topic '{name}' exists and is not among those that are read any more"
    else:
        cause = f"topic '{name}' (id {topic_id}) was deleted"
    ends = {} if is_same or name in view.unsubscribed else final_ends(topic_id)
    unread = [_unread(key, at.ends[key], ends.get(key.partition)) for key in keys]
    losses.report(
        Loss.PARTITIONS_DELETED,
        f"Partitions {_names(keys)} have been deleted: {cause}. Not read: {'; '.join(filter(None, unread)) or 'none'}.",
    )


def _unread(key: TopicPartition, position: int, end: int | None) -> str:
    if end is None:
        return f"offsets from {position} on of {key.topic}-{key.partition}"
    if end <= position:
        return ""
    return f"offsets {position} to {end} (exclusive) of {key.topic}-{key.partition}"


def _names(keys: list[TopicPartition]) -> str:
    return ", ".join(f"{key.topic}-{key.partition}" for key in keys)
