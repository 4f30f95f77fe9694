"""Does replica work between commits, in its own process: ``replog coordinator run``. Never required.

Each step of a round is a ledger entry or a copy that commits and commands make too. So any number of these
processes may run, stop or die at any moment. Source: the periodic tasks of Kafka's
``ReplicaManager`` (isr-expiration) and ``KafkaController`` (auto-leader-rebalance).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_replog.admin.admin import settle_fences, topic_ledgers
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import is_root_there
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.failover import fail_over
from spark_replog.commit.state_changes import change_partition, complete_reassignments, live_partitions
from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.partition_state import elect_preferred
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import PartitionChange

_log = logging.getLogger(__name__)

ROUND_INTERVAL_MS = 1000
LEVEL_MS = 10_000
"""How long one round gives the roots of a ledger the entries that they lack; the next one goes on."""
LEVEL_PAUSE_MS = 30_000
"""After a root took none of them: each try adds a record to the journals of the others."""
_STOP_CHECK_MS = 100


@dataclass(slots=True)
class RoundReport:
    """Counts of one round; `leveled_count`: journals that were behind and have all entries now."""

    ledger_count: int = 0
    leveled_count: int = 0
    failover_count: int = 0
    joined_count: int = 0
    reassigned_count: int = 0
    elected_count: int = 0
    failed_count: int = 0


@dataclass(slots=True)
class _Round:
    """What one round knows: whether it elects preferred leaders, and which roots answer."""

    is_balancing: bool
    present: dict[BrokerId, bool] = field(default_factory=dict)
    report: RoundReport = field(default_factory=RoundReport)


@dataclass(frozen=True, slots=True)
class OutOfSync:
    """A broker that is out of some ISR of a ledger's partitions, and why it has not joined."""

    ledger_id: LedgerId
    broker: BrokerId
    reason: str


