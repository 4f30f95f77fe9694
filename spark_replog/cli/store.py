"""``replog init`` and ``replog store``: create, show, verify and repair a store, collect its garbage."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import (
    EXIT_CRITICAL,
    EXIT_FAILED,
    EXIT_OK,
    EXIT_WARN,
    ProgressLine,
    act_on_each,
    emit,
    error_item,
    item_of,
    note,
)
from spark_replog.cli.settings import ReplogCommand, ReplogGroup, Settings, current_settings, parse_duration_ms
from spark_replog.cli.tables import Table, human_bytes, is_terminal, quoted, table
from spark_replog.cli.view import broker_items, broker_table, finding_items, finding_parts, more, size_items, size_table
from spark_replog.errors import ErrorCode, InvalidConfigError, command_line
from spark_replog.log.acl import AclOperation

if TYPE_CHECKING:
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.health.cost import Prices
    from spark_replog.ledger.ledger import Ledger
    from spark_replog.maintenance.garbage import GarbageFile, GarbageReport
    from spark_replog.maintenance.journal_scrub import JournalLag, JournalReport
    from spark_replog.maintenance.repair import RootRepair
    from spark_replog.maintenance.scrub import ScrubReport
    from spark_replog.maintenance.snapshot_scrub import SnapshotReport
    from spark_replog.monitor.file_words import FileWords


@click.group("store", cls=ReplogGroup)
def store() -> None:
    """Show the store and its roots."""


_TOPICS_SHOWN = 20
_COSTS_A_DAY = "createsPerDay getsPerDay bytesPerDay copyBytes"


@store.command("info",
               examples=["store info", "store info --cost", "store info --cost --readers 3 --look 10s"])  # fmt: skip
@click.option("--cost", is_flag=True, help="Add requests and bytes of each topic a day, and the price of a month.")
@click.option("--prices", type=click.Path(dir_okay=False), help="TOML file of prices. [list prices]")
@click.option(
    "--readers", default=1, show_default=True, type=click.IntRange(0), help="With --cost: readers of a topic."
)
@click.option("--look", default="1s", show_default=True, metavar="DURATION", help="With --cost: how often each looks.")
def info(cost: bool, prices: str | None, readers: int, look: str) -> int:
    """Show the cluster id, the brokers, the state of each root, how topics grow, and what is wrong.

    Reads what finds a root that is away, full, emptied or restored from an older backup, a fenced broker, and a
    partition without a leader or below min.insync.replicas. 'store verify' reads every journal and copy. Growth is what
    was written in the last 24 hours; the days until a root is full assume the same growth, less what retention removes.

    With --cost, objects are as large as those of the newest 512 entries, and each reader gets each once: what Spark's
    tasks read is not counted. Snapshots, garbage collection, compaction and group commits are not in it. The prices
    are list prices: check yours, and give them with --prices.

    Exit code 3 with a warning, 4 where rows cannot be written or read.
    """
    settings = current_settings()
    path = settings.required_store()
    from spark_replog.monitor.store_monitor import StoreMonitor

    look_ms = parse_duration_ms(look)
    if look_ms <= 0:
        raise click.UsageError("--look needs a duration above zero")
    price_list = _read_prices(prices) if cost or prices else None
    cluster = settings.open_cluster()
    monitor = StoreMonitor(cluster)
    view = monitor.look()
    item: dict[str, Any] = {
        "clusterId": view.cluster_id,
        "path": path,
        "fsync": view.fsync,
        "topics": len(view.topics),
        "bytes": view.size_bytes,
        "bytesPerDay": view.bytes_per_day,
        "brokers": broker_items(view),
        "sizes": size_items(view.topics, view.now_ms),
        "findings": finding_items(view.findings, settings),
        "ok": not view.findings,
    }
    sizes = item["sizes"]
    parts: list[str | Table] = [
        f"cluster  {view.cluster_id}",
        f"path     {quoted(path)}",
        f"fsync    {'on' if view.fsync else 'OFF: a power cut may lose acknowledged rows'}",
        f"topics   {len(view.topics)}, {view.partition_count} partitions",
        f"holds    {human_bytes(view.size_bytes)} in one copy, and {human_bytes(view.bytes_per_day)} more a day",
        "",
        broker_table(item["brokers"]),
    ]
    if sizes:
        parts += ["", size_table(sizes[:_TOPICS_SHOWN]), *more(len(sizes) - _TOPICS_SHOWN, "smaller topics")]
    if price_list is not None:
        from spark_replog.health.cost import FORMULA, costs_of

        costs = costs_of(view, monitor.recent_writes(), price_list, reader_count=readers, look_interval_ms=look_ms)
        item["cost"] = {
            "currency": price_list.currency,
            "pricesAsOf": price_list.as_of,
            "formula": FORMULA,
            "month": round(sum(bill.month for bill in costs), 4),
            "topics": [
                {"topic": bill.topic, **{key: round(value) for key, value in item_of(bill, _COSTS_A_DAY).items()},
                 "month": round(bill.month, 4)}
                for bill in costs
            ],
        }  # fmt: skip
        parts += ["", *_cost_parts(item["cost"])]
    if view.findings:
        parts += ["", *finding_parts(view.findings, settings)]
    return emit([item], *parts, exit_code=view.exit_code)


def _read_prices(path: str | None) -> Prices:
    from importlib.resources import files

    from spark_replog.health.cost import read_prices

    source = files("spark_replog").joinpath("prices.toml") if path is None else Path(path)
    try:
        return read_prices(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--prices: {error}") from error


def _cost_parts(item: dict[str, Any]) -> list[str | Table]:
    columns = {"TOPIC": "topic", "CREATES A DAY": "createsPerDay", "GETS A DAY": "getsPerDay",
               "BYTES A DAY": "bytesPerDay", "HELD": "copyBytes", "A MONTH": "month"}  # fmt: skip

    def money(value: float) -> str:
        return f"{value:.2f}" if value >= 0.005 or not value else "<0.01"

    topics = [{**topic, "month": money(topic["month"])} for topic in item["topics"]]
    return [
        f"cost     {money(item['month'])} {item['currency']} a month at this pace",
        "",
        table(columns, topics[:_TOPICS_SHOWN]),
        *more(len(topics) - _TOPICS_SHOWN, "cheaper topics"),
        "",
        f"{item['formula']}.",
        f"Prices of {item['pricesAsOf']}: check yours, and give them with --prices.",
    ]


def _count_on(settings: Settings, what: str, done: int, total: int) -> None:
    """Tell how far a check has come; from any thread."""
    if not settings.quiet and (done == total or done % 100 == 0):
        note(what.format(f"{done} of {total}"))


@store.command("verify", examples=["store verify", "store verify --deep -f json"])
@click.option("--deep", is_flag=True, help="Read every copy whole: check its checksums, and what is outside them.")
def verify(deep: bool) -> int:
    """Look at every journal and snapshot, and at every copy of every data object that a topic needs.

    Journals: damaged records, gaps, broken hash chains, roots that went back in time or disagree. One that only lacks
    entries, since its root was away, is behind: `coordinator run --once` gives it these. It is looked at again for a
    few seconds first, since writers bring it up too. Snapshots: each root should have the files that the newest one
    names, unchanged.

    Exit code 3 when a copy or a journal is bad or behind and others are good, 4 when rows or a snapshot have no good
    copy left (or none that can be read now) or a ledger no majority of good journals.
    """
    settings = current_settings()
    from spark_replog.maintenance.journal_scrub import drop_passing_lags, scrub_journals
    from spark_replog.maintenance.scrub import scrub
    from spark_replog.maintenance.snapshot_scrub import SnapshotScrub

    cluster = settings.open_cluster(needs=AclOperation.DESCRIBE)

    journals = scrub_journals(cluster, on_ledger=partial(_count_on, settings, "verified {} ledgers"))
    snapshots = SnapshotScrub(cluster).run(on_ledger=partial(_count_on, settings, "verified {} ledgers' snapshots"))
    report = scrub(cluster, deep=deep, on_object=partial(_count_on, settings, "verified {} objects"))
    drop_passing_lags(cluster, journals)
    item = _verify_item(journals, snapshots, report)
    findings, journal_findings, snapshot_findings = item["findings"], item["journalFindings"], item["snapshotFindings"]
    behind = f", {len(journals.behind)} behind" if journals.behind else ""
    lines: list[str | Table] = [
        f"journals {journals.journal_count} with {journals.record_count} records{behind}",
        f"files    {snapshots.file_count} of snapshots",
        f"objects  {report.object_count}",
        f"copies   {report.copy_count}",
        f"checked  {report.checked_bytes} bytes" if deep else "checked  presence and length (--deep reads the bytes)",
        f"bad      {len(journal_findings)} journals, {len(snapshot_findings)} files of snapshots, {len(findings)} "
        f"copies, {report.lost_count + snapshots.lost_count} objects and files without a good copy",
    ]
    if unread_count := report.unread_count + snapshots.unread_count:
        lines += [f"unread   {unread_count} more objects and files: a root that does not answer may have a good copy"]
    lines += _bad_table("LEDGER", "ledgerId", [*journal_findings, *map(_behind_row, journals.behind)])
    if journals.undecidable:
        lines += ["", f"no majority of good journals: ledger {', '.join(map(quoted, journals.undecidable))}"]
    lines += [*_bad_table("FILE", "file", snapshot_findings), *_bad_table("OBJECT", "object", findings)]
    is_critical = report.lost_count or snapshots.lost_count or unread_count or journals.undecidable
    verdict = EXIT_CRITICAL if is_critical else EXIT_OK if item["ok"] else EXIT_WARN
    return emit([item], *lines, exit_code=verdict)


def _bad_table(heading: str, key: str, items: Sequence[dict[str, Any]]) -> list[str | Table]:
    columns = {"BROKER": "broker", "FAULT": "fault", heading: key, "DETAIL": "detail"}
    return ["", table(columns, items)] if items else []


def _behind_row(lag: JournalLag) -> dict[str, Any]:
    detail = f"it lacks {lag.entry_count} entries that a majority has. Run replog coordinator run --once."
    return {"broker": lag.broker_id, "fault": "behind", "ledgerId": lag.ledger_id, "detail": detail}


def _verify_item(journals: JournalReport, snapshots: SnapshotReport, report: ScrubReport) -> dict[str, Any]:
    where = "broker=broker_id ledgerId"
    findings = [item_of(finding, f"{where} object=object_name fault detail") for finding in report.findings]
    journal_findings = [item_of(finding, f"{where} fault position detail") for finding in journals.findings]
    snapshot_findings = [item_of(finding, f"{where} file fault detail") for finding in snapshots.findings]
    keys = "objects=object_count copies=copy_count checkedBytes lostObjects=lost_count unreadObjects=unread_count"
    files = "snapshotFiles=file_count lostSnapshotFiles=lost_count unreadSnapshotFiles=unread_count"
    return {
        "ok": not (findings or journal_findings or journals.behind or snapshot_findings),
        **item_of(report, keys),
        "findings": findings,
        "journals": journals.journal_count,
        "journalRecords": journals.record_count,
        "journalsBehind": len(journals.behind),
        "behind": [item_of(lag, f"{where} entries=entry_count") for lag in journals.behind],
        "undecidableLedgers": journals.undecidable,
        "journalFindings": journal_findings,
        **item_of(snapshots, files),
        "snapshotFindings": snapshot_findings,
    }


@store.command("repair", examples=["store repair --dry-run", "store repair -y"])
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Make new roots without asking.")
@click.option("--deep", is_flag=True, help="Read every copy whole, and repair those with damaged bytes.")
@click.option(
    "--rebuild",
    "rebuild",
    type=int,
    multiple=True,
    metavar="BROKER",
    help="Rebuild this root although it has a replog.json: it was restored from a backup. Repeatable.",
)
@click.option("--throttle", type=click.IntRange(min=1), metavar="BYTES", help="Copy at most this many bytes a second.")
def repair(dry_run: bool, yes: bool, deep: bool, rebuild: tuple[int, ...], throttle: int | None) -> int:
    """Rebuild lost roots, and copy missing and damaged objects and files of snapshots, from the other roots.

    A root is lost when it has no replog.json: its folder or bucket was emptied or is new, or its mount is missing. The
    command asks before it makes a new root there; scripts give -y. A root that comes back afterwards is not used again.
    Writers and readers go on meanwhile. An interrupted repair is finished by the next one.

    Exit code 1 when a root was not repaired, 4 when rows have no good copy left.
    """
    settings = current_settings()
    path = settings.required_store()
    from spark_replog.config.registry import read_coordinator_config
    from spark_replog.maintenance.repair import StoreRepair

    options = {} if throttle is None else {"follower.replication.throttled.rate": throttle}

    def progress(broker: int, what: str, done: int, total: int) -> None:
        _count_on(settings, f"broker {broker}: {what} {{}}", done, total)

    cluster = settings.open_cluster(needs=AclOperation.ALTER)
    unknown = sorted(set(rebuild) - set(cluster.brokers.broker_ids))
    if unknown:
        raise click.UsageError(f"this store has no broker {unknown[0]}: see {command_line(path, 'store', 'info')}")
    config = read_coordinator_config(options)
    repairer = StoreRepair(cluster, config, deep=deep, rebuild=frozenset(rebuild), on_progress=progress)
    plan = repairer.plan()
    if dry_run:
        return _show_plan(cluster, plan)
    if not yes:
        _ask_before_new_roots(cluster, plan)
    report = repairer.run()
    keys = ("broker=broker_id found=condition journalRecords snapshotFiles objects=object_count copiedBytes tempFiles "
            "ok=is_repaired detail rootId")  # fmt: skip
    items = [item_of(root, keys) for root in report.roots.values()]
    columns = {"BROKER": "broker", "FOUND": "found", "JOURNAL RECORDS": "journalRecords",
               "SNAPSHOT FILES": "snapshotFiles", "OBJECTS": "objects", "BYTES": "copiedBytes",
               "NOW": "now"}  # fmt: skip
    parts: list[str | Table] = [
        table(columns, [{**item, "now": "whole" if item["ok"] else item["detail"]} for item in items])
    ]
    if report.lost_objects:
        items.append({"ok": False, "lostObjects": report.lost_objects})
        parts += ["", f"{len(report.lost_objects)} data objects have no good copy left: their rows are gone."]
    return emit(items, *parts, exit_code=EXIT_CRITICAL if report.lost_objects else None)


def _ask_before_new_roots(cluster: Cluster, plan: list[RootRepair]) -> None:
    new = [root for root in plan if root.condition.value == "lost"]
    for root in new:
        note(quoted(_action(cluster, root)))
    if new and not is_terminal(sys.stdin):
        raise click.UsageError(
            f"a new root would be made for broker {', '.join(str(root.broker_id) for root in new)}. Bring the old one "
            "back (mount the disk, undo the rename), or add -y."
        )
    if new:
        click.confirm("Make new roots there?", abort=True, err=True)


def _show_plan(cluster: Cluster, plan: list[RootRepair]) -> int:
    items: list[dict[str, Any]] = [
        {
            "ok": True,
            "broker": root.broker_id,
            "url": cluster.brokers.url(root.broker_id),
            "found": root.condition.value,
            "action": _action(cluster, root),
        }
        for root in plan
    ]
    return emit(items, table({key.upper(): key for key in ("broker", "found", "action")}, items))


def _action(cluster: Cluster, root: RootRepair) -> str:
    url = cluster.brokers.url(root.broker_id)
    if root.condition.value == "lost":
        return f"make a new root for broker {root.broker_id} at {url}: {root.note}"
    if root.condition.value == "stale":
        return f"rebuild broker {root.broker_id} at {url}: {root.note}" if root.note else f"rebuild {url}"
    return root.detail or root.note or "copy what is missing"


@store.command(
    "gc",
    examples=[
        "-s ./store store gc --dry-run",
        "-s ./store store gc --now",
        "-s ./store store gc --now --older-than 0s",
    ],
)
@click.option("--dry-run", is_flag=True, help="Show each file that is garbage, and why; apply no retention.")
@click.option(
    "--now",
    is_flag=True,
    help="Also delete what was written within gc.floor.lag.ms and is not committed, down to --older-than.",
)
@click.option(
    "--older-than",
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="With --now: leave what writes of the last DURATION may commit. 0s refuses all of them: producers write their "
    "batches again, Spark's queries end and must be restarted.",
)
def gc(dry_run: bool, now: bool, older_than: str) -> int:
    """Delete old rows by retention, and the files that no row needs. Commits do a part of it all the time.

    A file is garbage if all of its rows were deleted, or if no row names it and the floor of generations has passed it:
    no entry can name it any more. Writers and readers go on meanwhile. A root that does not answer is left to a later
    run.

    With --now, a file that no commit names goes once the generation after its own is older than --older-than. The
    first run begins a generation; run it again after that time, or stop all writers and give 0s.

    Exit code 1 when a root or a ledger was left out.
    """
    settings = current_settings()
    age_ms = parse_duration_ms(older_than)
    if age_ms < 0:
        raise click.UsageError("--older-than needs a duration of zero or more")
    from spark_replog.maintenance.garbage import GarbageCollector

    cluster = settings.open_cluster(needs=AclOperation.DESCRIBE if dry_run else AclOperation.ALTER)
    files: list[GarbageFile] = []
    with ProgressLine(quiet=settings.quiet) as line:
        report = GarbageCollector(
            cluster,
            on_file=files.append if dry_run else lambda _: None,
            on_progress=lambda report: line.update(f"{'found' if dry_run else 'deleted'} {report.files.total()} files"),
            is_dry_run=dry_run,
            is_floor_raised=now,
            age_ms=age_ms,
        ).run()
    items = [_garbage_item(file) for file in files] if dry_run else _garbage_sums(report)
    items += [{"ok": True, "broker": broker, "reason": "left by an interrupted writer", "files": count}
              for broker, count in sorted(report.temp_files.items()) if count]  # fmt: skip
    failures = [error_item(error, **({"broker": at} if at >= 0 else {})) for at, error in report.failures]
    keys = ["broker", "file", "bytes", "reason", "since"] if dry_run else ["broker", "files", "bytes", "reason"]
    rows = [[str(item.get(key, "")) for key in keys] for item in items]
    what = "would be deleted" if dry_run else "deleted"
    total = sum(item.get("files", 1) for item in items)
    parts: list[str | Table] = [Table([key.upper() for key in keys], rows), ""] if rows else []
    parts += [f"{total} files {what}, {report.size_bytes.total()} bytes"]
    if report.snapshot_files:
        parts += [f"{report.snapshot_files} files of replaced snapshots {what}"]
        items.append({"ok": True, "reason": "of a snapshot that a newer one replaced", "files": report.snapshot_files})
    parts += [f"left to a later run: {item.get('broker', 'ledger')}: {item['message']}" for item in failures]
    return emit([*items, *failures], *parts)


def _garbage_item(file: GarbageFile) -> dict[str, Any]:
    since = None if file.since_ms is None else datetime.fromtimestamp(file.since_ms / 1000, UTC)
    item = item_of(file, "broker=broker_id file=key bytes=size_bytes reason=why")
    return {"ok": True, **item, "since": since and since.isoformat("T", "seconds")}


def _garbage_sums(report: GarbageReport) -> list[dict[str, Any]]:
    return [
        {"ok": True, "broker": broker, "reason": why.value, "files": count, "bytes": report.size_bytes[broker, why]}
        for (broker, why), count in sorted(report.files.items(), key=lambda pair: (pair[0][0], pair[0][1].value))
    ]


@store.command("snapshot", examples=["store snapshot"])
def snapshot() -> int:
    """Write a snapshot of each ledger, so that the next process starts fast. Commits do it all the time.

    Journal records that every root can do without then are deleted.

    Exit code 1 when a ledger was left out.
    """
    from spark_replog.admin.admin import topic_ledgers
    from spark_replog.errors import ReplogError

    cluster = current_settings().open_cluster(needs=AclOperation.ALTER)
    done: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    ledgers: list[Ledger[Any]] = [cluster.cluster_ledger, *topic_ledgers(cluster)]
    for ledger in ledgers:
        try:
            made = ledger.snapshot(timeout_ms=cluster.config.delivery_timeout_ms)
            deleted = made.deleted + ledger.collect()
        except ReplogError as error:
            failed.append(error_item(error, ledgerId=ledger.ledger_id))
        else:
            done.append({"ok": True, "ledgerId": ledger.ledger_id, "written": made.written, "deletedFiles": deleted})
    columns = {"LEDGER": "ledgerId", "WRITTEN": "written", "DELETED": "deletedFiles"}
    parts: list[str | Table] = [table(columns, done)] if done else []
    parts += [f"ledger {item['ledgerId']} was left out: {item['message']}" for item in failed]
    return emit([*done, *failed], *parts)


@click.command("init", cls=ReplogCommand, examples=["-s ./store init --brokers 3"])
@click.option("--brokers", type=click.IntRange(min=1), metavar="N",
              help="Number of roots to make in the parent directory: broker-0, broker-1 ... [1]")  # fmt: skip
@click.option("--no-fsync", is_flag=True, help="Do not flush to disk: a power failure may lose acknowledged rows.")
@click.option("--rack", "racks", multiple=True, metavar="NAME",
              help="Failure domain of a broker. Give it once per broker, in order.")  # fmt: skip
def init(brokers: int | None, no_fsync: bool, racks: tuple[str, ...]) -> int:
    """Make a new, empty store.

    STORE is a parent directory or a comma-separated list of roots. The command resumes its own
    unfinished init and refuses roots of any other store.
    """
    settings = current_settings()
    path = settings.required_store()
    roots = [part for part in path.split(",") if part.strip()]
    count = len(roots) if len(roots) > 1 else brokers or 1
    if racks and len(racks) != count:
        raise click.UsageError(f"{len(racks)} --rack for {count} brokers: give one per broker")
    from spark_replog.cluster.init_store import TWO_BROKERS_WARNING, init_cluster

    cluster = init_cluster(path, brokers, settings.storage_options, fsync=not no_fsync, racks=racks or None)
    new_brokers = cluster.brokers
    if len(new_brokers.broker_ids) == 2 and not settings.quiet:
        note(f"replog: {TWO_BROKERS_WARNING}")
    listed = [
        {"broker": broker, "url": new_brokers.url(broker), "metadata": broker in new_brokers.metadata_broker_ids}
        for broker in new_brokers.broker_ids
    ]
    item = {"clusterId": new_brokers.cluster_id, "brokers": listed, "fsync": new_brokers.fsync, "ok": True}
    columns = {"BROKER": "broker", "URL": "url", "JOURNALS": "metadata"}
    return emit([item], f"store {new_brokers.cluster_id}", table(columns, listed))


_FILE_BYTES_MAX = 1 << 30


@store.command(
    "dump",
    examples=[
        "store dump --ledger orders -n 5",
        "store dump --ledger cluster --broker 2 --before 100",
        "store dump ./broker-0/ledgers/*/journal/00000000000000000007",
    ],
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--ledger", metavar="NAME", help="Journal records of this ledger: a topic, a ledger id, or 'cluster'.")
@click.option("--broker", "broker_id", type=int, help="Read the journal of this broker. [the first with journals]")
@click.option("-n", "--count", type=click.IntRange(min=1), default=20, show_default=True,
              help="Print at most this many records.")  # fmt: skip
@click.option(
    "--before", type=click.IntRange(min=0), metavar="POSITION", help="Records below this position. [the newest]"
)
def dump(files: tuple[str, ...], ledger: str | None, broker_id: int | None, count: int, before: int | None) -> int:
    """Show files in words: journal records with their entries, markers, snapshots, data objects, replog.json.

    FILE is a path on this machine, and needs no store: its first bytes say what it is. With --ledger the newest records
    of a journal are read from a root. Damaged files are shown as far as they can be read. It shows no rows.

    Exit code 1 when a file is damaged.
    """
    if bool(files) == (ledger is not None):
        raise click.UsageError("give files, or --ledger")
    from spark_replog.monitor.file_words import file_words, journal_files, ledger_named

    contents: list[FileWords] = []

    def act(name: str) -> dict[str, Any]:
        contents.append(file_words(name, _read(name)))
        return _item(contents[-1])

    if ledger is None:
        items = act_on_each("name", files, act)
    else:
        cluster = current_settings().open_cluster(needs=AclOperation.DESCRIBE)
        roots = cluster.brokers.metadata_broker_ids
        if broker_id is not None and broker_id not in roots:
            raise click.UsageError(f"broker {broker_id} has no journals: {', '.join(map(str, roots))} have")
        ledger_id, names = ledger_named(cluster, ledger)
        records = journal_files(cluster, ledger_id, roots[0] if broker_id is None else broker_id, count, before)
        contents = [file_words(key, data, names) for key, data in records]
        items = [_item(words) for words in contents]
    lines = [line for words in contents for line in ("", *_lines(words))]
    return emit(items, *lines[1:], exit_code=None if all(item["ok"] for item in items) else EXIT_FAILED)


def _read(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"cannot read {name}: {reason}. Name a file.") from error
    if len(data) > _FILE_BYTES_MAX:
        raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"{name} is larger than any file of a store. Name another.")
    return data


def _item(words: FileWords) -> dict[str, Any]:
    damage = {"error": ErrorCode.CORRUPT_MESSAGE.name, "message": words.damage} if words.damage else {}
    return {**item_of(words, "name kind bytes=size_bytes lines"), "ok": not words.damage, **damage}


def _lines(words: FileWords) -> list[str]:
    head = f"{quoted(words.name)}: {words.kind}, {words.size_bytes:,} bytes{', DAMAGED' if words.damage else ''}"
    return [head, *(f"  {quoted(line)}" for line in words.lines)]
