"""``replog coordinator``: run."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import click

from spark_replog.cli.completion import config_flag
from spark_replog.cli.output import EXIT_UNREACHABLE, emit, item_of, note, on_signals
from spark_replog.cli.settings import ReplogGroup, current_settings, key_values
from spark_replog.cli.tables import Table, table
from spark_replog.log.acl import AclOperation


@click.group("coordinator", cls=ReplogGroup)
def coordinator() -> None:
    """Do the replica work of commits between commits. Never required."""


@coordinator.command("run", examples=["coordinator run --once", "coordinator run --interval-ms 5000"])
@click.option("--once", is_flag=True, help="Run one round and exit.")
@click.option(
    "--interval-ms", type=click.IntRange(min=1), default=1000, show_default=True, help="Pause between rounds."
)
@config_flag("Coordinator setting. Repeatable.", "coordinator")
def run(once: bool, interval_ms: int, configs: tuple[str, ...]) -> int:
    """Catch up followers, restore leaders, finish reassignments, delete old rows and garbage, remove dead consumers.

    It gives roots that were away the journal entries that they lack, compacts, goes on with derivations ('topic
    derive'), and once an hour copies bad and missing files of snapshots from other roots. Until SIGTERM.
    """
    settings = current_settings()
    path = settings.required_store()
    from spark_replog.admin.coordinator_loop import CoordinatorLoop
    from spark_replog.client.derivations import DerivationRounds
    from spark_replog.groups.group_coordinator import GroupCoordinator
    from spark_replog.groups.group_rebalance import SilenceWatch
    from spark_replog.maintenance.compaction import CompactionRounds
    from spark_replog.maintenance.snapshot_scrub import SnapshotScrub
    from spark_replog.maintenance.upkeep import Upkeep

    cluster = settings.open_cluster(key_values("-c", configs), needs=AclOperation.ALTER)
    groups, watch, compaction = GroupCoordinator(cluster), SilenceWatch(), CompactionRounds(cluster)

    snapshots, derivations = SnapshotScrub(cluster, is_repairing=True), DerivationRounds(cluster)

    after_round = (
        partial(groups.remove_expired, watch), compaction.run_once, snapshots.run_if_due, derivations.run_once,
    )  # fmt: skip
    loop = CoordinatorLoop(cluster, after_round, Upkeep(cluster).run_if_due)
    if once:
        done = loop.run_once()
        counts = asdict(done)
        parts: list[str | Table] = ["  ".join(f"{key.removesuffix('_count')} {count}" for key, count in counts.items())]
        out = [] if done.failed_count else [item_of(broker, "ledgerId broker reason") for broker in loop.out_of_sync()]
        if out:
            parts.append(table({"BROKER": "broker", "LEDGER": "ledgerId", "NOT IN SYNC, BECAUSE": "reason"}, out))
        elif not done.failed_count:
            parts.append("every replica is in sync")
        keys = "ledgerCount leveledCount failoverCount joinedCount reassignedCount electedCount failedCount"
        items = [{**item_of(done, keys), "outOfSync": out, "ok": not done.failed_count}]
        return emit(items, *parts, exit_code=EXIT_UNREACHABLE if done.failed_count else 0)
    stops: list[int] = []
    with on_signals(lambda number, _: stops.append(number)):
        note(f"replog: coordinator runs on {path}; SIGTERM stops it")
        rounds = loop.run(lambda: bool(stops), interval_ms=interval_ms)
    return emit([{"rounds": rounds, "ok": True}], f"stopped after {rounds} rounds")
