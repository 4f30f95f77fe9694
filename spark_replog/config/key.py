"""How a setting is declared, how its name is written, and how its value is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from spark_replog.errors import ErrorCode, InvalidConfigError

KEY_PREFIX = "kafka."
"""Removed from option names, so that options of a Kafka connector can be kept as they are."""
STORAGE_PREFIX = "storage."
"""Names after this prefix are passed to the file system of the store."""
REGISTRY_PREFIX = "registry."
"""Names after this prefix are passed to Confluent's client of a schema registry."""
SAME: Final = "(same)"
"""As Kafka's default in a declaration: it is the default here too."""
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

ConfigGroup = Literal[
    "producer", "client", "consumer", "topic", "coordinator", "gateway", "storage", "source", "sink", "cluster"
]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key that a user can set.

    Attributes:
        name: as the user writes it: dotted Kafka names, or Spark's camelCase for source and sink.
        default: the value when it is not given, None where it is derived (the doc says from what).
        kafka_default: Kafka's own default as Kafka prints it, None where Kafka has no such key.
        unit: ``ms``, ``bytes``, ``count``, ``ratio``, ``choice``, ``bool``, ``text``, ``json``.
        field: the attribute of the group's settings class, empty where Spark's side reads it.
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
    maximum: int = INT64_MAX
    choices: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if self.kafka_default == SAME:
            object.__setattr__(self, "kafka_default", self.default_text)

    @property
    def default_text(self) -> str:
        """Return the default as a user types it, empty where it is derived."""
        if self.default is None:
            return ""
        word = next((word for word, value in (self.choices or {}).items() if value == self.default), str(self.default))
        return word.lower() if isinstance(self.default, bool) else word

    def parse(self, value: object, *, code: ErrorCode = ErrorCode.REPLOG_INVALID_OPTION) -> Any:
        """Return the typed value from its text (or from the value itself). Raises the code, saying what is allowed."""
        text = str(value).strip()
        choices = {"true": True, "false": False} if self.unit == "bool" else self.choices
        if choices is not None:
            by_lower = {word.lower(): meaning for word, meaning in choices.items()}
            if text.lower() not in by_lower:
                allowed = ", ".join(choices)
                remedy = f"Use one of: {allowed}."
                if self.name == "compression.type":
                    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
                    remedy += (
                        " Arrow has no gzip and no snappy: zstd makes small objects like gzip, lz4 is fast like snappy."
                    )
                raise InvalidConfigError(code, f"Invalid value '{text}' for '{self.name}'. {remedy}")
            return by_lower[text.lower()]
        if self.unit == "ratio":
            try:
                ratio = float(text)
            except ValueError:
                ratio = -1.0
            if not 0 <= ratio <= 1:
                raise InvalidConfigError(code, f"Invalid value '{text}' for '{self.name}'. Use a number from 0 to 1.")
            return ratio
        if self.unit not in {"ms", "bytes", "count"}:
            return text
        try:
            number = int(text)
        except ValueError:
            raise InvalidConfigError(
                code, f"Invalid value '{text}' for '{self.name}'. Use an integer (unit: {self.unit})."
            ) from None
        if not self.minimum <= number <= self.maximum:
            raise InvalidConfigError(
                code, f"Invalid value {number} for '{self.name}'. Use a number from {self.minimum} to {self.maximum}."
            )
        return number


def setting(default: object, doc: str, *, kafka: str | None = None, **details: Any) -> Any:
    """Declare a field of a settings class. The declaration is the only place that states the setting.

    Args:
        default: of the field, as the program uses it.
        kafka: Kafka's default, ``SAME``, or None where Kafka has no such setting.
        details: ``name`` where it is not the field's name with dots, ``unit`` where the field's type and suffix do
            not tell, ``minimum``, ``maximum``, ``choices``.
    """
    return field(default=default, metadata={"doc": doc, "kafka_default": kafka, **details})


def words(*allowed: str) -> dict[str, str]:
    """Return choices that mean themselves."""
    return {word: word for word in allowed}


def declared_keys(group: ConfigGroup, settings: type) -> tuple[ConfigKey, ...]:
    """Return the keys that the fields of a settings class declare, in their order."""
    keys = []
    for settings_field in fields(settings):
        unit = {"ms": "ms", "bytes": "bytes"}.get(settings_field.name.rpartition("_")[2], "count")
        unit = {"bool": "bool", "str": "text"}.get(str(settings_field.type).removesuffix(" | None"), unit)
        details = {"name": settings_field.name.replace("_", "."), "unit": unit, **settings_field.metadata}
        details["unit"] = "choice" if "choices" in details else details["unit"]
        keys.append(ConfigKey(group=group, default=settings_field.default, field=settings_field.name, **details))
    return tuple(keys)


def normalise_key(name: str) -> str:
    """Return the option's name without the ``kafka.`` prefix."""
    return name[len(KEY_PREFIX) :] if name.lower().startswith(KEY_PREFIX) else name


def name_of_keyword(keyword: str) -> str:
    """Return the name of a setting that is given as a keyword argument: underscores stand for dots.

    The part after ``storage_`` is kept: options of file systems contain underscores.
    """
    prefix = STORAGE_PREFIX.replace(".", "_")
    if keyword.startswith(prefix):
        return STORAGE_PREFIX + keyword[len(prefix) :]
    return keyword.replace("_", ".")
