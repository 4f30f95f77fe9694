"""Settings of the plain Python ``Producer`` beside those shared with the Spark sink, and Kafka's that are refused.

Every setting of Kafka 4's producer is in one of three places: ``config`` (shared), ``CLIENT_KEYS``
or, with the reason, ``REFUSED_PRODUCER_SETTINGS``; a test holds the full list of names against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_replog.config.key import ConfigKey
from spark_replog.errors import ErrorCode, InvalidConfigError

IDEMPOTENT_IN_FLIGHT_MAX = 5
_INT32_MAX = 2**31 - 1

_NO_SERVERS = "There are no servers: give the roots of the store as the first argument."
_NO_SOCKETS = "Objects are put by the file system of the store, not through sockets of this client."
_NO_LOGIN = "Storage has its own credentials: give them as storage options."
_NO_REPORTERS = "Read producer.metrics(), a dictionary under Kafka's names."
_OWN_CODECS = "Compression is Arrow's: compression.type takes none, lz4 or zstd, at their usual level."

REFUSED_PRODUCER_SETTINGS: Mapping[str, str] = {
    "bootstrap.servers": _NO_SERVERS,
    "client.dns.lookup": _NO_SERVERS,
    "metadata.recovery.strategy": _NO_SERVERS,
    "metadata.recovery.rebootstrap.trigger.ms": _NO_SERVERS,
    "connections.max.idle.ms": _NO_SOCKETS,
    "receive.buffer.bytes": _NO_SOCKETS,
    "reconnect.backoff.ms": _NO_SOCKETS + " retry.backoff.ms paces what is tried again.",
    "reconnect.backoff.max.ms": _NO_SOCKETS + " retry.backoff.max.ms bounds the pause.",
    "send.buffer.bytes": _NO_SOCKETS,
    "socket.connection.setup.timeout.ms": _NO_SOCKETS + " request.timeout.ms bounds one put.",
    "socket.connection.setup.timeout.max.ms": _NO_SOCKETS + " request.timeout.ms bounds one put.",
    "compression.gzip.level": _OWN_CODECS,
    "compression.lz4.level": _OWN_CODECS,
    "compression.zstd.level": _OWN_CODECS,
    "config.providers": "Read secrets in your program and give their values.",
    "enable.metrics.push": "Nobody collects metrics. " + _NO_REPORTERS,
    "metric.reporters": _NO_REPORTERS,
    "metrics.recording.level": "Every metric is always recorded. " + _NO_REPORTERS,
    "transaction.two.phase.commit.enable": "A transaction is one entry of one ledger and is never in doubt for others.",
    "security.protocol": _NO_LOGIN,
    "security.providers": _NO_LOGIN,
}
"""Kafka's name -> why it has no meaning here and what to do instead."""
REFUSED_PRODUCER_PREFIXES: Mapping[str, str] = {"sasl.": _NO_LOGIN, "ssl.": _NO_LOGIN}


