"""The records that ``consume`` and ``tail`` read: which ones, until when, and their parts as text."""

from __future__ import annotations

import base64
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import on_signals
from spark_replog.cli.settings import flags
from spark_replog.errors import ErrorCode, ReplogError

if TYPE_CHECKING:
    from spark_replog.client.consumer import Consumer
    from spark_replog.client.consumer_record import ConsumerRecord
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.ids import TopicPartition
    from spark_replog.log.row_schema import RowSchema


partition_flag = click.option("-p", "--partition", "partitions", type=int, multiple=True,
                               help="Read only this partition. Repeatable.")  # fmt: skip

filter_flags = flags(
    click.option("--key", "keys", multiple=True, metavar="KEY",
                 help="Only records with this key; of typed rows the key columns' values, with commas. Repeatable."),
    click.option("--grep", metavar="REGEX", help="Only records in whose value Python's regular expression is."),
    click.option("--header", "headers", multiple=True, metavar="NAME[=VALUE]",
                 help="Only records with this header. Repeatable."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """A record must have one of the keys, match the pattern, and have each header; (name, None): any value."""

    keys: frozenset[bytes]
    pattern: re.Pattern[bytes] | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RecordFilter:
        """Return the filter of the flags."""
        try:
            pattern = None if given["grep"] is None else re.compile(os.fsencode(given["grep"]))
        except re.error as error:
            raise click.UsageError(f"--grep is not a regular expression: {error}") from None
        pairs = [header.partition("=") for header in given["headers"]]
        if any(not name for name, _, _ in pairs):
            raise click.UsageError("--header has no name: give NAME or NAME=VALUE")
        headers = tuple((name, os.fsencode(value) if equals else None) for name, equals, value in pairs)
        return cls(frozenset(map(os.fsencode, given["keys"])), pattern, headers)

    def of_topics(self, cluster: Cluster, topics: tuple[str, ...]) -> RecordFilter:
        """Return the filter with the keys that typed topics among these make of the keys' text."""
        if not self.keys:
            return self
        from spark_replog.log.rows_of_text import key_of_text

        keys: set[bytes] = set()
        for topic in topics:
            schema = schema_of(cluster, topic)
            if schema is None:
                keys |= self.keys
                continue
            for key in self.keys:
                try:
                    keys.add(key_of_text(os.fsdecode(key), schema))
                except ValueError as error:
                    text = f"--key '{os.fsdecode(key)}' cannot be a key of topic {topic}: {error}"
                    raise click.UsageError(text) from error
        return replace(self, keys=frozenset(keys))

    def __call__(self, record: ConsumerRecord) -> bool:
        """Return whether the record matches."""
        if self.keys and record.key not in self.keys:
            return False
        if self.pattern is not None:
            value = value_bytes(record)
            if value is None or self.pattern.search(value) is None:
                return False
        return all(
            any(name == header_name and value in (None, data) for header_name, data in record.headers)
            for name, value in self.headers
        )


def schema_of(cluster: Cluster, topic: str) -> RowSchema | None:
    """Return the columns of a topic; None: its rows are bytes."""
    return cluster.topic_state(cluster.lookup(topic))[1].schema


@contextmanager
def ended_by_signals(reader: Consumer) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and the first Ctrl-C set, so that a group member leaves instead of expiring.

    The command ends after a record that it has printed, so it commits exactly what it printed.
    """
    is_ending = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield is_ending
        return

    def end(number: int, _frame: object) -> None:
        is_ending.set()
        reader.wakeup()
        signal.signal(number, before[number])  # the second one ends the command at once

    with on_signals(end) as before:
        yield is_ending
    if is_ending.is_set():
        raise click.Abort


def records_of(
    reader: Consumer, stops: dict[TopicPartition, int], given: dict[str, Any], *, is_member: bool
) -> Iterator[ConsumerRecord]:
    """Yield records up to the stops, a wake-up, or without end; a member's partitions may change during this.

    The caller stops at ``--max-messages``.
    """
    from spark_replog.ids import TopicPartition

    is_filtered = any(given[name] for name in ("keys", "grep", "headers"))
    idle_ms, poll_max = 0, 500 if is_filtered else min(500, given["max_messages"] or 500)
    wait_ms = 500 if given["timeout_ms"] is None else max(1, min(500, given["timeout_ms"]))
    while True:
        is_joining = is_member and reader.group_metadata()[1] < 0
        if not given["follow"] and not is_joining:
            keys = reader.assignment()
            done = [key for key in keys if reader.position(key) >= stops.get(key, 0)]
            reader.pause(done)
            if len(done) == len(keys):
                return
        try:
            records = reader.poll(timeout_ms=wait_ms if given["follow"] or is_member else 0, max_records=poll_max)
        except ReplogError as error:
            if error.code is ErrorCode.REPLOG_WAKEUP:
                return
            raise
        for record in records:
            if given["follow"] or record.offset < stops.get(TopicPartition(record.topic, record.partition), 0):
                yield record
        idle_ms = 0 if records or is_joining else idle_ms + wait_ms
        if given["timeout_ms"] is not None and idle_ms >= given["timeout_ms"]:
            return


def record_item(record: ConsumerRecord) -> dict[str, Any]:
    """Return a record as JSON values, without loss."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": time_text(record.timestamp_us),
        "key": bytes_text(record.key),
        "headers": [[name, bytes_text(value)] for name, value in record.headers],
        "value": bytes_text(record.value) if isinstance(record.value, bytes | None) else _row_item(record.value),
    }


def _row_item(row: Mapping[str, Any]) -> Any:
    from spark_replog.log.json_rows import json_value

    return json_value(row)


def value_bytes(record: ConsumerRecord) -> bytes | None:
    """Return the value; a typed row as JSON."""
    if record.value is None or isinstance(record.value, bytes):
        return record.value
    from spark_replog.log.json_rows import row_json

    return row_json(record.value)


def bytes_text(data: bytes | None) -> Any:
    """Return UTF-8 as text, other bytes as ``{"b64": ...}``."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode()}


def time_text(timestamp_us: int) -> str:
    """Return ISO 8601 in UTC with milliseconds, or microseconds if the time has them."""
    fraction, unit = (timestamp_us % 1_000_000, "us") if timestamp_us % 1000 else (timestamp_us // 1000 % 1000, "ms")
    try:
        moment = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    except (ValueError, OverflowError):  # after the year 9999, the limit of Python's type but not of the log's
        import numpy as np

        return f"+{np.datetime64(timestamp_us, 'us').astype(f'datetime64[{unit}]')}Z"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:0{6 if unit == 'us' else 3}d}Z"
