"""Every request to the roots of one open store, counted by root, kind and purpose. A repeated attempt counts again."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from spark_replog.process_state import in_each_child
from spark_replog.storage.paths import LEDGERS_PREFIX

KINDS = ("get", "create", "list", "delete", "folder")
"""Each 1,000 names of a list are one request; folders are made on file systems only."""
NAMES_PER_LIST = 1_000
_CLAIM_PREFIX = b"RPLJ\x01\x01"
"""First bytes of a claim, which is stored under a journal's names, like an entry."""
_PURPOSES = {
    "journal": "journal",
    "markers": "journal",
    "data": "objects",
    "pages": "pages",
    "snapshots": "snapshots",
    "notes": "notes",
}


class CallKey(NamedTuple):
    """Key of the counters: a root's URL, one of `KINDS`, and a purpose.

    Purposes: journal, claims, objects, pages, snapshots, notes; gc: deletions, and the listings for them; probes: root
    files and everything else.
    """

    root: str
    kind: str
    purpose: str


class Calls(NamedTuple):
    """Number of calls, bytes moved, and how many calls repeated a failed one."""

    call_count: int = 0
    size_bytes: int = 0
    retry_count: int = 0


CallTable = Mapping[CallKey, Calls]
NamedCalls = dict[tuple[str, str, str], Calls]
"""By broker, kind and purpose."""
_Key = TypeVar("_Key", bound=Hashable)
_LongKey = TypeVar("_LongKey", bound=tuple[str, str, str])


def purpose_of(kind: str, key: str, body: object = None) -> str:
    """Return the purpose of a call, derived from its key (and body)."""
    if not key.startswith(LEDGERS_PREFIX):
        return "probes"
    part = key.split("/", 3)[2:3]
    purpose = _PURPOSES.get(part[0], "probes") if part else "probes"
    if kind == "create" and purpose == "journal" and isinstance(body, bytes) and body.startswith(_CLAIM_PREFIX):
        return "claims"
    if purpose != "notes" and (kind == "delete" or (kind == "list" and purpose in ("objects", "pages"))):
        return "gc"
    return purpose


def summed(tables: Iterable[Mapping[_Key, Calls]]) -> dict[_Key, Calls]:
    """Return the sum of the tables."""
    total: dict[_Key, Calls] = {}
    for table in tables:
        for key, calls in table.items():
            total[key] = Calls(*map(operator.add, total.get(key, Calls()), calls))
    return total


def by_kind(table: Mapping[_LongKey, Calls]) -> dict[str, Calls]:
    """Return the sums per kind, of every kind."""
    return summed([dict.fromkeys(KINDS, Calls()), *({kind: calls} for (_, kind, _), calls in table.items())])


def calls_to_json(table: Mapping[tuple[str, str, str], Calls]) -> list[list[Any]]:
    """Return a table as rows of plain values."""
    return [[*key, *calls] for key, calls in sorted(table.items())]


def calls_from_json(rows: Iterable[Iterable[Any]]) -> NamedCalls:
    """Return the table of such rows. Raises ValueError or TypeError for anything else."""
    table: NamedCalls = {}
    for broker, kind, purpose, *counts in rows:
        table[str(broker), str(kind), str(purpose)] = Calls(*map(int, counts))
    return table


def totals(table: Mapping[_LongKey, Calls]) -> dict[str, int]:
    """Return the figures for a client's metrics: calls by kind, bytes by direction, retries."""
    kinds = by_kind(table)
    return {
        **{f"storage_{kind}": kinds[kind].call_count for kind in KINDS[:4]},
        "storage_read_bytes": kinds["get"].size_bytes,
        "storage_written_bytes": kinds["create"].size_bytes,
        "storage_retry": sum(calls.retry_count for calls in kinds.values()),
    }


class CallCounter:
    """Counts for one open store in one process. Thread-safe; a forked child starts from zero."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], list[int]] = {}
        self._taken: CallTable = {}
        _counters.add(self)

    def count(
        self,
        root: str,
        kind: str,
        name: str,
        size_bytes: int = 0,
        *,
        body: object = None,
        call_count: int = 1,
        is_retry: bool = False,
    ) -> None:
        """Count a request, answered or failed; `name` is the object's or folder's key, `body` the bytes written."""
        key = root, kind, purpose_of(kind, name, body)
        with _lock:
            counts = self._counts.setdefault(key, [0, 0, 0])
            counts[0] += call_count
            counts[1] += size_bytes
            counts[2] += is_retry

    def forget(self) -> None:
        """Start from zero."""
        self._counts, self._taken = {}, {}

    def read(self) -> dict[CallKey, Calls]:
        """Return all counts so far."""
        with _lock:
            return {CallKey(*key): Calls(*counts) for key, counts in self._counts.items()}

    def take(self) -> dict[CallKey, Calls]:
        """Return the counts since the last ``take``, for a task to report. One caller only."""
        now, before = self.read(), self._taken
        self._taken = now
        changed = ((key, calls, before.get(key, Calls())) for key, calls in now.items())
        return {
            key: Calls(*(new - old for new, old in zip(calls, previous, strict=True)))
            for key, calls, previous in changed
            if calls != previous
        }


_lock = threading.Lock()
_counters: weakref.WeakSet[CallCounter] = weakref.WeakSet()


@in_each_child
def _start_child() -> None:
    global _lock
    _lock = threading.Lock()
    for counter in _counters:
        counter.forget()
