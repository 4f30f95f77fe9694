"""What a streaming query reads and from where while topics come and grow, on a real store without a JVM."""

from __future__ import annotations

import json

import pytest
from pyspark import cloudpickle

from spark_replog.errors import InvalidConfigError
from spark_replog.logs import Once
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.spark.source import topics
from spark_replog.storage.retrying_store import RetryingStore
from tests.at_rest import wait_at_rest
from tests.unit.spark.support import loses


@pytest.fixture
def gets(source, monkeypatch):
    """The keys that the source's roots are asked for, but by upkeep, which runs in the background."""
    monkeypatch.setattr(Upkeep, "start", lambda upkeep, ledger: None)
    asked = []
    get = RetryingStore.get

    def count(self, key, **range_):
        if self.url.startswith(f"file://{source.path}/"):  # not what threads of other tests' stores ask
            asked.append(key)
        return get(self, key, **range_)

    monkeypatch.setattr(RetryingStore, "get", count)
    return asked


def test_a_query_reads_everything_once(source, start_query):
    source.topic("t", 2)
    source.write("t", {0: 3, 1: 2})
    query = start_query(subscribe="t", startingOffsets="earliest")
    assert query.next() == {"t-0": [0, 1, 2], "t-1": [0, 1]}
    assert query.next() is None
    source.write("t", {1: 2})
    assert query.next() == {"t-1": [2, 3]}


def test_idle_queries_give_the_same_text_back(source, start_query):
    source.topic("t", 12)
    query = start_query(subscribe="t")
    query.next()
    texts = {json.dumps(query.reader.latestOffset(query.committed, query.limit)) for _ in range(3)}
    assert texts == {json.dumps(query.committed)}
    assert list(query.committed["t"]) == [str(number) for number in range(12)]


def test_latest_is_the_position_of_the_first_run_when_batch_0_is_repeated(source, start_query):
    source.topic("t")
    source.write("t", {0: 10})
    query = start_query(subscribe="t")
    first = query.reader.initialOffset()
    source.write("t", {0: 5})
    logged = query.reader.latestOffset(first, query.limit)
    source.write("t", {0: 7})
    query.restart()
    again = query.reader.initialOffset()
    assert again != first
    assert source.rows(query.reader, query.reader.partitions(again, logged)) == {"t-0": list(range(10, 15))}


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_batch_0_is_repeated_though_the_starting_option_does_not_fit_the_log_any_more(source, start_query, option):
    source.topic("t")
    source.write("t", {0: 4})
    query = start_query(subscribe="t", **{option: '{"t":{"0":1}}'})
    first = query.reader.initialOffset()
    logged = query.reader.latestOffset(first, query.limit)
    source.controller.add_partitions("t", 2)
    source.write("t", {1: 2})
    query.restart()
    again = query.reader.initialOffset()
    assert query.reader.latestOffset(logged, query.limit) != logged, "asked before the batch, where no task needs it"
    expected = [1, 2, 3] if option == "startingOffsets" else [0, 1, 2, 3]
    assert source.rows(query.reader, query.reader.partitions(again, logged)) == {"t-0": expected}
    query.committed = logged
    assert query.next() == {"t-1": [0, 1]}


def test_batch_0_is_repeated_though_its_topic_is_gone(source, start_query):
    for name in ("a", "b"):
        source.topic(name)
        source.write(name, {0: 2})
    query = start_query(subscribe="a,b", startingOffsets="earliest", failOnDataLoss="false")
    logged = query.reader.latestOffset(query.reader.initialOffset(), query.limit)
    source.controller.delete_topic("b")
    query.restart()
    again = query.reader.initialOffset()
    assert source.rows(query.reader, query.reader.partitions(again, logged)) == {"a-0": [0, 1]}


def test_the_start_is_the_same_when_asked_twice(source, start_query):
    source.topic("t")
    reader = start_query(subscribe="t").reader
    first = reader.initialOffset()
    source.write("t", {0: 1})
    assert reader.initialOffset() == first


