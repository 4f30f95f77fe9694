"""The settings of a plain consumer, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_replog.client.consumer_record import RecordMaker, make_deserializer
from spark_replog.config import (
    ConsumerConfig,
    CoordinatorConfig,
    given_settings,
    keys_of,
    normalise_key,
    read_consumer_config,
    read_coordinator_config,
    storage_options,
)
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.write.serializers import load_class

_DESERIALIZERS = ("key.deserializer", "value.deserializer")


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """All settings of one consumer.

    Attributes:
        consumer: its own.
        maker: makes records, with the deserializers.
        interceptors: of ``interceptor.classes``, in order.
        storage: of the file systems.
        coordinator: None: the process's shared view of the store is used.
    """

    consumer: ConsumerConfig
    maker: RecordMaker
    interceptors: list[Any]
    storage: dict[str, str] = field(repr=False)
    coordinator: CoordinatorConfig | None

    @classmethod
    def read(cls, given: Mapping[str, object], group: str | None, keywords: Mapping[str, object]) -> ConsumerSettings:
        """Read dotted names and keywords; a keyword wins, and None means not set.

        Args:
            given: Kafka's dotted names, and ``storage.`` options.
            group: short for ``group.id``.
            keywords: the same settings with underscores for dots.

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
        own = {key.name for key in keys_of("coordinator")}
        coordinator = {name: value for name, value in options.items() if normalise_key(name) in own}
        return cls(
            config,
            RecordMaker(*(make_deserializer(name, hook) for name, hook in hooks.items())),
            [load_class("interceptor.classes", name) for name in names],
            storage_options(options),
            read_coordinator_config(coordinator) if coordinator else None,
        )
