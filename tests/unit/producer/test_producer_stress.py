"""Eight threads on one Producer over roots that fail at random: every future once, acknowledged is read."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spark_replog.storage.brokers import BrokerSet
from spark_replog.testing.faulty_store import Fault, FaultRates, FaultyStore
from tests.unit.producer.conftest import FaultyBrokers
from tests.unit.producer.producer_setup import Shop

THREADS = 8
RECORDS = 250
PARTITIONS = 3
RATES = FaultRates(fail_before=0.1, lose_answer=0.1)


class RandomBrokers(FaultyBrokers):
    """Roots that fail once the test says so; each call is tried again for a while, as real stores are."""

    retry_deadline_ms = 200
    all_faulty: ClassVar[list[FaultyStore]] = []

    def __init__(self, inner: BrokerSet) -> None:
        super().__init__(inner)
        for broker_id, store in self.counting.items():
            self.faulty[broker_id] = FaultyStore(store, seed=broker_id + 17)
            self.all_faulty.append(self.faulty[broker_id])

    @classmethod
    def fail_at_random(cls, rates: FaultRates) -> None:
        for store in cls.all_faulty:
            store._rates = FaultyStore(store.store, rates=rates)._rates


@pytest.fixture
def failing_shop(tmp_path: Path) -> Iterator[Shop]:
    RandomBrokers.all_faulty = []
    made = Shop(tmp_path, RandomBrokers, brokers=3)
    made.topic(partitions=PARTITIONS, replicas=3)
    yield made
    RandomBrokers.fail_at_random(FaultRates())
    made.close()


@pytest.mark.parametrize("settings", [{}, {"max__in__flight__requests__per__connection": 1}])
def test_every_future_once_and_all_that_is_acknowledged_is_read(failing_shop: Shop, settings: dict[str, Any]) -> None:
    producer = failing_shop.producer(
        batch__size=700,
        max__request__size=3_000,
        buffer__memory=40_000,
        request__timeout__ms=5_000,
        delivery__timeout__ms=30_000,
        **settings,
    )
    producer.send("orders", b"first").result(10)
    RandomBrokers.fail_at_random(RATES)
    told: Counter[bytes] = Counter()
    handles: dict[bytes, Any] = {}

    def work(thread: int) -> None:
        source = random.Random(thread)
        for number in range(RECORDS):
            value = b"%d-%d-" % (thread, number) + b"x" * source.randrange(80)
            key = None if source.random() < 0.3 else b"%d" % source.randrange(20)
            handle = producer.send("orders", value, key=key)
            handle.add_done_callback(lambda _done, value=value: told.update([value]))
            handles[value] = handle

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    producer.flush(60)
    RandomBrokers.fail_at_random(FaultRates())
    assert len(handles) == THREADS * RECORDS
    assert told == Counter(handles.keys())
    values = [failing_shop.values("orders", partition) for partition in range(PARTITIONS)]
    acknowledged = [(value, handle.result(0)) for value, handle in handles.items() if handle.exception(0) is None]
    # An offset is -1 where the log knew the batch again, but no longer its place.
    for value, found in acknowledged:
        if found.offset >= 0:
            assert values[found.partition][found.offset] == value
        assert values[found.partition].count(value) == 1
    rows = Counter(value for part in values for value in part)
    assert max(rows.values()) == 1
    assert len(acknowledged) >= THREADS * RECORDS * 0.9
    assert sum(len(store.injected) for store in RandomBrokers.all_faulty) > 10


def test_a_failure_that_old_metadata_may_cause_fetches_it_anew(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.topic()
    producer = shop.producer()
    assert producer.send("orders", b"first").result(10).offset == 0
    calls: list[int] = []
    refresh = producer._metadata.refresh
    monkeypatch.setattr(producer._metadata, "refresh", lambda: (calls.append(1), refresh()))
    assert producer.send("orders", b"second").result(10).offset == 1
    assert calls == []
    shop.brokers.faulty[0].fail_next("create", Fault.REFUSE, key_part="/data/")
    assert producer.send("orders", b"third").result(10).offset == 2
    assert calls
