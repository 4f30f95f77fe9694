"""Retries calls until a deadline, and recognises this process's own writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

from spark_replog.clock import SYSTEM_CLOCK, SYSTEM_RANDOM, Clock, ExponentialBackoff
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.call_counter import NAMES_PER_LIST, CallCounter
from spark_replog.storage.object_store import Buffer, CreateOutcome, InParts, ObjectInfo, ObjectStore

T = TypeVar("T")

BACKOFF_MS = 5.0
BACKOFF_MS_MAX = 500.0
LOOK_SIZE_BYTES_MIN = 256 * 1024
_SETTLED = frozenset({ErrorCode.REPLOG_ROOT_STALE, ErrorCode.REPLOG_STORE_REFUSED})
"""Errors after which the same read would fail again: it is not repeated."""


def _is_same(body: Buffer, pieces: Sequence[Buffer]) -> bool:
    view = memoryview(body).cast("B")
    start = 0
    for piece in pieces:
        part = memoryview(piece).cast("B")
        if view[start : start + part.nbytes] != part:
            return False
        start += part.nbytes
    return start == view.nbytes


class RetryingStore:
    """An ObjectStore that repeats calls until a deadline, counts them, and tells its own writes from others'.

    A client may send a PUT twice and then report its own object as existing; a lost answer proves
    nothing. On a write-once store the bytes decide both cases. So EXISTS from this store
    always means OTHER bytes, provided that each body holds something unique to its writer.

    Args:
        deadline_ms: after this time no further attempt starts. For a create it begins with the call; for other calls
            when their first attempt has failed: a pooled connection may have died unnoticed, so that this attempt
            takes the client's whole time-out and only a second one asks the root. A create that slow is left to the
            caller, who has the time of its append to keep. One attempt is always made.
        jitter: returns numbers in [0, 1).
        calls: counts each attempt; None: a private counter.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        deadline_ms: int,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = SYSTEM_RANDOM.random,
        calls: CallCounter | None = None,
    ) -> None:
        self.store = store
        self.calls = calls or CallCounter()
        self.url = store.url
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._backoff = ExponentialBackoff(BACKOFF_MS, BACKOFF_MS_MAX, jitter, spread=(0.5, 1.0))

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """As ``ObjectStore.get``, repeated on RetriableError until the deadline after its first failure."""
        try:
            return self._get(key, start, size_bytes)
        except RetriableError as error:
            return self._repeat(error, lambda: self._get(key, start, size_bytes, is_retry=True))

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """As ``ObjectStore.create``; EXISTS means that the name holds other bytes than these.

        Raises:
            ReplogError: REPLOG_STORE_REFUSED, only if no attempt can have written.
            OutcomeUnknownError: no attempt before the deadline showed which bytes the name has.
        """
        deadline_ms = self._clock.monotonic_ms() + self._deadline_ms
        pieces = (data,) if isinstance(data, Buffer) else data
        size_bytes = sum([memoryview(piece).nbytes for piece in pieces])
        failed_count = 0
        unknown: ReplogError | None = None
        while True:
            try:
                self.calls.count(self.url, "create", key, size_bytes, body=data, is_retry=failed_count > 0)
                if self.store.create(key, data, make_parent=make_parent) is CreateOutcome.CREATED:
                    return CreateOutcome.CREATED
                outcome = self._judge_existing(key, pieces, size_bytes)
                if outcome is not None:
                    return outcome
                unknown = OutcomeUnknownError(
                    ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN,
                    "the store reports that the name is taken, but has no object there. Repeat the call.",
                    url=self.url,
                    key=key,
                )
            except OutcomeUnknownError as error:
                unknown = error
            except RetriableError as error:
                # From the read after EXISTS: the name is taken, but the writer is unknown.
                unknown = error
            except ReplogError as error:
                if unknown is None:
                    raise
                # Refused now, but an earlier attempt may have written the object.
                raise self._outcome_unknown(key, error) from error
            if not self._wait(failed_count, deadline_ms):
                raise self._outcome_unknown(key, unknown) from unknown
            failed_count += 1
            outcome = self._look(key, pieces, size_bytes)
            if outcome is not None:
                return outcome

    def in_parts(self) -> Self | None:
        """As ``InParts.in_parts``, with the same retries and counter."""
        store = self.store.in_parts() if isinstance(self.store, InParts) else None
        if store is None:
            return None
        made = copy.copy(self)
        made.store = store
        return made

    def make_folder(self, key_prefix: str) -> None:
        """As ``ObjectStore.make_folder``, repeated on RetriableError until the deadline."""
        self._repeated("folder", key_prefix, self.store.make_folder)

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """As ``ObjectStore.list_keys``; a failure restarts the listing, so the whole list is held in memory."""
        listing = self._repeated("list", prefix, lambda prefix: list(self.store.list_keys(prefix, after=after)))
        if len(listing) > NAMES_PER_LIST:
            self.calls.count(self.url, "list", prefix, call_count=(len(listing) - 1) // NAMES_PER_LIST)
        return iter(listing)

    def delete(self, key: str) -> None:
        """As ``ObjectStore.delete``, repeated on RetriableError until the deadline."""
        self._repeated("delete", key, self.store.delete)

    def _repeated(self, kind: str, key: str, call: Callable[[str], T]) -> T:
        def attempt(*, is_retry: bool = True) -> T:
            self.calls.count(self.url, kind, key, is_retry=is_retry)
            return call(key)

        try:
            return attempt(is_retry=False)
        except RetriableError as error:
            return self._repeat(error, attempt)

    def _get(self, key: str, start: int, size_bytes: int | None, *, is_retry: bool = False) -> Buffer | None:
        body: Buffer | None = None
        try:
            body = self.store.get(key, start=start, size_bytes=size_bytes)
        finally:
            found_bytes = 0 if body is None else memoryview(body).nbytes
            self.calls.count(self.url, "get", key, found_bytes, is_retry=is_retry)
        return body

    def _look(self, key: str, pieces: Sequence[Buffer], size_bytes: int) -> CreateOutcome | None:
        """Return whose bytes have the name, before a create is repeated; None: unknown, or the name is free.

        Only for a large body: it may not need sending again, and a server may cut the connection in the middle of
        it if the name is taken, so that a repeated create would never get an answer.
        """
        if size_bytes < LOOK_SIZE_BYTES_MIN:
            return None
        try:
            return self._judge_existing(key, pieces, size_bytes)
        except ReplogError:
            return None

    def _judge_existing(self, key: str, pieces: Sequence[Buffer], size_bytes: int) -> CreateOutcome | None:
        """Return whose bytes have the name; None if it is free after all (a delete, a misread 409)."""
        body = self._get(key, 0, size_bytes + 1)
        if body is None:
            return None
        return CreateOutcome.CREATED if _is_same(body, pieces) else CreateOutcome.EXISTS

    def _repeat(self, error: RetriableError, call: Callable[[], T]) -> T:
        """Repeat a call after its first failure, with which the deadline begins."""
        deadline_ms = self._clock.monotonic_ms() + self._deadline_ms
        failed_count = 0
        while True:
            if error.code in _SETTLED or not self._wait(failed_count, deadline_ms):
                raise error
            try:
                return call()
            except RetriableError as again:
                error = again
            failed_count += 1

    def _wait(self, failed_count: int, deadline_ms: int) -> bool:
        pause_ms = self._backoff.pause_ms(failed_count)
        if self._clock.monotonic_ms() + pause_ms > deadline_ms:
            return False
        self._clock.sleep_ms(pause_ms)
        return True

    def _outcome_unknown(self, key: str, cause: ReplogError) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN,
            f"It is unknown whether the object was written: {cause}. "
            "Repeat the same call: its bytes are recognised if they landed.",
            url=self.url,
            key=key,
        )
