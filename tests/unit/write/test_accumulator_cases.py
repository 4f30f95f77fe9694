"""Kafka's ``RecordAccumulatorTest``, for single records and a plain producer's rules of readiness."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_replog.errors import ReplogError
from spark_replog.write.producer_batch import BatchState, Destination, ProducerBatch, RecordColumns
from spark_replog.write.record_handle import BatchResult, RecordHandle
from tests.unit.write.accumulator_setup import ERROR, NODE_1, NODE_2, TP, Setup, put_back, records


@pytest.mark.case("kafka-7")
def test_case_7_full(clock: Any) -> None:
    setup = Setup(clock, batch_size=1025)
    handles = [setup.add(0, value=b"%084d" % number) for number in range(10)]
    queue = setup.queues[0]
    assert len(queue.batches) == 1 and not queue.batches[0].is_full
    assert setup.ready() == set()
    setup.add(0)
    assert len(queue.batches) == 2
    assert setup.ready() == {NODE_1}
    (first, _) = setup.drain()
    assert records(first) == [b"%084d" % number for number in range(10)]
    setup.it.succeed(first, 7, None)
    assert [handle.result(0).offset for handle in handles] == list(range(7, 17))


@pytest.mark.case("kafka-8")
def test_case_8_append_large(clock: Any) -> None:
    setup = Setup(clock, batch_size=512)
    handle = setup.add(0, value=b"x" * 1024, time_ms=77)
    assert setup.ready() == {NODE_1}
    (batch,) = setup.drain()
    assert (batch.row_count, batch.size_bytes) == (1, 1040)
    assert records(batch) == [b"x" * 1024]
    setup.it.succeed(batch, 0, None)
    assert handle.result(0) == ("orders", 0, 0, 77)


@pytest.mark.case("kafka-8")
def test_case_8_two_large_ones_are_two_batches(clock: Any) -> None:
    setup = Setup(clock, batch_size=512)
    setup.add(0, 1040)
    setup.add(0, 1040)
    assert [batch.row_count for batch in setup.queues[0].batches] == [1, 1]


@pytest.mark.case("kafka-9")
def test_case_9_linger(clock: Any) -> None:
    setup = Setup(clock, linger_ms=10)
    setup.add(0)
    assert setup.ready() == set()
    clock.time_ms = 10
    assert setup.ready() == {NODE_1}
    assert [batch.row_count for batch in setup.drain()] == [1]


@pytest.mark.case("kafka-10")
def test_case_10_next_ready_check_delay(clock: Any) -> None:
    setup = Setup(clock, linger_ms=10)
    for _ in range(10):
        setup.add(0)
    assert (setup.ready(), setup.delay()) == (set(), 10)
    clock.time_ms = 5
    for _ in range(10):
        setup.add(2)
    assert (setup.ready(), setup.delay()) == (set(), 5)
    for _ in range(11):
        setup.add(1)
    assert setup.ready() == {NODE_1}
    delay = setup.delay()
    assert delay is not None and delay <= 10


@pytest.mark.case("kafka-11")
def test_case_11_partial_drain(clock: Any) -> None:
    setup = Setup(clock, request_size=1024)
    for partition in (0, 1):
        setup.add(partition, 1024)
    assert setup.ready() == {NODE_1}
    assert setup.partitions() == [0]


@pytest.mark.case("kafka-12")
def test_case_12_drain_batches(clock: Any) -> None:
    setup = Setup(clock, request_size=1024, nodes=(NODE_1, NODE_1, NODE_2, NODE_2))

    def add(*partitions: int) -> None:
        for partition in partitions:
            setup.add(partition, 1024)

    add(0, 1, 2, 3)
    assert setup.partitions(NODE_1, NODE_2) == [0, 2]
    add(0, 2)
    assert setup.partitions(NODE_1, NODE_2) == [1, 3]
    assert setup.partitions(NODE_1, NODE_2) == [0, 2]
    add(1, 2, 3)
    setup.it.mute([TP[3]])
    assert setup.partitions(NODE_1, NODE_2) == [1, 2]
    add(0, 1, 2)
    setup.it.unmute([TP[3]])
    setup.it.config = replace(setup.it.config, max_request_size_bytes=1 << 20)
    assert sorted(setup.partitions(NODE_1, NODE_2)) == [0, 1, 2, 3]


@pytest.mark.case("kafka-13")
def test_case_13_a_batch_larger_than_a_request_goes_alone_and_ends_a_drain(clock: Any) -> None:
    setup = Setup(clock, request_size=1000, batch_size=500)
    setup.add(0, 400)
    setup.add(1, 3000)
    assert setup.partitions() == [0]
    assert setup.partitions() == [1]


@pytest.mark.case("kafka-14")
def test_case_14_muted_partitions(clock: Any) -> None:
    setup = Setup(clock, linger_ms=10)
    for _ in range(11):
        setup.add(0)
    clock.time_ms = 2000
    setup.it.mute([TP[0]])
    assert (setup.ready(), setup.drain()) == (set(), [])
    setup.it.unmute([TP[0]])
    assert setup.ready() == {NODE_1}
    assert setup.drain()


@pytest.mark.case("kafka-15")
def test_case_15_retry_backoff(clock: Any) -> None:
    setup = Setup(clock, linger_ms=1000, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000)
    setup.add(0)
    clock.time_ms = 1001
    (batch,) = setup.drain()
    put_back(setup, batch)
    setup.add(1)
    clock.time_ms += 1001
    assert setup.ready() == {NODE_1}
    assert setup.partitions() == [1]
    clock.time_ms = 1001 + 12_001
    assert setup.ready() == {NODE_1}
    assert setup.partitions() == [0]


@pytest.mark.case("kafka-16-17")
@pytest.mark.parametrize("has_leader_change", [False, True])
def test_cases_16_and_17_exponential_retry_backoff_and_leader_change(clock: Any, has_leader_change: bool) -> None:
    setup = Setup(clock, linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    setup.add(0)
    (batch,) = setup.drain()
    node = NODE_1
    for attempt in range(6):
        put_back(setup, batch)
        failed_ms = clock.time_ms
        pause_ms = min(1000, 100 * 2**attempt)
        clock.time_ms = int(failed_ms + pause_ms * 0.8 - 1)
        assert (setup.ready(), setup.drain(node)) == (set(), [])
        if has_leader_change:
            node = replace(NODE_1, leader=attempt)
            setup.it.assign(setup.queues[0], node)
        else:
            clock.time_ms = int(failed_ms + pause_ms * 1.2 + 1)
        assert setup.ready() == {node}
        assert setup.drain(node) == [batch]


@pytest.mark.case("kafka-18")
def test_case_18_flush(clock: Any) -> None:
    setup = Setup(clock, batch_size=8192)
    for number in range(100):
        setup.add(number % 3)
    assert setup.ready() == set()
    results = setup.it.begin_flush()
    assert setup.is_flushing
    assert setup.ready() == {NODE_1, NODE_2}
    drained = setup.drain(NODE_1, NODE_2)
    later = setup.add(0)
    for batch in drained:
        setup.it.succeed(batch, 0, None)
    assert all(result.is_decided for result in results)
    assert not later.done()
    setup.it.end_flush()
    assert not setup.is_flushing
    assert setup.ready() == set()


@pytest.mark.case("kafka-18")
def test_case_18_an_interrupted_flush_ends(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(clock)
    setup.add(0)

    def interrupt(_result: BatchResult, _timeout: float | None) -> bool:
        assert setup.is_flushing
        raise KeyboardInterrupt

    monkeypatch.setattr(BatchResult, "wait_until_settled", interrupt)
    with pytest.raises(KeyboardInterrupt):
        setup.it.flush()
    assert not setup.is_flushing


@pytest.mark.parametrize("place", ["of_records", "try_append", "queue"])
def test_an_interrupt_while_a_batch_is_opened_leaves_a_usable_queue(
    clock: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Ctrl-C in ``send`` comes right after a call; the producer is closed afterwards, and sends what it has."""

    def interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> None:
            function(*arguments)
            raise KeyboardInterrupt

        return call

    class InterruptedQueue(deque[ProducerBatch]):
        append = interrupted(deque.append)

    setup = Setup(clock)
    queue = setup.queues[0]
    with monkeypatch.context() as patch:
        if place == "queue":
            patch.setattr(queue, "batches", InterruptedQueue())
        elif place == "of_records":
            patch.setattr(ProducerBatch, "of_records", interrupted(ProducerBatch.of_records))
        else:
            patch.setattr(RecordColumns, "try_append", interrupted(RecordColumns.try_append))
        with pytest.raises(KeyboardInterrupt):
            setup.add(0, value=b"interrupted")
        left = list(queue.batches)
    queue.batches = deque(left)
    for number in range(3):
        setup.add(0, value=b"%d" % number)
    setup.add(1, value=b"other")
    assert setup.it.waiting_count == sum(len(other_queue.batches) for other_queue in setup.queues)
    setup.it.close()
    values = []
    while batches := setup.drain(NODE_1):
        assert all(batch.row_count for batch in batches)
        values += [value for batch in batches for value in records(batch)]
        for batch in batches:
            setup.it.succeed(batch, 0, None)
    first = [b"interrupted"] if place == "queue" else []
    assert sorted(values) == sorted([*first, b"0", b"1", b"2", b"other"])
    assert not setup.it.waiting_count and not setup.it.has_incomplete
    assert setup.pool.available_bytes == setup.pool.total_bytes


