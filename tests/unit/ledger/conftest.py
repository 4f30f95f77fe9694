"""Ledgers on local roots, each root behind a fault injector and a counter."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.types import JournalRoot, LedgerSettings
from spark_replog.log.codec.commands import decode_entry, encode_entry
from spark_replog.storage.paths import journal_folder
from spark_replog.storage.posix_store import PosixStore
from spark_replog.storage.retrying_store import RetryingStore
from tests.counting_store import CountingStore
from tests.faulty_store import FaultyStore
from tests.waiting import wait_until

LEDGER_ID = "0123456789abcdef0123456789abcdef"
FAST = LedgerSettings(quorum_timeout_ms=20_000, tail_retry_ms=100, root_retry_ms=5, root_retry_max_ms=20)
"""Retries fast, and waits long for a majority: a busy machine may stand still for seconds."""
HASTY = replace(FAST, quorum_timeout_ms=1_000)
"""For processes that meet no majority in the end."""
UNHURRIED = LedgerSettings(quorum_timeout_ms=20_000, grace_ms=20_000)
"""Every root answers in these tests: none is left out because the machine is busy."""


class ListState:
    """Keeps every command; one that is there already is a duplicate."""

    def __init__(self) -> None:
        self.applied_index = -1
        self.commands: list[bytes] = []

    def encode(self, commands: Sequence[bytes]) -> bytes:
        return encode_entry(commands)

    def apply(self, index: int, payload: bytes) -> tuple[str, ...]:
        assert index == self.applied_index + 1
        self.applied_index = index
        results = []
        for command in decode_entry(payload):
            results.append("duplicate" if command in self.commands else "applied")
            if command not in self.commands:
                self.commands.append(command)
        return tuple(results)


class Process:
    """One ledger as one process would have it, and its view of the roots."""

    def __init__(self, ledger: Ledger[ListState], faulty: list[FaultyStore], counting: list[CountingStore]):
        self.ledger = ledger
        self.faulty = faulty
        self.counting = counting

    def append(self, command: bytes, timeout_ms: int = 60_000) -> Any:
        # Long: where one root is out, each of the other two is needed, and a busy machine may keep one call for
        # seconds. The caller's timeout then rightly answers COMMIT_OUTCOME_UNKNOWN.
        return self.ledger.append(lambda state: None if command in state.commands else command, timeout_ms=timeout_ms)

    def commands(self) -> list[bytes]:
        return list(self.ledger.refresh().commands)

    def creates(self, at_least: int = 0) -> int:
        """Return the creates so far, once there are so many: an append does not wait for its slowest root's."""

        def count() -> int:
            return sum(store.counts["create"] for store in self.counting)

        wait_until(lambda: count() >= at_least, lambda: f"{at_least} creates, {count()} so far")
        return count()

    def journal_gets(self) -> int:
        return sum(1 for store in self.counting for verb, key in store.calls if verb == "get" and "/journal/" in key)

    def reset(self) -> None:
        for store in self.counting:
            store.reset()


class Store:
    """Some roots in a directory."""

    def __init__(self, path: Path, root_count: int, ledger_id: str = LEDGER_ID) -> None:
        self.ledger_id = ledger_id
        self.path = path
        self.root_count = root_count
        for root in range(root_count):
            self.make_root(root)

    def root_path(self, root: int) -> Path:
        return self.path / f"broker-{root}"

    def journal(self, root: int) -> list[Path]:
        return sorted((self.root_path(root) / journal_folder(self.ledger_id)).iterdir())

    def make_root(self, root: int) -> None:
        (self.root_path(root) / journal_folder(self.ledger_id)).mkdir(parents=True)
        (self.root_path(root) / "replog.json").write_text(str(root))

    def take_away(self, root: int) -> None:
        self.root_path(root).rename(self.path / f"away-{root}")

    def bring_back(self, root: int) -> None:
        (self.path / f"away-{root}").rename(self.root_path(root))

    def empty(self, root: int) -> None:
        shutil.rmtree(self.root_path(root))
        self.root_path(root).mkdir()

    def process(self, settings: LedgerSettings = FAST, state: Any = None, clock: Clock = SYSTEM_CLOCK) -> Process:
        faulty, counting, roots = [], [], []
        for root in range(self.root_count):
            posix = PosixStore(f"file://{self.root_path(root)}", fsync=False)
            faulty.append(FaultyStore(posix))
            counting.append(CountingStore(faulty[-1]))
            store = RetryingStore(counting[-1], deadline_ms=30)
            roots.append(JournalRoot(root, store, self._check(root, store)))
        ledger = Ledger(self.ledger_id, roots, state or ListState(), settings=settings, clock=clock)
        return Process(ledger, faulty, counting)

    def _check(self, root: int, store: RetryingStore) -> Callable[[], None]:
        def check() -> None:
            if store.get("replog.json") is None:
                raise RetriableError(ErrorCode.REPLOG_ROOT_STALE, "replog.json is missing.", broker=root)

        return check


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Store]:
    return lambda root_count, name="": Store(tmp_path / name, root_count)
