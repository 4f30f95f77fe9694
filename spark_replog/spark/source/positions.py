"""Positions that a user gives: words, offsets or times as JSON, and the partitions of ``assign``.

Shapes and refusals follow Spark's Kafka connector (``JsonUtils``, ``KafkaOffsetReaderAdmin``); -2 is
earliest, -1 latest. Resolving is pure: what it must know of the log is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import TopicPartition
from spark_replog.spark.source.offsets import META_KEY, Ends
from spark_replog.spark.source.times import PointInTime, parse_time

LATEST = -1
EARLIEST = -2
OFFSET_MAX = 2**63 - 1
_WORDS = {"latest": LATEST, "earliest": EARLIEST}
_OFFSETS_EXAMPLE = '{"orders":{"0":23,"1":-1},"clicks":"earliest"}'
_TIMES_EXAMPLE = '{"orders":{"0":1700000000000,"1":1700000000000}}'

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""Log start offset and high watermark of each partition that is read."""
OffsetsForTimes = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]]
"""Epoch ms per partition to the first offset at or after it, None where no readable row is that late."""


@dataclass(frozen=True)
class OffsetPosition:
    """One end of a read, given as words and offsets.

    Attributes:
        option: the option that gave it, for messages.
        default: EARLIEST or LATEST for every partition, or None where all are named.
        topics: EARLIEST or LATEST for every partition of a topic.
        offsets: per partition: an offset, EARLIEST or LATEST.
    """

    option: str
    default: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def resolve(self, bounds: Bounds, offsets_for_times: OffsetsForTimes, now_ms: int) -> Ends:
        """Return an offset per partition; a number is returned as given, whether the log has it or not.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: the JSON does not name exactly the partitions
                that are read; trying again cannot help.
        """
        if self.default is not None:
            return {key: _symbol(self.default, *limits) for key, limits in bounds.items()}
        idle = sorted(name for name in self.topics if name not in {key.topic for key in bounds})
        if idle:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"{self.option} has a topic-level offset for topics without an assigned partition: "
                f"{', '.join(idle)}. Name only topics that are read.",
                condition="KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            )
        named = {key for key in bounds if key in self.offsets or key.topic in self.topics}
        _check_named(self.option, named, self.offsets, bounds, "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED")
        result: Ends = {}
        for key, (log_start, high_watermark) in bounds.items():
            given = self.offsets[key] if key in self.offsets else self.topics[key.topic]
            result[key] = _symbol(given, log_start, high_watermark)
        return result


@dataclass(frozen=True)
class TimePosition:
    """One end of a read, given as times.

    Attributes:
        option: the option that gave it, for messages.
        default: one time for every partition, or None where all are named.
        times: per partition.
        is_latest_without_match: where no row is at or after the time, its end is taken instead of an
            error (always so for an ending position).
    """

    option: str
    default: PointInTime | None
    times: Mapping[TopicPartition, PointInTime]
    is_latest_without_match: bool

    def resolve(self, bounds: Bounds, offsets_for_times: OffsetsForTimes, now_ms: int) -> Ends:
        """Return the first offset at or after the time, per partition.

        Args:
            bounds: of the partitions that are read.
            offsets_for_times: looks into the log.
            now_ms: when the read begins, for times such as ``-10 minutes``.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: no row is that late, or the JSON does not name
                exactly the partitions that are read.
        """
        if self.default is not None:
            wanted = dict.fromkeys(bounds, self.default.at(now_ms))
        else:
            named = {key for key in bounds if key in self.times}
            condition = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
            _check_named(self.option, named, self.times, bounds, condition)
            wanted = {key: self.times[key].at(now_ms) for key in bounds}
        found = offsets_for_times(wanted)
        result: Ends = {}
        for key, (_, high_watermark) in bounds.items():
            offset = found[key]
            if offset is None and not self.is_latest_without_match:
                raise InvalidConfigError(
                    ErrorCode.REPLOG_INVALID_OPTION,
                    f"No offset matched from request of topic-partition {key.topic}-{key.partition} and timestamp "
                    f"{wanted[key]} ({self.option}). Give an earlier time, or set "
                    "startingOffsetsByTimestampStrategy to latest to start such a partition at its end.",
                )
            result[key] = high_watermark if offset is None else offset
        return result


Position = OffsetPosition | TimePosition


