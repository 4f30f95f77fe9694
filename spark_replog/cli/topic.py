"""``replog topic``: create, list, describe, grow, trim and delete topics; their settings, leaders and replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_settings, complete_topics, config_flag
from spark_replog.cli.output import EXIT_CRITICAL, act_on_each, confirm, emit, error_item, item_of, note
from spark_replog.cli.settings import ReplogGroup, current_settings, key_values, parse_time_ms, yes_flag
from spark_replog.cli.tables import Table, human_bytes, human_time, table
from spark_replog.cli.topic_derive import derivation_item, derivation_line, derive, replay
from spark_replog.cli.topic_schema import columns_table, schema, schema_of_file
from spark_replog.cli.view import (
    finding_items,
    finding_parts,
    schema_item,
    schema_line,
    size_items,
    size_table,
    topic_item,
)
from spark_replog.errors import ErrorCode
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log_position import EARLIEST, LATEST, parse_offset

if TYPE_CHECKING:
    from spark_replog.admin.admin import PartitionAdmin, PartitionOutcome
    from spark_replog.admin.controller import Controller
    from spark_replog.health.store import PartitionDescription, TopicDescription

_REPLICA_COLUMNS = {"PARTITION": "partition", "LEADER": "leader", "EPOCH": "leaderEpoch", "ISR": "isr",
                    "REPLICAS": "replicas"}  # fmt: skip
_MOVE_COLUMNS = {**_REPLICA_COLUMNS, "ADDING": "addingReplicas", "REMOVING": "removingReplicas", "RESULT": "result"}

RETENTION_KEYS = ("retention.ms", "retention.bytes", "cleanup.policy")


@click.group("topic", cls=ReplogGroup)
def topic() -> None:
    """Create, list, describe, grow and delete topics."""


def _controller() -> Controller:
    from spark_replog.admin.controller import Controller

    return Controller(current_settings().open_cluster())


for _command in (schema, derive, replay):
    topic.add_command(_command)
_name = click.argument("name", shell_complete=complete_topics)
_numbers_flag = click.option("-p", "--partitions", metavar="P,...", help="Only these partitions.")


def _status(part: PartitionDescription) -> str:
    missing = ",".join(map(str, part.out_of_sync))
    return f"under-replicated({missing})" if missing else "ok"


@topic.command(
    "create",
    examples=[
        "topic create orders -p 6 --replicas 3",
        "topic create payments --ledger shop -c min.insync.replicas=2",
        'topic create sales -p 6 --schema "id BIGINT NOT NULL, amount DECIMAL(12,2), tags ARRAY<STRING>" --key id',
        "topic create sales --schema-from sales.parquet --key id --validate-only",
    ],
)
@click.argument("name")
@click.option("-p", "--partitions", type=int, help="Number of partitions. [1]")
@click.option("--replicas", type=int, help="Number of replicas of each partition. [min(3, brokers)]")
@click.option("--replica-assignment", metavar="B:B,B:B...",
              help="Brokers of each partition, preferred leader first, instead of -p and --replicas.")  # fmt: skip
@click.option("--validate-only", is_flag=True, help="Validate only; create nothing.")
@click.option("--ledger", metavar="NAME", help="Ledger to share; topics of one ledger commit atomically. [a new one]")
@config_flag("Topic setting. Repeatable.", "topic")
@click.option("--schema", metavar="DDL", help="Columns of the rows, as in Spark's DDL. [rows are bytes]")
@click.option("--schema-from", "schema_file", type=click.Path(dir_okay=False), metavar="FILE",
              help="File with these columns: parquet, Arrow, CSV with a header, JSON lines. Asks first.")  # fmt: skip
@click.option("--key", metavar="COLUMN,...", help="Columns of the schema that choose the partition.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic already exists.")
@yes_flag
def create(
    name: str,
    replica_assignment: str | None,
    ledger: str | None,
    configs: tuple[str, ...],
    key: str | None,
    schema_file: str | None,
    yes: bool,
    **how: Any,
) -> int:
    """Create a topic. With a schema its rows are typed: they have columns in place of a value."""
    config = {key: value.strip() for key, value in key_values("-c", configs).items()}
    assignment = parse_assignment(replica_assignment)
    how["key"] = [column.strip() for column in key.split(",")] if key else []
    if schema_file is not None and how["schema"] is not None:
        raise click.UsageError("give --schema DDL, or --schema-from FILE")
    controller = _controller()
    if schema_file is not None:
        how["schema"] = schema_of_file(schema_file, how["key"])
        if not (yes or how["validate_only"]):
            note(str(columns_table(how["schema"])))
            confirm(yes, f"Create {name} with these columns, which {schema_file} has?")

    def act(name: str) -> dict[str, Any]:
        return topic_item(
            controller.create_topic(name, config=config, ledger_name=ledger, assignment=assignment, **how)
        )

    items = act_on_each("topic", (name,), act)
    text = ""
    if (made := items[0])["ok"]:
        copies = len(made["partitions"][0]["replicas"])
        made_id = made["topicId"] or "none (validated only)"
        text = f"topic {name}: {len(made['partitions'])} partitions, {copies} replicas, id {made_id}"
        text += f"\n{schema_line(made)}" if made["schema"] else ""
    return emit(items, text)


@topic.command("list", examples=["topic list", "topic list --size"])
@click.option("--size", is_flag=True, help="Show partitions, rows, bytes and the last write too.")
def list_topics(size: bool) -> int:
    """List all topics.

    Names and ids are read from one place, however many topics there are. With --size the log of each topic is read.
    """
    columns, topics = {"TOPIC": "topic", "ID": "topicId"}, list[Any]()
    keys = "topic=name topicId ledgerId"
    if size:
        names = {"PARTITIONS": "partitions", "REPLICAS": "replicas", "ROWS": "rows", "BYTES": "bytes"}
        columns = {"TOPIC": "topic", **names, "LAST WRITE": "lastAppendMs", "ID": "topicId"}
        keys += " partitions=partition_count replicas=replication_factor rows=row_count bytes=size_bytes lastAppendMs"
        topics = _controller().list_topics()
    else:
        topics = _controller().name_topics()
    items = [item_of(listed_topic, keys) for listed_topic in topics]
    return emit(items, table(columns, items))


@topic.command("describe", examples=["topic describe orders", "topic describe orders --size"])
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_topics)
@click.option("--size", is_flag=True, help="Show bytes, of one and of all replicas, and growth, of each partition too.")
def describe(names: tuple[str, ...], size: bool) -> int:
    """Show partitions, replicas, in-sync replicas, offsets and settings.

    Exit code 4 where a partition has no leader or is below min.insync.replicas, so that writes are refused. This is
    read from the log, which learns that a root is away when something is written; 'replog status' checks the roots.
    """
    settings = current_settings()
    from spark_replog.admin.controller import Controller
    from spark_replog.client.derivations import Derivations
    from spark_replog.health.store import topic_findings

    cluster = settings.open_cluster()
    controller = Controller(cluster)
    derivations = Derivations(cluster, controller)
    parts: list[str | Table] = []
    codes: list[int] = []

    def act(name: str) -> dict[str, Any]:
        description = controller.describe_topic(name)
        findings = topic_findings([description])
        worst = [finding for finding in findings if finding.level == EXIT_CRITICAL]
        codes.extend(finding.level for finding in worst)
        sizes = size_items([description], cluster.clock.now_ms()) if size else []
        shown = finding_parts(worst, settings)
        derived = [derivation_item(status) for status in derivations.statuses([name])]
        parts.extend([""] if parts else [])
        parts.extend(_sizes(description, sizes) if size else _description(description))
        parts.extend(map(derivation_line, derived))
        parts.extend(["", *shown] if shown else [])
        item = {
            **(sizes[0] if size else {}),
            **topic_item(description),
            **({"derivation": derived[0]} if derived else {}),
        }
        return {**item, "findings": finding_items(findings, settings)}

    items = act_on_each("topic", names, act)
    exit_code = EXIT_CRITICAL if codes and all(item["ok"] for item in items) else None
    return emit(items, *parts, exit_code=exit_code)


def _description(state: TopicDescription) -> list[str | Table]:
    settings = " ".join(f"{key}={value}" for key, value in sorted(state.config.items())) or "all defaults"
    items = [{**item, "status": _status(part)}
             for part, item in zip(state.partitions, topic_item(state)["partitions"], strict=True)]  # fmt: skip
    is_moving = any(part.adding or part.removing for part in state.partitions)  # as Kafka: shown only then
    columns = {
        **_REPLICA_COLUMNS,
        **({"ADDING": "addingReplicas", "REMOVING": "removingReplicas"} if is_moving else {}),
        "START": "logStartOffset",
        "HW": "highWatermark",
        "LEO": "logEndOffset",
        "BYTES": "bytes",
        "STATUS": "status",
    }
    return [
        f"{state.name}  id {state.topic_id}  {settings}",
        *([schema_line(schema_item(state))] if state.schema else []),
        f"{state.row_count:,} rows, {human_bytes(state.size_bytes)}, last write {human_time(state.last_append_ms)}",
        table(columns, items),
    ]


def _sizes(description: TopicDescription, sizes: list[dict[str, Any]]) -> list[str | Table]:
    keys = "partition rows=row_count bytes=size_bytes replicas"
    items = [
        {
            **item_of(part, keys),
            "assignedBytes": part.size_bytes * len(part.replicas),
            "rowBytes": part.size_bytes / part.row_count if part.row_count else None,
        }
        for part in description.partitions
    ]
    columns = {"PARTITION": "partition", "ROWS": "rows", "BYTES": "bytes", "ALL REPLICAS": "assignedBytes",
               "BYTES A ROW": "rowBytes", "REPLICAS": "replicas"}  # fmt: skip
    return [size_table(sizes), "", table(columns, items)]


def _offsets_at(name: str, at: str) -> dict[int, int]:
    if not at.startswith("@"):
        if parse_offset(at) not in (EARLIEST, LATEST):
            raise click.UsageError(f"--at is '{at}'. Give earliest, latest, @TIME or @-1h.")
        return _controller().offsets(name, at)
    time_ms = parse_time_ms(at[1:])
    from spark_replog.admin.controller import Controller
    from spark_replog.read.offsets_for_times import offsets_for_times

    cluster = current_settings().open_cluster()
    ends = Controller(cluster).offsets(name, "latest")
    handle = cluster.lookup(name)
    ledger, _ = cluster.topic_state(handle)
    times = dict.fromkeys(ends, time_ms)
    positions = offsets_for_times(ledger, cluster.brokers, name, handle.topic_id, times)
    return {number: end if positions[number] is None else positions[number] or 0 for number, end in ends.items()}


@topic.command("offsets", examples=["topic offsets orders --at earliest", "topic offsets orders --at @-1h"])
@_name
@click.option("--at", default="latest", show_default=True, metavar="WHERE", help="earliest, latest, @TIME or @-1h.")
@_numbers_flag
def offsets(name: str, at: str, partitions: str | None) -> int:
    """Show the first offset of each partition, the high watermark, or the first offset at or after a time.

    Where no row is that late, it is the high watermark.
    """
    wanted = _numbers(partitions)
    positions = _offsets_at(name, at)
    missing = set(wanted or ()) - set(positions)
    if missing:
        raise click.UsageError(f"topic '{name}' has partitions 0 to {len(positions) - 1}, not {min(missing)}")
    items = [
        {"topic": name, "partition": partition, "offset": offset}
        for partition, offset in sorted(positions.items())
        if wanted is None or partition in wanted
    ]
    columns = {"TOPIC": "topic", "PARTITION": "partition", "OFFSET": "offset"}
    return emit(items, table(columns, items))


@topic.command("delete", examples=["topic delete orders"])
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_topics)
@yes_flag
def delete(names: tuple[str, ...], yes: bool) -> int:
    """Delete topics. Writers are fenced first, and the names can be used again at once."""
    confirm(yes, f"Delete {', '.join(names)} for good?")
    controller = _controller()

    def act(name: str) -> dict[str, Any]:
        controller.delete_topic(name)
        return {"topic": name, "ok": True}

    items = act_on_each("topic", names, act)
    return emit(items, *(f"topic {item['topic']}: deleted" for item in items if item["ok"]))


@topic.command("trim", examples=["topic trim orders --partition 0 --to 1000"])
@_name
@click.option("--partition", "partition", type=int, required=True, metavar="P")
@click.option("--to", "where", required=True, metavar="OFFSET", help="New first offset; latest for the high watermark.")
@yes_flag
def trim(name: str, partition: int, where: str, yes: bool) -> int:
    """Delete the rows of a partition below an offset, as Kafka's kafka-delete-records does."""
    offset = parse_offset(where)
    if offset is None:
        raise click.UsageError(f"--to is '{where}'. Give an offset, or latest.")
    shown = "its end" if offset == LATEST else "its start" if offset == EARLIEST else f"offset {offset}"
    confirm(yes, f"Delete the rows of {name}-{partition} below {shown} for good?")
    controller = _controller()

    def act(topic_name: str) -> dict[str, Any]:
        description = controller.delete_records(topic_name, {partition: offset})
        start = description.partitions[partition].log_start_offset
        return {"topic": topic_name, "partition": partition, "logStartOffset": start, "ok": True}

    items = act_on_each("topic", (name,), act)
    text = f"topic {name}, partition {partition}: starts at {items[0]['logStartOffset']}" if items[0]["ok"] else ""
    return emit(items, text)


