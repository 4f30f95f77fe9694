"""Copies after a commit: for followers after acks 0 and 1, and for replicas on the way back into the ISR.

Commits copy within a time budget. For bulk catch-up the planner lists missing copies, and write tasks make a share
of them (``copy_share``); their messages name the new holders, which are decided with the batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import is_root_there, roots_there
from spark_replog.commit.replica_fetcher import CopyJob, ReplicaFetcher, copy_job
from spark_replog.commit.state_changes import failover_commands, join_isr, live_partitions, out_of_sync
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.record import NO_INDEX
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.object_table import MissingCopy
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import HoldersAdd, IsrChange, Truncate
from spark_replog.log.write_plan import MadeCopy, PlannedCopy, WritePlan
from spark_replog.storage.io_pool import IO_POOL

_log = logging.getLogger(__name__)

COMMANDS_PER_ENTRY_MAX = 1000
ADMIT_ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Admission:
    """The outcome of bringing a broker back."""

    is_in_sync: bool
    """Whether it is in every ISR of the ledger that it is assigned to."""
    object_count: int
    copied_bytes: int


class BackgroundRuns:
    """Runs a step for ledgers after the answer: one run per ledger at a time, and at most one more waits. Thread safe.

    The step is called with the ledger, in a daemon thread, and raises nothing.
    """

    def __init__(self, step: Callable[[Ledger[TopicLedgerState]], object]) -> None:
        self._step = step
        self._changed = threading.Condition()
        self._runs: dict[LedgerId, bool] = {}
        """Ledgers with a run, and whether it runs once more: another start came after it began."""

    def start(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Run the step soon, after everything that has happened so far. Raises nothing: an append is decided by now."""
        with self._changed:
            is_running = self._runs[ledger.ledger_id] = ledger.ledger_id in self._runs
        if is_running:
            return
        try:
            IO_POOL.post_to(f"catch-up {ledger.ledger_id} {id(self)}", self._work, ledger)
        except RuntimeError as error:  # no thread can be started
            _log.warning("the catch-up of ledger %s is left to a later commit: %s", ledger.ledger_id, error)
            with self._changed:
                del self._runs[ledger.ledger_id]
                self._changed.notify_all()

    def wait(self, timeout_ms: int) -> bool:
        """Wait until no run is left; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._runs, timeout_ms / 1000.0)

    def _work(self, ledger: Ledger[TopicLedgerState]) -> None:
        while True:
            try:
                self._step(ledger)
            except Exception:  # the next append starts a new run
                _log.exception("the catch-up of ledger %s failed", ledger.ledger_id)
            with self._changed:
                if not self._runs.pop(ledger.ledger_id):
                    self._changed.notify_all()
                    return
                self._runs[ledger.ledger_id] = False


class CatchUp:
    """Thread safe. Nothing here fails a commit: a later commit does what is left. The fetcher's settings count here."""

    def __init__(self, fetcher: ReplicaFetcher) -> None:
        self._fetcher = fetcher
        self._brokers, self._config, self._clock = fetcher.brokers, fetcher.config, fetcher.clock
        self._next_look_ms: dict[LedgerId, int] = {}

    @classmethod
    def of(cls, cluster: Cluster) -> CatchUp:
        """Return one with the cluster's settings and a fetcher of its own."""
        return cls(ReplicaFetcher(cluster.brokers, cluster.config, clock=cluster.clock))

    def copy_to_followers(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Copy to in-sync replicas what they miss, within ``replica.catchup.budget.ms``; 0 leaves it to others.

        A replica that takes no copy, because it fails or hangs longer than ``replica.lag.time.max.ms``, leaves the
        ISR: otherwise rows written without acks=all would stay unreadable while its root is away. It does not leave
        if fewer than ``min.insync.replicas`` would be left, or if rows would have to be cut: that needs an election.
        """
        fetcher, lag_ms = self._fetcher, self._config.replica_lag_time_max_ms
        budget_ms = self._config.replica_catchup_budget_ms
        if not budget_ms:
            return
        missing = ledger.ask(lambda state: state.under_replicated() if state.stable_index < state.applied_index else [])
        if not missing:
            return
        wanted = [(copy, to) for copy in missing for to in copy.missing if not fetcher.is_backing_off(to)]
        after = _newest(ledger)
        failed: set[BrokerId] = set()
        late: list[tuple[MissingCopy, BrokerId]] = []
        copied = self._copy(wanted, is_throttled=False, budget_ms=budget_ms, failed=failed, late=late)
        self._record(ledger, copied, None, after)
        if late and budget_ms >= lag_ms:
            sources = {source for copy, _ in late for source in copy.object.holders}
            answering = roots_there(self._brokers, sources, lag_ms)
            failed |= {to for copy, to in late if not answering.isdisjoint(copy.object.holders)}
        self._shrink(ledger, failed - {to for _, to in copied})

    def _shrink(self, ledger: Ledger[TopicLedgerState], lagging: Collection[BrokerId]) -> None:
        if not lagging:
            return
        now_ms = self._clock.now_ms()
        leaving: list[BrokerId] = []

        def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
            lacking = {broker_id for copy in state.under_replicated() for broker_id in copy.missing}
            commands = failover_commands(state, frozenset(lacking & set(lagging)), now_ms)
            if any(isinstance(command, Truncate) for command in commands):
                return None
            leaving[:] = [command.broker_id for command in commands if isinstance(command, IsrChange)]
            return tuple(encode_command(command) for command in commands) or None

        outcome = ledger.append(propose, timeout_ms=self._config.delivery_timeout_ms)
        if outcome.result is not None:
            _log.warning(
                "entry %d of ledger %s takes broker(s) %s out of the in-sync replicas: they took no copies",
                outcome.index,
                ledger.ledger_id,
                ", ".join(map(str, leaving)),
            )

    def is_due(self, ledger_id: LedgerId) -> bool:
        """Return whether it is time to look for roots that are back: every ``replica.rejoin.wait.ms``."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_look_ms.get(ledger_id, 0):
            return False
        self._next_look_ms[ledger_id] = now_ms + self._config.replica_rejoin_wait_ms
        return True

    def readmit(self, ledger: Ledger[TopicLedgerState], *, is_short: bool = False) -> bool:
        """Let brokers rejoin the ISR that left it and whose roots answer again; return whether one is back.

        Each gets up to ``replica.catchup.bytes`` of what it misses, and joins once it holds every object above the
        log start; the fold checks that again.

        Args:
            is_short: too few replicas are in sync: also readmit a broker that left less than
                ``replica.rejoin.wait.ms`` ago, because a slow replica is better than none.
        """
        rests_ms = self._rests_ms(ledger, 0 if is_short else self._config.replica_rejoin_wait_ms)
        due = [root for root, rest_ms in rests_ms.items() if not rest_ms]
        returned = sorted(roots_there(self._brokers, due, self._config.replica_lag_time_max_ms))
        return sum(self._readmit_one(ledger, root) for root in returned) > 0  # not any(): every broker gets its turn

    def why_out(self, ledger: Ledger[TopicLedgerState]) -> dict[BrokerId, str]:
        """Return why the brokers that are out of some ISR of the folded state have not joined, by broker, ascending."""
        rests_ms = self._rests_ms(ledger, self._config.replica_rejoin_wait_ms)
        with ledger.lock:
            assigned = {broker_id for _, _, part in live_partitions(ledger.state) for broker_id in part.replicas}
            fenced = assigned.intersection(ledger.state.fenced)
        reasons = {}
        for broker_id in sorted(rests_ms.keys() | fenced):
            if broker_id in fenced:
                reasons[broker_id] = f"it is fenced: 'replog broker unfence {broker_id}' takes it back"
                continue
            rest_ms = rests_ms[broker_id]
            missing_count = len(ledger.ask(partial(_missing_on, broker_id=broker_id)))
            if not is_root_there(self._brokers, broker_id, self._config.replica_lag_time_max_ms):
                reasons[broker_id] = "its root does not answer"
            elif rest_ms > 0:
                reasons[broker_id] = f"it left less than replica.rejoin.wait.ms ago: it is due in {rest_ms} ms"
            else:
                reasons[broker_id] = f"it lacks {missing_count} data objects: later rounds copy them"
        return reasons

    def _readmit_one(self, ledger: Ledger[TopicLedgerState], broker_id: BrokerId) -> bool:
        missing = ledger.ask(lambda state: _missing_on(state, broker_id))
        chosen = within(missing, self._config.replica_catchup_bytes)
        after = _newest(ledger)
        copied = self._copy(
            [(copy, broker_id) for copy in chosen], is_throttled=True, budget_ms=self._config.replica_catchup_budget_ms
        )
        has_all = len(copied) == len(missing)
        is_back = self._record(ledger, copied, broker_id if has_all else None, after)
        if is_back:
            _log.info("broker %d is back in the in-sync replicas of ledger %s", broker_id, ledger.ledger_id)
        elif copied or has_all:  # on its way, or overtaken by another coordinator's append: go on at once
            self._next_look_ms.pop(ledger.ledger_id, None)
        return is_back

    def admit(
        self,
        ledger: Ledger[TopicLedgerState],
        broker_id: BrokerId,
        verified: Container[ObjectId] = (),
        verified_after: int = NO_INDEX,
    ) -> Admission:
        """Copy to a broker all that it misses and let it join every ISR that it is assigned to, now: for repairs.

        Args:
            verified: objects that the caller has found whole on the broker.
            verified_after: the last entry folded before the caller looked; if the broker left since, as before it is
                rebuilt, what was found means nothing.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        object_count = copied_bytes = 0
        for _ in range(ADMIT_ROUNDS_MAX):  # other appends may add objects meanwhile
            ledger.refresh()
            after = _newest(ledger)
            missing, is_out = ledger.ask(lambda state: (_missing_on(state, broker_id), broker_id in out_of_sync(state)))
            if not missing and not is_out:
                return Admission(True, object_count, copied_bytes)
            if ledger.ask(lambda state: state.leadership.left_at.get(broker_id, NO_INDEX)) > verified_after:
                verified = ()
            held_ids = {id(copy) for copy in missing if copy.object.id in verified}
            wanted = [(copy, broker_id) for copy in missing if id(copy) not in held_ids]
            copied = self._copy(wanted, is_throttled=True, budget_ms=None)
            object_count += len(copied)
            copied_bytes += sum(copy.object.size_bytes for copy, _ in copied)
            copied += [(copy, broker_id) for copy in missing if id(copy) in held_ids]
            has_all = len(copied) == len(missing)
            if self._record(ledger, copied, broker_id if has_all else None, after) or not (copied or has_all):
                break
        with ledger.lock:
            is_in_sync = broker_id not in out_of_sync(ledger.state)
        return Admission(is_in_sync, object_count, copied_bytes)

    def copy_from(self, ledger: Ledger[TopicLedgerState], broker_ids: Collection[BrokerId]) -> None:
        """Copy objects that only these brokers hold to the other in-sync replicas, before giving them up.

        Raises REPLOG_NO_QUORUM.
        """
        ledger.refresh()
        needed = ledger.ask(lambda state: state.under_replicated())
        missing = [copy for copy in needed if copy.object.holders <= set(broker_ids)]
        wanted = [(copy, to) for copy in missing for to in copy.missing if to not in broker_ids]
        after = _newest(ledger)
        copied = self._copy(wanted, is_throttled=False, budget_ms=self._config.delivery_timeout_ms)
        self._record(ledger, copied, None, after)

    def find_copies(self, ledger: Ledger[TopicLedgerState], gone: Collection[BrokerId]) -> None:
        """Decide which other in-sync replicas hold objects that, as far as the log knows, only these brokers hold.

        Call it on a refreshed ledger, before one ENTRY gives them all up: a copy is reported after the answer (acks 0
        and 1), and its writer may have died before. The oldest objects come first, up to one that no root holds: there
        the log is cut. A root that does not answer within ``replica.lag.time.max.ms`` holds nothing.

        Raises REPLOG_NO_QUORUM.
        """
        unasked, after = set(gone), _newest(ledger)
        lacked = ledger.ask(partial(_unstable_on, holders=frozenset(gone)))
        at_once = self._config.num_replica_fetchers
        copies: list[tuple[MissingCopy, BrokerId]] = []
        for first in range(0, len(lacked), at_once):
            some = lacked[first : first + at_once]
            holding = self._find_holders(some, unasked)
            copies += holding
            if len({copy.object.id for copy, _ in holding}) < len(some):
                break
        self._record(ledger, copies, None, after)

    def _find_holders(
        self, lacked: Iterable[MissingCopy], unasked: set[BrokerId]
    ) -> list[tuple[MissingCopy, BrokerId]]:
        """Return which in-sync replicas have whole copies; add those that do not answer in time to `unasked`."""
        started: dict[Future[bool], tuple[MissingCopy, BrokerId]] = {}
        for missing in lacked:
            for broker_id in set(missing.missing) - unasked:
                lane = f"{self._brokers.url(broker_id)}#fetch"
                future = IO_POOL.submit_to(lane, self._fetcher.holds, _job(missing), broker_id)
                started[future] = (missing, broker_id)
        done, pending = wait(started, timeout=self._config.replica_lag_time_max_ms / 1000.0)
        for future in pending:
            future.cancel()
            unasked.add(started[future][1])
        return [started[future] for future in done if future.exception() is None and future.result()]

    def _rests_ms(self, ledger: Ledger[TopicLedgerState], wait_ms: int) -> dict[BrokerId, int]:
        """Return the brokers that are out of some ISR, ascending, and how long each still has to stay out.

        They left by the clock of another process. A time that is ahead by `wait_ms` or more comes from a wrong one: the
        broker must not stay out until then.
        """
        with ledger.lock:
            left_ms = {
                root: ledger.state.leadership.last_shrink_ms.get(root, 0) for root in sorted(out_of_sync(ledger.state))
            }
        now_ms = self._clock.now_ms()
        rests_ms = {root: at_ms + wait_ms - now_ms for root, at_ms in left_ms.items()}
        return {root: rest_ms if 0 < rest_ms < 2 * wait_ms else 0 for root, rest_ms in rests_ms.items()}

    def _copy(
        self,
        wanted: Iterable[tuple[MissingCopy, BrokerId]],
        *,
        is_throttled: bool,
        budget_ms: int | None,
        failed: set[BrokerId] | None = None,
        late: list[tuple[MissingCopy, BrokerId]] | None = None,
    ) -> list[tuple[MissingCopy, BrokerId]]:
        """Copy in parallel until the budget is used up (None: as long as it takes); return the durable copies.

        Args:
            failed: gets the brokers to which a copy failed although its sources were good.
            late: gets the copies that were not made in time.
        """
        started: dict[Future[None], tuple[MissingCopy, BrokerId]] = {}
        for missing, broker_id in wanted:
            future = self._fetcher.submit(_job(missing), broker_id, _log_failure, is_throttled=is_throttled)
            started[future] = (missing, broker_id)
        done, pending = wait(started, timeout=None if budget_ms is None else budget_ms / 1000.0)
        for future in pending:
            future.cancel()
        if late is not None:
            late += [started[future] for future in pending]
        if failed is not None:
            failed |= {started[future][1] for future in done if _is_targets_fault(future.exception())}
        return [started[future] for future in done if future.exception() is None]

    def _record(
        self,
        ledger: Ledger[TopicLedgerState],
        copied: list[tuple[MissingCopy, BrokerId]],
        joining: BrokerId | None,
        after: int,
    ) -> bool:
        """Decide new holders, and that a broker joins; return whether it is then in sync everywhere.

        Args:
            after: the last entry folded before the copies were made or read. A broker that left later may have lost
                them with its disk, and holds them only if they are copied again.
        """
        named: dict[tuple[int, int, int], set[BrokerId]] = {}
        for missing, broker_id in copied:
            name = (missing.entry_index, missing.command_no, missing.object_no)
            named.setdefault(name, set()).add(broker_id)
        now_ms = self._clock.now_ms()
        holders = [HoldersAdd(*name, tuple(sorted(brokers))) for name, brokers in named.items()]
        while len(holders) >= COMMANDS_PER_ENTRY_MAX:
            chunk, holders = holders[:COMMANDS_PER_ENTRY_MAX], holders[COMMANDS_PER_ENTRY_MAX:]
            self._decide(ledger, chunk, after)
        if joining is not None:
            self._decide(ledger, holders, after, lambda state: join_isr(state, joining, now_ms))
        elif holders:
            self._decide(ledger, holders, after)
        with ledger.lock:
            return joining is not None and joining not in out_of_sync(ledger.state)

    def _decide(
        self,
        ledger: Ledger[TopicLedgerState],
        holders: Sequence[HoldersAdd],
        after: int,
        then: Callable[[TopicLedgerState], list[IsrChange]] = lambda _: [],
    ) -> None:
        def propose(state: TopicLedgerState) -> tuple[bytes, ...]:
            left = {broker_id for broker_id, index in state.leadership.left_at.items() if index > after}
            kept = [replace(command, broker_ids=tuple(sorted(set(command.broker_ids) - left))) for command in holders]
            commands: list[HoldersAdd | IsrChange] = [command for command in kept if command.broker_ids]
            return tuple(encode_command(command) for command in (*commands, *then(state)))

        ledger.append(propose, timeout_ms=self._config.delivery_timeout_ms)


def _job(missing: MissingCopy) -> CopyJob:
    ref = missing.object
    return copy_job(ref.ledger_id, ref, missing.sections, ref.holders)


def _newest(ledger: Ledger[TopicLedgerState]) -> int:
    with ledger.lock:
        return ledger.state.applied_index


def _is_targets_fault(error: BaseException | None) -> bool:
    return error is not None and not (isinstance(error, ReplogError) and "sources" in error.context)


def within(missing: Iterable[MissingCopy], size_bytes_max: int) -> list[MissingCopy]:
    """Return the oldest objects that fit, at least one if there is any."""
    chosen: list[MissingCopy] = []
    size_bytes = 0
    for copy in missing:
        size_bytes += copy.object.size_bytes
        if chosen and size_bytes > size_bytes_max:
            break
        chosen.append(copy)
    return chosen


def _log_failure(job: CopyJob, target: BrokerId, error: Exception | None) -> None:
    if error is not None:
        _log.info("broker %d did not get %s: %s", target, job.id.name, error)


PLANNED_COPIES_MAX = 256
"""Bounds the plan that every task of a micro-batch carries: about 300 bytes per object."""
PLANNER_ROOT_TIMEOUT_MS = 200

_seen: dict[tuple[str, BrokerId], tuple[int, bool]] = {}
"""(cluster id, broker out of sync) -> when the planner last asked its root, and whether it answered."""


def plan_copies(cluster: Cluster, ledger_ids: Iterable[LedgerId], config: CoordinatorConfig) -> tuple[PlannedCopy, ...]:
    """Return the oldest objects that replicas miss, for the tasks of a micro-batch. Does not refresh the ledgers.

    Checks at most every ``replica.rejoin.wait.ms`` whether a root that is out of the ISR answers.
    """
    planned: list[PlannedCopy] = []
    for ledger_id in dict.fromkeys(ledger_ids):
        ledger = cluster.topic_ledger(ledger_id)
        with ledger.lock:
            if not any(ledger.state.objects.missing.values()):  # as usual
                continue
        missing, in_sync = ledger.ask(_missing_and_in_sync)
        for copy in missing:
            targets = tuple(to for to in copy.missing if to in in_sync or _is_back(cluster, to, config))
            if targets:
                job = _job(copy)
                planned.append(PlannedCopy(job.ledger_id, job.id, job.size_bytes, job.checksums, job.sources, targets))
            if len(planned) == PLANNED_COPIES_MAX:
                return tuple(planned)
    return tuple(planned)


def _missing_and_in_sync(state: TopicLedgerState) -> tuple[list[MissingCopy], set[BrokerId]]:
    in_sync = {broker_id for topic in state.topics.values() for p in topic.partitions for broker_id in p.isr}
    return state.under_replicated(include_out_of_sync=True), in_sync


def _unstable_on(state: TopicLedgerState, holders: frozenset[BrokerId]) -> list[MissingCopy]:
    """Return the objects above the stable index that only these brokers hold and another in-sync replica lacks."""
    if state.stable_index == state.applied_index:
        return []
    return [
        copy
        for copy in state.under_replicated()
        if copy.entry_index > state.stable_index
        and copy.object.holders <= holders
        and not holders.issuperset(copy.missing)
    ]


def _missing_on(state: TopicLedgerState, broker_id: BrokerId) -> list[MissingCopy]:
    return [copy for copy in state.under_replicated(include_out_of_sync=True) if broker_id in copy.missing]


def _is_back(cluster: Cluster, broker_id: BrokerId, config: CoordinatorConfig) -> bool:
    key = (cluster.brokers.cluster_id, broker_id)
    now_ms = cluster.clock.monotonic_ms()
    answer = _seen.get(key)
    if answer is None or now_ms - answer[0] >= config.replica_rejoin_wait_ms:
        answer = _seen[key] = (now_ms, is_root_there(cluster.brokers, broker_id, PLANNER_ROOT_TIMEOUT_MS))
    return answer[1]


def check_task_age(plan: WritePlan, config: CoordinatorConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """Refuse to go on if garbage collection could pass the task's objects before they are committed.

    Raises:
        ReplogError: REPLOG_JOB_TOO_LONG, half of ``gc.floor.lag.ms`` after the plan was made.
    """
    age_ms = clock.now_ms() - plan.made_at_ms
    if age_ms > config.gc_floor_lag_ms // 2:
        raise ReplogError(
            ErrorCode.REPLOG_JOB_TOO_LONG,
            f"the task's batch was planned {age_ms // 1000} s ago, and gc.floor.lag.ms is "
            f"{config.gc_floor_lag_ms}: its files could be collected before they are committed. Nothing of it is "
            "in the log. Raise gc.floor.lag.ms or write smaller batches.",
        )


def copy_share(
    fetcher: ReplicaFetcher, planned: Sequence[PlannedCopy], batch_id: int, task_id: int
) -> tuple[MadeCopy, ...]:
    """Make a task's share of the missing copies; never fails the task. Executor; after the task's own rows.

    At most ``replica.catchup.bytes`` in ``replica.catchup.budget.ms``. Rendezvous hashing over batch and task chooses
    the objects, so that tasks, which know nothing of each other, rarely choose the same ones.
    """
    started: dict[Future[None], MadeCopy] = {}
    size_bytes = 0

    def rank(planned_copy: PlannedCopy) -> bytes:
        return blake2b(f"{planned_copy.id.name} {batch_id} {task_id}".encode(), digest_size=8).digest()

    for copy in sorted(planned, key=rank):
        size_bytes += copy.size_bytes * len(copy.targets)
        if started and size_bytes > fetcher.config.replica_catchup_bytes:
            break
        job = CopyJob(copy.ledger_id, copy.id, copy.size_bytes, copy.checksums, copy.sources, True)
        for target in copy.targets:
            future = fetcher.submit(job, target, _log_failure, is_throttled=True)
            started[future] = MadeCopy(copy.ledger_id, copy.id, target)
    done, late = wait(started, timeout=fetcher.config.replica_catchup_budget_ms / 1000.0)
    for future in late:
        future.cancel()
    return tuple(started[future] for future in done if future.exception() is None)
