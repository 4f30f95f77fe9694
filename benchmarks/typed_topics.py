"""Rows of ten columns in a typed topic, beside the same rows as JSON in a topic of bytes, an Arrow file, and parquet.

One root with fsync, 2 partitions, 2 tasks. The Arrow file is a Python sink and source that do nothing else: one file
for each task, written and fsynced, or mapped and read. Reads aggregate all columns, or three. The cases are interleaved
round by round; medians, of the time and of the processor time of all processes, which also counts on a busy machine.
The sizes of the stored rows follow.

    python -m benchmarks.typed_topics [--rows 1000000] [--rounds 7] [--only write "read three"] [--dir FOLDER]
        [--micro-batch [--batches 70]] [--tasks]

--only: the cases whose names begin with one of these words.
--micro-batch: instead, micro-batches of 100 rows from Spark's own source.
--tasks: instead, without Spark, the processor time of the Python part of its tasks, and of encoding alone, by process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, WriterCommitMessage

import spark_replog
from benchmarks.bench_session import scratch, session, table, tree_usage
from benchmarks.floors import Counted, Piece, maybe_freeze
from benchmarks.micro_batch import WARM_UP, durations
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.log.codec.data_object import EncodedObject, data_schema, encode_data_object
from spark_replog.log.codec.section_statistics import column_statistics, covered_names
from spark_replog.log.ddl import columns_text
from spark_replog.log.json_rows import json_rows
from spark_replog.log.row_schema import RowSchema
from spark_replog.spark.options import parse_sink_options, parse_source_options
from spark_replog.spark.sink.sink import BatchWriter
from spark_replog.spark.source.batch_reader import BatchReader

DDL = (
    "id BIGINT, customer INT, amount DECIMAL(12,2), score DOUBLE, paid BOOLEAN, at TIMESTAMP, state STRING, "
    "note STRING, tags ARRAY<STRING>, address STRUCT<city: STRING, zip: INT>"
)
ROWS = """
select id, cast(hash(id) % 100000 as int) customer, cast(rand(1) * 1000 as decimal(12, 2)) amount, rand(2) score,
  id % 3 = 0 paid, timestamp_micros(1767225600000000 + id * 1000) at,
  element_at(array('created', 'paid', 'packed', 'sent', 'returned'), cast(rand(3) * 5 + 1 as int)) state,
  concat('order ', id, ' from shop ', id % 100) note, array('new', concat('t', id % 10)) tags,
  named_struct('city', element_at(array('Berlin', 'Paris', 'Porto'), cast(id % 3 + 1 as int)),
    'zip', cast(id % 90000 as int)) address
from range(0, {rows}, 1, 2)
"""
THREE = ("id", "amount", "state")
SUMS = {
    "id": "sum(id)",
    "customer": "sum(customer)",
    "amount": "sum(amount)",
    "score": "sum(score)",
    "paid": "count_if(paid)",
    "at": "max(at)",
    "state": "sum(length(state))",
    "note": "sum(length(note))",
    "tags": "sum(size(tags))",
    "address": "sum(length(address.city) + address.zip)",
}
TYPES = "none", "lz4", "zstd"
BATCH_ROWS = 100
TASK_BATCH_ROWS = 10_000


class FileWriter(DataSourceArrowWriter):
    """A batch sink that writes one Arrow file for each task, and fsyncs it."""

    def __init__(self, folder: str, compression: str) -> None:
        self.folder, self.compression = folder, compression
        maybe_freeze(True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Write rows."""
        maybe_freeze(True)
        codec = None if self.compression == "none" else pa.Codec("zstd", 1)
        options, count = pa.ipc.IpcWriteOptions(compression=codec), 0
        with open(Path(self.folder, uuid4().hex + ".arrow"), "wb", buffering=0) as file:
            writer = None
            for batch in iterator:
                if writer is None:
                    writer = pa.ipc.new_file(file, batch.schema, options=options)
                writer.write_batch(batch)
                count += len(batch)
            if writer is not None:
                writer.close()
            os.fsync(file.fileno())
        return Counted(count)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""


