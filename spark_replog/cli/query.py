"""``replog query``: list, describe and check streaming queries by their checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import EXIT_CRITICAL, EXIT_FAILED, act_on_each, emit
from spark_replog.cli.settings import ReplogGroup, Settings, current_settings
from spark_replog.cli.tables import table
from spark_replog.cli.view import limit_flags, read_limits, reader_item, reader_parts
from spark_replog.clock import Clock
from spark_replog.errors import ReplogError, RetriableError

if TYPE_CHECKING:
    from spark_replog.health.readers import Limits, Reader


def show_verdicts(noun: str, names: Iterable[str], read: Callable[[str], Reader], clock: Clock, limits: Limits) -> int:
    """Print the verdict on each reader, or why it cannot be read; return the exit code of the worst.

    Where there is one name, the error of ``read`` is raised.
    """
    from spark_replog.health.readers import judge

    codes: list[int] = []

    def act(name: str) -> dict[str, Any]:
        reader = judge(read(name), clock.now_ms(), limits)
        codes.append(reader.verdict.exit_code)
        return {**reader_item(reader, noun), "ok": not codes[-1]}

    wanted = list(names)
    items = [act(wanted[0])] if len(wanted) == 1 else act_on_each(noun, wanted, act)  # alone, its error is the answer
    readers = [item for item in items if "error" not in item]
    columns = {"VERDICT": "verdict", noun.upper(): noun, "LAG": "lag", "BYTES": "lagBytes", "BEHIND": "lagMs",
               "LAST SEEN": "lastSignMs", "REASON": "reason"}  # fmt: skip
    worst = max(codes, default=0)
    exit_code = EXIT_FAILED if len(readers) < len(items) and worst != EXIT_CRITICAL else worst
    return emit(items, table(columns, readers) if readers else "" if items else f"no {noun}", exit_code=exit_code)


@click.group("query", cls=ReplogGroup)
def query() -> None:
    """Show where Spark's streaming queries stand, by their checkpoint folders.

    CHECKPOINT is a checkpointLocation, or a folder with several of them. The query need not run. Nothing is written.
    """


def _checkpoints(names: tuple[str, ...], settings: Settings) -> list[str]:
    """Return the checkpoints of the folders; a folder that has none, or that cannot be read, is left as it is."""
    from spark_replog.monitor.query_monitor import list_checkpoints

    checkpoints: dict[str, None] = {}
    for name in names:
        try:
            urls = list_checkpoints(name, settings.storage_options)
        except RetriableError:
            raise
        except ReplogError:
            if len(names) == 1:
                raise
            urls = []  # to read it raises this again, beside what the other folders have
        checkpoints.update(dict.fromkeys(urls or [name]))
    return list(checkpoints)


_argument = click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...")


@query.command("list", examples=["query list ./checkpoints"])
@_argument
def list_queries(checkpoints: tuple[str, ...]) -> int:
    """List queries: their last batch, and how far they are behind."""
    items = _items(checkpoints)
    columns = {"CHECKPOINT": "checkpoint", "STATE": "state", "BATCH": "batch", "LAST BATCH": "lastSignMs", "LAG": "lag",
               "BYTES": "lagBytes", "BEHIND": "lagMs", "VERDICT": "verdict"}  # fmt: skip
    queries = [item for item in items if item["ok"]]
    return emit(items, table(columns, queries) if queries else "")


@query.command("describe", examples=["query describe ./checkpoints/orders"])
@_argument
def describe(checkpoints: tuple[str, ...]) -> int:
    """Show where queries stand in each partition, and how far they are behind."""
    items = _items(checkpoints)
    queries = [item for item in items if item["ok"]]
    return emit(items, *(reader_parts(queries, "checkpoint") if queries else ()))


@query.command("check", examples=["query check ./checkpoints/orders --after 10m -f json"])
@_argument
@limit_flags
def check(checkpoints: tuple[str, ...], after: str, max_lag: str | None) -> int:
    """Judge how queries read: OK, SLOW, STALLED, STOPPED or LOSING, with the reason.

    Exit code 0 where all are OK, 3 where one is SLOW, 4 where one does not move or loses rows. One that cannot be read
    hides no other; the exit code is then 1, or 4.
    """
    settings = current_settings()
    limits = read_limits(after, max_lag)
    cluster = settings.open_cluster()
    from spark_replog.monitor.query_monitor import QueryMonitor, read_checkpoint

    monitor = QueryMonitor(cluster)

    def read(url: str) -> Reader:
        return monitor.describe(read_checkpoint(url, settings.storage_options))

    return show_verdicts("query", _checkpoints(checkpoints, settings), read, cluster.clock, limits)


def _items(names: tuple[str, ...]) -> list[dict[str, Any]]:
    settings = current_settings()
    cluster = settings.open_cluster()
    from spark_replog.health.readers import judge
    from spark_replog.monitor.query_monitor import QueryMonitor, read_checkpoint

    monitor = QueryMonitor(cluster)

    def act(url: str) -> dict[str, Any]:
        checkpoint = read_checkpoint(url, settings.storage_options)
        reader = judge(monitor.describe(checkpoint), cluster.clock.now_ms())
        item = reader_item(reader, "checkpoint")
        return {**item, "queryId": checkpoint.query_id, "batch": reader.batch_id, "ok": True}

    return act_on_each("checkpoint", _checkpoints(names, settings), act)
