"""Rates and averages over windows, as Kafka's ``SampledStat`` has them."""

from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.producer.metrics import ProducerMetrics, Sampled


def test_a_rate_counts_the_windows_before_the_first_one_as_empty():
    sampled = Sampled(2, 30_000)
    sampled.record(300, 1, 1_000)
    assert sampled.rate(1_000) == 10  # 300 in one assumed window of 30 s
    assert sampled.rate(16_000) == pytest.approx(300 / 45)
    sampled.record(300, 1, 31_000)
    assert sampled.rate(31_000) == pytest.approx(600 / 30)


def test_old_windows_are_forgotten():
    sampled = Sampled(2, 1_000)
    sampled.record(7, 1, 0)
    sampled.record(1, 1, 1_500)
    sampled.record(1, 1, 2_600)
    assert sampled.maximum(2_600) == 1
    assert sampled.average(2_600) == 1
    assert (sampled.rate(9_999), sampled.average(9_999), sampled.maximum(9_999)) == (0, 0, 0)


def test_averages_weigh_by_count(clock):
    metrics = ProducerMetrics(2, 30_000, clock)
    metrics.observe("record-size", 300, 3)
    metrics.observe("record-size", 500)
    found = metrics.read()
    assert (found["record-size-avg"], found["record-size-max"]) == (200, 500)


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
    producer._thread.force(ReplogError(ErrorCode.REPLOG_PRODUCER_CLOSED, "gone."))
    assert handle.exception(10).code is ErrorCode.REPLOG_PRODUCER_CLOSED
    assert producer.metrics()["record-error-total"] == 1
