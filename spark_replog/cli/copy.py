"""``replog copy``: copy rows of a topic into another one, also across stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_topics
from spark_replog.cli.output import ProgressLine, emit, item_of, note
from spark_replog.cli.places import check_places, offsets_at
from spark_replog.cli.settings import ReplogCommand, current_settings, key_values
from spark_replog.cli.tables import human_bytes, table
from spark_replog.config.key import STORAGE_PREFIX
from spark_replog.config.registry import storage_options
from spark_replog.log_position import EARLIEST, parse_offset

if TYPE_CHECKING:
    from spark_replog.client.topic_copy import CopiedPartition
    from spark_replog.cluster.cluster import Cluster


@click.command(
    "copy",
    cls=ReplogCommand,
    examples=[
        "copy orders orders-2025 --from @2025-01-01 --to @2026-01-01",
        "-s ./store copy orders orders --create --to-store s3://bucket/store --to-set storage.region=eu-central-1",
    ],
)
@click.argument("source", shell_complete=complete_topics)
@click.argument("target", shell_complete=complete_topics)
@click.option("--to-store", metavar="STORE", help="Store of the target. [the same]")
@click.option("--to-set", "to_options", multiple=True, metavar="KEY=VALUE",
              help="Option for the target's file system, as storage.NAME=VALUE. Repeatable. [those of -X]")  # fmt: skip
@click.option("--from", "begin", default="earliest", show_default=True, metavar="WHERE",
              help="Begin at earliest, latest, N, end-N, @TIME or @-1h.")  # fmt: skip
@click.option("--to", "until", default="latest", show_default=True, metavar="WHERE", help="Stop before this.")
@click.option("-p", "--partition", "partitions", type=int, multiple=True, help="Copy only this partition. Repeatable.")
@click.option("--by-key", is_flag=True, help="Keys choose the target's partitions, else rows keep their partition.")
@click.option("--name", default="", help="Tells copies between two topics apart: each copies a row once.")
@click.option("--create", "creates", is_flag=True,
              help="Create TARGET if it is missing, with SOURCE's partitions, settings and columns.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be copied; copy nothing.")
def copy(source: str, target: str, **given: Any) -> int:
    """Copy a range of SOURCE into TARGET, which must exist: keys, values or columns, headers and timestamps.

    Offsets are not kept; the order of each partition is. Each append to the target records how far the copy came. Run
    the command again after it was stopped or killed, and it continues there; no row is copied twice. Run it again
    later, and it copies what is new. Another --name begins from the start. Rows before those that an earlier run copied
    would come out of order: they are refused, unless another --name copies them.

    A typed topic's rows are copied as the newest version of its columns, and TARGET must have a column for each.

    Rows reported as copied are in the target's log, even if the command fails.
    """
    settings = current_settings()
    check_places(given["begin"], given["until"])
    cluster = settings.open_cluster()
    from spark_replog.client.topic_copy import TopicCopy, create_target

    if given["creates"] and given["dry_run"]:
        raise click.UsageError("--create makes TARGET, and --dry-run changes nothing: give one of them")
    line, into = ProgressLine(quiet=settings.quiet), _target(given)
    if given["creates"]:
        create_target(cluster, source, into, target)
    with line, TopicCopy(cluster, source, into, target, by_key=given["by_key"], name=given["name"]) as job:
        keys = [key for key in job.keys if not given["partitions"] or key.partition in given["partitions"]]
        if set(given["partitions"]) - {key.partition for key in keys}:
            raise click.UsageError(f"topic '{source}' has partitions 0 to {len(job.keys) - 1}")
        ends = job.reader.end_offsets(keys)
        starts, stops = (offsets_at(job.reader, ends, *place)
                         for place in (("--from", given["begin"]), ("--to", given["until"])))  # fmt: skip
        parts = job.plan(starts, stops)
        for part in parts:
            if parse_offset(given["begin"]) == EARLIEST and 0 <= part.last < part.start:
                where, lost = f"{part.key.topic}-{part.key.partition}", f"{part.last} to {part.start - 1}"
                note(f"replog: rows {lost} of {where} were deleted before they were copied")
        total = sum(max(0, part.end - part.position) for part in parts)

        def show_progress() -> None:
            left = sum(max(0, part.end - part.position) for part in parts)
            done = human_bytes(sum(part.size_bytes for part in parts))
            line.update(f"copied {total - left:,} of {total:,} rows, {done}")

        try:
            if not given["dry_run"]:
                job.run(parts, show_progress)
        except BaseException:
            line.close()
            note(f"replog: stopped. In the target: {_words(parts)}. The same command goes on from there.")
            raise
    items = [_item(part, target, is_dry_run=given["dry_run"]) for part in parts]
    columns = {"TOPIC": "topic", "PARTITION": "partition", "FROM": "from", "TO": "to", "COPIED UP TO": "position",
               "ROWS": "rows", "BYTES": "bytes"}  # fmt: skip
    more = [f"Nothing was copied. Without --dry-run: at most {total:,} rows."] if given["dry_run"] else []
    return emit(items, table(columns, items), *more)


def _target(given: dict[str, Any]) -> Cluster:
    """Open the target's store, always separately: it is written while the source is read."""
    from spark_replog.cluster.cluster import Cluster

    settings = current_settings()
    options = settings.storage_options
    if given["to_options"]:
        if any(not pair.startswith(STORAGE_PREFIX) or "=" not in pair for pair in given["to_options"]):
            raise click.UsageError(f"--to-set needs {STORAGE_PREFIX}NAME=VALUE")  # the value is not shown: maybe secret
        options = storage_options(key_values("--to-set", given["to_options"]))
    return Cluster.open(given["to_store"] or settings.required_store(), options)


def _words(parts: list[CopiedPartition]) -> str:
    ranges = [
        f"{part.key.topic}-{part.key.partition} up to {part.position}" for part in parts if part.position > part.start
    ]
    return ", ".join(ranges) or "nothing"


def _item(part: CopiedPartition, target: str, *, is_dry_run: bool) -> dict[str, Any]:
    where = {**item_of(part, "topic=key.topic partition=key.partition"), "target": target}
    keys = "from=start to=end position rows=row_count bytes=size_bytes"
    return {**where, **item_of(part, keys), "dryRun": is_dry_run, "ok": True}
