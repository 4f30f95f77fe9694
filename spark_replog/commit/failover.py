"""The election, and its truncation, when a leader is lost before its followers have its rows.

With acks=1 a row is in the log when its leader holds it. If that root is lost, followers cannot copy the row, and
everything after it would wait for ever. So the ENTRY that takes the lost broker out of the ISR (which elects the next
leader) first cuts the log after the last entry that other replicas hold. No reader has seen the cut rows. The log may
know less than the roots, so the other in-sync replicas are asked first for the rows that would be cut. Source: KIP-101.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import roots_there
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.state_changes import able_to_leave, failover_commands
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.types import AppendOutcome
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, Outcome, Truncate

_log = logging.getLogger(__name__)


def fail_over(
    cluster: Cluster, catch_up: CatchUp, ledger: Ledger[TopicLedgerState], suspects: Collection[BrokerId]
) -> bool:
    """Elect without the suspects whose root does not answer; return whether this was decided. Raises REPLOG_NO_QUORUM.

    Nothing is decided if a partition would keep fewer in-sync replicas than ``min.insync.replicas``: no append could be
    acknowledged after it, and the rows may come back.
    """
    config = cluster.config
    gone = frozenset(suspects) - roots_there(cluster.brokers, suspects, config.replica_lag_time_max_ms)
    if not gone:
        return False
    _refresh(cluster, ledger)
    given_up = ledger.ask(lambda state: _cut_with(state, gone))
    if given_up:
        catch_up.find_copies(ledger, given_up)

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        commands = failover_commands(state, gone, cluster.clock.now_ms())
        return tuple(encode_command(command) for command in commands) or None

    outcome = ledger.append(propose, timeout_ms=config.delivery_timeout_ms, is_first=True)
    result: CommandResult | None = outcome.result
    if result is None or result.outcome is not Outcome.APPLIED:
        return False
    brokers = ", ".join(map(str, sorted(gone)))
    text = "ledger %s goes on without broker(s) %s: entry %d moved their leaders"
    _log.warning(text, ledger.ledger_id, brokers, outcome.index)
    warn_of_cut(ledger.ledger_id, outcome)
    return True


def _refresh(cluster: Cluster, ledger: Ledger[TopicLedgerState]) -> None:
    """Fold the newest entries; wait for a majority of the roots as long as the decision after it does."""
    deadline_ms = cluster.clock.monotonic_ms() + cluster.config.delivery_timeout_ms
    while True:
        try:
            ledger.refresh()
            return
        except RetriableError as error:
            is_worth_it = error.code in (ErrorCode.REPLOG_NO_QUORUM, ErrorCode.REPLOG_LEDGER_BUSY)
            if not is_worth_it or cluster.clock.monotonic_ms() >= deadline_ms:
                raise


def _cut_with(state: TopicLedgerState, gone: frozenset[BrokerId]) -> frozenset[BrokerId]:
    """Return the brokers whose rows an election cuts; none if it cuts nothing, or may not happen now."""
    is_cut = any(isinstance(command, Truncate) for command in failover_commands(state, gone, 0))
    return able_to_leave(state, gone) if is_cut else frozenset()


def warn_of_cut(ledger_id: LedgerId, outcome: AppendOutcome) -> None:
    """Log how many rows an ENTRY of ``failover_commands`` cut, if any. They may have been acknowledged.

    Its first result is the truncation's, if there was one: other commands are applied without a detail.
    """
    if outcome.results and outcome.results[0].outcome is Outcome.APPLIED and outcome.results[0].detail:
        _log.warning(
            "[%s] ledger %s: %s by entry %d: no other in-sync root holds them or rows before them. acks=0 and acks=1 "
            "allow this when a leader is lost. Use acks=all where rows matter.",
            ErrorCode.REPLOG_DATA_LOSS.name,
            ledger_id,
            outcome.results[0].detail,
            outcome.index,
        )
