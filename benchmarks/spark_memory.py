"""Peak memory of a real Spark write worker while one task writes a lot, against the bound of G8 (docs/guarantees.md).

Rows are made in the JVM, so that the only busy Python process is the one that runs ``write``. Its peak resident
set is what the kernel says (VmHWM). The bound is ``buffer.memory`` + twice the Arrow batch + 150 MiB; a worker that
has imported pyspark and pandas and has written one row is the base, printed beside it.

    python -m benchmarks.spark_memory [--gib 2] [--replicas 1] [--value-bytes 100] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.bench_session import scratch, session
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.producer import ProducerConfig

MIB = 1024 * 1024
KEY_BYTES = 10
ARROW_BATCH_ROWS = 10_000


def peak_mib() -> float:
    """Return the largest peak resident set among the Python workers that live now."""
    peaks = [0.0]
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if b"pyspark.daemon" not in (process / "cmdline").read_bytes():
                continue
            status = (process / "status").read_text()
        except OSError:  # it ended meanwhile
            continue
        peaks += [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    return max(peaks)


def main() -> None:
    """Write, print the figures, fail where the bound is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    row_bytes = KEY_BYTES + arguments.value_bytes
    rows = int(arguments.gib * 1024 * MIB / row_bytes)
    with scratch(arguments.dir) as folder, session("memory", cores=1) as spark:
        path = str(folder / "store")
        controller = Controller(init_cluster(path, arguments.replicas, {}, fsync=True))
        controller.create_topic("rows", partitions=arguments.partitions, replicas=arguments.replicas, config={})

        def write(count: int) -> float:
            frame = spark.range(0, count, 1, 1).selectExpr(
                f"lpad(cast(id as string), {KEY_BYTES}, '0') as key",
                f"lpad(cast(id as string), {arguments.value_bytes}, 'x') as value",
            )
            start = time.perf_counter()
            frame.write.format("replog").option("topic", "rows").mode("append").save(path)
            return time.perf_counter() - start

        write(1)
        base = peak_mib()
        seconds = write(rows)
        peak = peak_mib()
    batch_mib = ARROW_BATCH_ROWS * row_bytes / MIB
    bound = ProducerConfig().buffer_memory_bytes / MIB + 2 * batch_mib + 150
    print("| written | peak of the write worker | base | bound | rows/s |")
    print("| --- | --- | --- | --- | --- |")
    print(
        f"| {arguments.gib} GiB, {rows:,} rows | {peak:.0f} MiB | {base:.0f} MiB | {bound:.0f} MiB "
        f"| {rows / seconds / 1e6:.2f} M |"
    )
    sys.exit(0 if peak <= bound else 1)


if __name__ == "__main__":
    main()
