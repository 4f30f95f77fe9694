"""Parses where a read begins and ends: words, offsets or times; and the partitions of ``assign``.

For each end, one time for all partitions takes precedence over times per partition, then offsets, then the default;
options with lower precedence are not parsed. -2 is earliest, -1 latest. Forms and errors follow Spark's Kafka connector
(``KafkaSourceProvider.getKafkaOffsetRangeLimit``, ``JsonUtils``, ``KafkaOffsetReaderAdmin``).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from spark_replog.errors import InvalidConfigError, invalid_option
from spark_replog.ids import TopicPartition
from spark_replog.log.log_offset import META_KEY, Ends
from spark_replog.log_position import EARLIEST, LATEST, named_end, offset_between, parse_offset

_LOG = logging.getLogger(__name__)
_OFFSETS_EXAMPLE = '{"orders":{"0":23,"1":-1},"clicks":"earliest"}'
_TIMES_EXAMPLE = '{"orders":{"0":1700000000000,"1":1700000000000}}'

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""Log start offset and high watermark of each partition to read."""
OffsetsForTimes = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]]
"""Epoch ms per partition to the first offset at or after it, None if no readable row is that late."""


@dataclass(frozen=True)
class OffsetPosition:
    """One end of a read, given as words and offsets; ``option`` gave it.

    Attributes:
        default: EARLIEST or LATEST for every partition, or None if all are named.
        topics: EARLIEST or LATEST for every partition of a topic.
        offsets: per partition: an offset, EARLIEST or LATEST.
    """

    option: str
    default: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def resolve(self, bounds: Bounds, offsets_for_times: OffsetsForTimes, now_ms: int) -> Ends:
        """Return an offset per partition; a number is returned as given, even if the log does not have it.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: the JSON does not name exactly the partitions
                to read; a retry cannot help.
        """
        if self.default is not None:
            return {key: offset_between(self.default, *limits) for key, limits in bounds.items()}
        idle = sorted(name for name in self.topics if name not in {key.topic for key in bounds})
        if idle:
            raise invalid_option(
                f"{self.option} has a topic-level offset for topics without an assigned partition: "
                f"{', '.join(idle)}. Name only topics that are read.",
                condition="KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            )
        named = {key for key in bounds if key in self.offsets or key.topic in self.topics}
        _check_named(self.option, named, self.offsets, bounds, "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED")
        result: Ends = {}
        for key, (log_start, high_watermark) in bounds.items():
            given = self.offsets[key] if key in self.offsets else self.topics[key.topic]
            result[key] = offset_between(given, log_start, high_watermark)
        return result


@dataclass(frozen=True)
class TimePosition:
    """One end of a read, given as times; ``option`` gave it.

    Attributes:
        default: one time for every partition, or None if all are named.
        is_latest_without_match: if no row is at or after the time, use the partition's end instead of raising
            (always so for an ending position).
    """

    option: str
    default: PointInTime | None
    times: Mapping[TopicPartition, PointInTime]
    is_latest_without_match: bool

    def resolve(self, bounds: Bounds, offsets_for_times: OffsetsForTimes, now_ms: int) -> Ends:
        """Return the first offset at or after the time, per partition; `now_ms` is when the read begins.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: no row is that late, or the JSON does not name
                exactly the partitions to read.
        """
        if self.default is not None:
            wanted = dict.fromkeys(bounds, self.default.at(now_ms))
        else:
            named = {key for key in bounds if key in self.times}
            condition = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
            _check_named(self.option, named, self.times, bounds, condition)
            wanted = {key: self.times[key].at(now_ms) for key in bounds}
        offsets = offsets_for_times(wanted)
        result: Ends = {}
        for key, (_, high_watermark) in bounds.items():
            offset = offsets[key]
            if offset is None and not self.is_latest_without_match:
                raise invalid_option(
                    f"No offset matched from request of topic-partition {key.topic}-{key.partition} and timestamp "
                    f"{wanted[key]} ({self.option}). Give an earlier time, or set "
                    "startingOffsetsByTimestampStrategy to latest to start such a partition at its end."
                )
            result[key] = high_watermark if offset is None else offset
        return result


Position = OffsetPosition | TimePosition


def parse_position(option: str, text: str) -> OffsetPosition:
    """Read an end of the log (``log_position.parse_offset``), or offsets as JSON. Raises REPLOG_INVALID_OPTION."""
    end = parse_offset(text)
    if end in (EARLIEST, LATEST):
        return OffsetPosition(option, default=end)
    given = _TopicsJson(option, text, _OFFSETS_EXAMPLE)
    topics: dict[str, int] = {}
    offsets: Ends = {}
    for name, partitions in given.topics().items():
        if name == META_KEY:
            continue  # an offset pasted from a checkpoint
        if (end := named_end(partitions)) is not None:
            topics[name] = end
            continue
        for key, offset in given.partitions(name, partitions).items():
            position = parse_offset(offset) if type(offset) is int else None
            if position is None:
                raise given.refusal()
            offsets[key] = position
    if not topics and not offsets:
        raise given.refusal()
    return OffsetPosition(option, topics=topics, offsets=offsets)


def parse_times(option: str, text: str, *, is_latest_without_match: bool) -> TimePosition:
    """Read times per partition as JSON. Raises REPLOG_INVALID_OPTION."""
    given = _TopicsJson(option, text, _TIMES_EXAMPLE)
    times: dict[TopicPartition, PointInTime] = {}
    for name, partitions in given.topics().items():
        for key, value in given.partitions(name, partitions).items():
            time = parse_time(value)
            if time is None:
                raise given.refusal()
            times[key] = time
    if not times:
        raise given.refusal()
    return TimePosition(option, None, times, is_latest_without_match)


def parse_single_time(option: str, text: str, *, is_latest_without_match: bool) -> TimePosition:
    """Read one time for all partitions. Raises REPLOG_INVALID_OPTION."""
    time = parse_time(text)
    if time is None:
        raise invalid_option(
            f"{option}: Expected a single long value, got {text}. Give epoch milliseconds, an ISO time such as "
            "2024-05-06T07:08:09Z, or how long ago, such as '-10 minutes'."
        )
    return TimePosition(option, time, {}, is_latest_without_match)


def parse_assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Read the JSON of ``assign``: topic to partition numbers. Raises REPLOG_INVALID_OPTION."""
    given = _TopicsJson("assign", text, '{"orders":[0,1]}')
    if not text.strip().startswith("{"):
        raise invalid_option(f"assign has no topicpartitions to assign. Expected e.g. {given.example}.", given=text)
    result: dict[str, tuple[int, ...]] = {}
    for name, partitions in given.topics().items():
        if not isinstance(partitions, list) or not partitions:
            raise given.refusal()
        if not all(type(item) is int and item >= 0 for item in partitions):
            raise given.refusal()
        result[name] = tuple(sorted(set(partitions)))
    if not result:
        raise given.refusal()
    return result


@dataclass(frozen=True, slots=True)
class _TopicsJson:
    """An option whose text is JSON by topic."""

    option: str
    text: str
    example: str

    def topics(self) -> dict[str, object]:
        try:
            value = json.loads(self.text, object_pairs_hook=self._unique)
        except InvalidConfigError:
            raise
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.refusal()
        return value

    def partitions(self, topic: str, value: object) -> dict[TopicPartition, object]:
        """Return the partitions of a topic's value."""
        if not isinstance(value, dict) or not value:
            raise self.refusal()
        seen: dict[TopicPartition, object] = {}
        for partition, meaning in value.items():
            if not (partition.isascii() and partition.isdecimal()):
                raise self.refusal()
            key = TopicPartition(topic, int(partition))
            if key in seen:
                raise self._duplicate(f"partition {key.partition} of topic '{topic}' is given twice")
            seen[key] = meaning
        return seen

    def refusal(self) -> InvalidConfigError:
        return invalid_option(f"{self.option} cannot be read. Expected e.g. {self.example}.", given=self.text)

    def _unique(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        result: dict[str, object] = {}
        for name, value in pairs:
            if name in result:
                if isinstance(value, str) != isinstance(result[name], str):
                    raise self._duplicate(f"topic '{name}' has both a topic-level offset and offsets of its partitions")
                raise self._duplicate(f"'{name}' is given twice")
            result[name] = value
        return result

    def _duplicate(self, what: str) -> InvalidConfigError:
        return invalid_option(f"{self.option}: {what}. Give it once.")


def _check_named(
    option: str, named: set[TopicPartition], given: Iterable[TopicPartition], bounds: Bounds, condition: str
) -> None:
    missing = sorted(key for key in bounds if key not in named)
    extra = sorted(key for key in given if key not in bounds)
    if missing or extra:
        raise invalid_option(
            f"partitions specified for {option} don't match what are assigned, you must specify all TopicPartitions: "
            f"missing {_show(missing)}, not assigned {_show(extra)}. Use -1 for latest, -2 for earliest offsets, "
            'or a word per topic such as {"orders":"earliest"}; startingTimestamp and endingTimestamp give one '
            "time to all.",
            condition=condition,
        )


def _show(keys: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{key.topic}-{key.partition}" for key in keys) or "none"


_ENDING = {
    "endingOffsets": "ending offset",
    "endingOffsetsByTimestamp": "ending timestamp",
    "endingTimestamp": "ending timestamp",
}


def parse_bounds(given: Mapping[str, str], *, streaming: bool) -> tuple[Position, Position]:
    """Return both ends of a read, not resolved yet. Raises REPLOG_INVALID_OPTION.

    A stream has no end, and starts at ``latest`` by default.
    """
    if streaming:
        for option, what in _ENDING.items():
            if option.lower() in given:
                raise invalid_option(
                    f"{what} not valid in streaming queries, which have no end: {option} is for batch reads. "
                    "Remove it, or use read instead of readStream."
                )
    starting = _parse_end(given, "starting", "latest" if streaming else "earliest", _is_lenient(given))
    if streaming:
        return starting, OffsetPosition("endingOffsets", LATEST)
    _refuse_end(starting, LATEST)
    ending = _parse_end(given, "ending", "latest", True)
    _refuse_end(ending, EARLIEST)
    return starting, ending


def warn_of_precedence(given: Mapping[str, str]) -> None:
    """Log options that have no effect; names in lower case."""
    for side in ("starting", "ending"):
        options = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
        present = [option for option in options if option.lower() in given]
        if len(present) > 1:
            _LOG.warning("%s takes precedence over %s, which is ignored", present[0], " and ".join(present[1:]))


def check_bounds(starting: Position, ending: Position) -> None:
    """Refuse ends of a batch read that are wrong for any log (SPARK-52096). Raises REPLOG_INVALID_OPTION."""
    if isinstance(starting, OffsetPosition) and isinstance(ending, OffsetPosition):
        by_word = {*starting.topics, *ending.topics}
        in_one = {key for key in starting.offsets.keys() ^ ending.offsets.keys() if key.topic not in by_word}
        _check_same_keys(starting, ending, in_one)
        _check_order(starting.offsets, ending.offsets, "offset")
    elif isinstance(starting, TimePosition) and isinstance(ending, TimePosition):
        # Relative times are compared relative to the same moment.
        _check_same_keys(starting, ending, starting.times.keys() ^ ending.times.keys())
        first = {key: time.epoch_ms for key, time in starting.times.items() if time.epoch_ms is not None}
        last = {key: time.epoch_ms for key, time in ending.times.items() if time.epoch_ms is not None}
        _check_order(first, last, "timestamp")


def check_resolved(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    """Refuse a range that ends before it starts. Raises REPLOG_INVALID_OPTION."""
    for key, start in sorted(starts.items()):
        if start > ends[key]:
            raise invalid_option(
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
        raise invalid_option(f"startingOffsetsByTimestampStrategy is '{word}'. Give one of: error, latest.")
    return word == "latest"


_REFUSED_ENDS = {
    LATEST: ("starting offset", "startingOffsets", "latest", "earliest"),
    EARLIEST: ("ending offset", "ending offset", "earliest", "latest"),
}
"""Which end of a batch read may not be there: its name, its name before a partition, its word, the right word."""


def _refuse_end(given: Position, wrong: int) -> None:
    if not isinstance(given, OffsetPosition):
        return
    name, name_of_one, word, right = _REFUSED_ENDS[wrong]
    text = f"can't be {word} for batch queries on Kafka. Use"
    if wrong in (given.default, *given.topics.values()):
        raise invalid_option(f"{name} {text} {right} or offsets.")
    for key, offset in given.offsets.items():
        if offset == wrong:
            number = named_end(right)
            raise invalid_option(f"{name_of_one} for {_show([key])} {text} {number} ({right}) or an offset.")


def _check_same_keys(starting: Position, ending: Position, in_one: Collection[TopicPartition]) -> None:
    """Refuse partitions that only one of two ends names, unless either end has a default."""
    if in_one and starting.default is None and ending.default is None:
        raise invalid_option(
            f"The specified start offset and end offset should have the same topic-partitions: {_show(sorted(in_one))} "
            f"in only one of {starting.option} and {ending.option}. Name the same ones in both.",
            condition="MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
        )


def _check_order(first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int], what: str) -> None:
    for key, end in sorted(last.items()):
        start = first.get(key, 0)
        if 0 <= end < start:
            raise invalid_option(
                f"The specified start {what} {start} is greater than the end {what} {end} for "
                f"{key.topic}-{key.partition}. Swap or correct them.",
                condition="UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            )


_TIME_MS_MAX = 2**63 - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_AGO = re.compile(r"-\s*((?:[0-9]{1,9}\s*[a-z]+\s*)+)")
_PART = re.compile(r"([0-9]+)\s*([a-z]+)")
_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PointInTime:
    """A fixed time in epoch milliseconds, or (None) how long before the start of the read."""

    epoch_ms: int | None
    ago_ms: int = 0

    def at(self, now_ms: int) -> int:
        """Return epoch milliseconds for a read that begins at ``now_ms``."""
        return now_ms - self.ago_ms if self.epoch_ms is None else self.epoch_ms


def parse_time(value: object) -> PointInTime | None:
    """Return the time, None if the value is not a time.

    Args:
        value: a whole number or its text (epoch milliseconds), ``2024-05-06T07:08:09Z`` (ISO 8601; UTC
            without a zone; rounded down to the millisecond), or ``-10 minutes``.
    """
    if type(value) is int:
        return PointInTime(value) if abs(value) <= _TIME_MS_MAX else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return PointInTime(int(text)) if abs(int(text)) <= _TIME_MS_MAX else None
    ago = _AGO.fullmatch(text.lower())
    if ago is not None:
        duration_ms = _duration_ms(ago[1])
        return None if duration_ms is None else PointInTime(None, duration_ms)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since = time - _EPOCH
    return PointInTime((since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000)


def parse_duration_ms(text: str) -> int | None:
    """Return milliseconds of ``15m``, ``90 s``, ``1 hour 30 minutes``; bare digits are milliseconds.

    Source: Spark's ``JavaUtils.timeStringAs``, which parses ``maxTriggerDelay``. None if the text
    is not a duration.
    """
    plain = text.strip().lower()
    if plain.isascii() and plain.isdecimal():
        return int(plain) if len(plain) <= 18 else None
    return _duration_ms(plain)


def _duration_ms(text: str) -> int | None:
    if not re.fullmatch(r"(?:[0-9]{1,9}\s*[a-z]+\s*)+", text):
        return None
    total_us = 0
    for number, unit in _PART.findall(text):
        if unit == "us":
            total_us += int(number)
        elif unit in _UNITS_MS:
            total_us += int(number) * _UNITS_MS[unit] * 1000
        else:
            return None
    return total_us // 1000
