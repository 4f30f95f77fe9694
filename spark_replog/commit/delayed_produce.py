"""An append that waits for its copies. Source: Kafka's ``DelayedProduce``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_replog.commit.delayed_operation import DelayedOperation
from spark_replog.commit.partition import Partition
from spark_replog.errors import ErrorCode
from spark_replog.ids import BrokerId, PartitionKey


class LeaderAndIsr(NamedTuple):
    """What the newest fold of this process says of a partition."""

    leader_epoch: int
    isr: Collection[BrokerId]


LeaderLookup = Callable[[PartitionKey], LeaderAndIsr | ErrorCode]
"""A partition in the newest fold, or why it is not there."""


@dataclass(slots=True)
class ProducePartitionStatus:
    """What one partition of the append waits for."""

    required_offset: int
    """Exclusive end (last offset + 1) that every in-sync replica must reach."""
    acks_pending: bool = True
    error: ErrorCode | None = ErrorCode.REQUEST_TIMED_OUT
    """The answer if nothing else happens before the time-out; None once satisfied."""


class DelayedProduce(DelayedOperation):
    """Completes when no partition is pending. Holds offsets only, no rows.

    A pending partition is done with (A) the error of its lookup, where it is not there any more; (B)
    NOT_LEADER_OR_FOLLOWER, where its leader epoch is another than when the tail was made; (C) what
    ``Partition.check_enough_replicas_reach_offset`` answers, of those that are in sync by then.

    Args:
        timeout_ms: until REQUEST_TIMED_OUT for what is still pending.
        partitions: the provisional tails, by (topic id, partition).
        statuses: what each of them waits for.
        lookup: leader epoch and ISR now.
    """

    __slots__ = ("_lookup", "_partitions", "statuses")

    def __init__(
        self,
        timeout_ms: int,
        partitions: Mapping[PartitionKey, Partition],
        statuses: Mapping[PartitionKey, ProducePartitionStatus],
        lookup: LeaderLookup,
    ) -> None:
        super().__init__(timeout_ms)
        self._partitions = partitions
        self._lookup = lookup
        self.statuses = statuses

    def try_complete(self) -> bool:
        """Look at each pending partition; complete when none is left."""
        is_pending = False
        for key, status in self.statuses.items():
            if status.acks_pending:
                is_done, error = self._judge(key, status.required_offset)
                if is_done:
                    status.acks_pending = False
                    status.error = error
                else:
                    is_pending = True
        return not is_pending and self.force_complete()

    def errors(self) -> dict[PartitionKey, ErrorCode]:
        """Return the partitions that failed, once completed."""
        return {key: status.error for key, status in self.statuses.items() if status.error is not None}

    def _judge(self, key: PartitionKey, required_offset: int) -> tuple[bool, ErrorCode | None]:
        partition = self._partitions[key]
        now = self._lookup(key)
        if isinstance(now, ErrorCode):
            return True, now
        if now.leader_epoch != partition.leader_epoch:
            return True, ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.follow_shrink(now.isr)
        return partition.check_enough_replicas_reach_offset(required_offset)


def delayed_produce_required(required_acks: int, partition_count: int, failed_count: int) -> bool:
    """Return whether an append has to wait for replicas: acks=all, data, and one local append that succeeded.

    Source: ``ReplicaManager.delayedProduceRequestRequired``.
    """
    return required_acks == -1 and partition_count > 0 and failed_count < partition_count
