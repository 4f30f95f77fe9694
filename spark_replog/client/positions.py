"""Where a consumer begins and goes on: committed offsets, resets, times.

Source: Kafka's ``OffsetFetcher``, ``ConsumerCoordinator.initWithCommittedOffsetsIfNeeded``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from spark_replog.client.committing import OffsetCommitter
from spark_replog.client.subscription_state import SubscriptionState, whole_number
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.config import BY_DURATION, ConsumerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.log.acl import AclOperation
from spark_replog.read.offsets_for_times import offsets_for_times

_LOG = logging.getLogger(__name__)


class PositionKeeper:
    """Finds positions that are not known. Not thread safe.

    Args:
        cluster: the opened store.
        config: ``auto.offset.reset``, ``group.id``.
        subscription: whose positions.
        committer: asks the group.
    """

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, subscription: SubscriptionState, committer: OffsetCommitter
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._subscription = subscription
        self._committer = committer
        self._authorizer = Authorizer(cluster, config.principal)

    def update(self, operation: AclOperation = AclOperation.READ) -> None:
        """Give every assigned partition a position: as sought, else committed, else by ``auto.offset.reset``.

        Args:
            operation: what the principal must be allowed to do with a topic whose position is not known.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED.
            ReplogError: REPLOG_NO_OFFSET_FOR_PARTITION: nothing is committed and the policy is none.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        positions = self._subscription.positions
        if any(at.offset is None for at in positions.values()):
            self._require(operation, {key.topic for key, at in positions.items() if at.offset is None})
        unknown = [key for key, at in positions.items() if at.offset is None and at.reset is None]
        if unknown:
            found = self._committer.committed(unknown) if self._config.group_id else {}
            for key in unknown:
                value = found.get(key)
                if value is not None:
                    positions[key].offset = value.offset
                else:
                    positions[key].reset = self._policy
        if unknown and self._policy == "none":
            missing = [key for key in unknown if positions[key].offset is None]
            for key in missing:
                positions[key].reset = None
            if missing:
                raise _no_offset(missing, self._config.group_id)
        self._reset([key for key, at in positions.items() if at.offset is None])

    def recover(self, errors: Mapping[TopicPartition, ErrorCode], diverged: Mapping[TopicPartition, int]) -> None:
        """Reset positions that are out of range, or of a topic made again, by ``auto.offset.reset``; each is logged.

        Where an unclean election cut rows that were read already, the position goes back to the cut: the
        offsets from there on have been given to other rows.

        Args:
            errors: what the fetch found.
            diverged: of these, where the log was cut.

        Raises:
            ReplogError: OFFSET_OUT_OF_RANGE: the policy is none.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: a topic was deleted.
        """
        for key, code in errors.items():
            if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NotFoundError(
                    code,
                    f"{key.topic}-{key.partition} does not exist, or was deleted. Assign what `replog topic list`"
                    " shows.",
                    topic=key.topic,
                    partition=key.partition,
                )
        self._fold(errors)  # a topic that was made again is in another ledger
        bounds = {key: (self._bounds(key)) for key in errors}
        if self._policy == "none":
            said = ", ".join(
                f"{key.topic}-{key.partition} at {self._subscription.positions[key].offset}, which has {start} to {end}"
                + (f" and was cut back to {diverged[key]} by an unclean election" if key in diverged else "")
                + (" and was deleted and made again" if errors[key] is ErrorCode.UNKNOWN_TOPIC_ID else "")
                for key, (start, end) in bounds.items()
            )
            raise ReplogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"positions are out of range and auto.offset.reset is none: {said}. Seek to an offset that exists.",
            )
        for key in errors:
            at = self._subscription.positions[key]
            if key in diverged:
                _LOG.warning(
                    "[%s] %s-%s was cut back to offset %s by an unclean election, and this reader was at %s: going on"
                    " from the cut. Rows behind it that were read are not in the log any more.",
                    ErrorCode.OFFSET_OUT_OF_RANGE.name,
                    key.topic,
                    key.partition,
                    diverged[key],
                    at.offset,
                )
                at.offset = diverged[key]
                continue
            _LOG.warning(
                "[%s] %s-%s %shas offsets %s to %s, not %s: going on from %s, as auto.offset.reset says.",
                errors[key].name,
                key.topic,
                key.partition,
                "was deleted and made again. It " if errors[key] is ErrorCode.UNKNOWN_TOPIC_ID else "",
                *bounds[key],
                at.offset,
                {"earliest": "its start", "latest": "its end"}.get(self._policy, self._config.auto_offset_reset),
            )
            at.offset, at.reset = None, self._policy
        self._reset([key for key in errors if key not in diverged])

    def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets on the newest fold."""
        self._require(AclOperation.DESCRIBE, {key.topic for key in partitions})
        self._fold(partitions)
        return {key: self._bounds(key)[0] for key in partitions}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks on the newest fold."""
        self._require(AclOperation.DESCRIBE, {key.topic for key in partitions})
        self._fold(partitions)
        return {key: self._bounds(key)[1] for key in partitions}

    def lag(self, key: TopicPartition) -> int | None:
        """Return how far a position is before the high watermark as folded; None: it is not known."""
        offset = self._subscription.position(key).offset
        return None if offset is None else max(0, self._bounds(key)[1] - offset)

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offsets at or after a time, None where there is none."""
        for key, time_ms in times_ms.items():
            number = whole_number(time_ms)
            if number is None or number < 0:
                raise InvalidConfigError(
                    ErrorCode.INVALID_REQUEST,
                    f"{time_ms!r} is no time to look for. Give epoch milliseconds, 0 or more.",
                    topic=key.topic,
                    partition=key.partition,
                )
        self._require(AclOperation.DESCRIBE, {key.topic for key in times_ms})
        handles = self._fold(times_ms)
        found: dict[TopicPartition, int | None] = {}
        for name, handle in handles.items():
            wanted = {key.partition: time_ms for key, time_ms in times_ms.items() if key.topic == name}
            for partition in wanted:
                self._bounds(TopicPartition(name, partition))
            ledger = self._cluster.topic_ledger(handle.ledger_id)
            answers = offsets_for_times(ledger, self._cluster.brokers, name, handle.topic_id, wanted)
            found.update({TopicPartition(name, partition): offset for partition, offset in answers.items()})
        return found

    def _reset(self, keys: Collection[TopicPartition]) -> None:
        if not keys:
            return
        self._fold(keys)
        positions = self._subscription.positions
        since_ms = max(0, self._cluster.clock.now_ms() - (self._config.reset_duration_ms or 0))
        by_time = self.offsets_for_times({key: since_ms for key in keys if positions[key].reset == BY_DURATION})
        for key in keys:
            at = positions[key]
            start, end = self._bounds(key)
            found = start if at.reset == "earliest" else by_time.get(key)
            at.offset, at.reset = (end if found is None else found), None

    @property
    def _policy(self) -> str:
        """Return earliest, latest, none or by_duration."""
        return self._config.auto_offset_reset.partition(":")[0]

    def _require(self, operation: AclOperation, topics: Collection[str]) -> None:
        """Check the principal's right to topics. Source: ``KafkaApis.handleListOffsetRequest``."""
        self._cluster.refresh_if_stale()
        self._authorizer.require_topic(operation, *sorted(topics))

    def _fold(self, keys: Iterable[TopicPartition]) -> dict[str, TopicHandle]:
        handles = {name: self._cluster.lookup(name) for name in sorted({key.topic for key in keys})}
        self._cluster.refresh_topics(handles.values())
        return handles

    def _bounds(self, key: TopicPartition) -> tuple[int, int]:
        """Return log start offset and high watermark as folded.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        ledger, topic = self._cluster.folded_topic(self._cluster.lookup(key.topic))
        with ledger.lock:
            if not 0 <= key.partition < len(topic.partitions):
                raise NotFoundError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic '{key.topic}' has partitions 0 to {len(topic.partitions) - 1}. Read one of them.",
                    partition=key.partition,
                )
            found = topic.partitions[key.partition]
            return found.log_start_offset, found.high_watermark


def _no_offset(keys: Collection[TopicPartition], group: str | None) -> ReplogError:
    names = ", ".join(f"{key.topic}-{key.partition}" for key in keys)
    who = "a consumer without a group" if group is None else f"group '{group}'"
    return ReplogError(
        ErrorCode.REPLOG_NO_OFFSET_FOR_PARTITION,
        f"{who} has no offset for {names}, and auto.offset.reset is none. Seek to a position, or set it to"
        " earliest or latest.",
    )
