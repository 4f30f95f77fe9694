"""The positions of a consumer: finds, resets and commits them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from spark_replog.client.group_membership import GroupMembership
from spark_replog.client.subscription_state import SubscriptionState, whole_number
from spark_replog.clock import Clock
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.config.consumer import BY_DURATION, ConsumerConfig
from spark_replog.errors import (
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
    unknown_partition,
)
from spark_replog.groups.group_coordinator import RENEWALS_PER_RETENTION, GroupCoordinator, check_group_id
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.group_records import OffsetAndMetadata
from spark_replog.log.model import GroupRecords
from spark_replog.read.offsets_for_times import offsets_for_times

_LOG = logging.getLogger(__name__)


class PositionKeeper:
    """Finds unknown positions. Not thread-safe."""

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, subscription: SubscriptionState, committer: OffsetCommitter
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._subscription = subscription
        self._committer = committer
        self._authorizer = Authorizer(cluster, config.principal)

    def update(self, operation: AclOperation = AclOperation.READ, *, since: int | None = None) -> None:
        """Give every assigned partition a position: as sought, else as committed, else by ``auto.offset.reset``.

        Args:
            operation: that the principal must be allowed on topics with unknown positions.
            since: a mark: ledgers that were read since then are not read again.

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
            commits = self._committer.committed(unknown) if self._config.group_id else {}
            for key in unknown:
                value = commits.get(key)
                if value is not None:
                    positions[key].offset = value.offset
                else:
                    positions[key].reset = self._policy
        if unknown and self._policy == "none":
            missing = [key for key in unknown if positions[key].offset is None]
            for key in missing:
                positions[key].reset = None
            if missing:
                names = ", ".join(f"{key.topic}-{key.partition}" for key in missing)
                group = self._config.group_id
                who = "a consumer without a group" if group is None else f"group '{group}'"
                raise ReplogError(
                    ErrorCode.REPLOG_NO_OFFSET_FOR_PARTITION,
                    f"{who} has no offset for {names}, and auto.offset.reset is none. Seek to a position, or set it to"
                    " earliest or latest.",
                )
        self._reset([key for key, at in positions.items() if at.offset is None], since)

    def recover(self, errors: Mapping[TopicPartition, ErrorCode], diverged: Mapping[TopicPartition, int]) -> None:
        """Reset positions that are out of range, or of a recreated topic, by ``auto.offset.reset``; log each.

        If an unclean election cut rows that were already read, the position moves back to the cut: the offsets
        from there on belong to other rows.

        Args:
            diverged: partitions of ``errors`` whose log was cut, with the offset of the cut.

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
        self._fold(errors)  # a recreated topic is in another ledger
        bounds = {key: self._bounds(key) for key in errors}
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
                    "[%s] %s-%s was cut back to offset %s by an unclean election, and this reader was at %s. It"
                    " continues from the cut. Rows after it that were already read are no longer in the log.",
                    ErrorCode.OFFSET_OUT_OF_RANGE.name,
                    key.topic,
                    key.partition,
                    diverged[key],
                    at.offset,
                )
                at.offset = diverged[key]
                continue
            _LOG.warning(
                "[%s] %s-%s %shas offsets %s to %s, not %s. The reader continues from %s (auto.offset.reset).",
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

    def bounds(
        self, partitions: Collection[TopicPartition], *, since: int | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the log start offsets and the high watermarks on the newest fold; `since` as for `update`."""
        self._require(AclOperation.DESCRIBE, {key.topic for key in partitions})
        self._fold(partitions, since)
        return {key: self._bounds(key) for key in partitions}

    def lag(self, key: TopicPartition) -> int | None:
        """Return the number of offsets from a position to the folded high watermark; None: the position is unknown."""
        offset = self._subscription.position(key).offset
        return None if offset is None else max(0, self._bounds(key)[1] - offset)

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time per partition, None if there is none."""
        for key, time_ms in times_ms.items():
            number = whole_number(time_ms)
            if number is None or number < 0:
                raise InvalidConfigError(
                    ErrorCode.INVALID_REQUEST,
                    f"Invalid time {time_ms!r}: give epoch milliseconds, 0 or more.",
                    topic=key.topic,
                    partition=key.partition,
                )
        self._require(AclOperation.DESCRIBE, {key.topic for key in times_ms})
        handles = self._fold(times_ms)
        offsets: dict[TopicPartition, int | None] = {}
        for name, handle in handles.items():
            wanted = {key.partition: time_ms for key, time_ms in times_ms.items() if key.topic == name}
            for partition in wanted:
                self._bounds(TopicPartition(name, partition))
            ledger = self._cluster.topic_ledger(handle.ledger_id)
            answers = offsets_for_times(ledger, self._cluster.brokers, name, handle.topic_id, wanted)
            offsets.update({TopicPartition(name, partition): offset for partition, offset in answers.items()})
        return offsets

    def _reset(self, keys: Collection[TopicPartition], since: int | None = None) -> None:
        if not keys:
            return
        self._fold(keys, since)
        positions = self._subscription.positions
        since_ms = max(0, self._cluster.clock.now_ms() - (self._config.reset_duration_ms or 0))
        by_time = self.offsets_for_times({key: since_ms for key in keys if positions[key].reset == BY_DURATION})
        for key in keys:
            at = positions[key]
            start, end = self._bounds(key)
            offset = start if at.reset == "earliest" else by_time.get(key)
            at.offset, at.reset = (end if offset is None else offset), None

    @property
    def _policy(self) -> str:
        """Return earliest, latest, none or by_duration."""
        return self._config.auto_offset_reset.partition(":")[0]

    def _require(self, operation: AclOperation, topics: Collection[str]) -> None:
        """Check the principal's right to topics. Source: ``KafkaApis.handleListOffsetRequest``."""
        self._cluster.refresh_if_stale()
        self._authorizer.require(operation, ResourceType.TOPIC, *sorted(topics))

    def _fold(self, keys: Iterable[TopicPartition], since: int | None = None) -> dict[str, TopicHandle]:
        return self._cluster.newest_topics({key.topic for key in keys}, since=since)

    def _bounds(self, key: TopicPartition) -> tuple[int, int]:
        """Return log start offset and high watermark as folded; refuse an unknown partition."""
        handle = self._cluster.lookup(key.topic)
        ledger, _ = self._cluster.folded_topic(handle)
        with ledger.lock:
            topic = ledger.state.topics[handle.topic_id]
            if not 0 <= key.partition < len(topic.partitions):
                raise unknown_partition(key.topic, key.partition, len(topic.partitions))
            partition = topic.partitions[key.partition]
            return partition.log_start_offset, partition.high_watermark


