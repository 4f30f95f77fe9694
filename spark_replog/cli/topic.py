"""``replog topic``: create, list, describe, grow, trim and delete topics; their settings, leaders and replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_settings, complete_topics, config_flag
from spark_replog.cli.output import (
    EXIT_CRITICAL,
    act_on_each,
    confirm,
    emit,
    error_item,
    finding_items,
    finding_text,
    human_bytes,
    human_time,
    item_of,
    item_table,
    note,
)
from spark_replog.cli.settings import ReplogGroup, Settings, current_settings, key_values, parse_time_ms, yes_flag
from spark_replog.cli.status import size_items, size_table
from spark_replog.errors import ErrorCode
from spark_replog.log_position import EARLIEST, LATEST, parse_offset

if TYPE_CHECKING:
    from spark_replog.admin.admin import PartitionAdmin, PartitionOutcome
    from spark_replog.admin.controller import Controller
    from spark_replog.health.store import Finding, PartitionDescription, TopicDescription

_SHOWN = {"bytes": human_bytes, "sizeBytes": human_bytes, "lastAppendMs": human_time}
_NAMES = ("partition", "leader", "leaderEpoch")
_REPLICA_COLUMNS = {
    "PARTITION": "partition",
    "LEADER": "leader",
    "EPOCH": "leaderEpoch",
    "ISR": "isr",
    "REPLICAS": "replicas",
}
_MOVE_COLUMNS = {**_REPLICA_COLUMNS, "ADDING": "addingReplicas", "REMOVING": "removingReplicas", "RESULT": "result"}

RETENTION_KEYS = ("retention.ms", "retention.bytes", "cleanup.policy")


@click.group("topic", cls=ReplogGroup)
def topic() -> None:
    """Create, list, describe, grow and delete topics."""


def _controller(settings: Settings) -> Controller:
    from spark_replog.admin.controller import Controller

    return Controller(settings.open_cluster())


def topic_item(found: TopicDescription) -> dict[str, Any]:
    """Return a topic as JSON values."""
    return {
        "topic": found.name,
        "topicId": found.topic_id,
        "ledgerId": found.ledger_id,
        "partitions": [
            item_of(part, adding="addingReplicas", removing="removingReplicas", size_bytes="bytes")
            for part in found.partitions
        ],
        "config": dict(sorted(found.config.items())),
        "rows": found.row_count,
        "bytes": found.size_bytes,
        "lastAppendMs": found.traffic.last_append_ms or None,
        "ok": True,
    }


def _status(part: PartitionDescription) -> str:
    missing = ",".join(map(str, part.out_of_sync))
    return f"under-replicated({missing})" if missing else "ok"


@topic.command(
    "create",
    examples=["topic create orders -p 6 --replicas 3", "topic create payments --ledger shop -c min.insync.replicas=2"],
)
@click.argument("name")
@click.option("-p", "--partitions", type=int, help="Number of partitions. [1]")
@click.option("--replicas", type=int, help="Number of replicas of each partition. [min(3, brokers)]")
@click.option(
    "--replica-assignment",
    metavar="B:B,B:B...",
    help="Brokers of each partition, preferred leader first, instead of -p and --replicas.",
)
@click.option("--validate-only", is_flag=True, help="Validate only; create nothing.")
@click.option("--ledger", metavar="NAME", help="Ledger to share; topics of one ledger commit atomically. [a new one]")
@config_flag("Topic setting. Repeatable.", "topic")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic already exists.")
def create(
    name: str,
    partitions: int | None,
    replicas: int | None,
    replica_assignment: str | None,
    validate_only: bool,
    ledger: str | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> int:
    """Create a topic."""
    settings = current_settings()
    config = {key: value.strip() for key, value in key_values("-c", configs).items()}
    assignment = parse_assignment(replica_assignment)
    controller = _controller(settings)

    def act(topic_name: str) -> dict[str, Any]:
        return topic_item(
            controller.create_topic(
                topic_name,
                partitions,
                replicas,
                config,
                ledger_name=ledger,
                if_not_exists=if_not_exists,
                assignment=assignment,
                validate_only=validate_only,
            )
        )

    items = act_on_each("topic", (name,), act)
    made = items[0]
    text = ""
    if made["ok"]:
        copies = len(made["partitions"][0]["replicas"])
        made_id = made["topicId"] or "none (validated only)"
        text = f"topic {name}: {len(made['partitions'])} partitions, {copies} replicas, id {made_id}"
    return emit("topic create", items, settings, text=text)


@topic.command("list", examples=["topic list", "topic list --size"])
@click.option("--size", is_flag=True, help="Show partitions, rows, bytes and the last write too.")
def list_topics(size: bool) -> int:
    """List all topics.

    Names and ids are read from one place, however many topics there are. With --size the log of each topic is read.
    """
    settings = current_settings()
    columns = {"TOPIC": "topic", "ID": "topicId"}
    items: list[dict[str, Any]]
    if size:
        names = {"PARTITIONS": "partitions", "REPLICAS": "replicas", "ROWS": "rows", "BYTES": "bytes"}
        columns = {"TOPIC": "topic", **names, "LAST WRITE": "lastAppendMs", "ID": "topicId"}
        items = [_listed(each) for each in _controller(settings).list_topics()]
    else:
        found = _controller(settings).name_topics()
        items = [{"topic": each.name, "topicId": each.topic_id, "ledgerId": each.ledger_id} for each in found]
    return emit("topic list", items, settings, text=item_table(columns, items, shown=_SHOWN))


def _listed(found: TopicDescription) -> dict[str, Any]:
    return {
        "topic": found.name,
        "topicId": found.topic_id,
        "ledgerId": found.ledger_id,
        "partitions": len(found.partitions),
        "replicas": found.replication_factor,
        "rows": found.row_count,
        "bytes": found.size_bytes,
        "lastAppendMs": found.traffic.last_append_ms or None,
    }


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
    from spark_replog.health.store import topic_findings

    cluster = settings.open_cluster()
    controller = Controller(cluster)
    texts: list[str] = []
    critical: list[Finding] = []

    def act(name: str) -> dict[str, Any]:
        found = controller.describe_topic(name)
        findings = topic_findings([found])
        worst = [each for each in findings if each.level == EXIT_CRITICAL]
        critical.extend(worst)
        shown = finding_text(worst, settings)
        sizes = size_items([found], cluster.clock.now_ms()) if size else []
        text = _sizes(found, sizes) if size else _description(found)
        texts.append(text + (f"\n\n{shown}" if shown else ""))
        item = topic_item(found)
        return {**(sizes[0] if size else {}), **item, "findings": finding_items(findings, settings)}

    items = act_on_each("topic", names, act)
    exit_code = EXIT_CRITICAL if critical and all(item["ok"] for item in items) else None
    return emit("topic describe", items, settings, text="\n\n".join(texts), exit_code=exit_code)


def _description(found: TopicDescription) -> str:
    settings = " ".join(f"{key}={value}" for key, value in sorted(found.config.items())) or "all defaults"
    items = [{**item_of(part), "status": _status(part)} for part in found.partitions]
    is_moving = any(part.adding or part.removing for part in found.partitions)  # as Kafka: shown only then
    columns = {
        **_REPLICA_COLUMNS,
        **({"ADDING": "adding", "REMOVING": "removing"} if is_moving else {}),
        "START": "logStartOffset",
        "HW": "highWatermark",
        "LEO": "logEndOffset",
        "BYTES": "sizeBytes",
        "STATUS": "status",
    }
    size = f"{found.row_count:,} rows, {human_bytes(found.size_bytes)}"
    written = f"last write {human_time(found.traffic.last_append_ms or None)}"
    partitions = item_table(columns, items, texts=_NAMES, shown=_SHOWN)
    return f"{found.name}  id {found.topic_id}  {settings}\n{size}, {written}\n{partitions}"


def _sizes(found: TopicDescription, sizes: list[dict[str, Any]]) -> str:
    items = [
        {"partition": part.partition, "rows": part.row_count, "sizeBytes": part.size_bytes,
         "assigned": part.size_bytes * len(part.replicas), "replicas": part.replicas,
         "rowBytes": part.size_bytes / part.row_count if part.row_count else None}
        for part in found.partitions
    ]  # fmt: skip
    columns = {"PARTITION": "partition", "ROWS": "rows", "BYTES": "sizeBytes", "ALL REPLICAS": "assigned",
               "BYTES A ROW": "rowBytes", "REPLICAS": "replicas"}  # fmt: skip
    partitions = item_table(columns, items, texts=_NAMES, shown={"sizeBytes": human_bytes, "assigned": human_bytes})
    return f"{size_table(sizes)}\n\n{partitions}"


def _offsets_at(name: str, at: str, settings: Settings) -> dict[int, int]:
    if not at.startswith("@"):
        if parse_offset(at) not in (EARLIEST, LATEST):
            raise click.UsageError(f"--at is '{at}'. Give earliest, latest, @TIME or @-1h.")
        return _controller(settings).offsets(name, at)
    time_ms = parse_time_ms(at[1:])
    from spark_replog.admin.controller import Controller
    from spark_replog.read.offsets_for_times import offsets_for_times

    cluster = settings.open_cluster()
    ends = Controller(cluster).offsets(name, "latest")
    handle = cluster.lookup(name)
    ledger, _ = cluster.topic_state(handle)
    times = dict.fromkeys(ends, time_ms)
    found = offsets_for_times(ledger, cluster.brokers, name, handle.topic_id, times)
    return {number: end if found[number] is None else found[number] or 0 for number, end in ends.items()}


@topic.command("offsets", examples=["topic offsets orders --at earliest", "topic offsets orders --at @-1h"])
@click.argument("name", shell_complete=complete_topics)
@click.option("--at", default="latest", show_default=True, metavar="WHERE", help="earliest, latest, @TIME or @-1h.")
@click.option("-p", "--partitions", metavar="P,...", help="Only these partitions.")
def offsets(name: str, at: str, partitions: str | None) -> int:
    """Show the first offset of each partition, the high watermark, or the first offset at or after a time.

    Where no row is that late, it is the high watermark.
    """
    settings = current_settings()
    wanted = _numbers(partitions)
    found = _offsets_at(name, at, settings)
    missing = set(wanted or ()) - set(found)
    if missing:
        raise click.UsageError(f"topic '{name}' has partitions 0 to {len(found) - 1}, not {min(missing)}")
    items = [
        {"topic": name, "partition": partition, "offset": offset}
        for partition, offset in sorted(found.items())
        if wanted is None or partition in wanted
    ]
    columns = {"TOPIC": "topic", "PARTITION": "partition", "OFFSET": "offset"}
    return emit("topic offsets", items, settings, text=item_table(columns, items, texts={"partition"}))


@topic.command("delete", examples=["topic delete orders"])
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_topics)
@yes_flag
def delete(names: tuple[str, ...], yes: bool) -> int:
    """Delete topics. Writers are fenced first, and the names can be used again at once."""
    settings = current_settings()
    confirm(yes, f"Delete {', '.join(names)} for good?")
    controller = _controller(settings)

    def act(name: str) -> dict[str, Any]:
        controller.delete_topic(name)
        return {"topic": name, "ok": True}

    items = act_on_each("topic", names, act)
    text = "\n".join(f"topic {item['topic']}: deleted" for item in items if item["ok"])
    return emit("topic delete", items, settings, text=text)


@topic.command("trim", examples=["topic trim orders --partition 0 --to 1000"])
@click.argument("name", shell_complete=complete_topics)
@click.option("--partition", "partition", type=int, required=True, metavar="P")
@click.option("--to", "where", required=True, metavar="OFFSET", help="New first offset; latest for the high watermark.")
@yes_flag
def trim(name: str, partition: int, where: str, yes: bool) -> int:
    """Delete the rows of a partition below an offset, as Kafka's kafka-delete-records does."""
    settings = current_settings()
    offset = parse_offset(where)
    if offset is None:
        raise click.UsageError(f"--to is '{where}'. Give an offset, or latest.")
    shown = "its end" if offset == LATEST else "its start" if offset == EARLIEST else f"offset {offset}"
    confirm(yes, f"Delete the rows of {name}-{partition} below {shown} for good?")
    controller = _controller(settings)

    def act(topic_name: str) -> dict[str, Any]:
        found = controller.delete_records(topic_name, {partition: offset})
        start = found.partitions[partition].log_start_offset
        return {"topic": topic_name, "partition": partition, "logStartOffset": start, "ok": True}

    items = act_on_each("topic", (name,), act)
    text = f"topic {name}, partition {partition}: starts at {items[0]['logStartOffset']}" if items[0]["ok"] else ""
    return emit("topic trim", items, settings, text=text)


