"""``replog tail``: follow several topics on a terminal, one line a record, a colour for each topic."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_topics
from spark_replog.cli.consume import (
    ended_by_signals,
    offsets_at,
    partitions_of,
    record_item,
    records_of,
    seek_to,
    time_text,
)
from spark_replog.cli.output import EXIT_OK, json_text, quoted, show
from spark_replog.cli.record_filter import RecordFilter, filter_flags
from spark_replog.cli.settings import ReplogCommand, Settings, current_settings

if TYPE_CHECKING:
    from spark_replog.client.consumer_record import ConsumerRecord
    from spark_replog.ids import TopicPartition

_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


@click.command(
    "tail",
    cls=ReplogCommand,
    examples=["tail orders payments", "tail orders --from @-10m --key customer-7", "tail orders -n 3 --no-follow"],
)
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-n", "--lines", type=click.IntRange(min=0), default=10, show_default=True,
              help="Start with this many of the newest rows of each partition.")  # fmt: skip
@click.option("--from", "begin", metavar="WHERE", help="Begin at beginning, end, N, -N, @TIME or @-1h instead of -n.")
@click.option("--to", "until", metavar="WHERE", help="With --no-follow: stop before end, N, -N, @TIME or @-1h.")
@click.option("-p", "--partition", "partitions", type=int, multiple=True, help="Read only this partition. Repeatable.")
@filter_flags
@click.option("--follow/--no-follow", default=True, help="Wait for new rows, or end at the current end. [--follow]")
@click.option("--color", "colour", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
              help="auto: on a terminal, unless NO_COLOR is set.")  # fmt: skip
def tail(topics: tuple[str, ...], **given: Any) -> int:
    """Follow topics: time, topic-partition, offset, key, headers and value of each record on a line of its own.

    Partitions that are added meanwhile are read from their first row. What a terminal would act on is escaped;
    'consume' prints bytes as they are, and -f jsonl prints whole records. Ctrl-C ends it.
    """
    settings = current_settings()
    settings.required_store()
    if settings.format == "json":
        raise click.UsageError("tail has no end to print one object at: use -f jsonl, or consume")
    if given["until"] is not None and given["follow"]:
        raise click.UsageError("--to goes with --no-follow")
    wanted, print_record = RecordFilter.of(given), _printer(settings, topics, given["colour"])
    begin = given["begin"] if given["begin"] is not None else f"-{given['lines']}" if given["lines"] else "end"
    from spark_replog.client.consumer import Consumer
    from spark_replog.errors import ErrorCode, ReplogError

    cluster = settings.open_cluster()
    reader = Consumer(cluster, enable_auto_commit=False, auto_offset_reset="earliest")
    with reader, ended_by_signals(reader) as is_ending:
        keys = partitions_of(cluster, topics, given["partitions"])
        ends = reader.end_offsets(keys)
        stops = dict(ends) if given["until"] is None else offsets_at(reader, ends, "--to", given["until"])

        def begin_at(found: list[TopicPartition]) -> None:
            """Seek what is there from the start; what is added later begins at its first row."""
            first = {key: ends.pop(key) for key in found if key in ends}
            if first:
                seek_to(reader, first, begin)

        if given["follow"] and not given["partitions"]:
            reader.subscribe(topics, on_assigned=begin_at)
        else:
            reader.assign(keys)
            begin_at(keys)
        flags = {**given, "max_messages": None, "timeout_ms": None}
        try:
            for record in records_of(reader, stops, flags, is_member=False):
                if wanted(record):
                    print_record(record)
                if is_ending.is_set():
                    break
        except ReplogError as error:
            if error.code is not ErrorCode.REPLOG_WAKEUP:
                raise
    if is_ending.is_set():
        raise click.Abort
    return EXIT_OK


def _printer(settings: Settings, topics: tuple[str, ...], colour: str) -> Callable[[ConsumerRecord], None]:
    if settings.format == "jsonl":
        return lambda record: show(json_text(record_item(record)))
    is_terminal = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if colour == "never" or (colour == "auto" and not is_terminal):
        return lambda record: show(_line(record, "", ""))
    codes = {name: f"\x1b[{_COLOURS[at % len(_COLOURS)]}m" for at, name in enumerate(dict.fromkeys(topics))}
    # As bytes: Click would take colours out where stdout is no terminal.
    return lambda record: show(_line(record, codes[record.topic], "\x1b[0m").encode())


def _line(record: ConsumerRecord, before: str, after: str) -> str:
    headers = " ".join(f"{quoted(name)}={_shown(value)}" for name, value in record.headers)
    where = f"{before}{quoted(record.topic)}-{record.partition} {record.offset}{after}"
    words = [time_text(record.timestamp_us), where, _shown(record.key), *([f"[{headers}]"] if headers else [])]
    return " ".join([*words, _shown(record.value)])


def _shown(data: bytes | None) -> str:
    """Return bytes as a person may see them: escaped where they are not UTF-8 or not printable."""
    return "null" if data is None else quoted(data.decode("utf-8", "backslashreplace"))
