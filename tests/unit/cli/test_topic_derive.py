"""``replog topic derive`` and ``replay`` as a person types them."""

from __future__ import annotations

import json
import signal
import threading

import pytest

import spark_replog
from spark_replog.ids import new_id
from tests.unit.client.consumer_setup import Store
from tests.waiting import wait_until


@pytest.fixture
def store():
    made = Store.init(f"memory://{new_id()}")
    made.create("clicks", 2, retention_ms="-1")
    made.write("clicks", [b'{"id": %d, "price": 0.5, "more": 1}' % number for number in range(5)])
    made.write("clicks", [b'{"id": 7}', b"?", b'{"id": "x"}', None], partition=1)
    return made


def derive(replog, store, *words):
    return replog("-s", store.path, "topic", "derive", *words)


FULL = ("clicks", "sales", "--schema", "id BIGINT, price DOUBLE", "--key", "id", "--errors-topic", "bad-sales")


def test_a_topic_is_derived_listed_described_replayed_and_stopped(store, replog):
    answer = derive(replog, store, *FULL, "--once", "-f", "json")
    assert answer.exit_code == 0, answer.err
    (item,) = answer.items
    assert (item["rows"], item["bad"], item["lag"], item["positions"]) == (6, 3, 0, [5, 4])
    sales = spark_replog.open(store.path).admin().describe_topic("sales")
    assert len(sales.partitions) == 2 and sales.config["retention.ms"] == "-1", "rows are kept as long as in the source"
    assert sales.ledger_id == spark_replog.open(store.path).admin().describe_topic("bad-sales").ledger_id
    store.write("clicks", [b'{"id": 8}'])
    listed = derive(replog, store, "--list", "-f", "json").items
    assert [(item["topic"], item["source"], item["lag"], item["notReplayed"]) for item in listed] == [
        ("sales", "clicks", 1, 3)
    ]
    shown = replog("-s", store.path, "topic", "describe", "sales")
    assert "derived from clicks (json), lag 1, 3 bad records in bad-sales, 3 not replayed" in shown.out
    described = replog("-s", store.path, "topic", "describe", "sales", "clicks", "-f", "json").items
    assert described[0]["derivation"] == {key: value for key, value in listed[0].items() if key != "ok"}
    assert "derivation" not in described[1]
    assert derive(replog, store, "clicks", "sales", "--once").exit_code == 0
    lags = replog("-s", store.path, "group", "describe", "derive:sales", "-f", "json").items
    assert "clicks" in json.dumps(lags), "shown as a reader"
    answer = replog("-s", store.path, "topic", "replay", "bad-sales", "-f", "json")
    assert [(item["topic"], item["rows"], item["bad"]) for item in answer.items] == [("sales", 0, 3)]
    assert replog("-s", store.path, "copy", "bad-sales", "clicks", "--by-key").exit_code == 0
    (item,) = derive(replog, store, "clicks", "sales", "--once", "-f", "json").items
    assert (item["rows"], item["bad"], item["badRecords"]) == (0, 6, 9)
    sent_again = spark_replog.open(store.path).topic("bad-sales").scan("end-6").to_arrow().to_pylist()
    for record in sent_again:
        names = [pair["key"] for pair in record["headers"]]
        assert len(names) == len(set(names)) == 8, "they say where they are from now, and nothing of before"
    assert replog("-s", store.path, "copy", "sales", "sales-2", "--create").exit_code == 0
    assert len(derive(replog, store, "--list", "-f", "json").items) == 1, "a copy is not derived too"
    assert derive(replog, store, "--stop", "sales").exit_code == 0
    assert derive(replog, store, "--list", "-f", "json").items == []
    assert "derive:sales" not in replog("-s", store.path, "group", "list").out


def test_without_an_errors_topic_it_says_which_record_and_what_to_type(store, replog):
    answer = derive(replog, store, *FULL[:-2], "--once")
    assert answer.exit_code == 1
    assert "REPLOG_DESERIALIZATION" in answer.err and "offset 1 of clicks-1" in answer.err
    assert f"replog -s {store.path} topic derive clicks sales --errors-topic sales-errors" in answer.err


@pytest.mark.parametrize("ends_by", ["a signal", "settings"])
def test_without_once_it_goes_on_until_a_signal_or_until_it_is_stopped_elsewhere(store, replog, ends_by):
    admin = spark_replog.open(store.path).admin()

    def has_rows(count):
        return spark_replog.open(store.path).topic("sales").scan().to_arrow().num_rows == count

    def act():
        wait_until(lambda: "sales" in {topic.name for topic in admin.list_topics()} and has_rows(6))
        store.write("clicks", [b'{"id": 9}'])
        wait_until(lambda: has_rows(7))
        if ends_by == "a signal":
            signal.raise_signal(signal.SIGTERM)
        else:
            admin.alter_config("sales", {"derive.source": None})

    thread = threading.Thread(target=act)
    thread.start()
    answer = derive(replog, store, *FULL, "--interval-ms", 5)
    thread.join()
    assert answer.exit_code == 0, answer.err


@pytest.mark.parametrize(
    "words",
    [("clicks",), ("clicks", "sales", "--once"), ("none", "sales", "--schema", "id INT", "--once"),
     ("--list", "--stop", "sales"), ("clicks", "sales", "--schema", "id WRONG", "--once"),
     ("clicks", "clicks", "--once"), ("--stop",)],
)  # fmt: skip
def test_what_cannot_be_derived_is_refused_and_makes_nothing(store, replog, words):
    answer = derive(replog, store, *words)
    assert answer.exit_code in (1, 2) and answer.out == ""
    assert [topic.name for topic in spark_replog.open(store.path).admin().list_topics()] == ["clicks"]
    assert replog("-s", store.path, "topic", "replay", "clicks").exit_code == 1
