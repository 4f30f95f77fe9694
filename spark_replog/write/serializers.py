"""Serializes keys and values: one by one for ``send``, whole columns for Arrow.

Source: Kafka's ``Serializer`` and ``org.apache.kafka.common.serialization``. A serializer has
``serialize(topic, value) -> bytes | None`` and, for Arrow paths, ``serialize_array(topic, array) ->
binary array``. Arrow paths refuse a class that has only the first.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError


class Serializer(Protocol):
    """Converts the objects of one side (key or value) to bytes. Any thread may call it."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the bytes; None for a record without a key, or a tombstone."""
        ...


class BytesSerializer:
    """``bytes``, ``bytearray`` and ``memoryview`` as they are."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the bytes."""
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        raise TypeError("bytes")

    def serialize_array(self, topic: str, array: pa.Array) -> pa.Array:
        """Return binary and string columns as they are."""
        if _is_bytes(array.type):
            return array
        raise TypeError("a binary or string column")


class StringSerializer:
    """``str`` as UTF-8."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the text's bytes."""
        if value is None:
            return None
        if not isinstance(value, str):
            raise TypeError("str")
        return value.encode()

    def serialize_array(self, topic: str, array: pa.Array) -> pa.Array:
        """Return a string column as it is: Arrow's strings are UTF-8."""
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            return array
        raise TypeError("a string column")


class NumberSerializer:
    """Numbers in big-endian bytes, as Kafka's Short, Integer, Long, Float and Double serializers write them.

    Args:
        code: of ``struct``: h, i, q, f or d.
        kind: Arrow's type of the same numbers.
    """

    def __init__(self, code: str, kind: pa.DataType, word: str) -> None:
        self._struct = struct.Struct(">" + code)
        self._kind = kind
        self._word = word

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return 2, 4 or 8 bytes."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(self._word)
        try:
            return self._struct.pack(value)
        except struct.error as error:
            raise TypeError(self._word) from error

    def serialize_array(self, topic: str, array: pa.Array) -> pa.Array:
        """Return a binary column; null stays null."""
        if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            raise TypeError(f"a column of {self._word}")
        numbers = array.cast(self._kind)
        width = self._struct.size
        native = np.asarray(numbers.fill_null(0))
        data = pa.py_buffer(native.astype(native.dtype.newbyteorder(">")).tobytes())
        offsets = pa.py_buffer(np.arange(0, width * (len(array) + 1), width, dtype=np.int32))
        validity = pa.py_buffer(np.packbits(np.asarray(numbers.is_valid()), bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), len(array), [validity, offsets, data])


class JsonSerializer:
    """Anything that ``json`` can write, in compact UTF-8."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return the JSON text."""
        if value is None:
            return None
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise TypeError("what JSON can hold") from error

    def serialize_array(self, topic: str, array: pa.Array) -> pa.Array:
        """Return one JSON text per row; row by row, since Arrow cannot write JSON."""
        return pa.array([self.serialize(topic, value) for value in array.to_pylist()], pa.binary())


def _int32() -> Serializer:
    return NumberSerializer("i", pa.int32(), "int of 32 bits")


_BUILT_IN: dict[str, Callable[[], Serializer]] = {
    "bytes": BytesSerializer,
    "string": StringSerializer,
    "json": JsonSerializer,
    "short": lambda: NumberSerializer("h", pa.int16(), "int of 16 bits"),
    "int": _int32,
    "integer": _int32,
    "long": lambda: NumberSerializer("q", pa.int64(), "int of 64 bits"),
    "float": lambda: NumberSerializer("f", pa.float32(), "float of 32 bits"),
    "double": lambda: NumberSerializer("d", pa.float64(), "float"),
}


_KAFKAS_PACKAGE = "org.apache.kafka.common.serialization."
_KAFKAS_WORDS = ("bytearray", "bytes", "string", "short", "integer", "long", "float", "double")


def built_in_name(given: str) -> str:
    """Return a name in lower case, and for a class of Kafka's, as ``...serialization.LongSerializer``, its built-in."""
    name = given.lower()
    word = given.removeprefix(_KAFKAS_PACKAGE).removesuffix("Serializer").removesuffix("Deserializer").lower()
    if given.startswith(_KAFKAS_PACKAGE) and word in _KAFKAS_WORDS:
        return "bytes" if word == "bytearray" else word
    return name


class _Function:
    """A plain function as serializer, as in other Python clients."""

    def __init__(self, function: Callable[[Any], bytes | None]) -> None:
        self._function = function

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return self._function(value)


