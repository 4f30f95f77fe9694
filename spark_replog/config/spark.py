"""Options of the Spark source and sink that no settings class reads: ``spark_replog.spark.options`` does."""

from __future__ import annotations

from spark_replog.config.key import ConfigKey

SOURCE_KEYS = (
    ConfigKey(
        "path",
        "source",
        None,
        None,
        "text",
        "The store: a parent directory of roots, or the roots, comma separated.",
    ),
    ConfigKey("subscribe", "source", None, None, "text", "Topics to read, comma separated."),
    ConfigKey("subscribePattern", "source", None, None, "text", "A regular expression that topics match."),
    ConfigKey("assign", "source", None, None, "json", 'Partitions to read: {"orders":[0,1]}.'),
    ConfigKey(
        "startingOffsets",
        "source",
        None,
        None,
        "json",
        "earliest, latest, or offsets per partition as JSON (-2 earliest, -1 latest). Not set means latest "
        "for a stream and earliest for a batch. A checkpoint wins over it.",
    ),
    ConfigKey(
        "startingOffsetsByTimestamp",
        "source",
        None,
        None,
        "json",
        'Start each partition at its first row at or after a time: {"orders":{"0":1700000000000}}, epoch '
        "milliseconds, ISO times or how long ago. Wins over startingOffsets.",
    ),
    ConfigKey(
        "startingTimestamp",
        "source",
        None,
        None,
        "text",
        "One such time for all partitions: 1700000000000, 2024-05-06T07:08:09Z (UTC without a zone), or "
        "-10 minutes. Wins over the other two.",
    ),
    ConfigKey(
        "startingOffsetsByTimestampStrategy",
        "source",
        "error",
        None,
        "choice",
        "What to do with a partition that has no row at or after the starting time: error, or latest (start "
        "at its end).",
        choices={"error": "error", "latest": "latest"},
    ),
    ConfigKey(
        "endingOffsets",
        "source",
        "latest",
        None,
        "json",
        "Batch reads only: latest, or offsets per partition as JSON (-1 latest), exclusive.",
    ),
    ConfigKey(
        "endingOffsetsByTimestamp",
        "source",
        None,
        None,
        "json",
        "Batch reads only: read rows before a time, per partition; the end where no row is that late. Wins over "
        "endingOffsets.",
    ),
    ConfigKey(
        "endingTimestamp",
        "source",
        None,
        None,
        "text",
        "Batch reads only: one such time for all partitions. Wins over the other two.",
    ),
    ConfigKey("includeHeaders", "source", False, None, "bool", "Adds the headers column."),
    ConfigKey(
        "failOnDataLoss",
        "source",
        True,
        None,
        "bool",
        "Fail when offsets that are due no longer exist, rather than go on behind them.",
    ),
    ConfigKey(
        "maxOffsetsPerTrigger",
        "source",
        None,
        None,
        "count",
        "Streams only: about how many offsets a micro-batch takes, shared among partitions by what waits.",
        minimum=1,
    ),
    ConfigKey(
        "minOffsetsPerTrigger",
        "source",
        None,
        None,
        "count",
        "Streams only: wait until this many offsets are new. Not for AvailableNow and Once, which leave nothing.",
        minimum=1,
    ),
    ConfigKey(
        "maxTriggerDelay",
        "source",
        "15m",
        None,
        "text",
        "Streams only: the longest that rows wait for minOffsetsPerTrigger: 15m, 90s, 500ms; a bare number is "
        "milliseconds.",
    ),
    ConfigKey(
        "maxBytesPerTrigger",
        "source",
        None,
        None,
        "bytes",
        "Streams only: about how many stored bytes a micro-batch takes, shared among partitions by what waits.",
        minimum=1,
    ),
    ConfigKey(
        "minPartitions",
        "source",
        None,
        None,
        "count",
        "At least this many Spark tasks, as a hint. Not set means one per topic-partition with data.",
        minimum=1,
    ),
    ConfigKey(
        "maxRecordsPerPartition",
        "source",
        None,
        None,
        "count",
        "The most offsets that one Spark task reads.",
        minimum=1,
    ),
    ConfigKey(
        "pushDownFilters",
        "source",
        False,
        None,
        "bool",
        "Batch reads only, Spark 4.1 and up with spark.sql.python.filterPushdown.enabled: open only the sections "
        "that filters on topic, partition, offset and timestamp can match. Spark plans a source once per load(), "
        "so run one query per load().",
    ),
    ConfigKey(
        "maxPartitions",
        "source",
        None,
        None,
        "count",
        "At most this many Spark tasks: several topic-partitions share one, each in its order. Not set means "
        "one per topic-partition with data, as in Kafka.",
        minimum=1,
    ),
    ConfigKey(
        "principal",
        "source",
        None,
        None,
        "text",
        "Who reads; advisory. Not set means REPLOG_PRINCIPAL, else User: and the operating system's name.",
    ),
    ConfigKey(
        "group.id",
        "source",
        None,
        "null",
        "text",
        "Streams only, also as kafka.group.id: the query shows its position as offsets of this group, every five "
        "seconds at most, for 'replog group describe'. The checkpoint stays the truth.",
    ),
)

SINK_KEYS = (
    ConfigKey(
        "path",
        "sink",
        None,
        None,
        "text",
        "The store: a parent directory of roots, or the roots, comma separated.",
    ),
    ConfigKey("topic", "sink", None, None, "text", "Topic of every row; wins over a topic column."),
    ConfigKey(
        "transactional.id",
        "sink",
        None,
        "null",
        "text",
        "A name for the writer that outlives its checkpoint, so that a lost checkpoint is noticed.",
    ),
    ConfigKey(
        "onCheckpointReset",
        "sink",
        "fail",
        None,
        "choice",
        "What a query with a known transactional.id and a new checkpoint does with batches at or below the "
        "last one: fail, append, or skip.",
        choices={"fail": "fail", "append": "append", "skip": "skip"},
    ),
    ConfigKey(
        "txnAppId",
        "sink",
        None,
        None,
        "text",
        "Batch writes: the name of a writer whose txnVersion says what it has already written.",
    ),
    ConfigKey(
        "txnVersion",
        "sink",
        None,
        None,
        "count",
        "Batch writes: a growing number; a write at or below the last one is skipped, or refused where it brings "
        "other row counts.",
    ),
    ConfigKey(
        "interceptor.classes",
        "sink",
        None,
        "",
        "text",
        "Classes of yours, comma separated, whose on_send_batch(topic, batch) sees every Arrow batch in the tasks. "
        "Without the kafka. prefix, under which Kafka's connector refuses it; so are the next two.",
    ),
    ConfigKey(
        "key.serializer",
        "sink",
        None,
        "required",
        "text",
        "A class of yours, as module.Class, whose serialize_array(topic, array) makes the key column's bytes.",
    ),
    ConfigKey("value.serializer", "sink", None, "required", "text", "As key.serializer, for values."),
    ConfigKey(
        "principal",
        "sink",
        None,
        None,
        "text",
        "Who writes; advisory. Not set means REPLOG_PRINCIPAL, else User: and the operating system's name.",
    ),
)

__all__ = ["SINK_KEYS", "SOURCE_KEYS"]
