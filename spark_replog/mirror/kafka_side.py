"""A Kafka cluster as one side of a comparison with a store: its connector's positions, its bounds and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.record_batch import StoredRows, decode_stored
from spark_replog.ids import TopicPartition
from spark_replog.mirror.checkpoint_copy import INITIAL_MARK, Position, kafka_position, kafka_text
from spark_replog.mirror.comparison import cut, rows_of
from spark_replog.mirror.kafka_source import EARLIEST, LATEST, NO_ERROR, KafkaSource, SourceTopic, Wanted
from spark_replog.monitor.offset_file import SourceOffset

FETCH_BYTES_MAX = 8 << 20
BATCH_BYTES_MAX = 64 << 20
WAIT_MS = 500
EMPTY_MAX = 20
"""Answers in a row without a record, where there must be some."""


class KafkaSide:
    """Committed records of a cluster. Methods raise what `KafkaSource` raises."""

    def __init__(self, source: KafkaSource) -> None:
        self.name = f"Kafka at {source.address}"
        self._source = source
        self._topics: dict[str, SourceTopic] = {}

    def read(self, source: SourceOffset) -> Position | None:
        """Return the position of Spark's Kafka connector."""
        return kafka_position(source)

    def write(self, position: Position) -> str:
        """Return the position as the connector writes it."""
        return kafka_text(position.ends)

    def initial(self, position: Position) -> bytes | None:
        """Return the file in which the connector keeps where a query started."""
        return None if position.origin is None else INITIAL_MARK + kafka_text(position.origin).encode()

    def bounds(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the log start and the last stable offset of the partitions that exist."""
        wanted, made = set(keys), dict[TopicPartition, tuple[int, int]]()
        self._topics |= self._source.topics({key.topic for key in wanted})
        for name in {key.topic for key in wanted} & self._topics.keys():
            topic = self._topics[name]
            starts, ends = self._source.offsets(topic, EARLIEST), self._source.offsets(topic, LATEST)
            made |= {TopicPartition(name, number): (starts[number], end) for number, end in ends.items()}
        return {key: made[key] for key in wanted if key in made}

    def batches(self, key: TopicPartition, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets in [begin, end) as `comparison.ROWS`."""
        topic, position, empty_count = self._topics[key.topic], begin, 0
        wanted = Wanted(topic.topic_id, key.partition, begin)
        while position < end:
            answers = self._source.fetch(
                topic.leaders[key.partition], [wanted._replace(offset=position)], bytes_max=FETCH_BYTES_MAX,
                wait_ms=WAIT_MS,
            )  # fmt: skip
            (answer,) = answers.values()
            if answer.error != NO_ERROR:
                raise self._failed(key, position, f"answers with code {answer.error}")
            before = position
            for piece in decode_stored(answer.records, answer.aborted, bytes_max=BATCH_BYTES_MAX):
                if piece.data is not None:
                    rows = cut(_rows(piece), position, end)
                    if len(rows):
                        yield rows
                position = max(position, piece.next_offset)
            empty_count = 0 if position > before else empty_count + 1
            if empty_count == EMPTY_MAX:
                raise self._failed(key, position, "has no answer")

    def _failed(self, key: TopicPartition, offset: int, what: str) -> ReplogError:
        where = f"offset {offset} of {key.topic}-{key.partition}"
        text = f"{self.name} {what} at {where}. It may have deleted the row meanwhile: run the command again."
        return ReplogError(ErrorCode.REPLOG_MIRROR_SOURCE, text)


def _rows(piece: StoredRows) -> pa.RecordBatch:
    data = piece.data
    assert data is not None
    headers = data["headers"] if "headers" in data.schema.names else None
    return rows_of(pa.array(piece.offsets), data["timestamp"], data["key"], data["value"], headers)


__all__ = ["KafkaSide"]