class FileReader(DataSourceReader):
    """Reads some columns of a folder's Arrow files, one task for each."""

    def __init__(self, folder: str, columns: list[str]) -> None:
        self.folder, self.columns = folder, columns

    def partitions(self) -> list[Piece]:
        """Return the files."""
        maybe_freeze(True)
        return [Piece(0, [str(file)]) for file in sorted(Path(self.folder).glob("*.arrow"))]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        maybe_freeze(True)
        mapped = pa.memory_map(partition.files[0])
        numbers = [RowSchema(DDL).names.index(name) for name in self.columns]
        reader = pa.ipc.open_file(mapped, options=pa.ipc.IpcReadOptions(included_fields=numbers))
        schema = pa.schema([RowSchema(DDL).arrow.field(number) for number in numbers])
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number).cast(schema)  # no copy: all columns may be null


class ArrowFile(DataSource):
    """`format("arrowfile")`: options folder, compression (none or zstd), columns (with commas)."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "arrowfile"

    def schema(self) -> str:
        """Return the asked columns."""
        return columns_text(RowSchema(DDL).arrow.field(name) for name in self._columns())

    def _columns(self) -> list[str]:
        return str(self.options.get("columns") or ",".join(SUMS)).split(",")

    def writer(self, schema: object, overwrite: bool) -> FileWriter:
        """Return the batch sink."""
        return FileWriter(self.options["folder"], self.options.get("compression", "none"))

    def reader(self, schema: object) -> FileReader:
        """Return the batch reader."""
        return FileReader(self.options["folder"], self._columns())


def make_store(folder: Path) -> tuple[str, Controller, Cluster]:
    """Make a store of one root, fsync on, with the topic json; return its path."""
    path = str(folder / "store")
    cluster = init_cluster(path, 1, {}, fsync=True)
    controller = Controller(cluster)
    controller.create_topic("json", partitions=2, replicas=1, config={})
    return path, controller, cluster


def aggregate(frame: DataFrame, names: tuple[str, ...]) -> None:
    """Compute one row of sums."""
    (row,) = frame.selectExpr(*[SUMS[name] for name in names]).collect()
    assert row[0] is not None, row


def cases(
    spark: SparkSession, folder: Path, frame: DataFrame
) -> tuple[dict[str, Callable[[], object]], dict[str, Path]]:
    """Return case name -> one timed action, and name -> folder of the files of one write."""
    path, controller, cluster = make_store(folder)
    for suffix in ("", "-read"):
        for codec in TYPES:
            config = {"compression.type": codec}
            controller.create_topic(f"typed-{codec}{suffix}", 2, 1, config=config, schema=RowSchema(DDL))
    controller.create_topic("json-read", partitions=2, replicas=1, config={})

    def new_folder() -> str:
        made = folder / f"file-{uuid4().hex}"
        made.mkdir()
        return str(made)

    def to_topic(topic: str) -> None:
        frame.write.format("replog").option("topic", topic).mode("append").save(path)

    def to_json(topic: str) -> None:
        values = frame.selectExpr("to_json(struct(*)) value")
        values.write.format("replog").option("topic", topic).mode("append").save(path)

    def to_file(compression: str, into: str) -> None:
        frame.write.format("arrowfile").option("folder", into).option("compression", compression).mode("append").save()

    def to_parquet(into: str) -> None:
        frame.write.mode("overwrite").parquet(into)

    def from_topic(topic: str, names: tuple[str, ...]) -> None:
        reader = spark.read.format("replog").option("subscribe", topic)
        aggregate((reader if len(names) == len(SUMS) else reader.option("columns", ",".join(names))).load(path), names)

    def from_json(names: tuple[str, ...]) -> None:
        values = spark.read.format("replog").option("subscribe", "json-read").load(path)
        aggregate(values.selectExpr(f"from_json(cast(value as string), '{DDL}') row").select("row.*"), names)

    def from_file(files: str, names: tuple[str, ...]) -> None:
        reader = spark.read.format("arrowfile").option("folder", files).option("columns", ",".join(names))
        aggregate(reader.load(), names)

    def from_parquet(names: tuple[str, ...]) -> None:
        aggregate(spark.read.parquet(parquet), names)

    files = {codec: new_folder() for codec in ("none", "zstd")}
    parquet = str(folder / "read.parquet")
    to_parquet(parquet)
    to_json("json-read")
    for codec, into in files.items():
        to_file(codec, into)
    sizes = {f"Arrow file, {codec}": Path(into) for codec, into in files.items()} | {"parquet": Path(parquet)}
    data = Path(path, "broker-0", "ledgers")
    for codec in TYPES:
        to_topic(f"typed-{codec}-read")
    actions: dict[str, Callable[[], object]] = {
        "write: JSON in a topic of bytes": partial(to_json, "json"),
        "write: Arrow file, none": lambda: to_file("none", new_folder()),
        "write: Arrow file, zstd": lambda: to_file("zstd", new_folder()),
        "write: parquet": partial(to_parquet, str(folder / "write.parquet")),
    }
    actions |= {f"write: typed topic, {codec}": partial(to_topic, f"typed-{codec}") for codec in TYPES}
    for word, names in (("all", tuple(SUMS)), ("three", THREE)):
        actions[f"read {word}: JSON in a topic of bytes"] = partial(from_json, names)
        for codec, into in files.items():
            actions[f"read {word}: Arrow file, {codec}"] = partial(from_file, into, names)
        actions[f"read {word}: parquet"] = partial(from_parquet, names)
        for codec in TYPES:
            actions[f"read {word}: typed topic, {codec}"] = partial(from_topic, f"typed-{codec}-read", names)
    for name in ("json-read", *(f"typed-{codec}-read" for codec in TYPES)):
        ledger = cluster.newest_topics([name])[name].ledger_id
        sizes[name] = data / ledger / "data"
    return actions, sizes


def print_micro_batches(spark: SparkSession, folder: Path, batches: int, rounds: int) -> None:
    """Print what micro-batches of 100 rows take from Spark's own source into each kind of topic."""
    path, controller, _ = make_store(folder)
    topics = {"topic of bytes, JSON": "json", "typed topic, none": "typed-none", "typed topic, zstd": "typed-zstd"}
    for codec in ("none", "zstd"):
        controller.create_topic(f"typed-{codec}", 2, 1, config={"compression.type": codec}, schema=RowSchema(DDL))
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    columns = ROWS.partition("from range")[0].removeprefix("\nselect ").replace("select", "").strip()
    results: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for name, topic in list(topics.items())[:: -1 if number % 2 else 1]:
            source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
            rows = source.option("numPartitions", 2).load().selectExpr("value id")
            rows.createOrReplaceTempView("numbers")
            frame = spark.sql(f"select {columns} from numbers")
            frame = frame.selectExpr("to_json(struct(*)) value") if topic == "json" else frame
            writer = frame.writeStream.format("replog").option("topic", topic)
            query = writer.option("checkpointLocation", str(folder / f"checkpoint-{topic}-{number}")).start(path)
            results.setdefault(name, []).extend(durations(query, batches))
    for phase in ("triggerExecution", "addBatch", "processor"):
        print(f"\n{phase}, after batch {WARM_UP}")
        print(table([(name, [row.get(phase, 0.0) for row in values]) for name, values in results.items()], "ms"))


