"""The listener for Spark sessions, with events as Spark sends them."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import spark_replog
from spark_replog.health.readers import Verdict
from tests.unit.client.consumer_setup import Store, rows

QUERY = "48672477-5abb-4c39-9b3b-e9a55a7f26ca"


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"))
    made.create("orders")
    made.write("orders", rows(10))
    return made


def progress(store, batch, end, *, offsets=None):
    stamp = "%Y-%m-%dT%H:%M:%S.000Z"
    now = datetime.fromtimestamp(store.clock.now_ms() / 1000, UTC).strftime(stamp)
    ids = {"orders": store.cluster.lookup("orders").topic_id}
    ours = json.dumps({"orders": {"0": end}, "@": {"v": 1, "ids": ids}}) if offsets is None else offsets
    sources = [SimpleNamespace(endOffset=end_offset) for end_offset in (None, '{"kafka":{"0":3}}', "17", ours)]
    query_progress = SimpleNamespace(
        id=QUERY, name="copy", batchId=batch, timestamp=now, sources=sources, inputRowsPerSecond=2.5,
        processedRowsPerSecond=5.0, batchDuration=1500,
    )  # fmt: skip
    return SimpleNamespace(progress=query_progress)


@pytest.fixture
def listener(store):
    made = spark_replog.ReplogListener(store.cluster)
    made.onQueryStarted(SimpleNamespace(id=QUERY, name="copy"))
    return made


def test_lag_and_verdict_come_with_each_batch_and_follow_the_log(store, listener):
    assert listener.readers() == []
    listener.onQueryProgress(progress(store, 0, 4))
    (reader,) = listener.readers()
    assert (reader.name, reader.lag, reader.batch_id, reader.verdict) == ("copy", 6, 0, Verdict.OK)
    store.clock.advance(400_000)
    (reader,) = listener.readers()
    assert reader.verdict is Verdict.STOPPED
    listener.onQueryTerminated(SimpleNamespace(id=QUERY))
    assert listener.readers() == []


def test_a_change_of_the_verdict_is_logged_once_and_no_batch_is(store, listener, caplog):
    caplog.set_level(logging.INFO, "spark_replog.spark.listener")
    for batch in range(3):
        listener.onQueryProgress(progress(store, batch, 4 + batch))
    assert caplog.messages == []
    store.clock.advance(400_000)
    for batch in range(3, 6):
        listener.onQueryProgress(progress(store, batch, 6))
    (line,) = caplog.messages
    event = json.loads(line.removeprefix("replog query "))
    assert (event["verdict"], event["was"], event["query"], event["lag"]) == ("STALLED", "OK", "copy", 4)
    listener.onQueryProgress(progress(store, 6, 10))
    assert json.loads(caplog.messages[-1].removeprefix("replog query "))["verdict"] == "OK"


def test_metrics_of_queries(store, listener):
    registry = CollectorRegistry()
    listener.register(registry)
    assert generate_latest(registry) == b""
    listener.onQueryProgress(progress(store, 0, 4))
    text = generate_latest(registry).decode()
    assert 'replog_reader_lag_rows{kind="query",partition="0",reader="copy",topic="orders"} 6.0' in text
    assert 'replog_query_batch_duration_seconds{reader="copy"} 1.5' in text


@pytest.mark.parametrize(
    "offsets", ['{"@":', '{"@": 1}', '{"orders": {"0": 1}, "@": {"v": 99}}', '{"orders": 3, "@": {"v": 1}}']
)
def test_an_event_that_cannot_be_understood_reaches_no_query(store, listener, caplog, offsets):
    listener.onQueryProgress(progress(store, 0, 0, offsets=offsets))
    assert "is not known" in caplog.text
    assert listener.readers() == []


def test_a_sign_of_life_without_a_batch_counts(store, listener):
    listener.onQueryProgress(progress(store, 0, 4))
    store.clock.advance(400_000)
    idle = progress(store, 1, 4).progress.timestamp
    listener.onQueryIdle(SimpleNamespace(id=QUERY, timestamp=idle))
    (reader,) = listener.readers()
    assert reader.verdict is Verdict.STALLED


@pytest.mark.parametrize("time, time_ms", [("2038-12-15T04:26:40.002Z", 2176000000002), ("1970-01-01T00:00:00Z", 0)])
def test_the_time_of_an_event_is_exact(store, listener, time, time_ms):
    listener.onQueryProgress(progress(store, 0, 4))
    listener.onQueryIdle(SimpleNamespace(id=QUERY, timestamp=time))
    (reader,) = listener.readers()
    assert reader.last_sign_ms == time_ms
