"""Many writers, one name: who wins, and whose bytes are there afterwards."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_replog.ids import new_id
from spark_replog.storage.object_store import CreateOutcome, ObjectStore

RACE_TIMEOUT_SECONDS = 60.0
_BODY_SIZE_BYTES = 3000


@dataclass(frozen=True, slots=True)
class RaceResult:
    """One name after a race.

    Attributes:
        key: the name.
        winners: racers that were told CREATED.
        holder: the racer whose bytes lie under the name; -1 where they are nobody's.
    """

    key: str
    winners: tuple[int, ...]
    holder: int


def race_creates(store: ObjectStore, keys: Sequence[str], *, racers: int = 8, in_processes: bool) -> list[RaceResult]:
    """Let racers create each name at the same moment, and look who holds it.

    Args:
        store: given to processes by pickling.
        keys: the names, raced one after the other.
        racers: how many at once.
        in_processes: new interpreters (a store that processes share), else threads.
    """
    run = new_id()
    outcomes: Any
    barrier: Any
    if in_processes:
        context = multiprocessing.get_context("spawn")
        outcomes, barrier = context.Queue(), context.Barrier(racers)
        make: Callable[..., Any] = context.Process
    else:
        outcomes, barrier = queue.Queue(), threading.Barrier(racers)
        make = threading.Thread
    workers = [
        make(target=_race, args=(store, list(keys), number, run, barrier, outcomes), daemon=True)
        for number in range(racers)
    ]
    for worker in workers:
        worker.start()
    won: dict[str, list[int]] = {key: [] for key in keys}
    for _ in workers:
        number, created = outcomes.get(timeout=RACE_TIMEOUT_SECONDS)
        for key in created:
            won[key].append(number)
    for worker in workers:
        worker.join(RACE_TIMEOUT_SECONDS)
    return [RaceResult(key, tuple(sorted(won[key])), _holder(store, key, run, racers)) for key in keys]


def _race(store: ObjectStore, keys: list[str], number: int, run: str, barrier: Any, outcomes: Any) -> None:
    created = []
    for key in keys:
        barrier.wait(RACE_TIMEOUT_SECONDS)
        if store.create(key, _body(run, number)) is CreateOutcome.CREATED:
            created.append(key)
    outcomes.put((number, created))


def _body(run: str, number: int) -> bytes:
    head = f"{run}-{number:04d}-".encode()
    return head + bytes([65 + number % 26]) * (_BODY_SIZE_BYTES - len(head))


def _holder(store: ObjectStore, key: str, run: str, racers: int) -> int:
    found = store.get(key)
    for number in range(racers):
        if found is not None and bytes(found) == _body(run, number):
            return number
    return -1


__all__ = ["RaceResult", "race_creates"]
