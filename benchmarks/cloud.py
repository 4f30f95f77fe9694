"""What replog adds to a cloud client's own calls, on real servers on this machine's loopback.

    python -m benchmarks.cloud --server versitygw
    python -m benchmarks.cloud --server minio --delay-ms 20
    python -m benchmarks.cloud --server minio --connection-mb-s 50

Puts and ranged gets: those of fsspec's client, and those of replog's store of the root over it, of the
same sizes, on as many threads, in turns. With `--delay-ms` a relay adds that to each call; then times are told in
calls: one is a plain ranged get. `doctor` also starts the python3 that is first on the PATH, beside its calls: if that
one has pyspark and this package, their imports take longer than the calls. With `--connection-mb-s` a relay passes on
so many MB/s of EACH connection, and large data objects are created in one request and in parts, in turns; 0: without a
relay. Servers are those of the tests (docs/storage.md).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

from benchmarks.bench_session import scratch
from benchmarks.delay_relay import DelayRelay
from benchmarks.limited_relay import LimitedRelay
from spark_replog.client.store import Store
from spark_replog.cluster.cluster import Cluster
from spark_replog.storage.brokers import INIT_DEADLINE_MS
from spark_replog.storage.fsspec_store import FsspecStore
from spark_replog.storage.open_store import open_store
from spark_replog.storage.retrying_store import RetryingStore
from tests.servers.server import Azurite, FakeGcs, Minio, Server, VersityGateway
from tests.servers.stores import RealRoots

KINDS = {kind.name: kind for kind in (VersityGateway, Minio, FakeGcs, Azurite)}
THREADS = 8
WHOSE = ("fsspec", "replog over fsspec")
_names = itertools.count()


def _rate(call: Callable[[int], Any], count: int, size_bytes: int) -> float:
    """Return the MB/s of ``count`` calls on `THREADS` threads."""
    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, range(count)))
    return count * size_bytes / (time.perf_counter() - started) / 1e6


def rates(server: Server, *, rounds: int) -> Iterator[tuple[str, int, Sequence[list[float]]]]:
    """Yield (what, size, MB/s of each of `WHOSE`), a number a round; none where there is no such client."""
    url = server.new_root("bench")
    store = RetryingStore(open_store(url, server.options()), deadline_ms=INIT_DEADLINE_MS)
    client, root = server.file_system(url.split("/")[2]), url.partition("://")[2]
    for size_bytes, count in ((4 << 10, 200), (1 << 20, 64), (8 << 20, 16)):
        told: dict[str, list[list[float]]] = {what: [[] for _ in WHOSE] for what in ("put", "get")}
        for _ in range(rounds):
            for what, who, call in _calls(client, root, store, size_bytes):
                told[what][who].append(_rate(call, count, size_bytes))
        for what, speeds in told.items():
            yield what, size_bytes, speeds


def _create(store: Any, folder: str, body: bytes, number: int) -> None:
    store.create(f"{folder}/{number}", [body])


def _read(store: Any, folder: str, size_bytes: int, number: int) -> None:
    store.get(f"{folder}/{number}", size_bytes=size_bytes)


def _calls(client: Any, root: str, store: Any, size_bytes: int) -> list[tuple[str, int, Callable[[int], Any]]]:
    """Return (what, whose, call of the object's number) over new names."""
    body, turn = os.urandom(size_bytes), f"{next(_names)}"
    puts: list[tuple[str, int, Callable[[int], Any]]] = [
        ("put", 0, lambda n: client.pipe_file(f"{root}/p{turn}/{n}", body, mode="create"))
    ]
    gets: list[tuple[str, int, Callable[[int], Any]]] = [
        ("get", 0, lambda n: client.cat_file(f"{root}/p{turn}/{n}", start=0, end=size_bytes))
    ]
    puts.append(("put", 1, partial(_create, store, f"1{turn}", body)))
    gets.append(("get", 1, partial(_read, store, f"1{turn}", size_bytes)))
    return puts + gets


def _p50_ms(call: Callable[[], Any], count: int) -> float:
    times_ms = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times_ms)