def load_class(setting: str, path: str, names: Iterable[str] = ()) -> Any:
    """Return an instance of a user's class, created without arguments.

    Args:
        path: ``module.Class``.
        names: what is built in; the error lists them if the path has no dot.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    module_name, _, class_name = path.rpartition(".")
    if names and not module_name:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"{setting} '{path}' is not built in. Give {', '.join(names)}, or your class as module.Class.",
        )
    try:
        return getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"{setting} '{path}' cannot be imported or made: {error}. Give module.Class, importable on the workers.",
        ) from error


def make_object(setting: str, given: Any) -> Any:
    """Return the given object, an instance of the given class, or of the class that is named (``load_class``)."""
    if isinstance(given, str):
        return load_class(setting, given)
    if not isinstance(given, type):
        return given
    try:
        return given()
    except Exception as error:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"{setting} {given.__name__} cannot be made without arguments: {error}. Give an object instead.",
        ) from error


def make_serializer(setting: str, given: Any) -> Serializer:
    """Return the serializer that a setting names.

    Args:
        given: a built-in name or Kafka's class of it, ``module.Class``, a class, an object with ``serialize``, or a
            function.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    if isinstance(given, str):
        made = _BUILT_IN.get(built_in_name(given))
        given = made() if made is not None else load_class(setting, given, _BUILT_IN)
    else:
        given = make_object(setting, given)
    if hasattr(given, "serialize") or hasattr(given, "serialize_array"):
        serializer: Serializer = given
        return serializer
    if callable(given):
        return _Function(given)
    raise InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION,
        f"{setting} is {given!r}. Give {', '.join(_BUILT_IN)}, a class with serialize(topic, value), or a function.",
    )


def serialize(serializer: Serializer, side: str, topic: str, value: Any) -> bytes | None:
    """Return one value's bytes.

    Raises:
        InvalidConfigError: INVALID_RECORD, Kafka's SerializationException, with serializer and type.
    """
    try:
        data = serializer.serialize(topic, value)
    except ReplogError:
        raise
    except Exception as error:
        raise _refusal(serializer, side, topic, type(value).__name__, error) from error
    if data is not None and not isinstance(data, bytes):
        raise _refusal(serializer, side, topic, type(value).__name__, TypeError(f"bytes, not {type(data).__name__}"))
    return data


def _serialize_column(serializer: Serializer, side: str, topic: str, array: pa.Array) -> pa.Array:
    check_arrow_form(serializer, f"{side}.serializer", "serialize_array(topic, array)")
    try:
        data = serializer.serialize_array(topic, array)  # type: ignore[attr-defined]
    except ReplogError:
        raise
    except Exception as error:
        raise _refusal(serializer, side, topic, str(array.type), error) from error
    if not isinstance(data, pa.Array) or len(data) != len(array) or not _is_bytes(data.type):
        raise _refusal(serializer, side, topic, str(array.type), TypeError(f"a binary array of {len(array)} rows"))
    return data


def serialize_columns(
    batch: pa.RecordBatch, topic: str, key_serializer: Serializer, value_serializer: Serializer
) -> pa.RecordBatch:
    """Return the batch with key and value serialized; a column with ``BytesSerializer`` is unchanged.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION, the class has no ``serialize_array``; INVALID_RECORD.
    """
    for name, serializer in (("key", key_serializer), ("value", value_serializer)):
        places = batch.schema.get_all_field_indices(name)
        if len(places) != 1 or type(serializer) is BytesSerializer:
            continue  # InputColumns refuses other types, with the sink's error text
        column = _serialize_column(serializer, name, topic, batch.column(places[0]))
        batch = batch.set_column(places[0], name, column)
    return batch


def check_arrow_form(given: object, setting: str, method: str) -> None:
    """Refuse a class that only works record by record.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION, naming the missing method.
    """
    if callable(getattr(given, method.partition("(")[0], None)):
        return
    raise InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION,
        f"{setting} {type(given).__name__} has no method {method}, which Arrow batches need. Add it, or send record by "
        "record.",
    )


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind)
    )


def _refusal(serializer: object, side: str, topic: str, kind: str, error: Exception) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.INVALID_RECORD,
        f"The {side} serializer {type(serializer).__name__} does not take {kind} (wanted: {error}). Nothing was sent. "
        f"Change the type, or set {side}.serializer.",
        topic=topic,
    )
