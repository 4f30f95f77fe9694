"""What store info, topic describe and doctor report of a store that cannot serve, and the command that they name."""

from __future__ import annotations

import shutil
from collections import namedtuple

import pytest

from spark_replog import Producer
from spark_replog.storage.brokers import BrokerSet
from tests.at_rest import wait_at_rest

Usage = namedtuple("Usage", "total used free")
COMMANDS = [("store", "info"), ("topic", "describe", "orders"), ("doctor",), ("status",)]


@pytest.fixture
def store(tmp_path, replog, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    path = tmp_path / "my store"
    assert replog("-s", path, "init", "--brokers", "3", "--no-fsync").exit_code == 0
    assert replog("-s", path, "topic", "create", "orders", "--replicas", "3").exit_code == 0
    write(path)
    return path


@pytest.fixture(autouse=True)
def no_machine_checks(monkeypatch):
    """Only the store decides a doctor's exit code here."""
    monkeypatch.setattr("spark_replog.cli.doctor.machine_checks", lambda environ: [])


def write(path, count=1):
    with Producer(str(path)) as producer:
        for number in range(count):
            producer.send("orders", b"v%d" % number).result(30)


def findings(answer):
    """Level or verdict by fault or check."""
    if answer.json["_command"] == "doctor":
        return {item["check"]: item["verdict"].upper() for item in answer.items if item["verdict"] != "ok"}
    (item,) = answer.items
    return {finding["fault"]: finding["level"] for finding in item["findings"]}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_whole_store_is_well(store, replog, words):
    answer = replog("-s", store, *words, "-f", "json")
    assert (answer.exit_code, findings(answer)) == (0, {})


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(("fenced", "fault"), [((1, 2), "under-min-isr"), ((0, 1, 2), "no-leader")])
def test_brokers_fenced_below_what_writes_need_are_critical(store, replog, words, fenced, fault):
    for broker in fenced:
        assert replog("-s", store, "broker", "fence", broker, "-y").exit_code == 0
    answer = replog("-s", store, *words, "-f", "json")
    assert answer.exit_code == 4
    assert findings(answer)["orders-0" if words == ("doctor",) else fault] == "CRITICAL"
    text = replog("-s", store, *words).out
    assert f"replog -s '{store}' broker unfence" in text
    assert "orders-0" in text


@pytest.mark.parametrize("words", [COMMANDS[0], COMMANDS[2], COMMANDS[3]])
def test_a_root_restored_from_an_older_backup_is_a_warning(store, replog, words):
    shutil.copytree(store / "broker-1", store / "backup")
    write(store, 3)
    shutil.rmtree(store / "broker-1")
    (store / "backup").rename(store / "broker-1")
    answer = replog("-s", store, *words, "-f", "json")
    assert answer.exit_code == 3
    assert list(findings(answer).values()) == ["WARN"]
    assert "store repair --rebuild 1" in answer.out


@pytest.mark.parametrize("words", [COMMANDS[0], COMMANDS[2], COMMANDS[3]])
@pytest.mark.parametrize(("free", "code", "level"), [(1 << 20, 4, "CRITICAL"), (512 << 20, 3, "WARN")])
def test_a_full_root_is_reported_before_writes_fail(store, replog, monkeypatch, words, free, code, level):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 1 << 39, free))
    answer = replog("-s", store, *words, "-f", "json")
    assert answer.exit_code == code
    assert set(findings(answer).values()) == {level}
    assert f"{free >> 20} MiB" in answer.out


def test_a_root_that_is_away_is_a_warning_while_the_others_serve(store, replog):
    (store / "broker-0").rename(store / "broker-0.away")
    answer = replog("-s", store, "doctor", "-f", "json")
    verdicts = {item["check"]: item["verdict"] for item in answer.items}
    assert (answer.exit_code, verdicts["root 0"], verdicts["root 1"]) == (3, "warn", "ok")
    text = replog("-s", store, "doctor").out
    assert "WARN      root 0" in text
    assert "-> " in text


def tree(path):
    wait_at_rest(BrokerSet.open(str(path)))  # of what the fixture wrote, the last root's creates may be under way
    return {str(entry): (entry.stat().st_mtime_ns, entry.stat().st_size) for entry in [path, *path.rglob("*")]}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_look_writes_nothing(store, replog, words):
    before = tree(store)
    assert replog("-s", store, *words).exit_code == 0
    assert tree(store) == before


def test_a_probe_writes_to_each_root_and_cleans_up(store, replog):
    before = tree(store)
    answer = replog("-s", store, "doctor", "--probe", "-f", "json")
    assert answer.exit_code == 0
    assert [item["detail"].endswith("create-if-absent works") for item in answer.items] == [False, True, True, True]
    after = tree(store)
    assert set(after) == set(before)
    changed = {name for name in after if after[name] != before[name]}
    assert {str(store / f"broker-{number}") for number in range(3)} <= changed


def test_many_findings_are_shown_in_part(store, replog):
    assert replog("-s", store, "topic", "create", "wide", "-p", 40, "--replicas", 3).exit_code == 0
    for broker in (1, 2):
        replog("-s", store, "broker", "fence", broker, "-y")
    answer = replog("-s", store, "store", "info")
    assert "; also " in answer.out and " and 36 more: -f json" in answer.out
    assert len(replog("-s", store, "store", "info", "-f", "json").items[0]["findings"]) == 43
