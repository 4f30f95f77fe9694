"""What a consumer reads and where it stands. Pure. Source: Kafka's ``SubscriptionState``."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import TopicPartition


@dataclass(slots=True)
class PartitionPosition:
    """One assigned partition.

    Attributes:
        offset: of the next record to give; None until it is known.
        reset: `earliest`, `latest` or `by_duration`: the position is to be looked up; None: it is known, or to be
            fetched.
        is_paused: no records for now.
    """

    offset: int | None = None
    reset: str | None = None
    is_paused: bool = False


class SubscriptionState:
    """Either assigned by hand, or subscribed by names or by a pattern; never both."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.is_assigned_by_hand = False
        self.positions: dict[TopicPartition, PartitionPosition] = {}

    @property
    def is_subscribed(self) -> bool:
        """Return whether partitions come from a subscription."""
        return bool(self.topics) or self.pattern is not None

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those that were read before keep their positions.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS.
        """
        if self.is_subscribed:
            raise _mixed()
        self.is_assigned_by_hand = True
        self.set_assignment(partitions)

    def subscribe(self, topics: Collection[str], pattern: str | None) -> None:
        """Read the partitions that these topics turn out to have.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS, REPLOG_INVALID_OPTION, INVALID_TOPIC_EXCEPTION.
        """
        if self.is_assigned_by_hand:
            raise _mixed()
        for name in topics:
            if not isinstance(name, str) or not name.strip():
                raise InvalidConfigError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r} is no topic's name. Subscribe to names, as text."
                )
        try:
            compiled = None if pattern is None else re.compile(pattern)
        except (re.error, TypeError) as error:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"'{pattern}' is no regular expression of Python: {error}. Correct it.",
            ) from error
        self.topics, self.pattern = frozenset(topics), compiled

    def unsubscribe(self) -> None:
        """Read nothing."""
        self.topics, self.pattern, self.is_assigned_by_hand = frozenset(), None, False
        self.positions = {}

    def set_assignment(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment; positions of partitions that stay are kept."""
        self.positions = {key: self.positions.get(key, PartitionPosition()) for key in sorted(set(partitions))}

    def position(self, key: TopicPartition) -> PartitionPosition:
        """Return where an assigned partition stands.

        Raises:
            ReplogError: INVALID_REQUEST: it is not assigned.
        """
        found = self.positions.get(key)
        if found is None:
            raise ReplogError(
                ErrorCode.INVALID_REQUEST,
                f"{key.topic}-{key.partition} is not assigned to this consumer. Assign it, or poll until the group"
                " has assigned it.",
            )
        return found

    def fetchable(self) -> list[TopicPartition]:
        """Return the partitions with a known position that are not paused."""
        return [key for key, at in self.positions.items() if at.offset is not None and not at.is_paused]


def _mixed() -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_CONFLICTING_OPTIONS,
        "subscribe and assign exclude each other. Call unsubscribe first, or use one of them.",
    )


def whole_number(value: object) -> int | None:
    """Return a whole number, numpy's too; None: it is something else, as a text is."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
