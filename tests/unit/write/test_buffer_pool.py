"""Kafka's ``BufferPoolTest``: reservations, which only count, and buffers that are used again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.write.buffer_pool import BufferPool, PinnedBytes
from tests.waiting import wait_until

WAIT_SECONDS = 10


def pool(total_bytes: int, clock: Any = SYSTEM_CLOCK, poolable_bytes: int = 0) -> BufferPool:
    return BufferPool(total_bytes, clock=clock, poolable_bytes=poolable_bytes)


def start(function: Any) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_simple() -> None:
    it = pool(65_536)
    it.allocate(1_024, 10)
    assert it.available_bytes == 64_512
    it.deallocate(1_024)
    assert it.available_bytes == 65_536


@pytest.mark.case("kafka-32")
def test_cannot_allocate_more_than_there_is() -> None:
    it = pool(1_024)
    it.allocate(1_024, 10)
    it.deallocate(1_024)
    with pytest.raises(InvalidConfigError) as caught:
        it.allocate(1_025, 10)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.case("kafka-33")
def test_delayed_allocation() -> None:
    it = pool(5_120)
    it.allocate(1_024, 10)
    thread = start(lambda: it.allocate(5_120, WAIT_SECONDS * 1000))
    wait_until(lambda: len(it.waiters) == 1)
    it.deallocate(1_024)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert it.available_bytes == 0


@pytest.mark.case("kafka-34")
def test_exhausted_gives_back_what_it_had() -> None:
    it = pool(2)
    it.allocate(1, 10)
    with pytest.raises(RetriableError, match=r"max\.block\.ms") as caught:
        it.allocate(2, 10)
    assert caught.value.code is ErrorCode.REPLOG_BUFFER_EXHAUSTED
    assert (len(it.waiters), it.available_bytes) == (0, 1)


@pytest.mark.case("kafka-36")
def test_first_come_first_served() -> None:
    it = pool(4)
    it.allocate(4, 10)
    served: list[str] = []

    def ask(name: str, size_bytes: int) -> None:
        it.allocate(size_bytes, WAIT_SECONDS * 1000)
        served.append(name)

    first = start(lambda: ask("large", 4))
    wait_until(lambda: len(it.waiters) == 1)
    second = start(lambda: ask("small", 1))
    wait_until(lambda: len(it.waiters) == 2)
    for _ in range(3):
        it.deallocate(1)
        assert (len(it.waiters), served) == (2, [])
    it.deallocate(1)
    first.join(WAIT_SECONDS)
    assert (len(it.waiters), served) == (1, ["large"])
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
    wait_until(lambda: len(it.waiters) == 1)
    second = start(lambda: it.allocate(1, WAIT_SECONDS * 1000))
    first.join(WAIT_SECONDS)
    second.join(WAIT_SECONDS)
    assert (len(it.waiters), it.available_bytes) == (0, 0)


@pytest.mark.case("kafka-38")
def test_close_fails_all_waiters_and_new_ones() -> None:
    it = pool(1)
    it.allocate(1, 10)
    codes: list[ErrorCode] = []

    def ask() -> None:
        with pytest.raises(ReplogError) as caught:
            it.allocate(1, WAIT_SECONDS * 1000)
        codes.append(caught.value.code)

    threads = [start(ask), start(ask)]
    wait_until(lambda: len(it.waiters) == 2)
    it.close()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    ask()
    assert codes == [ErrorCode.REPLOG_PRODUCER_CLOSED] * 3
    it.deallocate(1)
    assert it.available_bytes == 1


def test_a_wait_may_be_as_long_as_a_setting_allows() -> None:
    """Kafka's Long.MAX_VALUE in max.block.ms: for ever."""
    it = pool(2)
    it.allocate(2, 0)
    waiting = start(lambda: it.allocate(1, 2**63 - 1))
    wait_until(lambda: len(it.waiters) == 1 or not waiting.is_alive())
    it.deallocate(2)
    waiting.join(WAIT_SECONDS)
    assert (len(it.waiters), it.available_bytes) == (0, 1)


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
        assert len(it.waiters) == 1
        left.append(left_ms)
        clock.sleep_ms(30)
        if len(left) == 3:
            it.deallocate(6)

    it.allocate(5, 100, run_once)
    assert left == [100, 70, 40]
    assert it.available_bytes == 1
    with pytest.raises(RetriableError):
        it.allocate(5, 100, run_once)
    assert (len(it.waiters), it.available_bytes) == (0, 1)


