"""The registry of all settings, and the functions that read options into settings classes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from spark_replog.config.consumer import CONSUMER_KEYS, ConsumerConfig
from spark_replog.config.coordinator import COORDINATOR_KEYS, CoordinatorConfig
from spark_replog.config.kafka_names import KafkaClient, connector_refusal, unused_reason
from spark_replog.config.key import STORAGE_PREFIX, ConfigGroup, ConfigKey, name_of_keyword, normalise_key
from spark_replog.config.producer import CLIENT_KEYS, PRODUCER_KEYS, ProducerConfig
from spark_replog.config.spark import SINK_KEYS, SOURCE_KEYS
from spark_replog.config.store import CLUSTER_KEYS, STORAGE_KEYS, TOPIC_KEYS, TopicConfig
from spark_replog.errors import ErrorCode, InvalidConfigError

CONFIG_KEYS: tuple[ConfigKey, ...] = (
    *PRODUCER_KEYS,
    *CLIENT_KEYS,
    *CONSUMER_KEYS,
    *COORDINATOR_KEYS,
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


def given_settings(
    config: Mapping[str, object], keywords: Mapping[str, object], *groups: ConfigGroup, keyword_wins: bool = False
) -> dict[str, object]:
    """Return what the user of a plain client gave, by dotted name. None means not set, however it is given.

    Args:
        config: dotted names, in any case and with or without ``kafka.``.
        keywords: the same settings with ``_`` for ``.``.
        groups: whose keys a keyword may name.
        keyword_wins: a keyword replaces the same setting of ``config``; otherwise both together are refused.

    Raises:
        InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: a setting is given twice.
    """
    dotted = {key.name.replace(".", "_"): key.name for key in keys_of(*groups)}
    given = {normalise_key(name): value for name, value in config.items() if value is not None}
    for keyword, value in keywords.items():
        name = dotted.get(keyword) or name_of_keyword(keyword)
        if value is None:
            continue
        if name in given and not keyword_wins:
            raise InvalidConfigError(
                ErrorCode.REPLOG_CONFLICTING_OPTIONS, f"'{name}' is given twice, as '{keyword}' too. Give it once."
            )
        given[name] = value
    return given


def read_producer_config(options: Mapping[str, object]) -> ProducerConfig:
    """Read the producer's keys; keys of the coordinator and storage options are left alone.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION or REPLOG_INVALID_OPTION.
    """
    return ProducerConfig(**read_group("producer", options, beside=("coordinator", "storage")))


def read_coordinator_config(options: Mapping[str, object]) -> CoordinatorConfig:
    """Read the coordinator's keys; keys of the producer and storage options are left alone.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION or REPLOG_INVALID_OPTION.
    """
    return CoordinatorConfig(**read_group("coordinator", options, beside=("producer", "storage")))


def read_consumer_config(options: Mapping[str, object]) -> ConsumerConfig:
    """Read the consumer's keys; keys of the coordinator and storage options are left alone.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION (with the reason where Kafka has the name) or
            REPLOG_INVALID_OPTION.
    """
    for given in options:
        reason = unused_reason(normalise_key(given), "consumer")
        if reason is not None:
            raise InvalidConfigError(ErrorCode.REPLOG_UNKNOWN_OPTION, f"option '{given}' has no meaning here. {reason}")
    return ConsumerConfig(**read_group("consumer", options, beside=("coordinator", "storage")))


def read_topic_config(config: Mapping[str, object]) -> TopicConfig:
    """Read a topic's keys as a user gives them; any other name is refused.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION or INVALID_CONFIG.
    """
    return TopicConfig(**read_group("topic", config, code=ErrorCode.INVALID_CONFIG))


@lru_cache(maxsize=1024)
def stored_topic_config(config: tuple[tuple[str, str], ...]) -> tuple[TopicConfig, tuple[str, ...]]:
    """Read a topic's settings as its ledger keeps them; a newer release may have set some.

    Args:
        config: the items of the map that the ledger keeps: every plan asks for the same ones.

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
    """Return field -> value of one group's keys; keys of the groups ``beside`` it are left alone."""
    own = {key.name: key for key in keys_of(group)}
    others = {key.name for key in keys_of(*beside)}
    values: dict[str, Any] = {}
    for given, value in options.items():
        name = normalise_key(given)
        if name in own:
            values[own[name].field] = own[name].parse(value, code=code)
        elif name not in others and not ("storage" in beside and name.startswith(STORAGE_PREFIX)):
            raise unknown_option_error(given, own)
    return values


def unknown_option_error(
    name: str,
    known: Iterable[str],
    *,
    code: ErrorCode = ErrorCode.REPLOG_UNKNOWN_OPTION,
) -> InvalidConfigError:
    """Return the refusal of a name: in the words of Spark's connector if it refuses it, else with the nearest name."""
    refusal = connector_refusal(name, code)
    if refusal is not None:
        return refusal
    by_lower = {candidate.lower(): candidate for candidate in known}
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
