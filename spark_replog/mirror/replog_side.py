"""This log as one side of a comparison with Kafka: its source's positions, its bounds and its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from spark_replog.client.store import TopicScan
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import NotFoundError
from spark_replog.ids import TopicPartition
from spark_replog.log.log_offset import LogOffset
from spark_replog.mirror.checkpoint_copy import Position, replog_position
from spark_replog.mirror.comparison import rows_of
from spark_replog.monitor.offset_file import SourceOffset

_READ = ["offset", "timestamp", "key", "value", "headers"]


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
        made = {}
        for key in keys:
            try:
                ledger, state = self._cluster.topic_state(self._cluster.lookup(key.topic))
            except NotFoundError:
                continue
            if key.partition < len(state.partitions):
                with ledger.lock:
                    part = state.partitions[key.partition]
                    made[key] = part.log_start_offset, part.high_watermark
        return made

    def batches(self, key: TopicPartition, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets in [begin, end) as `comparison.ROWS`; a typed topic has none to compare.

        Raises what `TopicScan` raises.
        """
        scan = TopicScan(self._cluster, key.topic, {key.partition: begin}, {key.partition: end}, [key.partition], _READ)
        for batch in scan.to_batches():
            yield rows_of(*(batch[name] for name in _READ))


__all__ = ["ReplogSide"]
