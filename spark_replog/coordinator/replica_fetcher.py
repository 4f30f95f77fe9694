"""Copies data objects to brokers that miss them: what a follower's fetch is on passive storage.

Runs in the process that commits, on the I/O threads of the target's lane, so that a hung
root holds only its own threads. Whole objects are copied: from a local root they are a
memory map, from a remote one at most ``max.request.size`` (32 MiB) a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from crc32c import crc32c

from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import Buffer, CreateOutcome
from spark_replog.storage.paths import data_key

_log = logging.getLogger(__name__)

ObjectKey = tuple[int, str]
"""(generation, name) of a data object within its ledger."""


@dataclass(frozen=True, slots=True)
class CopyJob:
    """One object to copy: where it is and what proves its bytes."""

    ledger_id: LedgerId
    generation: int
    name: str
    size_bytes: int
    checksums: tuple[tuple[int, int, int], ...]
    """Per section: start byte, size, CRC32C."""
    sources: tuple[BrokerId, ...]

    @property
    def object_key(self) -> ObjectKey:
        """Return (generation, name)."""
        return self.generation, self.name

    @property
    def storage_key(self) -> str:
        """Return the object's key on every root."""
        return data_key(self.ledger_id, self.generation, self.name)


class ReplicaFetcher:
    """Thread safe.

    Args:
        brokers: the roots.
    """

    def __init__(self, brokers: BrokerSet) -> None:
        self._brokers = brokers

    def submit(
        self, job: CopyJob, target: BrokerId, on_done: Callable[[CopyJob, BrokerId, Exception | None], None]
    ) -> Future[None]:
        """Start a copy; ``on_done`` runs once in an I/O thread, with the error or None."""
        future = io_pool().submit_to(self._brokers.url(target), self.copy, job, target)

        def report(done: Future[None]) -> None:
            error = done.exception()
            on_done(job, target, error if error is None or isinstance(error, Exception) else RuntimeError(str(error)))

        future.add_done_callback(report)
        return future

    def copy(self, job: CopyJob, target: BrokerId) -> None:
        """Copy one object and return once it is durable on the target.

        Raises:
            RetriableError: the target's root is away or stale, or no source answers.
            CorruptDataError: CORRUPT_MESSAGE: no source has good bytes, or the target holds others.
            ReplogError: REPLOG_STORE_REFUSED and the like, from the target.
        """
        self._brokers.check_root(target)
        body = self._read_verified(job)
        outcome = self._brokers.store(target).create(job.storage_key, body, make_parent=True)
        if outcome is not CreateOutcome.CREATED:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                "the follower holds other bytes under this name. Run `replog store verify --deep`.",
                broker=target,
                key=job.storage_key,
            )

    def _read_verified(self, job: CopyJob) -> Buffer:
        """Return the body from the first source whose bytes match every section's checksum."""
        failure: ReplogError | None = None
        for source in job.sources:
            try:
                body = self._brokers.store(source).get(job.storage_key)
            except ReplogError as error:
                failure = failure or error
                continue
            problem = _damage(job, body)
            if problem is None and body is not None:
                return body
            _log.warning("copy of %s on broker %d is bad: %s", job.storage_key, source, problem)
            failure = CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"no good copy to replicate from: {problem}. Run 'replog store verify'.",
                broker=source,
                key=job.storage_key,
            )
        if failure is not None:
            raise failure
        raise RetriableError(
            ErrorCode.KAFKA_STORAGE_ERROR, "no broker is known to hold the object.", key=job.storage_key
        )


def _damage(job: CopyJob, body: Buffer | None) -> str | None:
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
