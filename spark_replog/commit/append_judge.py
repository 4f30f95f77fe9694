"""Judges one append on the newest fold of its ledger. Pure: a fold and newer knowledge in, a verdict out.

Called under the ledger's lock: nothing here waits or reads a root. ``LedgerAppend`` carries out the verdict. Source of
the order of checks: Kafka's ``KafkaApis.handleProduceRequest`` and ``Partition.appendRecordsToLeader``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from spark_replog.clock import Clock
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.commit.append_request import AppendRequest, refusal, without_partitions
from spark_replog.commit.replication import (
    Replication,
    ReplicationRound,
    is_replicated,
    partitions_of,
    plan_round,
)
from spark_replog.commit.state_changes import leave_isr
from spark_replog.errors import (
    AuthorizationError,
    ErrorCode,
    FencedError,
    InvalidConfigError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
    unknown_partition,
)
from spark_replog.ids import INTERNAL_TOPICS, BrokerId, LedgerId, PartitionKey
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.partition_state import NO_LEADER
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    CommandResult,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    MirrorAppend,
    Outcome,
    SequencedAppend,
)

_log = logging.getLogger(__name__)


class Phase(Enum):
    """The phase of an append. The picture is in docs/architecture.md."""

    JUDGING = "judging"
    """The newest fold decides what happens next."""
    REPLICATING = "replicating"
    """It waits for copies on in-sync replicas, or for those replicas to leave the ISR."""
    ELECTING = "electing"
    """A leader lacks its rows: the next one is elected if the leader's root is away."""
    SETTLING = "settling"
    """Its rows are in the log; with acks=all it waits until its entry is stable."""
    DONE = "done"

    __hash__ = object.__hash__  # Enum's own is a Python function


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.JUDGING: frozenset(Phase),
    Phase.REPLICATING: frozenset({Phase.JUDGING, Phase.SETTLING}),
    Phase.ELECTING: frozenset({Phase.JUDGING}),
    Phase.SETTLING: frozenset({Phase.SETTLING, Phase.REPLICATING, Phase.DONE}),
    Phase.DONE: frozenset(),
}
"""Phase -> the phases that may follow."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of an append on one fold.

    Attributes:
        next: REPLICATING with ``round``, ELECTING with ``absent``, JUDGING again without ``failed``, DONE with
            ``error``; SETTLING: answered by ``result``, or as soon as ``commands`` are decided.
        append: without refused partitions and dropped objects.
        commands: of the ENTRY to decide, ISR changes and new holders first, the append last.
        refused: the partitions left out so far, with their errors; ``failed``: those to leave out from now on.
        absent: leaders that lack their rows.
        leaving: brokers that leave the ISR with these commands, and why.
        is_access_old: the principal is refused by ACLs that may be old: read the newest ones, then judge again.
    """

    next: Phase
    append: Append
    commands: tuple[bytes, ...] = ()
    result: CommandResult | None = None
    refused: Mapping[PartitionKey, ReplogError] = field(default_factory=dict)
    error: ReplogError | None = None
    round: ReplicationRound | None = None
    absent: frozenset[BrokerId] = frozenset()
    failed: Mapping[PartitionKey, ReplogError] = field(default_factory=dict)
    leaving: Mapping[BrokerId, str] = field(default_factory=dict)
    is_access_old: bool = False


@dataclass(frozen=True, slots=True)
class Settling:
    """A decided append that waits for its followers.

    Attributes:
        append: the part that is in the log.
        stable_index: up to here the log must be stable.
        leader_epochs: of its partitions, at a fold with its rows: while unchanged, nothing was cut. None: unknown.
        result: as it was decided, or that of a repeated append if these rows may be its rows.
    """

    append: Append
    stable_index: int
    leader_epochs: tuple[int, ...] | None
    result: CommandResult


def leader_epochs(state: TopicLedgerState, append: Append) -> tuple[int, ...]:
    """Return the leader epochs of an append's partitions."""
    return tuple(state.topics[topic].partitions[number].leader_epoch for topic, number in append.row_counts)


