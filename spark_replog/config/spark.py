"""Options of the Spark source and sink. ``spark_replog.spark.options`` reads them."""

from __future__ import annotations

from functools import partial
from typing import Any

from spark_replog.config.key import INT32_MAX, ConfigGroup, ConfigKey, words

_PATH = "The store: a parent directory of roots, or the roots, comma separated."


def _option(group: ConfigGroup, name: str, doc: str, **details: Any) -> ConfigKey:
    unit = "choice" if "choices" in details else "text"
    return ConfigKey(
        **{"default": None, "kafka_default": None, "unit": unit, **details}, group=group, name=name, doc=doc
    )


_source = partial(_option, "source")
_sink = partial(_option, "sink")

SOURCE_KEYS = (
    _source("path", _PATH),
    _source("subscribe", "Topics to read, comma separated."),
    _source("subscribePattern", "A regular expression that topics match."),
    _source("assign", 'Partitions to read: {"orders":[0,1]}.', unit="json"),
    _source(
        "startingOffsets",
        "earliest, latest, or offsets per partition as JSON (-2 earliest, -1 latest). Not set: latest for a stream, "
        "earliest for a batch. A checkpoint takes precedence.",
        unit="json",
    ),
    _source(
        "startingOffsetsByTimestamp",
        'Start each partition at its first row at or after a time: {"orders":{"0":1700000000000}}. Times are epoch '
        "milliseconds, ISO times or a time ago. Takes precedence over startingOffsets.",
        unit="json",
    ),
    _source(
        "startingTimestamp",
        "One such time for all partitions: 1700000000000, 2024-05-06T07:08:09Z (UTC without a zone), or -10 minutes. "
        "Takes precedence over the other two.",
    ),
    _source(
        "startingOffsetsByTimestampStrategy",
        "What to do with a partition that has no row at or after the starting time: error, or latest (start at its "
        "end).",
        default="error",
        choices=words("error", "latest"),
    ),
    _source(
        "endingOffsets",
        "Batch reads only: latest, or offsets per partition as JSON (-1 latest), exclusive.",
        default="latest",
        unit="json",
    ),
    _source(
        "endingOffsetsByTimestamp",
        "Batch reads only: read rows before a time, per partition; to the end where no row is that late. Takes "
        "precedence over endingOffsets.",
        unit="json",
    ),
    _source(
        "endingTimestamp",
        "Batch reads only: one such time for all partitions. Takes precedence over the other two.",
    ),
    _source("includeHeaders", "Adds the headers column.", default=False, unit="bool"),
    _source(
        "columns",
        "The only columns to read, comma separated: key, value, topic, partition, offset, timestamp, timestampType, "
        "headers. They keep this order. Spark asks a Python source for all columns whatever a query selects, so naming "
        "few makes reads faster.",
    ),
    _source(
        "failOnDataLoss",
        "Fail when offsets that were not read yet no longer exist. false: skip and log rows that are proved lost "
        "(trimmed, aged out, topic deleted, every copy absent or corrupt); an outage still fails the query.",
        default=True,
        unit="bool",
    ),
    _source(
        "maxOffsetsPerTrigger",
        "Streams only: approximate number of offsets in a micro-batch, shared among partitions by their backlog.",
        unit="count",
        minimum=1,
    ),
    _source(
        "minOffsetsPerTrigger",
        "Streams only: wait for this many new offsets. Ignored by AvailableNow and Once, which read everything.",
        unit="count",
        minimum=1,
    ),
    _source(
        "maxTriggerDelay",
        "Streams only: longest time that rows wait for minOffsetsPerTrigger: 15m, 90s, 500ms. A bare number is "
        "milliseconds.",
        default="15m",
    ),
    _source(
        "maxBytesPerTrigger",
        "Streams only: approximate number of stored bytes in a micro-batch, shared among partitions by their backlog.",
        unit="bytes",
        minimum=1,
    ),
    _source(
        "minPartitions",
        "Minimum number of Spark tasks, as a hint. Not set: one per topic-partition with data.",
        unit="count",
        minimum=1,
        maximum=INT32_MAX,
    ),
    _source("maxRecordsPerPartition", "Maximum number of offsets that one Spark task reads.", unit="count", minimum=1),
    _source(
        "pushDownFilters",
        "Batch reads only, Spark 4.1 and up with spark.sql.python.filterPushdown.enabled: open only the sections that "
        "filters on topic, partition, offset and timestamp can match. Spark plans a source once per load(), so run one "
        "query per load().",
        default=False,
        unit="bool",
    ),
    _source(
        "maxPartitions",
        "Maximum number of Spark tasks: topic-partitions share tasks, each in its order. Not set: one task per "
        "topic-partition with data, as in Kafka.",
        unit="count",
        minimum=1,
        maximum=INT32_MAX,
    ),
    _source(
        "principal", "Who reads (advisory). Not set: REPLOG_PRINCIPAL, else User: and the operating system's user name."
    ),
    _source(
        "group.id",
        "Streams only, also as kafka.group.id: publish the query's position as offsets of this group, at most every "
        "five seconds, for 'replog group describe'. The checkpoint still decides where the query continues.",
        kafka_default="null",
    ),
)

SINK_KEYS = (
    _sink("path", _PATH),
    _sink("topic", "Topic of every row. Takes precedence over a topic column."),
    _sink(
        "transactional.id",
        "A name for the writer that is independent of its checkpoint, so that a lost checkpoint is detected.",
        kafka_default="null",
    ),
    _sink(
        "onCheckpointReset",
        "What a query with a known transactional.id and a new checkpoint does with batches at or below the last one: "
        "fail, append, or skip.",
        default="fail",
        choices=words("fail", "append", "skip"),
    ),
    _sink("txnAppId", "Batch writes: the writer's name. Its last txnVersion is recorded."),
    _sink(
        "txnVersion",
        "Batch writes: an increasing number. A write at or below the last one is skipped, or refused if its row counts "
        "differ.",
        unit="count",
    ),
    _sink(
        "interceptor.classes",
        "Your classes, comma separated. Their on_send_batch(topic, batch) gets every Arrow batch in the tasks. Without "
        "the kafka. prefix, which Kafka's connector refuses for this and the next two.",
        kafka_default="",
    ),
    _sink(
        "key.serializer",
        "Your class as module.Class. Its serialize_array(topic, array) makes the bytes of the key column.",
        kafka_default="required",
    ),
    _sink("value.serializer", "As key.serializer, for values.", kafka_default="required"),
    _sink(
        "principal",
        "Who writes (advisory). Not set: REPLOG_PRINCIPAL, else User: and the operating system's user name.",
    ),
)
