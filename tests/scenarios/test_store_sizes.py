"""Stores of one, two, four, five and seven brokers, and what each survives."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from crc32c import crc32c

from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ReplogError
from spark_replog.storage.paths import data_key

pytestmark = pytest.mark.usefixtures("short_tail_retry")


@pytest.fixture
def make_store(tmp_path: Path, store):
    def make(brokers: int, **config: int):
        path = tmp_path / f"of-{brokers}"
        init_cluster(str(path), brokers, fsync=False)
        return type(store)(path, CoordinatorConfig(replica_rejoin_wait_ms=0, **config))

    return make


def write(store, batch: int, away: frozenset[int] = frozenset()) -> None:
    holders = {broker for log in store.controller.describe_topic("orders").partitions for broker in log.isr} - away
    response = store.append("orders", {0: 1, 1: 2}, batch=batch, holders=holders)
    if response.error is not None:
        raise response.error


def test_one_broker_is_like_one_directory(make_store) -> None:
    store = make_store(1)
    store.create("orders", 2, None)
    for batch in range(5):
        write(store, batch)
        if batch == 2:
            store.reopen()
    assert store.high_watermarks("orders") == [5, 10]
    assert store.controller.describe_topic("orders").partitions[0].replicas == (0,)


def test_two_brokers_stop_when_one_is_gone_and_lose_nothing(make_store) -> None:
    store = make_store(2, delivery_timeout_ms=400)
    store.create("orders", 2, None)
    write(store, 0)
    objects = (store.put("orders", {0: 1, 1: 2}, {0}),)
    store.away(1)
    response = store.append("orders", {}, batch=1, objects=objects)
    assert isinstance(response.error, ReplogError)
    assert response.error.code.name in ("REPLOG_NO_QUORUM", "REPLOG_COMMIT_OUTCOME_UNKNOWN", "NOT_ENOUGH_REPLICAS")
    store.back(1)
    write(store, 1)
    assert store.high_watermarks("orders") == [2, 4]


@pytest.mark.parametrize(("brokers", "metadata"), [(4, 3), (5, 5), (7, 5)])
def test_larger_stores(make_store, brokers: int, metadata: int) -> None:
    store = make_store(brokers)
    assert len(store.cluster.brokers.metadata_broker_ids) == metadata
    store.create("orders", 2, None)
    write(store, 0)
    gone = store.controller.describe_topic("orders").partitions[0].leader
    store.away(gone)
    store.reopen()
    write(store, 1, frozenset({gone}))
    assert gone not in store.isr("orders")
    store.back(gone)
    write(store, 2)
    assert len(store.isr("orders")) == 3
    assert store.high_watermarks("orders") == [3, 6]


@pytest.mark.guarantee("G4")
def test_five_brokers_survive_two(make_store) -> None:
    store = make_store(5)
    store.create("orders", 2, 5)
    write(store, 0)
    store.away(1), store.away(4)
    write(store, 1, frozenset({1, 4}))
    assert set(store.isr("orders")) == {0, 2, 3}
    store.reopen()
    write(store, 2)
    store.back(1), store.back(4)
    write(store, 3)
    assert set(store.isr("orders")) == {0, 1, 2, 3, 4}
    assert store.high_watermarks("orders") == [4, 8]


def holders_of(store, away: frozenset[int]) -> dict[int, frozenset[int]]:
    partitions = store.controller.describe_topic("orders").partitions
    return {number: frozenset(partition.isr) - away for number, partition in enumerate(partitions)}


def append_to_each(store, batch: int, away: frozenset[int] = frozenset()) -> None:
    """Append one row to each partition, in objects of their own that only their in-sync replicas get."""
    objects = tuple(store.put("orders", {number: 1}, held) for number, held in holders_of(store, away).items())
    response = store.append("orders", {}, batch=batch, objects=objects)
    if response.error is not None:
        raise response.error


@pytest.mark.guarantee("G4")
def test_any_two_of_five_brokers_may_go_at_any_time(make_store) -> None:
    """Three copies of each row: every pair takes both followers of some partition, or its leader and one."""
    store = make_store(5, replica_lag_time_max_ms=300)
    store.create("orders", 5, 3, config={"min.insync.replicas": "1"})
    batch = 0
    append_to_each(store, batch)
    for pair in itertools.combinations(range(5), 2):
        for broker in pair:
            store.away(broker)
        store.reopen()
        for again in range(2):  # what was acknowledged before, and what is acknowledged without them
            assert store.high_watermarks("orders") == [batch + 1] * 5
            for partition in range(5):
                for section in store.sections("orders", partition):
                    item = section.object
                    left = sorted(item.holders - frozenset(pair))
                    body = store.cluster.brokers.store(left[0]).get(data_key(item.ledger_id, 0, item.id.name))
                    assert crc32c(bytes(body)) == section.crc32c
            if not again:
                batch += 1
                append_to_each(store, batch, frozenset(pair))
        for broker in pair:
            store.back(broker)
        for _ in range(2):  # the first finds them back, the second counts on them
            batch += 1
            append_to_each(store, batch)
        assert {len(log.isr) for log in store.controller.describe_topic("orders").partitions} == {3}
