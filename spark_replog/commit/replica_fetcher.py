"""Copies data objects to brokers that miss them: the follower's fetch, on passive storage.

Runs in the process that commits, repairs or (after its own rows) writes, on the target's own fetch lane, so that a hung
root blocks only that. Whole objects pass through this process, at most ``max.request.size`` a copy, because a copy must
be verified before it counts; no store's own copy does that.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from crc32c import crc32c

from spark_replog.clock import SYSTEM_CLOCK, Clock, ExponentialBackoff
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError
from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.log.fold.partition_state import ObjectRef, SectionRef
from spark_replog.log.model import DataObject, Section
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer, CreateOutcome
from spark_replog.storage.paths import all_data_folder, data_key

_log = logging.getLogger(__name__)

BACKOFF_DOUBLINGS_MAX = 5
DISTRUST_MS = 30_000
"""How long a root that failed is read only after every other holder."""

CopyCallback = Callable[["CopyJob", BrokerId, Exception | None], None]


@dataclass(frozen=True, slots=True)
class CopyJob:
    """One object to copy: where it is and what proves its bytes."""

    ledger_id: LedgerId
    id: ObjectId
    size_bytes: int
    checksums: tuple[tuple[int, int, int], ...]
    """Per section: start byte, size, CRC32C."""
    sources: tuple[BrokerId, ...]
    may_exist: bool = False
    """Whether another process may have made the copy already: look before writing."""
    replaces: bool = False
    """Whether the target's own copy is known to be bad: it is deleted only after good bytes were read."""

    @property
    def storage_key(self) -> str:
        """Return the object's key on every root."""
        return data_key(self.ledger_id, *self.id)


def copy_job(
    ledger_id: LedgerId,
    item: DataObject | ObjectRef,
    sections: Iterable[Section | SectionRef],
    holders: Iterable[BrokerId],
) -> CopyJob:
    """Return the job that copies an object; holders are read in order of id, distrusted ones last."""
    checksums = tuple((section.start_byte, section.size_bytes, section.crc32c) for section in sections)
    return CopyJob(ledger_id, item.id, item.size_bytes, checksums, tuple(sorted(holders)))


