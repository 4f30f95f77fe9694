"""Bulk catch-up by write tasks: the planner lists what followers miss, tasks copy some of it after their own rows.

The new holders ride in the task's message and are decided with the batch. A copy that nobody reports (the task
died, the batch was decided before) is found whole by the next task that looks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from hashlib import blake2b

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import is_root_there
from spark_replog.commit.replica_fetcher import CopyJob, ObjectKey, ReplicaFetcher, copy_job
from spark_replog.config import CoordinatorConfig
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.log.fold.topic_state import MissingCopy
from spark_replog.log.write_plan import MadeCopy, PlannedCopy, WritePlan
from spark_replog.storage.brokers import BrokerSet

_log = logging.getLogger(__name__)

PLANNED_COPIES_MAX = 256
"""Bounds what every task of a micro-batch carries, about 300 bytes each."""
_ROOT_TIMEOUT_MS = 200

_seen: dict[tuple[str, BrokerId], tuple[int, bool]] = {}
"""(cluster id, broker) -> when the planner last looked at a root that is out of sync, and what it saw."""


def plan_copies(cluster: Cluster, ledger_ids: Iterable[LedgerId], config: CoordinatorConfig) -> tuple[PlannedCopy, ...]:
    """Return the oldest objects that replicas miss, for the tasks of a micro-batch. Reads no ledger.

    A root that is out of the ISR is asked at most every ``replica.rejoin.wait.ms`` whether it is there.
    """
    planned: list[PlannedCopy] = []
    for ledger_id in dict.fromkeys(ledger_ids):
        ledger = cluster.topic_ledger(ledger_id)
        with ledger.lock:
            if not ledger.state.has_missing_copies:
                continue
            missing = ledger.state.under_replicated(include_out_of_sync=True)
            in_sync = {
                broker_id for topic in ledger.state.topics.values() for p in topic.partitions for broker_id in p.isr
            }
        for each in missing:
            targets = tuple(to for to in each.missing if to in in_sync or _is_back(cluster, to, config))
            if targets:
                planned.append(_planned(each, targets))
            if len(planned) == PLANNED_COPIES_MAX:
                return tuple(planned)
    return tuple(planned)


def _planned(missing: MissingCopy, targets: tuple[BrokerId, ...]) -> PlannedCopy:
    ref = missing.object
    job = copy_job(ref.ledger_id, ref, missing.sections, ref.holders)
    return PlannedCopy(job.ledger_id, job.generation, job.name, job.size_bytes, job.checksums, job.sources, targets)


def _is_back(cluster: Cluster, broker_id: BrokerId, config: CoordinatorConfig) -> bool:
    key = (cluster.brokers.cluster_id, broker_id)
    now_ms = cluster.clock.monotonic_ms()
    found = _seen.get(key)
    if found is None or now_ms - found[0] >= config.replica_rejoin_wait_ms:
        found = _seen[key] = (now_ms, is_root_there(cluster.brokers, broker_id, _ROOT_TIMEOUT_MS))
    return found[1]


def check_task_age(plan: WritePlan, config: CoordinatorConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """Refuse to go on where garbage collection could pass the task's objects before they are committed.

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


class TaskCatchUp:
    """Copies a share of what is missing. Executor; used once, after the task's own rows.

    Args:
        brokers: the roots.
        config: ``replica.catchup.bytes`` at most, for ``replica.catchup.budget.ms`` at most.
        clock: time source.
    """

    def __init__(self, brokers: BrokerSet, config: CoordinatorConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config = config
        self._fetcher = ReplicaFetcher(brokers, config, clock=clock)

    def run(self, planned: Sequence[PlannedCopy], batch_id: int, task_id: int) -> tuple[MadeCopy, ...]:
        """Copy this task's share; never fails the task.

        Which objects is a matter of rendezvous hashing over batch and task, so that tasks, which know
        nothing of each other, seldom choose the same. Two that do make the same copy.
        """
        started: dict[Future[None], MadeCopy] = {}
        size_bytes = 0
        for each in sorted(planned, key=lambda each: _rank(each, batch_id, task_id)):
            size_bytes += each.size_bytes * len(each.targets)
            if started and size_bytes > self._config.replica_catchup_bytes:
                break
            job = CopyJob(
                each.ledger_id, each.generation, each.name, each.size_bytes, each.checksums, each.sources, True
            )
            for target in each.targets:
                future = self._fetcher.submit(job, target, _log_failure, is_throttled=True)
                started[future] = MadeCopy(each.ledger_id, each.generation, each.name, target)
        done, late = wait(started, timeout=self._config.replica_catchup_budget_ms / 1000.0)
        for future in late:
            future.cancel()
        return tuple(started[future] for future in done if future.exception() is None)


def _rank(planned: PlannedCopy, batch_id: int, task_id: int) -> bytes:
    return blake2b(f"{planned.name} {batch_id} {task_id}".encode(), digest_size=8).digest()


def holders_by_ledger(copies: Iterable[MadeCopy]) -> Mapping[LedgerId, Mapping[ObjectKey, set[BrokerId]]]:
    """Return what ``ReplicaManager.append_records`` takes as ``copied``."""
    found: dict[LedgerId, dict[ObjectKey, set[BrokerId]]] = {}
    for each in copies:
        found.setdefault(each.ledger_id, {}).setdefault((each.generation, each.name), set()).add(each.broker_id)
    return found


def _log_failure(job: CopyJob, target: BrokerId, error: Exception | None) -> None:
    if error is not None:
        _log.info("broker %d did not get %s: %s", target, job.name, error)
