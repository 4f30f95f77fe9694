"""Rates and averages over windows, as Kafka's ``SampledStat`` has them."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from spark_replog.client.metrics import ProducerMetrics, Sampled
from spark_replog.client.producer import Producer
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.write.buffer_pool import BufferPool
from tests.faulty_store import Fault
from tests.unit.client.producer_setup import sender_of, thread_of

pytestmark = pytest.mark.case("producer-values-metrics-clock")

PAGE = Path(__file__).parents[3] / "docs/producer.md"
WINDOW_SECONDS = 30
"""Kafka counts a rate's first window as a whole one: two samples of 30 s."""


@pytest.fixture
def timed(request, shop, clock):
    """A producer whose time is the test's: 40 ms pass with every put, and nothing goes before a flush."""
    shop.topic()
    given = {"linger.ms": 60_000, "retry.backoff.ms": 0, "max.block.ms": 0} | getattr(request, "param", {})
    made = Producer(shop.cluster, given, clock=clock)
    shop.producers.append(made)
    made.partitions_for("orders")
    put = sender_of(made)._transport.put

    def slow_put(*given, **named):
        clock.sleep_ms(40)
        put(*given, **named)

    sender_of(made)._transport.put = slow_put
    return made


def test_a_rate_counts_the_windows_before_the_first_one_as_empty():
    sampled = Sampled(2, 30_000)
    sampled.record(300, 1, 1_000, 300)
    assert sampled.rate(1_000) == 10  # 300 in one assumed window of 30 s
    assert sampled.rate(16_000) == pytest.approx(300 / 45)
    sampled.record(300, 1, 31_000, 300)
    assert sampled.rate(31_000) == pytest.approx(600 / 30)


def test_all_of_one_window_count():
    sampled = Sampled(2, 30_000)
    for number in range(5):
        sampled.record(10 * number, 1, 1_700_000_000_000 + number, 10 * number)
    assert sampled.average(1_700_000_000_004) == 20
    assert sampled.rate(1_700_000_000_000 + 4) == pytest.approx(100 / 30.004)


def test_old_windows_are_forgotten():
    sampled = Sampled(2, 1_000)
    sampled.record(7, 1, 0, 7)
    sampled.record(1, 1, 1_500, 1)
    sampled.record(1, 1, 2_600, 1)
    assert sampled.maximum(2_600) == 1
    assert sampled.average(2_600) == 1
    assert (sampled.rate(9_999), sampled.average(9_999), sampled.maximum(9_999)) == (0, 0, 0)


def test_averages_weigh_by_count(clock):
    metrics = ProducerMetrics(2, 30_000, clock)
    metrics.note({}, [("record-size", 300, 3, 100)], clock.monotonic_ms())
    metrics.observe("record-size", 500)
    values = metrics.read()
    assert (values["record-size-avg"], values["record-size-max"]) == (200, 500)


def test_totals_never_fall(clock):
    metrics = ProducerMetrics(2, 1_000, clock)
    metrics.count("record-send", 5)
    clock.sleep_ms(10_000)
    assert metrics.read()["record-send-total"] == 5
    assert metrics.read()["record-send-rate"] == 0


def test_records_that_fail_behind_send_are_counted(shop):
    shop.topic()
    producer = shop.producer()
    producer.send("orders", b"v").result(10)
    shop.controller.delete_topic("orders")
    assert producer.send("orders", b"v").exception(10) is not None
    assert producer.metrics()["record-error-total"] == 1
    assert isinstance(producer.metrics()["buffer-available-bytes"], (int, float))


def test_records_that_wait_when_the_producer_is_forced_to_close_are_counted(shop):
    shop.topic()
    producer = shop.producer(linger__ms=60_000)
    producer.partitions_for("orders")
    handle = producer.send("orders", b"v")
    thread_of(producer).force(ReplogError(ErrorCode.REPLOG_PRODUCER_CLOSED, "gone."))
    assert handle.exception(10).code is ErrorCode.REPLOG_PRODUCER_CLOSED
    assert producer.metrics()["record-error-total"] == 1


