"""How much a batch of a streaming query takes, and how its tasks share it, on a real store without a JVM."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from spark_replog.admin.controller import MirrorOf
from spark_replog.client.chunk_append import ChunkAppender
from spark_replog.client.mirrored_log import MirroredLog
from spark_replog.cluster import cluster
from spark_replog.cluster.cluster import Cluster
from spark_replog.log.fold.object_table import ObjectTable
from spark_replog.spark.compat import ReadAllAvailable
from spark_replog.spark.source import stream_reader
from spark_replog.storage.retrying_store import RetryingStore
from tests.unit.spark.support import loses

pytestmark = pytest.mark.case("connector-planned-tasks-deleted-topic")


def test_a_limit_is_shared_in_proportion(source, start_query):
    source.topic("t", 3)
    source.write("t", {0: 101, 1: 11, 2: 1})
    query = start_query(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    counts = []
    while (rows := query.next()) is not None:
        counts.append([len(rows.get(f"t-{number}", ())) for number in range(3)])
    assert counts[:3] == [[8, 1, 1], [9, 1, 0], [9, 1, 0]]
    assert [sum(column) for column in zip(*counts, strict=True)] == [101, 11, 1]


def test_a_limit_counts_the_rows_of_a_mirrored_topic_not_its_offsets(source, start_query):
    """Kafka's connector counts offsets: with a gap of a million it would read nothing for thousands of batches."""
    source.controller.create_topic("t", 2, mirror=MirrorOf("kafka:c/t/1", (50, 0)))
    log = MirroredLog(source.cluster, ChunkAppender(source.cluster, "mirror"), "t", "kafka:c/t/1")
    places = [(0, 50 + number) for number in range(20)] + [(0, 1_000_000 + number) for number in range(20)]
    places += [(1, 3 * number) for number in range(40)]
    columns = {
        "value": pa.array([b"x"] * len(places), pa.binary()),
        "partition": pa.array([partition for partition, _ in places], pa.int32()),
        "offset": pa.array([offset for _, offset in places], pa.int64()),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    log.append([rows.slice(0, 20), rows.slice(40)], {0: (50, 1_000_000), 1: (0, 120)})
    log.append([rows.slice(20, 20)], {0: (1_000_000, 1_000_020)})
    query = start_query(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="20")
    batches = []
    while (read := query.next()) is not None:
        batches.append(read)
    assert all(sum(map(len, batch.values())) <= 20 for batch in batches)
    assert len(batches) < 25, "as many as there are rows, and not as there are offsets"
    for number in range(2):
        got = [offset for batch in batches for offset in batch.get(f"t-{number}", ())]
        assert got == [offset for partition, offset in places if partition == number]


def test_no_option_means_no_limit(source, start_query):
    source.topic("t")
    query = start_query(subscribe="t")
    assert isinstance(query.limit, ReadAllAvailable)


def test_trigger_once_takes_all_there_is(source, start_query):
    source.topic("t")
    source.write("t", {0: 50})
    given = {"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "10", "maxBytesPerTrigger": "1"}
    query = start_query(subscribe="t", startingOffsets="earliest", limit=ReadAllAvailable(), **given)
    assert len(query.next()["t-0"]) == 50
    source.write("t", {0: 1})
    assert len(query.next()["t-0"]) == 1


def test_available_now_stops_at_the_end_that_its_first_call_saw(source, start_query):
    source.topic("t")
    source.write("t", {0: 25})
    given = {"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "8"}
    query = start_query(subscribePattern="t.*", startingOffsets="earliest", **given)
    query.reader.prepareForTriggerAvailableNow()
    counts = []
    while (rows := query.next()) is not None and len(counts) < 5:
        counts.append(len(rows["t-0"]))
        source.write("t", {0: 5})
        source.controller.add_partitions("t", 1 + len(counts) + 1)
        source.topic(f"t-{len(counts)}")
    assert counts == [10, 10, 5], "the rest below the minimum is taken too"


@pytest.mark.parametrize(("fail", "is_created_again"), [("true", False), ("false", False), ("false", True)])
def test_available_now_says_that_its_end_cannot_be_reached(source, start_query, fail, is_created_again):
    for name in ("a", "b"):
        source.topic(name)
        source.write(name, {0: 9})
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4", "failOnDataLoss": fail}
    query = start_query(subscribePattern="[ab]", **given)
    query.reader.prepareForTriggerAvailableNow()
    query.next()
    source.controller.delete_topic("b")
    if is_created_again:
        source.topic("b")
        source.write("b", {0: 12})
    loses(query.next, "have been lost during running query with Trigger.AvailableNow", "b-0")


def test_small_batches_wait_for_the_minimum(source, start_query):
    source.topic("t")
    source.write("t", {0: 1})
    query = start_query(subscribe="t", startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    assert query.next() == {"t-0": [0]}
    source.write("t", {0: 4})
    assert query.next() is None
    source.write("t", {0: 1})
    assert query.next() == {"t-0": [1, 2, 3, 4, 5]}


def test_rows_wait_no_longer_than_the_delay(source, start_query):
    source.topic("t")
    query = start_query(subscribe="t", startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="0")
    query.next()
    source.write("t", {0: 1})
    assert query.next() == {"t-0": [0]}


def test_bytes_limit_a_batch(source, start_query):
    source.topic("t", 2)
    for _ in range(4):
        source.write("t", {0: 10, 1: 10}, size=1000)
    query = start_query(subscribe="t", startingOffsets="earliest", maxBytesPerTrigger="20000")
    counts = []
    while (rows := query.next()) is not None:
        counts.append(sum(map(len, rows.values())))
    assert sum(counts) == 80
    assert all(10 <= count <= 20 for count in counts[:-1])


@pytest.fixture
def looks(source, monkeypatch):
    """Return how many looks at the log the queries made since the last call. A view is as good as new for an hour."""
    for module in (cluster, stream_reader):
        monkeypatch.setattr(module, "ACCESS_AGE_MS", 3_600_000)
    Cluster.shared(str(source.path)).refresh()
    calls = []
    view_topics = stream_reader.view_topics
    monkeypatch.setattr(
        stream_reader, "view_topics", lambda *given, **named: calls.append(1) or view_topics(*given, **named)
    )

    def take():
        count = len(calls)
        calls.clear()
        return count

    return take


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "10"}, {"maxBytesPerTrigger": "10000"}])
def test_a_lagging_query_looks_for_rows_when_those_it_knows_do_not_fill_a_batch(source, start_query, looks, limit):
    source.topic("t", 2)
    source.write("t", {0: 20}, size=1000)
    source.write("t", {0: 15}, size=1000)
    query = start_query(subscribe="t", startingOffsets="earliest", **limit)
    query.next()
    assert looks() == 2, "where it begins, and the first batch"
    source.write("t", {0: 30, 1: 20}, size=1000)
    reads = [query.next()]
    while not looks() and len(reads) < 20:
        reads.append(query.next())
    assert len(reads) >= 3
    assert set(reads[-1]) == {"t-0", "t-1"}, "newer rows wait for the next look"
    assert all(set(read) == {"t-0"} and len(read["t-0"]) >= 9 for read in reads[:-1])
    while (rows := query.next()) is not None:
        reads.append(rows)
    assert [sum(len(read.get(name, ())) for read in reads) for name in ("t-0", "t-1")] == [65 - reads[0]["t-0"][0], 20]
    looks()
    assert query.next() is None and looks() == 1


def test_a_lagging_query_looks_again_when_its_view_or_its_acls_are_old(source, start_query, looks, monkeypatch):
    source.topic("t")
    source.write("t", {0: 50})
    query = start_query(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query.next()
    looks()
    assert len(query.next()["t-0"]) == 10 and looks() == 0
    source.controller.add_partitions("t", 2)
    monkeypatch.setattr(stream_reader, "ACCESS_AGE_MS", 0)
    query.next()
    assert looks() == 1 and query.position("t") == {"0": 30, "1": 0}
    monkeypatch.setattr(stream_reader, "ACCESS_AGE_MS", 3_600_000)
    monkeypatch.setattr(cluster, "ACCESS_AGE_MS", -1)
    query.next()
    assert looks() == 1


def test_a_lagging_query_with_a_minimum_looks_while_it_knows_fewer_rows(source, start_query, looks):
    source.topic("t")
    source.write("t", {0: 9}, size=1000)
    source.write("t", {0: 9}, size=1000)
    limits = {"maxBytesPerTrigger": "3000", "minOffsetsPerTrigger": "14", "maxTriggerDelay": "1h"}
    query = start_query(subscribe="t", startingOffsets="earliest", **limits)
    query.next()
    looks()
    assert query.next() is not None and looks() == 0
    while query.next() is not None:
        assert looks() <= 1
    assert 18 - query.position("t")["0"] < 14
    assert looks() == 1, "the bytes fill a batch, but the rows are too few"


def test_a_position_that_the_last_view_does_not_reach_is_looked_for(source, start_query, looks):
    source.topic("t", 2)
    source.write("t", {0: 50, 1: 50})
    query = start_query(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query.next()
    looks()
    source.write("t", {0: 50})
    at = {**query.committed, "t": {"0": 60, "1": 5}}
    assert query.reader.latestOffset(at, query.limit)["t"]["0"] > 60
    assert looks() == 1


def test_few_tasks_read_many_partitions_and_each_object_once(source, start_query, monkeypatch):
    source.topic("t", 16)
    for _ in range(3):
        source.write("t", dict.fromkeys(range(16), 4))
    query = start_query(subscribe="t", startingOffsets="earliest", maxPartitions="3")
    start = query.reader.initialOffset()
    tasks = query.reader.partitions(start, query.reader.latestOffset(start, query.limit))
    assert len(tasks) == 3
    gets = []
    get = RetryingStore.get
    monkeypatch.setattr(RetryingStore, "get", lambda self, key, **more: gets.append(key) or get(self, key, **more))
    rows = source.rows(query.reader, tasks)
    assert rows == {f"t-{number}": list(range(12)) for number in range(16)}
    ledger_id = source.cluster.lookup("t").ledger_id
    data = [key for key in gets if "/data/" in key and ledger_id in key]  # not what threads of other tests' stores read
    assert sorted(Counter(data).values()) == [3, 3, 3], "three objects, each once a task"
    assert [sum(1 for _ in query.reader.read(task)) for task in tasks] == [1, 1, 1]


def test_tasks_of_several_partitions_go_on_where_one_object_was_lost(source, start_query):
    source.topic("t", 4)
    for _ in range(3):
        source.write("t", dict.fromkeys(range(4), 2))
    given = {"subscribe": "t", "startingOffsets": "earliest", "maxPartitions": "1"}
    query = start_query(**given, failOnDataLoss="false")
    start = query.reader.initialOffset()
    (task,) = query.reader.partitions(start, query.reader.latestOffset(start, query.limit))
    lost = task.slices[4].object.id.name
    files = list(Path(source.path).rglob(lost))
    assert len(files) == 3
    for file in files:
        file.unlink()
    assert source.rows(query.reader, [task]) == {f"t-{number}": [0, 1, 4, 5] for number in range(4)}
    loses(lambda: source.rows(start_query(**given).reader, [task]), "offsets 2 to 4")


@pytest.mark.parametrize("tasks", [None, "2"])
def test_a_plan_of_many_partitions_looks_objects_up_once_for_each_ledger(source, start_query, monkeypatch, tasks):
    for name in ("a", "b"):
        source.topic(name, 3)
        source.write(name, dict.fromkeys(range(3), 4))
    query = start_query(
        subscribe="a,b", startingOffsets="earliest", **({} if tasks is None else {"maxPartitions": tasks})
    )
    first = query.reader.initialOffset()
    last = query.reader.latestOffset(first, ReadAllAvailable())
    asked, before = [], ObjectTable.refs
    monkeypatch.setattr(ObjectTable, "refs", lambda table, numbers: (asked.append(table), before(table, numbers))[1])
    planned = query.reader.partitions(first, last)
    assert len(planned) == int(tasks or 6)
    assert source.rows(query.reader, planned) == {f"{name}-{at}": [0, 1, 2, 3] for name in "ab" for at in range(3)}
    assert len(asked) == len(set(asked)) == 2
