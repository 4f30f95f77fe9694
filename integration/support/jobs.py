"""Jobs run inside a fresh environment: ``serve`` answers requests, ``copy`` is a query to be killed.

Runs under Spark 4.0 to 4.3; prints one marked line of JSON per answer. Arguments and results are
plain values: the assertions are in the tests, outside.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from source_jobs import *  # noqa: F403

MARK = "@@replog "


def answer(**message):
    print(MARK + json.dumps(message), flush=True)


def make_session(master="local[2]", settings=None):
    from pyspark.sql import SparkSession

    import spark_replog

    builder = (
        SparkSession.builder.master(master)
        .appName("replog-integration")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # What makes a short-lived JVM cheap: most of its time is loading classes.
        .config(
            "spark.driver.extraJavaOptions",
            "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
        )
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in (spark_replog.session_conf() | (settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# ------------------------------------------------------------------------------------------ jobs


def about(spark):
    import pyspark

    import spark_replog

    return {"spark": pyspark.__version__, "file": spark_replog.__file__, "version": spark_replog.__version__}


def write(spark, path, topic, start, end, options=None, keyed=True, tasks=2, mode="append"):
    """Append the numbers [start, end) as text."""
    frame = spark.range(start, end, 1, tasks)
    key = "cast(id % 10 as string) as key" if keyed else "cast(null as string) as key"
    frame = frame.selectExpr(key, "cast(id as string) as value")
    writer = frame.write.format("replog").mode(mode).options(**(options or {}))
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.save(path)


def write_typed(spark, path, topic, start, end):
    """Append the numbers [start, end) as columns, in one task."""
    frame = spark.range(start, end, 1, 1).selectExpr("id", "cast(id as string) value")
    frame.write.format("replog").mode("append").option("topic", topic).save(path)


def write_sql(spark, path, query, options=None):
    """Append what a SQL query returns."""
    spark.sql(query).write.format("replog").mode("append").options(**(options or {})).save(path)


def read(spark, path, topic, options=None):
    """Return all rows as [partition, offset, key, value, timestampType], sorted."""
    frame = spark.read.format("replog").option("subscribe", topic).options(**(options or {})).load(path)
    rows = frame.selectExpr(
        "topic", "partition", "offset", "cast(key as string) key", "cast(value as string) value", "timestampType"
    ).collect()
    return sorted([row.partition, row.offset, row.key, row.value, row.timestampType] for row in rows)


def read_headers(spark, path, topic):
    frame = spark.read.format("replog").option("subscribe", topic).option("includeHeaders", "true").load(path)
    rows = frame.orderBy("partition", "offset").collect()
    return [
        [
            bytes(row.value).decode() if row.value is not None else None,
            None if row.headers is None else [[h.key, bytes(h.value).decode()] for h in row.headers],
            str(row.timestamp),
        ]
        for row in rows
    ]


def plan_size(spark, path, topic, options):
    frame = spark.read.format("replog").option("subscribe", topic).options(**options).load(path)
    return {"tasks": frame.rdd.getNumPartitions(), "rows": frame.count()}


def schema(spark, path, topic, options=None):
    frame = spark.read.format("replog").option("subscribe", topic).options(**(options or {})).load(path)
    return frame.schema.simpleString()


def same_frame_twice(spark, path, topic):
    """Count, append, count again on one DataFrame and on a new one."""
    frame = spark.read.format("replog").option("subscribe", topic).load(path)
    first = frame.count()
    write(spark, path, topic, 0, 5)
    return [first, frame.count(), spark.read.format("replog").option("subscribe", topic).load(path).count()]


def count_by_value(spark, path, topic, is_typed=False):
    """Return totals that show duplicates, losses and gaps without moving the rows."""
    frame = spark.read.format("replog").option("subscribe", topic).option("includeMetadata", is_typed).load(path)
    if is_typed:
        frame = frame.selectExpr("value", "_metadata.partition", "_metadata.offset")
    row = frame.selectExpr(
        "count(*) n", "count(distinct cast(value as string)) d", "sum(cast(cast(value as string) as bigint)) s",
    ).collect()[0]  # fmt: skip
    parts = frame.groupBy("partition").agg({"offset": "max", "*": "count"}).collect()
    dense = all(part["max(offset)"] == part["count(1)"] - 1 for part in parts)
    return {"rows": row.n, "distinct": row.d, "sum": row.s, "dense": dense, "partitions": len(parts)}


def copy_stream(spark, path, source, sink, checkpoint, available_now=True, **more):
    """Copy one topic into another until nothing is left; return the rows of each micro-batch."""
    query = start_copy(spark, path, source, sink, checkpoint, available_now, **more)
    if available_now:
        query.awaitTermination(280)
    else:
        query.processAllAvailable()
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    return [progress["numInputRows"] for progress in query.recentProgress]


def listened_copy(spark, path, source, sink, checkpoint):
    """Copy a topic of six rows, one a batch, while a listener is there; return what it knows of the query."""
    from prometheus_client import CollectorRegistry, generate_latest

    import spark_replog

    spark_replog.logs.log_to_stderr("INFO", "json")
    listener, registry = spark_replog.ReplogListener(path), CollectorRegistry()
    listener.register(registry)
    spark.streams.addListener(listener)
    query = start_copy(
        spark, path, source, sink, checkpoint, available_now=False, source_options={"maxOffsetsPerTrigger": "1"}
    )
    try:
        query.processAllAvailable()
        deadline, facts = time.monotonic() + 60, {}
        while time.monotonic() < deadline and (not facts or facts["lag"] or not facts["rates"]):
            time.sleep(0.1)
            readers = listener.readers()
            text = generate_latest(registry).decode()
            for reader in readers:
                facts = {
                    "name": reader.name,
                    "lag": reader.lag,
                    "verdict": reader.verdict.value,
                    "batch": reader.batch_id,
                    "rates": "replog_query_batch_duration_seconds{" in text,
                }
        calls = listener.storage_calls()
    finally:
        query.stop()
        spark.streams.removeListener(listener)
        spark_replog.logs.log_no_more()
    facts["id"] = str(query.id)
    facts["metrics"] = sorted({line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")})
    facts["calls"] = sorted([*key, counts.call_count] for table in calls.values() for key, counts in table.items())
    return facts


def start_copy(
    spark, path, source, sink, checkpoint, available_now=True, source_options=None, sink_options=None, select=None
):
    frame = (
        spark.readStream.format("replog")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .options(**(source_options or {}))
        .load(path)
    )
    writer = (
        frame.selectExpr(*(select or ["key", "value"]))
        .writeStream.format("replog")
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
        .options(**(sink_options or {}))
    )
    trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start(path)


def start_named(spark, name, **arguments):
    """Start an endless copy and return; ``progress_of`` and ``stop_named`` find it."""
    QUERIES[name] = start_copy(spark, available_now=False, **arguments)


def progress_of(spark, name):
    query = QUERIES[name]
    if query.exception() is not None:
        raise query.exception()
    return None if query.lastProgress is None else query.lastProgress["batchId"]


def drain_named(spark, name):
    """Wait until the query has nothing left, then stop it."""
    QUERIES[name].processAllAvailable()
    stop_named(spark, name)


def stop_named(spark, name):
    query = QUERIES.pop(name)
    query.stop()
    if query.exception() is not None:
        raise query.exception()


def batch_times(spark, path, topic, sink, checkpoint, batches):
    """Run an endless copy against a slow writer; return the trigger times of its batches in ms."""
    query = start_copy(spark, path, topic, sink, checkpoint, False, source_options={"maxOffsetsPerTrigger": "1000"})
    deadline = time.monotonic() + 180
    while query.lastProgress is None or query.lastProgress["batchId"] < batches:
        if query.exception() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    query.stop()
    return [progress["durationMs"].get("triggerExecution", 0) for progress in query.recentProgress]


def foreach_batch(spark, path, source, sink, checkpoint, options):
    """Write each micro-batch by ``foreachBatch``, twice, as a repeated batch would."""

    def put(frame, batch_id):
        for _ in range(2):
            write_options = {key: text.replace("$batch", str(batch_id)) for key, text in options.items()}
            frame.select("key", "value").write.format("replog").mode("append").option("topic", sink).options(
                **write_options
            ).save(path)

    frame = (
        spark.readStream.format("replog").option("subscribe", source).option("startingOffsets", "earliest").load(path)
    )
    query = frame.writeStream.foreachBatch(put).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination(280)


def sql(spark, statements):
    """Run statements; return the rows of the last one."""
    result = None
    for statement in statements:
        result = spark.sql(statement)
    return [list(row) for row in result.collect()]


def stream_word(spark, path, sink, checkpoint, mode):
    """Write a stream with an aggregate in the given output mode."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    if mode == "complete":
        frame = frame.groupBy().count().selectExpr("cast(count as string) as value")
    else:
        frame = frame.selectExpr("cast(value as string) as value")
    query = (
        frame.writeStream.format("replog").option("topic", sink).option("checkpointLocation", checkpoint)
        .outputMode(mode).trigger(processingTime="0 seconds").start(path)
    )  # fmt: skip
    deadline = time.monotonic() + 180
    while (query.lastProgress is None or query.lastProgress["batchId"] < 2) and time.monotonic() < deadline:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)
    query.stop()