def fill(setup: Setup) -> tuple[list[RecordHandle], list[ProducerBatch]]:
    """100 records over 3 partitions in small batches; some are drained."""
    handles = [setup.add(number % 3, 64) for number in range(100)]
    assert setup.ready() == {NODE_1, NODE_2}
    drained = setup.drain(NODE_1)[:5]
    count = sum(batch.row_count for batch in drained)
    assert 0 < count < 100
    return handles, drained


@pytest.mark.case("kafka-19")
def test_case_19_abort_incomplete(clock: Any) -> None:
    setup = Setup(clock, batch_size=128, request_size=128 * 5)
    told: list[ReplogError | None] = []
    handles, _ = fill(setup)
    for handle in handles:
        handle.add_done_callback(lambda done: told.append(done.exception(0)))
    setup.it.abort_incomplete(ERROR)
    assert told == [ERROR] * 100
    assert not setup.it.waiting_count and not setup.it.has_incomplete
    assert setup.pool.available_bytes == setup.pool.total_bytes
    with pytest.raises(ReplogError, match="closed"):
        setup.add(0)


@pytest.mark.case("kafka-20")
def test_case_20_abort_unsent(clock: Any) -> None:
    setup = Setup(clock, batch_size=128, request_size=128 * 5)
    handles, drained = fill(setup)
    setup.it.abort_waiting(ERROR)
    failed = [handle for handle in handles if handle.done()]
    assert len(failed) + sum(batch.row_count for batch in drained) == 100
    assert {handle.exception(0) for handle in failed} == {ERROR}
    assert {batch.state for batch in drained} == {BatchState.INCOMPLETE}
    assert not setup.it.waiting_count and setup.it.has_incomplete


