"""A store that fails as real ones do: before the effect, after it, late, or with wrong bytes.

Two ways to ask: ``fail_next`` for one exact fault, rates with a seed for many.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectInfo, ObjectStore

T = TypeVar("T")


class Fault(Enum):
    """What goes wrong with one call."""

    FAIL_BEFORE = "fail before"
    """Nothing happens, and the caller cannot know: UNKNOWN for a create, RetriableError for the rest."""
    LOSE_ANSWER = "lose answer"
    """The call takes effect, its answer is lost: the same errors as above."""
    REFUSE = "refuse"
    """REPLOG_STORE_REFUSED, nothing happens."""
    STALL = "stall"
    """The call takes ``stall_ms`` longer."""
    CORRUPT = "corrupt"
    """A get answers with one bit flipped; other calls are left alone."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probability of each fault per call; their sum is at most 1."""

    fail_before: float = 0.0
    lose_answer: float = 0.0
    refuse: float = 0.0
    stall: float = 0.0
    corrupt: float = 0.0


class FaultyStore:
    """Wraps any ObjectStore. The same seed and the same order of calls give the same faults.

    Args:
        store: takes the calls that get through.
        seed: of the faults drawn by rate.
        stall_ms: how long a stalled call waits.

    Attributes:
        is_down: while True every call fails before its effect (an unreachable root).
        injected: faults so far, in order, as (verb, key, fault).
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        seed: int = 0,
        rates: FaultRates | None = None,
        stall_ms: float = 50.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.store = store
        self.url = store.url
        self.is_down = False
        self.injected: list[tuple[str, str, Fault]] = []
        self.set_rates(rates or FaultRates(), seed=seed, stall_ms=stall_ms)
        self._clock = clock
        self._planned: list[tuple[str, str, Fault]] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process goes on with: rates, planned faults and the state of the draw."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def set_rates(self, rates: FaultRates, *, seed: int = 0, stall_ms: float = 50.0) -> None:
        """Draw faults at these rates from now on."""
        self._random = random.Random(seed)
        self._rates = (
            (Fault.FAIL_BEFORE, rates.fail_before),
            (Fault.LOSE_ANSWER, rates.lose_answer),
            (Fault.REFUSE, rates.refuse),
            (Fault.STALL, rates.stall),
            (Fault.CORRUPT, rates.corrupt),
        )
        self.stall_ms = stall_ms

    def fail_next(self, verb: str, fault: Fault, *, key_part: str = "", times: int = 1) -> None:
        """Plan a fault for the next calls of this verb whose key contains ``key_part``."""
        with self._lock:
            self._planned.extend([(verb, key_part, fault)] * times)

    def clear(self) -> None:
        """Drop the planned faults that have not happened."""
        with self._lock:
            self._planned.clear()

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """As ``ObjectStore.get``, or the fault."""
        return self._call("get", key, lambda: self.store.get(key, start=start, size_bytes=size_bytes), _read_error)

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """As ``ObjectStore.create``, or the fault."""
        return self._call("create", key, lambda: self.store.create(key, data, make_parent=make_parent), _create_error)

    def make_folder(self, key_prefix: str) -> None:
        """As ``ObjectStore.make_folder``, or the fault."""
        self._call("make_folder", key_prefix, lambda: self.store.make_folder(key_prefix), _read_error)

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """As ``ObjectStore.list_keys``, or the fault."""
        return self._call("list_keys", prefix, lambda: self.store.list_keys(prefix, after=after), _read_error)

    def delete(self, key: str) -> None:
        """As ``ObjectStore.delete``, or the fault."""
        self._call("delete", key, lambda: self.store.delete(key), _read_error)

    def _call(self, verb: str, key: str, call: Callable[[], T], error: Callable[[str, str], ReplogError]) -> T:
        fault = self._draw(verb, key)
        if fault is Fault.REFUSE:
            raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "refused by the fault injector.", url=self.url, key=key)
        if fault is Fault.FAIL_BEFORE:
            raise error(self.url, key)
        if fault is Fault.STALL:
            self._clock.sleep_ms(self.stall_ms)
        result = call()
        if fault is Fault.LOSE_ANSWER:
            raise error(self.url, key)
        if fault is Fault.CORRUPT and verb == "get":
            return self._corrupted(result)
        return result

    def _draw(self, verb: str, key: str) -> Fault | None:
        with self._lock:
            fault = self._choose(verb, key)
            if fault is not None:
                self.injected.append((verb, key, fault))
            return fault

    def _choose(self, verb: str, key: str) -> Fault | None:
        if self.is_down:
            return Fault.FAIL_BEFORE
        for planned in self._planned:
            if planned[0] == verb and planned[1] in key:
                self._planned.remove(planned)
                return planned[2]
        drawn = self._random.random()
        for fault, rate in self._rates:
            if drawn < rate:
                return fault
            drawn -= rate
        return None

    def _corrupted(self, result: T) -> T:
        if not isinstance(result, (bytes, bytearray, memoryview)) or not len(result):
            return result
        body = bytearray(result)
        with self._lock:
            body[self._random.randrange(len(body))] ^= 1 << self._random.randrange(8)
        return bytes(body)  # type: ignore[return-value]


def _read_error(url: str, key: str) -> ReplogError:
    return RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "failed by the fault injector.", url=url, key=key)


def _create_error(url: str, key: str) -> ReplogError:
    return OutcomeUnknownError(
        ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "failed by the fault injector.", url=url, key=key
    )


__all__ = ["Fault", "FaultRates", "FaultyStore"]
