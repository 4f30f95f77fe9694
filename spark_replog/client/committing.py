"""When and what a consumer commits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from spark_replog.client.group_membership import GroupMembership
from spark_replog.client.subscription_state import SubscriptionState, whole_number
from spark_replog.clock import Clock
from spark_replog.config import ConsumerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.groups.group_coordinator import RENEWALS_PER_RETENTION, GroupCoordinator, check_group_id
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.commands import GroupRecords
from spark_replog.log.codec.group_records import OffsetAndMetadata

_LOG = logging.getLogger(__name__)


class OffsetCommitter:
    """Commits for one consumer. Not thread safe.

    Args:
        clock: paces auto commit.
        coordinator: of the group.
        config: ``group.id``, ``enable.auto.commit``, ``auto.commit.interval.ms``.
        subscription: whose positions.
        membership: who commits.
    """

    def __init__(
        self,
        clock: Clock,
        coordinator: GroupCoordinator,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        membership: GroupMembership,
    ) -> None:
        self._clock = clock
        self._coordinator = coordinator
        self._config = config
        self._subscription = subscription
        self._membership = membership
        self._is_auto = config.enable_auto_commit and config.group_id is not None
        self._next_ms = clock.monotonic_ms() + config.auto_commit_interval_ms
        self._committed: dict[TopicPartition, tuple[int, int]] = {}
        """By this consumer: the offset, and when."""
        self._noted: dict[TopicPartition, int] = {}
        """Left for another member to write, and not seen in the group yet."""

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, *, is_repeated: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit and return what was committed; see ``Consumer.commit``.

        Args:
            offsets: None: the positions.
            is_repeated: what could not be decided is tried again until ``default.api.timeout.ms``. That harms
                nothing: the same offsets, by a member that the ledger still knows.

        Raises:
            InvalidConfigError: INVALID_REQUEST: an offset is no whole number.
            ReplogError: the first partition's refusal, after the others were committed.
        """
        group = self._config.group_id or ""
        check_group_id(group)
        given = self._positions() if offsets is None else offsets
        values = {
            key: value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(_offset_of(key, value))
            for key, value in given.items()
        }
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
        """Commit positions that moved, when it is due; a failure is logged and tried again, as in Kafka.

        Kafka commits those that stand too. Here each commit is an entry for ever, so these are committed again only
        often enough that they never expire under a consumer that lives (``offsets.retention.minutes``).

        Args:
            is_last: due now: the partitions are about to go.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._is_auto or (now_ms < self._next_ms and not is_last):
            return
        self._next_ms = now_ms + self._config.auto_commit_interval_ms
        moved = self._moved(now_ms)
        if not moved:
            return
        try:
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
            _LOG.warning("auto commit of group %s failed, it is tried again: %s", self._config.group_id, error)

    def prepare(self) -> GroupRecords | None:
        """Return the auto commit to make before the partitions go; None: nothing has moved, or it is off."""
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
            decided = self._coordinator.folded_offsets(self._config.group_id or "")
            for key, at in self._noted.items():
                if key in decided and decided[key] == at:
                    self._committed[key] = (at, now_ms)
                else:
                    break
            else:
                self._noted = {}
        renewed_ms = now_ms - self._config.offsets_retention_minutes * 60_000 // RENEWALS_PER_RETENTION
        return {
            key: at
            for key, at in positions.items()
            if self._committed.get(key, (None, 0))[0] != at or self._committed[key][1] <= renewed_ms
        }

    def _as_command(self, positions: Mapping[TopicPartition, int]) -> GroupRecords | None:
        offsets = {key: OffsetAndMetadata(at) for key, at in positions.items()}
        return self._coordinator.prepare_commit(self._config.group_id or "", offsets, self._membership.identity)

    def forget(self, keys: Collection[TopicPartition]) -> None:
        """Forget what was committed for these: another member has them now, and may commit anything."""
        for key in keys:
            self._committed.pop(key, None)
            self._noted.pop(key, None)

    def _positions(self) -> dict[TopicPartition, int]:
        return {key: at.offset for key, at in self._subscription.positions.items() if at.offset is not None}


def _offset_of(key: TopicPartition, value: object) -> int:
    number = whole_number(value)
    if number is None:
        raise InvalidConfigError(
            ErrorCode.INVALID_REQUEST,
            f"cannot commit {value!r} for {key.topic}-{key.partition}. Give the next offset to read, a whole number.",
        )
    return number
