"""``replog top``: brokers, topics and readers on a terminal, refreshed every few seconds."""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from spark_replog.cli.output import EXIT_OK, emit, item_of, on_signals, show
from spark_replog.cli.settings import FiniteRange, ReplogCommand, Settings, current_settings
from spark_replog.cli.tables import (
    Table,
    console_of,
    cut,
    human_bytes,
    human_time,
    is_terminal,
    quoted,
    sparkline,
)
from spark_replog.cli.view import (
    Item,
    broker_items,
    broker_table,
    checkpoint_flag,
    finding_items,
    finding_subject,
    totals,
    typed,
)
from spark_replog.clock import human_duration

if TYPE_CHECKING:
    from spark_replog.health.store import StoreView, TopicDescription
    from spark_replog.monitor.store_monitor import StoreWatch

_MINUTES = 15
_PLAIN_WIDTH, _PLAIN_HEIGHT = 160, 200
_KEY_WAIT_SECONDS = 0.2
"""How soon the page follows a change of the terminal's size, and a signal that another thread took."""


@click.command("top", cls=ReplogCommand, examples=["top", "top --checkpoint ./checkpoints -d 5", "top -n 1"])
@checkpoint_flag("Queries to judge too.")
@click.option("-d", "--delay", type=FiniteRange(0.1, 86_400), default=2.0, show_default=True, metavar="SECONDS",
              help="Pause between two looks.")  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(min=1), help="Exit after this many refreshes.  [1 if stdout is not a terminal]"
)
def top(checkpoints: tuple[str, ...], delay: float, count: int | None) -> int:
    """Watch rates, sizes, lag and faults on a terminal: the busiest topics and the worst readers first. q ends it.

    Reads only: one get per metadata root and ledger for each look; roots are looked at every 30 seconds. Bars are the
    last 15 minutes. If stdout is not a terminal it prints once; -f jsonl prints one object for each look.
    """
    settings = current_settings()
    is_live = is_terminal(sys.stdout) and settings.format == "text" and count is None
    if settings.format == "json" and (count or 1) > 1:
        raise click.UsageError("-f json prints one object: use -f jsonl for several looks")
    cluster = settings.open_cluster()
    from spark_replog.monitor.store_monitor import StoreWatch

    watch = StoreWatch(cluster, checkpoints, settings.storage_options)
    if is_live:
        return _run_live(watch, settings, delay)
    for number in range(count or 1):
        if number:
            cluster.clock.sleep_ms(delay * 1000)
            if settings.format == "text":
                show("")
        view = watch.look()
        width = max(80, shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns)
        emit([_item(view, settings)], *page(view, settings, width, _PLAIN_HEIGHT))
    return EXIT_OK