def register_twice(spark):
    import spark_replog

    spark_replog.register(spark)
    spark_replog.register(spark)


def set_conf(spark, name, value):
    """Set a conf of the session; None puts the default back."""
    if value is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, value)


def run_source(spark, source, name, given):
    """Run a function of a test; it sees what stands in this file."""
    names = dict(globals())
    exec(compile(source, f"<{name}>", "exec"), names)
    return names[name](spark, **given)


def write_orders(spark, path, topic, rows):
    """Append orders as JSON, customers 0 to 3 in turn."""
    frame = spark.range(0, rows, 1, 1).selectExpr(
        "cast(id % 4 as string) key", "to_json(struct(id % 4 as id, id * 10 as amount)) value"
    )
    frame.write.format("replog").mode("append").option("topic", topic).save(path)


def run_blocks(spark, page, blocks):
    """Run the Python blocks of a page, in order; queries that a block starts make a micro-batch or end first."""
    names = {"spark": spark, "__name__": page}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
        for query in spark.streams.active:
            deadline = time.monotonic() + 180
            while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
                time.sleep(0.02)
            query.stop()
            if query.exception() is not None:
                raise query.exception()


def everything(spark, path, checkpoint_folder):
    """Stream and batch both ways, in any version."""
    register_twice(spark)
    write(spark, path, "numbers", 0, 100)
    limited = copy_stream(
        spark, path, "numbers", "copy", checkpoint_folder + "/copy",
        source_options={"maxOffsetsPerTrigger": "40"},
    )  # fmt: skip
    write(spark, path, "numbers", 100, 125)
    rest = copy_stream(spark, path, "numbers", "copy", checkpoint_folder + "/copy")
    idle = copy_stream(spark, path, "numbers", "copy", checkpoint_folder + "/copy")
    return {
        "limited": limited,
        "rest": rest,
        "idle": [rows for rows in idle if rows],
        "values": sorted(int(row[3]) for row in read(spark, path, "copy")),
        "offsets": [row[:2] for row in read(spark, path, "copy")],
        "schema": schema(spark, path, "copy", {"includeHeaders": "true"}),
        "headers": read_headers(spark, path, "copy")[0][1],
    }


