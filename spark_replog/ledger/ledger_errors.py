"""What a ledger tells its callers when it cannot answer: errors, and why a call waits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import zip_longest

from spark_replog.clock import Clock
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ledger.core import DAMAGE, LedgerCore
from spark_replog.ledger.requests import COMMAND_SIZE_BYTES_MAX, Request
from spark_replog.ledger.types import LedgerSettings

_LOG = logging.getLogger("spark_replog.ledger.ledger")  # users filter by the name of the ledger itself


class LedgerErrors:
    """The errors of one ledger, and what it logs while a call waits."""

    def __init__(self, ledger_id: str, names: Sequence[str], settings: LedgerSettings, clock: Clock) -> None:
        self._ledger_id = ledger_id
        self.names = names
        self._settings = settings
        self._clock = clock

    def damaged(self, core: LedgerCore) -> ReplogError:
        """Return one error for all journals that cannot be read, without repeated sentences."""
        errors = [state.error for state in core.roots if isinstance(state.error, DAMAGE)]
        if len(errors) == 1:
            return errors[0]
        sentences = zip_longest(*(str(error.args[0]).split(". ") for error in errors))
        text = ". ".join(dict.fromkeys(phrase for several in sentences for phrase in several if phrase is not None))
        return type(errors[0])(errors[0].code, text, ledger_id=self._ledger_id)

    def torn(self, why: str) -> ReplogError:
        """Return the error of a fold that was interrupted."""
        return ReplogError(
            ErrorCode.REPLOG_FOLD_INTERRUPTED,
            f"{why}: what this process knows of the ledger may be half of an entry. The store is whole; open it again.",
            ledger_id=self._ledger_id,
        )

    def _missing_names(self, core: LedgerCore) -> tuple[list[str], list[str]]:
        """Return the roots that refuse, and those that do not answer, each with its error."""
        refusing: list[str] = []
        away: list[str] = []
        for root in core.missing_roots(self._clock.monotonic_ms()):
            state = core.roots[root]
            group, error = (away, state.error) if state.refusal is None else (refusing, state.refusal.error)
            group.append(self.names[root] if error is None else f"{self.names[root]}: {error}")
        return refusing, away

    def delay_reason(self, core: LedgerCore, request: Request | None = None) -> str:
        """Return why a call waits: roots that do not answer, other writers, or slow roots or CPU."""
        named = zip(("Refused by", "Not answering"), self._missing_names(core), strict=True)
        sentences = [f"{what}: {'; '.join(names)}." for what, names in named if names]
        if sentences:
            return " ".join(sentences)
        lost = 0 if request is None else core.rivals.turns_lost - request.turns_lost
        if lost > 0:
            return f"All metadata roots answer; other writers took the ledger over {lost} times meanwhile."
        return "All metadata roots answer, but slowly, or this process gets too little CPU time."

    def not_decided(self, core: LedgerCore, request: Request | None = None) -> ReplogError:
        """Return the error of a call that timed out and changed nothing."""
        needed, count, reason = core.prefix.majority, len(self.names), self.delay_reason(core, request)
        if core.is_refused():
            kind = RetriableError if request is None else ReplogError
            return kind(
                ErrorCode.REPLOG_STORE_REFUSED,
                f"Fewer than {needed} of {count} metadata roots accept the call; nothing was decided. {reason} Remove "
                "the cause on these roots, then repeat the call: waiting does not help.",
                ledger_id=self._ledger_id,
            )
        if count - len(core.missing_roots(self._clock.monotonic_ms())) >= needed:
            waited_ms = self._settings.quorum_timeout_ms if request is None else request.timeout_ms
            return RetriableError(
                ErrorCode.REPLOG_LEDGER_BUSY,
                f"The ledger gave no answer within {waited_ms} ms; nothing was decided. {reason} Repeat the call. If "
                "this happens often, let fewer processes write to this ledger, or raise delivery.timeout.ms.",
                ledger_id=self._ledger_id,
            )
        if core.damaged_roots(1):
            return self.damaged(core)
        return RetriableError(
            ErrorCode.REPLOG_NO_QUORUM,
            f"Fewer than {needed} of {count} metadata roots answer; nothing was decided. {reason} "
            "Bring a root back and repeat the call.",
            ledger_id=self._ledger_id,
        )

    def outcome_unknown(self, core: LedgerCore, request: Request) -> ReplogError:
        """Return the error of a call that was sent and not answered in time."""
        within = "" if core.is_refused() else f" within {request.timeout_ms} ms"
        return OutcomeUnknownError(
            ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN,
            f"The entry was sent, and fewer than {core.prefix.majority} of {len(self.names)} metadata roots "
            f"confirmed it{within}. {self.delay_reason(core, request)} Repeat the same call: if "
            "the entry was decided, its identity is found.",
            ledger_id=self._ledger_id,
        )

    def sent_and_unread(self, error: RetriableError) -> ReplogError:
        """Return the error of a call that was sent, and whose fate cannot be read because of another error."""
        return OutcomeUnknownError(
            ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN,
            f"The entry was sent, and what became of it cannot be read now: {error} Repeat the same call: if "
            "the entry was decided, its identity is found.",
            ledger_id=self._ledger_id,
        )

    def too_large(self, size_bytes: int) -> ReplogError:
        """Return the error of a command whose entry would be too large."""
        return ReplogError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the entry would have {size_bytes} bytes, and {COMMAND_SIZE_BYTES_MAX} is the most. "
            "Nothing was decided. Write with fewer tasks or smaller batches, so that sections have more rows.",
            ledger_id=self._ledger_id,
        )

    def log_unclear(self, core: LedgerCore, what: str) -> None:
        """Log that a read goes on without knowing whether something is decided."""
        _LOG.warning(
            "[%s] ledger %s: too few metadata roots answer to tell whether %s is decided; "
            "going on with the %d entries that are. %s",
            ErrorCode.REPLOG_TAIL_UNDECIDED.name,
            self._ledger_id,
            what,
            core.prefix.length,
            self.delay_reason(core),
        )

    def log_long_read(self, gets: int) -> None:
        """Log that a read takes long, and what makes the next one short."""
        _LOG.warning(
            "Ledger %s is being read: %d gets of journal records so far. A snapshot makes the next start "
            "short: 'replog store snapshot'.",
            self._ledger_id,
            gets,
        )
