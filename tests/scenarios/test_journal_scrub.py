"""`replog store verify` and the journals: every fault is found on the root that has it, a busy store has none."""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_replog.admin.controller import Controller
from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ReplogError
from spark_replog.ledger.record import (
    Epoch,
    JournalRecord,
    RecordKind,
    decode_record,
    encode_record,
    entry_hash,
)
from spark_replog.ledger.snapshot_files import Floor, JournalPoint
from spark_replog.maintenance import journal_scrub
from spark_replog.maintenance.journal_scrub import JournalFault, JournalReport, ProvenPoints, scrub_journals
from spark_replog.storage.paths import journal_folder, journal_key, marker_folder, out_key, snapshot_folder
from spark_replog.storage.posix_store import PosixStore
from tests.at_rest import wait_at_rest
from tests.scenarios.committing import SMALL
from tests.scenarios.conftest import LocalStore
from tests.scenarios.repairing import fill, lose, repair
from tests.unit.ledger.snapshot_setup import store_and_die
from tests.waiting import wait_until


def verify(store: LocalStore) -> JournalReport:
    """As a process of its own would."""
    return scrub_journals(Cluster.open(str(store.path), config=store.config))


def journal(store: LocalStore, broker_id: int) -> list[Path]:
    """The records of the topic's journal on a root, once no create is under way."""
    wait_at_rest(store.cluster.brokers)
    folder = store.path / f"broker-{broker_id}" / journal_folder(store.cluster.lookup("orders").ledger_id)
    return sorted(folder.iterdir())


def altered(path: Path, **values: object) -> None:
    """Write the record again with a good checksum."""
    record = decode_record(path.read_bytes(), root="", position=0)
    path.write_bytes(encode_record(replace(record, **values)))  # type: ignore[arg-type]


def entries(store: LocalStore, broker_id: int) -> list[Path]:
    paths = journal(store, broker_id)
    kinds = [decode_record(path.read_bytes(), root="", position=0).kind for path in paths]
    return [path for path, kind in zip(paths, kinds, strict=True) if kind is RecordKind.ENTRY]


@pytest.fixture
def written(store: LocalStore) -> LocalStore:
    store.create("orders", 2)
    fill(store, 0, 4)
    return store


def faults_found(store: LocalStore) -> list[tuple[int, JournalFault]]:
    report = verify(store)
    topic = store.cluster.lookup("orders").ledger_id
    assert all(finding.ledger_id == topic for finding in report.findings)
    assert report.undecidable == ([topic] if len(report.findings) > 1 else [])
    return [(finding.broker_id, finding.fault) for finding in report.findings]


def test_a_whole_store_has_no_findings(written) -> None:
    report = verify(written)
    assert (report.findings, report.undecidable, report.behind) == ([], [], [])
    assert report.journal_count == 6 and report.record_count >= 3 * (5 + 4)


def test_a_damaged_record_is_found(written) -> None:
    path = journal(written, 1)[2]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert faults_found(written) == [(1, JournalFault.CORRUPT)]
    assert verify(written).findings[0].position == 2


def test_a_record_that_does_not_follow_from_those_before_it_is_found(written) -> None:
    altered(entries(written, 2)[3], payload=b"other rows")
    (finding,) = verify(written).findings
    assert (finding.broker_id, finding.fault) == (2, JournalFault.CORRUPT) and "hash chain" in finding.detail


def test_an_epoch_that_goes_down_is_found(written) -> None:
    path = journal(written, 0)[-1]
    record = decode_record(path.read_bytes(), root="", position=0)
    altered(path, epoch=record.epoch._replace(round=0))
    (finding,) = verify(written).findings
    assert (finding.broker_id, finding.fault) == (0, JournalFault.CORRUPT) and "epoch" in finding.detail


def test_an_empty_position_before_a_later_one_is_a_gap(written) -> None:
    journal(written, 1)[2].unlink()
    assert faults_found(written) == [(1, JournalFault.GAP)]


def test_a_journal_that_ends_before_what_others_name_was_set_back(written) -> None:
    for path in journal(written, 1)[-3:]:
        path.unlink()
    assert faults_found(written) == [(1, JournalFault.SET_BACK)]


def test_a_journal_that_says_so_itself_is_out(written) -> None:
    (written.path / "broker-1" / out_key(written.cluster.lookup("orders").ledger_id)).write_bytes(b"{}")
    assert faults_found(written) == [(1, JournalFault.OUT)]


def test_a_root_that_vouches_for_another_value_than_was_decided_diverged(written) -> None:
    # As no protocol can make it: an own chain, whole in itself, with a commit index.
    path = entries(written, 2)[-1]
    before = decode_record(entries(written, 2)[-2].read_bytes(), root="", position=0)
    record = decode_record(path.read_bytes(), root="", position=0)
    hash_ = entry_hash(before.entry_hash, record.index, b"12345678")
    altered(
        path, payload=b"12345678", entry_hash=hash_, commit_index=record.index,
        epoch=record.epoch._replace(incarnation=b"\xff" * 16),
    )  # fmt: skip
    assert faults_found(written) == [(2, JournalFault.DIVERGED)]


