"""The registry of all settings, and the functions that read options into settings classes.

A plain ``Producer`` or ``Consumer`` refuses a setting of Kafka's clients that has no use here, with the reason. Spark's
source and sink accept it with the ``kafka.`` prefix and log it once, so a job that changes only its format keeps its
options.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

from spark_replog.config.consumer import CONSUMER_KEYS, ConsumerConfig
from spark_replog.config.coordinator import COORDINATOR_KEYS, CoordinatorConfig
from spark_replog.config.gateway import GATEWAY_KEYS
from spark_replog.config.key import KEY_PREFIX, STORAGE_PREFIX, ConfigGroup, ConfigKey, name_of_keyword, normalise_key
from spark_replog.config.producer import CLIENT_KEYS, PRODUCER_KEYS, ProducerConfig
from spark_replog.config.spark import SINK_KEYS, SOURCE_KEYS
from spark_replog.config.store import CLUSTER_KEYS, STORAGE_KEYS, TOPIC_KEYS, TopicConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, conflicting_options, invalid_option

T = TypeVar("T")
KafkaClient = Literal["producer", "consumer"]
_BOTH: Final = ("producer", "consumer")
_PRODUCER: Final = ("producer",)
_CONSUMER: Final = ("consumer",)
CONFIG_KEYS: tuple[ConfigKey, ...] = (
    *PRODUCER_KEYS,
    *CLIENT_KEYS,
    *CONSUMER_KEYS,
    *COORDINATOR_KEYS,
    *GATEWAY_KEYS,
    *TOPIC_KEYS,
    *STORAGE_KEYS,
    *SOURCE_KEYS,
    *SINK_KEYS,
    *CLUSTER_KEYS,
)
"""Every key that a user can set, in the order of the documents."""
_GROUPS_OF: Mapping[KafkaClient, tuple[ConfigGroup, ...]] = {
    "producer": ("producer", "client"),
    "consumer": ("consumer",),
}
_IN_ANOTHER_GROUP = frozenset({"metadata.max.age.ms"})
"""Of both Kafka clients; read by the coordinator's group."""


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
    unused_setting = UNUSED_KAFKA_SETTINGS.get(name) or next(
        (unused for prefix, unused in UNUSED_KAFKA_PREFIXES.items() if name.startswith(prefix)), None
    )
    return unused_setting.reason if unused_setting is not None and client in unused_setting.clients else None


def keys_of(*groups: ConfigGroup) -> tuple[ConfigKey, ...]:
    """Return the registry's keys of these groups, in its order."""
    return tuple(key for key in CONFIG_KEYS if key.group in groups)


def is_kafka_setting(name: str, client: KafkaClient) -> bool:
    """Return whether one of Kafka's clients has the setting, whether it is read here or not."""
    return (
        name in _IN_ANOTHER_GROUP
        or unused_reason(name, client) is not None
        or any(key.name == name and key.kafka_default is not None for key in keys_of(*_GROUPS_OF[client]))
    )


def without_prefix(options: Mapping[str, T]) -> dict[str, T]:
    """Return options by their names without ``kafka.``.

    Raises:
        InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: one is given with and without it, with two values. Kafka's
            client knows one of the names and Spark's connector the other, so neither tells which one is meant.
    """
    given: dict[str, T] = {}
    for name, value in options.items():
        plain = normalise_key(name)
        if given.setdefault(plain, value) != value:
            raise conflicting_options(
                f"'{plain}' is given twice, as '{KEY_PREFIX}{plain}' too, with two values. Give it once."
            )
    return given


def given_settings(
    config: Mapping[str, object], keywords: Mapping[str, object], *groups: ConfigGroup, keyword_wins: bool = False
) -> dict[str, object]:
    """Return what the user of a plain client gave, by dotted name. None means not set, however it is given.

    Args:
        config: dotted names as Kafka's clients have them, which heed case, with or without ``kafka.``.
        keywords: the same settings with ``_`` for ``.``; with `keyword_wins` they replace those of ``config``.
        groups: whose keys a keyword may name.

    Raises:
        InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: a setting is given twice. REPLOG_INVALID_OPTION: no mapping.
    """
    if not isinstance(config, Mapping):
        raise invalid_option(
            f"The settings are {config!r:.100}. Give a mapping of dotted names, such as {{'acks': 'all'}}, or keyword "
            "arguments."
        )
    dotted = {key.name.replace(".", "_"): key.name for key in keys_of(*groups)}
    given = without_prefix({name: value for name, value in config.items() if value is not None})
    for keyword, value in keywords.items():
        name = dotted.get(keyword) or name_of_keyword(keyword)
        if value is None:
            continue
        if name in given and not keyword_wins:
            raise conflicting_options(f"'{name}' is given twice, as '{keyword}' too. Give it once.")
        given[name] = value
    return given


