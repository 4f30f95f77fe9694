"""Kafka's client settings that this project does not read: the one table of their names, with the reasons.

The settings that it does read are in the registry (``ConfigKey.kafka_default`` is set). Together these are all settings
of Kafka 4's producer and consumer. A plain ``Producer`` or ``Consumer`` refuses a name of this table with its reason.
Spark's source and sink accept it with the ``kafka.`` prefix and log it once, as a job that changes only its format
keeps its options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from spark_replog.config.key import KEY_PREFIX
from spark_replog.errors import ErrorCode, InvalidConfigError

KafkaClient = Literal["producer", "consumer"]
_BOTH: Final = ("producer", "consumer")
_PRODUCER: Final = ("producer",)
_CONSUMER: Final = ("consumer",)


class Unused(NamedTuple):
    """Why a setting has no meaning here, and what to do instead; and the clients of Kafka that have it."""

    clients: tuple[str, ...]
    reason: str


_SERVERS = "There are no servers. Give the roots of the store as the path."
_SOCKETS = "There is no connection to a server. Options of the file system start with 'storage.'."
_PUT_TIME = _SOCKETS + " request.timeout.ms limits one put."
_LOGIN = "Storage has its own credentials. Give them as 'storage.' options."
_METRICS = "All metrics are always recorded. Read them with metrics()."
_CODECS = "Compression is Arrow's. compression.type takes none, lz4 or zstd, at the default level."
_SHARE = "There are no share groups: each partition has one member of the group."

UNUSED_KAFKA_SETTINGS: Mapping[str, Unused] = {
    "allow.auto.create.topics": Unused(_CONSUMER, "Reading never creates a topic. Use `replog topic create`."),
    "auto.include.jmx.reporter": Unused(_BOTH, _METRICS),
    "block.on.buffer.full": Unused(_PRODUCER, "Kafka removed it. max.block.ms limits the wait for memory."),
    "bootstrap.resolve.timeout.ms": Unused(_BOTH, _SERVERS),
    "bootstrap.servers": Unused(_BOTH, _SERVERS),
    "client.dns.lookup": Unused(_BOTH, _SERVERS),
    "client.rack": Unused(_BOTH, "Local roots are read first, then any in-sync copy."),
    "compression.gzip.level": Unused(_PRODUCER, _CODECS),
    "compression.lz4.level": Unused(_PRODUCER, _CODECS),
    "compression.zstd.level": Unused(_PRODUCER, _CODECS),
    "config.providers": Unused(_BOTH, "Read secrets in your program and give their values."),
    "connections.max.idle.ms": Unused(_BOTH, _SOCKETS),
    "enable.metrics.push": Unused(_BOTH, _METRICS),
    "group.protocol": Unused(_CONSUMER, "The ledger coordinates groups. Use partition.assignment.strategy."),
    "group.remote.assignor": Unused(
        _CONSUMER, "The leading member assigns partitions. Use partition.assignment.strategy."
    ),
    "metadata.cluster.check.enable": Unused(_BOTH, _SERVERS),
    "metadata.recovery.rebootstrap.trigger.ms": Unused(_BOTH, _SERVERS),
    "metadata.recovery.strategy": Unused(_BOTH, _SERVERS),
    "metric.reporters": Unused(_BOTH, _METRICS),
    "metrics.num.samples": Unused(_CONSUMER, _METRICS),
    "metrics.recording.level": Unused(_BOTH, _METRICS),
    "metrics.sample.window.ms": Unused(_CONSUMER, _METRICS),
    "receive.buffer.bytes": Unused(_BOTH, _SOCKETS),
    "reconnect.backoff.max.ms": Unused(_BOTH, _SOCKETS),
    "reconnect.backoff.ms": Unused(_BOTH, _SOCKETS),
    "request.timeout.ms": Unused(_CONSUMER, "default.api.timeout.ms limits a commit, fetch.max.wait.ms a fetch."),
    "retry.backoff.max.ms": Unused(_CONSUMER, "The pause between two attempts is always retry.backoff.ms."),
    "send.buffer.bytes": Unused(_BOTH, _SOCKETS),
    "share.acknowledgement.mode": Unused(_CONSUMER, _SHARE),
    "share.acquire.mode": Unused(_CONSUMER, _SHARE),
    "socket.connection.setup.timeout.max.ms": Unused(_BOTH, _PUT_TIME),
    "socket.connection.setup.timeout.ms": Unused(_BOTH, _PUT_TIME),
    "transaction.two.phase.commit.enable": Unused(
        _PRODUCER, "A transaction is one entry of one ledger and needs no second phase."
    ),
}
UNUSED_KAFKA_PREFIXES: Mapping[str, Unused] = {
    "config.providers.": UNUSED_KAFKA_SETTINGS["config.providers"],
    "sasl.": Unused(_BOTH, _LOGIN),
    "security.": Unused(_BOTH, _LOGIN),
    "ssl.": Unused(_BOTH, _LOGIN),
}
_REPLACED: Mapping[str, str] = {
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
"""Settings that Spark's Kafka connector refuses, with what a DataFrame has instead."""


def unused_reason(name: str, client: KafkaClient) -> str | None:
    """Return why a setting of one of Kafka's clients has no meaning here, None for any other name."""
    found = UNUSED_KAFKA_SETTINGS.get(name) or next(
        (unused for prefix, unused in UNUSED_KAFKA_PREFIXES.items() if name.startswith(prefix)), None
    )
    return found.reason if found is not None and client in found.clients else None


def connector_refusal(name: str, code: ErrorCode) -> InvalidConfigError | None:
    """Return the refusal of an option that Spark's Kafka connector refuses, in its words; None for any other name."""
    plain = name.lower().removeprefix(KEY_PREFIX)
    if plain not in _REPLACED:
        return None
    return InvalidConfigError(code, f"kafka option '{plain}' is not supported. {_REPLACED[plain]}")
