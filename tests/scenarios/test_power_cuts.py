"""Power cuts: what a reader has read, a writer was told and a replay answered is there afterwards, at its offsets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from spark_replog.cli.main import run
from spark_replog.client.store import Store
from spark_replog.client.topic_copy import TopicCopy
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.storage.paths import journal_folder
from tests.power_cuts import PowerCuts, draw, loses_all
from tests.scenarios.conftest import FAST, LocalStore

CUTS_PER_STORE = 10
ALL = frozenset({0, 1, 2})


def process(path: Path) -> Store:
    """Return a store as a new process opens it."""
    return Store(Cluster.open(str(path)))


def write(store: Store, *values: bytes) -> dict[int, bytes]:
    """Return the rows at the offsets that the writer was told."""
    with store.producer() as producer:
        sent = [(value, producer.send("orders", value)) for value in values]
        return {handle.result(60).offset: value for value, handle in sent}


def read(store: Store) -> dict[int, bytes | None]:
    """Return all rows that a consumer gets, by offset."""
    table = store.topic("orders").scan().to_arrow()
    offsets, values = table["offset"].to_pylist(), table["value"].to_pylist()
    assert offsets == list(range(len(offsets)))
    return dict(zip(offsets, values, strict=True))


def new_store(path: Path) -> Path:
    """Return the folder of a new store of three roots with one topic."""
    init_cluster(str(path), 3)
    process(path).admin().create_topic("orders", partitions=1, replicas=3)
    return path


@contextmanager
def stopped_in_the_flush(
    cuts: PowerCuts, store: Cluster, work: Callable[[], object], roots: Collection[int] = ALL, *, first: int = 0
) -> Iterator[threading.Thread]:
    """Let a thread work until it stops between link and flush of a record, from a position on, on these roots."""
    ledger_id = store.lookup("orders").ledger_id
    ends = tuple(f"/broker-{broker_id}/{journal_folder(ledger_id)}".rstrip("/") for broker_id in roots)
    before = cuts.stopped
    cuts.stops = lambda folder, name: folder.endswith(ends) and int(name) >= first
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    with cuts.changed:
        assert cuts.changed.wait_for(lambda: cuts.stopped == before + len(roots), 60)
    try:
        yield thread
    finally:
        cuts.go_on()  # in the old folder, where it harms nothing
        thread.join()


@pytest.mark.guarantee("G2")
def test_a_row_that_a_reader_got_stays_at_its_offset(tmp_path, power_cuts):
    path = new_store(tmp_path / "store")
    writer = process(path)
    write(writer, b"zero")
    with stopped_in_the_flush(power_cuts, writer.cluster, lambda: write(writer, b"one")):
        seen = read(process(path))
        assert seen == {0: b"zero", 1: b"one"}, "its reader flushes it"
        power_cuts.cut(path, tmp_path / "cut", loses_all)
    told = write(process(tmp_path / "cut"), b"two")
    after = read(process(tmp_path / "cut"))
    assert after == {0: b"zero", 1: b"one", 2: b"two"}
    assert told == {2: b"two"}


@pytest.mark.guarantee("G3")
def test_a_micro_batch_that_a_replay_found_is_not_lost(tmp_path, power_cuts):
    path = new_store(tmp_path / "store")
    first = LocalStore(path, FAST)
    first.append("orders", {0: 3}, batch=0)
    with stopped_in_the_flush(power_cuts, first.cluster, lambda: first.append("orders", {0: 2}, batch=1)):
        LocalStore(path, FAST).append("orders", {0: 2}, batch=1, run="run-2")  # no error: Spark writes commits/1
        power_cuts.cut(path, tmp_path / "cut", loses_all)
    assert LocalStore(tmp_path / "cut", FAST).high_watermarks("orders") == [5]


def test_a_copy_tells_only_what_stays(tmp_path, power_cuts, capsys):
    source, target = new_store(tmp_path / "source"), new_store(tmp_path / "target")
    write(process(source), *(b"%d" % number for number in range(20)))
    other = process(target)
    journal = target / "broker-0" / journal_folder(other.cluster.lookup("orders").ledger_id)
    entry_no = len(list(journal.glob("0*"))) + 1  # after the copy's claim

    def copy() -> None:
        job = TopicCopy(process(source).cluster, "orders", process(target).cluster, "orders")
        job.run(job.plan(dict.fromkeys(job.keys, 0), dict.fromkeys(job.keys, 20)))

    words = ["-s", str(source), "copy", "orders", "orders", "--to-store", str(target), "-f", "json"]
    with stopped_in_the_flush(power_cuts, other.cluster, copy, first=entry_no):
        assert run(words) == 0
        power_cuts.cut(target, tmp_path / "cut", loses_all)
    assert json.loads(capsys.readouterr().out)["items"][0]["position"] == 20
    assert len(read(process(tmp_path / "cut"))) == 20


def write_and_cut(cuts: PowerCuts, number: int, path: Path, writer: Store, target: Path) -> dict[int, bytes | None]:
    """Let a writer stop in a flush, read, and cut the power; return the rows that someone was told of or read."""
    rng = Random(number)
    told = dict[int, bytes]()
    if rng.random() < 0.8:  # else it stops in its claim, or it has claimed before
        told |= write(writer, b"%d before" % number)
    roots = rng.sample(sorted(ALL), rng.choice((1, 2, 3, 3)))

    def work() -> None:
        told.update(write(writer, b"%d in the flush" % number))

    with stopped_in_the_flush(cuts, writer.cluster, work, roots) as thread:
        if len(roots) == 1:
            thread.join()
        rows = told | read(process(path))
        hit = ALL if rng.random() < 0.7 else {rng.choice(sorted(ALL))}
        cuts.cut(path, target, draw(rng, {f"broker-{broker_id}" for broker_id in hit}, rng.choice((0, 0.5))))
    return rows


@pytest.mark.guarantee("G2", "G3")
def test_power_cuts_give_no_offset_another_row(request, tmp_path, power_cuts):
    """``--power-cuts`` sets how many; they hit all roots at once or one of them."""
    path, rows = tmp_path, dict[int, bytes | None]()
    for number in range(request.config.getoption("--power-cuts")):
        if number % CUTS_PER_STORE == 0:
            path, rows = new_store(tmp_path / f"store-{number}"), {}
            writer = process(path)
        cut = tmp_path / f"cut-{number}"
        rows |= write_and_cut(power_cuts, number, path, writer, cut)
        path, writer = cut, process(cut)
        if number % 2:
            rows |= write(writer, b"%d after" % number)
        rows_read = read(writer)
        assert rows.items() <= rows_read.items(), f"power cut {number}"
        assert not list(path.rglob("out")), "no root went back in time for the others"
        rows = rows_read
