"""Settings: frozen values of ours, made once from the dotted names that a user gives.

One registry, ``CONFIG_KEYS``, names every key with its default, Kafka's default and unit.
``docs/configuration.md`` and ``conf/`` are held against it by tests, so that it is the only
place where a key is added.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_replog.config_client import CLIENT_KEYS
from spark_replog.config_consumer import CONSUMER_KEYS
from spark_replog.config_coordinator import COORDINATOR_KEYS, CoordinatorConfig
from spark_replog.config_keys import CLUSTER_KEYS, SINK_KEYS, SOURCE_KEYS, STORAGE_KEYS, ConfigGroup, ConfigKey
from spark_replog.errors import ErrorCode, InvalidConfigError

KEY_PREFIX = "kafka."
"""Stripped from option names, so that a Kafka connector's options can be kept as they are."""
STORAGE_PREFIX = "storage."
"""Passed through to the file system of the store without this prefix."""

_MIB = 1024 * 1024
_INT32_MAX = 2**31 - 1

_REFUSED: Mapping[str, str] = {
    "bootstrap.servers": "There are no servers: give the roots of the store as 'path'.",
    "enable.idempotence": "Every append has an identity already: leave the option out.",
    "key.serializer": "Cast the key column to string or binary instead.",
    "value.serializer": "Cast the value column to string or binary instead.",
    "key.deserializer": "Cast the key column of the read instead.",
    "value.deserializer": "Cast the value column of the read instead.",
    "group.id": "A streaming query keeps its position in its checkpoint: leave the option out.",
    "auto.offset.reset": "Use 'startingOffsets' instead.",
    "interceptor.classes": "Change the columns in the DataFrame instead.",
    "enable.auto.commit": "A streaming query keeps its position in its checkpoint: leave the option out.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a writer batches, sends and waits. Made driver-side, carried to tasks by pickling."""

    acks: int = -1
    batch_size_bytes: int = 1 * _MIB
    linger_ms: int | None = None
    buffer_memory_bytes: int = 128 * _MIB
    max_request_size_bytes: int = 32 * _MIB
    max_block_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retries: int = _INT32_MAX
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    max_in_flight: int = 5
    compression_type: str | None = None
    replica_grace_ms: int = 500
    partitioner_ignore_keys: bool = False
    partitioner_class: str | None = None

    def __post_init__(self) -> None:
        """Check what one key cannot know of another (source: ``KafkaProducer.configureDeliveryTimeout``)."""
        least_ms = (self.linger_ms or 0) + self.request_timeout_ms
        if self.delivery_timeout_ms < least_ms:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"delivery.timeout.ms must be at least linger.ms + request.timeout.ms. Set it to {least_ms} or more.",
                delivery_timeout_ms=self.delivery_timeout_ms,
            )

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> ProducerConfig:
        """Read the producer's keys of a client mapping; a coordinator's keys may stand beside them.

        Raises:
            InvalidConfigError: REPLOG_UNKNOWN_OPTION or REPLOG_INVALID_OPTION.
        """
        return cls(**read_group("producer", options, beside=("coordinator", "storage")))


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

    @classmethod
    def from_mapping(cls, config: Mapping[str, object]) -> TopicConfig:
        """Read a topic's keys; nothing else may stand beside them.

        Raises:
            InvalidConfigError: REPLOG_UNKNOWN_OPTION or INVALID_CONFIG.
        """
        return cls(**read_group("topic", config, code=ErrorCode.INVALID_CONFIG))

    def min_insync(self, replica_count: int) -> int:
        """Return the replicas that must hold a row before acks=all succeeds (a majority unless set)."""
        return self.min_insync_replicas or replica_count // 2 + 1


def normalise_key(name: str) -> str:
    """Return the option's name without the ``kafka.`` prefix."""
    return name[len(KEY_PREFIX) :] if name.lower().startswith(KEY_PREFIX) else name


def keys_of(*groups: ConfigGroup) -> tuple[ConfigKey, ...]:
    """Return the registry's keys of these groups, in its order."""
    return tuple(key for key in CONFIG_KEYS if key.group in groups)


def unknown_option_error(
    name: str,
    known: Iterable[str],
    *,
    code: ErrorCode = ErrorCode.REPLOG_UNKNOWN_OPTION,
) -> InvalidConfigError:
    """Return the refusal of a name, with the reason where Kafka has it, else with the nearest known name."""
    plain = normalise_key(name)
    if plain.lower() in _REFUSED:
        return InvalidConfigError(code, f"kafka option '{plain.lower()}' is not supported. {_REFUSED[plain.lower()]}")
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(plain.lower(), by_lower, n=1, cutoff=0.6)
    remedy = f"Did you mean '{by_lower[near[0]]}'?" if near else "docs/configuration.md lists every option."
    return InvalidConfigError(code, f"unknown option '{name}'. {remedy}")


