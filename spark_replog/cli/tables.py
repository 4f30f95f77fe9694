"""Tables and figures for people: aligned text in a pipe; on a terminal rich fits them to its width, in colours."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

from spark_replog.clock import human_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_COLOURS = {"WARN": "yellow", "SLOW": "yellow"} | dict.fromkeys(("CRITICAL", "STALLED", "STOPPED", "LOSING"), "red")
"""Of the words that say how bad something is."""


_ANY_WIDTH = 1 << 20
_INDENT = " " * 4
_TEXT_WIDTH_MIN = 40
_DRAWN_MAX = 500
"""Rows; rich takes a millisecond for each."""


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a person is at the other end; None is a stream that was closed before the command began."""
    return stream is not None and stream.isatty()


def console_of(stream: TextIO) -> Console:
    """Return rich's console on a stream: it prints what it is given, and finds no markup, numbers or emojis in it."""
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings: numbers to the right, with thousands separated; None is ``-``, True ``yes``.

    Attributes:
        words: for each row that shows a problem, how bad it is, as WARN.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    words: Mapping[int, str] = field(default_factory=dict)

    def _is_number(self, at: int) -> bool:
        column = [row[at] for row in self.rows]
        return bool(column) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in column)

    def __str__(self) -> str:
        """Return plain text: a line for each row, however wide."""
        lines = [self.headings, *([_cell(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        forms = [f"{{:{'>' if self._is_number(at) else '<'}{width}}}" for at, width in enumerate(widths)]
        return "\n".join("  ".join(map(str.format, forms, line)).rstrip() for line in lines)

    def drawn(self) -> RenderableType:
        """Return it for rich's console, which breaks lines of text; words are whole."""
        from rich.table import Table as RichTable
        from rich.text import Text

        made = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        cells = [[_cell(value) for value in row] for row in self.rows]
        for at, heading in enumerate(self.headings):
            texts = [row[at] for row in cells if " " in row[at]]
            least = min(_TEXT_WIDTH_MIN, max(map(len, texts), default=0))
            justify: Literal["left", "right"] = "right" if self._is_number(at) else "left"
            made.add_column(heading, justify=justify, no_wrap=not texts, min_width=least)
        for row in cells:
            made.add_row(*(Text(cell, _COLOURS.get(cell, "")) for cell in row))
        return made

    def narrow(self, width: int) -> str:
        """Return plain text: as many columns as fit, and below each row the others with their headings."""
        count = len(self.headings)
        while True:
            count -= 1
            lines = str(Table(self.headings[:count], [row[:count] for row in self.rows])).split("\n")
            if count == 1 or len(max(lines, key=len)) <= width:
                break
        narrow_lines = lines[:1]
        for line, row in zip(lines[1:], self.rows, strict=True):
            others = zip(self.headings[count:], map(_cell, row[count:]), strict=True)
            below = "  ".join(f"{heading} {cell}" for heading, cell in others if cell not in ("", "-"))
            wrapper = textwrap.TextWrapper(width, _INDENT, _INDENT, break_long_words=False, break_on_hyphens=False)
            narrow_lines += [line, *wrapper.wrap(below)]
        return "\n".join(narrow_lines)


def cut(part: str | Table) -> Text:
    """Return lines for rich's console that are cut where they do not fit; what stdout cannot encode is escaped."""
    from rich.text import Text

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = escaped(str(part)).encode(encoding, "backslashreplace").decode(encoding)
    words = part.words if isinstance(part, Table) else {-1: part.partition(" ")[0]}
    lines = enumerate(text.split("\n"), -1)
    styled = [Text(line, _COLOURS.get(words.get(number, ""), "")) for number, line in lines]
    return Text("\n", no_wrap=True, overflow="crop").join(styled)


def shown(part: str | Table) -> str:
    """Return a line, or a table as stdout shows it: on a terminal no wider than that, and nothing is left out."""
    if isinstance(part, str):
        return escaped(part)
    if not is_terminal(sys.stdout) or not 0 < len(part.rows) <= _DRAWN_MAX:
        return str(part)
    console, made = console_of(sys.stdout), part.drawn()
    if console.measure(made, options=console.options.update(width=_ANY_WIDTH)).minimum > console.width:
        return part.narrow(console.width)
    with console.capture() as captured:
        console.print(made)
    return captured.get().rstrip("\n")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(quoted(str(part)) for part in value)
    return quoted(str(value))


def quoted(name: str) -> str:
    """Return a name for a line of text: quoted and escaped if a terminal would not print it unchanged."""
    if name.isprintable():
        return name
    return "'" + escaped(name.replace("\\", "\\\\")).replace("\n", "\\n").replace("\t", "\\t") + "'"


def escaped(text: str) -> str:
    """Return text with control characters, bidirectional marks and surrogates escaped, except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )


def human_bytes(size_bytes: int | None) -> str:
    """Return a size as ``812 MiB``; ``-`` without one."""
    if size_bytes is None:
        return "-"
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value /= 1024 if unit != "PiB" else 1
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def human_days(days: float | None) -> str:
    """Return ``12 days``, ``0.5 days`` or ``over a year``; ``-`` without a number."""
    if days is None:
        return "-"
    return "over a year" if days > 365 else f"{days:.0f} days" if days >= 10 else f"{days:.1f} days"


def human_time(time_ms: int | None) -> str:
    """Return epoch milliseconds as ``2026-11-21T08:30:00Z``; ``never`` without one."""
    if time_ms is None:
        return "never"
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_BARS = "".join(map(chr, range(0x2581, 0x2589)))
_PLAIN_BARS = "_.:-=+*#"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, a full one for the highest; in ASCII if stdout is not UTF."""
    bars = _BARS if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else _PLAIN_BARS
    top = max(values, default=0)
    return "".join(bars[min(7, int(8 * value / top)) if value > 0 else 0] for value in values)


_NAMES = ("broker", "partition", "leader", "leaderEpoch", "from", "to", "position", "journalRecords", "snapshotFiles",
          "objects", "copiedBytes")  # fmt: skip
"""Keys whose numbers are names, or are read by their last digits: aligned left, without separators."""
_FORMATS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(_NAMES, str),
    **dict.fromkeys(("bytes", "sizeBytes", "lagBytes", "assignedBytes", "freeBytes", "bytesPerDay", "copyBytes"),
                    human_bytes),
    **dict.fromkeys(("lastAppendMs", "lastSignMs"), human_time),
    **dict.fromkeys(("ms", "lagMs", "catchUpMs"), human_duration),
    "daysUntilFull": human_days,
    "bytesMoreMax": lambda size_bytes: "no end" if size_bytes is None else human_bytes(size_bytes),
    "bytesByHour": sparkline,
}  # fmt: skip
"""How people read a value of JSON, by its key."""


def table(columns: Mapping[str, str], items: Iterable[Mapping[str, Any]]) -> Table:
    """Return JSON values as a table; ``columns`` are headings and their keys."""
    hows = [(key, _FORMATS.get(key)) for key in columns.values()]
    return Table(list(columns), [[how(item[key]) if how else item[key] for key, how in hows] for item in items])
