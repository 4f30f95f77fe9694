"""The appends that wait for one ledger: which share the next entry, which were sent, and how each is answered.

An append is open until it has an answer. It is proposed on the newest fold; once a value that holds it is put in
flight, it is sent. If that value loses its index, it is proposed again, on the fold that shows what won. If only a
snapshot holds that index, the append may be in it (`is_hidden`): then no error may claim that nothing was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_replog.ledger.types import AppendOutcome, Proposed

ENTRY_SIZE_BYTES_MAX = 256 * 1024
"""From this size on an entry takes no further request."""
COMMAND_SIZE_BYTES_MAX = 32 * 1024 * 1024
"""Of one request's commands, which may be more than `ENTRY_SIZE_BYTES_MAX` (ADR 11)."""


@dataclass(slots=True, eq=False)
class Request:
    """One caller's append.

    Attributes:
        deadline_ms: when the caller gets an error, `timeout_ms` after its call.
        turns_lost: ``Rivals.turns_lost`` at the call.
        is_first: its commands come before those of other requests in the same ENTRY.
        place: of its commands in the ENTRY in flight.
        is_sent: it is in the ENTRY that was put in flight last.
        is_hidden: see above.
        answer: the caller's result, or the error to raise; None until then.
    """

    propose: Callable[[Any], Proposed]
    deadline_ms: float
    timeout_ms: int
    turns_lost: int
    is_first: bool = False
    place: tuple[int, int] = 0, 0
    is_sent: bool = False
    is_hidden: bool = False
    answer: AppendOutcome | BaseException | None = None


class Batch:
    """The commands of the next ENTRY, and where in it those of each request are."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.places: dict[Request, tuple[int, int]] = {}

    def add(self, request: Request, commands: Sequence[bytes]) -> None:
        """Add a request's commands."""
        self.places[request] = len(self.commands), len(self.commands) + len(commands)
        self.commands += commands


class Requests:
    """The open requests of one ledger; hold its gate to call a method.

    Attributes:
        taken: those of which a value is being made, so each of them may be in flight in a moment.
    """

    def __init__(self) -> None:
        self.taken: list[Request] = []
        self._open: list[Request] = []

    def add(self, request: Request) -> None:
        """Let a request wait."""
        self._open.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request whose caller has left."""
        self._open = [open_request for open_request in self._open if open_request is not request]

    def open(self) -> list[Request]:
        """Return those without an answer, in the order of their commands: sent ones keep their places."""
        self._open = [request for request in self._open if request.answer is None]
        return sorted(self._open, key=lambda request: (not request.is_first, not request.is_sent))

    def sent(self) -> list[Request]:
        """Return those without an answer whose value is, or was, in flight."""
        return [request for request in self._open if request.is_sent and request.answer is None]

    def send(self, batch: Batch) -> None:
        """The batch is in flight in place of the one before it."""
        for request in self._open:
            request.is_sent = request in batch.places
        for request, place in batch.places.items():
            request.place = place
        self._open = [*batch.places, *(open_request for open_request in self._open if not open_request.is_sent)]

    def lose(self, *, is_known: bool) -> None:
        """The value in flight has lost its index. `is_known`: the fold has seen what won."""
        for request in self._open:
            request.is_hidden = request.is_sent and not is_known

    def decide(self, index: int, results: tuple[Any, ...]) -> None:
        """Answer those that were sent: their ENTRY is decided and folded."""
        for request in self.sent():
            command_results = results[slice(*request.place)]
            request.answer = AppendOutcome(index, command_results[-1], command_results)

    def fail_sent(self, error: Callable[[Request], BaseException]) -> None:
        """Answer those that were sent by an error."""
        for request in self.sent():
            request.answer = error(request)
