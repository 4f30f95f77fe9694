"""Log lines: their form, and one event per change of a store, by the process that decides it."""

from __future__ import annotations

import json
import logging
import re

import pytest

from spark_replog import logs
from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.controller import Controller
from spark_replog.maintenance.garbage import GarbageCollector
from tests.unit.client.consumer_setup import Store, rows

LOG = logging.getLogger("spark_replog.test_logs")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.delenv("REPLOG_LOG_FORMAT", raising=False)
    yield
    logs.log_no_more()
    logs.set_context(query=None, batch=None)


def test_a_line_carries_time_level_logger_query_and_batch(capsys):
    logs.log_to_stderr("INFO")
    logs.set_context(query="q-1", batch=7)
    LOG.warning("waits\nlong")
    LOG.debug("not shown")
    (line,) = capsys.readouterr().err.splitlines()
    pattern = r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z WARNING spark_replog\.test_logs query=q-1 batch=7: waits\\nlong"
    assert re.fullmatch(pattern, line)


def test_json_is_one_object_a_line_with_the_events_fields_and_the_error(capsys, monkeypatch):
    monkeypatch.setenv("REPLOG_LOG_FORMAT", "json")
    logs.log_to_stderr("INFO")
    logs.log_to_stderr("INFO")  # replaces the first
    logs.set_context(query="q-1")
    logs.event(LOG, "isr_change", "broker 1 leaves", {"ledger": "L", "index": 3})
    try:
        raise OSError("away")
    except OSError:
        LOG.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert {key: first[key] for key in ("event", "ledger", "index", "query", "message", "level")} == {
        "event": "isr_change", "ledger": "L", "index": 3, "query": "q-1", "message": "broker 1 leaves", "level": "INFO"
    }  # fmt: skip
    assert "OSError: away" in second["error"]


def test_a_wrong_setting_is_an_error_or_a_warning_in_a_worker(monkeypatch, caplog):
    with pytest.raises(ValueError, match="give one of text, json"):
        logs.log_to_stderr("INFO", "xml")
    monkeypatch.setenv("REPLOG_LOG_LEVEL", "LOUD")
    logs.log_as_environment_says()
    assert "no effect" in caplog.text


def events(caplog):
    return [record.replog_event for record in caplog.records if hasattr(record, "replog_event")]


def test_each_change_is_one_event_of_the_process_that_decided_it_and_a_batch_is_none(tmp_path, caplog):
    caplog.set_level(logging.INFO, "spark_replog")
    store = Store.init(str(tmp_path / "store"), 3)
    store.create("orders")
    assert {"topic_init", "topic_publish"} <= set(events(caplog))
    caplog.clear()
    for number in range(5):
        store.write("orders", rows(3, number))
    assert [event for event in events(caplog) if event != "snapshot_commit"] == []
    BrokerAdmin(store.cluster).fence(1)
    assert "broker_fence" in events(caplog)
    (record,) = [line for line in caplog.records if getattr(line, "replog_event", "") == "broker_fence"][:1]
    assert record.replog_fields["index"] >= 0 and "fenced" in record.getMessage()
    caplog.clear()
    store.another_process().cluster.refresh()  # who only reads logs nothing
    assert events(caplog) == []


def fields_of(caplog, name):
    return [record.replog_fields for record in caplog.records if getattr(record, "replog_event", "") == name]


def test_a_ledger_that_another_process_wrote_is_an_event_once_and_turns_of_two_writers_are_none(tmp_path, caplog):
    caplog.set_level(logging.INFO, "spark_replog")
    one = Store.init(str(tmp_path / "store"), 3)
    one.create("orders")
    one.write("orders", rows(1))
    other = one.another_process()
    caplog.clear()
    for number in range(1, 6):
        other.write("orders", rows(1, 2 * number))
        one.write("orders", rows(1, 2 * number + 1))
    ledger, _ = one.cluster.topic_state(one.cluster.lookup("orders"))
    claims = [claim for claim in fields_of(caplog, "owner_change") if claim["ledger"] == ledger.ledger_id]
    assert len(claims) == 2 and claims[0]["owner"] == claims[1]["before"] and claims[0]["before"] == claims[1]["owner"]
    single = Store.init(str(tmp_path / "single"))
    single.create("orders")
    caplog.clear()
    single.another_process().write("orders", rows(1))
    assert fields_of(caplog, "owner_change") == [], "one root has no owners"


def test_what_is_deleted_as_garbage_is_one_event_for_each_root_and_reason(tmp_path, caplog, replog):
    caplog.set_level(logging.INFO, "spark_replog")
    store = Store.init(str(tmp_path / "store"), 3)
    store.create("orders")
    for number in range(3):
        store.write("orders", rows(2, number))
    Controller(store.cluster).delete_records("orders", {0: 6})
    caplog.clear()
    assert GarbageCollector(store.another_process().cluster, is_dry_run=True, is_floor_raised=True).run().files
    assert fields_of(caplog, "garbage_delete") == []
    report = GarbageCollector(store.another_process().cluster, is_floor_raised=True).run()
    deletions = fields_of(caplog, "garbage_delete")
    assert sorted(deletion["broker"] for deletion in deletions) == [0, 1, 2] and sum(report.files.values()) == 9
    assert [deletion["files"] for deletion in deletions] == [3, 3, 3]


def test_below_info_an_entry_is_not_even_decoded(tmp_path, monkeypatch):
    from spark_replog.cluster import cluster

    store = Store.init(str(tmp_path / "store"))
    monkeypatch.setattr(cluster, "state_changes", lambda *_: pytest.fail("decoded"))
    logging.getLogger("spark_replog").setLevel(logging.WARNING)
    try:
        store.create("orders")
    finally:
        logging.getLogger("spark_replog").setLevel(logging.NOTSET)


def test_v_shows_the_lines_of_a_command_and_leaves_no_handler(tmp_path, replog):
    path = str(tmp_path / "store")
    assert replog("-s", path, "init").exit_code == 0
    answer = replog("-s", path, "-v", "topic", "create", "orders")
    assert answer.exit_code == 0 and re.search(r"Z INFO spark_replog\.\S+ event=topic_publish ledger=", answer.err)
    assert "event=" not in replog("-s", path, "topic", "create", "others").err
    assert not [handler for handler in logging.getLogger("spark_replog").handlers if handler.formatter]