def storage_options(options: Mapping[str, object]) -> dict[str, str]:
    """Return what goes to the file system: the ``storage.`` options without their prefix."""
    return {
        name[len(STORAGE_PREFIX) :]: str(value) for name, value in options.items() if name.startswith(STORAGE_PREFIX)
    }


def read_group(
    group: ConfigGroup,
    options: Mapping[str, object],
    *,
    beside: tuple[ConfigGroup, ...] = (),
    code: ErrorCode = ErrorCode.REPLOG_INVALID_OPTION,
) -> dict[str, Any]:
    """Return field -> value of one group's keys; keys of the groups ``beside`` it are left alone."""
    own = {key.name: key for key in keys_of(group)}
    others = {key.name for key in keys_of(*beside)}
    values: dict[str, Any] = {}
    for given, value in options.items():
        name = normalise_key(given)
        if name in own:
            values[own[name].field] = parse_value(own[name], value, code=code)
        elif name not in others and not ("storage" in beside and name.startswith(STORAGE_PREFIX)):
            raise unknown_option_error(given, own)
    return values


def parse_value(key: ConfigKey, value: object, *, code: ErrorCode = ErrorCode.REPLOG_INVALID_OPTION) -> object:
    """Return the typed value of a key from its text (or from the value itself).

    Raises:
        InvalidConfigError: the code, naming the key, the value and what is allowed.
    """
    text = str(value).strip()
    choices = {"true": True, "false": False} if key.unit == "bool" else key.choices
    if choices is not None:
        by_lower = {word.lower(): meaning for word, meaning in choices.items()}
        if text.lower() not in by_lower:
            allowed = ", ".join(choices)
            code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if key.name == "compression.type" else code
            raise InvalidConfigError(code, f"'{key.name}' is '{text}'. Give one of: {allowed}.")
        return by_lower[text.lower()]
    if key.unit in {"ms", "bytes", "count"}:
        try:
            number = int(text)
        except ValueError:
            raise InvalidConfigError(
                code, f"'{key.name}' is '{text}', which is no whole number. Give it in {key.unit}."
            ) from None
        if not key.minimum <= number <= key.maximum:
            raise InvalidConfigError(
                code, f"'{key.name}' is {number}. Give a number from {key.minimum} to {key.maximum}."
            )
        return number
    return text


_COMPRESSION: Mapping[str, object] = {"none": "none", "lz4": "lz4", "zstd": "zstd"}
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    group: {field.name: field.default for field in fields(settings)}
    for group, settings in (
        ("producer", ProducerConfig),
        ("topic", TopicConfig),
    )
}


def _setting(group: ConfigGroup, name: str, kafka_default: str | None, unit: str, doc: str, **more: Any) -> ConfigKey:
    field = more.pop("field", None) or name.replace(".", "_")
    return ConfigKey(name, group, _DEFAULTS[group][field], kafka_default, unit, doc, field=field, **more)


