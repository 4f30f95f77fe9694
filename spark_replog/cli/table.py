"""``replog table``: fill Delta and Iceberg tables from typed topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_topics
from spark_replog.cli.output import emit, note, on_signals
from spark_replog.cli.settings import ReplogGroup, current_settings, key_values, parse_duration_ms
from spark_replog.cli.tables import table as drawn

if TYPE_CHECKING:
    from spark_replog.tables.table_sync import SyncReport


@click.group("table", cls=ReplogGroup)
def table() -> None:
    """Fill Delta and Iceberg tables from typed topics."""


@table.command(
    "sync",
    examples=[
        "table sync orders delta:/data/tables/orders --once",
        "table sync orders iceberg:prod.sales.orders --mode upsert --every 30s",
        "table sync orders delta:s3://lake/orders --provenance --table-option AWS_REGION=eu-central-1",
    ],
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("target", metavar="TABLE")
@click.option("--once", is_flag=True, help="Sync the rows that are there, and exit.")
@click.option("--every", metavar="DURATION", help="From one look at the topic to the next. [60s]")
@click.option("--mode", type=click.Choice(("append", "upsert")),
              help="A row for each offset, or the newest row of each key. [append, or what the table has]")  # fmt: skip
@click.option("--provenance/--no-provenance", default=None,
              help="Add _partition, _offset and _timestamp. [no, or what the table has]")  # fmt: skip
@click.option("--rows-max", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Of one commit.")
@click.option("--file-bytes", type=click.IntRange(min=1), help="Target size of the table's files.")
@click.option("--fail-on-data-loss/--no-fail-on-data-loss", default=True, show_default=True,
              help="Stop at rows that were deleted before they were synced, or go on after them.")  # fmt: skip
@click.option("--table-option", "options", multiple=True, metavar="KEY=VALUE",
              help="Option of the table's storage (Delta) or catalog (Iceberg). Repeatable.")  # fmt: skip
@click.option("--group", metavar="NAME", help="Show the position under this name. [table:TABLE]")
def sync(topic: str, target: str, once: bool, every: str | None, options: tuple[str, ...], **given: Any) -> int:
    """Write the rows of TOPIC into TABLE, each once: delta:PATH or iceberg:CATALOG.NAMESPACE.TABLE.

    The table is made if it is missing. It holds the position: each commit has rows and the offsets that they reach. So
    the command may be killed, started again, or run twice at once, on any machine. The position is shown as that of a
    consumer group, with the last error. Until SIGTERM.
    """
    if once and every is not None:
        raise click.UsageError("give --once or --every")
    every_ms = parse_duration_ms(every or "60s")
    if any("=" not in pair for pair in options):
        raise click.UsageError("--table-option needs KEY=VALUE")  # the value is not shown: it may be a secret
    settings = current_settings()
    cluster = settings.open_cluster()
    from spark_replog.tables.table_sync import TableSync

    job = TableSync(cluster, topic, target, table_options=key_values("--table-option", options), **given)
    stops: list[int] = []
    reports: list[SyncReport] = []

    def count(report: SyncReport) -> None:
        if reports:
            report.row_count += reports[0].row_count
            report.commit_count += reports[0].commit_count
            report.lost = reports[0].lost | report.lost
        reports[:] = [report]

    with on_signals(lambda number, _: stops.append(number)):
        if once:
            count(job.run_once(lambda: bool(stops)))
        else:
            note(f"replog: table sync of {topic} into {target} runs; SIGTERM stops it")
            job.run(every_ms, lambda: bool(stops), count)
    return _show(topic, target, reports)


def _show(topic: str, target: str, reports: list[SyncReport]) -> int:
    if not reports:
        return emit([{"topic": topic, "table": target, "rows": 0, "commits": 0, "partitions": [], "ok": True}])
    (report,) = reports
    partitions = [
        {"partition": number, "position": report.positions.get(number), "end": end, "lost": report.lost.get(number)}
        for number, end in report.ends.items()
    ]
    item = {
        "topic": topic,
        "table": target,
        "mode": report.mode,
        "schemaVersion": report.schema_version,
        "rows": report.row_count,
        "commits": report.commit_count,
        "partitions": partitions,
        "ok": True,
    }
    words = f"{report.row_count} rows of {topic} in {report.commit_count} commits of {target}, mode {report.mode}"
    for number, (start, end) in report.lost.items():
        note(f"replog: rows {start} to {end - 1} of {topic}-{number} were deleted before they were synced")
    return emit([item], words, drawn({"PARTITION": "partition", "POSITION": "position", "END": "end"}, partitions))
