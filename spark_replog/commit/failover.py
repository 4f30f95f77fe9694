"""The election, and its truncation, when a leader is lost before its followers have its rows.

With acks=1 a row is in the log when its leader holds it. If that root is lost, followers cannot copy the row, and
everything after it would wait for ever: an acknowledged row must never follow a lost one. So the ENTRY that takes the
lost broker out of the ISR (which elects the next leader) first cuts the log after the last entry that other replicas
hold. No reader has seen the cut rows (above the stable index); producers may write them again. Source: KIP-101.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import is_root_there
from spark_replog.commit.state_changes import leave_isr, leaving_replicas, live_partitions
from spark_replog.ids import BrokerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, IsrChange, Outcome, Truncate

_log = logging.getLogger(__name__)


class LeaderFailover:
    """Used by appends whose copies fail or hang, and by ``replog coordinator run``. Thread safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def fail_over(self, ledger: Ledger[TopicLedgerState], suspects: Collection[BrokerId]) -> bool:
        """Elect without the suspects whose root does not answer.

        Nothing is decided if a partition would keep fewer in-sync replicas than ``min.insync.replicas``: no append
        could be acknowledged after it, and the rows may come back.

        Returns:
            Whether anything was decided.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        config = self._cluster.config
        gone = frozenset(
            broker_id
            for broker_id in suspects
            if not is_root_there(self._cluster.brokers, broker_id, config.replica_lag_time_max_ms)
        )
        if not gone:
            return False

        def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
            commands = failover_commands(state, gone, self._cluster.clock.now_ms())
            return tuple(encode_command(each) for each in commands) or None

        outcome = ledger.append(propose, timeout_ms=config.delivery_timeout_ms)
        result: CommandResult | None = outcome.result
        if result is None or result.outcome is not Outcome.APPLIED:
            return False
        _log.warning(
            "ledger %s goes on without broker(s) %s: entry %d moved their leaders%s",
            ledger.ledger_id,
            ", ".join(map(str, sorted(gone))),
            outcome.index,
            f"; {result.detail}" if result.detail else "",
        )
        return True


def failover_commands(
    state: TopicLedgerState, gone: frozenset[BrokerId], now_ms: int, *, is_forced: bool = False
) -> list[Truncate | IsrChange]:
    """Return the commands of the ENTRY that gives brokers up: truncation first, so that the new epochs begin there.

    Args:
        gone: the brokers given up.
        now_ms: wall time; a broker may rejoin ``replica.rejoin.wait.ms`` later.
        is_forced: a user asked for it: ``min.insync.replicas`` does not prevent it.
    """
    gone = _able_to_leave(state, gone)
    led = [
        partition
        for _, _, partition in live_partitions(state)
        if not gone.isdisjoint(partition.isr) and not gone.issuperset(partition.isr)
    ]
    if not is_forced and any(len(set(each.isr) - gone) < each.min_insync for each in led):
        return []
    after_index = state.lost_after(gone)
    commands: list[Truncate | IsrChange] = [] if after_index is None else [Truncate(after_index)]
    leaving = {broker_id for partition in led for broker_id in gone.intersection(partition.isr)}
    return [*commands, *leave_isr(state, leaving, now_ms)]


def _able_to_leave(state: TopicLedgerState, gone: frozenset[BrokerId]) -> frozenset[BrokerId]:
    """Return the lost brokers without those that must stay in sync together, so that a partition waits for its rows.

    A broker leaves every ISR of the ledger at once, and the last replica of an ISR stays. So if all in-sync replicas
    of a partition are lost, one would remain, and rows that it lacks would be on no in-sync replica and not be cut.
    """
    if not any(len(each.isr) > 1 and gone.issuperset(each.isr) for _, _, each in live_partitions(state)):
        return gone
    incomplete = {
        (partition.isr, 1)
        for lacked in state.under_replicated()
        for section in lacked.sections
        for partition in (state.topics[section.topic_id].partitions[section.partition],)
        if len(partition.isr) > 1 and not partition.retired and not set(partition.isr).isdisjoint(lacked.missing)
    }
    return leaving_replicas(gone, incomplete)
