"""Handles: decided once, told in order, whole through a split."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.write.record_handle import UNKNOWN_OFFSET, BatchResult, RecordHandle, RecordMetadata

ERROR = RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few.")
OTHER = ReplogError(ErrorCode.INVALID_RECORD, "bad.")


def result_of(count: int) -> tuple[BatchResult, list[RecordHandle]]:
    result = BatchResult(TopicPartition("orders", 3))
    result.timestamps.extend(range(1000, 1000 + count))
    return result, [RecordHandle(result, index) for index in range(count)]


def test_offsets_and_own_timestamps() -> None:
    result, handles = result_of(3)
    assert not any(handle.done() for handle in handles)
    result.decide(40, None)
    assert all(handle.done() for handle in handles)
    assert handles[2].result() == RecordMetadata("orders", 3, 42, 1002)
    assert handles[0].exception() is None


def test_append_time_and_unknown_offsets() -> None:
    result, handles = result_of(2)
    result.decide(UNKNOWN_OFFSET, 7)
    assert handles[1].result() == RecordMetadata("orders", 3, -1, 7)


def test_every_record_of_a_failed_batch_has_its_error() -> None:
    result, handles = result_of(3)
    result.decide(error=ERROR)
    assert [handle.exception() for handle in handles] == [ERROR] * 3
    with pytest.raises(ReplogError) as raised:
        handles[1].result()
    assert raised.value is ERROR


def test_not_yet_is_a_timeout_that_says_so() -> None:
    result, (handle,) = result_of(1)
    with pytest.raises(TimeoutError, match=r"\[REQUEST_TIMED_OUT\].*orders-3"):
        handle.result(timeout=0)
    result.decide(0, None)
    assert handle.result(timeout=0).offset == 0


@pytest.mark.skipif(not __debug__, reason="asserts an assertion")
def test_a_batch_is_decided_once() -> None:
    result, _ = result_of(1)
    result.decide(0, None)
    with pytest.raises(AssertionError):
        result.decide(error=ERROR)


@pytest.mark.parametrize("mistake", [ValueError, SystemExit, asyncio.CancelledError])
def test_callbacks_run_in_the_order_of_records_when_all_are_done(
    caplog: pytest.LogCaptureFixture, mistake: type[BaseException]
) -> None:
    result, handles = result_of(3)
    seen: list[Any] = []

    def record(handle: RecordHandle) -> None:
        seen.append((handles.index(handle), all(other.done() for other in handles)))

    def fail(_handle: RecordHandle) -> None:
        raise mistake("mistake")

    handles[2].add_done_callback(record)
    handles[0].add_done_callback(fail)
    handles[1].add_done_callback(record)
    result.decide(0, None)
    assert seen == [(1, True), (2, True)]
    assert "a callback of send() raised" in caplog.text
    handles[0].add_done_callback(record)
    assert seen[-1] == (0, True)


def test_a_callback_may_ask_any_handle_of_its_batch_without_a_timeout() -> None:
    result, handles = result_of(2)
    seen: list[int] = []
    handles[0].add_done_callback(lambda _: seen.extend(handle.result().offset for handle in handles))
    thread = threading.Thread(target=result.decide, args=(5, None), daemon=True)
    thread.start()
    thread.join(10)
    assert seen == [5, 6]


def test_a_slow_callback_keeps_no_waiter_waiting() -> None:
    result, (handle,) = result_of(1)
    goes_on, seen = threading.Event(), list[int]()
    handle.add_done_callback(lambda _: goes_on.wait(20))
    deciding = threading.Thread(target=result.decide, args=(5, None), daemon=True)
    waiting = threading.Thread(target=lambda: seen.append(handle.result().offset), daemon=True)
    for thread in (waiting, deciding):
        thread.start()
    waiting.join(10)
    assert seen == [5]
    assert not result.wait_until_settled(0)
    goes_on.set()
    deciding.join(10)
    assert result.wait_until_settled(0)


def test_waiters_wake() -> None:
    result, (handle,) = result_of(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(handle.result(10).offset), daemon=True)
    thread.start()
    result.decide(5, None)
    thread.join(10)
    assert seen == [5]


def test_parked_batches_let_a_flush_pass_but_are_not_decided() -> None:
    result, (handle,) = result_of(1)
    assert not result.wait_until_settled(0)
    result.park()
    assert result.wait_until_settled(0)
    assert not handle.done()