def refusal_of(name: str) -> str | None:
    """Return why a setting of Kafka's producer is refused, None where it is not one of those."""
    found = REFUSED_PRODUCER_SETTINGS.get(name)
    if found is not None:
        return found
    return next((why for prefix, why in REFUSED_PRODUCER_PREFIXES.items() if name.startswith(prefix)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What only a plain ``Producer`` reads; see ``CLIENT_KEYS``."""

    client_id: str = ""
    principal: str | None = None
    key_serializer: str = "bytes"
    value_serializer: str = "bytes"
    interceptor_classes: str = ""
    enable_idempotence: bool | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    adaptive_partitioning: bool = True
    availability_timeout_ms: int = 0
    metadata_max_idle_ms: int = 300_000
    metrics_num_samples: int = 2
    metrics_sample_window_ms: int = 30_000

    def check_idempotence(self, acks: int, retries: int, max_in_flight: int) -> bool:
        """Return whether appends are idempotent (source: ``postProcessAndValidateIdempotenceConfigs``).

        Args:
            acks: -1, 0 or 1.
            retries: of ``retries``.
            max_in_flight: of ``max.in.flight.requests.per.connection``.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: what was asked for contradicts it.
        """
        if self.transactional_id == "":
            raise _conflict("transactional.id is empty. Name the program, or leave the setting out.")
        if self.transactional_id is not None and self.enable_idempotence is False:
            raise _conflict("a transactional.id needs idempotence. Leave enable.idempotence out.")
        is_asked = bool(self.enable_idempotence) or self.transactional_id is not None
        if acks != -1:
            if is_asked:
                raise _conflict("idempotence and transactions need acks=all. Set acks to all.")
            return False
        if retries == 0:
            if is_asked:
                raise _conflict("idempotence and transactions need retries. Set retries to more than 0.")
            return False
        if max_in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
            if is_asked:
                raise _conflict(
                    "idempotence needs max.in.flight.requests.per.connection of at most "
                    f"{IDEMPOTENT_IN_FLIGHT_MAX}. Lower it."
                )
            return False
        return self.enable_idempotence is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHooks:
    """Classes of the user that a write task makes: names only, carried from the driver."""

    interceptor_classes: str = ""
    key_serializer: str = "bytes"
    value_serializer: str = "bytes"


def _conflict(message: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.REPLOG_CONFLICTING_OPTIONS, message)


_DEFAULTS = {field.name: field.default for field in fields(ClientConfig)}


def _key(name: str, field: str, kafka_default: str | None, unit: str, doc: str, **bounds: Any) -> ConfigKey:
    return ConfigKey(name, "client", _DEFAULTS[field], kafka_default, unit, doc, field=field, **bounds)


CLIENT_KEYS = (
    _key("client.id", "client_id", "", "text", "A name in the log's appends. Empty means producer-1, producer-2 ..."),
    _key(
        "principal",
        "principal",
        None,
        "text",
        "Who writes; advisory. Not set means REPLOG_PRINCIPAL, else User: and the operating system's name.",
    ),
    _key(
        "key.serializer",
        "key_serializer",
        "required",
        "text",
        "bytes, string, int (4 bytes, big-endian), long, double, json, or a class of yours as module.Class.",
    ),
    _key("value.serializer", "value_serializer", "required", "text", "As key.serializer, for values."),
    _key(
        "interceptor.classes",
        "interceptor_classes",
        "",
        "text",
        "Classes of yours, comma separated, in order: on_send, on_send_batch, on_acknowledgement, close.",
    ),
    _key(
        "enable.idempotence",
        "enable_idempotence",
        "true",
        "bool",
        "Whether a repeated append is found by its sequence. Not set means true with acks=all, retries above 0 and "
        "at most 5 requests in flight, else false; true refuses the others.",
    ),
    _key(
        "transactional.id",
        "transactional_id",
        "null",
        "text",
        "A name for the program that outlives its process: a newer one with it fences the older. Needed for "
        "transactions.",
    ),
    _key(
        "transaction.timeout.ms",
        "transaction_timeout_ms",
        "60000",
        "ms",
        "A transaction open for longer is aborted instead of committed.",
        minimum=1,
        maximum=_INT32_MAX,
    ),
    _key(
        "partitioner.adaptive.partitioning.enable",
        "adaptive_partitioning",
        "true",
        "bool",
        "Records without a key go less often to partitions whose queues are long.",
    ),
    _key(
        "partitioner.availability.timeout.ms",
        "availability_timeout_ms",
        "0",
        "ms",
        "Records without a key leave out partitions whose objects waited to be put for longer; 0: never.",
    ),
    _key(
        "metadata.max.idle.ms",
        "metadata_max_idle_ms",
        "300000",
        "ms",
        "A topic not written to for longer is forgotten, and looked up again when it is.",
        minimum=5_000,
    ),
    _key(
        "metrics.num.samples",
        "metrics_num_samples",
        "2",
        "count",
        "Windows that a rate or an average looks back on.",
        minimum=1,
        maximum=1_000,
    ),
    _key("metrics.sample.window.ms", "metrics_sample_window_ms", "30000", "ms", "Length of one window.", minimum=1),
)

__all__ = [
    "CLIENT_KEYS",
    "IDEMPOTENT_IN_FLIGHT_MAX",
    "REFUSED_PRODUCER_PREFIXES",
    "REFUSED_PRODUCER_SETTINGS",
    "ClientConfig",
    "TaskHooks",
    "refusal_of",
]
