"""What Spark's tasks of a compaction do, and what its readers see of one, without a JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import spark_replog
from spark_replog.client.store import init_store
from spark_replog.maintenance.compaction import Compactor


class FakeFrame:
    """`spark.range(...).mapInArrow(...).collect()`, each task in a copy of its own."""

    def __init__(self, count, is_repeated):
        self.count, self.is_repeated = count, is_repeated

    def mapInArrow(self, function, schema):
        assert schema == "id long, command binary"
        self.function = function
        return self

    def collect(self):
        rows = []
        for number in reversed(range(self.count)):
            for _ in range(2 if self.is_repeated else 1):  # a speculative task's object is garbage
                run = cloudpickle.loads(cloudpickle.dumps(self.function))
                asked = pa.RecordBatch.from_pydict({"id": [number]})
                answers = [row for batch in run([asked]) for row in batch.to_pylist()]
            rows += [Row(answer) for answer in answers]
        return rows


class Row(dict):
    def __lt__(self, other):
        return self["id"] < other["id"]


class FakeSpark:
    def __init__(self, is_repeated):
        self.is_repeated, self.asked = is_repeated, []

    def range(self, start, end, step, partitions):
        self.asked.append((start, end, step, partitions))
        return FakeFrame(end, self.is_repeated)


def test_tasks_rewrite_and_the_driver_commits(tmp_path):
    store = init_store(str(tmp_path / "store"), 3, fsync=False)
    store.admin().create_topic("t", partitions=3, replicas=3)
    with store.producer() as producer:
        for number in range(12):
            for partition in range(3):
                producer.send("t", b"v%d" % number, partition=partition)
            producer.flush()
    before = store.topic("t").scan().to_arrow().to_pylist()
    spark = FakeSpark(is_repeated=True)
    report = spark_replog.compact(spark, str(tmp_path / "store"), "t", partitions=[0, 2])
    assert (report.run_count, report.lost_race_count) == (2, 0)
    assert spark.asked == [(0, 2, 1, 2)]
    assert store.topic("t").scan().to_arrow().to_pylist() == before
    assert spark_replog.compact(spark, str(tmp_path / "store"), "t", partitions=[0, 2]).run_count == 0
    assert len(spark.asked) == 1


@pytest.fixture
def cleaned(source):
    """A compacted topic of two partitions, each with every fourth offset below its newest section."""
    source.topic("users", 2, **{"cleanup.policy": "compact"})
    store = spark_replog.open(str(source.path))
    with store.producer() as producer:
        for number in range(12):
            for partition in range(2):
                for _ in range(3):
                    producer.send("users", b"old", key=b"same", partition=partition)
                producer.send("users", b"v", key=b"k%d" % number, partition=partition)
            producer.flush()
    report = Compactor(source.cluster).compact(source.cluster.lookup("users"), is_eager=True)
    assert report.removed_count == 2 * (11 * 3 - 1)
    return sorted([*range(3, 44, 4), 42, 44, 45, 46, 47])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxOffsetsPerTrigger": "7"},
        {"maxOffsetsPerTrigger": "1"},
        {"minPartitions": "9"},
        {"maxRecordsPerPartition": "5"},
    ],
)
def test_a_stream_passes_the_gaps(source, start_query, cleaned, options):
    query = start_query(subscribe="users", startingOffsets="earliest", **options)
    offsets_read = {"users-0": [], "users-1": []}
    while (rows := query.next()) is not None:
        for key, offsets in rows.items():
            offsets_read[key] += offsets
    assert {key: sorted(offsets) for key, offsets in offsets_read.items()} == dict.fromkeys(offsets_read, cleaned)
    assert query.position("users") == {"0": 48, "1": 48}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minPartitions": "9"},
        {"startingOffsets": '{"users":{"0":5,"1":5}}', "endingOffsets": '{"users":{"0":9,"1":9}}'},
    ],
)
def test_a_batch_passes_the_gaps(source, cleaned, options):
    rows = source.rows(source.batch(subscribe="users", **options))
    expected = [offset for offset in cleaned if 5 <= offset < 9] if "startingOffsets" in options else cleaned
    assert {key: sorted(offsets) for key, offsets in rows.items()} == {"users-0": expected, "users-1": expected}