@topic.command("compact", examples=["topic compact orders", "topic compact orders --partitions 0,1"])
@click.argument("name", shell_complete=complete_topics)
@click.option("--partitions", metavar="P,P", help="Only these partitions.")
@click.option("--all", "is_eager", is_flag=True, help="Compact also where it hardly pays.")
def compact(name: str, partitions: str | None, is_eager: bool) -> int:
    """Join small objects into large ones; with cleanup.policy=compact also remove rows that newer ones replace.

    Offsets, times and order of the rows that stay do not change. Writers, readers and other compactors go on
    meanwhile. What another process changed first is left alone.
    """
    settings = current_settings()
    from spark_replog.cluster.authorizer import Authorizer
    from spark_replog.log.acl import AclOperation, ResourceType
    from spark_replog.maintenance.compaction import CompactionReport, Compactor

    cluster = settings.open_cluster()
    cluster.refresh()
    Authorizer(cluster).require(AclOperation.ALTER, ResourceType.TOPIC, name)

    def progress(report: CompactionReport) -> None:
        note(f"replog: {report.size_bytes:,} bytes rewritten")

    def act(topic_name: str) -> dict[str, Any]:
        found = Compactor(cluster).compact(
            cluster.lookup(topic_name),
            _numbers(partitions),
            is_eager=is_eager,
            on_progress=progress,
        )
        return {
            "topic": topic_name,
            "runs": found.run_count,
            "sectionsBefore": found.sections_before,
            "sectionsAfter": found.sections_after,
            "bytes": found.size_bytes,
            "removedRecords": found.removed_count,
            "changedMeanwhile": found.lost_race_count,
            "failed": found.failed_count,
            "ok": not found.failed_count,
        }

    items = act_on_each("topic", (name,), act)
    text = "\n".join(
        f"topic {name}: {item['sectionsBefore']} sections became {item['sectionsAfter']} ({item['bytes']:,} bytes),"
        f" {item['removedRecords']} records removed, {item['changedMeanwhile']} runs changed meanwhile,"
        f" {item['failed']} failed"
        for item in items
        if "runs" in item
    )
    return emit("topic compact", items, settings, text=text)


