"""Options of the Spark source and sink, and Spark's own settings that shorten micro-batches. Pure; needs no Spark.

``spark_replog.spark.options`` reads the options. From the session's settings come ``spark_replog.session_conf``,
``conf/spark-replog.conf``, ``docs/performance.md``, and what ``replog doctor`` and a query's first log line say.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from spark_replog.config.key import INT32_MAX, ConfigGroup, ConfigKey, words
from spark_replog.errors import invalid_option

_PATH = "The store: a parent directory of roots, or the roots, comma separated."
SPARK_VERSION_MIN = (4, 0)
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


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
        "rows",
        "What rows of typed topics are: columns (the topic's), or kafka (key, value and so on, with the row's JSON as "
        "value, for programs that read bytes).",
        default="columns",
        choices=words("columns", "kafka"),
    ),
    _source(
        "includeMetadata",
        "Adds a struct _metadata to rows of typed topics, and to decoded ones: topic, partition, offset, timestamp, "
        "timestampType, key, headers.",
        default=False,
        unit="bool",
    ),
    _source(
        "columns",
        "The only columns to read, comma separated: key, value, topic, partition, offset, timestamp, timestampType, "
        "headers; of a typed topic, its columns. They keep this order. Spark asks a Python source for all columns "
        "whatever a query selects, so naming few makes reads faster.",
    ),
    _source(
        "valueFormat",
        "Topics of bytes only: decode values into the columns of valueSchema, in the tasks: json, or avro (needs "
        "the extra registry). Confluent's prefix of five bytes may stand before JSON, and stands before Avro if "
        "valueRegistry is set. Not set: values stay bytes.",
        choices=words("json", "avro"),
    ),
    _source(
        "valueSchema",
        "The columns of the values: DDL such as id BIGINT NOT NULL, tags ARRAY<STRING>, an Avro schema, or the path or "
        "URL of a file with either. Without valueRegistry, values in Avro need the Avro schema that wrote them.",
    ),
    _source(
        "valueRegistry",
        "Where the Avro schemas are that Confluent's serializers name by number: the URL of a registry (http, https), "
        "or a folder with files NUMBER.avsc. Options registry.NAME go to Confluent's client, such as "
        "registry.basic.auth.user.info.",
    ),
    _source(
        "mode",
        "What becomes of a record whose value does not fit valueSchema. PERMISSIVE: a row of nulls, with the value in "
        "the column of columnNameOfCorruptRecord; DROPMALFORMED: no row; FAILFAST: an error that names it.",
        default="PERMISSIVE",
        choices=words("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
    ),
    _source(
        "columnNameOfCorruptRecord",
        "The STRING column that gets the value of a bad record, if valueSchema has it; set, it is added to an "
        'Avro schema. Bytes that are not UTF-8 are {"b64": ...}.',
        default="_corrupt_record",
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
        "filters on topic, partition, offset and timestamp, and on columns of a typed topic, can match. Spark plans a "
        "source once per load(), so run one query per load().",
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
        "hedgeRatio",
        "A read from a remote root that takes longer than the p95 of that root's reads is asked of a second replica "
        "too. This is the largest part of reads that may be; 0: none.",
        default=0.05,
        unit="ratio",
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
        "A name for the writer that is independent of its checkpoint, so that a lost checkpoint is detected. Add, "
        "change or remove it after the query has stopped without an error only: after a crash Spark may repeat its "
        "last batch, which is then appended again under the other name.",
        kafka_default="null",
    ),
    _sink(
        "onCheckpointReset",
        "What a write does whose number is in the log with other rows, as after a checkpoint was copied, restored or "
        "lost: fail; append (queries only: write the rows, maybe for the second time); skip (drop them, and log how "
        "many). Queries, and batch writes with txnAppId. Set it for the one run that needs it.",
        default="fail",
        choices=words("fail", "append", "skip"),
    ),
    _sink(
        "txnAppId",
        "Batch writes: the writer's name. Its last txnVersion is recorded. Each write of a foreachBatch needs its own.",
    ),
    _sink(
        "txnVersion",
        "Batch writes: an increasing number. A write at or below the last one is skipped if it has the same rows, in "
        "any order, else refused.",
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
        "timestampColumn",
        "Typed topics: the TIMESTAMP column with the rows' times. It is stored as a column only if the topic has it. "
        "Not set: the time of the write.",
    ),
    _sink(
        "headersColumn",
        "Typed topics: the column with the rows' headers, array<struct<key:string,value:binary>>. Not set: none.",
    ),
    _sink(
        "mergeSchema",
        "Typed topics: add the columns that the topic lacks to its schema, nullable, before the first row is stored. "
        "Needs the right to alter the topic. false: they are refused.",
        default=False,
        unit="bool",
    ),
    _sink(
        "principal",
        "Who writes (advisory). Not set: REPLOG_PRINCIPAL, else User: and the operating system's user name.",
    ),
)


@dataclass(frozen=True, slots=True)
class SessionSetting:
    """One of Spark's settings.

    Attributes:
        since: first Spark version that has it.
        is_local_only: whether it is set only where checkpoints are on a ``file:`` path.
        saved_ms: what a micro-batch loses without it (docs/performance.md); 0: throughput or a guard.
    """

    name: str
    value: str
    effect: str
    risk: str
    since: tuple[int, int] = SPARK_VERSION_MIN
    is_local_only: bool = False
    saved_ms: int = 0
    is_default: bool = False
    """Whether it is Spark's default too, so that only a changed value loses anything."""


