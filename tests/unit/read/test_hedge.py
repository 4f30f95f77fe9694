"""A slow root is not waited for: counted by gets, never by time."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.read import fetcher
from spark_replog.read.fetcher import (
    AVOIDED_READS,
    HEDGE_BURST_MAX,
    HEDGES,
    KEPT_COUNT,
    KNOWN_COUNT,
    Fetcher,
    HedgeBudget,
)
from tests.unit.read.conftest import Roots
from tests.unit.read.test_fetcher import damage, fetch, plan


class SlowRoots(Roots):
    """Slow roots answer when the test says so; sick ones fail, and let the slow ones answer.

    Attributes:
        answer: is set when slow roots may answer.
        slow_asked: is set once a slow root is asked; the others answer only then, or the second answer comes before
            a busy machine has begun the first get, which is then never sent.
    """

    def __init__(self, folder):
        super().__init__(folder, local=False)
        self.slow, self.sick = set(), set()
        self.answer, self.slow_asked = threading.Event(), threading.Event()

    def store(self, broker_id):
        return _Slow(self, broker_id, super().store(broker_id))

    def asked(self):
        brokers, self.gets = [call[0] for call in self.gets], []
        return brokers


class _Slow:
    def __init__(self, roots, broker_id, store):
        self.roots, self.broker_id, self.store = roots, broker_id, store

    def get(self, key, **what):
        content = self.store.get(key, **what)
        if self.broker_id in self.roots.slow:
            self.roots.slow_asked.set()
            assert self.roots.answer.wait(60)
        elif self.roots.slow:
            assert self.roots.slow_asked.wait(60)
        if self.broker_id in self.roots.sick:
            self.roots.answer.set()
            raise RetriableError(ErrorCode.KAFKA_STORAGE_ERROR, "root is away.")
        return content


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """Three remote roots; every read that is not answered at once is slow."""
    monkeypatch.setattr(fetcher, "HEDGE_MIN_MS", 0)
    monkeypatch.setattr(fetcher, "HEDGE_UNKNOWN_MS", 0)
    HEDGES.forget()
    made = SlowRoots(tmp_path)
    yield made
    made.answer.set()
    HEDGES.forget()


@pytest.fixture
def slow(roots, make_topic):
    """A slice, and the root that is asked first for it, which is slow now."""
    topic = make_topic(roots)
    topic.write([(0, [b"a"])])
    slices = plan(topic)
    fetch(roots, slices, fetcher=Fetcher(roots, hedge_ratio=0))
    (first,) = roots.asked()
    roots.slow.add(first)
    return slices, first


def read(roots, slices):
    fetcher = Fetcher(roots)
    assert fetch(roots, slices, fetcher=fetcher)["value"].to_pylist() == [b"a"]
    return fetcher.stats


def test_a_second_replica_answers_and_the_slow_one_is_asked_last(roots, slow, monkeypatch):
    slices, first = slow
    stats = read(roots, slices)
    assert (stats.hedges, stats.reads, HEDGES.avoided_url) == (1, 1, roots.url(first))
    asked = roots.asked()
    assert len(asked) == 2 and asked.count(first) == 1
    with monkeypatch.context() as patient:  # the others are in time, however busy the machine is
        patient.setattr(fetcher, "HEDGE_MIN_MS", 60_000)
        patient.setattr(fetcher, "HEDGE_UNKNOWN_MS", 60_000)
        for _ in range(3):
            read(roots, slices)
    asked = roots.asked()
    assert len(asked) == 3 and first not in asked
    url = roots.url(first)
    for _ in range(AVOIDED_READS):
        HEDGES.note(url, 0, 1.0)
    assert HEDGES.avoided_url != url
    roots.slow_asked.clear()
    read(roots, slices)
    assert first in roots.asked()


def test_where_the_second_replica_fails_the_first_is_waited_for(roots, slow):
    slices, first = slow
    roots.sick = {0, 1, 2} - {first}
    stats = read(roots, slices)
    assert (stats.hedges, HEDGES.avoided_url) == (1, "")
    assert roots.asked().count(first) == 1


def test_where_the_second_replica_has_no_good_copy_the_first_is_waited_for(roots, slow, monkeypatch):
    slices, first = slow
    for broker_id in {0, 1, 2} - {first}:
        roots.path(broker_id, slices[0].object.id.name).unlink()
    absent = _Slow.get

    def get(self, key, **what):
        if self.broker_id != first:
            roots.answer.set()
        return absent(self, key, **what)

    monkeypatch.setattr(_Slow, "get", get)
    stats = read(roots, slices)
    assert (stats.hedges, HEDGES.avoided_url) == (1, "")


def test_a_bad_copy_of_the_second_replica_is_reported_as_its_own(roots, slow, jobs, monkeypatch, warnings_logged):
    slices, first = slow
    roots.sick.add(first)
    second, plain = [], _Slow.get

    def get(self, key, **what):
        if self.broker_id != first and not second:
            second.append(self.broker_id)
            path = roots.path(self.broker_id, slices[0].object.id.name)
            damage(path, slices[0].start_byte + slices[0].size_bytes - 8)
            roots.answer.set()
            wait(jobs[roots.url(first)])  # the first has failed: the second's answer is the one that counts
        return plain(self, key, **what)

    monkeypatch.setattr(_Slow, "get", get)
    read(roots, slices)
    told = [record.getMessage() for record in warnings_logged.records]
    assert [f"broker={second[0]} " in message for message in told if "checksum" in message] == [True], told


def test_none_is_asked_where_it_is_switched_off_or_nobody_else_has_it(roots, slow, make_topic, monkeypatch):
    slices, _ = slow
    roots.slow.clear()
    monkeypatch.setattr(HedgeBudget, "take", lambda self: pytest.fail("a second get"))
    fetch(roots, slices, fetcher=Fetcher(roots, hedge_ratio=0))
    topic = make_topic(Roots(roots.folder / "other", local=False))
    topic.write([(0, [b"a"])], holders=[1])
    fetch(topic.roots, plan(topic))


def test_second_gets_are_a_part_of_the_reads():
    budget = HedgeBudget()
    for _ in range(1_000):
        budget.note("a", 1, 0.05)
    taken = 0
    for _ in range(1_000):
        taken += budget.take()
        budget.note("a", 1, 0.05)
    assert 50 <= taken <= 50 + HEDGE_BURST_MAX


def test_a_root_is_slow_after_the_p95_of_its_latest_reads(monkeypatch):
    monkeypatch.setattr(fetcher, "HEDGE_UNKNOWN_MS", 1_000)
    monkeypatch.setattr(fetcher, "HEDGE_MIN_MS", 20)
    budget = HedgeBudget()
    for number in range(KNOWN_COUNT):
        assert budget.after_ms("a") == 1_000
        budget.note("a", number, 0)
    assert budget.after_ms("a") == 20
    for number in range(KEPT_COUNT):
        budget.note("a", 100 + number, 0)
    assert budget.after_ms("a") == 100 + KEPT_COUNT * 95 // 100
    assert budget.after_ms("b") == 1_000
