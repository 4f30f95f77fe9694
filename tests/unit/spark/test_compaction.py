"""What Spark's tasks of a compaction do, without a JVM."""

from __future__ import annotations

import pyarrow as pa
from pyspark import cloudpickle

import spark_replog
from spark_replog.client.store import init_store


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
            rows += [Row(each) for each in answers]
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