@pytest.mark.case("kafka-21")
@pytest.mark.parametrize("is_muted", [False, True])
def test_case_21_expired_batch_single(clock: Any, is_muted: bool) -> None:
    setup = Setup(clock, linger_ms=300, delivery_timeout_ms=3200)
    setup.add(0)
    clock.time_ms = 300
    assert setup.ready() == {NODE_1}
    assert setup.it.expired_batches(300) == []
    assert setup.it.next_expiry_ms(300) == 2900
    if is_muted:
        setup.it.mute([TP[0]])
        assert setup.ready() == set()
    clock.time_ms = 3200
    (expired,) = setup.it.expired_batches(3200)
    assert expired.row_count == 1
    setup.it.fail(expired, ERROR)
    assert setup.ready() == set()
    assert not setup.it.has_incomplete


@pytest.mark.case("kafka-22")
def test_case_22_expired_batches(clock: Any) -> None:
    setup = Setup(clock, linger_ms=30, delivery_timeout_ms=3200, retry_backoff_ms=100)
    for _ in range(11):
        setup.add(0)
    setup.it.mute([TP[0]])
    clock.time_ms = 3201
    assert len(setup.it.expired_batches(3201)) == 2
    assert setup.it.expired_batches(3201) == []
    setup.it.unmute([TP[0]])
    setup.add(0)
    clock.time_ms += 31
    (batch,) = setup.drain()
    clock.time_ms += 1000 + 100
    put_back(setup, batch)
    assert setup.it.expired_batches(clock.time_ms) == []


@pytest.mark.case("kafka-25")
def test_case_25_batches_that_fit_are_never_split(clock: Any) -> None:
    # Sizes here are exact and before compression, so no ratio has to be guessed.
    source = random.Random(0)
    setup = Setup(clock, batch_size=1024, request_size=1024)
    for _ in range(500):
        setup.add(0, 17 + source.randrange(900))
    drained: list[ProducerBatch] = []
    while batches := setup.drain():
        drained += batches
    assert {batch.state for batch in drained} == {BatchState.INCOMPLETE}
    assert max(batch.size_bytes for batch in drained) <= 1024
    assert sum(batch.row_count for batch in drained) == 500


@pytest.mark.case("kafka-27")
def test_case_27_ready_and_drain_while_a_batch_is_retried(clock: Any) -> None:
    setup = Setup(clock, linger_ms=0, retry_backoff_ms=1_000, retry_backoff_max_ms=1_000)
    node_100, node_101, node_102 = (replace(NODE_1, leader=number) for number in (100, 101, 102))
    setup.it.assign(setup.queues[0], node_100)
    setup.add(0)
    (batch,) = setup.drain(node_100)
    put_back(setup, batch)
    clock.time_ms = 1
    assert (setup.ready(), setup.drain(node_100)) == (set(), [])
    setup.it.assign(setup.queues[0], node_101)
    clock.time_ms = 2
    assert setup.ready() == {node_101}
    assert setup.drain(node_101) == [batch]
    put_back(setup, batch)
    assert setup.ready() == set()  # the leader is no longer new
    clock.time_ms = 2 + 2_000
    assert setup.ready() == {node_101}
    assert setup.drain(node_101) == [batch]
    put_back(setup, batch)
    setup.it.assign(setup.queues[0], node_102)
    clock.time_ms += 2_000
    assert setup.ready() == {node_102}
    assert setup.drain(node_102) == [batch]


@pytest.mark.case("kafka-28")
def test_case_28_a_node_without_partitions(clock: Any) -> None:
    setup = Setup(clock)
    assert setup.drain(NODE_2, Destination("ledger", 0, (9,), None, "none")) == []


@pytest.fixture(autouse=True)
def _no_callback_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not caplog.records