_PRODUCER_KEYS = (
    _setting(
        "producer",
        "acks",
        "all",
        "choice",
        "Copies to wait for. all: every in-sync replica, and exactly once; 1: the leader; 0: no retry, "
        "failed puts are dropped and counted in the log.",
        choices={"all": -1, "-1": -1, "0": 0, "1": 1},
    ),
    _setting(
        "producer",
        "batch.size",
        "16384",
        "bytes",
        "Size of one record batch per partition. Larger than Kafka's, since a batch is Arrow columns.",
        field="batch_size_bytes",
        minimum=1,
        maximum=_INT32_MAX,
    ),
    _setting(
        "producer",
        "linger.ms",
        "5",
        "ms",
        "How long a batch waits to fill. Not set in a Spark task means until the task ends, a request is "
        "full or memory runs out, so that a small task makes one object.",
    ),
    _setting(
        "producer",
        "buffer.memory",
        "33554432",
        "bytes",
        "Memory for rows that wait to be sent, per task.",
        field="buffer_memory_bytes",
        minimum=1,
    ),
    _setting(
        "producer",
        "max.request.size",
        "1048576",
        "bytes",
        "Size of one data object, and the largest record. Larger than Kafka's, since an object holds the "
        "sections of many partitions.",
        field="max_request_size_bytes",
        minimum=1,
        maximum=_INT32_MAX,
    ),
    _setting("producer", "max.block.ms", "60000", "ms", "How long an append waits for buffer.memory."),
    _setting(
        "producer",
        "delivery.timeout.ms",
        "120000",
        "ms",
        "After this a write that still fails is an error. At least linger.ms + request.timeout.ms.",
    ),
    _setting("producer", "request.timeout.ms", "30000", "ms", "How long one put may take.", minimum=1),
    _setting(
        "producer",
        "retries",
        "2147483647",
        "count",
        "How often a plain producer appends a batch again after an error that may pass. A put is repeated until "
        "delivery.timeout.ms.",
        maximum=_INT32_MAX,
    ),
    _setting("producer", "retry.backoff.ms", "100", "ms", "First pause before a put is tried again."),
    _setting("producer", "retry.backoff.max.ms", "1000", "ms", "Longest pause between two tries."),
    _setting(
        "producer",
        "max.in.flight.requests.per.connection",
        "5",
        "count",
        "Data objects on their way at once, per task.",
        field="max_in_flight",
        minimum=1,
        maximum=64,
    ),
    _setting(
        "producer",
        "compression.type",
        "none",
        "choice",
        "Compression inside data objects. Not set means the topic's.",
        choices=_COMPRESSION,
    ),
    _setting(
        "producer",
        "replica.grace.ms",
        None,
        "ms",
        "With acks=all, how long a task waits for the remaining replicas once min.insync.replicas have the object.",
    ),
    _setting(
        "producer",
        "partitioner.ignore.keys",
        "false",
        "bool",
        "Spread rows over partitions whatever their key.",
    ),
    _setting(
        "producer",
        "partitioner.class",
        None,
        "text",
        "A class of yours, as module.Class, importable on the workers, whose partition_array(keys, count) "
        "returns a partition per key. Not set means murmur2 of the key, and sticky without one.",
    ),
)

_TOPIC_KEYS = (
    _setting(
        "topic",
        "retention.ms",
        "604800000",
        "ms",
        "Age after which rows may be deleted; -1 keeps them. Recorded with the topic; this release deletes nothing.",
        minimum=-1,
    ),
    _setting(
        "topic",
        "retention.bytes",
        "-1",
        "bytes",
        "Size of a partition after which old rows may be deleted; -1 keeps them. Recorded with the topic; "
        "this release deletes nothing.",
        minimum=-1,
    ),
    _setting(
        "topic",
        "min.insync.replicas",
        "1",
        "count",
        "Replicas that must hold a row before acks=all succeeds. Not set means replicas / 2 + 1, so that a "
        "loss of one of three loses nothing.",
        minimum=1,
        maximum=1000,
    ),
    _setting(
        "topic",
        "compression.type",
        "producer",
        "choice",
        "Compression inside data objects, Arrow's own. Kafka's gzip and snappy are refused.",
        choices=_COMPRESSION,
    ),
    _setting(
        "topic",
        "max.message.bytes",
        "1048588",
        "bytes",
        "Largest record.",
        minimum=1,
        maximum=_INT32_MAX,
    ),
    _setting(
        "topic",
        "message.timestamp.type",
        "CreateTime",
        "choice",
        "CreateTime keeps the writer's time of each row; LogAppendTime shows the time of the commit.",
        choices={"CreateTime": "CreateTime", "LogAppendTime": "LogAppendTime"},
    ),
    _setting(
        "topic",
        "unclean.leader.election.enable",
        "false",
        "bool",
        "Whether 'replog topic elect --unclean' may make an out-of-sync replica the leader. It loses rows, readable "
        "ones too.",
    ),
    _setting(
        "topic",
        "cleanup.policy",
        "delete",
        "choice",
        "What retention does. Compaction is refused by this release rather than ignored.",
        choices={"delete": "delete"},
    ),
)

CONFIG_KEYS: tuple[ConfigKey, ...] = (
    *_PRODUCER_KEYS,
    *CLIENT_KEYS,
    *CONSUMER_KEYS,
    *COORDINATOR_KEYS,
    *_TOPIC_KEYS,
    *STORAGE_KEYS,
    *SOURCE_KEYS,
    *SINK_KEYS,
    *CLUSTER_KEYS,
)
"""Every key that a user can set."""

__all__ = [
    "CONFIG_KEYS",
    "ConfigGroup",
    "ConfigKey",
    "CoordinatorConfig",
    "ProducerConfig",
    "TopicConfig",
    "keys_of",
    "normalise_key",
    "parse_value",
    "read_group",
    "storage_options",
    "unknown_option_error",
]
