"""What a query shows under ``group.id``, call by call as Spark makes them."""

from __future__ import annotations

import pytest

from spark_replog.groups import progress_publisher
from spark_replog.ids import TopicPartition, new_id
from spark_replog.spark.options import parse_source_options
from spark_replog.spark.source.stream_reader import StreamReader
from tests.unit.client.consumer_setup import Store, rows

P0 = TopicPartition("orders", 0)


@pytest.fixture
def shown(monkeypatch):
    """Positions in the order in which they were published."""
    offsets = []
    monkeypatch.setattr(
        progress_publisher.ProgressPublisher, "publish", lambda _, positions, ids: offsets.append(positions[P0])
    )
    return offsets


@pytest.fixture
def store():
    made = Store.init(f"memory://{new_id()}")
    made.create("orders")
    made.write("orders", rows(5))
    return made


def reader(store, **options):
    given = {"path": store.path, "subscribe": "orders", "startingOffsets": "earliest", **options}
    return StreamReader(parse_source_options(given, streaming=True))


def test_the_position_is_shown_when_the_next_batch_is_asked_for_and_at_the_commit(store, shown):
    query = reader(store, **{"group.id": "billing"})
    start = query.initialOffset()
    end = query.latestOffset(start)
    assert shown == [0]
    query.partitions(start, end)
    assert shown == [0]  # planned is not processed
    query.commit(end)
    query.latestOffset(end)
    assert shown == [0, 5, 5]


def test_without_a_group_nothing_is_shown(store, shown):
    query = reader(store)
    end = query.latestOffset(query.initialOffset())
    query.commit(end)
    assert shown == []
