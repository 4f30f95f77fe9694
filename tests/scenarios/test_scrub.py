"""`replog store verify`: every kind of bad copy is found and named, and good stores are called good."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spark_replog.cli.main import run
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.maintenance.journal_scrub import JournalFault, scrub_journals
from spark_replog.maintenance.scrub import AGAIN_MS, AwayRoots, Fault, scrub
from spark_replog.testing.manual_clock import ManualClock
from tests.scenarios.conftest import LocalStore


def copy_of(store: LocalStore, broker_id: int) -> Path:
    (found,) = (store.path / f"broker-{broker_id}").rglob("*.arrow")
    return found


@pytest.fixture
def written(store: LocalStore) -> LocalStore:
    store.create("orders", 2)
    assert store.append("orders", {0: 5, 1: 7}, batch=0).error is None
    return store


def test_a_whole_store_has_no_findings(written: LocalStore) -> None:
    report = scrub(written.cluster, deep=True)

    assert (report.object_count, report.copy_count, report.findings) == (1, 3, [])
    assert report.checked_bytes == 3 * 120


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
