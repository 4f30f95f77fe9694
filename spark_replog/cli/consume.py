"""``replog consume``: print the records of topics for a person or another program."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_groups, complete_topics
from spark_replog.cli.output import EXIT_OK, emit, json_text, show
from spark_replog.cli.places import check_places, offsets_at, partitions_of, seek_to
from spark_replog.cli.records import (
    RecordFilter,
    ended_by_signals,
    filter_flags,
    partition_flag,
    record_item,
    records_of,
    schema_of,
    value_bytes,
)
from spark_replog.cli.settings import ReplogCommand, Settings, current_settings
from spark_replog.cli.tables import Table, is_terminal, quoted, shown
from spark_replog.log_position import EARLIEST, parse_offset

if TYPE_CHECKING:
    from spark_replog.client.consumer import Consumer
    from spark_replog.client.consumer_record import ConsumerRecord
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.ids import TopicPartition


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
@partition_flag
@click.option("-n", "--max-messages", type=click.IntRange(min=1), help="Maximum number of records to print.")
@filter_flags
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
    schemas = [schema_of(cluster, topic) for topic in topics] if columns or may_be_table else []
    for topic, schema in zip(topics, schemas, strict=False):
        for name in columns or ():
            if schema is None or name not in schema.names:
                has = "has bytes, no columns" if schema is None else f"has the columns {', '.join(schema.names)}"
                raise click.UsageError(f"--columns names '{name}', and topic {topic} {has}")
    is_table = may_be_table and None not in schemas
    return {"columns": columns, "output": given["output"] or ("table" if is_table else "values")}


def _seek(reader: Consumer, ends: dict[TopicPartition, int], given: dict[str, Any]) -> None:
    where = "earliest" if given["from_beginning"] else given["offset"]
    if where is None:
        if given["group"] is not None:
            return
        where = "latest" if given["follow"] else "earliest"
    seek_to(reader, ends, where)


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