def _run_live(watch: StoreWatch, settings: Settings, delay: float) -> int:
    """Draw until ``q``. If the store stops answering, the page shows that, and the next look tries again."""
    from rich.console import Group
    from rich.live import Live

    from spark_replog.errors import ReplogError

    view, trouble = watch.look(), ""  # an error of the first look fails the command
    console, clock = console_of(sys.stdout), watch.cluster.clock
    with _keys() as is_ended, Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False,
                                   redirect_stderr=False) as live:  # fmt: skip
        while True:
            size, end_ms = None, clock.monotonic_ms() + delay * 1000
            while (left_ms := end_ms - clock.monotonic_ms()) > 0:
                if console.size != size:
                    size = console.size
                    above = [f"CRITICAL {trouble}"] if trouble else []
                    parts = page(view, settings, size.width, size.height - len(above))
                    live.update(Group(*map(cut, [*above, *parts])), refresh=True)
                if is_ended(min(_KEY_WAIT_SECONDS, left_ms / 1000)):
                    return EXIT_OK
            try:
                view, trouble = watch.look(), ""
            except ReplogError as error:
                trouble = f"no answer since {human_time(view.now_ms)}: {error.args[0]}"


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for seconds at most and returns whether ``q`` was typed; SIGTERM ends like Ctrl-C."""
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # no Unix: no keys
        termios = None  # type: ignore[assignment]
    keys = sys.stdin.fileno() if termios is not None and is_terminal(sys.stdin) else None
    before = [] if keys is None else termios.tcgetattr(keys)
    asked_to_stop: list[int] = []

    def stop(number: int, *_: object) -> None:
        """Stop now, and at the next wait: Python drops an exception that is raised while it frees an object."""
        asked_to_stop.append(number)
        raise KeyboardInterrupt  # so that SIGTERM also restores the terminal

    def is_ended(seconds: float) -> bool:
        if asked_to_stop:
            raise KeyboardInterrupt
        if not select.select([] if keys is None else [keys], [], [], seconds)[0]:
            return False
        return os.read(keys or 0, 32)[:1] in (b"q", b"Q", b"\x04", b"")

    with on_signals(stop):
        try:
            if keys is not None:
                tty.setcbreak(keys)
            yield is_ended
        finally:
            if keys is not None:
                termios.tcsetattr(keys, termios.TCSADRAIN, before)


def page(view: StoreView, settings: Settings, width: int, height: int) -> list[str | Table]:
    """Return the page's lines and tables: at most `height` lines, if each one is cut at `width` characters."""
    title, time = f"{view.verdict}  {quoted(view.path)}", human_time(view.now_ms)
    shown: list[str | Table] = [f"{title[: width - len(time) - 1].ljust(width - len(time))}{time}", *_totals(view)]
    room = height - len(shown)
    parts = [part for part in (_faults(view, settings), _brokers(view), _readers(view, width), _topics(view, width))
             if (part.rows if isinstance(part, Table) else part)]  # fmt: skip
    for number, part in enumerate(parts):
        if room < 3:
            break
        share = room - 1 if number == len(parts) - 1 else max(3, room // (len(parts) - number)) - 1
        shown.append("")
        lines = _within(part, share)
        shown += lines
        room -= 1 + sum(1 + len(line.rows) if isinstance(line, Table) else 1 for line in lines)
    return shown[:height]


def _within(part: Table | list[str], share: int) -> list[str | Table]:
    """Return a part of the page with at most this many lines, the last of which counts the others."""
    head = int(isinstance(part, Table))
    count = len(part.rows if isinstance(part, Table) else part)
    left = 0 if head + count <= share else head + count - share + 1
    more = [f"and {left} more"] if left else []
    if isinstance(part, Table):
        return [Table(part.headings, part.rows[: count - left], part.words), *more]
    return [*part[: count - left], *more]


def _faults(view: StoreView, settings: Settings) -> list[str]:
    """Return each kind of fault with its subjects, then the commands that help, each once; then what is unread."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for finding in view.findings:
        kinds.setdefault((finding.level.name, finding.fault.value), []).append(finding_subject(finding))
    lines = [f"{level} {fault}: {len(whom)}: {', '.join(whom)}" for (level, fault), whom in kinds.items()]
    remedies = dict.fromkeys(typed(problem.remedy, settings) for problem in view.findings)
    unread = [f"WARN {folder}: {error.args[0]}" for folder, error in view.unread]
    lines += [*(f"-> {remedy}" for remedy in list(remedies)[:3]), *unread]
    return [line.replace("\n", " ").replace("\t", " ") for line in lines]


def _totals(view: StoreView) -> list[str]:
    rows, size_bytes = view.rates(1)
    by_minute = [topic.traffic.bytes_by(1, _MINUTES, view.now_ms) for topic in view.topics]
    bars = sparkline([sum(minute) for minute in zip(*by_minute, strict=True)])
    pace, a_day = human_bytes(int(size_bytes)), human_bytes(view.bytes_per_day)
    return [
        f"{view.serving_count} of {len(view.brokers)} roots serve; topics {len(view.topics)}, partitions "
        f"{view.partition_count}, groups {len(view.groups)}",
        f"{rows:,.1f} rows/s, {pace}/s, {a_day} a day  {bars}",
    ]


def _brokers(view: StoreView) -> Table:
    made = broker_table(broker_items(view))
    rows = {broker.broker_id: number for number, broker in enumerate(view.brokers)}
    words = {rows[fault.broker_id]: fault.level.name for fault in reversed(view.findings) if fault.broker_id in rows}
    return Table(made.headings, made.rows, words)


def _topics(view: StoreView, width: int) -> Table:
    def row(topic: TopicDescription) -> tuple[object, ...]:
        rows, size_bytes = topic.traffic.rates(1, view.now_ms)
        bars = sparkline(topic.traffic.bytes_by(1, _MINUTES, view.now_ms))
        pace, held = human_bytes(int(size_bytes)), human_bytes(topic.size_bytes)
        return _short(topic.name, width - 57), rows, topic.traffic.rates(_MINUTES, view.now_ms)[0], pace, held, bars

    busiest = sorted(
        view.topics, key=lambda topic: (-topic.traffic.rates(_MINUTES, view.now_ms)[1], -topic.size_bytes, topic.name)
    )
    return Table(["TOPIC", "ROWS/S", "15 MIN", "BYTES/S", "HOLDS", "15 MINUTES"], [row(topic) for topic in busiest])


def _readers(view: StoreView, width: int) -> Table:
    from spark_replog.health.readers import worst_first

    rows = [
        (
            reader.verdict.value,
            _short(reader.name, max(16, width - 56)),
            reader.lag,
            human_duration(reader.lag_ms),
            human_duration(reader.catch_up_ms),
            reader.reason,
        )
        for reader in worst_first(view.readers)
    ]
    words = {number: str(row[0]) for number, row in enumerate(rows)}
    return Table(["VERDICT", "READER", "LAG", "BEHIND", "CATCH UP", "REASON"], rows, words)


def _short(name: str, size: int) -> str:
    """Return a name, shortened in the middle to fit, since its end says more."""
    shown = quoted(name)
    return shown if len(shown) <= size else f"{shown[: size // 2 - 1]}..{shown[-(size - size // 2 - 1) :]}"


def _item(view: StoreView, settings: Settings) -> Item:
    def rates(topic: TopicDescription) -> Item:
        windows = [topic.traffic.rates(minutes, view.now_ms) for minutes in (1, 5, 15)]
        return {
            **item_of(topic, "topic=name bytes=size_bytes"),
            "rowsPerSecond": [round(rows, 3) for rows, _ in windows],
            "bytesPerSecond": [round(size_bytes, 3) for _, size_bytes in windows],
            "bytesByMinute": topic.traffic.bytes_by(1, _MINUTES, view.now_ms),
        }

    return {
        "path": view.path,
        "timeMs": view.now_ms,
        **totals(view),
        "brokers": broker_items(view),
        "findings": finding_items(view.findings, settings),
        "rates": [rates(topic) for topic in view.topics],
        "readers": [item_of(reader, "reader=name kind verdict reason lag lagMs catchUpMs") for reader in view.readers],
        "unread": [folder for folder, _ in view.unread],
    }
