"""Files of records and rows: their formats, how they are opened, and their lines, values and batches."""

from __future__ import annotations

import base64
import codecs
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from spark_replog.errors import ErrorCode, InvalidConfigError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("lines", "jsonl", "json", "csv", "parquet", "arrow")
LOG_PREFIX = "_replog_"
"""Of the columns for time, headers and partition beside those of a typed topic."""
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_NOT_LINES = frozenset(
    {".zip", ".tgz", ".tar", ".xz", ".7z", ".br", ".snappy", ".sz", ".avro", ".orc", ".xls", ".xlsx", ".db", ".pkl"}
)
"""Suffixes of files whose lines mean nothing."""
READ_BYTES = 1 << 20
RECORD_FIELDS = frozenset({"key", "value", "headers", "timestamp"})
"""Fields in each line of ``replog consume -f jsonl``, besides ``POSITION_FIELDS``."""
POSITION_FIELDS = frozenset({"topic", "partition", "offset"})
_NEXT_ELEMENT = re.compile(r"[\s,]*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bad_input(text: str, **context: object) -> InvalidConfigError:
    """Return REPLOG_INPUT."""
    return InvalidConfigError(ErrorCode.REPLOG_INPUT, text, **context)


@contextmanager
def opened(name: str, kind: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressed, or standard input for ``-``. Raises REPLOG_INPUT."""
    if name != "-":
        compression = _COMPRESSIONS.get(Path(name).suffix.lower())
        if compression is not None and kind in ("parquet", "arrow"):
            raise bad_input(f"{name} is compressed, and {kind} needs a plain file. Decompress it first.")
        try:
            stream = open(name, "rb")  # noqa: SIM115
        except OSError as error:
            raise bad_input(f"Cannot open {name}: {error.strerror}. Correct the path.") from error
        with stream:
            if compression is None and (kind in ("lines", "jsonl", "json") or not os.path.isfile(name)):
                yield stream
                return
            import pyarrow as pa

            if compression is not None:
                with pa.CompressedInputStream(stream, compression) as plain:
                    yield plain
                return
            # Arrow's threads read ahead, and must not use a Python file object at interpreter exit.
            with pa.OSFile(name) as native:
                yield native
        return
    if kind == "parquet":
        raise click.UsageError("Parquet cannot be read from a pipe: give a file name")
    if sys.stdin is None:
        raise bad_input("Standard input is closed. Give a file name, or pipe records in.")
    yield sys.stdin.buffer


def format_of(path: str) -> str:
    """Return the format of a file by its suffix, before that of a compression, else ``lines``; refuse binary ones."""
    *before, last = ["", *(suffix.lower() for suffix in Path(path).suffixes)]
    if last in _NOT_LINES:
        raise bad_input(
            f"Cannot read {path}: {last} is none of {', '.join(sorted({*_SUFFIXES, *_COMPRESSIONS}))}. Convert the "
            "file, or append its lines as they are with --input lines."
        )
    return _SUFFIXES.get(before[-1] if last in _COMPRESSIONS else last, "lines")


def chunks(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of lines without line ends; a pipe's lines are yielded without waiting for more."""
    read = getattr(stream, "read1", stream.read)
    rest: list[bytes] = []  # parts of an incomplete line, joined once
    while True:
        data = read(READ_BYTES)
        if not data:
            break
        first, *others = data.split(b"\n")
        rest.append(first)
        if others:
            lines = [b"".join(rest), *others]
            rest = [lines.pop()]
            yield [line.removesuffix(b"\r") for line in lines]
    last = b"".join(rest)
    if last:
        yield [last.removesuffix(b"\r")]


def json_values(data: bytes) -> Iterator[list[bytes]]:
    """Yield the elements of an array as they are written, or one other value; else the lines of the text, of UTF-8."""
    text = data.removeprefix(codecs.BOM_UTF8).decode().strip()
    decoder = json.JSONDecoder(parse_constant=no_json)
    try:
        whole, end = decoder.raw_decode(text)
    except (ValueError, RecursionError):
        end = 0
    if not text or end != len(text):
        yield [line.removesuffix("\r").encode() for line in text.split("\n")]
        return
    if not isinstance(whole, list):
        yield [text.encode()]
        return
    at, values = 1, []
    for _ in whole:
        at = _NEXT_ELEMENT.match(text, at).end()  # type: ignore[union-attr]
        _, end = decoder.raw_decode(text, at)
        values.append(text[at:end].encode())
        at = end
    yield values


def decoded(text: object) -> bytes | None:
    """Return the bytes of a key or a value: text is UTF-8, other bytes are ``{"b64": ...}``."""
    if text is None:
        return None
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, dict) and list(text) == ["b64"] and isinstance(text["b64"], str):
        return base64.b64decode(text["b64"], validate=True)
    raise ValueError('not text, null or {"b64": TEXT}')


def header_name(text: object) -> str:
    """Return the name of a header in a line of ``replog consume``; raise ValueError if it is none."""
    if not isinstance(text, str):
        raise ValueError("a header's name is not text")
    return text


def microseconds(text: object) -> int:
    """Return an ISO 8601 time as microseconds since 1970; raise ValueError if it is none."""
    if not isinstance(text, str):
        raise ValueError("not an ISO 8601 time")
    if text.startswith("+"):  # after the year 9999, where Python's type ends
        import numpy as np

        return int(np.datetime64(text[1:].removesuffix("Z"), "us").astype(np.int64))
    moment = datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def no_json(word: str) -> None:
    """Refuse a constant that JSON lacks, such as NaN."""
    raise ValueError(f"{word} is not a JSON value")


class Joined(io.RawIOBase):
    """Bytes that were read ahead, then the rest of their stream."""

    def __init__(self, ahead: bytes, rest: IO[bytes]) -> None:
        self._ahead, self._rest = ahead, rest

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, of what was read ahead first."""
        chunk = self._ahead[: len(buffer)] if self._ahead else self._rest.read(len(buffer))
        self._ahead = self._ahead[len(chunk) :]
        buffer[: len(chunk)] = chunk
        return len(chunk)


def tables(stream: IO[bytes], kind: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a ``parquet`` or ``arrow`` file."""
    import pyarrow as pa

    if kind == "parquet":
        from pyarrow import parquet

        yield from parquet.ParquetFile(stream).iter_batches()
        return
    if stream.seekable():
        try:
            reader = pa.ipc.open_file(stream)
        except pa.ArrowInvalid:  # a stream in a file
            stream.seek(0)
        else:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
            return
    yield from pa.ipc.open_stream(stream)
