"""Settings are read here: from the dotted names that a user gives to frozen values of ours."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from spark_replog.config.consumer import ConsumerConfig, refusal_of
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.key import STORAGE_PREFIX, ConfigGroup, ConfigKey, name_of_keyword, normalise_key
from spark_replog.config.producer import ProducerConfig
from spark_replog.config.registry import keys_of
from spark_replog.config.topic import TopicConfig
from spark_replog.errors import ErrorCode, InvalidConfigError

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


def read_producer_config(options: Mapping[str, object]) -> ProducerConfig:
    """Read the producer's keys of a client mapping; a coordinator's keys may stand beside them.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION or REPLOG_INVALID_OPTION.
    """
    return ProducerConfig(**read_group("producer", options, beside=("coordinator", "storage")))


def read_coordinator_config(options: Mapping[str, object]) -> CoordinatorConfig:
    """Read the coordinator's keys of a client mapping; a producer's keys may stand beside them.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION or REPLOG_INVALID_OPTION.
    """
    return CoordinatorConfig(**read_group("coordinator", options, beside=("producer", "storage")))


def read_consumer_config(options: Mapping[str, object]) -> ConsumerConfig:
    """Read the consumer's keys; the coordinator's and storage options may stand beside them.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION (with the reason where Kafka has the name) or
            REPLOG_INVALID_OPTION.
    """
    for given in options:
        reason = refusal_of(normalise_key(given))
        if reason is not None:
            raise InvalidConfigError(ErrorCode.REPLOG_UNKNOWN_OPTION, f"option '{given}' has no meaning here. {reason}")
    return ConsumerConfig(**read_group("consumer", options, beside=("coordinator", "storage")))


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


def read_topic_config(config: Mapping[str, object]) -> TopicConfig:
    """Read a topic's keys; nothing else may stand beside them.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION or INVALID_CONFIG.
    """
    return TopicConfig(**read_group("topic", config, code=ErrorCode.INVALID_CONFIG))


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
    remedy = f"Did you mean '{by_lower[near[0]]}'?" if near else "'replog explain --settings' lists all settings."
    return InvalidConfigError(code, f"unknown option '{name}'. {remedy}")


def storage_options(options: Mapping[str, object]) -> dict[str, str]:
    """Return what goes to the file system: the ``storage.`` options without that prefix (and ``kafka.``)."""
    given = {normalise_key(name): value for name, value in options.items()}
    return storage_texts(
        {name[len(STORAGE_PREFIX) :]: value for name, value in given.items() if name.startswith(STORAGE_PREFIX)}
    )


def storage_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file system's options as plans carry them: nested ones as JSON text, the others as they are."""
    return {
        name: json.dumps(value) if isinstance(value, Mapping | list | tuple) else value
        for name, value in options.items()
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


__all__ = [
    "read_consumer_config",
    "read_coordinator_config",
    "parse_value",
    "read_producer_config",
    "read_group",
    "storage_options",
    "storage_texts",
    "read_topic_config",
    "unknown_option_error",
]
