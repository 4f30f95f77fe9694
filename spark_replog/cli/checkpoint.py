"""``replog checkpoint``: move streaming queries between Spark's Kafka connector and this source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.mirror import needs_kafka
from spark_replog.cli.output import ProgressLine, emit
from spark_replog.cli.settings import ReplogGroup, current_settings
from spark_replog.cli.tables import table

if TYPE_CHECKING:
    from spark_replog.mirror.checkpoint_copy import CheckpointPlan


@click.group("checkpoint", cls=ReplogGroup)
def checkpoint() -> None:
    """Move streaming queries between Kafka and a store, with their state and positions."""


@checkpoint.command(
    "convert",
    examples=[
        "-s ./store checkpoint convert checkpoints/orders checkpoints/orders-replog --to replog --bootstrap kafka:9092",
        "-s ./store checkpoint convert checkpoints/orders checkpoints/orders-kafka --to kafka --bootstrap kafka:9092",
    ],
)
@click.argument("original", metavar="CHECKPOINT")
@click.argument("copy", metavar="COPY")
@click.option("--to", "to", type=click.Choice(["replog", "kafka"]), required=True,
              help="Whose source shall read the copy: format(\"replog\") or format(\"kafka\").")  # fmt: skip
@click.option("--bootstrap", required=True, metavar="HOST:PORT,...", help="The Kafka cluster, or a gateway.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Settings of Kafka's client, as client.properties: SASL, TLS, timeouts.")  # fmt: skip
@click.option("--compare", "compared_count", type=click.IntRange(min=0), default=10_000, show_default=True,
              help="Rows before the query's position to compare on both sides, in each partition.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Compare, and show what would change; write nothing.")
def convert(original: str, copy: str, **given: Any) -> int:
    """Copy CHECKPOINT into the new folder COPY so that its query goes on with the other system.

    Stop the query first. Then start it with the other format, the other options and COPY as its checkpointLocation: its
    state, its batches and its sink's identity are those of CHECKPOINT, which is not changed. Do not run both.

    Each offset must mean the same row on both sides, as with a mirrored topic, or one that a gateway serves. Rows that
    a repeated batch reads again, and some before them, are compared; what could not be compared is shown.
    """
    settings, to, address = current_settings(), given["to"], given["bootstrap"]
    cluster = settings.open_cluster()
    with needs_kafka():
        from spark_replog.mirror.checkpoint_copy import CheckpointCopy
        from spark_replog.mirror.client_config import read_client_config
        from spark_replog.mirror.kafka_side import KafkaSide
        from spark_replog.mirror.kafka_source import KafkaSource
        from spark_replog.mirror.replog_side import ReplogSide
    from spark_replog.storage.open_store import open_store

    options = {} if given["config_file"] is None else read_client_config(given["config_file"])
    with KafkaSource(address, options) as source, ProgressLine(quiet=settings.quiet) as line:
        here, kafka = ReplogSide(cluster), KafkaSide(source)
        sides = (kafka, here) if to == "replog" else (here, kafka)
        original_store = open_store(original, settings.storage_options)
        job = CheckpointCopy(original_store, *sides, compared_count=given["compared_count"])
        plan = job.plan()
        if not given["dry_run"]:
            target = open_store(copy, settings.storage_options)
            target.make_folder("")
            job.write(plan, target, lambda done, total: line.update(f"copied {done:,} of {total:,} files"))
    return _show(plan, copy, to, is_dry_run=given["dry_run"])


def _show(plan: CheckpointPlan, copy: str, to: str, *, is_dry_run: bool) -> int:
    items: list[dict[str, Any]] = [
        {"source": check.source, "topic": check.key.topic, "partition": check.key.partition, "position": check.position,
         "comparedFrom": check.begin, "comparedTo": check.end, "rows": check.row_count, "copy": copy,
         "dryRun": is_dry_run, "ok": True}
        for check in plan.partitions
    ]  # fmt: skip
    columns = {"SOURCE": "source", "TOPIC": "topic", "PARTITION": "partition", "GOES ON AT": "position",
               "COMPARED FROM": "comparedFrom", "TO": "comparedTo", "ROWS": "rows"}  # fmt: skip
    notes = [f"not compared: {text}" for text in plan.unchecked]
    notes += [f"source {name} is of another kind: its offsets are copied as they are" for name in plan.others]
    files = f"files converted: {len(plan.changed)}, copied as they are: {len(plan.copied) + 1}"
    done = f"Nothing was written. Without --dry-run: {files}." if is_dry_run else f"{copy} is written; {files}"
    return emit(items, table(columns, items), *notes, done, f'Start the query with format("{to}") and this checkpoint.')
