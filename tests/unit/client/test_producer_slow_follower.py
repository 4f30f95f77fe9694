"""A follower that is slow to take objects delays neither acks=1 nor acks=0, and gets every object once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.producer_setup import Shop
from tests.unit.write.support import FaultyBrokers
from tests.waiting import wait_until

SLOW = 2


class SlowStore:
    """A root that creates data objects when its gate opens, and counts them."""

    def __init__(self, store: Any, gate: threading.Event, creates: Counter[str]) -> None:
        self._store, self._gate, self._creates = store, gate, creates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, key: str, data: Any, *, make_parent: bool = False) -> Any:
        if "/data/" in key:
            self._creates[key] += 1
            assert self._gate.wait(60)
        return self._store.create(key, data, make_parent=make_parent)


class SlowBrokers(FaultyBrokers):
    gate: threading.Event
    creates: Counter[str]

    def store(self, broker_id: int) -> Any:
        store = super().store(broker_id)
        return SlowStore(store, self.gate, self.creates) if broker_id == SLOW else store


@pytest.fixture
def slow_shop(tmp_path: Path) -> Iterator[Shop]:
    SlowBrokers.gate, SlowBrokers.creates = threading.Event(), Counter()
    made = Shop(tmp_path, SlowBrokers, brokers=3)
    yield made
    SlowBrokers.gate.set()
    made.close()


@pytest.mark.parametrize("acks", ["0", "1"])
def test_a_slow_follower_gets_each_object_once(slow_shop: Shop, acks: str) -> None:
    topic = slow_shop.topic(partitions=None, assignment=[[0, 1, SLOW]])
    producer = slow_shop.producer(acks=acks)
    for number in range(3):
        producer.send(topic, b"%d" % number).result(30)
    SlowBrokers.gate.set()

    def has_all() -> bool:
        producer.send(topic, b"more").result(30)
        return len(slow_shop.values(topic)) >= 3

    wait_until(has_all)
    assert slow_shop.values(topic)[:3] == [b"0", b"1", b"2"]
    producer.close(30)
    assert set(SlowBrokers.creates.values()) == {1}


def test_acks_0_answers_before_any_put(slow_shop: Shop) -> None:
    topic = slow_shop.topic(partitions=3, replicas=1)  # the slow broker leads one of them
    producer = slow_shop.producer(acks="0")
    handles = [producer.send(topic, b"v", partition=number) for number in range(3)]
    assert [handle.result(10).offset for handle in handles] == [-1, -1, -1]
    producer.flush(10)
    assert not SlowBrokers.gate.is_set()
