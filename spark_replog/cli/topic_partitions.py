"""``replog topic elect`` and ``replog topic reassign``: what Kafka's kafka-leader-election.sh and
kafka-reassign-partitions.sh do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.confirmation import confirm
from spark_replog.cli.output import emit, error_item, note, table
from spark_replog.cli.settings import Settings, current_settings, global_options
from spark_replog.errors import ErrorCode

if TYPE_CHECKING:
    from spark_replog.admin.partition_admin import PartitionAdmin, PartitionOutcome


def _admin(settings: Settings) -> PartitionAdmin:
    from spark_replog.admin.partition_admin import PartitionAdmin

    return PartitionAdmin(settings.open_cluster())


def _numbers(text: str | None) -> list[int] | None:
    if not text:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.UsageError(f"wants numbers such as 0,1, not '{text}'") from None


def _item(name: str, found: PartitionOutcome) -> dict[str, Any]:
    fields = {
        "topic": name,
        "partition": found.partition,
        "leader": found.leader,
        "leaderEpoch": found.leader_epoch,
        "isr": list(found.isr),
        "replicas": list(found.replicas),
        "addingReplicas": list(found.adding),
        "removingReplicas": list(found.removing),
    }
    if found.error is None:
        return {**fields, "ok": True}
    if found.error.code is ErrorCode.ELECTION_NOT_NEEDED:
        return {**fields, "ok": True, "note": found.error.code.name}
    return {**error_item(found.error), **fields, "ok": False}


def _show(command: str, name: str, outcomes: Sequence[PartitionOutcome], settings: Settings) -> int:
    items = [_item(name, each) for each in outcomes]
    rows = [
        (
            str(item["partition"]),
            str(item["leader"]),
            str(item["leaderEpoch"]),
            item["isr"],
            item["replicas"],
            item["addingReplicas"],
            item["removingReplicas"],
            item.get("error", item.get("note", "ok")),
        )
        for item in items
    ]
    headings = ["PARTITION", "LEADER", "EPOCH", "ISR", "REPLICAS", "ADDING", "REMOVING", "RESULT"]
    text = table(headings, rows) if rows else f"topic {name}: nothing is being moved"
    return emit(command, items, settings, text=text)


def parse_assignment(text: str | None) -> list[list[int]] | None:
    """Return the brokers of each partition from Kafka's form, ``0:1:2,1:2:0``."""
    if text is None:
        return None
    try:
        return [[int(broker) for broker in row.split(":")] for row in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--replica-assignment wants brokers such as 0:1:2,1:2:0, not '{text}'") from None


@click.command("elect")
@global_options
@click.argument("name")
@click.option("-p", "--partitions", metavar="P,...", help="Only these partitions.")
@click.option("--unclean", is_flag=True, help="Where no in-sync replica is left. Loses rows.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def elect(name: str, partitions: str | None, unclean: bool, yes: bool) -> int:
    """Elect the preferred leaders, or a leader for partitions whose leader is gone."""
    settings = current_settings()
    numbers = _numbers(partitions)
    if unclean:
        confirm(yes, f"Elect out-of-sync leaders of {name}? Rows that they lack are lost, readable ones too.")
    outcomes = _admin(settings).elect_leaders(name, numbers, is_unclean=unclean)
    return _show("topic elect", name, outcomes, settings)


@click.command("reassign")
@global_options
@click.argument("name")
@click.argument("targets", nargs=-1, metavar="[PARTITION=BROKER,BROKER...]...")
@click.option("--cancel", is_flag=True, help="Go back to the replicas of before.")
@click.option("-p", "--partitions", metavar="P,...", help="With --cancel: only these partitions.")
def reassign(name: str, targets: tuple[str, ...], cancel: bool, partitions: str | None) -> int:
    """Move partitions to other brokers (preferred leader first); without targets, show what is being moved."""
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
            raise click.UsageError(f"wants PARTITION=BROKER,BROKER such as 0=1,2,3, not '{target}'")
    admin = _admin(settings)
    if cancel:
        return _show("topic reassign", name, admin.cancel(name, _numbers(partitions)), settings)
    if not wanted:
        return _show("topic reassign", name, admin.list_reassignments(name), settings)
    outcomes = admin.reassign(name, wanted)
    if any(each.adding for each in outcomes):
        note("The new replicas catch up with the next commits, or at once by: replog coordinator run --once")
    return _show("topic reassign", name, outcomes, settings)