def test_older_sparks_ask_without_a_position(source, start_query):
    source.topic("t")
    source.write("t", {0: 10})
    query = start_query(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert query.reader.latestOffset()["t"] == {"0": 4}
    query.committed = query.reader.latestOffset()
    query.restart()
    assert list(query.reader.partitions(query.committed, query.committed)) == []
    assert query.reader.latestOffset()["t"] == {"0": 8}


def test_new_partitions_and_topics_are_read_from_their_beginning(source, start_query):
    source.topic("t-1")
    source.write("t-1", {0: 2})
    query = start_query(subscribePattern="t-.*", startingOffsets="latest")
    assert query.next() == {}
    source.controller.add_partitions("t-1", 3)
    source.write("t-1", {0: 1, 2: 2})
    source.topic("t-2")
    source.write("t-2", {0: 3})
    source.topic("other")
    assert query.next() == {"t-1-0": [2], "t-1-2": [0, 1], "t-2-0": [0, 1, 2]}
    assert query.position("t-1") == {"0": 3, "1": 0, "2": 2}


def test_assigned_partitions_are_a_fixed_set(source, start_query, caplog, monkeypatch):
    monkeypatch.setattr(topics, "REPORTED_ABSENT", Once())  # it knows topics by their names only
    source.topic("t", 2)
    source.write("t", {0: 1, 1: 1})
    query = start_query(assign='{"t":[1,7]}', startingOffsets="earliest")
    assert query.next() == {"t-1": [0]}
    assert "partitions [7] of topic 't'" in caplog.text
    source.controller.add_partitions("t", 4)
    source.write("t", {0: 1, 3: 1})
    assert query.next() is None


def test_json_must_name_every_partition(source, start_query):
    source.topic("t", 2)
    with pytest.raises(InvalidConfigError, match="must specify all TopicPartitions: missing t-1"):
        start_query(subscribe="t", startingOffsets='{"t":{"0":1}}').next()


def test_planning_a_batch_asks_storage_only_for_what_the_process_has_not_folded(source, start_query, gets):
    source.topic("t", 2)
    source.write("t", {0: 3, 1: 3})
    query = start_query(subscribe="t", startingOffsets="earliest")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.limit)
    wait_at_rest(source.cluster.brokers)
    gets.clear()
    tasks = query.reader.partitions(start, end)
    assert gets == []
    assert source.rows(query.reader, tasks) == {"t-0": [0, 1, 2], "t-1": [0, 1, 2]}
    query.restart()
    gets.clear()
    assert len(query.reader.partitions(start, end)) == 2
    assert any("/journal/" in key for key in gets), "a new process folds the ledger before it plans"


def test_a_batch_planned_without_a_look_notices_rows_that_another_thread_folded_away(source, start_query):
    source.topic("t")
    source.write("t", {0: 6})
    query = start_query(subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.limit)
    source.controller.delete_records("t", {0: 4})
    other = start_query(subscribe="t", startingOffsets="earliest")
    other.reader.latestOffset(other.reader.initialOffset(), other.limit)
    assert source.rows(query.reader, query.reader.partitions(start, end)) == {"t-0": [4, 5]}
    query.restart(failOnDataLoss="true")
    query.reader.latestOffset(end, query.limit)
    loses(lambda: query.reader.partitions(start, end), "offsets 0 to 4 (exclusive) of t-0")


def test_a_reader_in_use_travels_to_spark_workers(source, start_query):
    """Spark pickles ``reader.read`` with the reader for each plan, whatever it has noted by then."""
    source.topic("t", 1)
    source.write("t", {0: 2})
    query = start_query(subscribe="t", startingOffsets="earliest")
    assert query.next() == {"t-0": [0, 1]}
    assert cloudpickle.loads(cloudpickle.dumps(query.reader.read)) is not None
