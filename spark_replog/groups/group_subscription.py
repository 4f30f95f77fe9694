"""What members tell each other through the group: subscriptions and assignments, as JSON.

Kafka's consumers use a binary schema of their own here, which brokers never read; nor does the fold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.group_records import GroupMetadata


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """What a member wants, and what it had.

    Attributes:
        topics: it subscribes to, sorted.
        owned: partitions of its last assignment, for sticky assignors.
        generation: in which it owned them; -1 none.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1


def encode_subscription(value: GroupSubscription) -> bytes:
    """Return the subscription's bytes; the same value gives the same bytes."""
    found = {"topics": sorted(value.topics), "owned": _by_topic(value.owned), "generation": value.generation}
    return json.dumps(found, separators=(",", ":"), sort_keys=True).encode()


def decode_subscription(data: bytes) -> GroupSubscription:
    """Return the subscription.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE.
    """
    found = _load(data)
    try:
        return GroupSubscription(
            tuple(str(topic) for topic in found["topics"]), _partitions(found["owned"]), int(found["generation"])
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(error) from error


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return an assignment's bytes."""
    return json.dumps(_by_topic(partitions), separators=(",", ":"), sort_keys=True).encode()


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the assigned partitions, sorted; none for an empty assignment.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE.
    """
    if not data:
        return ()
    try:
        return _partitions(_load(data))
    except (TypeError, ValueError, AttributeError) as error:
        raise _damaged(error) from error


def subscribed_topics(metadata: GroupMetadata) -> set[str]:
    """Return the topics that members of the group subscribe to."""
    return {
        topic
        for member in metadata.members
        for _, subscription in member.protocols[:1]
        for topic in decode_subscription(subscription).topics
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for key in sorted(partitions):
        found.setdefault(key.topic, []).append(key.partition)
    return found


def _partitions(found: Mapping[str, Sequence[int]]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(topic, int(each)) for topic, parts in found.items() for each in parts))


def _load(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise _damaged(error) from error
    if not isinstance(found, dict):
        raise _damaged(TypeError("no JSON object"))
    return found


def _damaged(error: Exception) -> CorruptDataError:
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE, f"a member's subscription or assignment cannot be read: {error}. Restart the member."
    )
