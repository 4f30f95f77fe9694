"""Where one write task's processor time goes, stage by stage, beside the least that a log's task must do.

Both take the same Arrow batches, in turn, without Spark: a key of 10 bytes, a value of 100, two partitions, one root,
fsync on. The stages of the task's own thread are measured around the calls that `STAGES` names, each without what its
inner stages take; what other threads take is the writing of the objects.

    python -m benchmarks.write_stages [--rows 2000000] [--batch-rows 10000] [--rounds 9] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bench_session import scratch
from benchmarks.floors import LeastTask, prebuilt_batch
from benchmarks.spark_throughput import make_store
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.producer import ProducerConfig
from spark_replog.write.task_writer import TaskWriter

STAGES = {
    "hash the keys": ["benchmarks.floors:murmur2_array", "spark_replog.write.partitioner:murmur2_array"],
    "gather": ["pyarrow.compute:take"],
    "checksum": ["crc32c:crc32c"],
    "columns and sizes": [
        "spark_replog.write.columns:InputColumns.normalise", "spark_replog.write.arrow_appender:row_ends"],
    "route, sort": ["spark_replog.write.arrow_appender:RowRouter.route", "spark_replog.write.arrow_appender:_sorted"],
    "append slices": ["spark_replog.write.task_writer:TaskWriter.append"],
    "accumulate": ["spark_replog.write.accumulator:RecordAccumulator.append"],
    "join slices": ["spark_replog.log.codec.data_object:_Gather.join"],
    "messages, sections": ["spark_replog.write.data_request:encode_data_object"],
    "sender": ["spark_replog.write.sender:Sender.run_once", "spark_replog.write.task_writer:TaskWriter.close"],
    "the least's other calls": ["benchmarks.floors:LeastTask.append", "benchmarks.floors:LeastTask.put"],
}  # fmt: skip
OTHERS = "threads that write"


class Stages:
    """Processor time of the calling thread by stage, in ns."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inner = [0]

    def wrap(self, stage: str, target: str) -> None:
        """Measure the calls of a function or method from now on."""
        module, _, path = target.partition(":")
        *owners, name = path.split(".")
        owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
        setattr(owner, name, self._measured(stage, getattr(owner, name)))

    def _measured(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def measured(*arguments: Any, **more: Any) -> Any:
            began_ns = time.thread_time_ns()
            self._inner.append(0)
            try:
                return call(*arguments, **more)
            finally:
                took_ns = time.thread_time_ns() - began_ns
                self.spent[stage] += took_ns - self._inner.pop()
                self._inner[-1] += took_ns

        return measured


def fresh_batches(stream: bytes, row_count: int) -> Iterator[pa.RecordBatch]:
    """Yield batches in memory that was just written, as Spark's arrive."""
    while row_count > 0:
        for batch in pa.ipc.open_stream(pa.BufferReader(bytearray(stream))):
            if row_count > 0:
                yield batch
            row_count -= batch.num_rows


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch-rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    rows, stages = arguments.rows, Stages()
    for stage, targets in STAGES.items():
        for target in targets:
            stages.wrap(stage, target)
    sink = pa.BufferOutputStream()
    whole = prebuilt_batch(400_000).select(["key", "value"])
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        for start in range(0, len(whole), arguments.batch_rows):
            writer.write_batch(whole.slice(start, arguments.batch_rows))
    stream = sink.getvalue().to_pybytes()
    counters: dict[str, list[Counter[str]]] = {"replog": [], "least work": []}
    with scratch(arguments.dir) as folder:
        cluster = Cluster.open(make_store(folder, "store", 1))
        plan = make_write_plan(cluster, ["t"])

        def replog(number: int, batches: Iterator[pa.RecordBatch]) -> None:
            task = TaskWriter(
                plan, ProducerConfig(), cluster.brokers, query_id="q", batch_id=number, task_id=0, default_topic="t"
            )
            for batch in batches:
                task.append(batch)
            task.close()

        def least(number: int, batches: Iterator[pa.RecordBatch]) -> None:
            (folder / f"least-{number}").mkdir()
            LeastTask([str(folder / f"least-{number}")]).run(batches)

        gc.collect()
        gc.freeze()
        for number in range(arguments.rounds + 1):
            for name, run in (("replog", replog), ("least work", least)):
                before_ns = time.process_time_ns() - time.thread_time_ns()
                stages.spent.clear()
                run(number, fresh_batches(stream, rows))
                stages.spent[OTHERS] = time.process_time_ns() - time.thread_time_ns() - before_ns
                if number:
                    counters[name].append(Counter(stages.spent))
                _delete_objects(folder)
    print_medians(counters, rows)


def _delete_objects(folder: Path) -> None:
    for file in [*folder.rglob("*.arrow"), *folder.glob("least-*/*")]:
        file.unlink()


def print_medians(counters: dict[str, list[Counter[str]]], rows: int) -> None:
    """Print the table: a line for each stage, and the sums."""
    print(f"| ns a row | {' | '.join(counters)} |\n| --- |{' --- |' * len(counters)}")
    for name in [*STAGES, OTHERS]:
        print_line(name, [[spent[name] / rows for spent in runs] for runs in counters.values()])
    print_line("**all**", [[spent.total() / rows for spent in runs] for runs in counters.values()])


def print_line(label: str, values: list[list[float]]) -> None:
    """Print the medians of some columns; nothing where a column has no such stage."""
    medians = [statistics.median(column) for column in values]
    print(f"| {label} | {' | '.join(f'{median:.1f}' if median else '' for median in medians)} |")


if __name__ == "__main__":
    main()
