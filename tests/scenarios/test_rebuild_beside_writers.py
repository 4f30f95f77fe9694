"""Roots are emptied and rebuilt, by one repair or two at once, beside writers: no journal is called corrupt."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pytest

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ReplogError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import IsrChange
from spark_replog.maintenance.journal_scrub import JournalFault, scrub_journals
from spark_replog.maintenance.repair import StoreRepair
from spark_replog.storage.paths import journal_folder, ledger_folders
from tests.scenarios.repairing import fill, read_all

ROUNDS = int(os.environ.get("REPLOG_REBUILD_ROUNDS", "2"))


def empty(store, broker_id, number):
    """Replace the root's content by nothing while processes have the store open."""
    root = store.path / f"broker-{broker_id}"
    (root / "replog.json").unlink()
    (root / "ledgers").rename(store.path / f"gone-{number}")


class Writers:
    """Threads that append as processes of their own would, until they are stopped."""

    def __init__(self, store, count):
        self.stop = threading.Event()
        self.written = [0] * count
        self.errors = []
        self._threads = [threading.Thread(target=self._run, args=(store, number)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, store, number):
        writer = type(store)(store.path, store.config)
        batch = 0
        while not self.stop.is_set():
            try:
                response = writer.append("orders", {0: 2, 1: 3}, batch=batch, query=f"q{number}", timeout_ms=5000)
            except ReplogError:
                self.stop.wait(0.01)  # a root went while its data was put; the same batch again
                continue
            except BaseException as error:
                self.errors.append(error)
                raise
            if response.error is None:
                batch += 1
                self.written[number] = batch

    def end(self):
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads) and not self.errors


def repairs_at_once(store, count, **more):
    def run():
        with suppress(ReplogError):  # the other repair is ahead; it is repeated below
            StoreRepair(Cluster.open(str(store.path), config=store.config), **more).run()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("repair_count", [1, pytest.param(2, marks=pytest.mark.wide)])
def test_a_rebuilt_journal_is_never_called_corrupt(store, repair_count):
    store.create("orders", 2)
    writers = Writers(store, 2)
    try:
        for number in range(ROUNDS):
            broker_id = number % 3
            threading.Event().wait(0.2)
            empty(store, broker_id, number)
            threading.Event().wait(0.05 * (number % 4))
            repairs_at_once(store, repair_count)
            report = StoreRepair(Cluster.open(str(store.path), config=store.config)).run()
            assert all(root.is_repaired for root in report.roots.values()), report.roots
            check_journals(store)
    finally:
        writers.end()
    check_journals(store)
    store.reopen()
    assert read_all(store) >= 5 * sum(writers.written)


@pytest.mark.parametrize("batches_before", [1, 4])
def test_a_writer_that_knows_the_old_journal_leaves_the_new_one_alone(store, batches_before):
    """Its creates would succeed at the old positions, each with a newer claim, and the rebuild would begin again."""
    store.create("orders", 2)
    fill(store, 0, batches_before)
    ledger_id = store.cluster.lookup("orders").ledger_id
    empty(store, 0, 0)
    root = store.path / "broker-0"
    for folder in ledger_folders(ledger_id):
        (root / folder).mkdir(parents=True)
    repair = StoreRepair(Cluster.open(str(store.path), config=store.config))
    leave = encode_command(IsrChange(None, 0, False, 1))
    repair._ledger_without(0, ledger_id, TopicLedgerState(ledger_id)).append(lambda _: leave, timeout_ms=10_000)
    fill(store, batches_before, 5, holders=frozenset({1, 2}))
    # One record may be on its way before the writer learns of the claim.
    assert len(list((root / journal_folder(ledger_id)).iterdir())) <= 1


def check_journals(store):
    report = scrub_journals(Cluster.open(str(store.path), config=store.config))
    wrong = [finding for finding in report.findings if finding.fault is not JournalFault.UNREACHABLE]
    assert not wrong, wrong
