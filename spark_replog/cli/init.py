"""``replog init``: make a new, empty store."""

from __future__ import annotations

import click

from spark_replog.cli.output import emit, note, table
from spark_replog.cli.settings import current_settings, global_options


@click.command("init")
@global_options
@click.option(
    "--brokers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of roots to make in the parent directory: broker-0, broker-1 ... [1]",
)
@click.option("--no-fsync", is_flag=True, help="Do not flush to disk: a power failure may lose acknowledged rows.")
@click.option(
    "--rack",
    "racks",
    multiple=True,
    metavar="NAME",
    help="Failure domain of a broker. Give it once per broker, in order.",
)
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
    found = cluster.brokers
    if len(found.broker_ids) == 2 and not settings.quiet:
        note(f"replog: {TWO_BROKERS_WARNING}")
    items = [
        {
            "clusterId": found.cluster_id,
            "brokers": [
                {"broker": broker, "url": found.url(broker), "metadata": broker in found.metadata_broker_ids}
                for broker in found.broker_ids
            ],
            "fsync": found.fsync,
            "ok": True,
        }
    ]
    rows = [(str(b), found.url(b), b in found.metadata_broker_ids) for b in found.broker_ids]
    text = f"store {found.cluster_id}\n" + table(["BROKER", "URL", "JOURNALS"], rows)
    return emit("init", items, settings, text=text)