@topic.command("add-partitions", examples=["topic add-partitions orders 12"])
@click.argument("name", shell_complete=complete_topics)
@click.argument("total", type=int)
@yes_flag
def add_partitions(name: str, total: int, yes: bool) -> int:
    """Grow a topic to TOTAL partitions. New rows of a key may go to another partition."""
    settings = current_settings()
    confirm(yes, f"Grow {name} to {total} partitions? A key's new rows may land in another partition.")
    controller = _controller(settings)
    items = act_on_each("topic", (name,), lambda topic_name: topic_item(controller.add_partitions(topic_name, total)))
    text = f"topic {name}: {len(items[0]['partitions'])} partitions" if items[0]["ok"] else ""
    return emit("topic add-partitions", items, settings, text=text)


@topic.command("config", examples=["topic config orders get", "topic config orders set min.insync.replicas=2"])
@click.argument("name", shell_complete=complete_topics)
@click.argument("action", type=click.Choice(["get", "set", "unset"]))
@click.argument(
    "settings_given", nargs=-1, metavar="[KEY=VALUE | KEY]...", shell_complete=complete_settings("topic", end="")
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, even if the new retention deletes rows.")
def config(name: str, action: str, settings_given: tuple[str, ...], yes: bool) -> int:
    """Show the settings of a topic, set some (KEY=VALUE), or reset some (KEY) to the default.

    A retention that deletes rows now is set after a question only.
    """
    settings = current_settings()
    if (action == "get") == bool(settings_given):
        raise click.UsageError("get takes no settings, set needs KEY=VALUE..., unset needs KEY...")
    changes: dict[str, str | None] = {}
    for given in settings_given:
        key, separator, value = given.partition("=")
        if not key or bool(separator) != (action == "set"):
            raise click.UsageError(f"{action} needs {'KEY=VALUE' if action == 'set' else 'KEY'}, not '{given}'")
        changes[key.strip()] = value.strip() if separator else None
    from spark_replog.admin.controller import Controller

    controller = Controller(settings.open_cluster())
    aged = controller.aged_out(name, changes) if any(key in RETENTION_KEYS for key in changes) else ()
    if aged:
        rows, size_bytes = sum(each.row_count for each in aged), sum(each.size_bytes for each in aged)
        confirm(yes, f"{rows} rows of {name} ({size_bytes} bytes in {len(aged)} partitions) are beyond this retention "
                "and will be deleted for good. Set it?")  # fmt: skip
    found = controller.alter_config(name, changes) if changes else controller.describe_topic(name)
    return _show_config(found, settings)


def _show_config(found: TopicDescription, settings: Settings) -> int:
    from spark_replog.config import keys_of

    items = []
    for key in keys_of("topic"):
        value = found.config.get(key.name)
        default = None if key.default is None else str(key.default)
        if key.unit == "bool":
            default = str(default).lower()  # as a user types it
        items.append(
            {
                "key": key.name,
                "value": value if value is not None else default,
                "source": "default" if value is None else "topic",
                "default": default,
            }
        )
    text = item_table({key.upper(): key for key in ("key", "value", "source", "default")}, items)
    return emit("topic config", [{"topic": found.name, "settings": items, "ok": True}], settings, text=text)


def _partition_admin(settings: Settings) -> PartitionAdmin:
    from spark_replog.admin.admin import PartitionAdmin

    return PartitionAdmin(settings.open_cluster())


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.UsageError(f"-p needs numbers such as 0,1, not '{text}'") from None


def _move_item(name: str, found: PartitionOutcome) -> dict[str, Any]:
    fields = {"topic": name, **item_of(found, "error", adding="addingReplicas", removing="removingReplicas")}
    if found.error is None:
        return {**fields, "ok": True}
    if found.error.code is ErrorCode.ELECTION_NOT_NEEDED:
        return {**fields, "ok": True, "note": found.error.code.name}
    return {**error_item(found.error), **fields, "ok": False}


def _show_moves(command: str, name: str, outcomes: Sequence[PartitionOutcome], settings: Settings) -> int:
    items = [_move_item(name, each) for each in outcomes]
    results = [{**item, "result": item.get("error", item.get("note", "ok"))} for item in items]
    text = item_table(_MOVE_COLUMNS, results, texts=_NAMES) if items else f"topic {name}: no reassignment in progress"
    return emit(command, items, settings, text=text)


def parse_assignment(text: str | None) -> list[list[int]] | None:
    """Return the brokers of each partition from Kafka's form, ``0:1:2,1:2:0``."""
    if text is None:
        return None
    try:
        return [[int(broker) for broker in row.split(":")] for row in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--replica-assignment needs brokers such as 0:1:2,1:2:0, not '{text}'") from None


@topic.command("elect", examples=["topic elect orders"])
@click.argument("name", shell_complete=complete_topics)
@click.option("-p", "--partitions", metavar="P,...", help="Only these partitions.")
@click.option("--unclean", is_flag=True, help="Allow an out-of-sync leader if no in-sync replica is left. Loses rows.")
@yes_flag
def elect(name: str, partitions: str | None, unclean: bool, yes: bool) -> int:
    """Elect preferred leaders, or new leaders for partitions that lost theirs."""
    settings = current_settings()
    numbers = _numbers(partitions)
    if unclean:
        confirm(yes, f"Elect out-of-sync leaders of {name}? Rows that they lack are lost, readable ones too.")
    outcomes = _partition_admin(settings).elect_leaders(name, numbers, is_unclean=unclean)
    return _show_moves("topic elect", name, outcomes, settings)


def _cancelled(admin: PartitionAdmin, name: str, numbers: list[int] | None) -> list[PartitionOutcome]:
    """Cancel reassignments; without numbers, leave out the partitions that had none, unless none had one."""
    outcomes = admin.cancel(name, numbers)
    idle = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    moved = [each for each in outcomes if each.error is None or each.error.code is not idle]
    return moved if moved and numbers is None else outcomes


@topic.command("reassign", examples=["topic reassign orders 0=1,2,3 1=2,3,1", "topic reassign orders --cancel"])
@click.argument("name", shell_complete=complete_topics)
@click.argument("targets", nargs=-1, metavar="[PARTITION=BROKER,BROKER...]...")
@click.option("--cancel", is_flag=True, help="Return to the previous replicas.")
@click.option("-p", "--partitions", metavar="P,...", help="With --cancel: only these partitions.")
def reassign(name: str, targets: tuple[str, ...], cancel: bool, partitions: str | None) -> int:
    """Move partitions to other brokers, preferred leader first; without targets, show the progress."""
    settings = current_settings()
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
    admin = _partition_admin(settings)
    if cancel:
        return _show_moves("topic reassign", name, _cancelled(admin, name, _numbers(partitions)), settings)
    if not wanted:
        return _show_moves("topic reassign", name, admin.list_reassignments(name), settings)
    outcomes = admin.reassign(name, wanted)
    if any(each.adding for each in outcomes):
        note("The new replicas catch up with the next commits. To catch up now: replog coordinator run --once")
    return _show_moves("topic reassign", name, outcomes, settings)
