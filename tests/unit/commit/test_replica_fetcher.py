"""Copies to followers: verified, bounded at once, throttled where they may be, backing off after failures."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import pytest
from crc32c import crc32c

from spark_replog.commit.replica_fetcher import DISTRUST_MS, CopyJob, ReplicaFetcher, ReplicationThrottle
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError
from spark_replog.ids import ObjectId, new_id
from spark_replog.storage import brokers
from spark_replog.storage.brokers import OwnPuts
from spark_replog.storage.memory_store import MemoryStore

LEDGER = "1" * 32


class ManualClock:
    def __init__(self) -> None:
        self.time_ms = 0
        self.slept_ms: list[float] = []

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.slept_ms.append(duration_ms)


@dataclass
class Roots:
    """Roots in memory, as much of a BrokerSet as a fetcher asks for."""

    stores: dict[int, Any]
    away: set[int]
    own_puts: OwnPuts = field(default_factory=OwnPuts)

    def store(self, broker_id: int) -> Any:
        return self.stores[broker_id]

    def url(self, broker_id: int) -> str:
        return str(self.stores[broker_id].url)

    def check_root(self, broker_id: int) -> None:
        if broker_id in self.away:
            raise RetriableError(ErrorCode.REPLOG_ROOT_STALE, "away")


@pytest.fixture
def roots() -> Iterator[Roots]:
    made = Roots({number: MemoryStore(f"memory://{new_id()}") for number in range(3)}, set())
    yield made


def job_of(roots: Roots, body: bytes, holders: tuple[int, ...] = (0,)) -> CopyJob:
    job = CopyJob(LEDGER, ObjectId(0, f"q-0-0-{new_id()}.arrow"), len(body), ((0, len(body), crc32c(body)),), holders)
    for holder in holders:
        roots.stores[holder].create(job.storage_key, body, make_parent=True)
    return job


def fetcher_of(roots: Roots, clock: ManualClock | None = None, **config: int) -> ReplicaFetcher:
    return ReplicaFetcher(roots, CoordinatorConfig(**config), clock=clock or ManualClock())  # type: ignore[arg-type]


def test_a_copy_is_the_same_bytes(roots: Roots) -> None:
    job = job_of(roots, b"x" * 1000)
    fetcher_of(roots).copy(job, 1)
    assert bytes(roots.stores[1].get(job.storage_key)) == b"x" * 1000


def test_a_bad_source_is_passed_over_and_never_spread(roots: Roots) -> None:
    job = job_of(roots, b"good", (2,))
    roots.stores[0].create(job.storage_key, b"evil", make_parent=True)
    both = CopyJob(job.ledger_id, job.id, job.size_bytes, job.checksums, (0, 2))
    fetcher = fetcher_of(roots)
    fetcher.copy(both, 1)
    assert bytes(roots.stores[1].get(job.storage_key)) == b"good"
    only_bad = CopyJob(job.ledger_id, job.id, job.size_bytes, job.checksums, (0,))
    with pytest.raises(CorruptDataError):
        fetcher.copy(only_bad, 1)
    assert not fetcher.is_whole(only_bad, 0)
    assert fetcher.is_whole(both, 1)


@pytest.mark.case("kafka-109")
def test_a_failed_read_leaves_the_follower_as_it_was(roots: Roots) -> None:
    # FollowerStateNotUpdatedIfLogReadFails
    job = CopyJob(LEDGER, ObjectId(0, "q-0-0-a.arrow"), 4, ((0, 4, 0),), (0,))
    with pytest.raises(ReplogError):
        fetcher_of(roots).copy(job, 1)
    assert roots.stores[1].get(job.storage_key) is None


def test_a_holder_that_fails_is_read_last_for_a_while(roots: Roots) -> None:
    clock = ManualClock()
    fetcher = fetcher_of(roots, clock)
    asked = []

    class Failing:
        url = "memory://failing"

        def get(self, key: str) -> bytes:
            asked.append(key)
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer")

    jobs = [job_of(roots, b"x", (0, 2)) for _ in range(4)]
    roots.stores[0] = Failing()
    for job in jobs[:3]:
        fetcher.copy(job, 1)
    assert asked == [jobs[0].storage_key]
    clock.time_ms = DISTRUST_MS
    fetcher.copy(jobs[3], 1)
    assert asked == [jobs[0].storage_key, jobs[3].storage_key]


def test_a_root_that_is_away_gets_nothing(roots: Roots) -> None:
    job = job_of(roots, b"body")
    roots.away.add(1)
    with pytest.raises(RetriableError):
        fetcher_of(roots).copy(job, 1)
    assert roots.stores[1].get(job.storage_key) is None


def test_no_more_copies_at_once_than_num_replica_fetchers(roots: Roots) -> None:
    gate, lock = threading.Event(), threading.Lock()
    running: list[int] = [0]
    highest: list[int] = [0]
    target = roots.stores[1]

    class Slow:
        url = target.url

        def create(self, key: str, data: Any, *, make_parent: bool = False) -> Any:
            with lock:
                running[0] += 1
                highest[0] = max(highest[0], running[0])
            assert gate.wait(20)
            with lock:
                running[0] -= 1
            return target.create(key, data, make_parent=make_parent)

    roots.stores[1] = Slow()
    fetcher = fetcher_of(roots, num_replica_fetchers=3)
    done: list[Exception | None] = []
    jobs = [job_of(roots, bytes([number]) * 10) for number in range(12)]
    futures = [fetcher.submit(job, 1, lambda job, target, error: done.append(error)) for job in jobs]
    gate.set()
    wait(futures, timeout=60)
    assert done == [None] * 12
    assert 1 <= highest[0] <= 3
    assert all(target.get(job.storage_key) is not None for job in jobs)


def test_a_copy_that_waits_for_its_turn_can_be_cancelled(roots: Roots) -> None:
    gate = threading.Event()
    target = roots.stores[1]

    class Hung:
        url = target.url

        def create(self, key: str, data: Any, *, make_parent: bool = False) -> Any:
            assert gate.wait(20)
            return target.create(key, data, make_parent=make_parent)

    roots.stores[1] = Hung()
    fetcher = fetcher_of(roots, num_replica_fetchers=1)
    told: list[str] = []
    first, second = job_of(roots, b"first"), job_of(roots, b"second")
    running = fetcher.submit(first, 1, lambda job, target, error: told.append(job.id.name))
    waiting = fetcher.submit(second, 1, lambda job, target, error: told.append(job.id.name))
    assert waiting.cancel()
    gate.set()
    wait([running], timeout=60)
    assert told == [first.id.name]
    assert target.get(second.storage_key) is None


def test_a_cancelled_copy_is_forgotten_while_its_target_hangs(roots: Roots) -> None:
    """A mount may hang for days, and appends that wait for it are tried again all the time."""
    gate, begun = threading.Event(), threading.Event()

    class Hung:
        url = roots.stores[1].url

        def create(self, key: str, data: Any, *, make_parent: bool = False) -> Any:
            begun.set()
            assert gate.wait(20)
            raise RetriableError(ErrorCode.KAFKA_STORAGE_ERROR, "the mount hangs")

    class Round:
        """What the callback of a waiting append holds."""

        def on_copied(self, *_: Any) -> None:
            pass

    job, roots.stores[1] = job_of(roots, b"bytes"), Hung()
    fetcher = fetcher_of(roots, num_replica_fetchers=1)
    running = fetcher.submit(job, 1, Round().on_copied)
    assert begun.wait(20)
    rounds = [Round() for _ in range(3)]
    for waiting in [fetcher.submit(job, 1, copy_round.on_copied) for copy_round in rounds]:
        assert waiting.cancel()
    gone = [weakref.ref(copy_round) for copy_round in rounds]
    del rounds, waiting
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    gate.set()
    wait([running], timeout=60)


def test_a_copy_that_gets_no_thread_fails_and_leaves_its_place_to_the_next_one(roots: Roots, monkeypatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fetcher = fetcher_of(roots, num_replica_fetchers=1)
    told: list[Exception | None] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        failed = fetcher.submit(job_of(roots, b"first"), 1, lambda job, target, error: told.append(error))
    assert isinstance(failed.exception(60), RuntimeError) and told == [failed.exception(60)]
    fetcher.submit(job_of(roots, b"second"), 1, lambda job, target, error: told.append(error)).result(60)
    assert told[1:] == [None]


def test_a_target_that_failed_is_left_alone_for_longer_and_longer(roots: Roots) -> None:
    clock = ManualClock()
    fetcher = fetcher_of(roots, clock, replica_fetch_backoff_ms=1000)
    job = job_of(roots, b"body")
    roots.away.add(1)
    pauses = []
    for _ in range(8):
        wait([fetcher.submit(job, 1, lambda *_: None)], timeout=60)
        assert fetcher.is_backing_off(1)
        assert not fetcher.is_backing_off(2)
        started_ms = clock.time_ms
        while fetcher.is_backing_off(1):
            clock.time_ms += 500
        pauses.append(clock.time_ms - started_ms)
    assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000]
    roots.away.clear()
    wait([fetcher.submit(job, 1, lambda *_: None)], timeout=60)
    assert not fetcher.is_backing_off(1)


def test_the_throttle_spreads_bytes_over_time() -> None:
    clock = ManualClock()
    throttle = ReplicationThrottle(1000, clock)
    assert throttle.acquire(500) == 0
    assert throttle.acquire(2000) == 500
    assert throttle.acquire(1) == 2500
    clock.time_ms = 10_000
    assert throttle.acquire(1) == 0
    assert clock.slept_ms == [500, 2500]


@pytest.mark.case("server-5-6-7-only-replicas-out-sync")
def test_only_replicas_that_are_out_of_sync_are_throttled(roots: Roots) -> None:
    # Kafka: a throttled follower that is out of sync may be denied data, one that is in sync never.
    clock = ManualClock()
    fetcher = fetcher_of(roots, clock, follower_replication_throttled_rate=1000)
    jobs = [job_of(roots, b"x" * 500) for _ in range(4)]
    wait([fetcher.submit(job, 1, lambda *_: None) for job in jobs], timeout=60)
    assert clock.slept_ms == []
    wait([fetcher.submit(job, 2, lambda *_: None, is_throttled=True) for job in jobs], timeout=60)
    assert sorted(clock.slept_ms) == [500, 1000, 1500]


def test_a_put_of_this_process_is_waited_for_and_not_repeated(roots: Roots) -> None:
    job = job_of(roots, b"rows", (0,))
    put: Future[bool] = Future()
    roots.own_puts.begin(1, job.storage_key, put)
    done: list[str] = []
    copying = threading.Thread(target=lambda: (fetcher_of(roots).copy(job, 1), done.append("copied")), daemon=True)
    copying.start()
    copying.join(0.05)
    assert done == [] and roots.stores[1].get(job.storage_key) is None
    first = roots.stores[1].create(job.storage_key, b"ROWS", make_parent=True)  # what the put wrote is left as it is
    put.set_result(True)
    copying.join(10)
    assert done == ["copied"] and first.name == "CREATED"
    assert bytes(roots.stores[1].get(job.storage_key)) == b"ROWS"


@pytest.mark.parametrize("outcome", [True, False, SystemExit()])
def test_a_put_of_this_process_that_is_not_on_the_root_is_copied(roots: Roots, outcome: bool | SystemExit) -> None:
    job = job_of(roots, b"rows", (0,))
    put: Future[bool] = Future()
    roots.own_puts.begin(1, job.storage_key, put)
    if isinstance(outcome, bool):
        put.set_result(outcome)  # True: on a folder that was in the root's place
    else:
        put.set_exception(outcome)
    fetcher_of(roots).copy(job, 1)
    assert bytes(roots.stores[1].get(job.storage_key)) == b"rows"


def test_a_put_of_this_process_that_never_ends_is_not_waited_for_for_ever(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "OWN_PUT_WAIT_SECONDS", 0.01)
    job = job_of(roots, b"rows", (0,))
    roots.own_puts.begin(1, job.storage_key, Future())
    assert not fetcher_of(roots).holds(job, 1)
    fetcher_of(roots).copy(job, 1)
    assert fetcher_of(roots).holds(job, 1)
