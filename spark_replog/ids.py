"""Identifiers that travel between processes: plain values, no behaviour."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

BrokerId = int
TopicId = str
"""32 hex digits; a re-created topic gets a new one (Kafka: KIP-516)."""
LedgerId = str
"""32 hex digits."""
PartitionKey = tuple[TopicId, int]
"""A partition of one incarnation of a topic."""

TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Names that only coordinators write to."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic, by name."""

    topic: str
    partition: int


def new_id() -> str:
    """Return 32 random hex digits (cluster, topic and ledger ids, object names)."""
    return uuid.uuid4().hex


def is_valid_topic_name(name: str) -> bool:
    """Return whether Kafka accepts the name (source: ``Topic.validate``)."""
    return (
        0 < len(name) <= TOPIC_NAME_LENGTH_MAX and name not in {".", ".."} and _TOPIC_NAME.fullmatch(name) is not None
    )
