"""One append to one ledger, from judgement to a stable entry."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from spark_replog.clock import Clock
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_request import find_under_min_isr, find_unwritable, without_partitions
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.failover import LeaderFailover
from spark_replog.commit.purgatory import DelayedOperationPurgatory
from spark_replog.commit.replica_fetcher import ReplicaFetcher
from spark_replog.commit.replication import (
    DelayedProduce,
    LeaderAndIsr,
    Replication,
    ReplicationRound,
    RoundServices,
    delayed_produce_required,
    is_replicated,
    plan_round,
    run_round,
)
from spark_replog.commit.state_changes import leave_isr
from spark_replog.config import CoordinatorConfig
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import BrokerId, ObjectId, PartitionKey
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import Append, HoldersAdd, IsrChange, encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, Outcome, row_counts

_log = logging.getLogger(__name__)

_SUCCESSES = frozenset({Outcome.APPLIED, Outcome.DUPLICATE, Outcome.SKIPPED})
FAILOVERS_MAX = 3
"""Of one append: each takes a broker out, so more do not help."""
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


@dataclass(frozen=True, slots=True)
class AppendServices:
    """What every append of one replica manager shares."""

    config: CoordinatorConfig
    clock: Clock
    purgatory: DelayedOperationPurgatory
    fetcher: ReplicaFetcher
    cluster: Cluster
    catch_up: CatchUp


class LedgerAppend:
    """Decides one append. Used once, by one thread. Holds what the append names, never rows.

    Args:
        ledger: the topic ledger.
        append: what to decide; its time is set here.
        required_acks: -1, 0 or 1.
        internal_topics_allowed: whether Kafka's internal topics may be written.
        is_atomic: whether one refused partition refuses all; else it is left out and reported in ``refused``.
        timeout_ms: for replicas and, again, for the decision.
        services: shared parts.
        refused: filled with the partitions that are left out, and why.
        copied: older objects -> brokers that have got them, as the writer's tasks say.
    """

    def __init__(
        self,
        ledger: Ledger[TopicLedgerState],
        append: Append,
        *,
        required_acks: int,
        internal_topics_allowed: bool,
        is_atomic: bool,
        timeout_ms: int,
        services: AppendServices,
        refused: dict[PartitionKey, ReplogError],
        copied: Mapping[ObjectId, set[BrokerId]],
    ) -> None:
        self._ledger = ledger
        self._append = append
        self._required_acks = required_acks
        self._is_atomic = is_atomic
        self._refused = refused
        self._failed: dict[PartitionKey, ReplogError] = {}
        self._has_failed = False
        self._judged = append
        self._internal_topics_allowed = internal_topics_allowed
        self._services = services
        self._authorizer = Authorizer(services.cluster, append.principal)
        self._timeout_ms = timeout_ms
        self._deadline_ms = services.clock.monotonic_ms() + timeout_ms
        self._known = Replication({key: set(brokers) for key, brokers in copied.items()})
        self._answer: CommandResult | None = None
        self._round: ReplicationRound | None = None
        self._failover_count = 0
        self._absent: frozenset[BrokerId] = frozenset()
        self._has_looked_for_leaders = False
        self._raised: ReplogError | None = None
        self._is_refreshed = False
        # Of the ledger alone: a parked operation must keep neither this append nor what it names.
        self._lookup = partial(_leader_and_isr, ledger)

    def run(self) -> CommandResult:
        """Decide the append and return what the fold answered.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
            InvalidConfigError: INVALID_TOPIC_EXCEPTION.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID.
            RetriableError: NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, REPLOG_NO_QUORUM: nothing was decided;
                NOT_ENOUGH_REPLICAS_AFTER_APPEND: decided, but not on enough replicas: repeat it;
                NOT_LEADER_OR_FOLLOWER: decided, and cut off by a newer leader: repeat it.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN.
        """
        while True:
            try:
                outcome = self._ledger.append(self._propose, timeout_ms=self._services.config.delivery_timeout_ms)
            except ReplogError as error:
                if error is not self._raised or self._is_refreshed:
                    raise
                # An owner on a streak reads nothing, and a refusal is followed by no create that would fail on a
                # newer owner's entries: a partition may have been added since, or a replica be back.
                self._is_refreshed = True
                self._ledger.refresh()
                continue
            if self._round is not None:
                self._replicate(self._round, is_decided=False)
                continue
            if self._has_failed:
                continue  # without the partitions that have
            if self._absent:
                self._elect_without(self._absent)
                continue
            result: CommandResult = outcome.result if self._answer is None else self._answer
            self._complete_parked()
            if self._required_acks == -1 and result.outcome in _SUCCESSES:
                self._settle_decided(outcome.index)
            return result

    def _propose(self, state: TopicLedgerState) -> tuple[bytes, ...] | None:
        try:
            return self._judge(state)
        except ReplogError as error:
            self._raised = error
            raise

    def _judge(self, state: TopicLedgerState) -> tuple[bytes, ...] | None:
        """Judge on the newest fold: the commands of the ENTRY, or None with an answer or a round to run."""
        self._answer = self._round = None
        self._has_failed = False
        self._absent = frozenset()
        partitions = row_counts(self._append)
        self._refused.clear()
        self._refused.update(self._failed)
        append = self._leave_out(self._append, self._authorizer.refused_partitions(state, self._append))
        append = self._leave_out(
            append,
            find_unwritable(state, row_counts(append), internal_topics_allowed=self._internal_topics_allowed),
        )
        judgement = state.judge(append)
        if judgement.outcome is not Outcome.APPLIED:
            self._answer = CommandResult(judgement.outcome, judgement.ranges, judgement.detail)
            return None
        if self._required_acks == -1:
            append = self._leave_out(append, find_under_min_isr(state, row_counts(append)))
        else:
            append = self._confirmed(state, append)
            self._absent = self._leaders_without(state, append)
            if self._absent:
                return None
        self._judged = append
        if (
            delayed_produce_required(self._required_acks, len(partitions), len(self._refused))
            and not is_replicated(state, append, self._known)
            and not self._is_ready(state, append)
        ):
            return None
        if not append.objects:
            self._answer = CommandResult(Outcome.APPLIED)
            return None
        objects = tuple(replace(item, holders=self._known.holders(item.id, item.holders)) for item in append.objects)
        decided = replace(append, objects=objects, append_time_ms=self._services.clock.now_ms())
        return (*self._side_commands(state), encode_command(decided))

    def _leave_out(self, append: Append, errors: dict[PartitionKey, ReplogError]) -> Append:
        """Return the append without the partitions that are refused so far.

        Raises:
            ReplogError: the first of the errors, where the append is atomic or nothing is left of it.
        """
        if errors and self._is_atomic:
            raise errors[min(errors)]
        self._refused.update(errors)
        if not self._refused:
            return append
        left = without_partitions(append, self._refused)
        if not left.objects:
            raise self._refused[min(self._refused)]
        return left

    def _is_ready(self, state: TopicLedgerState, append: Append) -> bool:
        """Return whether nothing is missing; else keep the round to run.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS.
        """
        now_ms = self._services.clock.monotonic_ms()
        this = plan_round(state, self._ledger.ledger_id, append, self._known, now_ms)
        if this.missing:
            self._round = this
            return False
        operation = DelayedProduce(0, this.partitions, this.statuses, self._lookup)
        operation.safe_try_complete()
        errors = operation.errors()
        self._refuse(this, errors, is_decided=not append.objects)
        return not errors

    def _replicate(self, this: ReplicationRound, *, is_decided: bool) -> None:
        services = self._services
        errors = run_round(
            this,
            self._known,
            RoundServices(
                services.purgatory,
                services.fetcher,
                services.clock,
                services.config.replica_lag_time_max_ms,
                self._ledger.refresh,
                partial(services.catch_up.readmit, self._ledger, is_short=True),
            ),
            self._lookup,
            max(0, self._deadline_ms - services.clock.monotonic_ms()),
        )
        if errors is None:  # a replica has joined: judge again
            return
        if self._known.lost:
            self._fail_over()
            return
        if errors and self._is_leader_lost(this):
            return
        if not _MOVED.isdisjoint(errors.values()):
            return  # the fold has changed under the tail: judge again on the new one
        self._refuse(this, errors, is_decided=is_decided)

    def _is_leader_lost(self, this: ReplicationRound) -> bool:
        """Elect anew where replicas are late because the source of their copies hangs; return whether that was so."""
        own = {item.id for item in self._append.objects}
        late = [job for job, target in this.missing if target not in this.copies[job.id].holders]
        suspects = {broker_id for job in late if job.id not in own for broker_id in job.sources}
        if not suspects or self._failover_count >= FAILOVERS_MAX:
            return False
        self._failover_count += 1
        if not LeaderFailover(self._services.cluster).fail_over(self._ledger, suspects):
            return False
        self._known.departed.clear()
        return True

    def _fail_over(self) -> None:
        """Elect without the brokers that hold what nobody can copy any more, then judge again.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS: it is this append's own rows that are lost, or no election
                helps; nothing of it was decided.
        """
        lost = dict(self._known.lost)
        self._known.lost.clear()
        own = {item.id for item in self._append.objects}
        suspects = {broker_id for sources in lost.values() for broker_id in sources}
        self._failover_count += 1
        if own.isdisjoint(lost) and self._failover_count <= FAILOVERS_MAX:
            with self._ledger.lock:
                before = self._ledger.state.applied_index
            if not LeaderFailover(self._services.cluster).fail_over(self._ledger, suspects):
                self._ledger.refresh()  # another process may have cut them, or found them, long ago
            self._known.departed.clear()  # judged anew, with the new leaders
            self._complete_parked_since(before)
            return
        raise RetriableError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"no broker delivers what {len(lost)} object(s) hold, and nobody else in sync has it. Nothing was decided. "
            "Bring the root back and repeat the batch; to give its rows up for good: replog broker fence. Where the "
            "root is there and its file is gone: replog store repair.",
            ledger=self._ledger.ledger_id,
            brokers=",".join(map(str, sorted(suspects))),
        )

    def _settle_decided(self, index: int) -> None:
        """Settle; no error from now on may say that nothing was decided, or the rows would be written again."""
        try:
            self._settle(index)
        except RetriableError as error:
            if error.code in (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                raise
            raise RetriableError(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                "the rows are in the log, and whether enough replicas have them could not be decided: repeat the "
                f"batch to have them acknowledged. {error.code.name}: {error.args[0]}",
                ledger=self._ledger.ledger_id,
            ) from error

    def _settle(self, decided_index: int) -> None:
        """Wait until the decided append is stable.

        It is at once, unless an entry that another writer of this process made with acks=1 shares
        its ENTRY, or a repeated append meets its first, not yet replicated self.
        """
        ledger = self._ledger
        with ledger.lock:
            index = ledger.state.applied_index
        while True:
            with ledger.lock:
                if ledger.state.applied_index != decided_index:  # what others decided since may have cut it off
                    self._check_not_cut(ledger.state)
                if ledger.state.stable_index >= index:
                    return
            ledger.append(self._propose_settling, timeout_ms=self._services.config.delivery_timeout_ms)
            if self._round is not None:
                self._replicate(self._round, is_decided=True)

    def _propose_settling(self, state: TopicLedgerState) -> tuple[bytes, ...] | None:
        self._round = None
        self._check_not_cut(state)
        nothing = replace(self._append, objects=())
        return (self._side_commands(state) or None) if self._is_ready(state, nothing) else None

    def _check_not_cut(self, state: TopicLedgerState) -> None:
        """Look whether the fold still knows the append, which a newer leader may have cut off.

        Raises:
            RetriableError: NOT_LEADER_OR_FOLLOWER.
        """
        if self._judged.objects and state.judge(self._judged).outcome is Outcome.APPLIED:
            raise RetriableError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the append was decided, and a newer leader cut it off before its followers had it. Nothing of it "
                "is in the log and nobody has read it: repeat the batch.",
                ledger=self._ledger.ledger_id,
            )

    def _side_commands(self, state: TopicLedgerState) -> tuple[bytes, ...]:
        """Return what must be folded before the append: who left the ISR, who got which older object."""
        known = self._known  # copies that are under way still may add to it
        if not known.departed and not known.copied:
            return ()
        now_ms = self._services.clock.now_ms()
        commands: list[IsrChange | HoldersAdd] = [*leave_isr(state, known.departed.copy(), now_ms)]
        for missing in state.under_replicated(include_out_of_sync=True):
            added = known.holders(missing.object.id, frozenset())
            brokers = tuple(sorted(added.intersection(missing.missing)))
            if brokers:
                commands.append(HoldersAdd(missing.entry_index, missing.command_no, missing.object_no, brokers))
        return tuple(encode_command(command) for command in commands)

    def _confirmed(self, state: TopicLedgerState, append: Append) -> Append:
        """acks 0 and 1: what some in-sync replica of each partition holds; acks=0 drops the rest.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS: see ``_leave_out``.
        """
        lost: dict[PartitionKey, int] = {}
        confirmed = []
        for item in append.objects:
            is_confirmed = True
            for section in item.sections:
                if item.holders.isdisjoint(state.topics[section.topic_id].partitions[section.partition].isr):
                    key = (section.topic_id, section.partition)
                    lost[key] = lost.get(key, 0) + section.row_count
                    is_confirmed = False
            if is_confirmed:
                confirmed.append(item)
        if not lost:
            return append
        if self._required_acks:
            return self._leave_out(
                append,
                {
                    key: RetriableError(
                        ErrorCode.NOT_ENOUGH_REPLICAS,
                        f"{row_count} rows are on no in-sync replica; nothing was decided. Repeat the batch.",
                        ledger=self._ledger.ledger_id,
                    )
                    for key, row_count in lost.items()
                },
            )
        named = {id(item) for item in confirmed}
        dropped = sum(s.row_count for item in append.objects if id(item) not in named for s in item.sections)
        _log.warning(
            "[%s] %d rows of batch %d of %s are on no in-sync replica and are dropped, as acks=0 allows.",
            ErrorCode.REPLOG_ACKS0_DROPPED.name,
            dropped,
            append.identity.sequence,
            append.identity.producer_id,
        )
        return replace(append, objects=tuple(confirmed))

    def _leaders_without(self, state: TopicLedgerState, append: Append) -> frozenset[BrokerId]:
        """acks 0 and 1: the leaders that lack their rows: the writer could not reach them. Asked once."""
        if self._has_looked_for_leaders:
            return frozenset()
        return frozenset(
            leader
            for item in append.objects
            for section in item.sections
            for leader in (state.topics[section.topic_id].partitions[section.partition].leader,)
            if leader not in item.holders
        )

    def _elect_without(self, absent: frozenset[BrokerId]) -> None:
        """Elect anew where a leader's root is really away; where it is not, it gets its copy behind the ENTRY."""
        self._has_looked_for_leaders = True
        with self._ledger.lock:
            before = self._ledger.state.applied_index
        LeaderFailover(self._services.cluster).fail_over(self._ledger, absent)
        self._complete_parked_since(before)

    def _complete_parked(self) -> None:
        """Wake other appends of this process whose partition has another leader by the ENTRY just decided."""
        if self._known.departed:
            self._complete_parked_since(-1)

    def _complete_parked_since(self, index: int) -> None:
        with self._ledger.lock:
            if self._ledger.state.applied_index == index:
                return
            keys = [
                (t.topic_id, number) for t in self._ledger.state.topics.values() for number in range(len(t.partitions))
            ]
        for key in keys:
            self._services.purgatory.check_and_complete(key)

    def _refuse(self, this: ReplicationRound, errors: dict[PartitionKey, ErrorCode], *, is_decided: bool) -> None:
        """Leave the failed partitions out of the next proposal, where that is allowed and helps.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        """
        if not errors:
            return
        refusals = {key: self._refusal(this, key, code, len(errors), is_decided) for key, code in errors.items()}
        # A partition of another append above the stable index holds back this one as a whole.
        if is_decided or self._is_atomic or not row_counts(self._append).keys() >= errors.keys():
            raise refusals[min(errors)]
        self._failed.update(refusals)
        self._has_failed = True

    def _refusal(
        self, this: ReplicationRound, key: PartitionKey, code: ErrorCode, refused_count: int, is_decided: bool
    ) -> ReplogError:
        topic_id, partition = key
        tail = this.partitions[key]
        state = self._ledger.state
        name = state.topics[topic_id].name if topic_id in state.topics else topic_id
        departed = "; ".join(f"broker {broker}: {why}" for broker, why in sorted(self._known.departed.items()))
        if code is ErrorCode.REQUEST_TIMED_OUT:
            what = f"the replicas did not take their copies within {self._timeout_ms} ms"
            remedy = "Raise request.timeout.ms, or look why the roots are slow."
        else:
            what = "fewer replicas are in sync than min.insync.replicas asks for"
            remedy = "Bring a root back, or lower min.insync.replicas."
            code = ErrorCode.NOT_ENOUGH_REPLICAS  # copies may be there, but nothing is decided
        if is_decided:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            remedy = f"The rows are in the log; repeat the batch to have them acknowledged. {remedy}"
        else:
            remedy = f"Nothing was decided. {remedy}"
        return RetriableError(
            code,
            f"{what}. {remedy}",
            topic=name,
            partition=partition,
            partitions_refused=refused_count,
            log_ends=" ".join(f"{broker}:{tail.replica_end_offset(broker)}" for broker in tail.replicas),
            away=departed or "none seen by this commit",
        )


def _leader_and_isr(ledger: Ledger[TopicLedgerState], key: PartitionKey) -> LeaderAndIsr | ErrorCode:
    topic_id, number = key
    with ledger.lock:
        topic = ledger.state.topics.get(topic_id)
        if topic is None or topic.closed:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = topic.partitions[number]
        return LeaderAndIsr(found.leader_epoch, found.isr)
