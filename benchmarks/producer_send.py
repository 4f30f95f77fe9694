"""Records per second through the plain ``Producer`` into a one-broker local store.

python benchmarks/producer_send.py [--records 1000000] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spark_replog.admin.controller import Controller
from spark_replog.client.producer import Producer
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster

VALUE = b"v" * 100
TABLE_ROWS = 100_000
RUNS = 3
PARTITIONS = 6
AIMS = {"send": 150e3, "send, keyed": 80e3, "send_arrow": 2e6, "send_arrow, keyed": 2e6}


def send(producer: Producer, count: int) -> tuple[float, float]:
    """Return seconds of the sends alone, and with the acknowledgement of the last record."""
    topic, value, call = "bench", VALUE, producer.send
    start = time.perf_counter()
    for _ in range(count):
        handle = call(topic, value)
    sent = time.perf_counter()
    producer.flush()
    handle.result(0)
    return sent - start, time.perf_counter() - start


def send_keyed(producer: Producer, count: int) -> tuple[float, float]:
    """As ``send``, with 10-byte keys of which each comes ten times."""
    keys = [b"%010d" % (number % (count // 10)) for number in range(count)]
    topic, value, call = "bench", VALUE, producer.send
    start = time.perf_counter()
    for key in keys:
        handle = call(topic, value, key)
    sent = time.perf_counter()
    producer.flush()
    handle.result(0)
    return sent - start, time.perf_counter() - start


def send_arrow(producer: Producer, count: int, *, is_keyed: bool = False) -> tuple[float, float]:
    """Return the seconds of tables of 100,000 rows."""
    columns = {"value": pa.array([VALUE] * TABLE_ROWS, pa.binary())}
    if is_keyed:
        columns["key"] = pa.array([b"%010d" % number for number in range(TABLE_ROWS)], pa.binary())
    table = pa.table(columns)
    start = time.perf_counter()
    for _ in range(count // TABLE_ROWS):
        producer.send_arrow("bench", table)
    sent = time.perf_counter()
    producer.flush()
    return sent - start, time.perf_counter() - start


def main() -> None:
    """Print records per second, medians of three runs; fail where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder")
    given = parser.parse_args()
    cases: dict[str, Callable[[Producer, int], tuple[float, float]]] = {
        "send": send,
        "send, keyed": send_keyed,
        "send_arrow": lambda producer, count: send_arrow(producer, 5 * count),
        "send_arrow, keyed": lambda producer, count: send_arrow(producer, 5 * count, is_keyed=True),
    }
    figures: dict[str, dict[str, int]] = {}
    for name, case in cases.items():
        count = given.records * (5 if "arrow" in name else 1)
        alone, acknowledged = [], []
        for _ in range(RUNS):
            # A producer's upkeep may still write for a moment after close(): what it leaves is left.
            with tempfile.TemporaryDirectory(dir=given.folder, ignore_cleanup_errors=True) as folder:
                init_cluster(folder, 1)
                cluster = Cluster.open(folder)
                Controller(cluster).create_topic("bench", PARTITIONS, 1)
                with Producer(cluster) as producer:
                    producer.partitions_for("bench")
                    sent_s, all_s = case(producer, given.records)
            alone.append(count / sent_s)
            acknowledged.append(count / all_s)
        figures[name] = {
            "records/s sent": int(statistics.median(alone)),
            "records/s acknowledged": int(statistics.median(acknowledged)),
            "aim": int(AIMS[name]),
        }
    print(json.dumps(figures, indent=1))
    missed = [name for name, rates in figures.items() if rates["records/s acknowledged"] < rates["aim"]]
    sys.exit(f"below its aim: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
