"""One append to one ledger, from judgement to a stable entry."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_replog.clock import Clock
from spark_replog.config import CoordinatorConfig
from spark_replog.coordinator.delayed_operation import DelayedOperationPurgatory
from spark_replog.coordinator.delayed_produce import DelayedProduce, PartitionKey
from spark_replog.coordinator.replica_fetcher import ReplicaFetcher
from spark_replog.coordinator.replication_round import (
    Replication,
    ReplicationRound,
    is_replicated,
    plan_round,
    run_round,
)
from spark_replog.coordinator.topic_rules import INTERNAL_TOPICS
from spark_replog.errors import ErrorCode, InvalidConfigError, RetriableError
from spark_replog.ids import BrokerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.commands import Append, DataObject, HoldersAdd, IsrChange, encode_command
from spark_replog.log.results import CommandResult, Outcome
from spark_replog.log.topic_state import TopicLedgerState

_log = logging.getLogger(__name__)

_SUCCESSES = frozenset({Outcome.APPLIED, Outcome.DUPLICATE, Outcome.SKIPPED})


@dataclass(frozen=True, slots=True)
class AppendServices:
    """What every append of one replica manager shares."""

    config: CoordinatorConfig
    clock: Clock
    purgatory: DelayedOperationPurgatory
    fetcher: ReplicaFetcher


class LedgerAppend:
    """Decides one append. Used once, by one thread.

    Args:
        ledger: the topic ledger.
        append: what to decide; its time is set here.
        required_acks: -1, 0 or 1.
        internal_topics_allowed: whether Kafka's internal topics may be written.
        timeout_ms: for replicas and, again, for the decision.
        services: shared parts.
    """

    def __init__(
        self,
        ledger: Ledger[TopicLedgerState],
        append: Append,
        *,
        required_acks: int,
        internal_topics_allowed: bool,
        timeout_ms: int,
        services: AppendServices,
    ) -> None:
        self._ledger = ledger
        self._append = append
        self._waits_for_all = required_acks == -1
        self._drops_unconfirmed = required_acks == 0
        self._internal_topics_allowed = internal_topics_allowed
        self._services = services
        self._timeout_ms = timeout_ms
        self._deadline_ms = services.clock.monotonic_ms() + timeout_ms
        self._known = Replication()
        self._answer: CommandResult | None = None
        self._round: ReplicationRound | None = None

    def run(self) -> CommandResult:
        """Decide the append and return what the fold answered.

        Raises:
            InvalidConfigError: INVALID_TOPIC_EXCEPTION.
            RetriableError: NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, REPLOG_NO_QUORUM: nothing was decided;
                NOT_ENOUGH_REPLICAS_AFTER_APPEND: decided, but not on enough replicas: repeat it.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN.
        """
        while True:
            outcome = self._ledger.append(self._propose, timeout_ms=self._services.config.delivery_timeout_ms)
            if self._round is not None:
                self._replicate(self._round, is_decided=False)
                continue
            result: CommandResult = outcome.result if self._answer is None else self._answer
            if self._waits_for_all and result.outcome in _SUCCESSES:
                self._settle()
            return result

    def _propose(self, state: TopicLedgerState) -> tuple[bytes, ...] | None:
        """Judge on the newest fold: the commands of the ENTRY, or None with an answer or a round to run."""
        self._answer = self._round = None
        append = self._append
        self._check_topics(state)
        judgement = state.judge(append)
        if judgement.outcome is not Outcome.APPLIED:
            self._answer = CommandResult(judgement.outcome, judgement.ranges, judgement.detail)
            return None
        if self._waits_for_all:
            if not is_replicated(state, append, self._known) and not self._is_ready(state, append):
                return None
        else:
            append = replace(append, objects=self._confirmed_objects(state))
        if not append.objects:
            self._answer = CommandResult(Outcome.APPLIED)
            return None
        objects = tuple(
            replace(item, holders=self._known.holders((item.generation, item.name), item.holders))
            for item in append.objects
        )
        decided = replace(append, objects=objects, append_time_ms=self._services.clock.now_ms())
        return (*self._side_commands(state), encode_command(decided))

    def _is_ready(self, state: TopicLedgerState, append: Append) -> bool:
        """Return whether nothing is missing; else keep the round to run.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS.
        """
        this = plan_round(state, self._ledger.ledger_id, append, self._known)
        if this.missing:
            self._round = this
            return False
        operation = DelayedProduce(0, this.partitions, this.statuses)
        operation.safe_try_complete()
        self._raise_refusal(this, operation.errors(), is_decided=not append.objects)
        return True

    def _replicate(self, this: ReplicationRound, *, is_decided: bool) -> None:
        services = self._services
        now_ms = services.clock.monotonic_ms()
        errors = run_round(
            this,
            self._known,
            services.purgatory,
            services.fetcher,
            timeout_ms=max(0, self._deadline_ms - now_ms),
            lag_ms=services.config.replica_lag_time_max_ms,
            now_ms=now_ms,
        )
        self._raise_refusal(this, errors, is_decided=is_decided)

    def _settle(self) -> None:
        """Wait until the decided append is stable.

        It is at once, unless an entry that another writer of this process made with acks=1 shares
        its ENTRY, or a repeated append meets its first, not yet replicated self.
        """
        ledger = self._ledger
        with ledger.lock:
            index = ledger.state.applied_index
        while True:
            with ledger.lock:
                if ledger.state.stable_index >= index:
                    return
            ledger.append(self._propose_settling, timeout_ms=self._services.config.delivery_timeout_ms)
            if self._round is not None:
                self._replicate(self._round, is_decided=True)

    def _propose_settling(self, state: TopicLedgerState) -> tuple[bytes, ...] | None:
        self._round = None
        nothing = replace(self._append, objects=())
        return (self._side_commands(state) or None) if self._is_ready(state, nothing) else None

    def _side_commands(self, state: TopicLedgerState) -> tuple[bytes, ...]:
        """Return what must be folded before the append: who left the ISR, who got which older object."""
        known = self._known
        if not known.departed and not known.copied:
            return ()
        now_ms = self._services.clock.now_ms()
        commands: list[IsrChange | HoldersAdd] = [
            IsrChange(None, broker_id, False, now_ms)
            for broker_id in sorted(known.departed)
            if _is_in_sync(state, broker_id)
        ]
        for missing in state.under_replicated():
            added = known.holders((missing.object.generation, missing.object.name), frozenset())
            brokers = tuple(sorted(added.intersection(missing.missing)))
            if brokers:
                commands.append(HoldersAdd(missing.entry_index, missing.command_no, missing.object_no, brokers))
        return tuple(encode_command(command) for command in commands)

    def _confirmed_objects(self, state: TopicLedgerState) -> tuple[DataObject, ...]:
        """acks 0 and 1: the objects that some in-sync replica of each of their partitions holds.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS: with acks=1 every object must be confirmed.
        """
        confirmed, dropped_row_count = [], 0
        for item in self._append.objects:
            isrs = {state.topics[each.topic_id].partitions[each.partition].isr for each in item.sections}
            if all(not item.holders.isdisjoint(isr) for isr in isrs):
                confirmed.append(item)
            else:
                dropped_row_count += sum(each.row_count for each in item.sections)
        if dropped_row_count and not self._drops_unconfirmed:
            raise RetriableError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{dropped_row_count} rows are on no in-sync replica; nothing was decided. Repeat the batch.",
                ledger=self._ledger.ledger_id,
            )
        if dropped_row_count:
            _log.warning(
                "[%s] %d rows of batch %d of %s are on no in-sync replica and are dropped, as acks=0 allows.",
                ErrorCode.REPLOG_ACKS0_DROPPED.name,
                dropped_row_count,
                self._append.identity.sequence,
                self._append.identity.producer_id,
            )
        return tuple(confirmed)

    def _check_topics(self, state: TopicLedgerState) -> None:
        """Refuse internal topics (source: ``ReplicaManager.appendToLocalLog``).

        Raises:
            InvalidConfigError: INVALID_TOPIC_EXCEPTION.
        """
        if self._internal_topics_allowed:
            return
        for topic_id in _topic_ids(self._append.objects):
            topic = state.topics.get(topic_id)
            if topic is not None and topic.name in INTERNAL_TOPICS:
                raise InvalidConfigError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"'{topic.name}' is an internal topic that only coordinators write. Choose another topic.",
                )

    def _raise_refusal(
        self, this: ReplicationRound, errors: dict[PartitionKey, ErrorCode], *, is_decided: bool
    ) -> None:
        if not errors:
            return
        (topic_id, partition), code = sorted(errors.items())[0]
        tail = this.partitions[topic_id, partition]
        state = self._ledger.state
        name = state.topics[topic_id].name if topic_id in state.topics else topic_id
        departed = "; ".join(f"broker {broker}: {why}" for broker, why in sorted(self._known.departed.items()))
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            what = "fewer replicas are in sync than min.insync.replicas asks for"
            remedy = "Bring a root back, or lower min.insync.replicas."
        else:
            what = f"the replicas did not take their copies within {self._timeout_ms} ms"
            remedy = "Raise request.timeout.ms, or look why the roots are slow."
        if is_decided:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            remedy = f"The rows are in the log; repeat the batch to have them acknowledged. {remedy}"
        else:
            remedy = f"Nothing was decided. {remedy}"
        raise RetriableError(
            code,
            f"{what}. {remedy}",
            topic=name,
            partition=partition,
            partitions_refused=len(errors),
            log_ends=" ".join(f"{broker}:{tail.replica_end_offset(broker)}" for broker in tail.replicas),
            away=departed or "none seen by this commit",
        )


def _topic_ids(objects: Iterable[DataObject]) -> set[str]:
    return {each.topic_id for item in objects for each in item.sections}


def _is_in_sync(state: TopicLedgerState, broker_id: BrokerId) -> bool:
    return any(broker_id in partition.isr for topic in state.topics.values() for partition in topic.partitions)
