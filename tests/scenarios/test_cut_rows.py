"""Rows that a new leader's election cuts: no reader of any kind has seen them, and every reader goes on behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from spark_replog import Consumer
from spark_replog.ids import TopicPartition
from spark_replog.spark.options import parse_source_options
from spark_replog.spark.source.stream_reader import StreamReader
from tests.scenarios.sink_query import Query, forget_process, read


class Readers:
    """A plain consumer, a streaming query and a new batch read each time; all they ever saw, by offset."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.seen: dict[str, dict[int, bytes]] = {"consumer": {}, "stream": {}, "batch": {}}
        self.consumer = Consumer(store.cluster, auto_offset_reset="earliest")
        self.consumer.assign([TopicPartition("orders", 0)])
        options = {"path": str(store.path), "subscribe": "orders", "startingOffsets": "earliest"}
        self.stream = StreamReader(parse_source_options(options, streaming=True))
        self.position = self.stream.initialOffset()

    def look(self) -> None:
        for record in self.consumer.poll(200):
            self._note("consumer", record.offset, record.value)
        end = self.stream.latestOffset(self.position, None)
        for partition in self.stream.partitions(self.position, end) if end != self.position else ():
            for row in pa.Table.from_batches(list(self.stream.read(partition))).to_pylist():
                self._note("stream", row["offset"], row["value"])
        self.position = end
        for offset, value in enumerate(read(self.store)):
            self._note("batch", offset, value)

    def _note(self, reader: str, offset: int, value: bytes) -> None:
        assert self.seen[reader].setdefault(offset, value) == value, f"{reader}: offset {offset} has changed"

    def close(self) -> None:
        self.consumer.close()


@pytest.fixture
def readers(store) -> Iterator[Readers]:
    store.create("orders")
    made = Readers(store)
    yield made
    made.close()
    forget_process()


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("next_acks", ["1", "all"])
def test_no_reader_sees_rows_that_are_cut_later(store, readers, monkeypatch, next_acks: str) -> None:
    Query(store, monkeypatch).batch(b"0", b"1")
    readers.look()
    left_alone = Query(store, monkeypatch, **{"replica.catchup.budget.ms": "0"})
    left_alone.batch_id = 1
    planned = left_alone.plan()
    message = left_alone.write_without((1, 2), planned, b"cut", b"cut too")
    left_alone.commit(message)
    readers.look()
    store.away(0)
    readers.look()
    going_on = Query(store, monkeypatch, **{"kafka.acks": next_acks})
    going_on.batch_id = 2
    going_on.batch(b"2", b"3")
    readers.look()
    store.back(0)  # with the rows that were cut
    going_on.batch(b"4")
    going_on.batch(b"5")
    store.away(1)
    readers.look()
    expected = dict(enumerate([b"0", b"1", b"2", b"3", b"4", b"5"]))
    assert readers.seen == {"consumer": expected, "stream": expected, "batch": expected}
    lost = {item.id.name for _, item in message.objects}
    assert lost <= store.held_by("orders", 0)
