"""A typed topic into a Delta or Iceberg table: rows a second of a backlog, and the lag of rows that come meanwhile.

    python -m benchmarks.table_sync [--rows 1000000] [--rounds 3] [--format delta] [--every 5] [--seconds 60]

Ten columns: numbers, a decimal, text, a time, a boolean, a list, a struct. Two floors run in turn with the sync: the
scan that it makes, and the format's library alone, which appends the same rows from memory in one commit. Then 1,000
rows a second are sent for some seconds while ``table sync --every`` runs: the lag of a row is from its time to the end
of the round that wrote it. Processor time is of this process, so it counts on a busy machine too.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import spark_replog
from benchmarks.bench_session import scratch
from spark_replog.client.store import Store
from spark_replog.tables.table_sync import SyncReport, TableSync

TOPIC = "orders"
PARTITIONS = 6
SEND_ROWS = 100_000
"""Rows of one object: a micro-batch of a busy query."""
TICK_MS = 100


def ten_columns(count: int, first: int = 0) -> pa.Table:
    """Return rows of ten columns."""
    rng = np.random.default_rng(7 + first)
    ids = np.arange(first, first + count)
    tags = pa.array(np.char.add("tag-", (np.arange(2 * count) % 50).astype(str)))
    return pa.table(
        {
            "id": ids,
            "customer": rng.integers(0, 100_000, count),
            "quantity": rng.integers(1, 20, count).astype(np.int32),
            "price": rng.random(count) * 100,
            "amount": pa.array(rng.integers(0, 10**7, count)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)),
            "region": pa.array(np.char.add("region-", (ids % 20).astype(str))),
            "at": pa.array(1_700_000_000_000_000 + ids * 1000, pa.timestamp("us", "UTC")),
            "paid": pa.array(ids % 3 == 0),
            "tags": pa.ListArray.from_arrays(pa.array(np.arange(0, 2 * count + 1, 2), pa.int32()), tags),
            "place": pa.StructArray.from_arrays([rng.random(count), rng.random(count)], ["x", "y"]),
        }
    )


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of wall and of processor time."""
    wall, used = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - used


def filled_store(folder: Path, count: int) -> Store:
    """Return a store of one root whose topic has this many rows."""
    folder.mkdir()
    store = spark_replog.init(str(folder / "store"), 1)
    store.admin().create_topic(TOPIC, PARTITIONS, schema=ten_columns(1).schema, key="id")
    with store.producer() as producer:
        for first in range(0, count, SEND_ROWS):
            producer.send_arrow(TOPIC, ten_columns(min(SEND_ROWS, count - first), first)).result()
    return store


def target_of(kind: str, folder: Path, name: str) -> tuple[str, dict[str, str]]:
    """Return how the sync names a table in a folder, and its options."""
    if kind == "delta":
        return f"delta:{folder / name}", {}
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return f"iceberg:bench.bench.{name}", catalog


def written_alone(kind: str, folder: Path, name: str, rows: pa.Table) -> None:
    """Append rows to a new table with the format's own library."""
    if kind == "delta":
        import deltalake

        deltalake.write_deltalake(folder / name, rows, mode="append")
        return
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("bench", **target_of(kind, folder, name)[1])
    catalog.create_namespace_if_not_exists("bench")
    catalog.create_table(("bench", name), rows.schema).append(rows)


def backlog(kind: str, folder: Path, count: int, rounds: int) -> None:
    """Print rows a second of the sync and of its floors."""
    store, rows = filled_store(folder, count), ten_columns(count)
    cases: dict[str, Callable[[int], object]] = {
        "table sync": lambda number: spark_replog.sync_table(
            store.path, TOPIC, target_of(kind, folder, f"synced{number}")[0],
            table_options=target_of(kind, folder, "")[1],
        ),
        "scan only": lambda _: [batch.num_rows for batch in store.topic(TOPIC).scan().to_batches()],
        "library only": lambda number: written_alone(kind, folder, f"alone{number}", rows),
    }  # fmt: skip
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            figures[name].append(timed(lambda case=case, number=number: case(number)))  # type: ignore[misc]
    print(f"| {kind}, {count:,} rows of ten columns | rows/s | processor s a million rows |\n| --- | --- | --- |")
    for name, pairs in figures.items():
        wall, used = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {count / wall:,.0f} | {used * 1e6 / count:.2f} |")


def lag(kind: str, folder: Path, every_s: float, seconds: float) -> None:
    """Print how long rows take that come at 1,000 a second."""
    store = filled_store(folder, 0)
    target, options = target_of(kind, folder, "live")
    job = TableSync(store.cluster, TOPIC, target, provenance=True, table_options=options)
    rounds: list[tuple[float, SyncReport]] = []
    is_over = threading.Event()
    runner = threading.Thread(
        target=job.run,
        args=(int(every_s * 1000), is_over.is_set, lambda report: rounds.append((time.time() * 1000, report))),
    )
    runner.start()
    with store.producer() as producer:
        began, sent = time.monotonic(), 0
        while sent < seconds * 1000:
            producer.send_arrow(TOPIC, ten_columns(TICK_MS, sent))
            sent += TICK_MS
            time.sleep(max(0.0, began + sent / 1000 - time.monotonic()))
        producer.flush()
    synced = len(rounds) + 2  # a round that began after the last row
    while len(rounds) < synced:
        time.sleep(0.05)
    is_over.set()
    runner.join()
    table = job_rows(kind, folder)
    print(f"| {kind}, 1,000 rows/s, --every {every_s:g}s | {_words(table, rounds)} |")


def job_rows(kind: str, folder: Path) -> pa.Table:
    """Return where the rows of the live table come from."""
    columns = ["_partition", "_offset", "_timestamp"]
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(folder / "live").to_pyarrow_table(columns=columns)
    from pyiceberg.catalog import load_catalog

    table = load_catalog("bench", **target_of(kind, folder, "live")[1]).load_table(("bench", "live"))
    return table.scan(selected_fields=tuple(columns)).to_arrow()


def _words(table: pa.Table, rounds: list[tuple[float, SyncReport]]) -> str:
    ages: list[np.ndarray] = []
    times = np.array([at for at, _ in rounds])
    partitions, offsets = table.column("_partition").to_numpy(), table.column("_offset").to_numpy()
    stamps = table.column("_timestamp").to_numpy().astype("datetime64[ms]").astype(np.int64)
    for number in range(PARTITIONS):
        is_here = partitions == number
        reached = np.array([report.positions.get(number, 0) for _, report in rounds])
        ages.append(times[np.searchsorted(reached, offsets[is_here], side="right")] - stamps[is_here])
    lags = np.concatenate(ages) / 1000
    commits = sum(report.commit_count for _, report in rounds)
    median, most = np.median(lags), lags.max()
    return f"lag median {median:.1f} s, most {most:.1f} s, {len(lags):,} rows in {commits} commits"


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=("delta", "iceberg"), default="delta")
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dir", default=None)
    given = parser.parse_args()
    with scratch(given.dir) as folder:
        backlog(given.format, folder / "backlog", given.rows, given.rounds)
    with scratch(given.dir) as folder:
        lag(given.format, folder / "lag", given.every, given.seconds)


if __name__ == "__main__":
    main()