def test_a_root_that_is_away_is_unreachable(written) -> None:
    written.away(2)
    assert {(issue.broker_id, issue.fault) for issue in verify(written).findings} == {(2, JournalFault.UNREACHABLE)}


def test_a_root_that_missed_entries_is_behind_and_no_fault(written) -> None:
    written.away(2)
    fill(written, 4, 2, holders={0, 1})
    written.back(2)
    report = verify(written)
    assert (report.findings, len(report.behind)) == ([], 1)


@pytest.fixture
def short_journals(monkeypatch, store: LocalStore) -> LocalStore:
    """Each commit writes a snapshot and cuts the journals."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 20)
    return store


def fill_until_cut(store: LocalStore, first_batch: int, holders: frozenset[int] = frozenset({0, 1, 2})) -> int:
    """Write until a worker has cut what is the newest record of a root now; return how many batches."""
    last, batches = journal(store, 0)[-1], itertools.count()

    def is_cut() -> bool:
        if last.exists():
            fill(store, first_batch + next(batches), 1, holders)
        return not last.exists()

    wait_until(is_cut, "a journal that is cut")
    fill(store, first_batch + next(batches), 3, holders)  # more than a reader of this journal asks for at once
    return next(batches)


def test_a_root_that_missed_entries_which_are_only_in_a_snapshot_is_behind_and_no_fault(short_journals) -> None:
    written = short_journals
    written.away(2)
    fill_until_cut(written, 20, frozenset({0, 1}))
    written.back(2)
    report = verify(written)
    assert (report.findings, len(report.behind)) == ([], 1)


def test_a_root_that_got_a_snapshot_in_place_of_entries_is_whole(written) -> None:
    """The head of this snapshot was written while the root was away: it names an older end of its journal."""
    written.away(2)
    fill(written, 4, 20, holders={0, 1})
    assert run(["-q", "-s", str(written.path), "store", "snapshot"]) == 0
    written.back(2)
    written.reopen()
    fill(written, 24, 2)
    marker = written.path / "broker-2" / marker_folder(written.cluster.lookup("orders").ledger_id)
    wait_until(lambda: marker.is_dir() and list(marker.iterdir()), "a marker")
    assert faults_found(written) == []


@pytest.mark.parametrize("cut_count", [1, 99])
def test_a_journal_that_is_cut_while_it_is_read_is_read_again(short_journals, monkeypatch, cut_count) -> None:
    written, cuts = short_journals, []
    ask = journal_scrub._LedgerScrub._ask_ahead

    def cut_first(scrub, *at):
        is_topic = scrub._ledger_id == written.cluster.lookup("orders").ledger_id
        if is_topic and len(cuts) < cut_count and at[0].position > at[0].start:
            cuts.append(fill_until_cut(written, first_batch=20 + 10_000 * len(cuts)))
        return ask(scrub, *at)

    monkeypatch.setattr(journal_scrub, "AHEAD_RECORDS_MAX", 1)
    monkeypatch.setattr(journal_scrub._LedgerScrub, "_ask_ahead", cut_first)
    faults = {finding.fault for finding in verify(written).findings}
    assert faults == (set() if cut_count == 1 else {JournalFault.UNREACHABLE}) and cuts


def test_one_root_and_rebuilt_roots_are_whole(written, tmp_path) -> None:
    lose(written, 1)
    assert repair(written).roots[1].is_repaired
    fill(written, 4, 1)
    assert verify(written).findings == []
    for count in (1, 2):
        path = tmp_path / f"of-{count}"
        init_cluster(str(path), count, fsync=False)
        store = LocalStore(path, written.config)
        store.create("orders", 2, count)
        fill(store, 0, 3, holders=set(range(count)))
        if count == 2:
            (path / "broker-1").rename(tmp_path / "lost")
            assert repair(store).roots[1].is_repaired
            store.reopen()
            fill(store, 3, 1, holders={0, 1})
        report = verify(store)
        assert (report.findings, report.journal_count) == ([], 2 * count)


def test_a_store_that_is_written_to_meanwhile_has_no_findings(written) -> None:
    stop = threading.Event()

    def write() -> None:
        for batch in range(4, 200):
            if stop.is_set():
                return
            fill(written, batch, 1)

    other = LocalStore(written.path, written.config)
    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in range(6):
            assert verify(written).findings == []
            other.append("orders", {0: 1}, batch=number, query="other")  # owners change meanwhile
    finally:
        stop.set()
        writing.join()


def test_records_that_came_after_the_end_was_read_make_no_gap(written, monkeypatch) -> None:
    """The listing, and the other journals, may know of them."""
    end = journal(written, 2)[-2].name  # the first of two that came
    get, late = PosixStore.get, []

    def get_late(store, key, **more):
        if "broker-2" in store.url and key == journal_key(topic, int(end)) and not late:
            late.append(key)
            return None
        return get(store, key, **more)

    topic = written.cluster.lookup("orders").ledger_id
    opened = Cluster.open(str(written.path), config=written.config)
    monkeypatch.setattr(PosixStore, "get", get_late)
    assert scrub_journals(opened).findings == [] and len(late) == 1


def test_the_command_names_the_journal_and_its_exit_code_is_the_verdict(written, capsys) -> None:
    def said(exit_code: int) -> dict:
        assert run(["-s", str(written.path), "-q", "-f", "json", "store", "verify"]) == exit_code
        return json.loads(capsys.readouterr().out)["items"][0]

    whole = said(0)
    assert (whole["ok"], whole["journals"], whole["journalFindings"]) == (True, 6, [])
    journal(written, 1)[2].unlink()
    bad = said(3)
    assert not bad["ok"] and bad["undecidableLedgers"] == []
    (finding,) = bad["journalFindings"]
    assert (finding["broker"], finding["fault"], finding["position"]) == (1, "gap", 2)
    assert run(["-s", str(written.path), "store", "verify"]) == 3
    shown = capsys.readouterr().out
    assert "1 journals, 0 files of snapshots, 0 copies" in shown and "Run replog store repair" in shown


def store_head(store: LocalStore) -> None:
    """Store a snapshot whose SnapshotCommit waits for the next entry, on all roots."""
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    store_and_die(SimpleNamespace(ledger=ledger))  # type: ignore[arg-type]
    folders = [store.path / f"broker-{broker_id}" / snapshot_folder(ledger.ledger_id) for broker_id in range(3)]
    wait_until(lambda: len({tuple(sorted(path.name for path in folder.glob("[0-9]*-*"))) for folder in folders}) == 1)


def values(store: LocalStore) -> int:
    """Return how many rows a new process sees."""
    return sum(Controller(Cluster.open(str(store.path), config=store.config)).offsets("orders").values())


def exchange(first: Path, second: Path) -> None:
    data = first.read_bytes(), second.read_bytes()
    first.unlink()
    second.unlink()
    first.write_bytes(data[1])
    second.write_bytes(data[0])


def test_a_last_record_that_only_a_snapshot_names_is_missed_and_healed(written) -> None:
    """Readers refuse such a journal, and no writer brings it up: called "behind", it stayed so after each repair."""
    row_count = values(written)
    store_head(written)
    journal(written, 0)[-1].unlink()
    assert faults_found(written) == [(0, JournalFault.SET_BACK)]
    assert run(["-q", "-s", str(written.path), "store", "repair", "-y"]) == 0
    assert faults_found(written) == []
    lose(written, 1)
    assert values(written) == row_count


@pytest.mark.parametrize("damaged", [[1], [0, 1, 2]])
def test_two_last_records_that_were_exchanged_are_no_shorter_log(written, damaged) -> None:
    """A process that begins between the two saw the older one again and no newer one: one append less, in silence."""
    store_head(written)
    fill(written, 4, 1)  # its entry decides the snapshot
    store_head(written)  # names it
    row_count = values(written)
    for root in damaged:
        exchange(*journal(written, root)[-2:])
    assert [broker_id for broker_id, fault in faults_found(written) if fault is JournalFault.CORRUPT] == damaged
    if len(damaged) == 1:
        assert values(written) == row_count
    else:
        with pytest.raises(ReplogError, match="CORRUPT_MESSAGE"):
            values(written)


def test_records_after_a_point_of_a_snapshot_follow_from_there_not_only_from_the_marker() -> None:
    def record(index: int) -> JournalRecord:
        return JournalRecord(RecordKind.ENTRY, Epoch(1, b"a" * 16), b"n" * 16, index, -1, b"h" * 16, (), b"")

    point, start = JournalPoint(16, Epoch(1, b"a" * 16), 77, 13, 13), JournalPoint(15)
    for entries_read, crc, fault_position in (((14, 15), 77, None), ((15, 14), 77, 16), ((14, 15), 78, 15)):
        proven = ProvenPoints([point], start)
        proven.take(record(13), 15, crc)
        for at, index in enumerate(entries_read):
            proven.take(record(index), 16 + at, 5)
        fault = proven.fault()
        assert (fault and fault[0]) == fault_position and proven.end_min() == 16
    of_other_journal = ProvenPoints([point], start._replace(floor=Floor(renewal=b"r" * 16)))
    of_other_journal.take(record(13), 15, 78)
    assert of_other_journal.fault() is None and of_other_journal.end_min() == of_other_journal.marker_count == 0
