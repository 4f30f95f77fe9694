"""This log as one side of a comparison with Kafka: its source's positions, its bounds and its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spark_replog.client.consumer import Consumer
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import NotFoundError
from spark_replog.ids import TopicPartition
from spark_replog.log.json_rows import row_json
from spark_replog.log.log_offset import LogOffset
from spark_replog.mirror.checkpoint_copy import Position, replog_position
from spark_replog.monitor.offset_file import SourceOffset


class ReplogSide:
    """The topics of a store. Its own reads need READ and DESCRIBE on them."""

    def __init__(self, cluster: Cluster) -> None:
        self.name = f"the store '{cluster.path}'"
        self._cluster = cluster

    def read(self, source: SourceOffset) -> Position | None:
        """Return the position of this package's source. Raises REPLOG_INPUT, UNSUPPORTED_VERSION."""
        return replog_position(source)

    def write(self, position: Position) -> str:
        """Return the position with the ids of the topics. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        names = sorted({key.topic for key in position.ends})
        topic_ids = {name: self._cluster.lookup(name).topic_id for name in names}
        return json.dumps(LogOffset(position.ends, topic_ids, position.origin).to_json())

    def initial(self, position: Position) -> bytes | None:
        """Return None: the end of the first batch holds where the query started."""
        return None

    def bounds(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return log start and high watermark of the partitions that exist."""
        there = []
        for key in keys:
            try:
                state = self._cluster.topic_state(self._cluster.lookup(key.topic))[1]
            except NotFoundError:
                continue
            if key.partition < len(state.partitions):
                there.append(key)
        with Consumer(self._cluster, enable_auto_commit=False) as consumer:
            starts, ends = consumer.beginning_offsets(there), consumer.end_offsets(there)
        return {key: (starts[key], ends[key]) for key in there}

    def rows(self, key: TopicPartition, begin: int, end: int) -> Iterator[tuple[Any, ...]]:
        """Yield (offset, timestamp ms, key, value, headers) of the rows in [begin, end); typed rows as JSON."""
        if begin >= end:
            return
        with Consumer(self._cluster, enable_auto_commit=False) as consumer:
            consumer.assign([key])
            consumer.seek(key, begin)
            while consumer.position(key) < end:
                for record in consumer.poll(timeout_ms=1_000):
                    if record.offset >= end:
                        return
                    value = row_json(record.value) if isinstance(record.value, dict) else record.value
                    yield record.offset, record.timestamp_ms, record.key, value, tuple(record.headers)


__all__ = ["ReplogSide"]
