"""Positions that a user gives: words, offsets as JSON, and the partitions of ``assign``.

Shapes and refusals follow Spark's Kafka connector (``JsonUtils``); -2 is earliest, -1 latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import TopicPartition
from spark_replog.spark.offsets import META_KEY, Ends

LATEST = -1
EARLIEST = -2
_WORDS = {"latest": LATEST, "earliest": EARLIEST}


@dataclass(frozen=True)
class Position:
    """One end of a read, not resolved yet.

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

    def resolve(self, partition_ends: Mapping[TopicPartition, tuple[int, int]]) -> Ends:
        """Return an offset per partition.

        Args:
            partition_ends: log start offset and high watermark of each partition that is read.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: the JSON does not name exactly the partitions
                that are read; trying again cannot help.
        """
        if self.default is not None:
            return {key: _symbol(self.default, *bounds) for key, bounds in partition_ends.items()}
        named = {key for key in partition_ends if key in self.offsets or key.topic in self.topics}
        missing = sorted(key for key in partition_ends if key not in named)
        extra = sorted(
            {key for key in self.offsets if key not in partition_ends}
            | {TopicPartition(name, 0) for name in self.topics if name not in {k.topic for k in partition_ends}}
        )
        if missing or extra:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"{self.option} must name exactly the partitions that are read: missing {_show(missing)}, "
                f"not read {_show(extra)}. Name every partition, or give a word per topic such as "
                '{"orders":"earliest"}.',
            )
        result: Ends = {}
        for key, (log_start, high_watermark) in partition_ends.items():
            given = self.offsets[key] if key in self.offsets else self.topics[key.topic]
            result[key] = _symbol(given, log_start, high_watermark)
        return result


def parse_position(option: str, text: str) -> Position:
    """Read ``earliest``, ``latest`` or offsets as JSON.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION, with an example.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return Position(option, default=_WORDS[word])
    value = _parse_json(option, text, '{"orders":{"0":23,"1":-1},"clicks":"earliest"}')
    topics: dict[str, int] = {}
    offsets: Ends = {}
    for name, partitions in value.items():
        if name == META_KEY:
            continue  # an offset pasted from a checkpoint
        if isinstance(partitions, str) and partitions.strip().lower() in _WORDS:
            topics[name] = _WORDS[partitions.strip().lower()]
        elif isinstance(partitions, dict) and partitions:
            offsets.update(_parse_offsets(option, text, name, partitions))
        else:
            raise _bad_json(option, text, '{"orders":{"0":23,"1":-1},"clicks":"earliest"}')
    if not topics and not offsets:
        raise _bad_json(option, text, '{"orders":{"0":23,"1":-1},"clicks":"earliest"}')
    return Position(option, topics=topics, offsets=offsets)


def parse_assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Read the JSON of ``assign``: topic to partition numbers.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION, with an example.
    """
    example = '{"orders":[0,1]}'
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


def _parse_offsets(option: str, text: str, name: str, partitions: Mapping[str, object]) -> Ends:
    offsets: Ends = {}
    for partition, offset in partitions.items():
        if not partition.isdecimal() or type(offset) is not int or offset < EARLIEST:
            raise _bad_json(option, text, '{"orders":{"0":23,"1":-1},"clicks":"earliest"}')
        offsets[TopicPartition(name, int(partition))] = offset
    return offsets


def _parse_json(option: str, text: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _bad_json(option, text, example)
    return value


def _bad_json(option: str, text: str, example: str) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION, f"{option} cannot be read. Expected e.g. {example}.", given=text
    )


def _symbol(offset: int, log_start: int, high_watermark: int) -> int:
    return log_start if offset == EARLIEST else high_watermark if offset == LATEST else offset


def _show(keys: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{key.topic}-{key.partition}" for key in keys) or "none"