@topic.command("promote", examples=["topic promote orders --yes"])
@_name
@yes_flag
def promote(name: str, yes: bool) -> int:
    """End the mirroring of a topic for good: ordinary programs write to it from then on.

    Their rows follow those of the mirror, with dense offsets. Let `replog mirror` copy the last rows first.
    """
    confirm(yes, f"End the mirroring of {name} for good?")
    controller = _controller()

    def act(topic_name: str) -> dict[str, Any]:
        description = controller.promote(topic_name)
        ends = {str(part.partition): part.log_end_offset for part in description.partitions}
        return {"topic": topic_name, "ends": ends, "ok": True}

    items = act_on_each("topic", (name,), act)
    ends = ", ".join(f"{number} from {end}" for number, end in items[0].get("ends", {}).items())
    return emit(items, f"topic {name}: ordinary programs may write now; partition {ends}" if items[0]["ok"] else "")


@topic.command("compact", examples=["topic compact orders", "topic compact orders --partitions 0,1"])
@_name
@click.option("--partitions", metavar="P,P", help="Only these partitions.")
@click.option("--all", "is_eager", is_flag=True, help="Compact also where it hardly pays.")
def compact(name: str, partitions: str | None, is_eager: bool) -> int:
    """Join small objects into large ones; with cleanup.policy=compact also remove rows that newer ones replace.

    Offsets, times and order of the rows that stay do not change. Writers, readers and other compactors go on
    meanwhile. What another process changed first is left alone.
    """
    from spark_replog.cluster.authorizer import Authorizer
    from spark_replog.maintenance.compaction import CompactionReport, Compactor

    cluster = current_settings().open_cluster()
    cluster.refresh()
    Authorizer(cluster).require(AclOperation.ALTER, ResourceType.TOPIC, name)

    def progress(report: CompactionReport) -> None:
        note(f"replog: {report.size_bytes:,} bytes rewritten")

    def act(topic_name: str) -> dict[str, Any]:
        handle = cluster.lookup(topic_name)
        report = Compactor(cluster).compact(handle, _numbers(partitions), is_eager=is_eager, on_progress=progress)
        keys = ("runs=run_count sectionsBefore sectionsAfter bytes=size_bytes removedRecords=removed_count "
                "changedMeanwhile=lost_race_count failed=failed_count")  # fmt: skip
        return {"topic": topic_name, **item_of(report, keys), "ok": not report.failed_count}

    items = act_on_each("topic", (name,), act)
    lines = [
        f"topic {name}: {item['sectionsBefore']} sections became {item['sectionsAfter']} ({item['bytes']:,} bytes),"
        f" {item['removedRecords']} records removed, {item['changedMeanwhile']} runs changed meanwhile,"
        f" {item['failed']} failed"
        for item in items
        if "runs" in item
    ]
    return emit(items, *lines)