class AppendJudge:
    """Judges one append, as often as the fold changes.

    Args:
        majority: on how many metadata roots an entry is, at least, when it is decided.

    Attributes:
        known: copies made, replicas that leave and objects lost, beyond the fold.
        failed: partitions that are left out, with their errors.
        has_elected: whether the roots of leaders without their rows were checked; this happens once.
        has_newest_access: whether the newest ACLs were read because the known ones refuse; this happens once.
    """

    def __init__(
        self, ledger_id: LedgerId, request: AppendRequest, authorizer: Authorizer, clock: Clock, majority: int = 1
    ) -> None:
        self._majority = majority
        self._ledger_id = ledger_id
        self._request = request
        self._authorizer = authorizer
        self._clock = clock
        # Tasks make their copies after the puts of their own rows.
        after = min((item.after_index for item in request.append.objects), default=-1)
        self.replication = Replication(
            {key: set(brokers) for key, brokers in request.copied.items()},
            copied_after={(key, broker_id): after for key, brokers in request.copied.items() for broker_id in brokers},
        )
        self.failed: dict[PartitionKey, ReplogError] = {}
        self.has_elected = False
        self.has_newest_access = False

    def judge(self, state: TopicLedgerState) -> Verdict:
        """Judge the append on a fold. Called under the ledger's lock."""
        refused = dict(self.failed)
        try:
            return self._judge(state, refused)
        except ReplogError as error:
            if isinstance(error, AuthorizationError) and not self.has_newest_access:
                return Verdict(Phase.JUDGING, self._request.append, refused=refused, is_access_old=True)
            return Verdict(Phase.DONE, self._request.append, refused=refused, error=error)

    def judge_settling(self, state: TopicLedgerState, settling: Settling) -> Verdict:
        """Judge whether an append in the log still waits for copies of the entries up to it."""
        appended = settling.append
        try:
            self.look_again(state, settling)
            nothing = replace(appended, objects=())
            copy_round = plan_round(state, self._ledger_id, nothing, self.replication, self._clock.monotonic_ms())
            if copy_round.missing:
                return Verdict(Phase.REPLICATING, appended, round=copy_round)
            self.failures(state, copy_round, copy_round.errors(), is_decided=True)
        except ReplogError as error:
            return Verdict(Phase.DONE, appended, error=error)
        commands, leaving = self._side_commands(state, copy_round.departed)
        return Verdict(Phase.SETTLING, appended, commands, leaving=leaving)

    def look_again(self, state: TopicLedgerState, settling: Settling) -> Settling:
        """Return a decided append as a newer fold has it: a newer leader may have cut it off.

        If one was elected, the rows in the log may be those of a repeated append, decided later. Only what the ledger
        knows as a duplicate is in the log, also if one of its topics was deleted since. A skipped append needs no rows.

        Raises:
            RetriableError: NOT_LEADER_OR_FOLLOWER: it was cut off.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: it was cut off, or its producer's batches are forgotten.
        """
        appended, epochs = settling.append, leader_epochs(state, settling.append)
        if epochs == settling.leader_epochs or not appended.objects:
            return settling
        judged = state.judge_decided(appended)
        outcome = judged.outcome
        if outcome in (Outcome.DUPLICATE, Outcome.SKIPPED):
            result = settling.result
            # Rows at its own offsets are its own: a leader may move without a cut, as when a lost root is rebuilt.
            if not judged.base_offsets or result.base_offsets != judged.base_offsets:
                result = judged
            return Settling(appended, state.applied_index, epochs, result)
        is_forgotten = isinstance(appended, SequencedAppend) or appended.identity.kind is IdentityKind.ONE_SHOT
        if outcome is not Outcome.APPLIED and (is_forgotten or state.producers.has_passed(appended.identity)):
            raise OutcomeUnknownError(
                ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN,
                "the append was decided, and it is unknown whether a newer leader cut it off: the ledger knows only "
                "later batches of the producer. Look whether its rows are in the log.",
                ledger=self._ledger_id,
            )
        raise RetriableError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "the append was decided, and a newer leader cut it off before its followers had it. Nothing of it "
            "is in the log, and no reader has seen it: repeat the batch.",
            ledger=self._ledger_id,
        )

    def failures(
        self,
        state: TopicLedgerState,
        copy_round: ReplicationRound,
        errors: Mapping[PartitionKey, ErrorCode],
        *,
        is_decided: bool = False,
    ) -> dict[PartitionKey, ReplogError]:
        """Return the partitions to leave out, with their errors, if leaving them out helps.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT: nothing was decided;
                NOT_ENOUGH_REPLICAS_AFTER_APPEND: the rows are in the log.
        """
        if not errors:
            return {}
        own_keys = self._request.append.row_counts.keys() - self.failed.keys()
        refusals = {
            key: self._refusal(state, copy_round, key, code, len(errors), is_own=key in own_keys, is_decided=is_decided)
            for key, code in errors.items()
        }
        # A partition of another append above the stable index holds back this one as a whole.
        if is_decided or self._request.is_atomic or not own_keys >= errors.keys():
            raise refusals[min(errors)]
        return refusals

    def _judge(self, state: TopicLedgerState, refused: dict[PartitionKey, ReplogError]) -> Verdict:
        request = self._request
        append = self.replication.doubt(state, request.append) if state.leadership.left_at else request.append
        partitions = append.row_counts
        errors = self._authorizer.refused_partitions(state, append, partitions)
        if errors and not self.has_newest_access:  # newer ACLs must be read first, which may not happen here
            raise errors[min(errors)]
        allowed = [key for key in partitions if key not in refused and key not in errors]
        if errors or refused:
            append = self._leave_out(append, refused, errors)
        unwritable = _find_unwritable(state, allowed, is_mirror=isinstance(append, MirrorAppend))
        if unwritable:
            append = self._leave_out(append, refused, unwritable)
        judgement = state.judge(append)
        if judgement.outcome is not Outcome.APPLIED:
            return Verdict(Phase.SETTLING, append, result=judgement, refused=refused)
        carries_rows = any(item.inline for item in append.objects)
        if carries_rows:
            append = held_by_ledger(state, append)
        if request.after_sequence is not None:
            self._check_place(state, request.after_sequence)
        if request.required_acks == -1:
            short = _find_under_min_isr(state, [key for key in allowed if key not in unwritable])
            if carries_rows:
                short |= _find_carried_by_too_few(state, append, self._majority)
            if short:
                append = self._leave_out(append, refused, short)
        else:
            if self._is_in_doubt(state, append):
                copy_round = plan_round(state, self._ledger_id, append, self.replication, self._clock.monotonic_ms())
                if copy_round.missing:
                    return Verdict(Phase.REPLICATING, append, refused=refused, round=copy_round)
            append = self._confirmed(state, append, refused)
            absent = self._leaders_without(state, append)
            if absent:
                return Verdict(Phase.ELECTING, append, refused=refused, absent=absent)
        # Source: ``ReplicaManager.delayedProduceRequestRequired``: acks=all, data, and a partition that is not refused.
        is_waiting = request.required_acks == -1 and len(refused) < len(partitions)
        departed: Mapping[BrokerId, str] = {}
        if is_waiting and not is_replicated(state, append, self.replication):
            copy_round = plan_round(state, self._ledger_id, append, self.replication, self._clock.monotonic_ms())
            if copy_round.missing:
                return Verdict(Phase.REPLICATING, append, refused=refused, round=copy_round)
            failed = self.failures(state, copy_round, copy_round.errors())
            if failed:
                return Verdict(Phase.JUDGING, append, refused=refused, failed=failed)
            departed = copy_round.departed
        if not append.objects:
            return Verdict(Phase.SETTLING, append, result=CommandResult(Outcome.APPLIED), refused=refused)
        replication, objects = self.replication, append.objects
        commands: tuple[bytes, ...] = ()
        leaving: dict[BrokerId, str] = {}
        if departed or replication.copied:
            objects = tuple(replace(item, holders=replication.holders(item.id, item.holders)) for item in objects)
            commands, leaving = self._side_commands(state, departed)
        decided = replace(append, objects=objects, append_time_ms=self._clock.now_ms())
        commands = (*commands, encode_command(decided))
        return Verdict(Phase.SETTLING, append, commands, refused=refused, leaving=leaving)

    def _check_place(self, state: TopicLedgerState, after: int) -> None:
        """Refuse an append that does not follow the one that its writer saw; its ENTRY is decided on this very fold."""
        identity = self._request.append.identity
        last = state.producers.last_sequence(identity)
        if last != after:
            raise FencedError(
                ErrorCode.PRODUCER_FENCED,
                f"another process appended as '{identity.producer_id}' meanwhile, up to {last}. Nothing of this append "
                "was decided. Let one of them run.",
                ledger=self._ledger_id,
            )

    def _leave_out(
        self, append: Append, refused: dict[PartitionKey, ReplogError], errors: Mapping[PartitionKey, ReplogError]
    ) -> Append:
        """Add errors to those refused so far; return the append without the refused partitions."""
        if errors and self._request.is_atomic:
            raise errors[min(errors)]
        refused.update(errors)
        left = without_partitions(append, refused)
        if not left.objects:
            raise refused[min(refused)]
        return left

    def _side_commands(
        self, state: TopicLedgerState, departed: Mapping[BrokerId, str]
    ) -> tuple[tuple[bytes, ...], dict[BrokerId, str]]:
        """Return the commands to fold before the append: ISR changes and new holders of older objects.

        The append was judged without exactly these brokers: with one more, fewer than min.insync.replicas could stay.
        """
        replication = self.replication
        shrinks = leave_isr(state, departed, self._clock.now_ms())
        commands: list[IsrChange | HoldersAdd] = [*shrinks]
        for missing in state.under_replicated(include_out_of_sync=True):
            brokers = replication.holders(missing.object.id, frozenset()).intersection(missing.missing)
            if brokers:
                place = (missing.entry_index, missing.command_no, missing.object_no)
                commands.append(HoldersAdd(*place, tuple(sorted(brokers))))
        leaving = {shrink.broker_id: departed[shrink.broker_id] for shrink in shrinks}
        return tuple(encode_command(command) for command in commands), leaving

    def _is_in_doubt(self, state: TopicLedgerState, append: Append) -> bool:
        """Acks 0 and 1: return whether all in-sync holders of some rows are doubtful, so that a copy must be read."""
        doubtful = self.replication.doubtful
        isrs = [
            (item, partition.isr)
            for item in append.objects
            if item.id in doubtful
            for partition in partitions_of(state, item.sections)
        ]
        return any(item.holders.isdisjoint(isr) and not doubtful[item.id].isdisjoint(isr) for item, isr in isrs)

    def _confirmed(self, state: TopicLedgerState, append: Append, refused: dict[PartitionKey, ReplogError]) -> Append:
        """Keep objects that in-sync replicas of all partitions hold; acks=0 drops others, acks=1 refuses partitions."""
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
        if self._request.required_acks:
            errors = {
                key: RetriableError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"no in-sync replica holds {row_count} of the rows. Nothing was decided. Repeat the batch.",
                    ledger=self._ledger_id,
                    topic=state.topics[key[0]].name,
                    partition=key[1],
                )
                for key, row_count in lost.items()
            }
            return self._leave_out(append, refused, errors)
        kept = {item.id for item in confirmed}
        dropped = sum(portion.row_count for item in append.objects if item.id not in kept for portion in item.sections)
        _log.warning(
            "[%s] %d rows of batch %d of %s are on no in-sync replica and are dropped, as acks=0 allows.",
            ErrorCode.REPLOG_ACKS0_DROPPED.name,
            dropped,
            append.identity.sequence,
            append.identity.producer_id,
        )
        return replace(append, objects=tuple(confirmed))

    def _leaders_without(self, state: TopicLedgerState, append: Append) -> frozenset[BrokerId]:
        """Acks 0 and 1: return the leaders that lack their rows because the writer could not reach them."""
        if self.has_elected:
            return frozenset()
        led = [(item, partition.leader) for item in append.objects for partition in partitions_of(state, item.sections)]
        return frozenset(leader for item, leader in led if leader not in item.holders)

    def _refusal(
        self,
        state: TopicLedgerState,
        copy_round: ReplicationRound,
        key: PartitionKey,
        code: ErrorCode,
        refused_count: int,
        *,
        is_own: bool,
        is_decided: bool,
    ) -> ReplogError:
        topic_id, partition = key
        tail = copy_round.partitions[key]
        name = state.topics[topic_id].name if topic_id in state.topics else topic_id
        departed = "; ".join(f"broker {broker}: {why}" for broker, why in sorted(self.replication.departed.items()))
        if code is ErrorCode.REQUEST_TIMED_OUT:
            what = f"the replicas of {name}-{partition} did not take their copies in {self._request.timeout_ms} ms"
            remedy = "Raise request.timeout.ms, or find out why the roots are slow."
        else:
            what = f"fewer replicas of {name}-{partition} are in sync than min.insync.replicas requires"
            remedy = "Bring a root back, or lower min.insync.replicas."
            code = ErrorCode.NOT_ENOUGH_REPLICAS  # copies may exist, but nothing is decided
        if not is_own:
            what += f"; its rows come before these in ledger {self._ledger_id}, so they hold back the whole ledger"
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