def stored_rows(count: int) -> pa.RecordBatch:
    """Return such rows as a typed topic stores them."""
    rng = np.random.default_rng(7)
    number = np.arange(count)
    states = pa.array(["created", "paid", "packed", "sent", "returned"]).take(pa.array(rng.integers(0, 5, count)))
    columns = [
        pa.array(number),
        pa.array(rng.integers(0, 100_000, count, dtype=np.int32)),
        pa.array(rng.integers(0, 100_000, count)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)),
        pa.array(rng.random(count)),
        pa.array(number % 3 == 0),
        pa.array(1767225600000000 + number * 1000).cast(pa.timestamp("us", tz="UTC")),
        states,
        pa.array([f"order {value} from shop {value % 100}" for value in number]),
        pa.array([["new", f"t{value % 10}"] for value in number.tolist()], pa.list_(pa.string())),
        pa.array(
            [{"city": ("Berlin", "Paris", "Porto")[value % 3], "zip": value % 90_000} for value in number.tolist()]
        ),
        pa.array(np.full(count, 1767225600000000)).cast(pa.timestamp("us", tz="UTC")),
    ]
    schema = data_schema(False, rows=RowSchema(DDL))
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def stream_of(rows: pa.RecordBatch) -> pa.Buffer:
    """Return rows as Spark hands them to a task: an Arrow stream of 10,000 a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for start in range(0, len(rows), TASK_BATCH_ROWS):
            writer.write_batch(rows.slice(start, TASK_BATCH_ROWS))
    return sink.getvalue()


class Clocked:
    """Takes the processor time of this process, of all its threads, in ns a row."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    def __call__(self, name: str, row_count: int, action: Callable[[], Any]) -> Any:
        """Return what the action returns."""
        began = time.process_time()
        made = action()
        self.took.setdefault(name, []).append((time.process_time() - began) / row_count * 1e9)
        return made