def test_error_of_the_sender_leaves_the_queue_clean(clock: Any) -> None:
    it = pool(10, clock)
    it.allocate(9, 0)

    def run_once(_left_ms: int) -> None:
        raise RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS, "gone.")

    with pytest.raises(RetriableError, match="gone"):
        it.allocate(5, 100, run_once)
    assert (len(it.waiters), it.available_bytes) == (0, 1)


class TestBuffers:
    @pytest.mark.case("kafka-31")
    def test_simple(self) -> None:
        it = pool(65_536, poolable_bytes=1_024)
        first = it.allocate_buffer(1_024, 10)
        assert len(first) == 1_024
        assert (it.unallocated_bytes, it.available_bytes) == (64_512, 64_512)
        it.deallocate(1_024, first)
        assert (it.unallocated_bytes, it.available_bytes) == (64_512, 65_536)
        assert it.allocate_buffer(1_024, 10) is first
        it.deallocate(1_024, first)
        large = it.allocate_buffer(2_048, 10)
        it.deallocate(2_048, large)
        assert (it.unallocated_bytes, it.available_bytes) == (64_512, 65_536)

    def test_free_buffers_make_room_for_other_sizes(self) -> None:
        it = pool(1_024, poolable_bytes=512)
        kept = [it.allocate_buffer(512, 10) for _ in range(2)]
        for buffer in kept:
            it.deallocate(512, buffer)
        assert it.unallocated_bytes == 0
        it.allocate(600, 10)
        assert (it.unallocated_bytes, it.available_bytes) == (424, 424)

    def test_a_waiter_takes_a_returned_buffer_whole(self) -> None:
        it = pool(1_024, poolable_bytes=1_024)
        buffer = it.allocate_buffer(1_024, 10)
        got: list[bytearray] = []
        thread = start(lambda: got.append(it.allocate_buffer(1_024, WAIT_SECONDS * 1000)))
        wait_until(lambda: len(it.waiters) == 1)
        it.deallocate(1_024, buffer)
        thread.join(WAIT_SECONDS)
        assert got[0] is buffer
        assert it.available_bytes == 0

    def test_a_waiter_that_gives_up_with_a_buffer_in_hand_gives_it_back(self, clock: Any) -> None:
        it = pool(1_024, clock, poolable_bytes=1_024)
        it.allocate(1_024, 10)

        def run_once(_left_ms: int) -> None:
            it.deallocate(1_024)
            raise RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS, "gone.")

        with pytest.raises(RetriableError, match="gone"):
            it.allocate(1_024, 100, run_once)
        assert (len(it.waiters), it.available_bytes) == (0, 1_024)

    def test_large_available_memory(self) -> None:
        class Counted(BufferPool):
            def _new_buffer(self, size_bytes: int) -> bytearray:
                return OfAnySize(size_bytes)

        class OfAnySize(bytearray):
            def __init__(self, size_bytes: int) -> None:
                super().__init__()
                self.size_bytes = size_bytes

            def __len__(self) -> int:
                return self.size_bytes

        it = Counted(20_000_000_000, clock=SYSTEM_CLOCK, poolable_bytes=2_000_000_000)
        large = it.allocate_buffer(2_000_000_000, 0)
        assert (it.available_bytes, it.unallocated_bytes) == (18_000_000_000, 18_000_000_000)
        it.deallocate(2_000_000_000, large)
        assert (it.available_bytes, it.unallocated_bytes) == (20_000_000_000, 18_000_000_000)
        first, second = it.allocate_buffer(2_000_000_000, 0), it.allocate_buffer(2_000_000_000, 0)
        assert first is large
        assert (it.available_bytes, it.unallocated_bytes) == (16_000_000_000, 16_000_000_000)
        it.deallocate(2_000_000_000, first)
        it.deallocate(2_000_000_000, second)
        assert (it.available_bytes, it.unallocated_bytes) == (20_000_000_000, 16_000_000_000)

    @pytest.mark.case("kafka-37")
    def test_out_of_memory_gives_the_bytes_back_and_serves_the_next(self) -> None:
        class Poor(BufferPool):
            is_poor = True

            def _new_buffer(self, size_bytes: int) -> bytearray:
                if self.is_poor:
                    wait_until(lambda: len(self.waiters) == 1)
                    raise MemoryError
                return super()._new_buffer(size_bytes)

        it = Poor(1_024, clock=SYSTEM_CLOCK, poolable_bytes=1_024)
        thread = start(lambda: it.allocate(1_000, WAIT_SECONDS * 1000))

        def ask() -> None:
            with pytest.raises(MemoryError):
                it.allocate_buffer(1_024, 10)

        it.allocate(24, 0)
        it.deallocate(24)
        thread.join(WAIT_SECONDS)
        it.deallocate(1_000)
        asking = start(ask)
        wait_until(lambda: it.available_bytes == 0)
        waiting = start(lambda: it.allocate(1_000, WAIT_SECONDS * 1000))
        asking.join(WAIT_SECONDS)
        waiting.join(WAIT_SECONDS)
        assert not waiting.is_alive()
        assert it.available_bytes == 24

    def test_nothing_is_kept_behind_close(self) -> None:
        it = pool(1_024, poolable_bytes=512)
        buffer = it.allocate_buffer(512, 0)
        it.close()
        it.deallocate(512, buffer)
        assert (it.unallocated_bytes, it.available_bytes) == (1_024, 1_024)

    def test_memory_that_something_may_still_read_is_not_used_again(self) -> None:
        it = pool(1_024, poolable_bytes=512)
        buffer = it.allocate_buffer(512, 0)
        pinned = PinnedBytes(it, 512, buffer)
        pinned.forbid_reuse()
        pinned.release()
        assert (it.unallocated_bytes, it.available_bytes) == (1_024, 1_024)


