"""Asks one root at a time whether a journal has grown: one get where a read of the ledger is one per metadata root.

A hint only. A root that lacks the newest records answers no; the roots take turns, so the next look asks another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from spark_replog.ids import LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.paths import journal_key

PEEKS_PER_READ = 16
"""Of a ledger. All its roots are then read, and their markers: a journal that was cut or made again may not grow where
this process expects it."""
PEEK_MS_MAX = 1_000
"""How long a root may take to answer; then the ledger is read, which asks all roots."""


class JournalPeek:
    """For one reader of a store."""

    def __init__(self, brokers: BrokerSet) -> None:
        self._brokers = brokers
        self._turns: dict[LedgerId, int] = {}
        self._hung: dict[str, Future[bool]] = {}  # root's URL -> a get that it has not answered in time

    def grown(self, ledgers: Iterable[Ledger[Any]]) -> dict[LedgerId, bool]:
        """Return those to read now, and whether a root shows the next record. Else it is time to read all roots.

        Costs at most one get each, in parallel. Raises nothing: who reads the ledger gets the error.
        """
        grown: dict[LedgerId, bool] = {}
        asked: list[tuple[LedgerId, str, Future[bool]]] = []
        for ledger in ledgers:
            # They begin with different turns, so that not all are read at once.
            turn = self._turns[ledger.ledger_id] = self._turns.get(ledger.ledger_id, len(self._turns)) + 1
            asked_root = None if turn % PEEKS_PER_READ == 0 else self._root_in_turn(turn)
            if asked_root is None:
                grown[ledger.ledger_id] = False
                continue
            broker_id, root = asked_root
            key = journal_key(ledger.ledger_id, ledger.journal_end(broker_id))
            asked.append((ledger.ledger_id, root.url, IO_POOL.submit_to(f"{root.url}#peek", _is_there, root, key)))
        for ledger_id, url, answer in asked:
            try:
                if answer.result(0 if url in self._hung else PEEK_MS_MAX / 1000.0):
                    grown[ledger_id] = True
            except TimeoutError:
                self._hung[url], grown[ledger_id] = answer, False
        return grown

    def _root_in_turn(self, turn: int) -> tuple[int, ObjectStore] | None:
        """Return the next root, without those that hang; None if no other is left."""
        ids = self._brokers.metadata_broker_ids
        for number in range(len(ids)):
            broker_id = ids[(turn + number) % len(ids)]
            store = self._brokers.store(broker_id)
            hung = self._hung.get(store.url)
            if hung is None or hung.done():
                self._hung.pop(store.url, None)
                return broker_id, store
        return None


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        return store.get(key, size_bytes=1) is not None
    except Exception:  # whatever a file system raises: the read of the ledger judges it
        return True
