"""The settings of plain producers and consumers, read once from dotted names in a mapping or from keywords."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_replog.client.consumer_record import RecordMaker, make_deserializer
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.key import ConfigGroup, normalise_key
from spark_replog.config.producer import ClientConfig, ProducerConfig
from spark_replog.config.registry import (
    given_settings,
    keys_of,
    read_consumer_config,
    read_coordinator_config,
    read_group,
    storage_options,
    unknown_option_error,
    unused_reason,
)
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.write.serializers import load_class

logger = logging.getLogger(__name__)

LINGER_MS = 5
"""Kafka's default; a Spark task has none."""
_GROUPS: tuple[ConfigGroup, ...] = ("producer", "client", "coordinator")
_OBJECT_KEYS = frozenset({"key.serializer", "value.serializer", "partitioner.class", "interceptor.classes"})
"""These may be given as objects instead of names."""
_DESERIALIZERS = ("key.deserializer", "value.deserializer")


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of one producer.

    Attributes:
        producer: shared with the Spark sink; ``linger_ms`` is never None.
        objects: dotted name -> object given in place of a class's name.
        is_idempotent: whether appends are recognised by their sequences.
        sends_awaited: whether a batch that a caller waits for may skip ``linger.ms``, because no linger was set.
    """

    producer: ProducerConfig
    client: ClientConfig
    coordinator: CoordinatorConfig
    storage: Mapping[str, str] = field(repr=False)
    objects: Mapping[str, Any]
    is_idempotent: bool
    sends_awaited: bool

    @classmethod
    def read(cls, config: Mapping[str, object] | None = None, **keywords: object) -> ProducerSettings:
        """Read the settings; a keyword is a dotted name with ``_`` for ``.``.

        Raises:
            InvalidConfigError: REPLOG_UNKNOWN_OPTION for an unknown name, or for one without meaning
                here, with the reason; REPLOG_INVALID_OPTION; REPLOG_CONFLICTING_OPTIONS.
        """
        given = given_settings(config or {}, keywords, *_GROUPS)
        objects = {name: value for name, value in given.items() if name in _OBJECT_KEYS and not isinstance(value, str)}
        plain = {name: value for name, value in given.items() if name not in objects}
        _check_names(given)
        client = ClientConfig(**read_group("client", plain, beside=("producer", "coordinator", "storage")))
        producer = _producer(plain)
        return cls(
            producer=producer,
            client=client,
            coordinator=CoordinatorConfig(**read_group("coordinator", plain, beside=("producer", "client", "storage"))),
            storage=storage_options(plain),
            objects=objects,
            is_idempotent=client.check_idempotence(producer.acks, producer.retries, producer.max_in_flight),
            sends_awaited="linger.ms" not in plain,
        )


def _check_names(given: Mapping[str, object]) -> None:
    option_names = {key.name for key in keys_of(*_GROUPS)}
    for name in given:
        why = unused_reason(name, "producer")
        if why is not None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_UNKNOWN_OPTION, f"The producer setting '{name}' has no meaning here. {why}"
            )
        if name not in option_names and not name.startswith("storage."):
            raise unknown_option_error(name, option_names)


def _producer(plain: Mapping[str, object]) -> ProducerConfig:
    """Return the shared settings; raise delivery.timeout.ms if it is too short and not set."""
    values: dict[str, Any] = {"linger_ms": LINGER_MS}
    values |= read_group("producer", plain, beside=("client", "coordinator", "storage"))
    least_ms = values["linger_ms"] + values.get("request_timeout_ms", ProducerConfig().request_timeout_ms)
    if "delivery_timeout_ms" not in values and least_ms > ProducerConfig().delivery_timeout_ms:
        logger.warning(
            "delivery.timeout.ms is raised to %d, as it should be at least linger.ms + request.timeout.ms.", least_ms
        )
        values["delivery_timeout_ms"] = least_ms
    return ProducerConfig(**values)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """All settings of one consumer.

    Attributes:
        maker: makes records, with the deserializers.
        coordinator: None: the process's shared view of the store is used.
    """

    consumer: ConsumerConfig
    maker: RecordMaker
    interceptors: list[Any]
    storage: dict[str, str] = field(repr=False)
    coordinator: CoordinatorConfig | None

    @classmethod
    def read(cls, given: Mapping[str, object], group: str | None, keywords: Mapping[str, object]) -> ConsumerSettings:
        """Read dotted names and keywords; a keyword overrides, and None means not set.

        Raises:
            InvalidConfigError: REPLOG_UNKNOWN_OPTION, REPLOG_INVALID_OPTION, REPLOG_CONFLICTING_OPTIONS.
        """
        options = given_settings(given, keywords, "consumer", "coordinator", keyword_wins=True)
        if group is not None:
            options["group.id"] = group
        hooks = {name: options.pop(name, None) for name in _DESERIALIZERS}
        options |= {name: hook for name, hook in hooks.items() if isinstance(hook, str)}
        config = read_consumer_config(options)
        is_asked = "enable.auto.commit" in {normalise_key(name) for name in options}
        if is_asked and config.enable_auto_commit and config.group_id is None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_CONFLICTING_OPTIONS,
                "enable.auto.commit needs a group.id to commit for. Set group.id, or remove enable.auto.commit.",
            )
        names = [name for name in (config.interceptor_classes or "").split(",") if name.strip()]
        coordinator_names = {key.name for key in keys_of("coordinator")}
        coordinator = {name: value for name, value in options.items() if normalise_key(name) in coordinator_names}
        return cls(
            config,
            RecordMaker(*(make_deserializer(name, hook) for name, hook in hooks.items())),
            [load_class("interceptor.classes", name) for name in names],
            storage_options(options),
            read_coordinator_config(coordinator) if coordinator else None,
        )
