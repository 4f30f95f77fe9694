"""Kafka's DelayedOperationTest cases."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.commit.purgatory import DelayedOperation, DelayedOperationPurgatory, Timer
from tests.manual_clock import ManualClock
from tests.waiting import wait_until


class Operation(DelayedOperation):
    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.is_ready = False
        self.tried = 0
        self.completed = 0
        self.expired = 0

    def try_complete(self) -> bool:
        self.tried += 1
        return self.is_ready and self.force_complete()

    def on_complete(self) -> None:
        self.completed += 1

    def on_expiration(self) -> None:
        self.expired += 1


def watched_count(purgatory: DelayedOperationPurgatory) -> int:
    """Return how many (operation, key) pairs are listed, completed ones not yet purged included."""
    return sum(map(len, purgatory.watchers.values()))


@pytest.mark.case("server-testrequestsatisfaction")
def test_request_satisfaction() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock())
    first, second = Operation(100_000), Operation(100_000)
    assert purgatory.check_and_complete("test1") == 0
    assert not purgatory.try_complete_else_watch(first, ["test1"])
    assert not purgatory.try_complete_else_watch(second, ["test2"])
    assert purgatory.check_and_complete("test1") == 0
    first.is_ready = True
    assert purgatory.check_and_complete("test1") == 1
    assert purgatory.check_and_complete("test1") == 0
    second.is_ready = True
    assert purgatory.check_and_complete("test2") == 1
    assert (purgatory.timer.size, watched_count(purgatory)) == (0, 0)


@pytest.mark.case("server-testrequestexpiry")
def test_request_expiry() -> None:
    clock = ManualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    first, second = Operation(20), Operation(200_000)
    purgatory.try_complete_else_watch(first, ["test1"])
    purgatory.try_complete_else_watch(second, ["test2"])
    clock.time_ms = 19
    purgatory.advance()
    assert not first.is_completed
    clock.time_ms = 20
    purgatory.advance()
    assert (first.completed, first.expired) == (1, 1)
    assert not second.is_completed
    assert purgatory.timer.size == 1


@pytest.mark.case("server-testrequestpurge")
def test_request_purge() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock(), purge_interval=0)
    operations = [Operation(100_000) for _ in range(3)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [f"test{key + 1}" for key in range(number + 1)])
    assert (purgatory.timer.size, watched_count(purgatory)) == (3, 6)
    operations[1].is_ready = True
    operations[1].safe_try_complete()
    assert (purgatory.timer.size, watched_count(purgatory)) == (2, 6)
    operations[2].is_ready = True
    operations[2].safe_try_complete()
    assert purgatory.timer.size == 1
    purgatory.check_and_complete("test1")
    assert watched_count(purgatory) == 4
    purgatory.check_and_complete("test2")
    assert watched_count(purgatory) == 2
    purgatory.check_and_complete("test3")
    assert watched_count(purgatory) == 1


def test_advance_purges_when_enough_have_completed() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock(), purge_interval=5)
    for _ in range(10):
        operation = Operation(100_000)
        purgatory.try_complete_else_watch(operation, ["a", "b"])
        operation.force_complete()
    assert watched_count(purgatory) == 20
    purgatory.advance()
    assert watched_count(purgatory) == 0


@pytest.mark.case("server-6-2-order-complete-watch-complete")
def test_ready_at_once_is_never_registered() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock())
    operation = Operation(1000)
    operation.is_ready = True
    assert purgatory.try_complete_else_watch(operation, ["key"])
    assert (operation.tried, watched_count(purgatory), purgatory.timer.size) == (1, 0, 0)


@pytest.mark.case("server-6-2-order-complete-watch-complete")
def test_an_event_during_registration_is_not_missed() -> None:
    class ReadySecondTime(Operation):
        def try_complete(self) -> bool:
            self.is_ready = self.tried == 1
            return super().try_complete()

    purgatory = DelayedOperationPurgatory(clock=ManualClock())
    operation = ReadySecondTime(1000)
    assert purgatory.try_complete_else_watch(operation, ["key"])
    assert (operation.completed, purgatory.timer.size) == (1, 0)


@pytest.mark.case("server-testsafetrycompleteorelse")
def test_safe_try_complete_or_else() -> None:
    operation = Operation(1000)
    ran: list[str] = []
    assert not operation.safe_try_complete_or_else(lambda: ran.append("else"))
    operation.is_ready = True
    assert operation.safe_try_complete_or_else(lambda: ran.append("else"))
    assert ran == ["else"]


def test_keys_are_needed() -> None:
    with pytest.raises(ValueError, match="key"):
        DelayedOperationPurgatory().try_complete_else_watch(Operation(1), [])


@pytest.mark.case("server-exactly-once")
def test_completes_exactly_once_under_a_race() -> None:
    for _ in range(50):
        operation = Operation(1000)
        start = threading.Barrier(4)

        def race(operation: Operation = operation, start: threading.Barrier = start) -> bool:
            start.wait()
            return operation.force_complete()

        with ThreadPoolExecutor(4) as pool:
            won = [future.result() for future in [pool.submit(race) for _ in range(4)]]
        assert (sum(won), operation.completed) == (1, 1)


@pytest.mark.case("server-testtrycompletewithmultiplethr")
def test_try_complete_with_multiple_threads() -> None:
    class TwentiethTime(DelayedOperation):
        def __init__(self) -> None:
            super().__init__(10_000)
            self.attempts = 0

        def try_complete(self) -> bool:
            return self.attempts >= 20 and self.force_complete()

    purgatory = DelayedOperationPurgatory()
    operations = [TwentiethTime() for _ in range(100)]
    for number, operation in enumerate(operations):
        assert not purgatory.try_complete_else_watch(operation, [number])

    def check(number: int) -> None:
        time.sleep(random.random() / 100)
        with operations[number].lock:
            operations[number].attempts += 1
        purgatory.check_and_complete(number)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(check, [number for _ in range(20) for number in range(100)]))
    assert all(operation.is_completed for operation in operations)
    assert purgatory.timer.size == 0


def test_await_completion_drives_the_timer() -> None:
    purgatory = DelayedOperationPurgatory()
    operation = Operation(30)
    started_ms = SYSTEM_CLOCK.monotonic_ms()
    purgatory.try_complete_else_watch(operation, ["key"])
    purgatory.await_completion(operation, lambda: None, 1_000, 1_000)
    assert SYSTEM_CLOCK.monotonic_ms() - started_ms >= 29
    assert (operation.completed, operation.expired) == (1, 1)


def test_await_completion_sees_another_threads_event() -> None:
    purgatory = DelayedOperationPurgatory()
    operation = Operation(60_000)
    purgatory.try_complete_else_watch(operation, ["key"])

    def finish() -> None:
        operation.is_ready = True
        purgatory.check_and_complete("key")

    threading.Timer(0.05, finish).start()
    purgatory.await_completion(operation, lambda: None, 1_000, 1_000)
    assert (operation.completed, operation.expired, purgatory.timer.size) == (1, 0, 0)


@pytest.mark.case("server-testlockintrycompleteelsewatch")
def test_the_lock_is_held_from_the_first_look_to_the_second() -> None:
    # testLockInTryCompleteElseWatch
    class LooksAtLock(Operation):
        def try_complete(self) -> bool:
            seen.append(_is_held_by_another(self.lock))
            return super().try_complete()

    seen: list[bool] = []
    purgatory = DelayedOperationPurgatory(clock=ManualClock())
    purgatory.try_complete_else_watch(LooksAtLock(1000), ["key"])
    assert seen == [True, True]


def _is_held_by_another(lock: threading.RLock) -> bool:  # type: ignore[valid-type]
    """Return whether another thread cannot take the lock now."""

    def try_lock() -> bool:
        if lock.acquire(blocking=False):
            lock.release()
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(try_lock).result()


@pytest.mark.case("server-testlockintrycompleteelsewatch")
def test_a_check_waits_for_the_registration_of_its_operation() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock())
    tried_again, may_go_on = threading.Event(), threading.Event()

    class SlowSecondLook(Operation):
        def try_complete(self) -> bool:
            if self.tried == 1 and not tried_again.is_set():
                tried_again.set()
                assert may_go_on.wait(10)
            return super().try_complete()

    operation = SlowSecondLook(1000)
    with ThreadPoolExecutor(2) as pool:
        watching = pool.submit(purgatory.try_complete_else_watch, operation, ["key"])
        assert tried_again.wait(10)
        checking = pool.submit(purgatory.check_and_complete, "key")
        may_go_on.set()
        assert not watching.result(10)
        assert checking.result(10) == 0
        operation.is_ready = True
        assert purgatory.check_and_complete("key") == 1
    assert operation.completed == 1


@pytest.mark.case("server-testsafetrycompleteorelse")
def test_the_or_else_runs_only_after_a_first_look_that_failed() -> None:
    operation = Operation(1000)
    operation.is_ready = True
    ran: list[str] = []
    assert operation.safe_try_complete_or_else(lambda: ran.append("else"))
    assert (ran, operation.tried) == ([], 1)


@pytest.mark.case("server-testrequestpurge")
def test_an_expired_operation_is_purged_from_all_its_lists() -> None:
    clock = ManualClock()
    purgatory = DelayedOperationPurgatory(clock=clock, purge_interval=0)
    operations = [Operation(10) for _ in range(5)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["a", "b", "c"])
    assert (purgatory.timer.size, watched_count(purgatory)) == (5, 15)
    clock.time_ms = 10
    assert purgatory.advance() == 5
    assert (purgatory.timer.size, watched_count(purgatory)) == (0, 0)
    assert [operation.expired for operation in operations] == [1] * 5


def test_waiting_operations_are_kept_by_a_purge() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock(), purge_interval=0)
    kept, done = Operation(1000), Operation(1000)
    for operation in (kept, done):
        purgatory.try_complete_else_watch(operation, ["key"])
    done.force_complete()
    assert purgatory.purge() == 1
    assert watched_count(purgatory) == 1
    kept.is_ready = True
    assert purgatory.check_and_complete("key") == 1


def test_keys_of_completed_operations_leave_nothing_behind() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock())
    operations = [Operation(1000) for _ in range(10_000)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [number])
        operation.is_ready = True
    assert sum(purgatory.check_and_complete(number) for number in range(10_000)) == 10_000
    assert (purgatory.timer.size, watched_count(purgatory)) == (0, 0)


def test_waiting_ends_at_once_for_what_has_completed() -> None:
    operation = Operation(1000)
    assert not operation.wait(1)
    operation.force_complete()
    assert operation.wait(0)


def test_who_waits_is_woken_by_the_completion() -> None:
    operation = Operation(1000)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(operation.wait(60_000)), daemon=True)
    thread.start()
    wait_until(lambda: operation._finished is not None)
    operation.force_complete()
    thread.join(10)
    assert woken == [True]


def test_the_timer_of_what_completed_meanwhile_is_stopped_again() -> None:
    timer = Timer(0)
    operation = Operation(1000)
    operation.force_complete()
    operation.start_timer(timer, 1000)
    assert timer.size == 0


def test_advance_does_not_purge_before_enough_have_completed() -> None:
    purgatory = DelayedOperationPurgatory(clock=ManualClock(), purge_interval=5)
    for _ in range(5):
        operation = Operation(100_000)
        purgatory.try_complete_else_watch(operation, ["a", "b"])
        operation.force_complete()
    purgatory.advance()
    assert watched_count(purgatory) == 10
