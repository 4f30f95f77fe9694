"""From the bytes of a key or a value to what an application works with.

Source of the words and their bytes: Kafka's ``StringDeserializer``, ``LongDeserializer`` and so on (big endian).
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from spark_replog.errors import ErrorCode, InvalidConfigError

Deserializer = Callable[[str, bytes], Any]
"""(topic, bytes) to a value; a null stays None and never gets here."""


def _number(form: str) -> Deserializer:
    unpack = struct.Struct(form).unpack
    return lambda _topic, data: unpack(data)[0]


_BY_NAME: Mapping[str, Deserializer] = {
    "string": lambda _topic, data: data.decode(),
    "json": lambda _topic, data: json.loads(data),
    "short": _number(">h"),
    "integer": _number(">i"),
    "long": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
}


def make_deserializer(setting: str, given: object) -> Deserializer | None:
    """Return the deserializer of a setting; None: bytes as they are.

    Args:
        setting: its name, for messages.
        given: None, a word of ours, ``module.Class``, a callable of bytes, or an object with
            ``deserialize(topic, data)``.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    if given is None or given == "bytes":
        return None
    if isinstance(given, str):
        if given in _BY_NAME:
            return _BY_NAME[given]
        given = load_class(setting, given)
    method = getattr(given, "deserialize", None)
    if callable(method):
        deserialize: Deserializer = method
        return deserialize
    if callable(given):
        function = given
        return lambda _topic, data: function(data)
    raise InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION,
        f"'{setting}' is {given!r}. Give {', '.join(['bytes', *_BY_NAME])}, module.Class, or a callable.",
    )


def load_class(setting: str, name: str) -> object:
    """Return an instance of ``module.Class``.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    module, _, attribute = name.strip().rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"'{setting}' names '{name}', which cannot be made: {error}. Give the module.Class of an importable class"
            " whose constructor takes nothing.",
        ) from error
