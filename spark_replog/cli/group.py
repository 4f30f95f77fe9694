"""``replog group``: list, describe, check, reset-offsets, delete, delete-offsets. Source: ``kafka-consumer-groups``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_groups, complete_topics
from spark_replog.cli.output import EXIT_CRITICAL, act_on_each, confirm, emit, error_item, item_of
from spark_replog.cli.places import partitions_of
from spark_replog.cli.query import show_verdicts
from spark_replog.cli.settings import Flag, ReplogGroup, current_settings, parse_duration_ms, parse_time_ms, yes_flag
from spark_replog.cli.tables import Table, table
from spark_replog.cli.view import limit_flags, read_limits, reader_item, reader_parts
from spark_replog.log_position import parse_offset

if TYPE_CHECKING:
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.groups.group_coordinator import GroupCoordinator
    from spark_replog.health.readers import Reader
    from spark_replog.ids import TopicPartition


@click.group("group", cls=ReplogGroup)
def group() -> None:
    """Show consumer groups and their lag; reset or delete their offsets.

    Plain consumers and Spark queries with the option group.id form groups.
    """


@group.command("list", examples=["group list"])
def list_groups() -> int:
    """List the groups."""
    _, coordinator = _open()
    items = [
        {
            "group": state.group,
            "state": state.phase.name,
            "members": len(state.metadata.members),
            "topics": sorted({topic for topic, _ in state.offsets}),
            "ok": True,
        }
        for state in coordinator.groups()
    ]
    columns = {key.upper(): key for key in ("group", "state", "members", "topics")}
    return emit(items, table(columns, items) if items else "no groups")


_all_groups = click.option("--all-groups", is_flag=True, help="All groups.")
_names = click.argument("names", nargs=-1, shell_complete=complete_groups)


@group.command("describe", examples=["group describe billing"])
@_names
@_all_groups
@click.option("--members", is_flag=True, help="Show members instead of lag.")
@click.option("--fail-above", type=click.IntRange(min=0), metavar="ROWS", help="Exit code 4 if a group lags more.")
def describe(names: tuple[str, ...], all_groups: bool, members: bool, fail_above: int | None) -> int:
    """Show the lag of groups, in rows, bytes and time; partitions without a committed offset too."""
    if bool(names) == all_groups:
        raise click.UsageError("give a group or --all-groups")
    cluster, coordinator = _open()
    from spark_replog.groups.group_admin import describe_group
    from spark_replog.health.readers import judge

    wanted = [state.group for state in coordinator.groups()] if all_groups else list(names)

    def act(name: str) -> dict[str, Any]:
        return _described(judge(describe_group(cluster, coordinator, name), cluster.clock.now_ms()))

    items = act_on_each("group", wanted, act)
    groups = [item for item in items if item["ok"]]
    shown = [_member_table(groups)] if members else reader_parts(groups, "group")
    is_above = fail_above is not None and any(item["lag"] > fail_above for item in groups)
    exit_code = EXIT_CRITICAL if is_above and len(groups) == len(items) else None
    return emit(items, *(shown if groups or not items else ()), exit_code=exit_code)


@group.command("check", examples=["group check billing", "group check --all-groups --max-lag 10m"])
@_names
@_all_groups
@limit_flags
def check(names: tuple[str, ...], all_groups: bool, after: str, max_lag: str | None) -> int:
    """Judge how groups read: OK, SLOW, STALLED, STOPPED or LOSING, with the reason.

    Exit code 0 where all are OK, 3 where one is SLOW, 4 where one does not move or loses rows. One that cannot be read
    hides no other; the exit code is then 1, or 4.
    """
    if bool(names) == all_groups:
        raise click.UsageError("give a group or --all-groups")
    from spark_replog.monitor.store_monitor import StoreMonitor

    cluster = current_settings().open_cluster()
    monitor, limits = StoreMonitor(cluster), read_limits(after, max_lag)
    if all_groups:
        readers = {reader.name: reader for reader in monitor.groups()}
        return show_verdicts("group", readers, readers.__getitem__, cluster.clock, limits)
    return show_verdicts("group", names, lambda name: monitor.groups([name])[0], cluster.clock, limits)


@group.command("delete", examples=["group delete billing"])
@click.argument("names", nargs=-1, shell_complete=complete_groups, required=True)
@yes_flag
def delete(names: tuple[str, ...], yes: bool) -> int:
    """Delete groups that have no members, with their offsets."""
    confirm(yes, f"Delete groups {', '.join(names)} with their offsets?")
    _, coordinator = _open()

    def act(name: str) -> dict[str, Any]:
        coordinator.delete_group(name)
        return {"group": name, "ok": True}

    items = act_on_each("group", names, act)
    return emit(items, *(f"deleted {item['group']}" for item in items if item["ok"]))


def _topics(*, required: bool) -> Flag:
    return click.option("--topic", "topics", multiple=True, required=required, metavar="TOPIC[:P,P]",
                        help="Repeatable.", shell_complete=complete_topics)  # fmt: skip


@group.command("delete-offsets", examples=["group delete-offsets billing --topic orders:0,1"])
@click.argument("name", shell_complete=complete_groups)
@_topics(required=True)
@yes_flag
def delete_offsets(name: str, topics: tuple[str, ...], yes: bool) -> int:
    """Delete the offsets of a group for some topics."""
    confirm(yes, f"Delete offsets of group {name} for {', '.join(topics)}?")
    cluster, coordinator = _open()
    answers = coordinator.delete_offsets(name, _partitions(cluster, coordinator, name, topics, all_topics=False))
    items = [
        {"topic": key.topic, "partition": key.partition, "ok": True}
        if error is None
        else error_item(error, topic=key.topic, partition=key.partition)
        for key, error in sorted(answers.items())
    ]
    return emit(items, *(f"deleted {item['topic']}-{item['partition']}" for item in items if item["ok"]))


@group.command(
    "reset-offsets",
    examples=[
        "group reset-offsets billing --topic orders --to-earliest",
        "group reset-offsets billing --all-topics --by-duration 1h --execute",
    ],
)
@click.argument("name", shell_complete=complete_groups)
@_topics(required=False)
@click.option("--all-topics", is_flag=True, help="All topics for which the group has offsets.")
@click.option("--to-earliest", is_flag=True, help="The log start offset.")
@click.option("--to-latest", is_flag=True, help="The high watermark.")
@click.option("--to-current", is_flag=True, help="The committed offset; the high watermark where none is committed.")
@click.option("--to-offset", metavar="N", help="This offset; earliest or latest.")
@click.option("--shift-by", type=int, metavar="N", help="The committed offset plus N; N may be negative.")
@click.option("--to-datetime", metavar="TIME",
              help="The first record at or after this time, such as 2026-11-21T08:30:00 (UTC) or -1h.")  # fmt: skip
@click.option("--by-duration", metavar="DURATION", help="The first record of the last 1h30m, 1d or PT1H30M.")
@click.option("--from-file", type=click.Path(exists=True, dir_okay=False),
              help="CSV file of topic,partition,offset; offsets as --to-offset.")  # fmt: skip
@click.option("--execute", is_flag=True, help="Apply the plan. Without it the plan is only shown.")
def reset_offsets(name: str, topics: tuple[str, ...], all_topics: bool, execute: bool, **how: Any) -> int:
    """Plan new offsets for a group that has no members; apply them with --execute."""
    given = {word: value for word, value in how.items() if value is not None and value is not False}
    if len(given) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, "
                               "--to-datetime, --by-duration, --from-file")  # fmt: skip
    cluster, coordinator = _open()
    if "from_file" in given:
        wanted = _read_plan(given["from_file"])
        keys = list(wanted)
    else:
        if bool(topics) == all_topics:
            raise click.UsageError("give --topic or --all-topics")
        keys = _partitions(cluster, coordinator, name, topics, all_topics=all_topics)
        wanted = {}
    from spark_replog.groups.group_admin import ResetTo, plan_reset

    ((word, value),) = given.items()
    if word == "to_datetime":
        value = parse_time_ms(value)
    elif word == "by_duration":
        value = cluster.clock.now_ms() - parse_duration_ms(value)
    elif word == "to_offset":
        value = _offset("--to-offset", value)
    target = ResetTo(word.removeprefix("to_"), value if type(value) is int else 0)
    from spark_replog.read.offsets_for_times import offsets_for_times

    if execute:  # before the plan: it may wait for long, and writes last commits of members that left
        coordinator.require_empty(name)
    plan = plan_reset(cluster, coordinator, name, keys, target, wanted, offsets_for_times)
    if execute:
        coordinator.reset_offsets(name, {key: after for key, (_, after) in plan.items()})
    items = [
        {
            "group": name,
            "topic": key.topic,
            "partition": key.partition,
            "before": before,
            "after": after,
            "dry_run": not execute,
            "ok": True,
        }
        for key, (before, after) in sorted(plan.items())
    ]
    note = [] if execute else ["Nothing was changed. Add --execute to apply the plan."]
    columns = {key.upper(): key for key in ("topic", "partition", "before", "after")}
    return emit(items, table(columns, items), *note)


def _open() -> tuple[Cluster, GroupCoordinator]:
    from spark_replog.groups.group_coordinator import GroupCoordinator

    cluster = current_settings().open_cluster()
    return cluster, GroupCoordinator(cluster)


def _partitions(
    cluster: Cluster, coordinator: GroupCoordinator, name: str, topics: tuple[str, ...], *, all_topics: bool
) -> list[TopicPartition]:
    """Return the partitions of ``TOPIC`` or ``TOPIC:0,1``; with all_topics, those of the group."""
    if all_topics:
        return sorted(coordinator.fetch_offsets(name))
    keys = []
    for word in topics:
        topic, _, numbers = word.partition(":")
        try:
            wanted = tuple(map(int, numbers.split(","))) if numbers else ()
        except ValueError:
            raise click.UsageError(f"--topic needs TOPIC or TOPIC:0,1, not '{word}'") from None
        keys += partitions_of(cluster, (topic,), wanted)
    return keys


def _read_plan(path: str) -> Mapping[TopicPartition, int]:
    from spark_replog.ids import TopicPartition

    try:
        with Path(path).open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
        return {
            TopicPartition(topic.strip(), int(partition)): _offset(path, offset) for topic, partition, offset in rows
        }
    except (ValueError, csv.Error):
        raise click.UsageError(f"'{path}' needs lines of topic,partition,offset") from None


def _offset(where: str, text: str) -> int:
    offset = parse_offset(text)
    if offset is None:
        raise click.UsageError(f"{where}: '{text}' is no offset. Give 0 or more, earliest or latest.")
    return offset


def _described(reader: Reader) -> dict[str, Any]:
    members = [item_of(member, "member=member_id instance=instance_id client=client_id") for member in reader.members]
    return {**reader_item(reader, "group"), **item_of(reader, "protocol generation"), "members": members, "ok": True}


def _member_table(items: list[dict[str, Any]]) -> Table:
    headings = ["GROUP", "STATE", "GENERATION", "ASSIGNOR", "MEMBER", "INSTANCE", "PARTITIONS"]
    rows = []
    for item in items:
        for member in item["members"]:
            read = [f"{p['topic']}-{p['partition']}" for p in item["partitions"] if p["member"] == member["member"]]
            rows.append((*(item[key] for key in ("group", "state", "generation", "protocol")), member["member"],
                         member["instance"], read))  # fmt: skip
    return Table(headings, rows)
