"""Writes to a store through the sink's classes, called as Spark's workers call them, without a JVM."""

from __future__ import annotations

import pickle
from itertools import count

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_replog.spark.data_source import ReplogDataSource
from spark_replog.spark.sink import sink

SCHEMA = StructType([StructField("topic", StringType()), StructField("value", BinaryType())])


class Task:
    """What a worker's TaskContext says."""

    def __init__(self, task_id, properties):
        self.task_id = task_id
        self.properties = properties

    def partitionId(self):
        return self.task_id

    def getLocalProperty(self, name):
        return self.properties.get(name)


class Writes:
    """Writes to one store; ``run`` is one attempt of a micro-batch, from the plan to its commit."""

    def __init__(self, source, monkeypatch):
        self.source = source
        self.task = None
        monkeypatch.setattr(sink.TaskContext, "get", lambda: self.task)

    def write_task(self, writer, task_id, values, properties):
        """Run a task: its values, or values by topic, or its Arrow batch."""
        self.task = Task(task_id, properties)
        batch = values
        if not isinstance(values, pa.RecordBatch):
            by_topic = values if isinstance(values, dict) else {"orders": values}
            columns = {
                "topic": pa.array([topic for topic, rows in by_topic.items() for _ in rows], pa.string()),
                "value": pa.array([value for rows in by_topic.values() for value in rows], pa.binary()),
            }
            batch = pa.record_batch(columns)
        try:
            # The planner's object goes to an executor, its message goes back.
            executor = pickle.loads(pickle.dumps(writer))
            return pickle.loads(pickle.dumps(executor.write(iter([batch]))))
        finally:
            self.task = None

    def tasks(self, batch_id, *values, query="query-1", run="run-1", properties=None, **options):
        """Write one task per list of values; return the writer that planned them and their messages.

        properties: of the session, that tasks see.
        """
        options = {"path": str(self.source.path), **options}
        writer = ReplogDataSource({k.lower(): v for k, v in options.items()}).streamWriter(SCHEMA, False)
        properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(batch_id),
            "spark.jobGroup.id": run,
            **(properties or {}),
        }
        messages = [self.write_task(writer, task_id, rows, properties) for task_id, rows in enumerate(values)]
        return writer, messages

    def run(self, batch_id, *values, **options):
        writer, messages = self.tasks(batch_id, *values, **options)
        writer.commit(messages, batch_id)

    def batch(self, *values, properties=None, **options):
        options = {"path": str(self.source.path), **options}
        writer = ReplogDataSource({k.lower(): v for k, v in options.items()}).writer(SCHEMA, False)
        messages = [self.write_task(writer, task_id, rows, properties or {}) for task_id, rows in enumerate(values)]
        writer.commit(messages)
        return writer, messages

    def values(self, topic="orders"):
        reader = self.source.batch(subscribe=topic)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == list(range(len(rows)))
        return [row["value"] for row in rows]


class Query:
    """A streaming query over a list of rows, which keeps its checkpoint as Spark keeps it.

    Args:
        rows: of the source; those that come later are in the next micro-batch.
        checkpoint: its folder.
        options: of the sink.
    """

    def __init__(self, writes, rows, checkpoint, **options):
        self.writes = writes
        self.rows = rows
        self.checkpoint = checkpoint
        self.options = options
        self.starts = 0

    def numbers(self, log):
        return sorted(int(path.name) for path in (self.checkpoint / log).glob("*"))

    def end(self, number):
        return int((self.checkpoint / f"offsets/{number}").read_text().splitlines()[-1]) if number >= 0 else 0

    def start(self, *, dies=False, change=lambda rows: rows):
        """Start it, run its micro-batches until no row is left, and stop it.

        dies: after a commit of the sink, before Spark's. change: what the query makes of its rows.
        """
        self.starts += 1
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True, exist_ok=True)
        while True:
            planned, done = self.numbers("offsets"), self.numbers("commits")
            newest = planned[-1] if planned else -1
            if newest in done or newest < 0:
                if self.end(newest) == len(self.rows):
                    return
                newest += 1
                times = f'{{"batchTimestampMs":{next(_TIMES)}}}'
                (self.checkpoint / f"offsets/{newest}").write_text(f"v1\n{times}\n{len(self.rows)}")
            rows = change(self.rows[self.end(newest - 1) : self.end(newest)])
            run = f"{self.checkpoint.name}-{self.starts}"
            options = {"checkpointLocation": f"file:{self.checkpoint}", "topic": "orders", **self.options}
            self.writes.run(newest, rows, run=run, **options)
            if dies:
                return
            (self.checkpoint / f"commits/{newest}").write_text("v1\n{}")


_TIMES = count(1)
