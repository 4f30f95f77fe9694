"""Appends of micro-batches and produce requests: replication first, then one decided ENTRY per ledger.

Runs in the process that commits. Source of the order of checks: Kafka's ``ReplicaManager.appendRecords``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from spark_replog.clock import Clock
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_judge import (
    TRANSITIONS,
    AppendJudge,
    Phase,
    Settling,
    Verdict,
    leader_epochs,
)
from spark_replog.commit.append_request import SUCCESSES, AppendRequest, ProduceResponse, refuse_all, respond
from spark_replog.commit.catch_up import BackgroundRuns, CatchUp
from spark_replog.commit.failover import fail_over
from spark_replog.commit.purgatory import DelayedOperationPurgatory
from spark_replog.commit.replica_fetcher import ReplicaFetcher
from spark_replog.commit.replication import LeaderAndIsr, ReplicationRound, WaitingRound
from spark_replog.commit.state_changes import complete_reassignments
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.ids import BrokerId, LedgerId, PartitionKey
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, Outcome
from spark_replog.quorum import majority_of

_log = logging.getLogger(__name__)

ACKS = (-1, 0, 1)
FAILOVERS_MAX = 3
"""Per append: each takes a broker out, so more do not help."""
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_AFTER_DECISION = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_LEADER_OR_FOLLOWER})


@dataclass(frozen=True, slots=True)
class AppendServices:
    """The services that all appends of one replica manager share."""

    config: CoordinatorConfig
    clock: Clock
    purgatory: DelayedOperationPurgatory
    fetcher: ReplicaFetcher
    cluster: Cluster
    catch_up: CatchUp


class LedgerAppend:
    """Decides one append: a state machine over ``Phase``. Used once, by one thread. Holds no rows.

    Attributes:
        refused: the partitions that are left out so far, with their errors.
    """

    def __init__(self, ledger: Ledger[TopicLedgerState], request: AppendRequest, services: AppendServices) -> None:
        self._ledger = ledger
        self._request = request
        self._services = services
        now_ms = services.clock.monotonic_ms()
        self._deadline_ms = request.deadline_ms or now_ms + services.config.delivery_timeout_ms
        self._copied_by_ms: int | None = None
        authorizer = Authorizer(services.cluster, request.append.principal)
        majority = majority_of(len(services.cluster.brokers.metadata_broker_ids))
        self._judge = AppendJudge(ledger.ledger_id, request, authorizer, services.clock, majority)
        self._phase = Phase.JUDGING
        self._verdict: Verdict | None = None
        self._decided: Settling | None = None
        self._failover_count = 0
        self._is_refreshed = False
        self.refused: Mapping[PartitionKey, ReplogError] = {}

    def run(self) -> CommandResult:
        """Decide the append and return the fold's result.

        Raises:
            ReplogError: nothing was decided; but NOT_ENOUGH_REPLICAS_AFTER_APPEND: decided, and not on enough replicas,
                NOT_LEADER_OR_FOLLOWER: decided, and cut off by a newer leader: repeat it.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN.
        """
        steps: Mapping[Phase, Callable[[], Phase]] = {
            Phase.JUDGING: self._decide,
            Phase.REPLICATING: self._replicate,
            Phase.ELECTING: self._elect,
            Phase.SETTLING: self._settle,
        }
        while self._phase is not Phase.DONE:
            try:
                following = steps[self._phase]()
            except Exception as error:
                if self._decided is None or not _is_open(error):
                    raise
                # No error from now on may report that nothing was decided, or the rows would be written again.
                why = f"{error.code.name}: {error.args[0]}" if isinstance(error, ReplogError) else repr(error)
                if not isinstance(error, ReplogError):
                    _log.exception("append to ledger %s failed after it was decided", self._ledger.ledger_id)
                raise RetriableError(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                    "the rows are in the log, and whether enough replicas have them could not be decided: repeat the "
                    f"batch to have them acknowledged. {why}",
                    ledger=self._ledger.ledger_id,
                ) from error
            assert following in TRANSITIONS[self._phase], f"{self._phase.name} -> {following.name}"
            self._phase = following
        assert self._decided is not None
        return self._decided.result

    def _decide(self) -> Phase:
        left_ms = max(0, self._deadline_ms - self._services.clock.monotonic_ms())
        outcome = self._ledger.append(self._propose, timeout_ms=left_ms, when_queued=self._request.when_queued)
        verdict = self._verdict
        assert verdict is not None
        if verdict.error is not None:
            if self._is_refreshed:
                raise verdict.error
            # An owner may judge without reading first, and a refused append creates no ENTRY that would meet newer
            # ones. So read once: a partition may have been added since, or a replica be back.
            self._is_refreshed = True
            self._ledger.refresh()
            return Phase.JUDGING
        if verdict.is_access_old:  # a right may have been given a moment ago
            self._services.cluster.refresh()
            self._judge.has_newest_access = True
            return Phase.JUDGING
        self._judge.failed.update(verdict.failed)
        result: CommandResult | None = outcome.result if verdict.commands else verdict.result
        if result is None:
            return verdict.next
        if verdict.leaving:
            self._log_departures(verdict, outcome.index)
        with self._ledger.lock:
            state = self._ledger.state
            is_newest = state.applied_index == outcome.index
            is_stable = is_newest and state.stable_index == state.applied_index
            is_settling = self._request.required_acks == -1 and result.outcome in SUCCESSES and not is_stable
            epochs = leader_epochs(state, verdict.append) if is_newest and is_settling else None
            self._decided = Settling(verdict.append, state.applied_index, epochs, result)
        return Phase.SETTLING if is_settling else Phase.DONE

    def _propose(self, state: TopicLedgerState) -> tuple[bytes, ...] | None:
        self._verdict = self._judge.judge(state)
        self.refused = self._verdict.refused
        return self._verdict.commands or None

    def _settle(self) -> Phase:
        """Wait until the decided append is stable: its ENTRY may also carry another writer's append with acks=1, or it
        may repeat an append that is not yet replicated.
        """
        assert self._decided is not None
        with self._ledger.lock:
            state = self._ledger.state
            self._decided = self._judge.look_again(state, self._decided)
            if state.stable_index >= self._decided.stable_index:
                return Phase.DONE
        left_ms = max(0, self._deadline_ms - self._services.clock.monotonic_ms())
        outcome = self._ledger.append(self._propose_settling, timeout_ms=left_ms)
        verdict = self._verdict
        assert verdict is not None
        if verdict.error is not None:
            raise verdict.error
        if verdict.leaving:
            self._log_departures(verdict, outcome.index)
        return verdict.next

    def _propose_settling(self, state: TopicLedgerState) -> tuple[bytes, ...] | None:
        assert self._decided is not None
        self._verdict = self._judge.judge_settling(state, self._decided)
        return self._verdict.commands or None

    def _replicate(self) -> Phase:
        """Copy what is missing, or let replicas leave the ISR; then judge again."""
        assert self._verdict is not None and self._verdict.round is not None
        copy_round, services, judge = self._verdict.round, self._services, self._judge
        # Counted from the first round: a cold read of the ledger while a root is away must not use up the time in
        # which that root leaves the ISR.
        now_ms = services.clock.monotonic_ms()
        self._copied_by_ms = self._copied_by_ms or min(now_ms + self._request.timeout_ms, self._deadline_ms)
        rest_ms = max(0, self._copied_by_ms - now_ms)
        # The look-up refers to the ledger only: a parked operation must not keep this append or its objects in memory.
        lookup, refresh = partial(_leader_and_isr, self._ledger), self._ledger.refresh
        waiting = WaitingRound(
            copy_round, judge.replication, services.purgatory, services.fetcher, lookup, refresh, rest_ms
        )
        errors = waiting.run(partial(self._help_late, copy_round))
        back = Phase.JUDGING if self._decided is None else Phase.SETTLING
        if errors is None:
            return back
        if judge.replication.lost:
            self._fail_over()
        elif not (errors and self._is_source_lost(copy_round)) and _MOVED.isdisjoint(errors.values()):
            with self._ledger.lock:
                state = self._ledger.state
                judge.failed.update(judge.failures(state, copy_round, errors, is_decided=self._decided is not None))
        return back

    def _is_source_lost(self, copy_round: ReplicationRound) -> bool:
        """Elect again if replicas are late because the source of their copies hangs; return whether it happened."""
        if self._failover_count >= FAILOVERS_MAX:
            return False
        own_object_ids = {item.id for item in self._request.append.objects}
        late = [job for job, target in copy_round.missing if target not in copy_round.copies[job.id]]
        suspects = {broker_id for job in late if job.id not in own_object_ids for broker_id in job.sources}
        return bool(suspects) and self._is_elected_without(suspects)

    def _help_late(self, copy_round: ReplicationRound) -> bool:
        """Help if late replicas cannot leave the ISR because min.insync.replicas needs them."""
        return self._is_source_lost(copy_round) or self._services.catch_up.readmit(self._ledger, is_short=True)

    def _fail_over(self) -> None:
        """Elect without the brokers that should hold the objects that cannot be copied, then judge again."""
        replication = self._judge.replication
        lost = dict(replication.lost)
        replication.lost.clear()
        own_object_ids = {item.id for item in self._request.append.objects}
        suspects = {broker_id for sources in lost.values() for broker_id in sources}
        if own_object_ids.isdisjoint(lost) and self._failover_count < FAILOVERS_MAX:
            if not self._is_elected_without(suspects):
                self._failover_count += 1
                self._ledger.refresh()  # another process may have cut them, or found them, long ago
                replication.start_over()
                self._complete_parked()
            return
        raise RetriableError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{len(lost)} data objects are unreadable and no in-sync replica has a copy. Nothing was decided. Bring "
            "the root back and repeat the batch; to give its rows up for good: replog broker fence. Where the root "
            "answers and its file is gone: replog store repair.",
            ledger=self._ledger.ledger_id,
            brokers=",".join(map(str, sorted(suspects))),
            unreadable=len(own_object_ids.intersection(lost)),
        )

    def _elect(self) -> Phase:
        """Elect again if a leader's root is really away; a leader that answers gets its copy after the ENTRY."""
        assert self._verdict is not None
        self._judge.has_elected = True
        self._is_elected_without(self._verdict.absent)
        return Phase.JUDGING

    def _is_elected_without(self, suspects: Collection[BrokerId]) -> bool:
        if not fail_over(self._services.cluster, self._services.catch_up, self._ledger, suspects):
            return False
        self._failover_count += 1
        self._judge.replication.start_over()  # judged again, with the new leaders
        self._complete_parked()
        return True

    def _log_departures(self, verdict: Verdict, index: int) -> None:
        """Log the brokers that left the ISR with a decided ENTRY; wake the appends that waited for them."""
        text = "entry %d of ledger %s takes broker %d out of the in-sync replicas: %s"
        for broker_id, reason in verdict.leaving.items():
            _log.warning(text, index, self._ledger.ledger_id, broker_id, reason)
        self._complete_parked()

    def _complete_parked(self) -> None:
        """Wake other appends of this process whose partition now has other in-sync replicas or another leader."""
        with self._ledger.lock:
            counts = {topic_id: len(topic.partitions) for topic_id, topic in self._ledger.state.topics.items()}
        for topic_id, count in counts.items():
            for number in range(count):
                self._services.purgatory.check_and_complete((topic_id, number))


