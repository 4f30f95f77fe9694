"""Answers of real servers that are lost, late, false or cut: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import random

import pytest

import spark_replog
from spark_replog.errors import ErrorCode, OutcomeUnknownError, RetriableError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.retrying_store import RetryingStore
from tests.http_fault_proxy import HttpFault, HttpFaultProxy, PlannedAnswer
from tests.servers.conftest import on_few
from tests.servers.stores import RealRoots

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS
AFTER, BEFORE = HttpFault.AFTER, HttpFault.BEFORE
SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>slower</Message></Error>"
LIES = {
    "answer dropped": PlannedAnswer(AFTER),
    "500 after": PlannedAnswer(AFTER, 500),
    "503 after": PlannedAnswer(AFTER, 503),
    "request dropped": PlannedAnswer(BEFORE),
    "503 before": PlannedAnswer(BEFORE, 503),
    "slow down": PlannedAnswer(BEFORE, 503, SLOW_DOWN),
    "409": PlannedAnswer(BEFORE, 409),
    "429": PlannedAnswer(BEFORE, 429),
    "hang": PlannedAnswer(HttpFault.HANG),
    "reset in the request": PlannedAnswer(HttpFault.CUT_REQUEST),
}


@pytest.fixture
def proxy(real):
    with HttpFaultProxy(real.port, one_at_a_time=False) as made:
        yield made


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_create_is_settled_by_the_bytes(real, proxy, lie):
    store = open_store(real.new_root(), real.hasty_options(proxy.port))
    retrying = RetryingStore(store, deadline_ms=30_000)
    body = random.randbytes(70_000)
    retrying.make_folder("f")
    for part in real.create_parts:
        proxy.plan(real.put, lie, times=1 if lie.when is HttpFault.HANG else 2, part=part)
    assert retrying.create("f/a", body) is CREATED
    assert not proxy.is_planned()
    assert retrying.create("f/a", b"another's") is EXISTS
    assert retrying.get("f/a") == body
    assert [info.size_bytes for info in retrying.list_keys("f/")] == [len(body)]


def test_a_read_is_cut_or_refused_but_never_short(real, proxy):
    store = open_store(real.new_root(), real.hasty_options(proxy.port))
    body = random.randbytes(300_000)
    retrying = RetryingStore(store, deadline_ms=30_000)  # a busy server may take longer than a hasty client waits
    retrying.make_folder("f")
    assert retrying.create("f/a", body) is CREATED
    for lie in (PlannedAnswer(HttpFault.CUT_ANSWER), PlannedAnswer(BEFORE, 503), PlannedAnswer(HttpFault.HANG)):
        proxy.plan("GET", lie)
        assert retrying.get("f/a", start=10, size_bytes=200_000) == body[10:200_010]
        proxy.plan("GET", lie)
        assert [info.key for info in retrying.list_keys("f/")] == ["f/a"]
        proxy.clear()


def test_a_server_that_is_away_is_told_in_time_and_used_again(real, proxy):
    store = open_store(real.new_root(), real.hasty_options(proxy.port))
    real.kill()
    try:
        with pytest.raises(OutcomeUnknownError):
            RetryingStore(store, deadline_ms=50).create("a", b"x")
        with pytest.raises(RetriableError) as raised:
            RetryingStore(store, deadline_ms=50).get("a")
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
    finally:
        real.start()
    assert RetryingStore(store, deadline_ms=30_000).create("a", b"x") is CREATED


@pytest.mark.guarantee("G3", "G4")
@on_few
def test_nothing_acknowledged_is_lost_or_doubled_behind_a_lying_server(real, proxy):
    """Two of three roots answer as the lies have it; the rows sent are the rows read, each once, in order."""
    roots = RealRoots.of(real, 3, ports=[None, proxy.port, proxy.port])
    store = roots.make("orders")
    draw = random.Random(7)
    lies = [lie for name, lie in LIES.items() if name != "hang"]
    sent = []
    settings = {"acks": "all", "request.timeout.ms": 20_000, "retry.backoff.ms": 5}
    stored, inline = store.producer(settings, inline_max_bytes=0), store.producer(settings, inline_max_bytes=4096)
    with stored, inline:
        for number in range(10):
            producer = inline if number in (1, 4, 5, 8) else stored
            for _ in range(2):
                proxy.plan(real.put, draw.choice(lies))
                proxy.plan("GET", draw.choice([PlannedAnswer(HttpFault.CUT_ANSWER), PlannedAnswer(BEFORE, 503)]))
            sent.append(b"%d" % number)
            assert producer.send("orders", sent[-1], partition=0).result(timeout=60).offset == number
    proxy.clear()
    again = spark_replog.open(roots.path, roots.options)
    assert again.topic("orders").scan().to_arrow()["value"].to_pylist() == sent
    assert roots.replog("store", "repair", "-y")[0] == 0
    assert roots.replog("store", "verify", "--deep")[0] == 0