def test_values_of_one_request_are_kafkas(shop, timed, clock):
    for size_bytes in (100, 200, 600):
        timed.send("orders", b"v" * (size_bytes - 16))
    clock.sleep_ms(250)
    timed.flush()
    metrics = timed.metrics()
    (key,) = shop.brokers.data_keys(0)
    outgoing_bytes = len(shop.brokers.counting[0].store.get(key))
    seconds = WINDOW_SECONDS + 0.04  # the put's 40 ms have passed since
    expected = {
        "record-send-total": 3,
        "record-send-rate": 3 / seconds,
        "record-retry-total": 0,
        "record-error-rate": 0,
        "request-total": 1,
        "request-rate": 1 / seconds,
        "outgoing-byte-total": outgoing_bytes,
        "outgoing-byte-rate": outgoing_bytes / seconds,
        "batch-size-avg": 900,
        "batch-size-max": 900,
        "records-per-request-avg": 3,
        "record-size-avg": 300,
        "record-size-max": 600,
        "record-queue-time-avg": 250,
        "record-queue-time-max": 250,
        "request-latency-avg": 40,
        "request-latency-max": 40,
        "commit-total": 1,
        "requests-per-commit-avg": 1,
        "produce-throttle-time-avg": 0,
        "bufferpool-wait-ratio": 0,
        "buffer-available-bytes": metrics["buffer-total-bytes"],
        "waiting-threads": 0,
        "requests-in-flight": 0,
        "metadata-topics": 1,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_averages_are_over_batches_and_maxima_over_all(timed, clock):
    for size_bytes, waited_ms in ((116, 100), (316, 500)):
        timed.send("orders", b"v" * (size_bytes - 16))
        clock.sleep_ms(waited_ms)
        timed.flush()
    table = pa.table({"value": pa.array([b"v" * 84, b"v" * 984], pa.binary())})
    timed.send_arrow("orders", table)
    timed.flush()
    metrics = timed.metrics()
    assert (metrics["batch-size-avg"], metrics["batch-size-max"]) == (pytest.approx((116 + 316 + 1100) / 3), 1100)
    assert (metrics["record-size-avg"], metrics["record-size-max"]) == ((116 + 316 + 1100) / 4, 1000)
    assert (metrics["record-queue-time-avg"], metrics["record-queue-time-max"]) == (200, 500)
    assert (metrics["records-per-request-avg"], metrics["records-per-request-max"]) == (pytest.approx(4 / 3), 2)


@pytest.mark.parametrize("timed", [{"transactional.id": "till"}], indirect=True)
def test_a_transactions_puts_have_their_latency_too(timed):
    with timed.transaction():
        timed.send("orders", b"v")
    metrics = timed.metrics()
    assert (metrics["request-latency-avg"], metrics["commit-total"], metrics["record-send-total"]) == (40, 1, 1)


def test_a_retry_is_sent_and_counted_again(shop, timed):
    for _ in range(2):
        timed.send("orders", b"v")
    shop.brokers.faulty[0].fail_next("create", Fault.REFUSE, key_part="/data/")
    timed.flush()
    metrics = timed.metrics()
    assert (metrics["record-retry-total"], metrics["record-send-total"], metrics["request-total"]) == (2, 4, 2)
    assert metrics["record-retry-rate"] == pytest.approx(2 / WINDOW_SECONDS, rel=0.01)
    assert metrics["record-error-total"] == 0


def test_a_record_that_is_refused_counts_in_the_rate_of_errors(timed):
    assert timed.send("nothing", b"v").exception(0).code is ErrorCode.REQUEST_TIMED_OUT
    metrics = timed.metrics()
    assert (metrics["record-error-total"], metrics["record-error-rate"]) == (1, pytest.approx(1 / WINDOW_SECONDS))


@pytest.mark.parametrize(
    ("timed", "said"),
    [
        (
            {"max.block.ms": 60_000, "retry.backoff.ms": 500},
            ["topic 'nothing' does not exist; waiting for it for up to max.block.ms (60000)"],
        ),
        ({"max.block.ms": 900, "retry.backoff.ms": 500}, []),
    ],
    indirect=["timed"],
)
def test_a_wait_of_more_than_a_second_for_a_topic_is_told_once(timed, clock, caplog, said):
    started_ms = clock.monotonic_ms()
    heard_ms = []
    caplog.handler.addFilter(lambda _: not heard_ms.append(clock.monotonic_ms() - started_ms))
    assert timed.send("nothing", b"v").exception(0).code is ErrorCode.REQUEST_TIMED_OUT
    assert caplog.messages == said
    assert all(1_000 <= waited_ms < 1_600 for waited_ms in heard_ms)


def test_the_wait_ratio_is_the_part_of_the_time_in_which_an_append_waited(clock):
    metrics = ProducerMetrics(2, WINDOW_SECONDS * 1000, clock)
    pool = BufferPool(100, clock=clock, on_wait=metrics.on_pool_wait)
    pool.allocate(100, 0)

    def give_back(_left_ms):
        clock.sleep_ms(3_000)
        pool.deallocate(100)

    pool.allocate(100, 10_000, give_back)
    assert metrics.read()["bufferpool-wait-ratio"] == pytest.approx(3 / WINDOW_SECONDS)
    assert metrics.read()["buffer-exhausted-rate"] == 0
    with pytest.raises(RetriableError):
        pool.allocate(1, 2_000, clock.sleep_ms)
    # Two more seconds of waiting, two seconds later.
    assert metrics.read()["bufferpool-wait-ratio"] == pytest.approx(5 / (WINDOW_SECONDS + 2))
    assert metrics.read()["buffer-exhausted-rate"] == pytest.approx(1 / WINDOW_SECONDS)


def test_the_page_lists_every_name_and_no_other(timed):
    section = PAGE.read_text().partition("## Metrics")[2].partition("\n## ")[0]
    listed = set()
    for row in [line.split("|") for line in section.splitlines() if line.startswith("| `")]:
        endings = re.findall("`(-[a-z]+)`", row[2])
        for name, star in re.findall("`([a-z-]+)(-[*])?`", row[1]):
            listed |= {name + ending for ending in endings} if star else {name}
    assert listed == set(timed.metrics())
