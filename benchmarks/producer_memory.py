"""Peak memory of one write task over a micro-batch of any size, against the bound of G8 (docs/guarantees.md).

    python benchmarks/producer_memory.py --gib 2

The task runs in a process of its own; its peak resident set is what the kernel says. The bound is
``buffer.memory`` + twice the Arrow batch + 150 MiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.producer_store import TOPIC, make_input, make_store, read_input
from spark_replog.config.producer import ProducerConfig
from spark_replog.write.task_writer import TaskWriter

MIB = 1024 * 1024


def run_task(options: argparse.Namespace) -> dict[str, object]:
    """Write the data and return what it took."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        brokers, plan = make_store(
            Path(folder),
            roots=options.roots,
            partitions=options.partitions,
            compression=options.compression,
            fsync=not options.no_fsync,
        )
        stream = make_input(options.batch_rows, options.value_bytes, keyed=not options.unkeyed)
        base_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        config = ProducerConfig()
        writer = TaskWriter(plan, config, brokers, query_id="0" * 32, batch_id=0, task_id=0, default_topic=TOPIC)
        start, start_processor = time.perf_counter(), time.process_time()
        written = 0
        while written < options.gib * 1024 * MIB:
            writer.append(read_input(stream))
            written += len(stream)
        result = writer.close()
        seconds, processor_s = time.perf_counter() - start, time.process_time() - start_processor
    bound_mib = config.buffer_memory_bytes // MIB + 2 * len(stream) / MIB + 150
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "peak_mib": round(peak_mib),
        "bound_mib": round(bound_mib),
        "within": peak_mib <= bound_mib,
        "base_mib": base_mib,
        "arrow_batch_mib": round(len(stream) / MIB, 1),
        "input_gib": round(written / 1024 / MIB, 2),
        "rows": result.row_count,
        "objects": len(result.objects),
        "processor_s": round(processor_s, 2),
        "rows_per_s": round(result.row_count / seconds),
        "mb_per_s": round(written / seconds / 1e6),
    }


def main() -> None:
    """Run the task in a child, print its figures as one JSON line, fail where the bound is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--roots", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--batch-rows", type=int, default=10_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--unkeyed", action="store_true")
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--folder", default=None, help="where the store is made")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(run_task(options)))
        return
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--in-process"], stdout=subprocess.PIPE, check=True)
    print(done.stdout.decode().strip())
    sys.exit(0 if json.loads(done.stdout)["within"] else 1)


if __name__ == "__main__":
    main()
