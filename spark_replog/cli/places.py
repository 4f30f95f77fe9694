"""Where a command begins and ends to read: a word, an offset, a distance from the end, or ``@TIME``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_replog.cli.output import note
from spark_replog.cli.settings import current_settings, parse_time_ms
from spark_replog.errors import unknown_partition
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
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.ids import TopicPartition


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
