"""The base of all admin classes, and administration of brokers and partitions. Runs driver-side.

The cluster ledger records that a broker is to be fenced; each topic ledger records the effect, since a fold reads only
its own ledger. The next run, or ``replog coordinator run``, finishes an interrupted fence. Elections and reassignments
report each partition separately. Source: Kafka's ``electLeaders`` and ``alterPartitionReassignments``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from spark_replog.admin.topic_rules import check_explicit
from spark_replog.cluster.authorizer import Authorizer, is_allowed
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.cluster.root_check import make_ledger_folders, roots_there
from spark_replog.commit import state_changes
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.failover import fail_over, warn_of_cut
from spark_replog.commit.state_changes import change_partition, live_topic
from spark_replog.errors import ErrorCode, NotFoundError, ReplogError, RetriableError, unknown_partition
from spark_replog.ids import BrokerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import CLUSTER_NAME, AclOperation, ResourceType
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.partition_state import NO_LEADER, Election, PartitionState, elect_offline, elect_preferred
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import UNCLEAN_KEY
from spark_replog.log.model import BrokerFence, CommandResult, Outcome, PartitionChange

T = TypeVar("T")
DECIDE_TRIES_MAX = 10
_OVERTAKEN = frozenset({Outcome.REFUSED, Outcome.INVALID, Outcome.UNKNOWN_TOPIC, Outcome.TOPIC_CLOSED})


class Admin:
    """Base of the admin classes. Thread-safe. Each method may raise REPLOG_NO_QUORUM.

    Those that change brokers or partitions also raise CLUSTER_AUTHORIZATION_FAILED.

    Args:
        principal: the caller; None: see ``default_principal``.
    """

    def __init__(self, cluster: Cluster, principal: str | None = None, *, timeout_ms: int = 60_000) -> None:
        self._cluster = cluster
        self._authorizer = Authorizer(cluster, principal)
        self._timeout_ms = timeout_ms

    def _require_cluster(self, operation: AclOperation) -> None:
        """Check the caller's right on the whole store."""
        self._cluster.refresh_if_stale()
        self._authorizer.require(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def _require_topic(self, operation: AclOperation, name: str) -> None:
        """Check the caller's right, before checking whether the topic exists."""
        self._cluster.refresh_if_stale()
        self._authorizer.require(operation, ResourceType.TOPIC, name)

    def _require_by(self, state: ClusterLedgerState, operation: AclOperation) -> None:
        """Check a right on the whole store in this state. Call it under the cluster ledger's lock."""
        kind, who = ResourceType.CLUSTER, self._authorizer.principal
        if not is_allowed(state.acls, state.config, who, operation, kind, CLUSTER_NAME):
            raise self._authorizer.refusal(operation, kind, CLUSTER_NAME)

    def _ask(self, operation: AclOperation, question: Callable[[ClusterLedgerState], T]) -> T:
        """Return the answer of the newest fold of the cluster ledger to one who has this right on the store."""

        def ask(state: ClusterLedgerState) -> T:
            self._require_by(state, operation)
            return question(state)

        self._cluster.refresh()
        return self._cluster.cluster_ledger.ask(ask)

    def _decide_unless(self, validate_only: bool, propose: Callable[[ClusterLedgerState], bytes | None]) -> None:
        """Append to the cluster ledger what is proposed on its newest fold, or only see that it can be."""
        if validate_only:
            self._cluster.refresh()
            self._cluster.cluster_ledger.ask(propose)
        else:
            self._cluster.cluster_ledger.append(propose, timeout_ms=self._timeout_ms)

    def _open(self, name: str) -> tuple[TopicHandle, Ledger[TopicLedgerState]]:
        """Return a topic and its ledger on the newest fold."""
        self._cluster.refresh()
        handle = self._cluster.lookup(name)
        ledger, _ = self._cluster.topic_state(handle)
        return handle, ledger

    def _fenced(self) -> frozenset[BrokerId]:
        return self._cluster.cluster_ledger.ask(lambda state: frozenset(state.fenced))

    def _decide(
        self,
        ledger: Ledger[TopicLedgerState],
        propose: Callable[[TopicLedgerState], tuple[bytes, ...] | None],
        on_results: Callable[[Sequence[CommandResult]], None] = lambda _: None,
    ) -> None:
        """Append the commands that ``propose`` makes from the newest fold.

        Commands of this process may share an entry, each made without the others' effect. If the fold refuses a command
        because another one of its entry was first, the command is made again.
        """
        for _ in range(DECIDE_TRIES_MAX):
            results: Sequence[CommandResult] = ledger.append(propose, timeout_ms=self._timeout_ms).results
            on_results(results)
            if not any(is_overtaken(result) for result in results):
                return
        raise RetriableError(
            ErrorCode.INVALID_REQUEST,
            f"another command changed the same thing each time: {results[-1].detail}. Look at it and repeat the "
            "command if it still applies.",
        )


def is_overtaken(result: CommandResult) -> bool:
    """Return whether the fold refused a command that was right for the state before its entry."""
    return result.outcome in _OVERTAKEN


def topic_ledgers(cluster: Cluster) -> list[Ledger[TopicLedgerState]]:
    """Return the ledgers of all published topics, as this process has folded the cluster ledger."""
    ids = cluster.cluster_ledger.ask(lambda state: dict.fromkeys(ledger_id for _, ledger_id in state.topics.values()))
    return [cluster.topic_ledger(ledger_id) for ledger_id in ids]


class BrokerAdmin(Admin):
    """Thread-safe. Arguments: see ``Admin``."""

    def fence(self, broker_id: BrokerId) -> None:
        """Take a broker out of service: it leaves every ISR and leads nothing, until ``unfence``.

        If its root does not answer, rows above the stable index that only it holds are given up (a Truncate).
        Its journal, if it has one, stays in use: ``init`` chose the metadata roots.

        Raises:
            NotFoundError: BROKER_ID_NOT_REGISTERED.
        """
        self._set(broker_id, is_fenced=True)

    def unfence(self, broker_id: BrokerId) -> None:
        """Put a broker back: it joins the ISRs again once it has the objects that it missed. See ``fence``."""
        self._set(broker_id, is_fenced=False)

    def _set(self, broker_id: BrokerId, *, is_fenced: bool) -> None:
        self._cluster.refresh()
        self._authorizer.require(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)

        def propose(state: ClusterLedgerState) -> bytes | None:
            if broker_id not in state.brokers:
                raise NotFoundError(
                    ErrorCode.BROKER_ID_NOT_REGISTERED,
                    f"this store has no broker {broker_id}. Look at those that it has: replog broker list.",
                    brokers=",".join(map(str, sorted(state.brokers))),
                )
            if (broker_id in state.fenced) == is_fenced:
                return None
            return encode_command(BrokerFence(broker_id, is_fenced))

        self._cluster.cluster_ledger.append(propose, timeout_ms=self._timeout_ms)
        for ledger in topic_ledgers(self._cluster):
            ledger.refresh()
            settle_fences(self._cluster, ledger, self._timeout_ms)


def settle_fences(cluster: Cluster, ledger: Ledger[TopicLedgerState], timeout_ms: int) -> bool:
    """Apply the cluster ledger's fences to one topic ledger; return whether any was missing.

    Call it on a refreshed ledger: on an older fold nothing may seem to be missing, and then nothing is written that
    would meet newer entries.
    """
    wanted = cluster.cluster_ledger.ask(lambda state: frozenset(state.fenced))
    if not ledger.ask(lambda state: state_changes.settle_fences(state, wanted)):
        return False  # without a question to a root that may be fenced because it hangs
    away = frozenset(wanted) - roots_there(cluster.brokers, wanted)
    now_ms = cluster.clock.now_ms()

    pending: list[BrokerFence] = []

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        pending[:] = state_changes.settle_fences(state, wanted)
        if not pending:
            return None
        fence = pending[0]  # one per ENTRY: the next depends on the ISRs after it
        # With those that were given up before: rows that only they and this one hold are lost by now.
        given_up = away & {fence.broker_id, *state.fenced} if fence.is_fenced else frozenset[BrokerId]()
        lost = state_changes.failover_commands(state, given_up, now_ms, is_forced=True)
        return tuple(encode_command(command) for command in (*lost, fence))

    if away - ledger.ask(lambda state: frozenset(state.fenced)):
        CatchUp.of(cluster).find_copies(ledger, away)
    outcome = ledger.append(propose, timeout_ms=timeout_ms, is_first=True)
    is_changed = outcome.index >= 0
    warn_of_cut(ledger.ledger_id, outcome)
    for _ in tuple(pending[1:]):
        warn_of_cut(ledger.ledger_id, ledger.append(propose, timeout_ms=timeout_ms, is_first=True))
    return is_changed


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Result for one partition: its current leader and replicas, and the error if nothing was done."""

    partition: int
    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    error: ReplogError | None = None


_Decide = Callable[[TopicLedgerState, int], PartitionChange]
_Brokers = tuple[BrokerId, ...]
_Row = tuple[BrokerId, int, _Brokers, _Brokers, _Brokers, _Brokers]


class PartitionAdmin(Admin):
    """Thread-safe. Each method may raise UNKNOWN_TOPIC_OR_PARTITION: no such topic. For more see ``Admin``."""

    def elect_leaders(
        self, name: str, partitions: Iterable[int] | None = None, *, is_unclean: bool = False
    ) -> list[PartitionOutcome]:
        """Elect the preferred leaders; if unclean, also a leader for each partition that has none.

        An unclean election first tries a clean one. It needs the topic's ``unclean.leader.election.enable``,
        and loses the rows that the new leader lacks, even readable ones.

        Returns:
            Per partition its state; errors ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
            ELIGIBLE_LEADERS_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._require_cluster(AclOperation.ALTER)
        handle, ledger = self._open(name)
        live = self._live_brokers(ledger, handle)
        if is_unclean:
            leaders = set(self._each(ledger, handle, lambda partition: partition.leader))
            fail_over(self._cluster, CatchUp.of(self._cluster), ledger, leaders - live - {NO_LEADER})

        def decide(state: TopicLedgerState, number: int) -> PartitionChange:
            topic = live_topic(state, handle.topic_id)
            partition, candidates = topic.partitions[number], live - state.fenced
            if is_unclean:
                allowed = topic.config.get(UNCLEAN_KEY, "").lower() == "true"
                election = _unclean(partition, candidates, name, number, allowed)
            else:
                election = _preferred(partition, candidates, name, number)
            return change_partition(
                state,
                handle.topic_id,
                number,
                leader=election.leader,
                isr=election.isr if election.is_unclean else None,
                is_unclean=election.is_unclean,
            )

        return self._change(handle, ledger, partitions, decide)

    def reassign(self, name: str, targets: Mapping[int, Sequence[BrokerId]]) -> list[PartitionOutcome]:
        """Start moving partitions: new replicas catch up with the next commits, then the old ones leave.

        Raises:
            InvalidConfigError: INVALID_REPLICA_ASSIGNMENT: nothing was changed.
        """
        self._require_cluster(AclOperation.ALTER)
        self._cluster.refresh()
        registered = self._cluster.cluster_ledger.ask(lambda state: set(state.brokers))
        for number, target in targets.items():
            check_explicit((tuple(target),), registered, first_partition=number)
        handle, ledger = self._open(name)
        brokers = self._cluster.brokers
        wanted = {broker_id for target in targets.values() for broker_id in target}
        for broker_id in make_ledger_folders(brokers, handle.ledger_id, wanted):
            brokers.check_root(broker_id)  # raises the reason
        outcomes = self._change(
            handle,
            ledger,
            sorted(targets),
            lambda state, number: state_changes.begin(state, handle.topic_id, number, targets[number]),
        )
        state_changes.complete_reassignments(ledger, self._timeout_ms)
        errors = {outcome.partition: outcome.error for outcome in outcomes if outcome.error is not None}
        return self._outcomes(ledger, handle, [outcome.partition for outcome in outcomes], errors)

    def cancel(self, name: str, partitions: Iterable[int] | None = None) -> list[PartitionOutcome]:
        """Cancel running reassignments: partitions go back to their earlier replicas.

        Returns:
            Per partition its state; errors NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT.
        """
        self._require_cluster(AclOperation.ALTER)
        handle, ledger = self._open(name)
        return self._change(
            handle, ledger, partitions, lambda state, number: state_changes.cancel(state, handle.topic_id, number)
        )

    def list_reassignments(self, name: str) -> list[PartitionOutcome]:
        """Return the partitions that are being moved."""
        self._require_topic(AclOperation.DESCRIBE, name)
        handle, ledger = self._open(name)
        moving_flags = self._each(ledger, handle, state_changes.is_reassigning)
        return self._outcomes(ledger, handle, [at for at, is_moving in enumerate(moving_flags) if is_moving], {})

    def _each(
        self, ledger: Ledger[TopicLedgerState], handle: TopicHandle, pick: Callable[[PartitionState], T]
    ) -> list[T]:
        """Return what a function picks of each partition; no later entry may change it."""
        return ledger.ask(lambda state: [pick(partition) for partition in state.topics[handle.topic_id].partitions])

    def _live_brokers(self, ledger: Ledger[TopicLedgerState], handle: TopicHandle) -> set[BrokerId]:
        assigned = {broker_id for row in self._each(ledger, handle, lambda at: at.replicas) for broker_id in row}
        timeout_ms = self._cluster.config.replica_lag_time_max_ms
        return roots_there(self._cluster.brokers, assigned - ledger.state.fenced, timeout_ms)

    def _change(
        self, handle: TopicHandle, ledger: Ledger[TopicLedgerState], partitions: Iterable[int] | None, decide: _Decide
    ) -> list[PartitionOutcome]:
        """Append the changes of all partitions as one ENTRY, each made from the newest fold."""
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
            done.update(number for number, result in zip(asked, results, strict=False) if not is_overtaken(result))

        self._decide(ledger, propose, keep)
        return self._outcomes(ledger, handle, numbers, errors)

    def _outcomes(
        self,
        ledger: Ledger[TopicLedgerState],
        handle: TopicHandle,
        numbers: Iterable[int],
        errors: Mapping[int, ReplogError],
    ) -> list[PartitionOutcome]:
        nothing: _Row = (NO_LEADER, 0, (), (), (), ())
        pick = attrgetter("leader", "leader_epoch", "isr", "replicas", "adding", "removing")
        rows: list[_Row] = self._each(ledger, handle, pick)
        return [
            PartitionOutcome(number, *(rows[number] if 0 <= number < len(rows) else nothing), errors.get(number))
            for number in numbers
        ]


def _preferred(partition: PartitionState, live: set[BrokerId], name: str, number: int) -> Election:
    if partition.leader == partition.replicas[0]:
        raise _not_needed(name, number, partition.leader)
    election = elect_preferred(partition.replicas, partition.isr, live)
    if election is None:
        text = (
            f"broker {partition.replicas[0]} is out of sync, fenced or away, so it cannot lead. Bring its root back "
            "and run replog coordinator run --once."
        )
        raise ReplogError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, text, topic=name, partition=number)
    return election


def _unclean(partition: PartitionState, live: set[BrokerId], name: str, number: int, allowed: bool) -> Election:
    if partition.leader in live:
        raise _not_needed(name, number, partition.leader)
    election = elect_offline(partition.replicas, partition.isr, live, is_unclean_allowed=allowed)
    if election is None:
        remedy = "Bring a root back." if allowed else f"Bring a root back, or set {UNCLEAN_KEY}=true on the topic."
        text = f"no replica in sync answers{'' if allowed else ', and the topic allows no unclean leader'}. {remedy}"
        raise ReplogError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, text, topic=name, partition=number)
    return election


def _not_needed(name: str, number: int, leader: BrokerId) -> ReplogError:
    text = f"broker {leader} already leads, and the election would choose it again. Nothing to do."
    return ReplogError(ErrorCode.ELECTION_NOT_NEEDED, text, topic=name, partition=number)
