"""Identifiers that travel between processes: plain values, no behaviour."""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

from spark_replog.process_state import per_process

BrokerId = int
TopicId = str
"""32 hex digits; a recreated topic gets a new one (Kafka: KIP-516)."""
LedgerId = str
"""32 hex digits."""
PartitionKey = tuple[TopicId, int]
"""A partition of one incarnation of a topic."""

TOPIC_NAME_LENGTH_MAX = 249
GENERATION_MAX = 2**31 - 1
BROKER_ID_MAX = 2**31 - 1
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
HEX_ID = re.compile(r"[0-9a-f]{32}")
"""A cluster, topic or ledger id, matched in full."""
OBJECT_NAME = re.compile(r"(?!\.)[a-zA-Z0-9 ._-]{1,255}")
"""A name that a data object may have, matched in full."""
_KEY_PART = r"(?!\.\.?(?:/|\Z))[^/\\\x00-\x1f\x7f]{1,255}"
KEY = re.compile(rf"{_KEY_PART}(?:/{_KEY_PART})*")
"""A key that stays below its root on every kind of storage, matched in full: parts separated by ``/``, none of them
empty, ``.``, ``..``, longer than 255 characters, or with a backslash or a control character. Every store matches a key
before it builds a path, since keys may contain names that were read from storage."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Names that only coordinators write to."""


class ObjectId(NamedTuple):
    """A data object of a ledger: its generation, which is its folder, and its name there."""

    generation: int
    name: str


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int


_process_ids: list[str] = per_process([])


def new_id() -> str:
    """Return 32 random hex digits (cluster, topic and ledger ids, object names)."""
    return uuid.uuid4().hex


def new_root_id(number: int) -> str:
    """Return 32 hex digits for a rebuilt root: 12 of a number that grows from rebuild to rebuild, then random ones."""
    return f"{number:012x}{new_id()[12:]}"


def root_number(root_id: str | None) -> int:
    """Return the number in the id of a rebuilt root, 0 for the first root of a broker, which has no id."""
    return int(root_id[:12], 16) if root_id else 0


def process_id() -> str:
    """Return the id of this process, 32 hex digits; a forked one has its own."""
    if not _process_ids:
        _process_ids.append(new_id())  # of two threads, both return the first one's
    return _process_ids[0]


def is_valid_topic_name(name: str) -> bool:
    """Return whether Kafka accepts the name (source: ``Topic.validate``)."""
    return (
        0 < len(name) <= TOPIC_NAME_LENGTH_MAX and name not in {".", ".."} and _TOPIC_NAME.fullmatch(name) is not None
    )
