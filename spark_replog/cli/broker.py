"""``replog broker``: list, fence, unfence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import confirm, emit, item_of, note
from spark_replog.cli.settings import ReplogGroup, current_settings, yes_flag
from spark_replog.cli.tables import table

if TYPE_CHECKING:
    from spark_replog.cluster.cluster import Cluster

_SHOWN_MAX = 5
_broker_ids = click.argument("broker_ids", nargs=-1, required=True, type=int, metavar="BROKER...")


@click.group("broker", cls=ReplogGroup)
def broker() -> None:
    """List, fence and unfence brokers."""


def _show(cluster: Cluster, broker_ids: tuple[int, ...] = ()) -> int:
    from spark_replog.monitor.store_monitor import StoreMonitor

    view = StoreMonitor(cluster).look()
    registered = cluster.cluster_ledger.ask(lambda state: dict(state.brokers))
    partitions = [part for topic in view.topics for part in topic.partitions]
    items: list[dict[str, Any]] = [
        {
            **item_of(health, "broker=broker_id url"),
            "registeredUrl": registered[health.broker_id].url,
            "rack": health.rack,
            "state": "fenced" if health.is_fenced else "active",
            "root": "away" if health.is_away else "ok",
            "journal": health.is_metadata,
            "leaders": view.leader_count(health.broker_id),
            "inSync": sum(health.broker_id in part.isr for part in partitions),
            "replicas": sum(health.broker_id in part.replicas for part in partitions),
            "ok": True,
        }
        for health in view.brokers
        if health.broker_id in registered and (not broker_ids or health.broker_id in broker_ids)
    ]
    keys = ["broker", "state", "root", "journal", "leaders", "inSync", "replicas", "rack", "url"]
    columns = {"IN-SYNC" if key == "inSync" else key.upper(): key for key in keys}
    if any(item["url"] != item["registeredUrl"] for item in items):
        columns["REGISTERED AS"] = "registeredUrl"
    return emit(items, table(columns, items))


@broker.command("list", examples=["broker list"])
def list_brokers() -> int:
    """List brokers: whether their roots answer, and how many partitions they lead.

    URL is the root that this command opened. REGISTERED AS is shown where a root was moved since it was registered.
    """
    return _show(current_settings().open_cluster())


@broker.command("fence", examples=["broker fence 2 -y"])
@_broker_ids
@yes_flag
def fence(broker_ids: tuple[int, ...], yes: bool) -> int:
    """Take brokers out of service: they leave every ISR and lead nothing.

    Rows that only they hold become readable when they are back. Where a root does not answer, rows written with acks=1
    that only it holds and that no reader has seen are given up. Warn where a partition would have no leader, or fewer
    in-sync replicas than min.insync.replicas.
    """
    from spark_replog.admin.admin import BrokerAdmin
    from spark_replog.monitor.store_monitor import StoreMonitor

    cluster = current_settings().open_cluster()
    findings = StoreMonitor(cluster).fence_warnings(broker_ids)
    if findings:
        shown = "; ".join(finding.detail for finding in findings[:_SHOWN_MAX])
        more = f"; and {len(findings) - _SHOWN_MAX} more" if len(findings) > _SHOWN_MAX else ""
        note(f"warning: {shown}{more}. Look first: replog topic describe.")
    confirm(yes, f"Fence {', '.join(map(str, broker_ids))}: take out of service?")
    for broker_id in broker_ids:
        BrokerAdmin(cluster).fence(broker_id)
    return _show(cluster, broker_ids)


@broker.command("unfence", examples=["broker unfence 2"])
@_broker_ids
def unfence(broker_ids: tuple[int, ...]) -> int:
    """Put brokers back into service. They join the ISRs when they have caught up."""
    from spark_replog.admin.admin import BrokerAdmin

    cluster = current_settings().open_cluster()
    for broker_id in broker_ids:
        BrokerAdmin(cluster).unfence(broker_id)
    return _show(cluster, broker_ids)
