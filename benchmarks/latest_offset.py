"""Time inside ``latestOffset`` on an idle log: three local roots, target at most 3 ms.

The very object that Spark calls, in one process without a JVM; Spark calls it every 10 ms or so where nothing is new.

    python -m benchmarks.latest_offset [--calls 500] [--partitions 6] [--appends 200] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import pyarrow as pa

from benchmarks.bench_session import scratch
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster
from spark_replog.spark.options import parse_sink_options, parse_source_options
from spark_replog.spark.sink.sink import BatchWriter
from spark_replog.spark.source.stream_reader import StreamReader

TARGET_MS = 3.0


def main() -> None:
    """Print median and tail of the calls; fail where the median misses the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--appends", type=int, default=200)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    print("| topics | appends before | median ms | 99 % ms | max ms |")
    print("| --- | --- | --- | --- | --- |")
    medians = []
    for topics in (1, 4):
        with scratch(arguments.dir) as folder:
            path = str(folder / "store")
            controller = Controller(init_cluster(path, 3, {}, fsync=True))
            names = [f"topic-{number}" for number in range(topics)]
            rows = pa.record_batch({"value": [b"x" * 100] * 100})
            for name in names:
                controller.create_topic(name, partitions=arguments.partitions, replicas=3, config={})
            for number in range(arguments.appends):
                options = parse_sink_options({"path": path, "topic": names[number % topics]}, streaming=False)
                writer = BatchWriter(options)
                writer.commit([writer.write(iter([rows]))])
            reader = StreamReader(parse_source_options({"path": path, "subscribe": ",".join(names)}, streaming=True))
            at = reader.initialOffset()
            reader.latestOffset(at, reader.getDefaultReadLimit())
            times = []
            for _ in range(arguments.calls):
                start = time.perf_counter()
                answer = reader.latestOffset(at, reader.getDefaultReadLimit())
                times.append((time.perf_counter() - start) * 1000)
                assert answer == at, "an idle log has no new offset"
            times.sort()
            medians.append(statistics.median(times))
            tail = times[int(len(times) * 0.99)]
            print(f"| {topics} | {arguments.appends} | {medians[-1]:.2f} | {tail:.2f} | {times[-1]:.2f} |")
    sys.exit(0 if max(medians) <= TARGET_MS else 1)


if __name__ == "__main__":
    main()
