"""The journals of a rebuilt root: what it may have promised binds it, whoever comes late."""

from __future__ import annotations

import shutil
import threading

import pytest

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.journal_rebuild import POSITIONS_PER_ROOT
from spark_replog.ledger.proposer import Proposer
from spark_replog.ledger.reader import REBUILD_ROUND_STEP
from spark_replog.ledger.record import LastKnown, genesis_hash
from spark_replog.ledger.shell_io import newest_marker
from spark_replog.ledger.snapshot_files import JournalPoint, decode_marker
from spark_replog.log.fold import frozen_topics, paged_table
from spark_replog.maintenance.journal_scrub import scrub_journals
from spark_replog.maintenance.repair import StoreRepair
from spark_replog.storage.paths import (
    REBUILD_KEY,
    ROOT_FILE_KEY,
    journal_folder,
    marker_folder,
    out_key,
    page_folder,
    snapshot_folder,
)
from spark_replog.storage.root_file import decode_root_file, encode_rebuild
from tests.at_rest import wait_at_rest
from tests.scenarios.repairing import fill, lose, read_all, repair
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_tail_retry")


@pytest.mark.parametrize("is_named", [True, False])
def test_a_damaged_journal_is_written_anew(store, is_named) -> None:
    """After what other roots name of it, and after its last bad record, which none of them may name."""
    store.create("orders", 2)
    fill(store, 0, 3)
    folder = store.path / "broker-1" / journal_folder(store.cluster.lookup("orders").ledger_id)
    wait_at_rest(store.cluster.brokers)
    records = sorted(folder.iterdir())
    record = records[1 if is_named else -1]
    (folder / f"{len(records):020d}").write_bytes(record.read_bytes())  # so that it is no torn end
    record.chmod(0o644)
    record.write_bytes(b"?" * 80)
    report = repair(store)
    assert report.roots[1].is_repaired and report.roots[1].journal_records
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).findings == []
    lose(store, 2)
    store.reopen()
    assert read_all(store) == 15
    fill(store, 3, 1, holders={0, 1})


def test_a_damaged_snapshot_is_not_copied_to_a_rebuilt_root_where_another_is_whole(store, monkeypatch) -> None:
    monkeypatch.setattr(paged_table, "PAGE_ROWS", 4)
    for module in (paged_table, frozen_topics):
        monkeypatch.setattr(module, "FLUSH_ROWS", 3)
    store.create("orders", 2)
    fill(store, 0, 3)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    ledger.snapshot(timeout_ms=30_000)
    whole = {}
    for folder in (snapshot_folder(ledger.ledger_id), page_folder(ledger.ledger_id)):
        files = [path for path in (store.path / "broker-0" / folder).rglob("*") if path.is_file()]
        assert files
        for file in files:
            whole[file.relative_to(store.path / "broker-0")] = file.read_bytes()
            file.chmod(0o644)
            file.write_bytes(b"?" * file.stat().st_size)
    lose(store, 2)
    assert repair(store).roots[2].is_repaired
    assert {name: (store.path / "broker-2" / name).read_bytes() for name in whole} == whole
    lose(store, 1)  # the only one that had them whole before
    store.reopen()
    assert read_all(store) == 15


def test_what_a_rebuild_writes_does_not_grow_with_the_journal(store) -> None:
    """The entries behind the snapshot, and some padding; not one record for each position of the old journal."""
    store.create("orders", 2)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    records = []
    for number in range(4):
        fill(store, 20 * number, 20)
        ledger.snapshot(timeout_ms=60_000)
        lose(store, 1)
        records.append(repair(store).roots[1].journal_records)
    assert max(records) <= 60, records


def test_a_process_that_knew_the_old_journal_reads_on_behind_it(store) -> None:
    # Its view of the lost root ends at a position; the new journal begins after that, and its marker says so.
    store.create("orders", 2)
    fill(store, 0, 6)
    handle = store.cluster.lookup("orders")
    folder = store.path / "broker-1" / journal_folder(handle.ledger_id)
    wait_at_rest(store.cluster.brokers)
    length = len(list(folder.iterdir()))
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    first, *others = positions = sorted(int(path.name) for path in folder.iterdir())
    assert others == list(range(first + 1, first + len(positions)))
    assert first > length
    fill(store, 6, 3)  # the same process, which never saw the root go
    wait_at_rest(store.cluster.brokers)
    positions = sorted(slot for path in folder.iterdir() if (slot := int(path.name)) >= first)  # a late create is below
    assert positions == list(range(first, first + len(positions)))
    store.away(0)
    store.reopen()
    assert store.high_watermarks("orders") == [18, 27]