class OffsetCommitter:
    """Commits for one consumer. Not thread-safe.

    Args:
        topic_id_of: returns the id of the topic whose rows led to a partition's position, "" if none did.
    """

    def __init__(
        self,
        clock: Clock,
        coordinator: GroupCoordinator,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        membership: GroupMembership,
        *,
        topic_id_of: Callable[[TopicPartition], TopicId],
    ) -> None:
        self._clock = clock
        self._coordinator = coordinator
        self._config = config
        self._subscription = subscription
        self._membership = membership
        self._topic_id_of = topic_id_of
        self._is_auto = config.enable_auto_commit and config.group_id is not None
        self._next_ms = clock.monotonic_ms() + config.auto_commit_interval_ms
        self._committed: dict[TopicPartition, tuple[int, int]] = {}
        """Offsets that this consumer committed, and when (monotonic ms)."""
        self._noted: dict[TopicPartition, int] = {}
        """Offsets in a note that another member will write, not in the group yet."""

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, *, is_repeated: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit and return what was committed; see ``Consumer.commit``.

        Args:
            offsets: None: the positions.
            is_repeated: retry an undecided commit until ``default.api.timeout.ms``. This is safe: the ledger accepts
                offsets only from a member that it still knows.

        Raises:
            InvalidConfigError: INVALID_REQUEST: an offset is not a whole number.
            ReplogError: the first partition's refusal, after the others were committed.
        """
        group = self._config.group_id or ""
        check_group_id(group)
        given = self._positions() if offsets is None else offsets
        values = {key: self._value_of(key, value) for key, value in given.items()}
        if not values:
            return {}
        deadline_ms = self._clock.monotonic_ms() + (self._config.default_api_timeout_ms if is_repeated else 0)
        while True:
            try:
                answers = self._coordinator.commit_offsets(group, values, self._membership.identity)
                break
            except (RetriableError, OutcomeUnknownError) as error:
                if error.code is ErrorCode.REBALANCE_IN_PROGRESS or self._clock.monotonic_ms() >= deadline_ms:
                    raise
                self._clock.sleep_ms(self._config.retry_backoff_ms)
        self._membership.note_sign_of_life()
        done = {key: value for key, value in values.items() if answers[key] is None}
        now_ms = self._clock.monotonic_ms()
        self._committed.update({key: (value.offset, now_ms) for key, value in done.items()})
        self._noted = {}
        for refusal in answers.values():
            if refusal is not None:
                raise refusal
        return done

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed.

        Raises:
            InvalidConfigError: INVALID_GROUP_ID.
        """
        return self._coordinator.fetch_offsets(self._config.group_id or "", partitions)

    def maybe_auto_commit(self, *, is_last: bool = False) -> None:
        """Commit positions that moved, when due; a failure is logged and retried, as in Kafka.

        Kafka also commits unchanged positions. Here each commit is a stored entry, so unchanged positions are committed
        only often enough that they never expire while the consumer runs (``offsets.retention.minutes``).

        Args:
            is_last: commit now, because the partitions are about to be revoked.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._is_auto or (now_ms < self._next_ms and not is_last):
            return
        self._next_ms = now_ms + self._config.auto_commit_interval_ms
        try:
            moved = self._moved(now_ms)
            if not moved:
                return
            if self._membership.writes_alone or self._noted or is_last:
                self.commit(moved, is_repeated=False)
            else:
                commit = self._as_command(moved)
                if commit is not None and self._membership.send_commit(commit):
                    self._noted = moved
                elif commit is not None:
                    self.commit(moved, is_repeated=False)
        except ReplogError as error:
            self._next_ms = now_ms + self._config.retry_backoff_ms
            _LOG.warning("auto commit of group %s failed; it will be retried: %s", self._config.group_id, error)

    def prepare(self) -> GroupRecords | None:
        """Return the auto commit to make before partitions are revoked; None: nothing to commit, or it is off."""
        if not self._is_auto:
            return None
        try:
            return self._as_command(self._moved(self._clock.monotonic_ms()))
        except ReplogError as error:
            _LOG.warning("the last auto commit of group %s failed: %s", self._config.group_id, error)
            return None

    def _moved(self, now_ms: int) -> dict[TopicPartition, int]:
        """Return the positions to commit: those that moved, and unchanged ones often enough that they never expire."""
        positions = self._positions()
        if self._noted:
            group = self._coordinator.folded(self._config.group_id or "")
            decided = {} if group is None else group.offsets
            for key, at in self._noted.items():
                commit = decided.get((key.topic, key.partition))
                if commit is None or commit.offset != at:
                    break
                self._committed[key] = (at, now_ms)
            else:
                self._noted = {}
        renewed_ms = now_ms - self._config.offsets_retention_minutes * 60_000 // RENEWALS_PER_RETENTION
        return {
            key: at
            for key, at in positions.items()
            if (self._committed.get(key, (None, 0))[0] != at or self._committed[key][1] <= renewed_ms)
            and self._topic_id_of(key) in ("", self._coordinator.topic_id(key.topic))  # else the next fetch resets it
        }

    def _as_command(self, positions: Mapping[TopicPartition, int]) -> GroupRecords | None:
        offsets = {key: self._value_of(key, at) for key, at in positions.items()}
        return self._coordinator.prepare_commit(self._config.group_id or "", offsets, self._membership.identity)

    def forget(self, keys: Collection[TopicPartition]) -> None:
        """Forget the commits of these partitions, which this consumer no longer reads."""
        for key in keys:
            self._committed.pop(key, None)
            self._noted.pop(key, None)

    def _value_of(self, key: TopicPartition, value: int | OffsetAndMetadata) -> OffsetAndMetadata:
        if not isinstance(value, OffsetAndMetadata):
            number = whole_number(value)
            if number is None:
                raise InvalidConfigError(
                    ErrorCode.INVALID_REQUEST,
                    f"cannot commit {value!r} for {key.topic}-{key.partition}. Give the next offset to read, a whole"
                    " number.",
                )
            value = OffsetAndMetadata(number)
        return value if value.topic_id else replace(value, topic_id=self._topic_id_of(key))

    def _positions(self) -> dict[TopicPartition, int]:
        return {key: at.offset for key, at in self._subscription.positions.items() if at.offset is not None}
