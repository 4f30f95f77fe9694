"""What time it is in a ledger, by the clocks of those who append (ADR 18, ADR 24). Pure; mutable by the fold only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_replog.wire import SINT, TEXT, UINT, fields, list_of, map_of, record

CLOCK_SKEW_MAX_MS = 60_000
"""Clocks of proposers that differ by less never move the time of appends back."""
APPENDS_EARLIER = 3
"""After this many consecutive appends that are further in the past, the time before them counts as wrong."""
WRITERS_KEPT = 8
JUMP_MS = 600_000
"""A writer's clock that moves further from one append to the next may have been set."""


@dataclass(slots=True)
class AppendTime:
    """The time of a ledger's appends, from the clocks of their proposers (ADR 18).

    It never falls while clocks agree within `CLOCK_SKEW_MAX_MS`. A proposer whose clock is ahead moves it ahead;
    after `APPENDS_EARLIER` appends of others it follows theirs again.

    Attributes:
        now_ms: of the last append; 0 before the first.
        earlier_ms: the clocks of the newest appends, if they are further in the past.
    """

    now_ms: int = 0
    earlier_ms: tuple[int, ...] = ()

    def observe(self, clock_ms: int) -> bool:
        """Add the clock of the next applied append; return whether the time went back."""
        if clock_ms >= self.now_ms - CLOCK_SKEW_MAX_MS:
            self.now_ms = max(self.now_ms, clock_ms)
            self.earlier_ms = ()
            return False
        self.earlier_ms = (*self.earlier_ms, clock_ms)
        if len(self.earlier_ms) < APPENDS_EARLIER:
            return False
        self.now_ms = max(self.earlier_ms)
        self.earlier_ms = ()
        return True


APPEND_TIME = record(AppendTime, now_ms=SINT, earlier_ms=list_of(SINT))


def agreed_of(clocks: Iterable[int]) -> int:
    """Return the time that at least two clocks have reached; 0 for fewer clocks."""
    newest = sorted(clocks, reverse=True)
    return newest[1] if len(newest) > 1 else 0


@dataclass(slots=True)
class AgreedTime:
    """A time that no single clock can move ahead: rows age by it, so that none is deleted early (ADR 24).

    It is reached by the clocks of two writers, or by the time that one writer's own clock counted between its appends,
    wherever that clock began. Only a ledger's first writer is believed at once: there are no other rows.

    Attributes:
        now_ms: 0 before the first append.
        writers: of those that appended last: clock, agreed time then, part of a jump that is not counted yet.
    """

    now_ms: int = 0
    writers: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def clocks(self) -> Mapping[str, int]:
        """Return the newest clock (ms) of each of the last writers."""
        return {writer: clock_ms for writer, (clock_ms, *_) in self.writers.items()}

    def observe(self, writer: str, clock_ms: int) -> None:
        """Add the clock of the next applied append."""
        is_again = next(reversed(self.writers), "") == writer
        before = self.writers.pop(writer, None)
        counted_ms, held_ms = (clock_ms if not self.writers else 0), 0
        if before is not None:
            counted_ms, held_ms = self._counted(before, clock_ms, is_again=is_again)
        self.now_ms = max(self.now_ms, counted_ms, agreed_of([clock_ms, *self.clocks.values()]))
        left_ms = max(0, held_ms - (self.now_ms - counted_ms))  # others agreed on the rest: it does not count twice
        self.writers[writer] = clock_ms, self.now_ms, left_ms
        if len(self.writers) > WRITERS_KEPT:
            del self.writers[next(iter(self.writers))]

    def _counted(self, last_state: tuple[int, int, int], clock_ms: int, *, is_again: bool) -> tuple[int, int]:
        """Return the agreed time at a writer's last append plus what its clock counted since, and what is held back.

        A jump counts once as much time again has passed at this writer alone: it may have slept, or its clock may have
        been set. The clock of another writer tells sooner.
        """
        before_ms, agreed_ms, held_ms = last_state
        step_ms = max(0, clock_ms - before_ms)
        released_ms = min(held_ms, step_ms) if is_again else 0
        if step_ms <= JUMP_MS:
            return agreed_ms + released_ms + step_ms, (held_ms - released_ms if is_again else 0)
        return agreed_ms + released_ms, (held_ms - released_ms + step_ms if is_again else 0)

    def go_back(self, now_ms: int) -> None:
        """Follow the time of appends, which went back: what was ahead of it was wrong."""
        self.now_ms = min(self.now_ms, now_ms)
        self.writers = {
            writer: (clock_ms, min(agreed_ms, now_ms), held_ms)
            for writer, (clock_ms, agreed_ms, held_ms) in self.writers.items()
        }


AGREED_TIME = record(AgreedTime, now_ms=SINT, writers=map_of(TEXT, fields(SINT, SINT, UINT)))
