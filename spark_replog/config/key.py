"""What one key of the registry is, and how its name is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

KEY_PREFIX = "kafka."
"""Stripped from option names, so that a Kafka connector's options can be kept as they are."""
STORAGE_PREFIX = "storage."
"""Passed through to the file system of the store without this prefix."""

_INT64_MAX = 2**63 - 1

ConfigGroup = Literal["producer", "client", "consumer", "topic", "coordinator", "storage", "source", "sink", "cluster"]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key that a user can set.

    Attributes:
        name: as the user writes it: dotted Kafka names, or Spark's camelCase for source and sink.
        group: who reads it.
        default: what holds when it is not given, None where it is derived (the doc says from what).
        kafka_default: Kafka's own default as Kafka prints it, None where Kafka has no such key.
        unit: ``ms``, ``bytes``, ``count``, ``choice``, ``bool``, ``text``, ``json``.
        doc: what it does, one or two sentences.
        field: the attribute of the group's settings class, empty where Spark's side reads it.
        minimum: smallest allowed number.
        maximum: largest allowed number.
        choices: allowed words, mapped to their value.
    """

    name: str
    group: ConfigGroup
    default: object
    kafka_default: str | None
    unit: str
    doc: str
    field: str = ""
    minimum: int = 0
    maximum: int = _INT64_MAX
    choices: Mapping[str, object] | None = None


def normalise_key(name: str) -> str:
    """Return the option's name without the ``kafka.`` prefix."""
    return name[len(KEY_PREFIX) :] if name.lower().startswith(KEY_PREFIX) else name


def name_of_keyword(keyword: str) -> str:
    """Return the name of a setting that is given as a keyword: dots are underscores there.

    What follows ``storage_`` stays as it is: the names of file systems have underscores of their own.
    """
    prefix = STORAGE_PREFIX.replace(".", "_")
    if keyword.startswith(prefix):
        return STORAGE_PREFIX + keyword[len(prefix) :]
    return keyword.replace("_", ".")


__all__ = ["KEY_PREFIX", "STORAGE_PREFIX", "ConfigGroup", "ConfigKey", "name_of_keyword", "normalise_key"]
