"""`replog store verify`: every kind of bad copy is found and named, and good stores are called good."""

from __future__ import annotations

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_replog.cli.main import run
from spark_replog.commit.replica_fetcher import copy_job
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.log.codec.data_object import frame_damage
from spark_replog.maintenance.compaction import CompactionRounds
from spark_replog.maintenance.journal_scrub import JournalFault, _LedgerScrub, scrub_journals
from spark_replog.maintenance.scrub import AGAIN_MS, AwayRoots, Fault, _live_objects, _looks, scrub
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.object_store import Buffer, ObjectStore
from tests.manual_clock import ManualClock
from tests.scenarios.conftest import LocalStore
from tests.scenarios.repairing import put_arrow, repair

pytestmark = pytest.mark.usefixtures("short_tail_retry")


def copy_of(store: LocalStore, broker_id: int) -> Path:
    (path,) = (store.path / f"broker-{broker_id}").rglob("*.arrow")
    return path


@pytest.fixture
def written(store: LocalStore) -> LocalStore:
    store.create("orders", 2)
    assert store.append("orders", {0: 5, 1: 7}, batch=0).error is None
    return store


def test_a_whole_store_has_no_findings(written: LocalStore) -> None:
    report = scrub(written.cluster, deep=True)

    assert (report.object_count, report.copy_count, report.findings) == (1, 3, [])
    assert report.checked_bytes == 3 * 120


def test_a_topic_whose_deletion_was_interrupted_does_not_end_the_verification_of_the_others(
    written: LocalStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written.create("parcels")

    def die(*_: object, **__: object) -> None:
        raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "the roots are away.")

    monkeypatch.setattr(written.cluster.cluster_ledger, "append", die)
    with pytest.raises(RetriableError, match="are away"):
        written.controller.delete_topic("parcels")
    written.reopen()
    assert scrub(written.cluster).object_count == 1
    assert CompactionRounds(written.cluster).run_once().failed_count == 0 and not caplog.records


class MeetingStore:
    """Answers a read of a copy or a journal only when all roots are asked."""

    def __init__(self, store: ObjectStore, barrier: threading.Barrier) -> None:
        self.store, self.url, self._barrier = store, store.url, barrier
        self.list_keys = store.list_keys

    def get(self, key: str, **more: int) -> Buffer | None:
        if "/data/" in key or "/journal/" in key:
            self._barrier.wait(20)
        return self.store.get(key, **more)


def test_all_roots_are_read_at_the_same_time(written: LocalStore) -> None:
    """One root after another would break the barrier; a copy is asked for twice, and journals of equal length alike."""
    brokers, barrier = written.cluster.brokers, threading.Barrier(3)
    written.cluster.refresh()
    ledger, _ = written.cluster.topic_state(written.cluster.lookup("orders"))
    for broker_id in brokers.broker_ids:
        brokers.stores[broker_id] = MeetingStore(brokers.store(broker_id), barrier)  # type: ignore[assignment]
    ledger_scrub = _LedgerScrub(brokers, ledger.ledger_id, AwayRoots(written.cluster.clock))
    ledger_scrub.run()
    assert all(journal.is_read and journal.finding is None for journal in ledger_scrub._journals)
    (job,) = (copy_job(file.ledger_id, file, some, file.holders) for file, some in _live_objects(written.cluster))
    looks = next(
        _looks(written.cluster, [*_live_objects(written.cluster)], AwayRoots(written.cluster.clock), deep=True)
    )
    assert [look.result().checked_bytes for _, look in looks[1]] == [job.size_bytes] * 3


def test_each_fault_is_named(written: LocalStore) -> None:
    copy_of(written, 0).unlink()
    damaged = copy_of(written, 1)
    damaged.write_bytes(b"\0" + damaged.read_bytes()[1:])
    os.truncate(copy_of(written, 2), 100)

    shallow = scrub(written.cluster)
    deep = scrub(written.cluster, deep=True)

    assert {f.broker_id: f.fault for f in shallow.findings} == {0: Fault.ABSENT, 2: Fault.SHORT}
    assert {f.broker_id: f.fault for f in deep.findings} == {0: Fault.ABSENT, 1: Fault.CORRUPT, 2: Fault.SHORT}
    assert (shallow.lost_count, deep.lost_count) == (0, 1)


def test_a_root_that_is_away_is_unreachable_not_absent(written: LocalStore) -> None:
    written.away(2)

    assert [(f.broker_id, f.fault) for f in scrub(written.cluster).findings] == [(2, Fault.UNREACHABLE)]