SESSION_SETTINGS = (
    SessionSetting(
        CHECKPOINT_MANAGER,
        _MANAGER,
        "Checkpoint files are renamed in 2 to 5 ms. On a local path the default manager takes 16 to 30 ms for each.",
        "None that the default has not: a power failure may leave an empty newest file with either (below).",
        is_local_only=True,
        saved_ms=46,
    ),
    SessionSetting(
        UNIX_SOCKETS,
        "true",
        "Spark and its Python workers talk over Unix sockets. Over TCP a task waits some 40 ms for a delayed "
        "acknowledgement.",
        "The sockets are files in the temporary folder, whose path must be short (about 70 characters).",
        since=(4, 1),
        saved_ms=36,
    ),
    SessionSetting(
        "spark.python.worker.reuse",
        "true",
        "A Python worker serves many tasks. Else each task starts one and imports everything again.",
        "None.",
        saved_ms=1350,
        is_default=True,
    ),
    SessionSetting(
        "spark.python.use.daemon",
        "true",
        "Workers are forked from a process that has imported pyspark.",
        "None.",
        saved_ms=3900,
        is_default=True,
    ),
    SessionSetting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "10000",
        "Rows in one Arrow batch from Spark to the sink. 0 (no limit) makes one batch of a task.",
        "A task holds two such batches at a time, beside buffer.memory.",
        is_default=True,
    ),
)


def session_conf(spark_version: str | None = None, checkpoint: str = "file") -> dict[str, str]:
    """Return the settings that a session is to be started with, by name.

    Args:
        spark_version: such as "4.3.0"; None: of the pyspark that is installed, else the newest known.
        checkpoint: a checkpoint's path or its scheme: ``file``, ``/data/checkpoints``, ``hdfs``, ``s3a://bucket/x``.
            Only ``file`` changes Spark's checkpoint file manager.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: no version of Spark from 4.0 on.
    """
    version = _version(spark_version)
    scheme, mark, _ = checkpoint.partition(":")
    is_local = scheme == "file" or not (mark or checkpoint.isalnum())  # else a path
    return {
        setting.name: value_for(setting, version)
        for setting in SESSION_SETTINGS
        if version >= setting.since and (is_local or not setting.is_local_only)
    }


def lost_ms(conf: Mapping[str, str], spark_version: str | None = None) -> dict[str, int]:
    """Return what a micro-batch loses by each setting that a session's ``conf`` lacks: milliseconds by name.

    Absent names have Spark's defaults.
    """
    wanted = session_conf(spark_version)
    return {
        setting.name: setting.saved_ms
        for setting in SESSION_SETTINGS
        if setting.saved_ms
        and setting.name in wanted
        and conf.get(setting.name, wanted[setting.name] if setting.is_default else "").strip().lower()
        != wanted[setting.name].lower()
    }


def value_for(setting: SessionSetting, version: tuple[int, int]) -> str:
    """Return a setting's value for a Spark version: 4.0 has the checkpoint managers in another package."""
    return setting.value.replace(".checkpointing.", ".") if version < (4, 1) else setting.value


def _version(text: str | None) -> tuple[int, int]:
    text = text or installed_spark() or "4.3"
    parts = text.strip().split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()) or int(parts[0]) < SPARK_VERSION_MIN[0]:
        raise invalid_option(f"'{text}' is not a Spark version from 4.0 on. Give one such as '4.3.0'.")
    return int(parts[0]), int(parts[1])


def installed_spark() -> str | None:
    """Return the version of the pyspark that an import would find, without importing it; None without one."""
    module = sys.modules.get("pyspark")
    if module is not None:
        return str(module.__version__)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    source: bytes = spec.loader.get_data(os.path.join(os.path.dirname(spec.origin), "version.py"))  # type: ignore
    match = re.search(r'__version__\b.*["\']([0-9][^"\']*)', source.decode())
    return None if match is None else match[1]
