"""Eight threads, a random failing store: every future completes once, and what was acknowledged is what is read."""

from __future__ import annotations

import threading

import pytest

from tests.faulty_store import FaultRates
from tests.unit.client.producer_setup import Shop
from tests.unit.write.support import FaultyBrokers

pytestmark = pytest.mark.case("producer-eight-threads-failing-roots")

THREADS = 8
RECORDS = 80
GENTLE = {"delivery.timeout.ms": 30_000, "request.timeout.ms": 3_000, "replica.lag.time.max.ms": 1_000}
ROUGH = {"delivery.timeout.ms": 300, "request.timeout.ms": 250, "replica.lag.time.max.ms": 100}
ONE_BY_ONE = GENTLE | {"max.in.flight.requests.per.connection": 1, "buffer.memory": 20_000}
SOME = FaultRates(fail_before=0.1, lose_answer=0.1, stall=0.05)
MANY = FaultRates(fail_before=0.15, lose_answer=0.15, stall=0.05)


def storm(shop, seed, rates):
    for number, store in shop.brokers.faulty.items():
        store.set_rates(rates, seed=seed * 10 + number, stall_ms=5)


def send_all(producer, completed):
    """Send from eight threads, with a flush now and then so that there are many requests."""
    handles = {}

    def work(thread):
        for index in range(RECORDS):
            number = thread * RECORDS + index
            key = b"%d" % thread if thread % 2 else None
            handle = handles[number] = producer.send("orders", b"%d" % number, key=key)
            handle.add_done_callback(lambda _, number=number: completed.append(number))
            if index % 10 == 9:
                producer.flush()

    threads = [threading.Thread(target=work, args=(thread_number,)) for thread_number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return handles


@pytest.mark.parametrize("inline_bytes", [0, 4096])
@pytest.mark.parametrize(
    ("settings", "rates", "seed"),
    [(GENTLE, SOME, 0), (ONE_BY_ONE, SOME, 1), (ROUGH, MANY, 0), pytest.param(ROUGH, MANY, 1, marks=pytest.mark.wide)],
    ids=["gentle", "one by one in little memory", "rough", "rough again"],
)
def test_each_future_completes_once_and_what_was_acknowledged_is_what_is_read(
    tmp_path, seed, settings, rates, inline_bytes
):
    shop = Shop(tmp_path, FaultyBrokers, brokers=3)
    shop.topic(partitions=3)
    sizes = {"batch.size": 400, "max.request.size": 4_000, "inline.max.bytes": inline_bytes}
    producer = shop.producer(**{**sizes, **settings})
    producer.partitions_for("orders")
    storm(shop, seed, rates)
    completed: list[int] = []
    handles = send_all(producer, completed)
    storm(shop, seed, FaultRates())
    final = [producer.send("orders", b"-%d" % (partition + 1), partition=partition) for partition in range(3)]
    producer.flush()
    for number in range(9, 60):  # rough settings give a record up where a busy machine stands still for 0.3 s
        after = producer.send("orders", b"-%d" % number, partition=0)
        if after.exception(20) is None:
            break
    assert after.result(20).offset >= 0, "it goes on behind the storm"
    producer.close()
    assert sorted(completed) == list(range(THREADS * RECORDS))
    read = {partition: shop.values(partition=partition) for partition in range(3)}
    everything = [value for values in read.values() for value in values]
    assert len(set(everything)) == len(everything), "a record is there twice"
    for value, handle in [*((b"%d" % index, handle) for index, handle in handles.items()), (b"-%d" % number, after)]:
        if handle.exception(0) is None:
            where = handle.result(0)
            assert read[where.partition][where.offset] == value
    if settings is not ROUGH:
        assert all(handle.exception(0) is None for handle in [*handles.values(), *final])
        for thread in range(1, THREADS, 2):
            mine = [int(value) for value in everything if int(value) // RECORDS == thread]
            assert mine == sorted(mine)
    assert sum(len(store.injected) for store in shop.brokers.faulty.values()) > 20


def test_a_lost_root_stops_nobody(tmp_path):
    shop = Shop(tmp_path, FaultyBrokers, brokers=3)
    shop.topic()
    producer = shop.producer(**GENTLE)
    assert producer.send("orders", b"0").result(20).offset == 0
    shop.brokers.faulty[0].is_down = True
    assert [producer.send("orders", b"%d" % number).result(20).offset for number in (1, 2)] == [1, 2]
    shop.brokers.faulty[0].is_down = False
    assert producer.send("orders", b"3").result(20).offset == 3
    assert shop.values() == [b"0", b"1", b"2", b"3"]