def sink_rules(spark, path, topic):
    """The sink's rules in short, for versions that do not run them all: what is written, what is refused."""
    header = "array(named_struct('key', 'h', 'value', binary('1')), named_struct('key', 'h', 'value', binary('2')))"
    write_sql(
        spark, path,
        f"select '{topic}' topic, 1 partition, 'k' key, binary('v') value, {header} headers, 1.5D price "
        f"union all select '{topic}', 1, null, null, cast(null as array<struct<key:string,value:binary>>), 2D",
        {"kafka.bootstrap.servers": "h:1", "kafka.acks": "all", "kafka.linger.ms": "5"},
    )  # fmt: skip
    refused = {}
    for name, query, options in [
        ("value", "select 'a' Value", {"topic": topic}),
        ("type", "select 1 value", {"topic": topic}),
        ("topic", "select 'a' value", {}),
        ("null topic", "select 'a' value, cast(null as string) topic", {}),
        ("serializer", "select 'a' value", {"topic": topic, "kafka.key.serializer": "x"}),
        ("partition", "select 'a' value, 9 partition", {"topic": topic}),
    ]:
        try:
            write_sql(spark, path, query, options)
            refused[name] = ""
        except Exception as error:
            refused[name] = str(error)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reads = []
    for options in ({}, {"pushDownFilters": "true"}):
        frame = spark.read.format("replog").option("subscribe", topic).options(**options).load(path)
        reads.append(frame.filter("partition = 1 and offset >= 1").count())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    rows = [[row[0], row[1], row[2], row[3]] for row in read(spark, path, topic)]
    return {"rows": rows, "headers": [row[1] for row in read_headers(spark, path, topic)], "refused": refused,
            "filtered": reads}  # fmt: skip


# -------------------------------------------------------------------------------------- processes

QUERIES = {}


def serve(settings="{}"):
    """Answer requests until stdin closes."""
    spark = make_session(settings=json.loads(settings))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(result=globals()[request["job"]](spark, **request["arguments"]))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")
    spark.stop()


def copy(arguments):
    """Copy without end, telling the start and each finished micro-batch, until killed or (``until_idle``) done."""
    given = json.loads(arguments)
    until_idle = given.pop("until_idle")
    no_compiler = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    spark = make_session("local[1]", no_compiler)
    spark.sparkContext.setLogLevel("ERROR")
    query = start_copy(spark, available_now=until_idle, **given)
    answer(started=True)
    seen = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != seen:
            seen = progress["batchId"]
            answer(batch=seen, rows=progress["numInputRows"])
        time.sleep(0.01)
    error = query.exception()
    answer(done=True, error=None if error is None else str(error))


if __name__ == "__main__":
    threading.current_thread().name = "driver"
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        copy(sys.argv[2])
