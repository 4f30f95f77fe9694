"""Decodes requests in time and memory that their size bounds, whatever bytes a client sends.

kafka-python compiles a decoder for each API and version. Those trust the bytes: a varint may go on for a megabyte, and
each set of tags copies the rest of the request. Here the same program is compiled with checks between its lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from kafka.protocol.api_key import ApiKey
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.schemas.fields.codegen import CodegenContext

ITEMS_MAX = 50_000
"""Items of all arrays of one request, such as topics and partitions. These take some tenths of a second to decode."""
ITEM_BYTES = 512
"""What an item takes in memory once it is decoded, about."""
TAGS_BYTES_MAX = 4096
"""What the tags of one item may take."""
_PACKAGES = ("producer", "consumer", "metadata", "admin", "sasl")
_SHIFT = re.compile(r"(_sh\d+) \+= 7")
_LOOP = re.compile(r"for _idx\d+ in range\((_n\d+)\):")
_REST = "_BytesIO(bytes(data[pos:]))"
_BYTES = re.compile(r"= bytes\((data\[pos:pos\+_ln\d+\])\)$")
_TAGS_END = re.compile(r"pos \+= (_bio\d+)\.tell\(\)")


class UndecodableError(ValueError):
    """The bytes are no request of this API and version."""


@cache
def request_classes() -> dict[int, Any]:
    """Return the class of each API's requests."""
    modules = [vars(import_module(f"kafka.protocol.{name}")) for name in _PACKAGES]
    values = [value for module in modules for name, value in module.items() if name.endswith("Request")]
    classes: list[Any] = [value for value in values if isinstance(value, type) and issubclass(value, ApiMessage)]
    return {int(value.API_KEY): value for value in classes}


def decode_request(key: int, version: int, data: memoryview) -> tuple[Any, int]:
    """Return a request's body, and the number of items of its arrays.

    Raises:
        UndecodableError: the bytes are no request of this API and version, or hold more than `ITEMS_MAX` items.
    """
    try:
        request, end, left = _decoder(key, version)(data, 0)
    except UndecodableError:
        raise
    except Exception as error:  # whatever the decoder meets in bytes that are no request
        raise UndecodableError(f"a request cannot be decoded: {error!r}") from error
    if end > len(data):
        raise UndecodableError("a request ends before its last field")
    return request, ITEMS_MAX - left


@cache
def _decoder(key: int, version: int) -> Callable[[memoryview, int], tuple[Any, int, int]]:
    request_class = request_classes()[key]
    flexible = request_class.flexible_version_q(version)
    struct = request_class._struct  # the library has no public way to its compiler
    lines = _CheckedLines()
    lines.keeps_views = key == ApiKey.Produce
    lines.globs |= {"undecodable": _undecodable}
    lines.lines += ["def _decode(data, pos):", f"    left = {ITEMS_MAX}"]
    kept, struct._data_class = struct._data_class, request_class[None]
    try:
        struct.emit_decode_from(lines, "obj", "    ", version=version, compact=flexible, tagged=flexible)
    finally:
        struct._data_class = kept
    lines.emit("    ", "return obj, pos, left")
    exec(compile(lines.source(), f"<decoder of API {key} v{version}>", "exec"), lines.globs)
    decoder: Callable[[memoryview, int], tuple[Any, int, int]] = lines.globs["_decode"]
    return decoder


def _undecodable(reason: str) -> None:
    raise UndecodableError(f"a request cannot be decoded: {reason}")


class _CheckedLines(CodegenContext):  # type: ignore[misc]
    """Takes the lines of a decoder, and puts checks between them.

    Attributes:
        keeps_views: bytes stay where they are, in the request's memory: a producer's may be many.
    """

    keeps_views = False

    def emit(self, indent: str, line: str) -> None:
        text = line.strip()
        inner = indent + line[: len(line) - len(line.lstrip())]
        if loop := _LOOP.fullmatch(text):
            count = loop[1]
            self._check(inner, f"{count} < -1 or {count} > len(data) - pos", "an array is longer than the request")
            super().emit(inner, f"left -= {count}")
            self._check(inner, "left < 0", f"it has more than {ITEMS_MAX} items")
        if _REST in line:
            line = line.replace(_REST, f"_BytesIO(bytes(data[pos:pos + {TAGS_BYTES_MAX}]))")
            super().emit(inner, "left -= 1")
            self._check(inner, "left < 0", f"it has more than {ITEMS_MAX} items")
        if self.keeps_views:
            line = _BYTES.sub(r"= \1", line)
        super().emit(indent, line)
        if tags := _TAGS_END.fullmatch(text):
            self._check(inner, f"{tags[1]}.tell() >= {TAGS_BYTES_MAX}", "its tags are too long")
        if shift := _SHIFT.fullmatch(text):
            self._check(inner, f"{shift[1]} > 28", "a number has too many bytes")

    def _check(self, indent: str, wrong: str, reason: str) -> None:
        super().emit(indent, f"if {wrong}: undecodable({reason!r})")
