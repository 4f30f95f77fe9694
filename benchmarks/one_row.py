"""One warm row, sink to source: the functions, modules and calls between files that each stage runs.

The very objects that Spark calls, in one process without a JVM: three local roots, one topic with three replicas,
acks=all. Micro-batches before the traced one warm every cache, so that what is left is what each row pays for.

    python -m benchmarks.one_row [--warm 5] [--list STAGE] [--calls]

functions: distinct Python functions of this project; comprehensions count as part of theirs.
modules: distinct files of this project.
crossings: calls whose caller stands in another file of this project than the function called. Every call counts. A
generator counts once, however often it is resumed. Threads are traced too; the first function that a pool runs for a
stage has no caller there and counts no crossing.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

import spark_replog
from benchmarks.bench_session import scratch
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster
from spark_replog.spark.data_source import ReplogDataSource

PACKAGE = str(Path(spark_replog.__file__).parent)
TARGETS = {"functions": 400, "modules": 65, "crossings": 520}
_QUERY = {"sql.streaming.queryId": "11111111-2222-3333-4444-555555555555", "spark.jobGroup.id": "run"}
_SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


class Walk:
    """What ran in one stage, from every thread."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.calls: Counter[tuple[str, str, str, str]] = Counter()
        self._generators: set[int] = set()

    @property
    def modules(self) -> set[str]:
        """Return the files whose functions ran."""
        return {code.co_filename for code in self.functions}

    @property
    def crossings(self) -> int:
        """Return how many calls went from one file to another."""
        return sum(self.calls.values())

    def merge(self, other: Walk) -> None:
        """Add what another stage ran."""
        self.functions |= other.functions
        self.calls += other.calls

    def on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Count a call (the form of ``sys.setprofile``)."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        if code.co_flags & 0x20:  # a generator: resumed as often as it yields
            if id(frame) in self._generators:
                return
            self._generators.add(id(frame))
        self.functions.add(code)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.calls[caller.f_code.co_filename, caller.f_code.co_qualname, code.co_filename, code.co_qualname] += 1


class Tracer:
    """Hands the calls of all threads to the walk of the stage that runs now."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        threading.setprofile(self._on_event)  # before any pool has started its threads
        sys.setprofile(self._on_event)

    @contextmanager
    def stage(self, walk: Walk) -> Iterator[None]:
        """Trace into a walk."""
        self._walk = walk
        try:
            yield
        finally:
            self._walk = None

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        walk = self._walk
        if walk is not None:
            walk.on_event(frame, event, argument)


def one_batch(
    path: str, batch_id: int, reader: Any, at: dict[str, Any], stages: dict[str, Walk], tracer: Tracer
) -> dict[str, Any]:
    """Write one row and read it back, each stage traced into its walk; return where the reader stands then."""
    context = TaskContext._getOrCreate()
    context._localProperties = {**_QUERY, "streaming.sql.batchId": str(batch_id)}
    context._partitionId = 0
    row = pa.record_batch({"key": [b"k%d" % batch_id], "value": [b"v" * 100]})
    checkpoint = Path(path).with_name("checkpoint")
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{batch_id}\n")  # as Spark does before it runs a batch
    sink = {"path": path, "topic": "orders", "checkpointLocation": str(checkpoint)}
    with tracer.stage(stages["plan"]):
        writer = ReplogDataSource(sink).streamWriter(_SCHEMA, False)
    writer = pickle.loads(pickle.dumps(writer))
    with tracer.stage(stages["write"]):
        message = writer.write(iter([row]))
    message = pickle.loads(pickle.dumps(message))
    with tracer.stage(stages["commit"]):
        writer.commit([message], batch_id)
    with tracer.stage(stages["latestOffset"]):
        end: dict[str, Any] = reader.latestOffset(at, reader.getDefaultReadLimit())
    with tracer.stage(stages["partitions"]):
        tasks = reader.partitions(at, end)
    reader_in_task, tasks = cloudpickle.loads(cloudpickle.dumps((reader, tasks)))  # type: ignore[no-untyped-call]
    with tracer.stage(stages["read"]):
        count = sum(batch.num_rows for task in tasks for batch in reader_in_task.read(task))
    assert count == 1, f"{count} rows read"
    return end


def walk_one_row(warm_batches: int) -> dict[str, Walk]:
    """Return the walks of the stages of one row, after some micro-batches that are not traced."""
    tracer = Tracer()
    names = ("plan", "write", "commit", "latestOffset", "partitions", "read")
    with scratch(None) as folder:
        path = str(folder / "store")
        Controller(init_cluster(path, 3, {}, fsync=True)).create_topic("orders", partitions=1, replicas=3, config={})
        source = {"path": path, "subscribe": "orders", "startingOffsets": "earliest"}
        reader = ReplogDataSource(source).streamReader(ReplogDataSource(source).schema())
        at = reader.initialOffset()
        stages: dict[str, Walk] = {}
        for batch_id in range(warm_batches + 1):
            stages = {name: Walk() for name in names}
            at = one_batch(path, batch_id, reader, at, stages, tracer)
        return stages


def main() -> None:
    """Print the table of stages; fail where the whole misses a target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--list", dest="listed", metavar="STAGE", help="print the functions of a stage, or of 'all'")
    parser.add_argument("--calls", action="store_true", help="with --list: print the calls between files instead")
    arguments = parser.parse_args()
    stages = walk_one_row(arguments.warm)
    whole = Walk()
    for stage in stages.values():
        whole.merge(stage)
    stages["all"] = whole
    if arguments.listed:
        _show(stages[arguments.listed], calls=arguments.calls)
    print("| stage | functions | modules | crossings |\n| --- | --- | --- | --- |")
    for name, walk in stages.items():
        print(f"| {name} | {len(walk.functions)} | {len(walk.modules)} | {walk.crossings} |")
    reached = {"functions": len(whole.functions), "modules": len(whole.modules), "crossings": whole.crossings}
    print("| target | " + " | ".join(str(limit) for limit in TARGETS.values()) + " |")
    sys.exit(0 if all(reached[name] <= limit for name, limit in TARGETS.items()) else 1)


def _show(walk: Walk, *, calls: bool) -> None:
    def short(path: str) -> str:
        return path[len(PACKAGE) + 1 :]

    if calls:
        for (source, caller, target, called), count in sorted(walk.calls.items()):
            print(f"{count:4d}  {short(source)} {caller} -> {short(target)} {called}")
    else:
        for name in sorted(
            f"{short(code.co_filename)}:{code.co_firstlineno} {code.co_qualname}" for code in walk.functions
        ):
            print(name)


if __name__ == "__main__":
    main()
