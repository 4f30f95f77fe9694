"""Where a read begins and ends, as its options have it: precedence, and what is refused unseen.

For each end: one time for all, before times per partition, before offsets, before the default; what has
less weight is not even read. Source: ``KafkaSourceProvider.getKafkaOffsetRangeLimit``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import TopicPartition
from spark_replog.spark.source.positions import (
    EARLIEST,
    LATEST,
    OffsetPosition,
    Position,
    TimePosition,
    parse_position,
    parse_single_time,
    parse_times,
)

_LOG = logging.getLogger(__name__)
_ENDING = {
    "endingOffsets": "ending offset",
    "endingOffsetsByTimestamp": "ending timestamp",
    "endingTimestamp": "ending timestamp",
}


def parse_bounds(given: Mapping[str, str], *, streaming: bool) -> tuple[Position, Position]:
    """Return both ends of a read, not resolved yet.

    Args:
        given: options, names in lower case.
        streaming: a stream has no end, and starts at ``latest`` by default.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    if streaming:
        for option, what in _ENDING.items():
            if option.lower() in given:
                raise _invalid(
                    f"{what} not valid in streaming queries, which have no end: {option} is for batch reads. "
                    "Remove it, or use read instead of readStream."
                )
    starting = _parse_end(given, "starting", "latest" if streaming else "earliest", _is_lenient(given))
    if streaming:
        return starting, OffsetPosition("endingOffsets", LATEST)
    _check_start(starting)
    ending = _parse_end(given, "ending", "latest", True)
    _check_end(ending)
    return starting, ending


def warn_of_precedence(given: Mapping[str, str]) -> None:
    """Say which options are not looked at; names in lower case."""
    for side in ("starting", "ending"):
        options = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
        present = [option for option in options if option.lower() in given]
        if len(present) > 1:
            _LOG.warning("%s wins over %s, which is not looked at", present[0], " and ".join(present[1:]))


def check_bounds(starting: Position, ending: Position) -> None:
    """Refuse ends of a batch read that no log can make right (SPARK-52096).

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    if isinstance(starting, OffsetPosition) and isinstance(ending, OffsetPosition):
        by_word = {*starting.topics, *ending.topics}
        first, last = dict(starting.offsets), dict(ending.offsets)
        if starting.default is None and ending.default is None:
            _check_same_keys(starting, ending, first, last, by_word)
        _check_order(first, last, "offset")
    elif isinstance(starting, TimePosition) and isinstance(ending, TimePosition):
        # How long ago is compared as a time relative to the same moment.
        if starting.default is None and ending.default is None:
            _check_same_keys(starting, ending, dict(starting.times), dict(ending.times), set())
        first = {key: time.epoch_ms for key, time in starting.times.items() if time.epoch_ms is not None}
        last = {key: time.epoch_ms for key, time in ending.times.items() if time.epoch_ms is not None}
        _check_order(first, last, "timestamp")


def check_resolved(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    """Refuse a range that turned out to be backwards.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    for key, start in sorted(starts.items()):
        if start > ends[key]:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"The resolved start offset {start} is greater than the resolved end offset {ends[key]} for "
                f"{key.topic}-{key.partition}. Correct the starting or the ending option.",
                condition="RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            )


def _parse_end(given: Mapping[str, str], side: str, default: str, is_latest_without_match: bool) -> Position:
    single, times, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if single.lower() in given:
        return parse_single_time(single, given[single.lower()], is_latest_without_match=is_latest_without_match)
    if times.lower() in given:
        return parse_times(times, given[times.lower()], is_latest_without_match=is_latest_without_match)
    return parse_position(offsets, given.get(offsets.lower(), default))


def _is_lenient(given: Mapping[str, str]) -> bool:
    word = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if word not in ("error", "latest"):
        raise _invalid(f"startingOffsetsByTimestampStrategy is '{word}'. Give one of: error, latest.")
    return word == "latest"


def _check_start(starting: Position) -> None:
    if not isinstance(starting, OffsetPosition):
        return
    if LATEST in (starting.default, *starting.topics.values()):
        raise _invalid("starting offset can't be latest for batch queries on Kafka. Use earliest or offsets.")
    for key, offset in starting.offsets.items():
        if offset == LATEST:
            raise _invalid(
                f"startingOffsets for {key.topic}-{key.partition} can't be latest for batch queries on Kafka. "
                "Use -2 (earliest) or an offset."
            )


def _check_end(ending: Position) -> None:
    if not isinstance(ending, OffsetPosition):
        return
    if EARLIEST in (ending.default, *ending.topics.values()):
        raise _invalid("ending offset can't be earliest for batch queries on Kafka. Use latest or offsets.")
    for key, offset in ending.offsets.items():
        if offset == EARLIEST:
            raise _invalid(
                f"ending offset for {key.topic}-{key.partition} can't be earliest for batch queries on Kafka. "
                "Use -1 (latest) or an offset."
            )


def _check_same_keys(
    starting: Position,
    ending: Position,
    first: Mapping[TopicPartition, object],
    last: Mapping[TopicPartition, object],
    by_word: set[str],
) -> None:
    different = sorted(key for key in first.keys() ^ last.keys() if key.topic not in by_word)
    if different:
        names = ", ".join(f"{key.topic}-{key.partition}" for key in different)
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"The specified start offset and end offset should have the same topic-partitions: {names} in only one of "
            f"{starting.option} and {ending.option}. Name the same ones in both.",
            condition="MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
        )


def _check_order(first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int], what: str) -> None:
    for key, end in sorted(last.items()):
        start = first.get(key, 0)
        if 0 <= end < start:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"The specified start {what} {start} is greater than the end {what} {end} for "
                f"{key.topic}-{key.partition}. Exchange or correct them.",
                condition="UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            )


def _invalid(message: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.REPLOG_INVALID_OPTION, message)