def test_the_rebuilder_claims_far_above_every_promise_that_was_lost(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 1)
    lose(store, 1)
    repair(store)
    store.reopen()
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)

    def is_far_above() -> bool:
        """Return what holds once all roots were read: a late one is not waited for."""
        ledger.refresh()
        views = ledger.core.prefix.views
        return all(view.promised.round >= REBUILD_ROUND_STEP for view in views) and views[1].commit_index >= 0

    wait_until(is_far_above)


class GatedStore:
    """A root whose journal creates wait at a gate."""

    def __init__(self, store) -> None:
        self.store, self.url = store, store.url
        self.gate, self.waiting = threading.Event(), threading.Event()

    def __getattr__(self, name: str):
        return getattr(self.store, name)

    def create(self, key, data, *, make_parent: bool = False):
        if "/journal/" in key:
            self.waiting.set()
            assert self.gate.wait(60)
        return self.store.create(key, data, make_parent=make_parent)


@pytest.mark.parametrize("entries_between", [0, 2])
def test_a_claim_that_only_the_lost_root_had_taken_decides_nothing_old(store, entries_between: int) -> None:
    # A process has the lost root's promise and is about to ask the others. The rebuilt root knows nothing of that
    # promise; if it voted for a lower epoch, two values could be decided for one index. It votes far above.
    store.create("orders", 2)
    fill(store, 0, 3)
    slow = type(store)(store.path, store.config)
    gated = {broker: GatedStore(slow.cluster.brokers.store(broker)) for broker in (0, 2)}
    slow.cluster.brokers.stores.update(gated)  # type: ignore[arg-type]
    slow.cluster.lookup("orders")
    slow.cluster.topic_ledger(slow.cluster.lookup("orders").ledger_id).refresh()
    objects = (slow.put("orders", {0: 2, 1: 3}, {0, 2}),)
    folder = store.path / "broker-1" / journal_folder(store.cluster.lookup("orders").ledger_id)
    before = len(list(folder.iterdir()))
    answers: list = []
    claiming = threading.Thread(
        target=lambda: answers.append(slow.append("orders", {}, batch=0, objects=objects, query="slow"))
    )
    claiming.start()
    assert all(gated_store.waiting.wait(60) for gated_store in gated.values())
    wait_until(lambda: len(list(folder.iterdir())) != before, "the claim is on the root that goes")
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    fill(store, 3, entries_between)
    for root_store in gated.values():
        root_store.gate.set()
    claiming.join(60)
    assert not claiming.is_alive()
    response = answers[0]
    if response.error is not None:  # whatever it was told, its replay settles it
        slow.reopen()
        response = slow.append("orders", {}, batch=0, objects=objects, query="slow")
        assert response.error is None, response.error
    rows = 5 * (4 + entries_between)
    folds = []
    for gone in range(3):
        store.away(gone)
        store.reopen()
        ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
        ledger.refresh()
        folds.append(ledger.core.prefix.hashes)
        assert read_all(store) == rows
        store.back(gone)
    # The hash of an entry is chained to all before it.
    last = min(max(fold) for fold in folds)
    assert folds[0][last] == folds[1][last] == folds[2][last]


def test_the_journal_of_a_named_ledger_is_rebuilt_though_it_has_no_topic_now(store) -> None:
    store.create("orders", 2, ledger_name="sales")
    fill(store, 0, 3)
    ledger_id = store.cluster.lookup("orders").ledger_id
    store.away(2)
    store.controller.delete_topic("orders")  # decided by brokers 0 and 1
    store.back(2)
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    lose(store, 0)  # broker 2 never heard of the deletion, so the rebuilt root has to say it
    state = Cluster.open(str(store.path), config=store.config).topic_ledger(ledger_id).refresh()
    assert [topic.closed for topic in state.topics.values()] == [True]