@pytest.mark.case("kafka-35")
def test_second_waiter_is_served_when_the_first_is_interrupted() -> None:
    it = pool(2)
    it.allocate(1, 0)
    go = threading.Event()

    def interrupt(_left_ms: int) -> None:
        go.wait(WAIT_SECONDS)
        raise KeyboardInterrupt

    def give_up() -> None:
        with pytest.raises(KeyboardInterrupt):
            it.allocate(2, WAIT_SECONDS * 1000, interrupt)

    first = start(give_up)
    wait_until(lambda: len(it.waiters) == 1)
    second = start(lambda: it.allocate(2, WAIT_SECONDS * 1000))
    wait_until(lambda: len(it.waiters) == 2)
    go.set()
    first.join(WAIT_SECONDS)
    assert len(it.waiters) == 1
    it.deallocate(1)
    second.join(WAIT_SECONDS)
    assert (len(it.waiters), it.available_bytes) == (0, 0)


@pytest.mark.case("kafka-37")
def test_a_clock_that_fails_while_waiting_loses_nothing() -> None:
    class Broken:
        calls = 0

        def monotonic_ms(self) -> int:
            self.calls += 1
            if self.calls > 1:
                raise OSError("no clock")
            return 0

    it = pool(2, Broken())
    it.allocate(1, 0)
    with pytest.raises(OSError, match="no clock"):
        it.allocate(2, 10)
    assert (len(it.waiters), it.available_bytes) == (0, 1)


def test_a_buffer_that_came_too_late_is_kept_for_the_next() -> None:
    class Broken:
        def monotonic_ms(self) -> int:
            if it.waiters:
                it.deallocate(8, buffer)
                raise OSError("no clock")
            return 0

    it = pool(8, Broken(), poolable_bytes=8)
    buffer = it.allocate_buffer(8, 0)
    with pytest.raises(OSError, match="no clock"):
        it.allocate_buffer(8, 10)
    assert (len(it.waiters), it.unallocated_bytes, it.available_bytes) == (0, 0, 8)
    assert it.allocate_buffer(8, 0) is buffer


def test_metrics(clock: Any) -> None:
    it = pool(100, clock)
    it.allocate(40, 0)
    assert it.metrics() == {
        "buffer-total-bytes": 100,
        "buffer-available-bytes": 60,
        "waiting-threads": 0,
        "bufferpool-wait-time-ns-total": 0,
        "buffer-exhausted-total": 0,
    }
    seen: list[float] = []

    def run_once(_left_ms: int) -> None:
        seen.append(it.metrics()["waiting-threads"])
        clock.sleep_ms(30)

    with pytest.raises(RetriableError):
        it.allocate(100, 50, run_once)
    assert seen == [1, 1]
    assert it.metrics()["bufferpool-wait-time-ns-total"] == 60_000_000
    assert it.metrics()["buffer-exhausted-total"] == 1


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
