"""Waits for the answers of several roots at once: enough of them, in time, are enough. The only place that does this.

A root that hangs costs nothing while enough others answer. Who needs more than a majority's answers gives the others a
moment (`grace_ms`). The ledger's core, which is pure, has its own waits (``ledger.goal``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import ReplogError

WAIT_MS_MAX = 60_000
"""Of one wait: `math.inf` is a legal timeout."""
K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answers(Generic[K, T]):
    """What came in time, by root: answers, errors, and the calls that go on."""

    by_root: dict[K, T]
    errors: dict[K, ReplogError]
    silent: dict[K, Future[T]]

    @property
    def reasons(self) -> str:
        """Return the errors in words."""
        return "; ".join(map(str, self.errors.values()))


def answers_of(
    calls: Mapping[K, Future[T]],
    timeout_ms: float,
    *,
    needed_count: int | None = None,
    counts: Callable[[T], bool] = lambda answer: True,
    grace_ms: float = 0,
    progress: Callable[[], int] = lambda: 0,
    clock: Clock = SYSTEM_CLOCK,
) -> Answers[K, T]:
    """Wait until enough calls have answered, or too few can, or the time is over.

    Args:
        calls: that have begun, by root. Their errors other than ReplogError are raised.
        needed_count: how many answers are enough; None: all.
        counts: whether an answer is one of those that are needed.
        grace_ms: how long to wait for the other calls once there are enough answers.
        progress: the time begins again while this number grows.
    """
    open_, needed = set(calls.values()), len(calls) if needed_count is None else needed_count
    end_ms, moved, count = clock.monotonic_ms() + timeout_ms, progress(), 0
    while open_ and count < needed and (needed_count is None or count + len(open_) >= needed):
        rest_ms = end_ms - clock.monotonic_ms()
        done, open_ = wait(open_, max(0.0, min(rest_ms, WAIT_MS_MAX)) / 1000.0, FIRST_COMPLETED)
        count += sum(call.exception() is None and counts(call.result()) for call in done)
        if not done and rest_ms <= 0:
            before, moved = moved, progress()
            if moved == before:
                break
            end_ms = clock.monotonic_ms() + timeout_ms
    if open_ and grace_ms and count >= needed:
        wait(open_, grace_ms / 1000.0)
    answers: Answers[K, T] = Answers({}, {}, {})
    for root, call in calls.items():
        if not call.done():
            answers.silent[root] = call
        elif isinstance(error := call.exception(), ReplogError):
            answers.errors[root] = error
        else:
            answers.by_root[root] = call.result()
    return answers
