"""One caller's append while it waits for its ENTRY. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_replog.ledger.types import AppendOutcome

Proposal = bytes | tuple[bytes, ...] | None
"""One encoded command, or several that go into one ENTRY in this order (the last one's result is
the caller's), or nothing to do."""


class Request:
    """One caller's append.

    Attributes:
        command_no: which command of the ENTRY in flight answers the caller.
        command_count: how many are the caller's, the last of them that one.
    """

    __slots__ = ("command_count", "command_no", "deadline_ms", "error", "outcome", "propose")

    def __init__(self, propose: Callable[[Any], Proposal], deadline_ms: float) -> None:
        self.propose = propose
        self.deadline_ms = deadline_ms
        self.command_no = 0
        self.command_count = 0
        self.outcome: AppendOutcome | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Return whether the caller has its answer."""
        return self.outcome is not None or self.error is not None
