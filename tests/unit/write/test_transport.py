"""Puts of one object on several roots: which answers end the wait of the sender."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.write import transport
from spark_replog.write.transport import PutTransport
from tests.unit.write.support import FaultyBrokers

KEY = "ledgers/" + "a" * 32 + "/data/0/x-0-0-" + "b" * 32 + ".arrow"


class Puts:
    def __init__(self, brokers: BrokerSet) -> None:
        self.transport = PutTransport(brokers)
        self.brokers = brokers
        self.ended = threading.Event()
        self.waiting = threading.Thread(target=self.wait_once, daemon=True)
        self.waiting.start()

    def wait_once(self) -> None:
        self.transport.wait(60_000)
        self.ended.set()

    def put(self, broker_id: int, quiet: Iterator[object]) -> bool:
        """Put the object, and wait for the answer; return whether the root holds it."""
        self.transport.put(broker_id, KEY, [b"rows"], sequence=0, attempt=1, quiet=quiet)
        return self.brokers.own_puts.wait(broker_id, KEY)


@pytest.fixture
def puts(make_brokers: Callable[[], FaultyBrokers]) -> Puts:
    return Puts(make_brokers())


def test_a_copy_that_changes_no_state_does_not_wake_the_sender(puts: Puts) -> None:
    quiet = iter(range(1))
    assert puts.put(0, quiet)
    assert not puts.ended.wait(0.05)
    assert puts.put(1, quiet)
    assert puts.ended.wait(60)
    answers = sorted((answer.broker_id, is_held) for answer, is_held in puts.transport.poll(0))
    assert answers == [(0, True), (1, True)]
    assert list(puts.transport.poll(0)) == []


def test_a_failed_put_wakes_the_sender_and_takes_no_quiet_place(puts: Puts) -> None:
    quiet = iter(range(1))
    other = puts.brokers.store(0)
    assert other.create(KEY, b"ROWS", make_parent=True) is CreateOutcome.CREATED
    assert not puts.put(0, quiet)
    assert puts.ended.wait(60)
    assert [is_held for _, is_held in puts.transport.poll(0)] == [False]
    assert list(quiet) == [0]


def test_a_put_that_no_thread_can_be_started_for_is_answered(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_a_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    quiet = iter(range(1))
    with monkeypatch.context() as patch:
        patch.setattr(transport, "IO_POOL", SimpleNamespace(submit_to=without_a_thread))
        puts.transport.put(0, KEY, [b"rows"], sequence=0, attempt=1, quiet=quiet)
    assert puts.ended.wait(60)
    ((answer, is_held),) = puts.transport.poll(0)
    assert isinstance(answer.error, RetriableError) and answer.error.code is ErrorCode.REPLOG_ENVIRONMENT
    assert not is_held and list(quiet) == [0]
    assert puts.put(0, iter(()))


def test_a_wake_ends_one_wait_and_a_poll_takes_it_away(puts: Puts) -> None:
    puts.transport.wake()
    assert puts.ended.wait(60)
    puts.transport.wake()
    assert list(puts.transport.poll(0)) == []
    again = threading.Thread(target=puts.wait_once, daemon=True)
    puts.ended.clear()
    again.start()
    assert not puts.ended.wait(0.05)
    puts.transport.wake()
    assert puts.ended.wait(60)
