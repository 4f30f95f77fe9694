"""Settings that every writer has: the sink's tasks and a plain ``Producer``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from spark_replog.config.key import ConfigKey
from spark_replog.errors import ErrorCode, InvalidConfigError

_MIB = 1024 * 1024
_INT32_MAX = 2**31 - 1


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
        object.__setattr__(self, "batch_size_bytes", max(1, self.batch_size_bytes))  # Kafka: 0 is no batching


_COMPRESSION = {"none": "none", "lz4": "lz4", "zstd": "zstd"}
_DEFAULTS = {field.name: field.default for field in fields(ProducerConfig)}


def _key(name: str, kafka_default: str | None, unit: str, doc: str, **more: Any) -> ConfigKey:
    field = more.pop("field", None) or name.replace(".", "_")
    return ConfigKey(name, "producer", _DEFAULTS[field], kafka_default, unit, doc, field=field, **more)


PRODUCER_KEYS = (
    _key(
        "acks",
        "all",
        "choice",
        "Copies to wait for. all: every in-sync replica, and exactly once; 1: the leader; 0: no retry, "
        "failed puts are dropped and counted in the log.",
        choices={"all": -1, "-1": -1, "0": 0, "1": 1},
    ),
    _key(
        "batch.size",
        "16384",
        "bytes",
        "Size of one record batch per partition; 0: one record each. Larger than Kafka's, since a batch is Arrow "
        "columns.",
        field="batch_size_bytes",
        minimum=0,
        maximum=_INT32_MAX,
    ),
    _key(
        "linger.ms",
        "5",
        "ms",
        "How long a batch waits to fill. Not set in a Spark task means until the task ends, a request is "
        "full or memory runs out, so that a small task makes one object.",
    ),
    _key(
        "buffer.memory",
        "33554432",
        "bytes",
        "Memory for rows that wait to be sent, per task.",
        field="buffer_memory_bytes",
        minimum=1,
    ),
    _key(
        "max.request.size",
        "1048576",
        "bytes",
        "Size of one data object, and the largest record. Larger than Kafka's, since an object holds the "
        "sections of many partitions.",
        field="max_request_size_bytes",
        minimum=1,
        maximum=_INT32_MAX,
    ),
    _key("max.block.ms", "60000", "ms", "How long an append waits for buffer.memory."),
    _key(
        "delivery.timeout.ms",
        "120000",
        "ms",
        "After this a write that still fails is an error. At least linger.ms + request.timeout.ms.",
    ),
    _key("request.timeout.ms", "30000", "ms", "How long one put may take.", minimum=1),
    _key(
        "retries",
        "2147483647",
        "count",
        "How often a plain producer appends a batch again after an error that may pass. A put is repeated until "
        "delivery.timeout.ms.",
        maximum=_INT32_MAX,
    ),
    _key("retry.backoff.ms", "100", "ms", "First pause before a put is tried again."),
    _key("retry.backoff.max.ms", "1000", "ms", "Longest pause between two tries."),
    _key(
        "max.in.flight.requests.per.connection",
        "5",
        "count",
        "Data objects on their way at once, per task.",
        field="max_in_flight",
        minimum=1,
        maximum=64,
    ),
    _key(
        "compression.type",
        "none",
        "choice",
        "Compression inside data objects. Not set means the topic's.",
        choices=_COMPRESSION,
    ),
    _key(
        "replica.grace.ms",
        None,
        "ms",
        "With acks=all, how long a task waits for the remaining replicas once min.insync.replicas have the object.",
    ),
    _key(
        "partitioner.ignore.keys",
        "false",
        "bool",
        "Spread rows over partitions whatever their key.",
    ),
    _key(
        "partitioner.class",
        None,
        "text",
        "A class of yours, as module.Class, importable on the workers, whose partition_array(keys, count) "
        "returns a partition per key. Not set means murmur2 of the key, and sticky without one.",
    ),
)

__all__ = ["PRODUCER_KEYS", "ProducerConfig"]