def print_tasks(folder: Path, count: int, rounds: int) -> None:
    """Print the processor time of the Python part of Spark's tasks, and of encoding and decoding alone."""
    path, controller, _ = make_store(folder)
    for codec in TYPES:
        controller.create_topic(f"typed-{codec}", 2, 1, config={"compression.type": codec}, schema=RowSchema(DDL))
    rows = stored_rows(count).select(RowSchema(DDL).names)
    typed = stream_of(rows)
    texts = stream_of(pa.record_batch({"value": json_rows(rows)}))
    files = {codec: str(folder / codec) for codec in ("none", "zstd")}
    for into in files.values():
        Path(into).mkdir()
    timed = Clocked()

    def write(name: str, topic: str, stream: pa.Buffer) -> None:
        writer = BatchWriter(parse_sink_options({"path": path, "topic": topic}, streaming=False))
        message = timed(f"write: {name}", count, lambda: writer.write(iter(pa.ipc.open_stream(stream))))
        writer.commit([message])

    def read(name: str, topic: str, **options: str) -> None:
        given = {"path": path, "subscribe": topic, "endingOffsets": json.dumps({topic: ends[topic]}), **options}
        reader = BatchReader(parse_source_options(given, streaming=False))
        tasks = reader.partitions()
        timed(f"read {name}", count, lambda: [deque(reader.read(task), maxlen=0) for task in tasks])

    for topic, stream in (("json", texts), *((f"typed-{codec}", typed) for codec in TYPES)):
        write("warm-up", topic, stream)
    ends = {topic: newest_ends(path, topic) for topic in ("json", *(f"typed-{codec}" for codec in TYPES))}
    for _ in range(rounds):
        for codec, into in files.items():
            for file in Path(into).iterdir():
                file.unlink()
            writer = FileWriter(into, codec)
            timed(f"write: Arrow file, {codec}", count, partial(writer.write, iter(pa.ipc.open_stream(typed))))
            for word, names in (("all", list(SUMS)), ("three", list(THREE))):
                reader = FileReader(into, names)
                (task,) = reader.partitions()
                timed(f"read {word}: Arrow file, {codec}", count, partial(drain, reader, task))
        write("JSON in a topic of bytes", "json", texts)
        read("all: JSON in a topic of bytes, not parsed", "json")
        for codec in TYPES:
            write(f"typed topic, {codec}", f"typed-{codec}", typed)
            read(f"all: typed topic, {codec}", f"typed-{codec}")
            read(f"three: typed topic, {codec}", f"typed-{codec}", columns=",".join(THREE))
        time_codec(timed)
    print(table(sorted(timed.took.items()), "ns a row"))