@pytest.mark.parametrize("failing", [{0}, {3}, {8, 9, 12}, {13}, {20, 22}])
@pytest.mark.usefixtures("without_snapshots")
def test_a_repair_that_died_between_creates_leaves_no_gap_and_no_falling_epoch(store, failing: set[int]) -> None:
    class Died(Exception):
        """The process ends, and creates that ran beside this one arrive."""

    store.create("orders", 2)
    fill(store, 0, 20)
    lose(store, 1)
    cluster = Cluster.open(str(store.path), config=store.config)
    ledger_id = store.cluster.lookup("orders").ledger_id
    target, folder = cluster.brokers.store(1), journal_folder(ledger_id)
    keys: set[str] = set()

    class DyingStore:
        url = target.url

        def __getattr__(self, name: str):
            return getattr(target, name)

        def create(self, key, data, *, make_parent: bool = False):
            if key.startswith(marker_folder(ledger_id)):
                first = decode_marker(data, genesis=genesis_hash(ledger_id), where=key).position
                keys.update(f"{folder}{first + position:020d}" for position in failing)
            if key in keys:
                raise Died
            return target.create(key, data, make_parent=make_parent)

    cluster.brokers.stores[1] = DyingStore()  # type: ignore[assignment]
    with pytest.raises(Died):
        StoreRepair(cluster).run()
    assert repair(store).roots[1].is_repaired
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).findings == []
    lose(store, 0)
    store.reopen()
    assert read_all(store) == 100


def test_a_rebuilt_journal_is_longer_than_the_lost_one_whoever_wrote_the_snapshot(store) -> None:
    """A process that began while the root was away knows less of its journal, and so does its snapshot."""
    store.create("orders", 2)
    ledger_id = store.cluster.lookup("orders").ledger_id
    fill(store, 0, 20)
    store.cluster.topic_ledger(ledger_id).snapshot(timeout_ms=60_000)
    fill(store, 20, 20)  # records of these name how long the lost journal was
    wait_at_rest(store.cluster.brokers)
    sleeper, manager = store.cluster, store.manager
    length = 1 + max(int(path.name) for path in (store.path / "broker-1" / journal_folder(ledger_id)).iterdir())
    lose(store, 1)
    store.reopen()
    fill(store, 40, 3, holders={0, 2})
    store.cluster.topic_ledger(ledger_id).snapshot(timeout_ms=60_000)
    store.reopen()  # it knows the newest snapshot only
    assert repair(store).roots[1].is_repaired
    first = min(int(path.name) for path in (store.path / "broker-1" / journal_folder(ledger_id)).iterdir())
    assert first > length
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).findings == []
    store.away(2)
    store.cluster, store.manager = sleeper, manager
    fill(store, 43, 2, holders={0, 1})
    assert not (store.path / "broker-1" / out_key(ledger_id)).exists()
    store.reopen()
    fill(store, 45, 1, holders={0, 1})


def test_a_second_rebuild_is_noticed_although_it_puts_fewer_markers(store) -> None:
    """The one who rebuilds knows the journal before the first rebuild, from a snapshot, and so puts as many markers."""
    store.create("orders", 2)
    fill(store, 0, 20)
    store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id).snapshot(timeout_ms=60_000)
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    store.reopen()
    fill(store, 20, 2)
    sleeper = type(store)(store.path, store.config)
    sleeper.cluster.topic_state(sleeper.cluster.lookup("orders"))
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    store.away(2)
    fill(sleeper, 22, 2, holders={0, 1})
    assert read_all(sleeper) == 120