class CoordinatorLoop:
    """Used by one thread.

    Args:
        upkeep: called with each ledger in each round; returns at once if nothing is due; never raises.
        after_round: each called at the end of each round, also if one before it fails.
    """

    def __init__(
        self,
        cluster: Cluster,
        after_round: Sequence[Callable[[], object]] = (),
        upkeep: Callable[[Ledger[TopicLedgerState]], object] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._upkeep = upkeep
        self._after_round = after_round
        self._catch_up = CatchUp.of(cluster)
        self._next_balance_ms = 0
        self._next_level_ms: dict[LedgerId, int] = {}

    def run(self, is_stopped: Callable[[], bool], *, interval_ms: int = ROUND_INTERVAL_MS) -> int:
        """Run rounds until stopped; return how many. Failures are logged and retried."""
        rounds = 0
        clock = self._cluster.clock
        while not is_stopped():
            self.run_once()
            rounds += 1
            end_ms = clock.monotonic_ms() + interval_ms
            while not is_stopped() and clock.monotonic_ms() < end_ms:
                clock.sleep_ms(min(_STOP_CHECK_MS, interval_ms))
        return rounds

    def run_once(self) -> RoundReport:
        """Run one round over all ledgers of the store; a ledger that fails does not stop the others."""
        now_ms = self._cluster.clock.monotonic_ms()
        config = self._cluster.config
        round_state = _Round(config.auto_leader_rebalance_enable and now_ms >= self._next_balance_ms)
        report = round_state.report
        if round_state.is_balancing:
            self._next_balance_ms = now_ms + config.leader_imbalance_check_interval_seconds * 1000
        try:
            self._cluster.refresh()
        except ReplogError as error:
            _log.warning("the cluster ledger does not answer: %s", error)
            report.failed_count += 1
            return report
        level = partial(self._level, self._cluster.cluster_ledger, report)
        report.failed_count += not _is_done("the cluster ledger", level)
        for ledger in topic_ledgers(self._cluster):
            report.ledger_count += 1
            work = partial(self._look_after, ledger, round_state)
            report.failed_count += not _is_done(f"ledger {ledger.ledger_id}", work)
        for step in self._after_round:
            report.failed_count += not _is_done("the end of the round", step)
        return report

    def out_of_sync(self) -> list[OutOfSync]:
        """Return the replicas that have not joined, as the last round left them, by ledger and broker.

        Checks the root of each, which takes up to ``replica.lag.time.max.ms`` if it hangs.
        """
        return [
            OutOfSync(ledger.ledger_id, broker_id, reason)
            for ledger in topic_ledgers(self._cluster)
            for broker_id, reason in self._catch_up.why_out(ledger).items()
        ]

    def _look_after(self, ledger: Ledger[TopicLedgerState], round_state: _Round) -> None:
        ledger.refresh()
        try:
            self._level(ledger, round_state.report)
            self._look_after_replicas(ledger, round_state)
        except ReplogError:
            self._upkeep(ledger)  # it deletes garbage: where a full disk takes no entry, nothing else makes room
            raise
        self._upkeep(ledger)

    def _level(self, ledger: Ledger[Any], report: RoundReport) -> None:
        """Give roots that were away, and answer now, the entries that they lack."""
        behind, now_ms = ledger.behind(), self._cluster.clock.monotonic_ms()
        if not behind or now_ms < self._next_level_ms.get(ledger.ledger_id, 0):
            return
        self._next_level_ms[ledger.ledger_id] = now_ms + LEVEL_PAUSE_MS
        ledger.level(timeout_ms=LEVEL_MS)
        left = ledger.behind()
        report.leveled_count += len(behind.keys() - left)
        if any(count < behind.get(broker_id, 0) for broker_id, count in left.items()):
            del self._next_level_ms[ledger.ledger_id]  # it takes longer than a round

    def _look_after_replicas(self, ledger: Ledger[TopicLedgerState], round_state: _Round) -> None:
        timeout_ms, report = self._cluster.config.delivery_timeout_ms, round_state.report
        settle_fences(self._cluster, ledger, timeout_ms)
        in_sync = ledger.ask(_brokers_in_sync)
        gone = {broker_id for broker_id in in_sync if not self._is_there(broker_id, round_state)}
        if gone:
            report.failover_count += fail_over(self._cluster, self._catch_up, ledger, gone)
        self._catch_up.copy_to_followers(ledger)
        if self._catch_up.is_due(ledger.ledger_id):
            self._catch_up.readmit(ledger)
        report.joined_count += len(ledger.ask(_brokers_in_sync) - in_sync)
        report.reassigned_count += complete_reassignments(ledger, timeout_ms)
        if round_state.is_balancing:
            report.elected_count += self._elect_preferred(ledger, round_state, timeout_ms)

    def _is_there(self, broker_id: BrokerId, round_state: _Round) -> bool:
        """Return whether a root answers; each root is checked once per round."""
        if broker_id not in round_state.present:
            timeout_ms = self._cluster.config.replica_lag_time_max_ms
            round_state.present[broker_id] = is_root_there(self._cluster.brokers, broker_id, timeout_ms)
        return round_state.present[broker_id]

    def _elect_preferred(self, ledger: Ledger[TopicLedgerState], round_state: _Round, timeout_ms: int) -> int:
        """Move leaders back to preferred replicas, for brokers that lead too few of their preferred partitions."""
        count = 0
        percentage = self._cluster.config.leader_imbalance_per_broker_percentage

        def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
            nonlocal count
            live = {broker for broker in _brokers_in_sync(state) - state.fenced if self._is_there(broker, round_state)}
            changes = preferred_elections(state, live, percentage)
            count = len(changes)
            return tuple(encode_command(change) for change in changes) or None

        ledger.append(propose, timeout_ms=timeout_ms)
        return count


def _is_done(what: str, work: Callable[[], object]) -> bool:
    """Do one part of a round; a failure, whatever it is, leaves it to the next round and the other parts alone."""
    try:
        work()
    except ReplogError as error:
        _log.warning("%s is left to the next round: %s", what, error)
        return False
    except Exception:
        _log.exception("%s failed and is left to the next round", what)
        return False
    return True


def preferred_elections(state: TopicLedgerState, live: set[BrokerId], percentage: int) -> list[PartitionChange]:
    """Return the elections that give imbalanced brokers their preferred partitions back, among the live ones.

    A broker is imbalanced if others lead more than this percentage of its preferred partitions.
    """
    preferred: dict[BrokerId, list[PartitionChange]] = {}
    total: dict[BrokerId, int] = {}
    for topic, number, partition in live_partitions(state):
        first = partition.replicas[0]
        total[first] = total.get(first, 0) + 1
        election = elect_preferred(partition.replicas, partition.isr, live)
        if partition.leader != first and election is not None and not partition.adding:
            change = change_partition(state, topic.topic_id, number, leader=first)
            preferred.setdefault(first, []).append(change)
    return [
        change
        for broker_id, changes in preferred.items()
        if len(changes) * 100 > percentage * total[broker_id]
        for change in changes
    ]


def _brokers_in_sync(state: TopicLedgerState) -> set[BrokerId]:
    return {broker_id for _, _, partition in live_partitions(state) for broker_id in partition.isr}
