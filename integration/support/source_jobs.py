"""Jobs about reading: streams that are fed, watched and restarted, and batch reads of any shape.

Loaded by ``jobs.py`` inside the driver; what they return is plain.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

COLUMNS = ("topic", "partition", "offset")
STREAMS = {}


class Watched:
    """A streaming query whose micro-batches are kept: per batch its tasks and ``topic-partition: offsets``."""

    def __init__(self, spark, path, checkpoint, options, trigger, fail_batch=None, columns=None):
        self.batches = []
        self.taken = 0

        def put(frame, batch_id):
            if batch_id == fail_batch:
                raise RuntimeError("this batch is to fail")
            rows = {}
            selected = frame.select(*(columns or COLUMNS))
            for row in selected.collect():
                if columns is None:
                    rows.setdefault(f"{row.topic}-{row.partition}", []).append(row.offset)
                else:
                    rows.setdefault("rows", []).append([plain(value) for value in row])
            for offsets in rows.values():
                offsets.sort()
            self.batches.append({"batch": batch_id, "tasks": frame.rdd.getNumPartitions(), "rows": rows})

        reader = spark.readStream.format("replog").options(**options)
        writer = reader.load(path).writeStream.foreachBatch(put).option("checkpointLocation", checkpoint)
        triggers = {"now": {"availableNow": True}, "once": {"once": True}}
        self.query = writer.trigger(**triggers.get(trigger, {"processingTime": "0 seconds"})).start()

    def take(self):
        """Return the batches with rows since the last call."""
        new, self.taken = self.batches[self.taken :], len(self.batches)
        return [batch for batch in new if batch["rows"]]

    def check(self):
        if self.query.exception() is not None:
            raise self.query.exception()


def plain(value):
    """Return a value as JSON has it."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return str(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def stream_start(spark, name, path, checkpoint, options, **more):
    """Start a query that runs until ``stream_stop``."""
    STREAMS[name] = Watched(spark, path, checkpoint, options, "endless", **more)


def stream_take(spark, name):
    """Wait until the query has read all there is; return the new batches."""
    stream = STREAMS[name]
    stream.query.processAllAvailable()
    stream.check()
    return stream.take()


def stream_wait_for_error(spark, name):
    """Wait for the query's end by an error and raise it."""
    stream = STREAMS.pop(name)
    try:
        stream.query.awaitTermination(600)
    finally:
        stream.query.stop()


def stream_stop(spark, name):
    """Stop the query; return its new batches and its last progress."""
    stream = STREAMS.pop(name)
    stream.query.stop()
    stream.check()
    progress = json.loads(stream.query.lastProgress.json)
    for source in progress["sources"]:
        for name in ("startOffset", "endOffset", "latestOffset"):  # JSON from Spark 4.2 on, before that a text of it
            if isinstance(source.get(name), str):
                source[name] = json.loads(source[name])
    return {"batches": stream.take(), "progress": progress}


def stream_run(spark, path, checkpoint, options, trigger="now", **more):
    """Run a query to its end; return its batches with rows."""
    stream = Watched(spark, path, checkpoint, options, trigger, **more)
    try:
        stream.query.awaitTermination(600)
    finally:
        stream.query.stop()
    stream.check()
    return stream.take()


def stream_refusals(spark, path, checkpoint_folder, cases):
    """Start a query per case; return what each is refused with, None where it is not.

    One after the other: each starts a process, and Spark waits for few seconds only until it connects.
    """
    answers = []
    for number, options in enumerate(cases):
        try:
            where = options.pop("path", path)
            stream = Watched(spark, where, f"{checkpoint_folder}/{number}", options, "now")
            stream.query.awaitTermination(600)
            answers.append(None)
        except Exception as error:
            answers.append(str(error))
    return answers


def batch_frame(spark, path, options):
    """Return a DataFrame of a read; ``path`` None leaves it to the options."""
    reader = spark.read.format("replog").options(**options)
    return reader.load() if path is None else reader.load(path)


def batch_offsets(spark, path, options):
    """Return ``topic-partition: offsets`` in the order of the log, and the number of tasks."""
    frame = batch_frame(spark, path, options)
    rows = {}
    for row in frame.select(*COLUMNS).collect():
        rows.setdefault(f"{row.topic}-{row.partition}", []).append(row.offset)
    return {"tasks": frame.rdd.getNumPartitions(), "rows": rows}


def batch_refusals(spark, path, cases):
    """Return what each batch read is refused with, None where it is not."""

    def answer_of(options):
        try:
            batch_frame(spark, options.pop("path", path), options).count()
        except Exception as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(answer_of, cases))


def feed(spark, path, topic, rows, size=1):
    """Append so many rows per partition; values are numbers."""
    selects = " union all ".join(
        f"select {partition} partition, lpad(cast(id as string), {size}, '0') value from range(0, {count}, 1, 1)"
        for partition, count in rows.items()
    )
    spark.sql(selects).coalesce(1).write.format("replog").mode("append").option("topic", topic).save(path)


def admin(spark, path, steps):
    """Run steps of a controller: [name of the method, its arguments]."""
    from spark_replog.admin.controller import Controller
    from spark_replog.cluster.cluster import Cluster

    controller = Controller(Cluster.open(path))
    for name, *arguments in steps:
        if name == "delete_records":
            arguments[1] = {int(partition): offset for partition, offset in arguments[1].items()}
        getattr(controller, name)(*arguments)


def source_contract(spark, path, folder):
    """The connector's contract in short, for every version of Spark: ends, tasks, refusals, discovery, loss."""
    admin(spark, path, [["create_topic", "short", 2, 3]])
    feed(spark, path, "short", {0: 10, 1: 1})
    read = {"subscribe": "short"}
    answers = {
        "ends": batch_offsets(spark, path, {**read, "endingOffsets": '{"short":{"0":2,"1":-1}}'})["rows"],
        "by_time": batch_offsets(spark, path, {**read, "startingTimestamp": "-1 hour"})["rows"],
        "split": batch_offsets(spark, path, {**read, "minPartitions": "4"})["tasks"],
        "joined": batch_offsets(spark, path, {**read, "maxPartitions": "1"}),
        "refused": batch_refusals(
            spark,
            path,
            [{}, {**read, "startingOffsets": "latest"}, {**read, "minPartitions": "0"}, {"subscribe": "nowhere"}],
        ),
    }
    run = {"path": path, "checkpoint": f"{folder}/short", "options": {**read, "startingOffsets": "earliest"}}
    answers["first"] = stream_run(spark, **run)
    admin(spark, path, [["add_partitions", "short", 3]])
    feed(spark, path, "short", {0: 4, 2: 2})
    admin(spark, path, [["delete_records", "short", {"0": 12}]])
    try:
        stream_run(spark, **run)
    except Exception as error:
        answers["loss"] = str(error)
    run["options"]["failOnDataLoss"] = "false"
    answers["rest"] = stream_run(spark, **run)
    return answers


__all__ = [
    "STREAMS",
    "Watched",
    "admin",
    "batch_frame",
    "batch_offsets",
    "batch_refusals",
    "feed",
    "plain",
    "source_contract",
    "stream_refusals",
    "stream_run",
    "stream_start",
    "stream_stop",
    "stream_take",
    "stream_wait_for_error",
]