def test_a_journal_begins_after_one_that_the_writer_of_the_snapshot_never_read(store) -> None:
    """A process that knew the first journal writes the newest snapshot while the second journal is away."""
    store.create("orders", 2)
    ledger_id = store.cluster.lookup("orders").ledger_id
    fill(store, 0, 20)
    wait_at_rest(store.cluster.brokers)
    early = store.cluster.topic_ledger(ledger_id)
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    store.reopen()
    fill(store, 20, 5)
    store.cluster.topic_ledger(ledger_id).snapshot(timeout_ms=60_000)
    fill(store, 25, 5)
    wait_at_rest(store.cluster.brokers)
    sleeper = store.cluster, store.manager
    store.away(1)
    early.refresh()
    early.snapshot(timeout_ms=60_000)
    shutil.rmtree(store.path / "broker-1.away")
    assert repair(store).roots[1].is_repaired
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).findings == []
    store.away(2)
    store.cluster, store.manager = sleeper
    fill(store, 30, 2, holders={0, 1})
    assert not (store.path / "broker-1" / out_key(ledger_id)).exists()


def test_a_journal_begins_above_all_that_names_the_one_before_it(store, monkeypatch) -> None:
    """Also where its rebuilder knows none of these names: who wrote last had not seen the journal before it."""
    store.create("orders", 2)
    ledger_id = store.cluster.lookup("orders").ledger_id
    folder = store.path / "broker-1" / journal_folder(ledger_id)
    fill(store, 0, 20)
    wait_at_rest(store.cluster.brokers)
    ledger = store.cluster.topic_ledger(ledger_id)
    ledger.refresh()
    first_points = ledger.core.points_at(ledger.state.applied_index)
    first_known, ends = ledger.core.proposer._known(), [len(list(folder.iterdir()))]
    real_points, real_known = LedgerCore.points_at, Proposer._known

    def stale_points(core: LedgerCore, index: int) -> list[JournalPoint]:
        return [first_points[1] if root == 1 else point for root, point in enumerate(real_points(core, index))]

    def stale_known(proposer: Proposer) -> tuple[LastKnown, ...]:
        return tuple(first_known[1] if root == 1 else record for root, record in enumerate(real_known(proposer)))

    for number in range(2):
        lose(store, 1)
        assert repair(store).roots[1].is_repaired
        positions = {int(path.name) for path in folder.iterdir()}
        assert min(positions) > ends[-1]
        store.reopen()
        fill(store, 20 + 30 * number, 30)
        wait_at_rest(store.cluster.brokers)
        ends.append(max(int(path.name) for path in folder.iterdir()))
        sleeper = store.cluster, store.manager
        with monkeypatch.context() as patch:
            patch.setattr(LedgerCore, "points_at", stale_points)
            patch.setattr(Proposer, "_known", stale_known)
            store.cluster.topic_ledger(ledger_id).snapshot(timeout_ms=60_000)
        store.reopen()
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).findings == []
    assert min(int(path.name) for path in folder.iterdir()) > ends[-1]
    store.away(2)
    store.cluster, store.manager = sleeper
    fill(store, 80, 2, holders={0, 1})
    assert not (store.path / "broker-1" / out_key(ledger_id)).exists()


def test_a_repair_that_died_is_continued_and_the_next_loss_makes_another_root(store, monkeypatch) -> None:
    store.create("orders", 2)
    folder = store.path / "broker-1" / journal_folder(store.cluster.lookup("orders").ledger_id)
    fill(store, 0, 3)
    lose(store, 1)
    firsts = []

    def end() -> None:
        raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "it ends before the root file is written.")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(StoreRepair, "_write_root_file", lambda *_: end())
            assert not repair(store).roots[1].is_repaired
        firsts.append(min(int(path.name) for path in folder.iterdir()))
    assert (store.path / "broker-1" / REBUILD_KEY).exists()
    assert repair(store).roots[1].is_repaired
    assert not (store.path / "broker-1" / REBUILD_KEY).exists()
    firsts.append(min(int(path.name) for path in folder.iterdir()))
    assert len(set(firsts)) == 1
    made = (store.path / "broker-1" / ROOT_FILE_KEY).read_bytes()
    (store.path / "broker-1" / REBUILD_KEY).write_bytes(encode_rebuild(decode_root_file(made, url="").root_id))
    assert repair(store, rebuild=frozenset({1})).roots[1].is_repaired
    newest = newest_marker(store.cluster.lookup("orders").ledger_id, store.cluster.brokers.store(1))
    assert newest[0].position >= firsts[0] + POSITIONS_PER_ROOT
