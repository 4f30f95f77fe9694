"""What it is worth that objects are put while rows keep arriving: one write task, slow roots.

    python -m benchmarks.producer_overlap --put-ms 20 --request-mib 1

Three cases of the same code, interleaved: as shipped (``max.in.flight.requests.per.connection`` = 5), with
one request in flight, and with overlapping switched off, where each put runs on the thread that brings
the rows. Every put takes ``--put-ms`` longer than the file system does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.producer_store import TOPIC, make_input, make_store, read_input
from spark_replog.config.producer import ProducerConfig
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import ObjectStore
from spark_replog.write import transport
from spark_replog.write.task_writer import TaskWriter
from tests.faulty_store import FaultRates, FaultyStore

MIB = 1024 * 1024
CASES = {"overlapped": 5, "one in flight": 1, "switched off": 1}
AIM = 1.6


class SlowBrokers(BrokerSet):
    """Roots whose every call takes longer."""

    def __init__(self, inner: BrokerSet, put_ms: float) -> None:
        super().__init__(
            inner.cluster_id, inner.brokers, inner.metadata_broker_ids, fsync=inner.fsync, storage_options={}
        )
        rates = FaultRates(stall=1.0)
        self._slow = {
            broker_id: FaultyStore(inner.store(broker_id), rates=rates, stall_ms=put_ms)
            for broker_id in inner.broker_ids
        }

    def store(self, broker_id: int) -> ObjectStore:
        return self._slow[broker_id]


class InlinePool:
    """An I/O pool without threads: a call is done when it was submitted."""

    def submit_to(self, _lane: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)
        return future


def run(case: str, stream: bytes, options: argparse.Namespace) -> tuple[float, int]:
    """Write the input once; return MB/s and the number of objects."""
    vars(transport)["IO_POOL"] = InlinePool() if case == "switched off" else IO_POOL
    config = ProducerConfig(max_request_size_bytes=options.request_mib * MIB, max_in_flight=CASES[case])
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        brokers, plan = make_store(
            Path(folder), roots=options.roots, partitions=options.partitions, compression="none", fsync=False
        )
        slow = SlowBrokers(brokers, options.put_ms)
        writer = TaskWriter(plan, config, slow, query_id="0" * 32, batch_id=0, task_id=0, default_topic=TOPIC)
        written = 0
        start = time.perf_counter()
        while written < options.mib * MIB:
            writer.append(read_input(stream))
            written += len(stream)
        result = writer.close()
        return written / 1e6 / (time.perf_counter() - start), len(result.objects)


def main() -> None:
    """Print medians as one JSON line; fail where overlapping is worth less than its aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--put-ms", type=float, default=20)
    parser.add_argument("--request-mib", type=int, default=1)
    parser.add_argument("--roots", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where the store is made")
    options = parser.parse_args()
    stream = make_input(10_000, 100, keyed=True)
    run("overlapped", stream, options)
    results: dict[str, list[tuple[float, int]]] = {case: [] for case in CASES}
    for _ in range(options.rounds):
        for case in CASES:
            results[case].append(run(case, stream, options))
    rates = {case: round(statistics.median(rate for rate, _ in runs)) for case, runs in results.items()}
    ratio = rates["overlapped"] / rates["switched off"]
    objects = {case: runs[0][1] for case, runs in results.items()}
    print(json.dumps({"mb_per_s": rates, "objects": objects, "ratio": round(ratio, 2), "aim": AIM}))
    sys.exit(0 if ratio >= AIM else 1)


if __name__ == "__main__":
    main()
