"""Runs the core's operations on real roots, on the daemon threads of ``storage.io_pool``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from spark_replog.clock import Clock
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ledger.journal_reader import JournalReader, newest_marker
from spark_replog.ledger.record import TAG_SIZE_BYTES, RecordKind, decode_record, genesis_hash
from spark_replog.ledger.root import Check, Completion, Create, Operation, PutMarker, PutOut, Read
from spark_replog.ledger.snapshot_files import encode_marker
from spark_replog.ledger.types import JournalRoot, LedgerStats
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.paths import journal_key, ledger_folders, marker_key, out_key, snapshot_key

_log = logging.getLogger(__name__)
LISTING_MS_MAX = 30_000
"""How long a root may list a journal before it counts as silent: listing 10^5 names takes long."""
AHEAD_AGE_MS = 1_000
"""Looks that `look_ahead` began longer ago are made again."""


class RootIo:
    """One ledger's operations on its metadata roots, and the queue of their answers.

    Args:
        roots: the metadata roots, in the store's order.
        on_found: called once, on a lane, with the payloads that the first read found on a root, before the look at its
            marker: they may be undecided, or not count. It must not wait for this ledger.
    """

    def __init__(
        self,
        ledger_id: str,
        roots: Sequence[JournalRoot],
        stats: LedgerStats,
        clock: Clock,
        on_found: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        self._on_found = [] if on_found is None else [on_found]
        self._ledger_id = ledger_id
        self._genesis = genesis_hash(ledger_id)
        self._stats = stats
        self._clock = clock
        self.readers = [JournalReader(ledger_id, root, stats, clock, self._show) for root in roots]
        self._ahead_ms = 0.0  # when the last `look_ahead` began anything
        self._answers: SimpleQueue[Completion] = SimpleQueue()
        self._taken: list[Completion] = []

    @property
    def learned_ms(self) -> float:
        """Return when a get last found a record that is new to this process on its root, in the clock's time.

        While a root lists its journal this is now; listing it again without a new record does not count.
        """
        now_ms = self._clock.monotonic_ms()
        since = [reader.listing_since_ms for reader in self.readers]
        if any(since_ms is not None and now_ms - since_ms < LISTING_MS_MAX for since_ms in since):
            return now_ms
        return max(reader.learned_ms for reader in self.readers)

    def look_ahead(self, record_count: int = 0) -> bool:
        """Start each root's first check, and over a network its listing, while the snapshot is read.

        The later `Check` reports their errors. Nothing counts that was read before ``replog.json`` was.

        Args:
            record_count: if a goal has begun: of the first records, which are got too over a network, as by
                `begin_last_gets`.

        Returns:
            False if they have just been started.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._ahead_ms < AHEAD_AGE_MS and any(reader.check is not None for reader in self.readers):
            return False
        self._ahead_ms = now_ms
        for reader in self.readers:
            reader.begin_check(partial(self._check, reader.root), record_count)
        return True

    def begin_last_gets(self, index: int) -> None:
        """Over a network, get the last records that each root's listing shows while the heads of snapshots are read.

        Args:
            index: the first entry that is probably needed. Its position is not known; it is not lower.
        """
        for reader in self.readers:
            reader.begin_last_gets(index)

    def end_goal(self) -> None:
        """Let no get count that began for the goal that ends."""
        for reader in self.readers:
            reader.early = {}

    def check_again(self, number: int) -> None:
        """Let no check count that began earlier."""
        self.readers[number].check = self.readers[number].listing = None

    def start(self, operations: Sequence[Operation]) -> None:
        """Run operations, one lane per root; returns at once. Each gets an answer, even without a new thread."""
        for operation in operations:
            try:
                IO_POOL.post_to(self.readers[operation.root].root.store.url, self._run, operation)
            except RuntimeError as error:
                self._answers.put(Completion(operation, error=error))

    def wait(self, timeout_ms: float) -> None:
        """Wait for an answer, up to the timeout; `take` returns it. An interrupt drops none."""
        with suppress(Empty):
            # One call of C code: between two calls, an interrupt would drop the answer that the first one returned.
            self._taken.extend(map(self._answers.get, (True,), (timeout_ms / 1000.0,)))

    def take(self, timeout_ms: float = 0) -> list[Completion]:
        """Return the answers that came in; waits for one, up to the timeout."""
        if not self._taken:
            self.wait(timeout_ms)
        completions, self._taken = self._taken, []
        while not self._answers.empty():
            completions.append(self._answers.get_nowait())
        return completions

    def _run(self, operation: Operation) -> None:
        try:
            completion = self.execute(operation)
        except Exception as error:  # a lane must answer, whatever a file system raises
            completion = Completion(operation, error=error)
        self._answers.put(completion)

    def execute(self, operation: Operation) -> Completion:
        """Do an operation on its root and return the answer; runs on a thread of that root."""
        reader = self.readers[operation.root]
        root = reader.root
        if isinstance(operation, Read):
            return reader.read(operation)
        if isinstance(operation, Check):
            self._stats.checks += 1
            check, reader.check = reader.check, None
            if check is None:
                reader.early = {}  # they began before this check
                self._check(root, root.check)
            else:
                try:
                    check.result()  # it started earlier on this lane, so it has a thread already
                except BaseException:
                    reader.listing = None
                    raise
            if operation.repair:
                self._make_folders(root)
            return Completion(operation)
        if isinstance(operation, PutOut):
            self._put_out(root, operation)
            return Completion(operation)
        if isinstance(operation, PutMarker):
            data = encode_marker(self._genesis, operation.marker)
            self._give_head(root, operation.marker.name)
            root.store.create(marker_key(self._ledger_id, operation.marker_no), data, make_parent=True)
            return Completion(operation)
        self._stats.creates += 1
        if self._create(root, operation) is CreateOutcome.EXISTS:
            return Completion(operation, exists=True)
        return Completion(operation, marker=newest_marker(self._ledger_id, root.store, operation.marker_no))

    def _create(self, root: JournalRoot, operation: Create) -> CreateOutcome:
        key = journal_key(self._ledger_id, operation.position)
        try:
            return root.store.create(key, operation.data)
        except ReplogError as error:
            if operation.position or not isinstance(error.__cause__, FileNotFoundError):
                raise
        self._stats.checks += 1
        self._check(root, root.check)
        self._make_folders(root)
        return root.store.create(key, operation.data)

    def _make_folders(self, root: JournalRoot) -> None:
        """Make a ledger's folders on a root that was away when it was made; the root is proven to be itself."""
        for folder in ledger_folders(self._ledger_id):
            root.store.make_folder(folder)

    def _put_out(self, root: JournalRoot, operation: PutOut) -> None:
        """Create `out`, unless a repair has rebuilt the journal since it was read, perhaps long ago.

        Raises:
            RetriableError: REPLOG_ROOT_STALE: it was rebuilt; storage errors.
        """
        newest = newest_marker(self._ledger_id, root.store, operation.floor.marker_no)
        if newest is not None and newest[0].renewal != operation.floor.renewal:
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                "this root was rebuilt since this process saw it go back in time. Other processes use it; this one "
                "does once it is started again.",
                broker=root.broker_id,
                ledger=self._ledger_id,
            )
        body = {
            "format": "replog-out",
            "version": 1,
            "ledgerId": self._ledger_id,
            "brokerId": root.broker_id,
            "missingPosition": operation.position,
        }
        root.store.create(out_key(self._ledger_id), json.dumps(body).encode())
        _log.error(
            "[%s] the journal of ledger %s on broker %d (%s) misses position %d, which other roots name. No"
            " process uses it until 'replog store repair' has rebuilt it.",
            ErrorCode.REPLOG_ROOT_STALE.name,
            self._ledger_id,
            root.broker_id,
            root.store.url,
            operation.position,
        )

    def _give_head(self, root: JournalRoot, name: str) -> None:
        """Store the head that a marker names on the marker's root, the only root where the marker protects it.

        If no root has it, a newer snapshot is decided: a process that meets the marker takes that one.
        """
        key = snapshot_key(self._ledger_id, name)
        others = (reader.root for reader in self.readers if reader.root is not root)
        if root.store.get(key, size_bytes=1) is None:
            for other in others:
                with suppress(ReplogError):
                    if (data := other.store.get(key)) is not None:
                        root.store.create(key, bytes(data), make_parent=True)
                        return

    def _check(self, root: JournalRoot, check: Callable[[], None]) -> None:
        """Check the root's ``replog.json`` and, at the same time, look for `out`.

        Raises:
            RetriableError: REPLOG_ROOT_STALE; storage errors.
        """
        if len(self.readers) == 1:
            check()  # no other root could have named what it forgot
            return
        out = IO_POOL.submit_to(f"{root.store.url}#out", root.store.get, out_key(self._ledger_id))
        check()
        if out.result() is not None:
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                "this root went back in time: the object 'out' is beside its journal. Run 'replog store repair'.",
                broker=root.broker_id,
                ledger=self._ledger_id,
            )

    def _show(self, root: JournalRoot, position: int, records: Sequence[bytes]) -> None:
        with suppress(IndexError, ReplogError):  # another root was first; who learns the records reports damage
            on_found = self._on_found.pop()
            decoded = [decode_record(data, root=root.store.url, position=position) for data in records]
            on_found([record.payload[TAG_SIZE_BYTES:] for record in decoded if record.kind is RecordKind.ENTRY])
