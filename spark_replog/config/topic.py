"""A topic's settings, as its ledger keeps them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from spark_replog.config.key import ConfigKey

_MIB = 1024 * 1024
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings, kept in its ledger as given; defaults are applied when they are read."""

    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    min_insync_replicas: int | None = None
    compression_type: str = "none"
    max_message_bytes: int = 32 * _MIB
    message_timestamp_type: str = "CreateTime"
    cleanup_policy: str = "delete"
    unclean_leader_election_enable: bool = False

    def min_insync(self, replica_count: int) -> int:
        """Return the replicas that must hold a row before acks=all succeeds (a majority unless set)."""
        return self.min_insync_replicas or replica_count // 2 + 1


_COMPRESSION = {"none": "none", "lz4": "lz4", "zstd": "zstd"}
_DEFAULTS = {field.name: field.default for field in fields(TopicConfig)}


def _key(name: str, kafka_default: str | None, unit: str, doc: str, **more: Any) -> ConfigKey:
    field = name.replace(".", "_")
    return ConfigKey(name, "topic", _DEFAULTS[field], kafka_default, unit, doc, field=field, **more)


TOPIC_KEYS = (
    _key(
        "retention.ms",
        "604800000",
        "ms",
        "Age after which rows may be deleted; -1 keeps them. Recorded with the topic; this release deletes nothing.",
        minimum=-1,
    ),
    _key(
        "retention.bytes",
        "-1",
        "bytes",
        "Size of a partition after which old rows may be deleted; -1 keeps them. Recorded with the topic; "
        "this release deletes nothing.",
        minimum=-1,
    ),
    _key(
        "min.insync.replicas",
        "1",
        "count",
        "Replicas that must hold a row before acks=all succeeds. Not set means replicas / 2 + 1, so that a "
        "loss of one of three loses nothing.",
        minimum=1,
        maximum=1000,
    ),
    _key(
        "compression.type",
        "producer",
        "choice",
        "Compression inside data objects, Arrow's own. Kafka's gzip and snappy are refused.",
        choices=_COMPRESSION,
    ),
    _key(
        "max.message.bytes",
        "1048588",
        "bytes",
        "Largest record.",
        minimum=1,
        maximum=_INT32_MAX,
    ),
    _key(
        "message.timestamp.type",
        "CreateTime",
        "choice",
        "CreateTime keeps the writer's time of each row; LogAppendTime shows the time of the commit.",
        choices={"CreateTime": "CreateTime", "LogAppendTime": "LogAppendTime"},
    ),
    _key(
        "unclean.leader.election.enable",
        "false",
        "bool",
        "Whether 'replog topic elect --unclean' may make an out-of-sync replica the leader. It loses rows, readable "
        "ones too.",
    ),
    _key(
        "cleanup.policy",
        "delete",
        "choice",
        "What retention does. Compaction is refused by this release rather than ignored.",
        choices={"delete": "delete"},
    ),
)

__all__ = ["TOPIC_KEYS", "TopicConfig"]