def held_by_ledger(state: TopicLedgerState, append: Append) -> Append:
    """Return an append whose inline objects are held by all replicas of their partitions: the ledger holds their bytes.

    As the fold judges it: from here on nothing waits for copies of them, and none is made.
    """
    objects = []
    for item in append.objects:
        replicas = (partition.replicas for partition in partitions_of(state, item.sections) if item.inline)
        objects.append(replace(item, holders=frozenset().union(*replicas)) if item.inline else item)
    return replace(append, objects=tuple(objects))


def _find_unwritable(
    state: TopicLedgerState, partitions: Collection[PartitionKey], *, is_mirror: bool
) -> dict[PartitionKey, ReplogError]:
    """Return the partitions that cannot be written, each with its error."""
    refused: dict[PartitionKey, ReplogError] = {}
    for key in partitions:
        topic_id, number = key
        topic = state.topics.get(topic_id)
        if topic is None:
            detail = f"topic id {topic_id} is not in this ledger"
            refused[key] = refusal(Outcome.UNKNOWN_TOPIC, detail, topic_id=topic_id)
        elif topic.closed:
            refused[key] = refusal(Outcome.TOPIC_CLOSED, f"topic '{topic.name}'", topic=topic.name)
        elif topic.mirror and not is_mirror:
            detail = f"topic '{topic.name}' is a mirror of {topic.mirror}"
            refused[key] = refusal(Outcome.MIRRORED, detail, topic=topic.name)
        elif topic.name in INTERNAL_TOPICS:
            refused[key] = InvalidConfigError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"'{topic.name}' is an internal topic that only coordinators write. Choose another topic.",
            )
        elif not 0 <= number < len(topic.partitions):
            refused[key] = unknown_partition(topic.name, number, len(topic.partitions))
        elif topic.partitions[number].leader == NO_LEADER:
            isr = topic.partitions[number].isr
            refused[key] = RetriableError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                "every in-sync replica of the partition is fenced. Nothing was decided. Put one back: replog broker "
                f"unfence {isr[0]}; or lose what only they hold: replog topic elect {topic.name} --unclean.",
                topic=topic.name,
                partition=number,
                isr=",".join(map(str, isr)),
            )
    return refused