@topic.command("add-partitions", examples=["topic add-partitions orders 12"])
@_name
@click.argument("total", type=int)
@yes_flag
def add_partitions(name: str, total: int, yes: bool) -> int:
    """Grow a topic to TOTAL partitions. New rows of a key may go to another partition."""
    confirm(yes, f"Grow {name} to {total} partitions? A key's new rows may land in another partition.")
    controller = _controller()
    items = act_on_each("topic", (name,), lambda topic_name: topic_item(controller.add_partitions(topic_name, total)))
    text = f"topic {name}: {len(items[0]['partitions'])} partitions" if items[0]["ok"] else ""
    return emit(items, text)


@topic.command("config", examples=["topic config orders get", "topic config orders set min.insync.replicas=2"])
@_name
@click.argument("action", type=click.Choice(["get", "set", "unset"]))
@click.argument(
    "settings_given", nargs=-1, metavar="[KEY=VALUE | KEY]...", shell_complete=complete_settings("topic", end="")
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, even if the new retention deletes rows.")
def config(name: str, action: str, settings_given: tuple[str, ...], yes: bool) -> int:
    """Show the settings of a topic, set some (KEY=VALUE), or reset some (KEY) to the default.

    A retention that deletes rows now is set after a question only.
    """
    if (action == "get") == bool(settings_given):
        raise click.UsageError("get takes no settings, set needs KEY=VALUE..., unset needs KEY...")
    changes: dict[str, str | None] = {}
    for given in settings_given:
        key, separator, value = given.partition("=")
        if not key or bool(separator) != (action == "set"):
            raise click.UsageError(f"{action} needs {'KEY=VALUE' if action == 'set' else 'KEY'}, not '{given}'")
        changes[key.strip()] = value.strip() if separator else None
    controller = _controller()
    aged = controller.aged_out(name, changes) if any(key in RETENTION_KEYS for key in changes) else ()
    if aged:
        rows, size_bytes = sum(part.row_count for part in aged), sum(part.size_bytes for part in aged)
        confirm(yes, f"{rows} rows of {name} ({size_bytes} bytes in {len(aged)} partitions) are beyond this retention "
                "and will be deleted for good. Set it?")  # fmt: skip
    description = controller.alter_config(name, changes) if changes else controller.describe_topic(name)
    return _show_config(description)


def _show_config(description: TopicDescription) -> int:
    from spark_replog.config.registry import keys_of

    items = []
    for key in keys_of("topic"):
        default, value = None if key.default is None else key.default_text, description.config.get(key.name)
        source, shown = ("default", default) if value is None else ("topic", value)
        items.append({"key": key.name, "value": shown, "source": source, "default": default})
    columns = {key.upper(): key for key in ("key", "value", "source", "default")}
    return emit([{"topic": description.name, "settings": items, "ok": True}], table(columns, items))


def _partition_admin() -> PartitionAdmin:
    from spark_replog.admin.admin import PartitionAdmin

    return PartitionAdmin(current_settings().open_cluster())


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.UsageError(f"-p needs numbers such as 0,1, not '{text}'") from None


def _move_item(name: str, outcome: PartitionOutcome) -> dict[str, Any]:
    keys = "partition leader leaderEpoch isr replicas addingReplicas=adding removingReplicas=removing"
    fields = {"topic": name, **item_of(outcome, keys)}
    if outcome.error is None:
        return {**fields, "ok": True}
    if outcome.error.code is ErrorCode.ELECTION_NOT_NEEDED:
        return {**fields, "ok": True, "note": outcome.error.code.name}
    return {**error_item(outcome.error), **fields, "ok": False}


def _show_moves(name: str, outcomes: Sequence[PartitionOutcome]) -> int:
    items = [_move_item(name, outcome) for outcome in outcomes]
    results = [{**item, "result": item.get("error", item.get("note", "ok"))} for item in items]
    return emit(items, table(_MOVE_COLUMNS, results) if items else f"topic {name}: no reassignment in progress")


def parse_assignment(text: str | None) -> list[list[int]] | None:
    """Return the brokers of each partition from Kafka's form, ``0:1:2,1:2:0``."""
    if text is None:
        return None
    try:
        return [[int(broker) for broker in row.split(":")] for row in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--replica-assignment needs brokers such as 0:1:2,1:2:0, not '{text}'") from None


@topic.command("elect", examples=["topic elect orders"])
@_name
@_numbers_flag
@click.option("--unclean", is_flag=True, help="Allow an out-of-sync leader if no in-sync replica is left. Loses rows.")
@yes_flag
def elect(name: str, partitions: str | None, unclean: bool, yes: bool) -> int:
    """Elect preferred leaders, or new leaders for partitions that lost theirs."""
    numbers = _numbers(partitions)
    if unclean:
        confirm(yes, f"Elect out-of-sync leaders of {name}? Rows that they lack are lost, readable ones too.")
    outcomes = _partition_admin().elect_leaders(name, numbers, is_unclean=unclean)
    return _show_moves(name, outcomes)


def _cancelled(admin: PartitionAdmin, name: str, numbers: list[int] | None) -> list[PartitionOutcome]:
    """Cancel reassignments; without numbers, leave out the partitions that had none, unless none had one."""
    outcomes = admin.cancel(name, numbers)
    idle = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    moved = [outcome for outcome in outcomes if outcome.error is None or outcome.error.code is not idle]
    return moved if moved and numbers is None else outcomes


@topic.command("reassign", examples=["topic reassign orders 0=1,2,3 1=2,3,1", "topic reassign orders --cancel"])
@_name
@click.argument("targets", nargs=-1, metavar="[PARTITION=BROKER,BROKER...]...")
@click.option("--cancel", is_flag=True, help="Return to the previous replicas.")
@click.option("-p", "--partitions", metavar="P,...", help="With --cancel: only these partitions.")
def reassign(name: str, targets: tuple[str, ...], cancel: bool, partitions: str | None) -> int:
    """Move partitions to other brokers, preferred leader first; without targets, show the progress."""
    if cancel and targets:
        raise click.UsageError("give targets or --cancel, not both")
    wanted: dict[int, tuple[int, ...]] = {}
    for target in targets:
        number, separator, brokers = target.partition("=")
        try:
            wanted[int(number)] = tuple(int(broker) for broker in brokers.split(","))
        except ValueError:
            separator = ""
        if not separator:
            raise click.UsageError(f"invalid target '{target}': give PARTITION=BROKER,BROKER such as 0=1,2,3")
    admin = _partition_admin()
    if cancel:
        return _show_moves(name, _cancelled(admin, name, _numbers(partitions)))
    if not wanted:
        return _show_moves(name, admin.list_reassignments(name))
    outcomes = admin.reassign(name, wanted)
    if any(outcome.adding for outcome in outcomes):
        note("The new replicas catch up with the next commits. To catch up now: replog coordinator run --once")
    return _show_moves(name, outcomes)