def drain(reader: FileReader, task: Piece) -> None:
    """Read a task's rows."""
    deque(reader.read(task), maxlen=0)


def newest_ends(path: str, topic: str) -> dict[str, int]:
    """Return the end of each partition."""
    spans = spark_replog.open(path).topic(topic).scan().spans
    return {str(key.partition): end for key, (_, end) in spans.items()}


def time_codec(timed: Clocked) -> None:
    """Time one object of 40,000 rows, its statistics alone, and one of 100 rows."""
    rows, batch, few = RowSchema(DDL), stored_rows(40_000), stored_rows(BATCH_ROWS)

    def encode(part: pa.RecordBatch, codec: str, is_small: bool = False) -> EncodedObject:
        inputs = [("t", "ab" * 16, 0, part, "p")]
        return encode_data_object(inputs, compression=codec, has_headers=False, rows=rows, is_small=is_small)

    for codec in TYPES:
        made = timed(f"encode, {codec}", len(batch), partial(encode, batch, codec))
        timed(f"encode 100 rows, {codec}", BATCH_ROWS, partial(encode, few, codec, is_small=True))
        body = b"".join(made.buffers)
        print(f"{codec}: {len(body) / len(batch):.1f} bytes a row", file=sys.stderr)
    columns = [batch.column(name) for name in covered_names(rows.arrow)]
    timed("statistics", len(batch), partial(list, map(column_statistics, columns)))


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--dir", default=None)
    parser.add_argument("--micro-batch", action="store_true")
    parser.add_argument("--batches", type=int, default=70)
    parser.add_argument("--tasks", action="store_true")
    given = parser.parse_args()
    if given.tasks:
        with scratch(given.dir) as folder:
            print_tasks(folder, given.rows, given.rounds)
        return
    with scratch(given.dir) as folder, session("typed-topics") as spark:
        if given.micro_batch:
            print_micro_batches(spark, folder, given.batches, given.rounds)
            return
        spark.dataSource.register(ArrowFile)
        frame = spark.sql(ROWS.format(rows=given.rows)).cache()
        frame.count()
        actions, sizes = cases(spark, folder, frame)
        chosen = {name: action for name, action in actions.items() if name.startswith(tuple(given.only))}
        took: dict[str, dict[str, list[float]]] = {"wall": {}, "processor, of all processes": {}}
        for number in range(given.rounds + 1):
            for name, action in chosen.items():
                began, used = time.perf_counter(), tree_usage()[0]
                action()
                figures = time.perf_counter() - began, tree_usage()[0] - used
                print(name, *figures, file=sys.stderr, flush=True)
                for kind, value in zip(took, figures, strict=True) if number else ():
                    took[kind].setdefault(name, []).append(value * 1000)
        for kind, cases_took in took.items():
            print(f"\n{kind}\n")
            print(table(list(cases_took.items()), "ms"), flush=True)
            print_ratios({name: statistics.median(values) for name, values in cases_took.items()})
        print("\n| rows | bytes a row |\n| --- | --- |")
        for name, place in sizes.items():
            total = sum(file.stat().st_size for file in place.rglob("*.*") if file.suffix in (".arrow", ".parquet"))
            print(f"| {name} | {total / given.rows:.1f} |")


def print_ratios(median: dict[str, float]) -> None:
    """Print how much faster than JSON each case is, and its part of the Arrow file's speed."""
    print("\n| case | times as fast as JSON | of the Arrow file, none | of the Arrow file, zstd |\n|" + " --- |" * 4)
    for name, value in median.items():
        kind = name.partition(":")[0]
        floors = [f"{kind}: JSON in a topic of bytes", f"{kind}: Arrow file, none", f"{kind}: Arrow file, zstd"]
        parts = [f"{median[floor] / value:.2f}" for floor in floors]
        print(f"| {name} | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