@pytest.mark.parametrize("away", [(0, 1, 2), (1, 2)])
def test_rows_are_lost_only_where_every_holder_was_read(
    written: LocalStore, away: tuple[int, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the reader and the repair have it. The holders need not be the roots with the journals."""
    if 0 not in away:
        copy_of(written, 0).unlink()
    check = BrokerSet.check_root

    def check_but(brokers: BrokerSet, broker_id: int) -> None:
        if broker_id in away:
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer")
        check(brokers, broker_id)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerSet, "check_root", check_but)
        report = scrub(written.cluster)
    assert (report.lost_count, report.unread_count) == (0, 1)
    monkeypatch.setattr("spark_replog.maintenance.scrub.scrub", lambda *_, **__: report)
    assert run(["-s", str(written.path), "-q", "store", "verify", "-f", "json"]) == 4
    item = json.loads(capsys.readouterr().out)["items"][0]
    assert (item["lostObjects"], item["unreadObjects"]) == (0, 1)


def test_a_copy_that_is_collected_while_it_is_looked_at_is_no_finding(written: LocalStore) -> None:
    """A deep look reads the last byte first, and the whole copy then."""

    brokers = written.cluster.brokers

    class Collecting(MeetingStore):
        def get(self, key: str, **more: int) -> Buffer | None:
            if "/data/" in key and not more:
                brokers.stores[2] = self.store
                written.controller.delete_topic("orders")
                self.store.delete(key)
            return self.store.get(key, **more)

    brokers.stores[2] = Collecting(brokers.store(2), threading.Barrier(1))  # type: ignore[assignment]
    report = scrub(written.cluster, deep=True)
    assert (report.findings, report.lost_count) == ([], 0)


@pytest.mark.parametrize(("lost", "exit_code"), [((), 0), ((1,), 3), ((0, 1, 2), 4)])
def test_the_exit_code_is_the_verdict(
    written: LocalStore, lost: tuple[int, ...], exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker_id in lost:
        copy_of(written, broker_id).unlink()

    verdict = run(["-s", str(written.path), "-q", "store", "verify", "-f", "json"])

    item = json.loads(capsys.readouterr().out)["items"][0]
    assert verdict == exit_code
    assert (item["ok"], len(item["findings"])) == (not lost, len(lost))


EVIL = "ev\x1b[2J\nil"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("words", [("verify", "--deep"), ("repair", "--dry-run"), ("repair", "-y")])
def test_names_and_paths_are_shown_escaped(
    written: LocalStore, words: tuple[str, ...], form: str, capsys: pytest.CaptureFixture[str], short_quorum_wait: Any
) -> None:
    path = written.path.rename(written.path.with_name(EVIL))
    copy = next((path / "broker-1").rglob("*.arrow"))
    copy.rename(copy.with_name(EVIL))
    for bad in (path / "broker-2").rglob("journal/*"):
        bad.chmod(0o644)
        bad.write_bytes(b"?")
    (path / "broker-0" / "replog.json").unlink()
    short_quorum_wait()  # of three roots only one is whole

    run(["-s", str(path), "store", *words, "-f", form])

    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert EVIL not in shown.out + shown.err
    assert "ev" in shown.out + shown.err


def test_a_root_that_does_not_answer_is_asked_once_not_for_every_copy_and_journal(written: LocalStore) -> None:
    for batch in (1, 2):
        assert written.append("orders", {0: 1}, batch=batch).error is None
    brokers = written.cluster.brokers
    check, asked = brokers.check_root, []

    def hung(broker_id: int) -> None:
        asked.append(broker_id)
        if broker_id == 2:
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer")
        check(broker_id)

    brokers.check_root = hung  # type: ignore[method-assign]
    assert [(f.broker_id, f.fault) for f in scrub(written.cluster).findings] == [(2, Fault.UNREACHABLE)] * 3
    assert asked.count(2) == 1
    report = scrub_journals(written.cluster)
    assert [(f.broker_id, f.fault) for f in report.findings] == [(2, JournalFault.UNREACHABLE)] * 2
    assert asked.count(2) == 2


def test_a_root_that_did_not_answer_is_asked_again_after_a_while() -> None:
    clock = ManualClock()
    away = AwayRoots(clock)
    away.note(0, RetriableError(ErrorCode.REPLOG_STORE_REFUSED, "one object"))
    away.check(0)
    away.note(0, RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer"))
    clock.sleep_ms(AGAIN_MS - 1)
    with pytest.raises(RetriableError) as raised:
        away.check(0)
    away.note(0, raised.value)  # what is only remembered does not put off the next question
    clock.sleep_ms(1)
    away.check(0)


def outside_sections(store: LocalStore) -> list[int]:
    """Every byte of the only object that no section has."""
    (item,) = {section.object for number in range(2) for section in store.sections("orders", number)}
    taken = {
        at
        for number in range(2)
        for section in store.sections("orders", number)
        for at in range(section.start_byte, section.start_byte + section.size_bytes)
    }
    return sorted(set(range(item.size_bytes)) - taken)


@pytest.fixture
def framed(store: LocalStore) -> LocalStore:
    """One object as writers make it: with magic, schema message and footer."""
    store.create("orders", 2)
    assert store.append("orders", {}, batch=0, objects=(put_arrow(store, "orders", [3, 4]),)).error is None
    assert scrub(store.cluster, deep=True).findings == []
    return store


def flip(path: Path, at: int, bit: int = 1) -> None:
    path.chmod(0o644)
    body = bytearray(path.read_bytes())
    body[at] ^= bit
    path.write_bytes(body)


@pytest.mark.guarantee("G7")
def test_a_flipped_bit_anywhere_outside_the_sections_is_found_on_its_broker(framed: LocalStore) -> None:
    places = outside_sections(framed)
    damaged = copy_of(framed, 1)
    assert len(places) > 500
    for number, at in enumerate(places[::5]):
        flip(damaged, at, 1 << number % 8)
        report = scrub(framed.cluster, deep=True)
        assert [(f.broker_id, f.object_name, f.fault) for f in report.findings] == [(1, damaged.name, Fault.CORRUPT)], (
            at
        )
        assert report.lost_count == 0, "all rows can be read"
        flip(damaged, at, 1 << number % 8)


def test_with_two_copies_that_differ_the_one_with_a_broken_frame_is_named_else_both(framed: LocalStore) -> None:
    framed.away(2)
    places, damaged = outside_sections(framed), copy_of(framed, 1)
    named = set()
    for at in places[::7]:
        flip(damaged, at)
        broker_ids = tuple(f.broker_id for f in scrub(framed.cluster, deep=True).findings if f.broker_id != 2)
        flip(damaged, at)
        assert broker_ids in {(1,), (0, 1)}, at
        named.add(broker_ids)
    assert named == {(1,), (0, 1)}


def test_the_only_copy_is_checked_as_an_arrow_file(store: LocalStore) -> None:
    store.create("orders", 2, replicas=1)
    item = put_arrow(store, "orders", [3, 4], holders=frozenset({0}))
    assert store.append("orders", {}, batch=0, objects=(item,)).error is None
    damaged = copy_of(store, 0)
    assert scrub(store.cluster, deep=True).findings == []
    sections = item.sections
    end_of_stream = sections[1].start_byte + sections[1].size_bytes
    block = damaged.read_bytes().index(struct.pack("<q", sections[1].start_byte), end_of_stream)
    for at in (0, 8, 13, item.size_bytes - 1, item.size_bytes - 8, end_of_stream, end_of_stream + 5, block):
        flip(damaged, at)
        assert [f.broker_id for f in scrub(store.cluster, deep=True).findings] == [0], at
        flip(damaged, at)


@pytest.mark.guarantee("G7")
def test_a_deep_repair_replaces_a_copy_that_is_damaged_outside_its_sections(framed: LocalStore) -> None:
    damaged, good = copy_of(framed, 1), copy_of(framed, 0).read_bytes()
    for at in (3, 40, len(good) - 20):
        flip(damaged, at)
        assert repair(framed).roots[1].object_count == 0
        report = repair(framed, deep=True)
        assert {broker_id: root.object_count for broker_id, root in report.roots.items()} == {0: 0, 1: 1, 2: 0}
        assert report.lost_objects == [] and report.roots[1].is_repaired
        assert damaged.read_bytes() == good


def test_a_deep_repair_leaves_copies_that_differ_without_a_majority(framed: LocalStore) -> None:
    place = next(at for at in outside_sections(framed) if is_unnoticed(framed, at))
    paths = [copy_of(framed, broker_id) for broker_id in range(3)]
    for number, path in enumerate(paths):
        flip(path, place, 1 << number)
    before = [path.read_bytes() for path in paths]
    report = repair(framed, deep=True)
    assert report.lost_objects == []
    assert [path.read_bytes() for path in paths] == before
    assert {f.broker_id for f in scrub(framed.cluster, deep=True).findings} == {0, 1, 2}


def is_unnoticed(store: LocalStore, at: int) -> bool:
    """Whether the object itself does not tell that a bit of this byte is flipped."""
    sections = [(span.start_byte, span.size_bytes) for number in range(2) for span in store.sections("orders", number)]
    body = bytearray(copy_of(store, 0).read_bytes())
    for bit in range(3):
        body[at] ^= 1 << bit
        if frame_damage(bytes(body), sections) is not None:
            return False
        body[at] ^= 1 << bit
    return True


def test_the_question_before_a_new_root_shows_its_path_escaped(
    written: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written.path.rename(written.path.with_name(EVIL))
    (path / "broker-0" / "replog.json").unlink()

    assert run(["-s", str(path), "-q", "store", "repair"]) == 2

    assert r"ev\x1b[2J\nil/broker-0" in capsys.readouterr().err
