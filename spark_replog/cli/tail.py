"""``replog tail``: follow topics, a line for each record."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_topics
from spark_replog.cli.output import EXIT_OK, json_text, show
from spark_replog.cli.places import check_places, offsets_at, partitions_of, seek_to
from spark_replog.cli.records import (
    RecordFilter,
    ended_by_signals,
    filter_flags,
    partition_flag,
    record_item,
    records_of,
    time_text,
    value_bytes,
)
from spark_replog.cli.settings import ReplogCommand, Settings, current_settings
from spark_replog.cli.tables import is_terminal, quoted

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
@click.option("--from", "begin", metavar="WHERE",
              help="Begin at earliest, latest, N, end-N, @TIME or @-1h instead of -n.")  # fmt: skip
@click.option("--to", "until", metavar="WHERE", help="With --no-follow: stop before latest, N, end-N, @TIME or @-1h.")
@partition_flag
@filter_flags
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