def read_producer_config(options: Mapping[str, object]) -> ProducerConfig:
    """Read the producer's keys; those of the coordinator and storage options are left alone. Raises as `read_group`."""
    return ProducerConfig(**read_group("producer", options, beside=("coordinator", "storage")))


def read_coordinator_config(options: Mapping[str, object]) -> CoordinatorConfig:
    """Read the coordinator's keys; those of the producer and storage options are left alone. Raises as `read_group`."""
    return CoordinatorConfig(**read_group("coordinator", options, beside=("producer", "storage")))


def read_consumer_config(options: Mapping[str, object]) -> ConsumerConfig:
    """Read the consumer's keys; those of the coordinator and storage options are left alone. Raises as `read_group`.

    REPLOG_UNKNOWN_OPTION has the reason where Kafka has the name.
    """
    for given in options:
        reason = unused_reason(normalise_key(given), "consumer")
        if reason is not None:
            raise InvalidConfigError(ErrorCode.REPLOG_UNKNOWN_OPTION, f"option '{given}' has no meaning here. {reason}")
    return ConsumerConfig(**read_group("consumer", options, beside=("coordinator", "storage")))


def read_topic_config(config: Mapping[str, object]) -> TopicConfig:
    """Read a topic's keys as a user gives them. Raises REPLOG_UNKNOWN_OPTION for any other name, INVALID_CONFIG."""
    return TopicConfig(**read_group("topic", config, code=ErrorCode.INVALID_CONFIG))


@lru_cache(maxsize=1024)
def stored_topic_config(config: tuple[tuple[str, str], ...]) -> tuple[TopicConfig, tuple[str, ...]]:
    """Read a topic's settings as its ledger keeps them; a newer release may have set some.

    Cached, since every plan asks for the same ones.

    Returns:
        The settings, and the names of those that this release does not know or whose value it does not know. Their
        defaults apply.
    """
    keys = {key.name: key for key in keys_of("topic")}
    values, unknown = {}, []
    for name, text in config:
        try:
            values[keys[name].field] = keys[name].parse(text)
        except (KeyError, InvalidConfigError):
            unknown.append(name)
    return TopicConfig(**values), tuple(unknown)


def read_group(
    group: ConfigGroup,
    options: Mapping[str, object],
    *,
    beside: tuple[ConfigGroup, ...] = (),
    code: ErrorCode = ErrorCode.REPLOG_INVALID_OPTION,
) -> dict[str, Any]:
    """Return field -> value of one group's keys; keys of the groups ``beside`` it are left alone.

    Raises REPLOG_UNKNOWN_OPTION, or the code for a value.
    """
    keys = {key.name: key for key in keys_of(group)}
    others = {key.name for key in keys_of(*beside)}
    values: dict[str, Any] = {}
    for given, value in options.items():
        name = normalise_key(given)
        if name in keys:
            values[keys[name].field] = keys[name].parse(value, code=code)
        elif name not in others and not ("storage" in beside and name.startswith(STORAGE_PREFIX)):
            raise unknown_option_error(given, keys)
    return values


def unknown_option_error(
    name: str,
    candidates: Iterable[str],
    *,
    code: ErrorCode = ErrorCode.REPLOG_UNKNOWN_OPTION,
) -> InvalidConfigError:
    """Return the refusal of a name: in the words of Spark's connector if it refuses it, else with the nearest name."""
    plain = name.lower().removeprefix(KEY_PREFIX)
    if plain in _REPLACED:
        return InvalidConfigError(code, f"kafka option '{plain}' is not supported. {_REPLACED[plain]}")
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(normalise_key(name).lower(), by_lower, n=1, cutoff=0.6)
    remedy = f"Did you mean '{by_lower[near[0]]}'?" if near else "'replog explain --settings' lists all settings."
    return InvalidConfigError(code, f"unknown option '{name}'. {remedy}")


def storage_options(options: Mapping[str, object]) -> dict[str, str]:
    """Return the options of the file system: those that start with ``storage.``, without that prefix."""
    given = {normalise_key(name): value for name, value in options.items()}
    return storage_texts(
        {name[len(STORAGE_PREFIX) :]: value for name, value in given.items() if name.startswith(STORAGE_PREFIX)}
    )


def storage_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file system's options as plans carry them: nested values as JSON text, the others unchanged."""
    return {
        name: json.dumps(value) if isinstance(value, Mapping | list | tuple) else value
        for name, value in options.items()
    }
