"""``replog top``: brokers, topics and readers on a terminal, refreshed every few seconds."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spark_replog.cli.output import (
    EXIT_CRITICAL,
    EXIT_OK,
    EXIT_WARN,
    emit,
    escaped,
    finding_items,
    finding_remedy,
    finding_subject,
    human_bytes,
    human_time,
    is_terminal,
    quoted,
    show,
    sparkline,
    table,
)
from spark_replog.cli.settings import FiniteRange, ReplogCommand, Settings, current_settings
from spark_replog.cli.status import VERDICT_WORDS, broker_items, broker_table, totals
from spark_replog.clock import human_duration

if TYPE_CHECKING:
    from spark_replog.health.store import Finding, StoreHealth, TopicDescription
    from spark_replog.monitor.store_monitor import Seen, StoreWatch

_MINUTES = 15
_PLAIN_WIDTH, _PLAIN_HEIGHT = 160, 200
_COLOURS = {EXIT_WARN: "33", EXIT_CRITICAL: "31"}
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Switch to the alternate screen, without cursor and wrapping; and back."""


class Line(NamedTuple):
    """One line of the page; level: 0, or the exit code of the problem that it shows."""

    text: str
    level: int = 0


@click.command("top", cls=ReplogCommand, examples=["top", "top --checkpoint ./checkpoints -d 5", "top -n 1"])
@click.option("--checkpoint", "checkpoints", multiple=True, metavar="FOLDER", help="Queries to judge too. Repeatable.")
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
        seen = watch.look()
        width = shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns
        text = "\n".join(line.text for line in page(seen, settings, max(80, width), _PLAIN_HEIGHT))
        emit("top", [_item(seen, settings)], settings, text=text)
    return EXIT_OK


def _run_live(watch: StoreWatch, settings: Settings, delay: float) -> int:
    """Draw until ``q``. If the store stops answering, the page shows that, and the next look tries again."""
    from spark_replog.errors import ReplogError

    seen, trouble = watch.look(), ""  # an error of the first look fails the command
    with _screen() as wait:
        while True:
            size = shutil.get_terminal_size()
            lines = page(seen, settings, size.columns, size.lines - bool(trouble))
            _draw([*([Line(trouble[: size.columns], EXIT_CRITICAL)] if trouble else []), *lines])
            what = wait(delay)
            if what == "q":
                return EXIT_OK
            if not what:
                try:
                    seen, trouble = watch.look(), ""
                except ReplogError as error:
                    trouble = escaped(f"no answer since {human_time(seen.health.now_ms)}: {error.args[0]}")


def _draw(lines: Sequence[Line]) -> None:
    shown = [
        f"\x1b[{_COLOURS[line.level]}m{line.text}\x1b[0m"
        if line.level in _COLOURS and not os.environ.get("NO_COLOR")
        else line.text
        for line in lines
    ]
    show("\x1b[H" + "\x1b[K\n".join(shown) + "\x1b[K\x1b[J", newline=False)


