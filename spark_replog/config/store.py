"""Settings that the store keeps: a topic's in its ledger, the cluster's in the cluster ledger; and file systems'."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.config.key import INT32_MAX, INT64_MAX, SAME, ConfigKey, declared_keys, setting, words

SUPER_USERS_KEY = "super.users"
ALLOW_EVERYONE_KEY = "allow.everyone.if.no.acl.found"
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings. Its ledger keeps what was given; defaults apply when they are read."""

    retention_ms: int = setting(
        604_800_000,
        "Age after which rows are deleted; -1 keeps them. The newest rows of a partition stay. Age is counted to the "
        "time of the store's last append, so a store without writers deletes nothing.",
        kafka=SAME,
        minimum=-1,
    )
    retention_bytes: int = setting(
        -1,
        "Size of a partition above which its oldest rows are deleted; -1 keeps them. A partition never falls below "
        "this size by it.",
        kafka=SAME,
        minimum=-1,
    )
    min_insync_replicas: int | None = setting(
        None,
        "Replicas that must hold a row before acks=all succeeds. Not set: replicas / 2 + 1, so that losing one of "
        "three loses no rows.",
        kafka="1",
        minimum=1,
        maximum=1000,
    )
    compression_type: str | None = setting(
        None,
        "Compression inside data objects (Arrow's own) for writers that set none themselves, and for compaction. "
        "Not set: zstd for a typed topic, else none. uncompressed is another word for none; so is producer, because a "
        "writer's own setting always applies. Kafka's gzip and snappy are refused: use zstd or lz4.",
        kafka="producer",
        choices=words("none", "lz4", "zstd") | {"uncompressed": "none", "producer": "none"},
    )
    max_message_bytes: int = setting(32 * _MIB, "Largest record.", kafka="1048588", minimum=1, maximum=INT32_MAX)
    message_timestamp_type: str = setting(
        "CreateTime",
        "CreateTime keeps each row's own time. LogAppendTime shows the time of the commit.",
        kafka=SAME,
        choices=words("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX,
        "CreateTime only: how much older than its write a row may be; older rows are refused with INVALID_TIMESTAMP. "
        "The writer's clock counts. Not set: any age.",
        kafka=SAME,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "CreateTime only: how much later than its write a row may be dated; later rows are refused with "
        "INVALID_TIMESTAMP, because retention.ms would keep them, and all rows after them, until then.",
        kafka=SAME,
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether 'replog topic elect --unclean' may make an out-of-sync replica the leader. This loses rows, "
        "including rows that were readable.",
        kafka=SAME,
    )
    segment_bytes: int = setting(
        64 * _MIB,
        "Size of the objects that compaction makes of small ones. It holds one of them in memory.",
        kafka="1073741824",
        minimum=_MIB,
        maximum=256 * _MIB,
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "How long compaction by key keeps a tombstone (a row with a key and a null value; of a typed topic, one with "
        "true in its delete.column) after the pass that first cleaned it.",
        kafka=SAME,
    )
    delete_column: str | None = setting(
        None,
        "Of a typed topic: the BOOLEAN column that makes a row with true in it a tombstone for compaction by key; null "
        "is not true. Not set: compaction removes replaced rows only.",
    )
    min_compaction_lag_ms: int = setting(0, "Rows younger than this are not compacted by key.", kafka=SAME)
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "Compaction by key begins once this part of a partition's bytes came since the last pass.",
        kafka=SAME,
        unit="ratio",
    )
    cleanup_policy: str = setting(
        "delete",
        "delete: retention removes old rows. compact: of each key the latest row stays, and rows without a key are "
        "refused; a typed topic needs key columns. Both, separated by a comma: both.",
        kafka=SAME,
        choices=words("delete", "compact", "compact,delete", "delete,compact"),
    )
    derive_source: str | None = setting(
        None,
        "Typed topics only: the topic of bytes whose values become this topic's rows, which `replog topic derive` and "
        "`replog coordinator run` do. Not set: none.",
    )
    derive_format: str = setting(
        "json",
        "How the values of derive.source are read; avro needs the extra registry.",
        choices=words("json", "avro"),
    )
    derive_value_schema: str | None = setting(
        None,
        "avro only: the Avro schema with which the values were written, or the reader's with a registry.",
    )
    derive_value_registry: str | None = setting(
        None,
        "avro only: where the schemas are that Confluent's serializers name by number: the URL of a registry, or a "
        "folder with files NUMBER.avsc. Not set: values have no numbers of schemas.",
    )
    errors_topic: str | None = setting(
        None,
        "The topic that gets each record of derive.source that does not fit, whole. It has the ledger of this topic, "
        "so that rows, errors and position are decided as one. Not set: the first such record stops the derivation.",
    )

    def compression_of(self, *, is_typed: bool) -> str:
        """Return none, lz4 or zstd for the objects of a topic, typed or of bytes."""
        return self.compression_type or ("zstd" if is_typed else "none")


TOPIC_KEYS = declared_keys("topic", TopicConfig)
STORAGE_KEYS = (
    ConfigKey(
        "storage.fsync",
        "storage",
        True,
        None,
        "bool",
        "false: a power failure may lose acknowledged rows. Chosen once, by "
        "'replog init --no-fsync', and recorded in every root.",
    ),
    ConfigKey(
        "storage.*",
        "storage",
        None,
        None,
        "text",
        "Any other name after 'storage.' is passed to the file system (fsspec names, such as "
        "storage.endpoint_url for S3). A scheme or a URL before the name, as in storage.s3.key or "
        "storage.s3://bucket.key, limits it to those roots.",
    ),
)

CLUSTER_KEYS = (
    ConfigKey(
        SUPER_USERS_KEY,
        "cluster",
        None,
        None,
        "text",
        "Principals that may do everything, separated by semicolons: User:admin;User:ops.",
    ),
    ConfigKey(
        ALLOW_EVERYONE_KEY,
        "cluster",
        True,
        "false",
        "bool",
        "Whether everyone may use a topic, group, transactional.id or the store itself while no ACL names it. "
        "Kafka's default applies only after an authorizer is configured; a new store has one and no ACLs.",
    ),
)
