"""An append that waits for its copies. Source: Kafka's ``DelayedProduce``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_replog.coordinator.delayed_operation import DelayedOperation
from spark_replog.coordinator.partition import Partition
from spark_replog.errors import ErrorCode
from spark_replog.ids import TopicId

PartitionKey = tuple[TopicId, int]


@dataclass(slots=True)
class ProducePartitionStatus:
    """What one partition of the append waits for."""

    required_offset: int
    """Exclusive end that every in-sync replica must reach."""
    acks_pending: bool = True
    error: ErrorCode | None = ErrorCode.REQUEST_TIMED_OUT
    """The answer if nothing else happens before the time-out; None once satisfied."""


class DelayedProduce(DelayedOperation):
    """Completes when no partition is pending. Holds offsets only, no rows.

    Args:
        timeout_ms: until REQUEST_TIMED_OUT for what is still pending.
        partitions: the provisional tails, by (topic id, partition).
        statuses: what each of them waits for.
    """

    def __init__(
        self,
        timeout_ms: int,
        partitions: Mapping[PartitionKey, Partition],
        statuses: Mapping[PartitionKey, ProducePartitionStatus],
    ) -> None:
        super().__init__(timeout_ms)
        self._partitions = partitions
        self.statuses = statuses

    def try_complete(self) -> bool:
        """Look at each pending partition; complete when none is left."""
        is_pending = False
        for key, status in self.statuses.items():
            if status.acks_pending:
                has_enough, error = self._partitions[key].check_enough_replicas_reach_offset(status.required_offset)
                if has_enough:
                    status.acks_pending = False
                    status.error = error
                else:
                    is_pending = True
        return not is_pending and self.force_complete()

    def errors(self) -> dict[PartitionKey, ErrorCode]:
        """Return the partitions that failed, once completed."""
        return {key: status.error for key, status in self.statuses.items() if status.error is not None}
