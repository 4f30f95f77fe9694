"""Notes between processes beside a ledger: write-once objects, found by listing, deleted once read.

A note is a request to the process that writes the next entry. It proves nothing: only the ledger decides. A note
that is lost, late or read twice only costs time.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import LedgerId
from spark_replog.quorum import majority_of
from spark_replog.storage.fan_out import answers_of
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer, ObjectStore
from spark_replog.storage.paths import note_key

T = TypeVar("T")
_WAIT_MS = 3_000
_NEXT_ROOT_MS = 300
"""How long a read waits for one root before it asks the next one too."""


class Mailbox:
    """The notes of one ledger. Thread-safe; keeps no state.

    ``put`` and ``names`` call all metadata roots in parallel and return when a majority has answered. So a note that
    was put is in every later list, unless the roots common to both majorities lost it.
    """

    def __init__(self, cluster: Cluster, ledger_id: LedgerId) -> None:
        self._brokers = cluster.brokers
        self._ledger_id = ledger_id

    def put(self, name: str, data: bytes) -> None:
        """Write a note. Raises REPLOG_NO_QUORUM: less than a majority of the metadata roots accepted it."""
        self._ask(lambda store: store.create(note_key(self._ledger_id, name), data, make_parent=True))

    def names(self, prefix: str) -> list[str]:
        """Return the names of the notes whose name starts with the prefix, sorted. Raises REPLOG_NO_QUORUM."""
        key = note_key(self._ledger_id, prefix)
        listings = self._ask(lambda store: [info.key.rpartition("/")[2] for info in store.list_keys(key)])
        return sorted({name for names in listings for name in names})

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the notes' contents by name, in order, without those that no answering root has.

        Asks one root after another until all are found: the next one if a root fails, lacks some, or takes long. One
        that hangs holds a thread of its lane, not the caller.
        """
        wanted = list(names)
        answers: queue.SimpleQueue[dict[str, Buffer]] = queue.SimpleQueue()
        bodies: dict[str, Buffer] = {}
        asked_count, stores = 0, self._stores() if wanted else []
        for number, store in enumerate(stores):
            missing = [name for name in wanted if name not in bodies]
            asked_count += self._start(store, partial(self._read_from, store, missing, answers.put))
            wait_ms = _WAIT_MS if number + 1 == len(stores) else _NEXT_ROOT_MS
            while asked_count and len(bodies) < len(wanted):
                try:
                    bodies |= answers.get(timeout=wait_ms / 1000.0)
                except queue.Empty:
                    break
                asked_count -= 1
            if len(bodies) == len(wanted):
                break
        return {name: bytes(bodies[name]) for name in wanted if name in bodies}

    def clear(self, names: Iterable[str]) -> None:
        """Start deleting notes and return at once; a root that does not answer keeps its copy."""
        keys = [note_key(self._ledger_id, name) for name in names]
        for store in self._stores() if keys else ():
            self._start(store, partial(_delete, store, keys))

    def clear_now(self, names: Iterable[str]) -> None:
        """Delete notes, and wait for the roots, but not for one that hangs; one that does not answer keeps its copy."""
        keys = [note_key(self._ledger_id, name) for name in names]
        calls = dict[str, Future[None]]()
        with suppress(RuntimeError):  # no thread can be started
            for store in self._stores() if keys else ():
                calls[store.url] = IO_POOL.submit_to(store.url, _delete, store, keys)
        answers_of(calls, _WAIT_MS)

    def _read_from(self, store: ObjectStore, names: Iterable[str], answer: Callable[[dict[str, Buffer]], None]) -> None:
        """Pass the notes that a root has to ``answer``: once, also if the root fails."""
        bodies: dict[str, Buffer] = {}
        try:
            with suppress(RetriableError, OutcomeUnknownError):  # what it has shown so far counts
                for name in names:
                    data = store.get(note_key(self._ledger_id, name))
                    if data is not None:
                        bodies[name] = data
        finally:
            answer(bodies)

    def _start(self, store: ObjectStore, call: Callable[[], None]) -> bool:
        """Start a call on the root's lane; return False if no thread can be started."""
        try:
            IO_POOL.submit_to(store.url, call)
        except RuntimeError:
            return False
        return True

    def _stores(self) -> list[ObjectStore]:
        return [self._brokers.store(broker_id) for broker_id in self._brokers.metadata_broker_ids]

    def _ask(self, call: Callable[[ObjectStore], T]) -> list[T]:
        """Return the answers of a majority of the metadata roots."""
        calls = dict[str, Future[T]]()
        for store in self._stores():
            try:
                calls[store.url] = IO_POOL.submit_to(store.url, call, store)
            except RuntimeError:
                calls[store.url] = Future()
                error = RetriableError(ErrorCode.REPLOG_ENVIRONMENT, "this process cannot start a thread")
                calls[store.url].set_exception(error)
        needed = majority_of(len(calls))
        answers = answers_of(calls, _WAIT_MS, needed_count=needed)
        if len(answers.by_root) < needed:
            raise RetriableError(
                ErrorCode.REPLOG_NO_QUORUM,
                f"{len(answers.by_root)} of {len(calls)} metadata roots took or listed notes, {needed} are needed: "
                f"{answers.reasons or f'no answer in {_WAIT_MS} ms'}. Bring a root back; the call is repeated.",
                ledger_id=self._ledger_id,
            )
        return list(answers.by_root.values())


def _delete(store: ObjectStore, keys: list[str]) -> None:
    with suppress(ReplogError):
        for key in keys:
            store.delete(key)
