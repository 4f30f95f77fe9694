"""What an append answers, and what each refusal of the fold means to a caller."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_replog.errors import ErrorCode, FencedError, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.ids import LedgerId
from spark_replog.log.commands import Append
from spark_replog.log.results import CommandResult, Outcome

_log = logging.getLogger(__name__)

_SUCCESSES = frozenset({Outcome.APPLIED, Outcome.DUPLICATE, Outcome.SKIPPED})


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The answer for one ledger.

    Attributes:
        error: None: the append is decided and folded, or needs no effect (``result.outcome`` is
            DUPLICATE or SKIPPED). Else nothing of this ledger's append is decided, save with
            REPLOG_COMMIT_OUTCOME_UNKNOWN, which does not know: repeat it.
        result: what the fold answered; its ``base_offsets`` are the rows' offsets. None where the
            append was refused before anything was proposed.
    """

    error: ReplogError | None
    result: CommandResult | None


def respond(ledger_id: LedgerId, append: Append, result: CommandResult) -> ProduceResponse:
    """Turn the fold's answer into the caller's, with a log line where an append had no effect."""
    if result.outcome not in _SUCCESSES:
        return ProduceResponse(_refusal(ledger_id, append, result), result)
    identity = append.identity
    if result.outcome is not Outcome.APPLIED:
        level = logging.WARNING if result.detail else logging.INFO
        _log.log(
            level,
            "batch %d of %s was %s in ledger %s. %s",
            identity.sequence,
            identity.producer_id,
            "applied before" if result.outcome is Outcome.DUPLICATE else "skipped, as onCheckpointReset says",
            ledger_id,
            result.detail,
        )
    return ProduceResponse(None, result)


def _refusal(ledger_id: LedgerId, append: Append, result: CommandResult) -> ReplogError:
    identity = append.identity
    context = {
        "ledger": ledger_id,
        "producer": identity.producer_id,
        "sequence": identity.sequence,
    }
    detail = result.detail or result.outcome.value
    match result.outcome:
        case Outcome.TOPIC_CLOSED:
            return NotFoundError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"the topic was deleted while rows were written to it ({detail}). Restart the query.",
                **context,
            )
        case Outcome.UNKNOWN_TOPIC:
            return NotFoundError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"the ledger does not know the topic's id ({detail}). Restart the query.",
                **context,
            )
        case Outcome.FENCED:
            return FencedError(
                ErrorCode.PRODUCER_FENCED,
                f"{detail}. The same query runs somewhere else: stop this one, or give each its own checkpoint.",
                **context,
            )
        case Outcome.BELOW_FLOOR:
            return ReplogError(
                ErrorCode.REPLOG_JOB_TOO_LONG,
                f"the write took so long that its files may be collected already ({detail}). "
                "Raise gc.floor.lag.ms or write smaller batches.",
                **context,
            )
        case Outcome.CHECKPOINT_RESET:
            return ReplogError(
                ErrorCode.REPLOG_CHECKPOINT_RESET,
                f"{detail}. Its checkpoint was lost or replaced: restore it, or set onCheckpointReset to 'append' "
                "(rows may repeat) or 'skip' (batches up to that one are dropped), or use a new transactional.id.",
                **context,
            )
        case Outcome.TXN_MISMATCH:
            return ReplogError(
                ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH,
                f"{detail}. Give this write a txnVersion above the last one, or another txnAppId.",
                **context,
            )
        case Outcome.OUT_OF_SEQUENCE:
            return InvalidConfigError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{detail}. Count batches and txnVersion from 0.", **context
            )
        case _:
            return ReplogError(
                ErrorCode.INVALID_REQUEST, f"the append contradicts the log: {detail}. Restart the query.", **context
            )
