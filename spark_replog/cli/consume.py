"""``replog consume`` and ``replog tail``: print the records of topics for a person or another program."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_groups, complete_topics
from spark_replog.cli.output import EXIT_OK, emit, json_text, note, on_signals, show
from spark_replog.cli.settings import ReplogCommand, Settings, current_settings, flags, parse_time_ms
from spark_replog.cli.tables import Table, is_terminal, quoted, shown
from spark_replog.errors import ErrorCode, ReplogError, unknown_partition
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log_position import (
    EARLIEST,
    LATEST,
    OFFSET_MAX,
    BeforeEnd,
    offset_between,
    other_meaning,
    parse_offset,
    parse_position,
)

if TYPE_CHECKING:
    from spark_replog.client.consumer import Consumer
    from spark_replog.client.consumer_record import ConsumerRecord
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.ids import TopicPartition
    from spark_replog.log.row_schema import RowSchema


_partition_flag = click.option("-p", "--partition", "partitions", type=int, multiple=True,
                               help="Read only this partition. Repeatable.")  # fmt: skip
_filter_flags = flags(
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
            schema = _schema_of(cluster, topic)
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


_COMMIT_INTERVAL_MS = 5_000
_PAGE_ROWS = 200
_CSV_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@click.command(
    "consume",
    cls=ReplogCommand,
    examples=[
        "consume orders -n 10",
        "consume orders -g billing --follow -f jsonl",
        "consume orders -o @2026-11-21T08:30:00 --output '%p %o %s\\n'",
        "consume orders --from @-2h --to @-1h --grep 'status.*failed' --print-key",
        "consume sales -o end-20 --columns id,amount --output table",
    ],
)
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--from-beginning", is_flag=True, help="Start at the log start offset; same as -o earliest.")
@click.option(
    "-o",
    "--offset",
    "--from",
    "offset",
    metavar="WHERE",
    help="Start at earliest, latest, N, end-N (N before the end), @TIME or @-1h. [earliest; latest with --follow]",
)
@click.option("--to", "until", metavar="WHERE", help="Stop before earliest, latest, N, end-N, @TIME or @-1h. [latest]")
@_partition_flag
@click.option("-n", "--max-messages", type=click.IntRange(min=1), help="Maximum number of records to print.")
@_filter_flags
@click.option("-g", "--group", help="Share the partitions with the group's other members; commit what was printed.",
              shell_complete=complete_groups)  # fmt: skip
@click.option("--follow", is_flag=True, help="Wait for new records instead of exiting at the end.")
@click.option("--timeout-ms", type=click.IntRange(min=0), help="With --follow: exit after this long without a record.")
@click.option("--output", metavar="HOW",
              help="values, raw (no newline), jsonl, csv, table, or a kcat pattern: '%t %p %o %T %k %s %h\\n'."
              " [values; table if typed rows go to a terminal]")  # fmt: skip
@click.option("--columns", metavar="COLUMN,...", help="Print only these columns of typed rows.")
@click.option("--print-key", is_flag=True, help="With values and table: print the key first.")
@click.option("--print-timestamp", is_flag=True, help="With values and table: print the timestamp.")
@click.option("--print-partition", is_flag=True, help="With values and table: print the partition.")
@click.option("--print-offset", is_flag=True, help="With values and table: print the offset.")
@click.option("--print-headers", is_flag=True, help="With values and table: print the headers.")
@click.option("--key-separator", default="\t", help="Separator of printed fields. [tab]")
def consume(topics: tuple[str, ...], **given: Any) -> int:
    """Print the records of topics.

    Exits at the current end of the log unless --follow is given. With --group the command joins the group: it
    starts at the committed offsets, shares the partitions, and commits what it printed.

    'consume -f jsonl' prints whole records, which 'produce -i jsonl' appends without loss. Typed rows are a table on a
    terminal, and elsewhere JSON, a line each.
    """
    settings = current_settings()
    settings.required_store()
    _check(given, settings)
    wanted = RecordFilter.of(given)
    from spark_replog.client.consumer import Consumer

    cluster = settings.open_cluster()
    is_member = given["group"] is not None and not given["partitions"]
    begins_late = is_member and given["follow"] and not given["from_beginning"]
    reader = Consumer(
        cluster,
        group=given["group"],
        enable_auto_commit=False,
        auto_offset_reset="latest" if begins_late else "earliest",
    )
    is_one_value = settings.format == "json"
    pages = _Pages(topics, given)
    printed = _Printed(reader, cluster.clock.monotonic_ms, pages.show, is_held=is_one_value)
    with reader, ended_by_signals(reader) as is_ending:
        keys = partitions_of(cluster, topics, given["partitions"])
        wanted = wanted.of_topics(cluster, topics)
        given |= _form_of_rows(cluster, topics, given)
        ends = reader.end_offsets(keys)
        stops = ends if given["until"] is None else offsets_at(reader, ends, "--to", given["until"])
        print_record = _printer(settings, given, pages)
        if is_member:
            on_revoked = printed.forget if is_one_value else printed.commit
            reader.subscribe(topics, on_revoked=on_revoked, on_lost=printed.forget)
        else:
            reader.assign(keys)
            _seek(reader, ends, given)
        try:
            count = 0
            for record in records_of(reader, stops, given, is_member=is_member):
                if wanted(record):
                    print_record(record)
                    count += 1
                if given["group"] is not None:  # a record that was filtered out counts as read too
                    printed.add(record)
                if is_ending.is_set() or count == given["max_messages"]:
                    break
        finally:  # however it ended, commit what was printed
            printed.commit()
        if is_one_value:  # also of a stopped run: commit only what was printed
            emit(given.get("items", []))
            printed.release()
    return EXIT_OK


def _check(given: dict[str, Any], settings: Settings) -> None:
    if given["timeout_ms"] is not None and not given["follow"]:
        raise click.UsageError("--timeout-ms goes with --follow")
    if given["from_beginning"] and parse_offset(given["offset"]) != EARLIEST and given["offset"] is not None:
        raise click.UsageError("--from-beginning and --offset exclude each other")
    if given["until"] is not None and given["follow"]:
        raise click.UsageError("--to and --follow exclude each other")
    if given["output"] == "table" and given["follow"]:
        raise click.UsageError("--output table and --follow exclude each other: a table needs its last row")
    check_places(given["offset"], given["until"])
    if given["group"] is not None and not given["partitions"] and (given["offset"] or given["until"]) is not None:
        raise click.UsageError(
            "a group member starts at the committed offsets: change them with 'replog group reset-offsets', or read"
            " partitions outside the group with -p"
        )
    if settings.format == "json" and given["follow"] and given["max_messages"] is None:
        raise click.UsageError("-f json prints one object at the end: use -f jsonl with --follow, or add -n")


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


class _Printed:
    """The next offset per partition, printed but not committed yet; if ``is_held``, nothing is before ``release``."""

    def __init__(
        self, reader: Consumer, monotonic_ms: Callable[[], int], show_page: Callable[[], None], *, is_held: bool
    ) -> None:
        self._reader = reader
        self._show_page = show_page
        self._is_held = is_held
        self._monotonic_ms = monotonic_ms
        self._next: dict[TopicPartition, int] = {}
        self._committed_ms = monotonic_ms()

    def add(self, record: ConsumerRecord) -> None:
        """Note a record; commit every few seconds."""
        from spark_replog.ids import TopicPartition

        self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if self._monotonic_ms() - self._committed_ms >= _COMMIT_INTERVAL_MS:
            self.commit()

    def commit(self, _keys: object = None) -> None:
        """Print what waits, then commit all; also called before partitions are revoked."""
        if self._is_held:
            return
        self._show_page()
        self._committed_ms = self._monotonic_ms()
        done, self._next = self._next, {}
        if done:
            self._reader.commit(done)

    def release(self) -> None:
        """Commit: everything is printed now."""
        self._is_held = False
        self.commit()

    def forget(self, _keys: object) -> None:
        """Drop all offsets, because the partitions were lost: their new owner prints uncommitted records again."""
        self._next = {}


class _Pages:
    """Rows for a person: tables of some rows each, with the columns of a typed topic, or with the value."""

    def __init__(self, topics: tuple[str, ...], given: Mapping[str, Any]) -> None:
        self._names = [*(["topic"] if len(topics) > 1 else []), *(name for name in _PRINTED if given[f"print_{name}"])]
        self._headings: list[str] = []
        self._rows: list[list[str]] = []

    def add(self, record: ConsumerRecord) -> None:
        """Add a row; shows the page if it is full, or if the row has other columns."""
        item = record_item(record)
        row = item["value"] if isinstance(record.value, dict) else {"VALUE": item["value"]}
        headings = [*(name.upper() for name in self._names), *map(quoted, row)]
        if headings != self._headings or len(self._rows) >= _PAGE_ROWS:
            self.show()
        self._headings = headings
        self._rows.append([_cell_text(value) for value in (*(item[name] for name in self._names), *row.values())])

    def show(self) -> None:
        """Show the rows that wait; they are dropped once they are printed."""
        if self._rows:
            show(shown(Table(self._headings, self._rows)))
            self._rows = []


def _cell_text(value: Any) -> str:
    """Return a value of JSON as in Spark's tables: text is not quoted, and a null is NULL."""
    if value is None:
        return "NULL"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _form_of_rows(cluster: Cluster, topics: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that depend on the topics: the names of the columns to print, and how records are printed."""
    columns = None if given["columns"] is None else [name.strip() for name in given["columns"].split(",")]
    may_be_table = given["output"] is None and not given["follow"] and is_terminal(sys.stdout)
    schemas = [_schema_of(cluster, topic) for topic in topics] if columns or may_be_table else []
    for topic, schema in zip(topics, schemas, strict=False):
        for name in columns or ():
            if schema is None or name not in schema.names:
                has = "has bytes, no columns" if schema is None else f"has the columns {', '.join(schema.names)}"
                raise click.UsageError(f"--columns names '{name}', and topic {topic} {has}")
    is_table = may_be_table and None not in schemas
    return {"columns": columns, "output": given["output"] or ("table" if is_table else "values")}


def _schema_of(cluster: Cluster, topic: str) -> RowSchema | None:
    return cluster.topic_state(cluster.lookup(topic))[1].schema


def partitions_of(cluster: Cluster, topics: tuple[str, ...], numbers: tuple[int, ...]) -> list[TopicPartition]:
    """Return the partitions of topics, or only those with these numbers. Raises if one is refused or not there."""
    from spark_replog.cluster.authorizer import Authorizer
    from spark_replog.ids import TopicPartition

    cluster.refresh_if_stale()
    # First, so that an error never reveals whether a topic exists.
    Authorizer(cluster).require(AclOperation.DESCRIBE, ResourceType.TOPIC, *topics)
    keys: list[TopicPartition] = []
    for name in dict.fromkeys(topics):
        count = len(cluster.topic_state(cluster.lookup(name))[1].partitions)
        if wrong := [number for number in numbers if not 0 <= number < count]:
            raise unknown_partition(name, wrong[0], count)
        keys += [TopicPartition(name, number) for number in numbers or range(count)]
    return keys


def offsets_at(reader: Consumer, ends: dict[TopicPartition, int], flag: str, where: str) -> dict[TopicPartition, int]:
    """Return the offsets of a position (``log_position.py``) or ``@TIME``, at most the end."""
    if where.startswith("@"):
        offsets = reader.offsets_for_times(dict.fromkeys(ends, _time_ms(where)))
        return {key: end if (at := offsets[key]) is None else min(at, end) for key, end in ends.items()}
    position, other = _position(where), other_meaning(where)
    if position is None:
        hint = f"For the last {other.removeprefix('end-')} rows of each partition: {other}. " if other else ""
        raise click.UsageError(
            f"{flag} is '{where}'. {hint}Give earliest, latest, N, end-N, @-1h30m or @2026-11-21T08:30:00 (UTC)."
        )
    if position == LATEST:
        return ends
    if isinstance(position, int) and position >= 0:
        return {key: min(position, end) for key, end in ends.items()}
    starts = reader.beginning_offsets(list(ends))
    return {key: offset_between(position, starts[key], end) for key, end in ends.items()}


def _position(where: str) -> int | BeforeEnd | None:
    """Return the position that a word is; an offset that no log can have is behind every end."""
    position = parse_position(where)
    return OFFSET_MAX if position is None and where.isascii() and where.isdecimal() else position


def _time_ms(where: str) -> int:
    """Return the time of ``@TIME``, 0 for one before 1970: no row is older."""
    return max(0, parse_time_ms(where[1:]))


def check_places(begin: str | None, until: str | None) -> None:
    """Refuse a range that ends before it begins, in every partition and whatever they hold.

    Also says what -1 and -2 are: kcat counts them from the end.
    """
    first, last = _place(begin), _place(until)
    if first is not None and last is not None and first[0] == last[0] and first[1] > last[1]:
        raise click.UsageError(f"--from {begin} is after --to {until}, so no record is in the range. Exchange the two.")
    for where in (begin, until):
        other, position = other_meaning(where), parse_offset(where)
        if other is not None and position is not None and not current_settings().quiet:
            word = "latest" if position == LATEST else "earliest"
            note(f"replog: {where} is {word}, as in Kafka's tools. For {-position} before the end: {other}")


def _place(where: str | None) -> tuple[str, int] | None:
    """Return what a place is counted from, and how far it is from there; None for the earliest and a wrong place."""
    if where is None or where.startswith("@"):
        return None if where is None else ("time", parse_time_ms(where[1:]))
    position = _position(where)
    if isinstance(position, BeforeEnd):
        return "end", -position.count
    if position is None or position == EARLIEST:
        return None
    return ("end", 0) if position == LATEST else ("offset", position)


def _seek(reader: Consumer, ends: dict[TopicPartition, int], given: dict[str, Any]) -> None:
    where = "earliest" if given["from_beginning"] else given["offset"]
    if where is None:
        if given["group"] is not None:
            return
        where = "latest" if given["follow"] else "earliest"
    seek_to(reader, ends, where)


def seek_to(reader: Consumer, ends: dict[TopicPartition, int], where: str) -> None:
    """Seek partitions to a position (``log_position.py``) or ``@TIME``; `ends` are their high watermarks."""
    position = _position(where)
    if position == EARLIEST:
        reader.seek_to_beginning(list(ends))
        return
    if where.startswith("@"):
        reader.seek_to_time(_time_ms(where), list(ends))
        return
    for key, offset in offsets_at(reader, ends, "--from", where).items():
        if isinstance(position, int) and position > offset:
            note(f"replog: {key.topic}-{key.partition} ends at {offset}, before {where}: starting at its end")
        reader.seek(key, offset)


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


def _printer(settings: Settings, given: dict[str, Any], pages: _Pages) -> Callable[[ConsumerRecord], None]:
    """Return what prints a record."""
    print_whole, columns = _whole_printer(settings, given, pages), given["columns"]
    if columns is None:
        return print_whole
    return lambda record: print_whole(replace(record, value={name: record.value[name] for name in columns}))


def _whole_printer(settings: Settings, given: dict[str, Any], pages: _Pages) -> Callable[[ConsumerRecord], None]:
    if settings.format == "json":
        items = given.setdefault("items", [])
        return lambda record: items.append({**record_item(record), "ok": True})
    output = "jsonl" if settings.format == "jsonl" else given["output"]
    if output == "jsonl":
        return lambda record: show(json_text(record_item(record)))
    if output == "table":
        return pages.add
    if output == "csv":
        _csv_line(_CSV_COLUMNS)
        return lambda record: _csv_line(_csv_row(record))
    if output == "values":
        return lambda record: show(_line(record, given), newline=False)
    if output == "raw":
        return lambda record: show(value_bytes(record) or b"", newline=False)
    if "%" not in output:
        raise click.UsageError(f"--output is '{output}'. Give values, raw, jsonl, csv, table, or a pattern with %s.")
    from spark_replog.client.consumer_record import ConsumerRecord

    _pattern(
        ConsumerRecord("", 0, 0, None, None, (), 0, ""), output
    )  # an invalid pattern fails before a record is read
    return lambda record: show(_pattern(record, output), newline=False)


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


def _header_text(record: ConsumerRecord, mark: bytes, null: bytes) -> bytes:
    return b",".join(name.encode() + mark + (null if value is None else value) for name, value in record.headers)


_PRINTED: Mapping[str, Callable[[Any], bytes]] = {
    "timestamp": lambda record: f"{record.timestamp_type}:{record.timestamp_ms}".encode(),
    "partition": lambda record: b"Partition:%d" % record.partition,
    "offset": lambda record: b"Offset:%d" % record.offset,
    "headers": lambda record: _header_text(record, b":", b"null") or b"NO_HEADERS",
    "key": lambda record: b"null" if record.key is None else record.key,
}


def _line(record: ConsumerRecord, given: dict[str, Any]) -> bytes:
    """Return the line of Kafka's console consumer."""
    parts = [text(record) for name, text in _PRINTED.items() if given[f"print_{name}"]]
    value = value_bytes(record)
    parts.append(b"null" if value is None else value)
    return os.fsencode(given["key_separator"]).join(parts) + b"\n"


def _pattern(record: ConsumerRecord, pattern: str) -> bytes:
    """Return a kcat pattern filled in."""
    value = value_bytes(record)
    words = {
        "t": record.topic.encode(),
        "p": b"%d" % record.partition,
        "o": b"%d" % record.offset,
        "T": b"%d" % record.timestamp_ms,
        "k": record.key or b"",
        "s": value or b"",
        "K": b"%d" % (-1 if record.key is None else len(record.key)),
        "S": b"%d" % (-1 if value is None else len(value)),
        "h": _header_text(record, b"=", b""),
        "%": b"%",
    }
    escapes = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
    made, at = bytearray(), 0
    while at < len(pattern):
        mark, word = pattern[at], pattern[at + 1 : at + 2]
        table = {"%": words, "\\": escapes}.get(mark)
        if table is None:
            made += os.fsencode(mark)
            at += 1
            continue
        if word not in table:
            raise click.UsageError(f"'{mark}{word}' is unknown. Known: {' '.join(mark + letter for letter in table)}")
        made += table[word]
        at += 2
    return bytes(made)


def _csv_row(record: ConsumerRecord) -> tuple[object, ...]:
    item = record_item(record)
    flat = [
        cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in (item["key"], item["value"])
    ]
    headers = json.dumps(item["headers"], ensure_ascii=False) if item["headers"] else ""
    return (record.topic, record.partition, record.offset, item["timestamp"], *flat, headers)


def _csv_line(cells: tuple[object, ...]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    show(line.getvalue().encode())  # UTF-8 as in the log, whatever stdout has


_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


@click.command(
    "tail",
    cls=ReplogCommand,
    examples=["tail orders payments", "tail orders --from @-10m --key customer-7", "tail orders -n 3 --no-follow"],
)
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-n", "--lines", type=click.IntRange(min=0), default=10, show_default=True,
              help="Start with this many of the newest rows of each partition.")  # fmt: skip
@click.option("--from", "begin", metavar="WHERE",
              help="Begin at earliest, latest, N, end-N, @TIME or @-1h instead of -n.")  # fmt: skip
@click.option("--to", "until", metavar="WHERE", help="With --no-follow: stop before latest, N, end-N, @TIME or @-1h.")
@_partition_flag
@_filter_flags
@click.option("--follow/--no-follow", default=True, help="Wait for new rows, or end at the current end. [--follow]")
@click.option("--color", "colour", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
              help="auto: on a terminal, unless NO_COLOR is set.")  # fmt: skip
def tail(topics: tuple[str, ...], **given: Any) -> int:
    """Follow topics: time, topic-partition, offset, key, headers and value of each record on its own line.

    Partitions that are added meanwhile are read from their first row. Control characters are escaped;
    'consume' prints bytes as they are, and -f jsonl prints whole records. Ctrl-C ends it.
    """
    settings = current_settings()
    settings.required_store()
    if settings.format == "json":
        raise click.UsageError("tail has no end to print one object at: use -f jsonl, or consume")
    if given["until"] is not None and given["follow"]:
        raise click.UsageError("--to goes with --no-follow")
    check_places(given["begin"], given["until"])
    wanted, print_record = RecordFilter.of(given), _line_printer(settings, topics, given["colour"])
    begin = f"end-{given['lines']}" if given["begin"] is None else given["begin"]
    from spark_replog.client.consumer import Consumer

    cluster = settings.open_cluster()
    reader = Consumer(cluster, enable_auto_commit=False, auto_offset_reset="earliest")
    with reader, ended_by_signals(reader) as is_ending:
        keys = partitions_of(cluster, topics, given["partitions"])
        wanted = wanted.of_topics(cluster, topics)
        ends = reader.end_offsets(keys)
        stops = dict(ends) if given["until"] is None else offsets_at(reader, ends, "--to", given["until"])

        def begin_at(partitions: list[TopicPartition]) -> None:
            """Seek the partitions that existed at the start; later ones begin at their first row."""
            first = {key: ends.pop(key) for key in partitions if key in ends}
            if first:
                seek_to(reader, first, begin)

        if given["follow"] and not given["partitions"]:
            reader.subscribe(topics, on_assigned=begin_at)
        else:
            reader.assign(keys)
            begin_at(keys)
        flags = {**given, "max_messages": None, "timeout_ms": None}
        for record in records_of(reader, stops, flags, is_member=False):
            if wanted(record):
                print_record(record)
            if is_ending.is_set():
                break
    return EXIT_OK


def _line_printer(settings: Settings, topics: tuple[str, ...], colour: str) -> Callable[[ConsumerRecord], None]:
    if settings.format == "jsonl":
        return lambda record: show(json_text(record_item(record)))
    has_colors = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")
    if colour == "never" or (colour == "auto" and not has_colors):
        return lambda record: show(_tail_line(record, "", ""))
    codes = {name: f"\x1b[{_COLOURS[at % len(_COLOURS)]}m" for at, name in enumerate(dict.fromkeys(topics))}
    # As bytes: Click would remove colours if stdout is not a terminal.
    return lambda record: show(_tail_line(record, codes[record.topic], "\x1b[0m").encode())


def _tail_line(record: ConsumerRecord, before: str, after: str) -> str:
    headers = " ".join(f"{quoted(name)}={_shown(value)}" for name, value in record.headers)
    where = f"{before}{quoted(record.topic)}-{record.partition} {record.offset}{after}"
    words = [time_text(record.timestamp_us), where, _shown(record.key), *([f"[{headers}]"] if headers else [])]
    return " ".join([*words, _shown(value_bytes(record))])


def _shown(data: bytes | None) -> str:
    """Return bytes as text for people: escaped where they are not UTF-8 or not printable."""
    return "null" if data is None else quoted(data.decode("utf-8", "backslashreplace"))