class ReplicationThrottle:
    """Spreads copied bytes over time, at ``follower.replication.throttled.rate``. Thread safe."""

    def __init__(self, rate_bytes: int, clock: Clock) -> None:
        self._rate_bytes = rate_bytes
        self._clock = clock
        self._free_ms = 0.0
        self._lock = threading.Lock()

    def acquire(self, size_bytes: int) -> float:
        """Wait as long as the copies before this one take at the rate; return how long, in ms. The first waits 0."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            start_ms = max(self._free_ms, now_ms)
            self._free_ms = start_ms + size_bytes * 1000.0 / self._rate_bytes
        wait_ms = start_ms - now_ms
        if wait_ms > 0:
            self._clock.sleep_ms(wait_ms)
        return wait_ms


@dataclass(slots=True)
class _Target:
    """The copies to one broker."""

    waiting: dict[Future[None], Callable[[], None]] = field(default_factory=dict)
    """In the order in which they came."""
    active_count: int = 0
    failure_count: int = 0
    retry_at_ms: int = 0


class ReplicaFetcher:
    """Thread safe.

    Args:
        config: ``num.replica.fetchers`` copies at once to a broker, ``replica.fetch.backoff.ms`` after one
            that failed, ``follower.replication.throttled.rate``.
    """

    def __init__(self, brokers: BrokerSet, config: CoordinatorConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.brokers = brokers
        self.config = config
        self.clock = clock
        self._throttle = ReplicationThrottle(config.follower_replication_throttled_rate, clock)
        first_ms = config.replica_fetch_backoff_ms
        self._backoff = ExponentialBackoff(first_ms, first_ms << BACKOFF_DOUBLINGS_MAX, spread=(1, 1))
        self._targets: defaultdict[BrokerId, _Target] = defaultdict(_Target)
        self._distrusted_until_ms: dict[BrokerId, int] = {}
        self._lock = threading.Lock()

    def distrust(self, broker_id: BrokerId) -> None:
        """Read from other holders first for a while: this root fails or hangs, and each try would cost a timeout."""
        self._distrusted_until_ms[broker_id] = self.clock.monotonic_ms() + DISTRUST_MS

    def submit(
        self,
        job: CopyJob,
        target: BrokerId,
        on_done: CopyCallback,
        *,
        is_throttled: bool = False,
        check_root: bool = True,
    ) -> Future[None]:
        """Queue a copy; ``on_done`` runs once in a fetch thread, with the error or None.

        Args:
            is_throttled: whether ``follower.replication.throttled.rate`` applies: to replicas that are
                out of sync only, since an append waits for the others (Kafka's rule).
            check_root: see ``copy``.

        Returns:
            A future; cancelling works while the copy waits for its turn.
        """
        future: Future[None] = Future()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    if is_throttled:
                        self._throttle.acquire(job.size_bytes)
                    self.copy(job, target, check_root=check_root)
                    self._note(target, is_failed=False)
                    future.set_result(None)
            except BaseException as error:  # the caller judges every error
                self._note(target, is_failed=True)
                future.set_exception(error)
            finally:
                with self._lock:
                    self._targets[target].active_count -= 1
                self._start(target)

        def report(done: Future[None]) -> None:
            if done.cancelled():
                with self._lock:  # the target may hang for days
                    self._targets[target].waiting.pop(done, None)
            else:
                error = done.exception()
                on_done(
                    job, target, error if error is None or isinstance(error, Exception) else RuntimeError(str(error))
                )

        future.add_done_callback(report)
        with self._lock:
            self._targets[target].waiting[future] = run
        self._start(target)
        return future

    def is_backing_off(self, target: BrokerId) -> bool:
        """Return whether a copy to the broker failed so recently that catching up should wait."""
        with self._lock:
            return self.clock.monotonic_ms() < self._targets[target].retry_at_ms

    def copy(self, job: CopyJob, target: BrokerId, *, check_root: bool = True) -> None:
        """Copy one object and return once it is durable on the target.

        Args:
            check_root: False only while that root is being rebuilt, before it has a root file.

        Raises:
            RetriableError: the target's root is away or stale, or no source answers.
            CorruptDataError: CORRUPT_MESSAGE: no source has good bytes, or the target holds others.
            ReplogError: REPLOG_STORE_REFUSED and the like, from the target.
        """
        if check_root:
            self.brokers.check_root(target)
        if job.may_exist or job.replaces:
            try:
                if self.is_whole(job, target):
                    return
            except CorruptDataError:  # a folder is in its place
                self.brokers.store(target).delete(job.storage_key)
        if not job.replaces and self._was_put(job, target):
            return
        try:
            body = self._read_verified(job)
        except ReplogError as error:
            error.context["sources"] = job.sources  # so that the target is not blamed
            raise
        if job.replaces:
            self.brokers.store(target).delete(job.storage_key)
        outcome = self._create(job, target, body)
        if outcome is not CreateOutcome.CREATED:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                "the follower holds other bytes under this name. Run `replog store repair --deep`.",
                broker=target,
                key=job.storage_key,
            )

    def _create(self, job: CopyJob, target: BrokerId, body: Buffer) -> CreateOutcome:
        store = self.brokers.store(target)
        try:
            return store.create(job.storage_key, body, make_parent=True)
        except ReplogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        self.brokers.check_root(target)  # it is itself, so it was away when the ledger was made
        store.make_folder(all_data_folder(job.ledger_id))
        return store.create(job.storage_key, body, make_parent=True)

    def holds(self, job: CopyJob, target: BrokerId) -> bool:
        """Return whether the broker has the whole object, once this process's own sender has put it, if it does so now.

        Raises:
            ReplogError: the root is away or stale, or does not answer.
        """
        self.brokers.check_root(target)
        self.brokers.own_puts.wait(target, job.storage_key)
        return self.is_whole(job, target)

    def is_whole(self, job: CopyJob, target: BrokerId) -> bool:
        """Return whether the broker's own copy has the size and checksums that the log names."""
        return damage(job, self.brokers.store(target).get(job.storage_key)) is None

    def _was_put(self, job: CopyJob, target: BrokerId) -> bool:
        """Wait for an object that this process's own sender is putting on a slow root, so as not to write it twice.

        The size proves that it is on the root that was checked: of two bytes requested at its end, one comes.
        """
        if not self.brokers.own_puts.wait(target, job.storage_key):
            return False
        tail = self.brokers.store(target).get(job.storage_key, start=job.size_bytes - 1, size_bytes=2)
        return tail is not None and memoryview(tail).nbytes == 1

    def _note(self, target: BrokerId, *, is_failed: bool) -> None:
        with self._lock:
            queue = self._targets[target]
            if not is_failed:
                queue.failure_count = queue.retry_at_ms = 0
                return
            queue.retry_at_ms = self.clock.monotonic_ms() + int(self._backoff.pause_ms(queue.failure_count))
            queue.failure_count += 1

    def _start(self, target: BrokerId) -> None:
        while True:
            with self._lock:
                queue = self._targets[target]
                if not queue.waiting or queue.active_count >= self.config.num_replica_fetchers:
                    return
                future = next(iter(queue.waiting))
                run = queue.waiting.pop(future)
                queue.active_count += 1
            try:
                # A separate lane: bulk copies must not delay the journal's creates on this root.
                IO_POOL.submit_to(f"{self.brokers.url(target)}#fetch", run)
            except RuntimeError as error:  # no thread can be started
                with self._lock:
                    queue.active_count -= 1
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _read_verified(self, job: CopyJob) -> Buffer:
        """Return the body from the first source whose bytes match every section's checksum."""
        failure: ReplogError | None = None
        now_ms = self.clock.monotonic_ms()
        for source in sorted(job.sources, key=lambda broker_id: self._distrusted_until_ms.get(broker_id, 0) > now_ms):
            try:
                body = self.brokers.store(source).get(job.storage_key)
            except ReplogError as error:
                self.distrust(source)
                failure = failure or error
                continue
            problem = damage(job, body)
            if problem is None and body is not None:
                return body
            _log.warning("copy of %s on broker %d is bad: %s", job.storage_key, source, problem)
            failure = CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"no good copy to replicate from: {problem}. Run 'replog store verify --deep'.",
                broker=source,
                key=job.storage_key,
            )
        if failure is not None:
            raise failure
        raise RetriableError(
            ErrorCode.KAFKA_STORAGE_ERROR, "no broker is known to hold the object.", key=job.storage_key
        )


def damage(job: CopyJob, body: Buffer | None) -> str | None:
    """Return what is wrong with a copy, None when it is whole."""
    if body is None:
        return "it is missing"
    view = memoryview(body)
    if view.nbytes != job.size_bytes:
        return f"it has {view.nbytes} bytes, not {job.size_bytes}"
    for start, size_bytes, checksum in job.checksums:
        if crc32c(view[start : start + size_bytes]) != checksum:
            return f"the section at byte {start} fails its CRC32C"
    return None