def _find_carried_by_too_few(state: TopicLedgerState, append: Append, majority: int) -> dict[PartitionKey, ReplogError]:
    """Return partitions of inline rows whose `min.insync.replicas` was raised above a majority since they were sent.

    NOT_ENOUGH_REPLICAS, nothing was decided: with newer metadata the producer puts the rows into an object.
    """
    refused: dict[PartitionKey, ReplogError] = {}
    for item in append.objects:
        for section in item.sections if item.inline else ():
            topic = state.topics[section.topic_id]
            min_insync = topic.partitions[section.partition].min_insync
            if min_insync > majority:
                refused[section.topic_id, section.partition] = RetriableError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"the rows are in the entry, which is on {majority} roots when it is decided, and "
                    f"min.insync.replicas is {min_insync}. Nothing was decided. Send them again.",
                    topic=topic.name,
                    partition=section.partition,
                    carried_by=majority,
                )
    return refused


def _find_under_min_isr(
    state: TopicLedgerState, partitions: Collection[PartitionKey]
) -> dict[PartitionKey, ReplogError]:
    """Return the partitions that acks=all may not be appended to: NOT_ENOUGH_REPLICAS, nothing was decided."""
    refused: dict[PartitionKey, ReplogError] = {}
    for topic_id, number in partitions:
        topic = state.topics[topic_id]
        part = topic.partitions[number]
        if len(part.isr) < part.min_insync:
            refused[topic_id, number] = RetriableError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(part.isr)} replicas are in sync and min.insync.replicas is {part.min_insync}. Nothing was "
                "decided. Bring a root back, or lower min.insync.replicas.",
                topic=topic.name,
                partition=number,
                isr=",".join(map(str, part.isr)),
            )
    return refused
