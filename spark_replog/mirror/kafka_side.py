"""A Kafka cluster as one side of a comparison with a store: its connector's positions, its bounds and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import kafka
from kafka.errors import KafkaError

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.mirror.checkpoint_copy import INITIAL_MARK, Position, kafka_position, kafka_text
from spark_replog.monitor.offset_file import SourceOffset


class KafkaSide:
    """Reads committed records only. A context manager.

    Args:
        bootstrap: HOST:PORT, comma-separated.
        settings: of kafka-python's consumer.
    """

    def __init__(self, bootstrap: str, settings: Mapping[str, Any]) -> None:
        self.name = f"Kafka at {bootstrap}"
        try:
            self._consumer = kafka.KafkaConsumer(
                **settings,
                bootstrap_servers=bootstrap.split(","),
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="none",
            )
        except KafkaError as error:
            raise self._away(error) from error

    def __enter__(self) -> KafkaSide:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

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
        """Return the log start and the last stable offset of the partitions that exist. Raises REQUEST_TIMED_OUT."""
        try:
            there = [
                key
                for key in keys
                if key.partition in (self._consumer.partitions_for_topic(key.topic) or frozenset[int]())
            ]
            asked = [kafka.TopicPartition(*key) for key in there]
            starts, ends = self._consumer.beginning_offsets(asked), self._consumer.end_offsets(asked)
        except KafkaError as error:
            raise self._away(error) from error
        return {key: (starts[item], ends[item]) for key, item in zip(there, asked, strict=True)}

    def rows(self, key: TopicPartition, begin: int, end: int) -> Iterator[tuple[Any, ...]]:
        """Yield (offset, timestamp ms, key, value, headers) of the rows in [begin, end). Raises REQUEST_TIMED_OUT."""
        item = kafka.TopicPartition(*key)
        try:
            self._consumer.assign([item])
            self._consumer.seek(item, begin)
            while self._consumer.position(item) < end:
                for record in self._consumer.poll(timeout_ms=1_000).get(item, ()):
                    if record.offset >= end:
                        return
                    headers = tuple((name, value) for name, value in record.headers)
                    yield record.offset, record.timestamp, record.key, record.value, headers
        except KafkaError as error:
            raise self._away(error) from error

    def _away(self, error: KafkaError) -> RetriableError:
        return RetriableError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{self.name} cannot be read: {error}. Check the address, the client's settings and the cluster.",
        )


__all__ = ["KafkaSide"]