def _is_open(error: Exception) -> bool:
    """Return whether an error that follows a decided append leaves open what becomes of the rows."""
    if not isinstance(error, ReplogError):
        return True
    is_retriable = isinstance(error, RetriableError) or error.code is ErrorCode.REPLOG_STORE_REFUSED
    return is_retriable and error.code not in _AFTER_DECISION


def _leader_and_isr(ledger: Ledger[TopicLedgerState], key: PartitionKey) -> LeaderAndIsr | ErrorCode:
    topic_id, number = key
    with ledger.lock:
        topic = ledger.state.topics.get(topic_id)
        if topic is None or topic.closed:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = topic.partitions[number]
        return LeaderAndIsr(partition.leader_epoch, partition.isr)


class ReplicaManager:
    """Thread safe; one per cluster and process is enough.

    Args:
        config: timeouts; None: the cluster's.
        after_append: called with the ledger after each successful append; returns at once, and raises nothing.
        waits_for_quotas: whether answers of clients above their quota come late. False: they come at once, and whoever
            gets them lets the client wait for their ``throttle_time_ms``.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: CoordinatorConfig | None = None,
        after_append: Callable[[Ledger[TopicLedgerState]], object] = lambda _: None,
        *,
        waits_for_quotas: bool = True,
    ) -> None:
        self._cluster = cluster
        self._waits_for_quotas = waits_for_quotas
        config = config or cluster.config
        fetcher = ReplicaFetcher(cluster.brokers, config, clock=cluster.clock)
        self._catch_up = CatchUp(fetcher)
        self._later = BackgroundRuns(partial(self._look_after_replicas, is_copying=True))
        self._after_append = after_append
        purgatory = DelayedOperationPurgatory(clock=cluster.clock)
        self._services = AppendServices(config, cluster.clock, purgatory, fetcher, cluster, self._catch_up)

    def append_records(self, requests: Mapping[LedgerId, AppendRequest]) -> dict[LedgerId, ProduceResponse]:
        """Replicate and decide one append per ledger, each alone and all in parallel.

        With acks 0 and 1 followers get their copies after the answer, in the background: see ``await_copies``.

        Returns:
            One response per ledger, in the order of the requests. Some may be decided and others not; a repeated call
            finds the decided ones as duplicates.
        """
        responses: dict[LedgerId, ProduceResponse] = {}
        appends = [partial(self._append, ledger_id, requests[ledger_id], responses) for ledger_id in requests]
        threads = [DaemonThread(append, name="replog-append") for append in appends[1:]]
        for thread in threads:
            thread.start()
        for first in appends[:1]:
            first()
        for thread in threads:
            thread.join()
        applied = {
            ledger_id: requests[ledger_id].append
            for ledger_id, response in responses.items()
            if response.result is not None and response.result.outcome is Outcome.APPLIED
        }
        limit_ms = min([request.timeout_ms for request in requests.values()], default=0) // 2
        throttle_ms = self._cluster.produce_throttle_ms(applied, limit_ms)
        if not throttle_ms:
            return {ledger_id: responses[ledger_id] for ledger_id in requests}
        if self._waits_for_quotas:
            self._cluster.clock.sleep_ms(throttle_ms)
        return {ledger_id: replace(responses[ledger_id], throttle_time_ms=throttle_ms) for ledger_id in requests}

    def prepare(self) -> None:
        """Begin to read the ACLs and quotas of an append whose objects are being put now; returns at once."""
        self._cluster.refresh_ahead()

    def await_copies(self, timeout_ms: int | None = None) -> bool:
        """Wait for the copies that acks 0 and 1 leave to the background; return whether none is left to make.

        For a process that may end: copies not made in time are left to the next commit or coordinator.
        None: wait for ``replica.catchup.budget.ms``.
        """
        return self._later.wait(self._services.config.replica_catchup_budget_ms if timeout_ms is None else timeout_ms)

    def _append(self, ledger_id: LedgerId, request: AppendRequest, responses: dict[LedgerId, ProduceResponse]) -> None:
        """Put the response of one ledger into ``responses``."""
        if request.required_acks not in ACKS:
            error = InvalidConfigError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                "acks is 'all' (-1), 0 or 1. Nothing was appended.",
                acks=request.required_acks,
            )
            responses[ledger_id] = refuse_all(request.append, error)
            return
        deadline_ms = self._services.clock.monotonic_ms() + request.timeout_ms
        ledger = self._cluster.topic_ledger(ledger_id)
        response = self._attempt(ledger, request)
        errors = [response.error, *(partition.error for partition in response.partitions.values())]
        if any(problem is not None and problem.code is ErrorCode.NOT_ENOUGH_REPLICAS for problem in errors):
            # Perhaps no other process looks for a root that is back, and without it no append would succeed again.
            is_back = self._look_after_replicas(ledger, is_short=True)
            rest_ms = deadline_ms - self._services.clock.monotonic_ms()
            if is_back and response.error is not None and rest_ms > 0:
                response = self._attempt(ledger, replace(request, timeout_ms=rest_ms))
        responses[ledger_id] = response
        if response.error is None:
            self._after_append(ledger)
            if request.required_acks != -1:
                self._later.start(ledger)
            elif self._catch_up.is_due(ledger_id):
                self._look_after_replicas(ledger)

    def _attempt(self, ledger: Ledger[TopicLedgerState], request: AppendRequest) -> ProduceResponse:
        attempt: LedgerAppend | None = None
        try:
            self._cluster.refresh_if_stale()  # ACLs and quotas
            attempt = LedgerAppend(ledger, request, self._services)
            result = attempt.run()
            with ledger.lock:
                return respond(ledger.state, request, result, attempt.refused)
        except ReplogError as error:
            return refuse_all(request.append, error, None, {} if attempt is None else attempt.refused)
        except Exception as error:  # a thread must not die silently: the caller waits for its answer
            _log.exception("append to ledger %s failed", ledger.ledger_id)
            unexpected = ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"append failed: {error!r}. Report it.", ledger=ledger.ledger_id
            )
            unexpected.__cause__ = error
            return refuse_all(request.append, unexpected)

    def _look_after_replicas(
        self, ledger: Ledger[TopicLedgerState], *, is_copying: bool = False, is_short: bool = False
    ) -> bool:
        """Bring followers up to date after an append; never fails it. Return whether a replica is back in sync.

        Args:
            is_copying: make the copies for in-sync replicas that acks 0 and 1 left out.
            is_short: too few replicas are in sync: look now, however recent the last look was.
        """
        config, is_back = self._services.config, False
        try:
            if is_copying:
                self._catch_up.copy_to_followers(ledger)
            if not is_copying or self._catch_up.is_due(ledger.ledger_id):
                is_back = self._catch_up.readmit(ledger, is_short=is_short)
                complete_reassignments(ledger, config.delivery_timeout_ms)
        except ReplogError as error:
            _log.warning("catch-up of ledger %s is left to a later commit: %s", ledger.ledger_id, error)
        except Exception:  # the append is decided, whatever fails here
            _log.exception("catch-up of ledger %s failed and is left to a later commit", ledger.ledger_id)
        return is_back
