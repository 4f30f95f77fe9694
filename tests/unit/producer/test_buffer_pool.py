"""Kafka's ``BufferPoolTest``, for a pool that counts; its cases about reused buffers have no caller here."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.producer.buffer_pool import BufferPool, PinnedBytes

WAIT_SECONDS = 10


def pool(total_bytes: int, clock: Any = SYSTEM_CLOCK) -> BufferPool:
    return BufferPool(total_bytes, clock=clock)


def start(function: Any) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def until(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come about")


def test_simple() -> None:
    it = pool(65_536)
    it.allocate(1_024, 10)
    assert it.available_bytes == 64_512
    it.deallocate(1_024)
    assert it.available_bytes == 65_536


def test_cannot_allocate_more_than_there_is() -> None:
    it = pool(1_024)
    it.allocate(1_024, 10)
    it.deallocate(1_024)
    with pytest.raises(InvalidConfigError) as caught:
        it.allocate(1_025, 10)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_delayed_allocation() -> None:
    it = pool(5_120)
    it.allocate(1_024, 10)
    thread = start(lambda: it.allocate(5_120, WAIT_SECONDS * 1000))
    until(lambda: it.queued_count == 1)
    it.deallocate(1_024)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert it.available_bytes == 0


def test_exhausted_gives_back_what_it_had() -> None:
    it = pool(2)
    it.allocate(1, 10)
    with pytest.raises(RetriableError, match=r"max\.block\.ms") as caught:
        it.allocate(2, 10)
    assert caught.value.code is ErrorCode.REPLOG_BUFFER_EXHAUSTED
    assert (it.queued_count, it.available_bytes) == (0, 1)


def test_first_come_first_served() -> None:
    it = pool(4)
    it.allocate(4, 10)
    served: list[str] = []

    def ask(name: str, size_bytes: int) -> None:
        it.allocate(size_bytes, WAIT_SECONDS * 1000)
        served.append(name)

    first = start(lambda: ask("large", 3))
    until(lambda: it.queued_count == 1)
    second = start(lambda: ask("small", 1))
    until(lambda: it.queued_count == 2)
    it.deallocate(1)
    it.deallocate(1)
    assert it.queued_count == 2
    it.deallocate(1)
    first.join(WAIT_SECONDS)
    assert served == ["large"]
    it.deallocate(1)
    second.join(WAIT_SECONDS)
    assert served == ["large", "small"]


def test_next_waiter_is_served_when_the_first_gives_up() -> None:
    it = pool(2)
    it.allocate(1, 10)

    def give_up() -> None:
        with pytest.raises(RetriableError):
            it.allocate(2, 100)

    first = start(give_up)
    until(lambda: it.queued_count == 1)
    second = start(lambda: it.allocate(1, WAIT_SECONDS * 1000))
    first.join(WAIT_SECONDS)
    second.join(WAIT_SECONDS)
    assert (it.queued_count, it.available_bytes) == (0, 0)


def test_close_fails_all_waiters_and_new_ones() -> None:
    it = pool(1)
    it.allocate(1, 10)
    codes: list[ErrorCode] = []

    def ask() -> None:
        with pytest.raises(ReplogError) as caught:
            it.allocate(1, WAIT_SECONDS * 1000)
        codes.append(caught.value.code)

    threads = [start(ask), start(ask)]
    until(lambda: it.queued_count == 2)
    it.close()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    ask()
    assert codes == [ErrorCode.INVALID_REQUEST] * 3
    it.deallocate(1)
    assert it.available_bytes == 1


def test_large_numbers() -> None:
    it = pool(20_000_000_000)
    it.allocate(18_000_000_000, 0)
    assert it.available_bytes == 2_000_000_000


def test_charges_may_pass_the_total_and_come_first_when_given_back() -> None:
    it = pool(10)
    it.allocate(8, 0)
    it.charge(8)
    assert it.available_bytes == -6
    it.deallocate(8)
    assert it.available_bytes == 2


def test_single_thread_drives_its_sender(clock: Any) -> None:
    it = pool(10, clock)
    it.allocate(10, 0)
    left: list[int] = []

    def run_once(left_ms: int) -> None:
        assert it.queued_count == 1
        left.append(left_ms)
        clock.sleep_ms(30)
        if len(left) == 3:
            it.deallocate(6)

    it.allocate(5, 100, run_once)
    assert left == [100, 70, 40]
    assert it.available_bytes == 1
    with pytest.raises(RetriableError):
        it.allocate(5, 100, run_once)
    assert (it.queued_count, it.available_bytes) == (0, 1)


def test_error_of_the_sender_leaves_the_queue_clean(clock: Any) -> None:
    it = pool(10, clock)
    it.allocate(9, 0)

    def run_once(_left_ms: int) -> None:
        raise RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS, "gone.")

    with pytest.raises(RetriableError, match="gone"):
        it.allocate(5, 100, run_once)
    assert (it.queued_count, it.available_bytes) == (0, 1)


def test_stress() -> None:
    it = pool(5_120)

    def work(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(2_000):
            size_bytes = 1_024 if source.random() < 0.5 else source.randrange(5_120)
            it.allocate(size_bytes, 60_000)
            it.deallocate(size_bytes)

    threads = [start(lambda seed=seed: work(seed)) for seed in range(8)]
    for thread in threads:
        thread.join(60)
    assert it.available_bytes == 5_120
    assert it.queued_count == 0


def test_pinned_bytes_go_with_the_last_slice() -> None:
    it = pool(100)
    it.allocate(100, 0)
    pinned = PinnedBytes(it, 100)
    pinned.retain(40)
    pinned.retain(50)
    pinned.release()
    assert not pinned.is_wasteful
    pinned.release(50)
    assert pinned.is_wasteful
    assert it.available_bytes == 0
    pinned.release(40)
    assert it.available_bytes == 100
