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
from spark_replog.commit.state_changes import failover_commands
from spark_replog.ids import BrokerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, Outcome

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