def delayed(server: Server, delay_ms: float) -> Iterator[tuple[str, float, float]]:
    """Yield (what, p50 ms, calls' time) behind a relay that adds a round trip to each call."""
    with DelayRelay(server.port, delay_ms) as relay:
        roots = RealRoots.of(server, 3, ports=[relay.port] * 3)
        opened = roots.make("orders")
        raw = open_store(roots.path.split(",")[0], roots.options)
        call_ms = _p50_ms(lambda: raw.get("replog.json", size_bytes=4096), 30)
        yield "one ranged get", call_ms, 1.0

        def send_ms(store: Store, **settings: Any) -> float:
            with store.producer(acks="all", **settings) as producer:
                return _p50_ms(lambda: producer.send("orders", b"x" * 100, partition=0).result(timeout=60), 30)

        sent = send_ms(opened)
        yield "send().result(), acks=all, 3 roots", sent, sent / call_ms

        def cold() -> None:
            cluster = Cluster.open(roots.path, roots.options)
            cluster.topic_state(cluster.lookup("orders"))

        opening = _p50_ms(cold, 10)
        yield "cold open and one topic's state", opening, opening / call_ms
        for name in (("store", "info"), ("doctor",), ("store", "verify"), ("store", "repair", "--dry-run")):
            spent = _p50_ms(lambda name=name: roots.replog(*name), 3)  # type: ignore[misc]
            yield f"replog {' '.join(name)}", spent, spent / call_ms
        sent = send_ms(RealRoots.of(server, 3, ports=[relay.port] * 3).make("orders"), inline_max_bytes=0)
        yield "send().result() of rows in an object", sent, sent / call_ms


def in_parts(server: Server, connection_mb_s: float, *, rounds: int) -> Iterator[tuple[int, list[float], list[float]]]:
    """Yield (size, seconds of creates in one request, those in parts), a number a round."""
    with ExitStack() as stack:
        port = stack.enter_context(LimitedRelay(server.port, connection_mb_s)).port if connection_mb_s else server.port
        # Where a request takes longer than a client waits for its answer, what is measured is the wait.
        waits = {"config_kwargs": '{"read_timeout": 120}'} if server.scheme == "s3" else {"read_timeout": "120"}
        options = {**server.options(port), **waits}
        whole = cast(FsspecStore, open_store(server.new_root("bench"), options))
        whole.one_request_bytes_max = whole.size_bytes_max  # type: ignore[misc]
        parts = cast(FsspecStore, open_store(whole.url, options))
        for size_bytes in (64 << 20, 128 << 20, 256 << 20):
            body = os.urandom(size_bytes)
            spent: list[list[float]] = [[], []]
            for turn in range(2 * (rounds + 1)):
                key = f"ledgers/x/data/000000/{size_bytes}-{turn}"
                started = time.perf_counter()
                (whole, parts)[turn % 2].create(key, body)
                if turn > 1:  # the first round opens connections
                    spent[turn % 2].append(time.perf_counter() - started)
                whole.delete(key)
            yield size_bytes, spent[0], spent[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=KINDS, default="versitygw")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--connection-mb-s", type=float, help="one request beside parts, behind such connections")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base", help="folder of the server's data")
    given = parser.parse_args()
    with scratch(given.base) as folder, KINDS[given.server](Path(folder)) as server:
        if given.connection_mb_s is not None:
            print("| size | one request, s | in parts, s | times as fast |\n| --- | --- | --- | --- |")
            for size_bytes, *both in in_parts(server, given.connection_mb_s, rounds=given.rounds):
                one, many = map(statistics.median, both)
                print(f"| {size_bytes >> 20} MiB | {one:.2f} | {many:.2f} | {one / many:.1f} |", flush=True)
            return
        if given.delay_ms:
            print("| what | p50 ms | calls |\n| --- | --- | --- |")
            for what, spent, calls in delayed(server, given.delay_ms):
                print(f"| {what} | {spent:.1f} | {calls:.1f} |", flush=True)
            return
        print(f"| call | size | {' | '.join(f'{who}, MB/s' for who in WHOSE)} |\n| --- | --- |{' --- |' * len(WHOSE)}")
        for what, size_bytes, speeds in rates(server, rounds=given.rounds):
            cells = [f"{statistics.median(values):.1f}" if values else "" for values in speeds]
            print(f"| {what} | {size_bytes >> 10} KiB | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
