from __future__ import annotations

import sys
import threading
from contextlib import suppress

import pytest

from spark_replog.storage import io_pool as module
from spark_replog.storage.io_pool import IoPool
from tests.waiting import wait_until


def test_results_and_errors_come_back():
    pool = IoPool()
    assert pool.submit(divmod, 7, 2).result(60) == (3, 1)
    assert pool.submit_to("a", int, "ff", base=16).result(60) == 255
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(60)


def test_a_hung_lane_leaves_the_others_alone():
    pool = IoPool(lane_threads_max=2)
    release = threading.Event()
    hung = [pool.submit_to("s3://hung", release.wait) for _ in range(10)]
    assert [pool.submit_to("file:///ok", pow, 2, n).result(60) for n in range(5)] == [1, 2, 4, 8, 16]
    busy = [t for t in threading.enumerate() if t.name.endswith("s3://hung")]
    assert len(busy) == 2 and all(thread.daemon for thread in busy)
    assert hung[-1].cancel()
    release.set()
    assert all(future.result(60) for future in hung[:-1])


def test_a_lane_runs_its_calls_at_the_same_time():
    pool = IoPool(lane_threads_max=4)
    barrier = threading.Barrier(4)
    assert sorted(f.result(60) for f in [pool.submit(barrier.wait, 60) for _ in range(4)]) == [0, 1, 2, 3]


def test_threads_are_reused_and_end_when_idle(monkeypatch):
    pool = IoPool()
    monkeypatch.setattr(module, "THREAD_IDLE_SECONDS_MAX", 600.0)
    assert len({pool.submit_to("idle lane", threading.get_ident).result(60) for _ in range(20)}) == 1
    monkeypatch.setattr(module, "THREAD_IDLE_SECONDS_MAX", 0.05)
    pool.submit_to("idle lane", int).result(60)  # after it the thread waits only so long
    wait_until(lambda: not any(t.name.endswith("idle lane") for t in threading.enumerate()))
    assert pool.submit_to("idle lane", pow, 2, 3).result(60) == 8


def test_many_calls_from_many_threads_all_finish():
    pool = IoPool(lane_threads_max=3)
    results = []

    def work(number):
        results.extend(pool.submit_to(str(number % 2), pow, number, 2).result(60) for _ in range(50))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 300


def test_no_reference_to_a_result_is_kept():
    class Body:
        ended = threading.Event()

        def __del__(self):
            self.ended.set()

    pool = IoPool()
    future = pool.submit(Body)
    future.result(60)
    del future
    assert Body.ended.wait(60)


def test_a_call_behind_an_idle_thread_that_is_taken_gets_a_thread_of_its_own():
    for trial in range(20):
        pool = IoPool(lane_threads_max=2)
        pool.submit_to(f"warm {trial}", pow, 2, 2).result(60)
        barrier = threading.Barrier(2)
        pair = [pool.submit_to(f"warm {trial}", barrier.wait, 60) for _ in range(2)]
        assert sorted(future.result(60) for future in pair) == [0, 1]


def test_an_exit_inside_a_call_is_an_answer_too():
    pool = IoPool(lane_threads_max=1)
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result(60)
    assert pool.submit(pow, 2, 2).result(60) == 4


def test_without_a_new_thread_a_call_waits_for_one_that_is_there_or_fails_at_once(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    pool = IoPool()
    release = threading.Event()
    busy = pool.submit(release.wait, 60)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    behind = pool.submit(pow, 2, 2)
    with pytest.raises(RuntimeError, match="new thread"):
        pool.submit_to("empty lane", pow, 2, 3)
    seen = []
    with pytest.raises(RuntimeError, match="new thread"):
        pool.post_to("empty lane", seen.append, 7)
    release.set()
    assert busy.result(60) and behind.result(60) == 4
    monkeypatch.undo()
    assert pool.submit_to("empty lane", pow, 2, 5).result(60) == 32 and not seen


def test_of_two_calls_at_once_that_get_no_thread_none_relies_on_the_others(monkeypatch):
    pool, failed, both_start = IoPool(), [], threading.Barrier(2)

    def refuse(thread):
        with suppress(threading.BrokenBarrierError):
            both_start.wait(0.5)
        raise RuntimeError("can't start new thread")

    def submit():
        try:
            pool.submit(pow, 2, 2)
        except RuntimeError as error:
            failed.append(error)

    monkeypatch.setattr(module.DaemonThread, "start", refuse)
    callers = [threading.Thread(target=submit) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    monkeypatch.undo()
    assert len(failed) == 2
    assert pool.submit(pow, 2, 5).result(60) == 32


def test_a_lane_that_has_ended_begins_nothing():
    pool = IoPool(lane_threads_max=1)
    begun, release = threading.Event(), threading.Event()

    def hold():
        begun.set()
        return release.wait(60)

    posted = []
    held, waiting = pool.submit_to("a", hold), pool.submit_to("a", int)
    pool.post_to("a", posted.append, 1)
    assert begun.wait(60)
    pool._lanes["a"].end()
    with pytest.raises(SystemExit):
        waiting.result(60)
    with pytest.raises(SystemExit):
        pool.submit_to("a", int)
    with pytest.raises(SystemExit):
        pool.post_to("a", posted.append, 2)
    release.set()
    assert held.result(60) is True and not posted


def test_a_posted_call_runs_and_its_error_is_logged(caplog):
    pool = IoPool(lane_threads_max=1)
    pool.post_to("a", divmod, 1, 0)
    pool.post_to("a", sys.exit)
    seen = []
    pool.post_to("a", seen.append, 7)
    assert pool.submit_to("a", list, seen).result(60) == [7]
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]
