"""``spark_replog.compact`` on real Spark: tasks rewrite, the driver commits, readers see the same rows."""

from __future__ import annotations

from remote import run_in


def compact(spark, path, topic):
    import spark_replog

    before = spark_replog.open(path).topic(topic).scan().to_arrow().to_pylist()
    report = spark_replog.compact(spark, path, topic, is_eager=True)
    again = spark_replog.compact(spark, path, topic)
    after = spark.read.format("replog").option("path", path).option("subscribe", topic).load()
    rows = [(row.partition, row.offset, bytes(row.value)) for row in after.collect()]
    expected = [(row["partition"], row["offset"], row["value"]) for row in before]
    return [report.run_count, report.lost_race_count, again.run_count, sorted(rows) == sorted(expected), len(rows)]


def test_small_objects_become_large_ones(spark, store):
    topic = store.topic("compacted", 2)
    for start in range(0, 120, 10):
        spark.call("write", path=str(store.path), topic=topic, start=start, end=start + 10, tasks=1)
    assert run_in(spark, compact, path=str(store.path), topic=topic) == [2, 0, 0, True, 120]