def parse_position(option: str, text: str) -> OffsetPosition:
    """Read ``earliest``, ``latest`` or offsets as JSON.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION, with an example.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return OffsetPosition(option, default=_WORDS[word])
    value = _parse_json(option, text, _OFFSETS_EXAMPLE)
    topics: dict[str, int] = {}
    offsets: Ends = {}
    for name, partitions in value.items():
        if name == META_KEY:
            continue  # an offset pasted from a checkpoint
        if isinstance(partitions, str) and partitions.strip().lower() in _WORDS:
            topics[name] = _WORDS[partitions.strip().lower()]
            continue
        for key, offset in _partitions(option, text, name, partitions, _OFFSETS_EXAMPLE):
            if type(offset) is not int or not EARLIEST <= offset <= OFFSET_MAX:
                raise _bad_json(option, text, _OFFSETS_EXAMPLE)
            offsets[key] = offset
    if not topics and not offsets:
        raise _bad_json(option, text, _OFFSETS_EXAMPLE)
    return OffsetPosition(option, topics=topics, offsets=offsets)


def parse_times(option: str, text: str, *, is_latest_without_match: bool) -> TimePosition:
    """Read times per partition as JSON.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION, with an example.
    """
    times: dict[TopicPartition, PointInTime] = {}
    for name, partitions in _parse_json(option, text, _TIMES_EXAMPLE).items():
        for key, value in _partitions(option, text, name, partitions, _TIMES_EXAMPLE):
            time = parse_time(value)
            if time is None:
                raise _bad_json(option, text, _TIMES_EXAMPLE)
            times[key] = time
    if not times:
        raise _bad_json(option, text, _TIMES_EXAMPLE)
    return TimePosition(option, None, times, is_latest_without_match)


def parse_single_time(option: str, text: str, *, is_latest_without_match: bool) -> TimePosition:
    """Read one time for all partitions.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    time = parse_time(text)
    if time is None:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"{option}: Expected a single long value, got {text}. Give epoch milliseconds, an ISO time such as "
            "2024-05-06T07:08:09Z, or how long ago, such as '-10 minutes'.",
        )
    return TimePosition(option, time, {}, is_latest_without_match)


def parse_assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Read the JSON of ``assign``: topic to partition numbers.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION, with an example.
    """
    example = '{"orders":[0,1]}'
    if not text.strip().startswith("{"):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION, f"assign has no topicpartitions to assign. Expected e.g. {example}.",
            given=text,
        )  # fmt: skip
    value = _parse_json("assign", text, example)
    result: dict[str, tuple[int, ...]] = {}
    for name, partitions in value.items():
        if not isinstance(partitions, list) or not partitions:
            raise _bad_json("assign", text, example)
        if not all(type(item) is int and item >= 0 for item in partitions):
            raise _bad_json("assign", text, example)
        result[name] = tuple(sorted(set(partitions)))
    if not result:
        raise _bad_json("assign", text, example)
    return result


def _partitions(
    option: str, text: str, topic: str, partitions: object, example: str
) -> Iterable[tuple[TopicPartition, object]]:
    if not isinstance(partitions, dict) or not partitions:
        raise _bad_json(option, text, example)
    seen: dict[TopicPartition, object] = {}
    for partition, value in partitions.items():
        if not (partition.isascii() and partition.isdecimal()):
            raise _bad_json(option, text, example)
        key = TopicPartition(topic, int(partition))
        if key in seen:
            raise _duplicate(option, f"partition {key.partition} of topic '{topic}' is given twice")
        seen[key] = value
    return seen.items()


def _check_named(
    option: str, named: set[TopicPartition], given: Iterable[TopicPartition], bounds: Bounds, condition: str
) -> None:
    missing = sorted(key for key in bounds if key not in named)
    extra = sorted(key for key in given if key not in bounds)
    if missing or extra:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"partitions specified for {option} don't match what are assigned, you must specify all TopicPartitions: "
            f"missing {_show(missing)}, not assigned {_show(extra)}. Use -1 for latest, -2 for earliest offsets, "
            'or a word per topic such as {"orders":"earliest"}; startingTimestamp and endingTimestamp give one '
            "time to all.",
            condition=condition,
        )


def _parse_json(option: str, text: str, example: str) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result: dict[str, object] = {}
        for name, value in pairs:
            if name in result:
                if isinstance(value, str) != isinstance(result[name], str):
                    raise _duplicate(
                        option, f"topic '{name}' has both a topic-level offset and offsets of its partitions"
                    )
                raise _duplicate(option, f"'{name}' is given twice")
            result[name] = value
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except InvalidConfigError:
        raise
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _bad_json(option, text, example)
    return value


def _duplicate(option: str, what: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.REPLOG_INVALID_OPTION, f"{option}: {what}. Give it once.")


def _bad_json(option: str, text: str, example: str) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION, f"{option} cannot be read. Expected e.g. {example}.", given=text
    )


def _symbol(offset: int, log_start: int, high_watermark: int) -> int:
    return log_start if offset == EARLIEST else high_watermark if offset == LATEST else offset


def _show(keys: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{key.topic}-{key.partition}" for key in keys) or "none"
