"""Runs the core's operations on real roots, on the daemon threads of ``storage.io_pool``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from spark_replog.errors import OutcomeUnknownError, ReplogError
from spark_replog.ledger.operations import Check, Completion, Create, Operation, Read, Status
from spark_replog.ledger.types import JournalRoot, LedgerStats
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.paths import journal_folder, journal_key


class RootIo:
    """One ledger's operations on its metadata roots, and the queue of their answers.

    Args:
        ledger_id: whose journals.
        roots: the metadata roots, in the store's order.
        stats: counted into.
    """

    def __init__(self, ledger_id: str, roots: Sequence[JournalRoot], stats: LedgerStats) -> None:
        self._ledger_id = ledger_id
        self._roots = roots
        self._stats = stats
        self._answered = threading.Condition(threading.Lock())
        self._answers: deque[Completion] = deque()

    def start(self, operations: Sequence[Operation]) -> None:
        """Run operations, one lane per root; returns at once."""
        pool = io_pool()
        for operation in operations:
            pool.submit_to(self._roots[operation.root].store.url, self._run, operation)

    def take(self, timeout_ms: float | None) -> list[Completion]:
        """Return the answers that came in; waits for one, up to the time-out."""
        with self._answered:
            if not self._answers and (timeout_ms is None or timeout_ms > 0):
                self._answered.wait(None if timeout_ms is None else timeout_ms / 1000.0)
            found = list(self._answers)
            self._answers.clear()
            return found

    def _run(self, operation: Operation) -> None:
        try:
            completion = self._execute(operation)
        except ReplogError as error:
            completion = Completion(operation, Status.FAILED, error=error)
        except Exception as error:  # a lane must answer, whatever a file system raises
            status = Status.UNKNOWN if isinstance(operation, Create) else Status.FAILED
            completion = Completion(operation, status, error=error)
        with self._answered:
            self._answers.append(completion)
            self._answered.notify()

    def _execute(self, operation: Operation) -> Completion:
        root = self._roots[operation.root]
        if isinstance(operation, Read):
            return self._read(root, operation)
        if isinstance(operation, Check):
            self._stats.checks += 1
            root.check()
            if operation.repair:
                # Away while the ledger was made: the root is proven to be itself, so its folder may be made.
                root.store.make_folder(journal_folder(self._ledger_id))
            return Completion(operation, Status.DONE)
        self._stats.creates += 1
        try:
            outcome = root.store.create(journal_key(self._ledger_id, operation.position), operation.data)
        except OutcomeUnknownError as error:
            return Completion(operation, Status.UNKNOWN, error=error)
        status = Status.DONE if outcome is CreateOutcome.CREATED else Status.EXISTS
        return Completion(operation, status)

    def _read(self, root: JournalRoot, operation: Read) -> Completion:
        records: list[bytes] = []
        while len(records) < operation.limit:
            self._stats.gets += 1
            found = root.store.get(journal_key(self._ledger_id, operation.position + len(records)))
            if found is None:
                return Completion(operation, Status.DONE, tuple(records), ended=True)
            records.append(bytes(found))
        return Completion(operation, Status.DONE, tuple(records))
