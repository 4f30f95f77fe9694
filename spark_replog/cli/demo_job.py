"""The Spark side of ``replog demo``: two streaming queries, one writes a topic, one reads it.

Runs as its own process (``python -m spark_replog.cli.demo_job SETTINGS``), so that Java and
the workers' Python are settled in its environment before Spark starts. It tells its parent
what happens as JSON lines on stdout and ends when the parent does (its stdin closes).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from spark_replog.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_MS = 250
_RESULT_TABLE = "replog_demo_by_key"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the parent asks for; crosses the process boundary as JSON.

    Attributes:
        input_folder: Parquet pieces, of which one micro-batch takes ``files_per_batch``.
        store, topic: both exist.
        key: the input's column that becomes the key.
        work_folder: for checkpoints and Spark's own files.
    """

    input_folder: str
    files_per_batch: int
    store: str
    topic: str
    key: str
    work_folder: str


def main() -> None:
    """Run the job and tell the parent."""
    settings = DemoSettings(**json.loads(sys.argv[1]))
    # The JVM inherits fd 1; only our own lines may reach the parent through it.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()  # it ends with its parent
    try:
        _run(settings, events)
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        _tell(events, "failed", message=f"{type(error).__name__}: {first[0]}")
        raise


def _tell(events: TextIO, event: str, **fields: object) -> None:
    events.write(json.dumps({"event": event, **fields}) + "\n")


def _session(settings: DemoSettings) -> SparkSession:
    from pyspark.sql import SparkSession

    work = Path(settings.work_folder)
    return (
        SparkSession.builder.master("local[2]")
        .appName("replog demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "localhost")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(work / "spark"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def quoted(name: str) -> str:
    """Return a column's name as Spark reads it whole, dots and backticks included."""
    return "`" + name.replace("`", "``") + "`"


def _start_writer(spark: SparkSession, settings: DemoSettings) -> StreamingQuery:
    from pyspark.sql import functions as F

    schema = spark.read.parquet(settings.input_folder).schema
    rows = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", settings.files_per_batch)
        .parquet(settings.input_folder)
    )
    columns = [F.col(quoted(name)) for name in schema.names]
    return (
        rows.select(
            F.col(quoted(settings.key)).cast("string").alias("key"), F.to_json(F.struct(*columns)).alias("value")
        )
        .writeStream.format("replog")
        .option("path", settings.store)
        .option("topic", settings.topic)
        .option("checkpointLocation", f"{settings.work_folder}/checkpoint-write")
        .trigger(availableNow=True)
        .start()
    )


def _start_reader(spark: SparkSession, settings: DemoSettings) -> StreamingQuery:
    from pyspark.sql import functions as F

    rows = (
        spark.readStream.format("replog")
        .option("path", settings.store)
        .option("subscribe", settings.topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        rows.groupBy(F.col("key").cast("string").alias("key"))
        .agg(F.count(F.lit(1)).alias("rows"), F.sum(F.length("value")).alias("bytes"))
        .writeStream.format("memory")
        .queryName(_RESULT_TABLE)
        .outputMode("complete")
        .option("checkpointLocation", f"{settings.work_folder}/checkpoint-read")
        .start()
    )


def _done(query: StreamingQuery) -> tuple[int, int]:
    """Return (rows, micro-batches with rows) so far."""
    rows_of_batch: dict[int, int] = {}
    for progress in query.recentProgress:
        rows_of_batch[progress["batchId"]] = progress["numInputRows"]
    return sum(rows_of_batch.values()), sum(1 for rows in rows_of_batch.values() if rows)


def _state(writer: StreamingQuery, reader: StreamingQuery) -> dict[str, Any]:
    written, write_batches = _done(writer)
    read, read_batches = _done(reader)
    return {"written": written, "writeBatches": write_batches, "read": read, "readBatches": read_batches}


def _run(settings: DemoSettings, events: TextIO) -> None:
    from pyspark.sql import functions as F

    spark = _session(settings)
    spark.sparkContext.setLogLevel("WARN")
    _tell(events, "started", spark=spark.version)
    started_ms = SYSTEM_CLOCK.monotonic_ms()
    reader = _start_reader(spark, settings)
    writer = _start_writer(spark, settings)
    while writer.isActive:
        if not reader.isActive:
            writer.stop()
            break
        _tell(events, "progress", **_state(writer, reader), ms=SYSTEM_CLOCK.monotonic_ms() - started_ms)
        SYSTEM_CLOCK.sleep_ms(_POLL_MS)
    write_ms = SYSTEM_CLOCK.monotonic_ms() - started_ms
    for query in (reader, writer):
        failure = query.exception()
        if failure is not None:
            raise failure
    read_before_write_end = _done(reader)[0]
    _tell(events, "progress", **_state(writer, reader), ms=write_ms)
    reader.processAllAvailable()
    total_ms = SYSTEM_CLOCK.monotonic_ms() - started_ms
    state = _state(writer, reader)
    reader.stop()
    groups = spark.table(_RESULT_TABLE).orderBy(F.col("rows").desc(), "key").collect()
    _tell(
        events,
        "done",
        **state,
        readWhileWriting=read_before_write_end,
        writeMs=write_ms,
        totalMs=total_ms,
        groups=[{"key": row["key"], "rows": row["rows"], "bytes": row["bytes"]} for row in groups],
    )
    spark.stop()


if __name__ == "__main__":
    main()