@contextmanager
def _screen() -> Iterator[Callable[[float], str]]:
    """Switch to the other screen; yield a function that waits and returns ``q`` (key), ``resized``, or '' (timeout)."""
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # no Unix: no keys
        termios = None  # type: ignore[assignment]
    signalled, signals = os.pipe()
    os.set_blocking(signals, False)
    has_keys = termios is not None and is_terminal(sys.stdin)
    keys = sys.stdin.fileno() if has_keys else -1
    before = termios.tcgetattr(keys) if has_keys else []

    asked_to_stop: list[int] = []

    def stop(number: int, *_: object) -> None:
        """Stop now, and at the next wait: Python drops an exception that is raised while it frees an object."""
        asked_to_stop.append(number)
        raise KeyboardInterrupt  # so that SIGTERM also restores the terminal

    def wait(seconds: float) -> str:
        if asked_to_stop:
            raise KeyboardInterrupt
        ready, _, _ = select.select([signalled, *([keys] if has_keys else [])], [], [], seconds)
        if keys in ready and os.read(keys, 32)[:1] in (b"q", b"Q", b"\x04", b""):
            return "q"
        if signalled in ready:
            os.read(signalled, 1024)
        return "resized" if ready else ""

    olds = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    if hasattr(signal, "SIGWINCH"):
        olds[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
    # The signal itself writes to the pipe, since its handler only runs after `select`, which it may just have missed.
    old_wakeup = signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
    try:
        if has_keys:
            tty.setcbreak(keys)
        show(_ENTER, newline=False)
        yield wait
    finally:
        if has_keys:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(old_wakeup)
        for number, old in olds.items():
            signal.signal(number, old)
        os.close(signalled)
        os.close(signals)
        show(_LEAVE, newline=False)


def page(seen: Seen, settings: Settings, width: int, height: int) -> list[Line]:
    """Return the page: at most `height` lines of at most `width` characters."""
    health, findings = seen.health, seen.health.findings
    worst = seen.exit_code
    title = f"{VERDICT_WORDS[worst]}  {quoted(health.path)}"
    time = human_time(health.now_ms)
    head = [Line(f"{title[: width - len(time) - 1].ljust(width - len(time))}{time}", worst), *_totals(health)]
    faults = _faults(findings, settings)
    faults += [Line(f"WARN {folder}: {error.args[0]}", EXIT_WARN) for folder, error in seen.unread]
    brokers = [Line(text) for text in broker_table(broker_items(health, findings), is_whole=True).split("\n")]
    for number, each in enumerate(health.brokers, 1):
        level = max((finding.level for finding in findings if finding.broker_id == each.broker_id), default=0)
        brokers[number] = Line(brokers[number].text, level)
    parts = [faults, brokers, _readers(seen, width), _topics(health, width)]
    room = height - len(head)
    lines = head
    for number, part in enumerate(parts):
        if not part or room < 3:
            continue
        share = room - 1 if number == len(parts) - 1 else max(3, room // (len(parts) - number)) - 1
        shown = part if len(part) <= share else [*part[: share - 1], Line(f"and {len(part) - share + 1} more")]
        lines = [*lines, Line(""), *shown]
        room -= len(shown) + 1
    return [
        Line(escaped(line.text).replace("\n", " ").replace("\t", " ")[:width], line.level) for line in lines[:height]
    ]


def _faults(findings: Sequence[Finding], settings: Settings) -> list[Line]:
    """Return each kind of fault with its subjects, then the commands that help, each once."""
    kinds: dict[tuple[int, str], list[str]] = {}
    for each in findings:
        kinds.setdefault((each.level, each.fault.value), []).append(finding_subject(each))
    lines = [
        Line(f"{'CRITICAL' if level == EXIT_CRITICAL else 'WARN'} {fault}: {len(whom)}: {', '.join(whom)}", level)
        for (level, fault), whom in kinds.items()
    ]
    remedies = dict.fromkeys(finding_remedy(each, settings) for each in findings)
    return [*lines, *(Line(f"-> {each}") for each in list(remedies)[:3])]


def _totals(health: StoreHealth) -> list[Line]:
    rows, size_bytes = health.rates(1)
    serving = sum(each.error is None for each in health.brokers)
    by_minute = [topic.traffic.bytes_by(1, _MINUTES, health.now_ms) for topic in health.topics]
    bars = sparkline([sum(each) for each in zip(*by_minute, strict=True)])
    pace, a_day = human_bytes(int(size_bytes)), human_bytes(int(health.bytes_per_day))
    return [
        Line(
            f"{serving} of {len(health.brokers)} roots serve; topics {len(health.topics)}, partitions "
            f"{health.partition_count}, groups {len(health.groups)}"
        ),
        Line(f"{rows:,.1f} rows/s, {pace}/s, {a_day} a day  {bars}"),
    ]


def _topics(health: StoreHealth, width: int) -> list[Line]:
    def row(topic: TopicDescription) -> tuple[object, ...]:
        rows, size_bytes = topic.traffic.rates(1, health.now_ms)
        return (
            _short(topic.name, width - 57),
            rows,
            topic.traffic.rates(_MINUTES, health.now_ms)[0],
            human_bytes(int(size_bytes)),
            human_bytes(topic.size_bytes),
            sparkline(topic.traffic.bytes_by(1, _MINUTES, health.now_ms)),
        )

    busiest = sorted(
        health.topics, key=lambda each: (-each.traffic.rates(_MINUTES, health.now_ms)[1], -each.size_bytes, each.name)
    )
    return _lines(["TOPIC", "ROWS/S", "15 MIN", "BYTES/S", "HOLDS", "15 MINUTES"], [row(each) for each in busiest])


def _readers(seen: Seen, width: int) -> list[Line]:
    if not seen.readers:
        return []
    worst = sorted(seen.readers, key=lambda each: (-each[1].verdict.exit_code, -each[0].lag_ms, each[0].name))
    rows = [
        (
            judged.verdict.value,
            _short(reader.name, max(16, width - 56)),
            reader.lag,
            human_duration(reader.lag_ms),
            human_duration(reader.catch_up_ms),
            judged.reason,
        )
        for reader, judged in worst
    ]
    lines = _lines(["VERDICT", "READER", "LAG", "BEHIND", "CATCH UP", "REASON"], rows)
    return [
        lines[0],
        *(Line(line.text, each.verdict.exit_code) for line, (_, each) in zip(lines[1:], worst, strict=True)),
    ]


def _lines(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[Line]:
    return [Line(text) for text in table(headings, rows, is_whole=True).split("\n")]


def _short(name: str, size: int) -> str:
    """Return a name, shortened in the middle to fit, since its end says more."""
    shown = quoted(name)
    return shown if len(shown) <= size else f"{shown[: size // 2 - 1]}..{shown[-(size - size // 2 - 1) :]}"


def _item(seen: Seen, settings: Settings) -> dict[str, Any]:
    health, findings = seen.health, seen.health.findings
    return {
        "path": health.path,
        "timeMs": health.now_ms,
        **totals(health, findings),
        "brokers": broker_items(health, findings),
        "findings": finding_items(findings, settings),
        "rates": [
            {
                "topic": topic.name,
                "bytes": topic.size_bytes,
                "rowsPerSecond": [round(topic.traffic.rates(each, health.now_ms)[0], 3) for each in (1, 5, 15)],
                "bytesPerSecond": [round(topic.traffic.rates(each, health.now_ms)[1], 3) for each in (1, 5, 15)],
                "bytesByMinute": topic.traffic.bytes_by(1, _MINUTES, health.now_ms),
            }
            for topic in health.topics
        ],
        "readers": [
            {
                "reader": reader.name,
                "kind": reader.kind,
                "verdict": judged.verdict.value,
                "reason": judged.reason,
                "lag": reader.lag,
                "lagMs": reader.lag_ms,
                "catchUpMs": reader.catch_up_ms,
            }
            for reader, judged in seen.readers
        ],
        "unread": [folder for folder, _ in seen.unread],
    }
