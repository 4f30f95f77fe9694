"""Elections and reassignments of a topic's partitions, by command. Runs driver-side.

Source: Kafka's ``electLeaders`` and ``alterPartitionReassignments``. Each partition is answered for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_replog.admin.admin import Admin, is_overtaken
from spark_replog.admin.topic_rules import check_explicit
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.cluster.root_check import is_root_there, make_ledger_folders
from spark_replog.commit import state_changes as reassignment
from spark_replog.commit.failover import LeaderFailover
from spark_replog.commit.state_changes import change_partition, live_topic
from spark_replog.errors import ErrorCode, ReplogError, unknown_partition
from spark_replog.ids import BrokerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.partition_state import NO_LEADER, Election, PartitionState, elect_offline, elect_preferred
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import UNCLEAN_KEY
from spark_replog.log.model import CommandResult, PartitionChange


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """What became of one partition: its leader and replicas now, and the error if nothing was done."""

    partition: int
    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    error: ReplogError | None = None


_Decide = Callable[[TopicLedgerState, int], PartitionChange]


class PartitionAdmin(Admin):
    """Thread safe. Arguments: see ``Admin``."""

    def elect_leaders(
        self, name: str, partitions: Iterable[int] | None = None, *, is_unclean: bool = False
    ) -> list[PartitionOutcome]:
        """Elect the preferred leaders; if unclean, also a leader for each partition that has none.

        An unclean election first tries a clean one. It needs the topic's ``unclean.leader.election.enable``,
        and it loses the rows that the new leader lacks, readable ones too.

        Returns:
            Per partition its state; errors ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
            ELIGIBLE_LEADERS_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: no such topic.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._require_cluster(AclOperation.ALTER)
        handle, ledger = self._open(name)
        live = self._live_brokers(ledger, handle)
        if is_unclean:
            with ledger.lock:
                leaders = {each.leader for each in ledger.state.topics[handle.topic_id].partitions}
            LeaderFailover(self._cluster).fail_over(ledger, leaders - live - {NO_LEADER})

        def decide(state: TopicLedgerState, number: int) -> PartitionChange:
            topic = live_topic(state, handle.topic_id)
            partition, candidates = topic.partitions[number], live - state.fenced
            if is_unclean:
                allowed = topic.config.get(UNCLEAN_KEY, "").lower() == "true"
                found = _unclean(partition, candidates, name, number, allowed)
            else:
                found = _preferred(partition, candidates, name, number)
            return change_partition(
                state,
                handle.topic_id,
                number,
                leader=found.leader,
                isr=found.isr if found.is_unclean else None,
                is_unclean=found.is_unclean,
            )

        return self._change(handle, ledger, partitions, decide)

    def reassign(self, name: str, targets: Mapping[int, Sequence[BrokerId]]) -> list[PartitionOutcome]:
        """Begin to move partitions: their new replicas catch up with the next commits, the old ones then leave.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
            InvalidConfigError: INVALID_REPLICA_ASSIGNMENT: nothing was changed.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._require_cluster(AclOperation.ALTER)
        self._cluster.refresh()
        with self._cluster.cluster_ledger.lock:
            registered = set(self._cluster.cluster_ledger.state.brokers)
        for target in targets.values():
            check_explicit((tuple(target),), registered)
        handle, ledger = self._open(name)
        brokers = self._cluster.brokers
        wanted = {broker_id for target in targets.values() for broker_id in target}
        for broker_id in make_ledger_folders(brokers, handle.ledger_id, wanted):
            brokers.check_root(broker_id)  # says what is wrong with it
        outcomes = self._change(
            handle,
            ledger,
            sorted(targets),
            lambda state, number: reassignment.begin(state, handle.topic_id, number, targets[number]),
        )
        reassignment.complete_reassignments(ledger, self._timeout_ms)
        return [each if each.error else self._outcome(ledger, handle, each.partition, None) for each in outcomes]

    def cancel(self, name: str, partitions: Iterable[int] | None = None) -> list[PartitionOutcome]:
        """Go back to the replicas of before, wherever a reassignment runs.

        Returns:
            Per partition its state; errors NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT.
        """
        self._require_cluster(AclOperation.ALTER)
        handle, ledger = self._open(name)
        return self._change(
            handle, ledger, partitions, lambda state, number: reassignment.cancel(state, handle.topic_id, number)
        )

    def list_reassignments(self, name: str) -> list[PartitionOutcome]:
        """Return the partitions that are being moved."""
        self._require_topic(AclOperation.DESCRIBE, name)
        handle, ledger = self._open(name)
        with ledger.lock:
            found = ledger.state.topics[handle.topic_id].partitions
            moving = [number for number, each in enumerate(found) if reassignment.is_reassigning(each)]
        return [self._outcome(ledger, handle, number, None) for number in moving]

    def _live_brokers(self, ledger: Ledger[TopicLedgerState], handle: TopicHandle) -> set[BrokerId]:
        with ledger.lock:
            assigned = {each for row in ledger.state.topics[handle.topic_id].partitions for each in row.replicas}
            fenced = ledger.state.fenced
        timeout_ms = self._cluster.config.replica_lag_time_max_ms
        return {each for each in assigned - fenced if is_root_there(self._cluster.brokers, each, timeout_ms)}

    def _change(
        self, handle: TopicHandle, ledger: Ledger[TopicLedgerState], partitions: Iterable[int] | None, decide: _Decide
    ) -> list[PartitionOutcome]:
        """Decide the changes of all partitions in one ENTRY, each made from the newest fold."""
        errors: dict[int, ReplogError] = {}
        numbers: list[int] = []
        asked: list[int] = []
        done: set[int] = set()
        wanted = None if partitions is None else list(dict.fromkeys(partitions))

        def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
            errors.clear()
            asked.clear()
            topic = live_topic(state, handle.topic_id)
            numbers[:] = range(len(topic.partitions)) if wanted is None else wanted
            commands = []
            for number in numbers:
                if not 0 <= number < len(topic.partitions):
                    errors[number] = unknown_partition(handle.name, number, len(topic.partitions))
                    continue
                if number in done:
                    continue
                try:
                    commands.append(encode_command(decide(state, number)))
                    asked.append(number)
                except ReplogError as error:
                    errors[number] = error
            return tuple(commands) or None

        def keep(results: Sequence[CommandResult]) -> None:
            done.update(number for number, each in zip(asked, results, strict=False) if not is_overtaken(each))

        self._decide(ledger, propose, keep)
        return [self._outcome(ledger, handle, number, errors.get(number)) for number in numbers]

    def _outcome(
        self, ledger: Ledger[TopicLedgerState], handle: TopicHandle, number: int, error: ReplogError | None
    ) -> PartitionOutcome:
        with ledger.lock:
            found = ledger.state.topics[handle.topic_id].partitions
            if not 0 <= number < len(found):
                return PartitionOutcome(number, NO_LEADER, 0, (), (), (), (), error)
            at = found[number]
            return PartitionOutcome(
                number, at.leader, at.leader_epoch, at.isr, at.replicas, at.adding, at.removing, error
            )


def _preferred(partition: PartitionState, live: set[BrokerId], name: str, number: int) -> Election:
    if partition.leader == partition.replicas[0]:
        raise _not_needed(name, number, partition.leader)
    found = elect_preferred(partition.replicas, partition.isr, live)
    if found is None:
        raise ReplogError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {partition.replicas[0]} is out of sync, fenced or away, so it cannot lead. Bring its root back "
            "and run replog coordinator run --once.",
            topic=name,
            partition=number,
        )
    return found


def _unclean(partition: PartitionState, live: set[BrokerId], name: str, number: int, allowed: bool) -> Election:
    if partition.leader in live:
        raise _not_needed(name, number, partition.leader)
    found = elect_offline(partition.replicas, partition.isr, live, is_unclean_allowed=allowed)
    if found is None:
        remedy = "Bring a root back." if allowed else f"Bring a root back, or set {UNCLEAN_KEY}=true on the topic."
        raise ReplogError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"no replica in sync answers{'' if allowed else ', and the topic allows no unclean leader'}. {remedy}",
            topic=name,
            partition=number,
        )
    return found


def _not_needed(name: str, number: int, leader: BrokerId) -> ReplogError:
    return ReplogError(
        ErrorCode.ELECTION_NOT_NEEDED,
        f"broker {leader} already leads, and the election would choose it again. Nothing to do.",
        topic=name,
        partition=number,
    )
