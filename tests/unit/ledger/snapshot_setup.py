"""A state in pages, and ledgers of processes that snapshot it: for the tests of snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.snapshot_keeper import SnapshotKeeper
from spark_replog.log.codec.commands import decode_command, decode_entry, encode_command, encode_entry
from spark_replog.log.model import SnapshotCommit
from spark_replog.snapshot import DecidedSnapshot, FrozenHead, FrozenState, hash_of
from tests.unit.ledger.conftest import FAST, LEDGER_ID, Process, Store
from tests.waiting import wait_until

NEVER = 10**9
BY_HAND = replace(
    FAST,
    snapshot_entry_count_min=NEVER,
    snapshot_first_entry_count_min=NEVER,
    truncate_record_count_min=1,
    kept_record_count=1,
    marker_check_ms=0,
)
KEPT = replace(BY_HAND, truncate_record_count_min=NEVER)


class PagedState:
    """A list of commands; those of each snapshot are a page, read when it is asked for."""

    def __init__(self) -> None:
        self.applied_index = -1
        self.snapshot = DecidedSnapshot()
        self._pages: list[str] = []
        self._loaded: list[list[bytes]] = []
        self._tail: list[bytes] = []
        self.load_page: Callable[[str], bytes] | None = None

    @property
    def commands(self) -> list[bytes]:
        while len(self._loaded) < len(self._pages):
            texts = json.loads(self.load_page(self._pages[len(self._loaded)]))
            self._loaded.append([bytes.fromhex(text) for text in texts])
        return [command for page in self._loaded for command in page] + self._tail

    def encode(self, commands: Sequence[bytes]) -> bytes:
        return encode_entry(commands)

    has_gone_rows = False

    def encode_feature_set(self) -> bytes | None:
        return None

    def encode_snapshot_commit(self, base_no: int, index: int, name: str) -> bytes:
        return encode_command(SnapshotCommit(base_no, index, name))

    def apply(self, index: int, payload: bytes) -> tuple[str, ...]:
        assert index == self.applied_index + 1
        self.applied_index = index
        return tuple(self._apply(command, index) for command in decode_entry(payload))

    def _apply(self, command: bytes, index: int) -> str:
        if command[:1] == b"\x5a":
            commit = decode_command(command)
            assert isinstance(commit, SnapshotCommit)
            if commit.base_no != self.snapshot.no:
                return "refused"
            self.snapshot = DecidedSnapshot(commit.base_no + 1, commit.index, commit.name, index)
            return "snapshot"
        if command in self.commands:
            return "duplicate"
        self._tail.append(command)
        return "applied"

    def freeze(self) -> FrozenState:
        page = json.dumps([payload.hex() for payload in self._tail]).encode()
        name = f"{self.snapshot.no:012d}-{hash_of(page)}"
        head = json.dumps([[*self._pages, name], self.applied_index]).encode()
        return FrozenHead(self.applied_index, self.snapshot.no, head, {name: page})

    def restore(self, head: bytes, load_page: Callable[[str], bytes]) -> None:
        self._pages, self.applied_index = json.loads(head)
        self._loaded, self._tail, self.load_page = [], [], load_page

    def clear(self) -> None:
        load_page = self.load_page
        self.__init__()
        self.load_page = load_page

    def page_names(self) -> list[str]:
        return [name for name in self._pages if name]

    def adopted(self, frozen: FrozenState) -> None:
        (name,) = frozen.pages
        count = len(json.loads(frozen.pages[name]))
        self._loaded = [self.commands[: len(self.commands) - len(self._tail)], self._tail[:count]]
        self._pages, self._tail = ["", name], self._tail[count:]
        pages, _ = json.loads(frozen.head)
        self._pages, self._loaded = (
            pages,
            [[] for _ in pages[:-2]] + self._loaded if len(pages) > 1 else self._loaded[1:],
        )


def paged(store: Store, settings: Any = BY_HAND, clock: Clock = SYSTEM_CLOCK) -> Process:
    return store.process(settings, PagedState(), clock)


def keeper_of(process: Process) -> SnapshotKeeper:
    return process.ledger.snapshots.keeper


def core_of(process: Process) -> LedgerCore:
    return process.ledger.core


def command(number: int) -> bytes:
    return b"c%06d" % number


def fill(process: Process, first: int, end: int) -> list[bytes]:
    for number in range(first, end):
        process.append(command(number))
    return [command(number) for number in range(end)]


def shoot(process: Process) -> Any:
    return process.ledger.snapshot(timeout_ms=60_000)


def collect_until(process: Process, condition: Callable[[], bool], what: object = "garbage is gone") -> None:
    """Collect until a condition is true while this process has no call to a root's snapshots under way.

    A majority answers for all roots. One that is busy takes a file later, when it may be garbage already: only another
    snapshot or collection deletes it there.
    """
    calls = keeper_of(process).io._running

    def is_true() -> bool:
        if not all(future.done() for running in calls.values() for future in running):
            return False
        return condition() or process.ledger.collect() < 0

    wait_until(is_true, what)


def pages(store: Store, root: int = 0) -> set[str]:
    return {path.name for path in store.root_path(root).glob(f"ledgers/{LEDGER_ID}/pages/*/*")}


def has_marker(store: Store, root: int) -> bool:
    return any(store.root_path(root).glob(f"ledgers/{LEDGER_ID}/markers/*"))


def store_and_die(process: Process) -> None:
    """Store a snapshot whose SnapshotCommit waits for an entry."""
    keeper = keeper_of(process)
    keeper.write(process.ledger.with_turn(process.ledger.snapshots.freeze))


def shoot_and_die(process: Process) -> None:
    """Have a snapshot decided and clean nothing up behind it."""
    store_and_die(process)
    process.ledger.append(lambda _: keeper_of(process).rider(), timeout_ms=60_000)


def heads(store: Store, root: int) -> set[int]:
    """Indexes of the heads on a root."""
    paths = store.root_path(root).glob(f"ledgers/{LEDGER_ID}/snapshots/[0-9]*")  # not the file of a create under way
    return {int(path.name[:20]) for path in paths}
