"""``replog query``: list, describe and check streaming queries by their checkpoints; how readers are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_replog.cli.output import (
    EXIT_CRITICAL,
    EXIT_FAILED,
    act_on_each,
    emit,
    human_bytes,
    human_time,
    item_table,
    quoted,
)
from spark_replog.cli.settings import ReplogGroup, Settings, current_settings, parse_duration_ms
from spark_replog.clock import Clock, human_duration
from spark_replog.errors import ReplogError, RetriableError

if TYPE_CHECKING:
    from spark_replog.health.readers import Judged, Limits, PartitionProgress, Reader


_Command = TypeVar("_Command", bound=Callable[..., Any])


def limit_flags(command: _Command) -> _Command:
    """Add the flags of the limits to a check."""
    after = click.option(
        "--after",
        default="5m",
        show_default=True,
        metavar="DURATION",
        help="How long rows may wait without progress. Use more than a query's trigger interval and its longest batch.",
    )
    most = click.option("--max-lag", metavar="DURATION", help="SLOW in any case above this age of unread rows.")
    return after(most(command))


def read_limits(after: str, max_lag: str | None) -> Limits:
    """Return the limits of the flags."""
    from spark_replog.health.readers import Limits

    still_ms = parse_duration_ms(after)
    return Limits(still_ms, min(60_000, still_ms), None if max_lag is None else parse_duration_ms(max_lag))


def reader_item(reader: Reader, judged: Judged, noun: str) -> dict[str, Any]:
    """Return a reader with its verdict as JSON values."""
    verdicts = judged.partitions or [judged] * len(reader.partitions)
    return {
        noun: reader.name,
        "state": reader.state,
        "verdict": judged.verdict.value,
        "reason": judged.reason,
        "lag": reader.lag,
        "lagBytes": reader.lag_bytes,
        "lagMs": reader.lag_ms,
        "catchUpMs": reader.catch_up_ms,
        "lastSignMs": reader.last_sign_ms or None,
        "partitions": [_partition_item(part, each) for part, each in zip(reader.partitions, verdicts, strict=True)],
    }


def _partition_item(part: PartitionProgress, judged: Judged) -> dict[str, Any]:
    lag = part.lag
    return {
        "topic": part.topic,
        "partition": part.partition,
        "committed": part.position,
        "logStartOffset": None if lag is None else lag.log_start_offset,
        "highWatermark": None if lag is None else lag.high_watermark,
        "lag": None if lag is None else lag.lag,
        "lagMs": None if lag is None else lag.lag_ms,
        "lagBytes": None if lag is None else lag.lag_bytes,
        "speed": None if lag is None or lag.speed is None else round(lag.speed, 3),
        "catchUpMs": part.catch_up_ms,
        "member": part.owner,
        "committedMs": part.position_ms,
        "metadata": part.note,
        "verdict": judged.verdict.value,
        "reason": judged.reason,
    }


def reader_text(items: Sequence[dict[str, Any]], noun: str) -> str:
    """Return the partitions of readers as one table, and a line of totals for each reader."""
    columns = {
        noun.upper(): noun,
        "TOPIC": "topic",
        "PARTITION": "partition",
        "COMMITTED": "committed",
        "END": "highWatermark",
        "LAG": "lag",
        "BEHIND": "lagMs",
        "VERDICT": "verdict",
        "MEMBER": "member",
        "NOTE": "metadata",
    }
    rows = [{**each, noun: item[noun]} for item in items for each in item["partitions"]]
    lines = [item_table(columns, rows, texts={"partition"}, shown={"lagMs": human_duration}), ""]
    for item in items:
        lacking = sum(each["committed"] is None for each in item["partitions"])
        without = f"{lacking} partitions without a position, " if lacking else ""
        seen = "never" if item["lastSignMs"] is None else human_time(item["lastSignMs"])
        lines.append(
            f"{quoted(item[noun])}: {item['state']}, {item['lag']:,} rows and {human_bytes(item['lagBytes'])} behind, "
            f"{without}last seen {seen}"
        )
    return "\n".join(lines)


def show_verdicts(
    noun: str, names: Iterable[str], read: Callable[[str], Reader], clock: Clock, limits: Limits, settings: Settings
) -> int:
    """Print the verdict on each reader, or why it cannot be read; return the exit code of the worst.

    Raises:
        ReplogError: of ``read``, if there is one name; RetriableError: as ``act_on_each``.
    """
    from spark_replog.health.readers import judge, worst_of

    judged: list[Judged] = []

    def act(name: str) -> dict[str, Any]:
        reader = read(name)
        judged.append(judge(reader, clock.now_ms(), limits))
        return {**reader_item(reader, judged[-1], noun), "ok": judged[-1].verdict.value == "OK"}

    wanted = list(names)
    items = [act(wanted[0])] if len(wanted) == 1 else act_on_each(noun, wanted, act)  # alone, its error is the answer
    found = [item for item in items if "error" not in item]
    columns = {
        "VERDICT": "verdict",
        noun.upper(): noun,
        "LAG": "lag",
        "BYTES": "lagBytes",
        "BEHIND": "lagMs",
        "LAST SEEN": "lastSignMs",
        "REASON": "reason",
    }
    shown: dict[str, Callable[[Any], str]] = {
        "lagBytes": human_bytes,
        "lagMs": human_duration,
        "lastSignMs": human_time,
    }
    text = item_table(columns, found, shown=shown) if found else "" if items else f"no {noun}"
    worst = worst_of(judged).exit_code
    exit_code = EXIT_FAILED if len(found) < len(items) and worst != EXIT_CRITICAL else worst
    return emit(f"{noun} check", items, settings, text=text, exit_code=exit_code)


@click.group("query", cls=ReplogGroup)
def query() -> None:
    """Show where Spark's streaming queries stand, by their checkpoint folders.

    CHECKPOINT is a checkpointLocation, or a folder with several of them. The query need not run. Nothing is written.
    """


def _checkpoints(names: tuple[str, ...], settings: Settings) -> list[str]:
    """Return the checkpoints of the folders; a folder that has none, or that cannot be read, is left as it is."""
    from spark_replog.monitor.query_monitor import list_checkpoints

    found: dict[str, None] = {}
    for name in names:
        try:
            urls = list_checkpoints(name, settings.storage_options)
        except RetriableError:
            raise
        except ReplogError:
            if len(names) == 1:
                raise
            urls = []  # to read it raises this again, beside what the other folders have
        found.update(dict.fromkeys(urls or [name]))
    return list(found)


_argument = click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...")


@query.command("list", examples=["query list ./checkpoints"])
@_argument
def list_queries(checkpoints: tuple[str, ...]) -> int:
    """List queries: their last batch, and how far they are behind."""
    settings = current_settings()
    items = _items(checkpoints, settings)
    columns = {
        "CHECKPOINT": "checkpoint",
        "STATE": "state",
        "BATCH": "batch",
        "LAST BATCH": "lastSignMs",
        "LAG": "lag",
        "BYTES": "lagBytes",
        "BEHIND": "lagMs",
        "VERDICT": "verdict",
    }
    found = [item for item in items if item["ok"]]
    shown = {"lastSignMs": human_time, "lagBytes": human_bytes, "lagMs": human_duration}
    return emit("query list", items, settings, text=item_table(columns, found, shown=shown) if found else "")


@query.command("describe", examples=["query describe ./checkpoints/orders"])
@_argument
def describe(checkpoints: tuple[str, ...]) -> int:
    """Show where queries stand in each partition, and how far they are behind."""
    settings = current_settings()
    items = _items(checkpoints, settings)
    found = [item for item in items if item["ok"]]
    return emit("query describe", items, settings, text=reader_text(found, "checkpoint") if found else "")


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

    return show_verdicts("query", _checkpoints(checkpoints, settings), read, cluster.clock, limits, settings)


def _items(names: tuple[str, ...], settings: Settings) -> list[dict[str, Any]]:
    cluster = settings.open_cluster()
    from spark_replog.health.readers import judge
    from spark_replog.monitor.query_monitor import QueryMonitor, read_checkpoint

    monitor = QueryMonitor(cluster)

    def act(url: str) -> dict[str, Any]:
        checkpoint = read_checkpoint(url, settings.storage_options)
        reader: Reader = monitor.describe(checkpoint)
        item = reader_item(reader, judge(reader, cluster.clock.now_ms()), "checkpoint")
        return {**item, "queryId": checkpoint.query_id, "batch": reader.batch_id, "ok": True}

    return act_on_each("checkpoint", _checkpoints(names, settings), act)
