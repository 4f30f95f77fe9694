"""The checkpoint's format: the position of a streaming query, as a canonical JSON object.

``{"orders": {"0": 12}, "@": {"v": 1, "ids": {"orders": "<topic id>"}, "from": {"orders": {"0": 3}}}}``

Spark compares offsets as JSON TEXT, so the same position must always give the same text: topics
sorted, partitions in numeric order, "@" last. ``from`` is the position that the query started at:
Spark does not store it, and asks ``initialOffset`` again when it replays batch 0 after a failure,
by which time "latest" has moved. Offsets carry it until batch 0 is past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_replog.errors import ErrorCode, InvalidConfigError, UnsupportedFormatError
from spark_replog.ids import TopicId, TopicPartition

META_KEY = "@"
FORMAT_VERSION = 1

Ends = dict[TopicPartition, int]


@dataclass(frozen=True)
class LogOffset:
    """A position in some topics.

    Attributes:
        ends: next offset to read, per partition.
        topic_ids: topic name to topic id: a re-created topic has another.
        origin: where the query started, or None once batch 0 is past.
    """

    ends: Ends
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    origin: Ends | None = None

    @property
    def is_initial(self) -> bool:
        """Return whether nothing was read yet: the batch's end then holds the start in ``origin``."""
        return self.origin is not None and self.origin == self.ends

    def to_json(self) -> dict[str, Any]:
        """Return the canonical object, ready for ``json.dumps``."""
        result: dict[str, Any] = _topics_json(self.ends)
        meta: dict[str, Any] = {"v": FORMAT_VERSION, "ids": dict(sorted(self.topic_ids.items()))}
        if self.origin is not None:
            meta["from"] = _topics_json(self.origin)
        result[META_KEY] = meta
        return result

    @classmethod
    def from_json(cls, value: Any) -> LogOffset:
        """Read an object that ``to_json`` made, as it comes back from a checkpoint.

        Raises:
            UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
            InvalidConfigError: REPLOG_INPUT: not an offset of this source, or damaged.
        """
        meta = value.get(META_KEY) if isinstance(value, Mapping) else None
        if not isinstance(meta, Mapping) or not isinstance(meta.get("v"), int):
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                "the checkpoint holds offsets of another source. Use a new checkpointLocation and give "
                "these positions as startingOffsets.",
            )
        if meta["v"] > FORMAT_VERSION:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the checkpoint's offsets have version {meta['v']}, this release reads up to "
                f"{FORMAT_VERSION}. Upgrade spark-replog.",
            )
        origin = meta.get("from")
        try:
            return cls(
                ends=_ends_of({name: parts for name, parts in value.items() if name != META_KEY}),
                topic_ids={str(name): str(topic_id) for name, topic_id in meta.get("ids", {}).items()},
                origin=None if origin is None else _ends_of(origin),
            )
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                f"the checkpoint's offsets are damaged: {error}. Restore the checkpoint, or use a new "
                "checkpointLocation and give the last known positions as startingOffsets.",
            ) from error


def batch_start(start: LogOffset, end: LogOffset) -> Ends:
    """Return where the batch (start, end] really begins.

    On a replay of batch 0, Spark asks for its start again. The position that the first run used is in the logged end of
    batch 0 only.
    """
    return start.ends if end.origin is None else end.origin


def advance(start: LogOffset, starts: Ends, ends: Ends, topic_ids: Mapping[str, TopicId]) -> LogOffset:
    """Return the end of the batch after ``start``; ``start`` itself if nothing is new.

    An empty topic that was created again is not new until it has rows: an empty batch would only record its id. The
    first positions are kept for topics that are still the same; a topic that was created again before batch 0 begins
    at 0.

    Args:
        start: the end of the batch before.
        starts: where the next batch begins, for each partition of ``ends`` at least.
        topic_ids: recorded with the new end.
    """
    if ends == start.ends and all(starts[key] == end for key, end in ends.items()):
        return start
    origin = None
    if start.origin is not None and start.is_initial:
        origin = {
            key: offset
            for key, offset in start.origin.items()
            if topic_ids.get(key.topic) == start.topic_ids.get(key.topic)
        }
    return LogOffset(ends=ends, topic_ids=topic_ids, origin=origin)


def _topics_json(ends: Ends) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key in sorted(ends):
        result.setdefault(key.topic, {})[str(key.partition)] = ends[key]
    return result


def _ends_of(topics: Mapping[str, Any]) -> Ends:
    return {
        TopicPartition(name, int(partition)): int(offset)
        for name, partitions in topics.items()
        for partition, offset in partitions.items()
    }
