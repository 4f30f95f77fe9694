"""Output of commands: data on stdout, everything else on stderr, errors with their remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

import click

from spark_replog.cli.settings import Settings
from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import ErrorCode, InvalidConfigError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import INTERNAL_TOPICS

if TYPE_CHECKING:
    from spark_replog.health.store import Finding


SCHEMA = "replog.cli/1"

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_WARN = 3
EXIT_CRITICAL = 4
EXIT_UNREACHABLE = 5
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

_UNREACHABLE = frozenset(
    {
        ErrorCode.REPLOG_NO_QUORUM,
        ErrorCode.REPLOG_STORE_UNAVAILABLE,
        ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)

_NAME_WIDTH = 20
"""Minimum width of the first column of a table."""
Item = Mapping[str, Any]
NO_FORMATS: Mapping[str, Callable[[Any], str]] = MappingProxyType({})


class OutputError(ReplogError):
    """REPLOG_ENVIRONMENT: stdout cannot be written; the effect of the command remains."""


def emit(command: str, items: Sequence[Item], settings: Settings, *, text: str, exit_code: int | None = None) -> int:
    """Print a command's result in the requested format and return the exit code.

    Args:
        command: words of the command, for scripts.
        items: JSON values in a fixed order; any with ``"ok": false`` makes the exit code 1.
        text: printed for ``-f text``.
        exit_code: verdict, if the command is a check.
    """
    ok = all(item.get("ok", True) for item in items)
    if settings.format == "json":
        envelope = {"_command": command, "_schema": SCHEMA, "ok": ok, "items": list(items)}
        show(json_text(envelope))
    elif settings.format == "jsonl":
        for item in items:
            show(json_text(item))
    else:
        if text:
            show(escaped(text))
        _note_errors(items)
    return exit_code if exit_code is not None else (EXIT_OK if ok else EXIT_FAILED)


def _note_errors(items: Sequence[Item]) -> None:
    """Print the errors of items; one that several partitions have once, with their names."""
    alike: dict[str, list[str]] = {}
    for item in items:
        if "error" in item and not item.get("ok", True):
            names = alike.setdefault(f"[{item['error']}] {item['message']}", [])
            names += [f"{item['topic']}-{item['partition']}"] if item.keys() >= {"topic", "partition"} else []
    for text, names in alike.items():
        note(f"replog: {text}" + (f" partitions=`{','.join(names)}`" if len(names) > 1 else ""))


def show(text: str | bytes, *, newline: bool = True) -> None:
    """Print on stdout and flush.

    Raises:
        OutputError: stdout cannot be written or is closed.
        BrokenPipeError: its reader is gone.
    """
    try:
        if sys.stdout is None:  # closed before the command began; Click would silently print nothing
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            click.echo(text, nl=newline)
        except UnicodeEncodeError as error:  # of text only; nothing was written
            click.echo(str(text).encode(error.encoding, "backslashreplace"), nl=newline)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            ErrorCode.REPLOG_ENVIRONMENT, f"stdout cannot be written: {error.strerror}. The command took effect."
        ) from error


def item_of(value: Any, *left_out: str, **keys: str) -> dict[str, Any]:
    """Return a dataclass's fields as JSON values: keys in camelCase, enums by value, sequences as lists.

    Args:
        left_out: fields that are not shown.
        keys: field -> its key, if it differs from the field's name.
    """
    item = {}
    for field in fields(value):
        if field.name not in left_out:
            found = getattr(value, field.name)
            head, *rest = field.name.split("_")
            key = keys.get(field.name, head + "".join(word.title() for word in rest))
            item[key] = list(found) if isinstance(found, tuple) else found.value if isinstance(found, Enum) else found
    return item


def error_item(error: ReplogError, **fields: object) -> dict[str, Any]:
    """Return the item of a failure; ``hint`` is the remedy, the message's last sentence."""
    message = str(error.args[0])
    sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z'])", message.strip())
    item: dict[str, Any] = {**fields, "ok": False, "error": error.code.name, "message": message}
    if len(sentences) > 1:
        item["hint"] = sentences[-1]
    if error.context:
        item["context"] = {key: str(value) for key, value in error.context.items()}
    return item


def act_on_each(noun: str, names: Iterable[str], act: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Call ``act`` for each name; an error becomes the item of its name.

    Raises:
        RetriableError: the store does not answer, which ends the command.
    """
    items = []
    for name in names:
        try:
            items.append(act(name))
        except RetriableError:
            raise
        except ReplogError as error:
            items.append(error_item(error, **{noun: name}))
    return items


def exit_code_of(error: ReplogError) -> int:
    """Return the exit code of an error."""
    if isinstance(error, OutcomeUnknownError) or error.code in _UNREACHABLE:
        return EXIT_UNREACHABLE
    if isinstance(error, InvalidConfigError):
        return EXIT_USAGE
    return EXIT_FAILED


def item_table(
    columns: Mapping[str, str],
    items: Iterable[Item],
    *,
    texts: Container[str] = (),
    shown: Mapping[str, Callable[[Any], str]] = NO_FORMATS,
    is_whole: bool = False,
) -> str:
    """Return JSON values as a table.

    Args:
        columns: heading -> key.
        texts: keys of numbers that are names: aligned left, without separators.
        shown: key -> function that formats its values for people.
        is_whole: see `table`.
    """
    hows = [(key, str if key in texts else shown.get(key, lambda value: value)) for key in columns.values()]
    rows = [[how(item[key]) for key, how in hows] for item in items]
    return table(list(columns), rows, is_whole=is_whole)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, is_whole: bool = False) -> str:
    """Return rows under headings, columns aligned; numbers to the right, with thousands separated.

    If stdout is a terminal, no line is wider than it: columns that do not fit follow below each row, with their
    headings; a long name gets its own line.

    Args:
        is_whole: one line for each row, however wide.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    is_number = [
        bool(cells) and all(isinstance(value, tuple) for value in column) for column in zip(*cells, strict=True)
    ] or [False] * len(headings)
    texts = [[value[0] if isinstance(value, tuple) else value for value in row] for row in cells]
    widths = [max([len(heading), *(len(row[index]) for row in texts)]) for index, heading in enumerate(headings)]
    count = len(widths) if is_whole else _fitted(widths)
    lines: list[str] = []
    for row in [list(headings), *texts]:
        name, *others = row[:count]
        if len(name) > widths[0]:
            lines.append(name)
            name = ""
        columns = zip([name, *others], widths, is_number, strict=False)
        line = "  ".join(value.rjust(width) if number else value.ljust(width) for value, width, number in columns)
        lines.append(line.rstrip())
        if len(lines) > 1:
            below = [f"{heading} {value}" for heading, value in zip(headings, row, strict=True)][count:]
            lines += _below([part for part, value in zip(below, row[count:], strict=True) if value not in ("", "-")])
    return "\n".join(lines)


def _fitted(widths: list[int]) -> int:
    """Return how many columns fit into the terminal's width; narrow the first one to the remaining width."""
    count = len(widths)
    if not is_terminal(sys.stdout):
        return count
    width = shutil.get_terminal_size().columns
    name_width = min(widths[0], _NAME_WIDTH)
    while count > 1 and name_width + sum(2 + each for each in widths[1:count]) > width:
        count -= 1
    widths[0] = min(widths[0], max(name_width, width - sum(2 + each for each in widths[1:count])))
    return count


def _below(parts: Sequence[str]) -> list[str]:
    width, indent = shutil.get_terminal_size().columns, " " * 4
    kept = [part.replace(" ", "\xa0") if len(indent + part) <= width else part for part in parts]  # do not break these
    wrapper = textwrap.TextWrapper(width, indent, indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in wrapper.wrap("  ".join(kept))]


def _cell(value: object) -> str | tuple[str]:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return (f"{value:,}",)
    if isinstance(value, float):
        return (f"{value:,.1f}",)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(quoted(str(part)) for part in value)
    return quoted(str(value))


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


_BARS = "".join(map(chr, range(0x2581, 0x2589)))
_PLAIN_BARS = "_.:-=+*#"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, a full one for the highest; in ASCII if stdout is not UTF."""
    bars = _BARS if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else _PLAIN_BARS
    top = max(values, default=0)
    return "".join(bars[min(7, int(8 * each / top)) if each > 0 else 0] for each in values)


def human_time(time_ms: int | None) -> str:
    """Return epoch milliseconds as ``2026-11-21T08:30:00Z``; ``never`` without one."""
    if time_ms is None:
        return "never"
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def json_text(value: object) -> str:
    """Return one line of JSON; text stays readable, except that characters a terminal acts on are escaped.

    If stdout is not UTF, all that is not ASCII is escaped.
    """
    text = json.dumps(value, ensure_ascii="utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower())
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def quoted(name: str) -> str:
    """Return a name for a line of text: quoted and escaped if a terminal would not print it unchanged."""
    if name.isprintable():
        return name
    return "'" + escaped(name.replace("\\", "\\\\")).replace("\n", "\\n").replace("\t", "\\t") + "'"


def escaped(text: str) -> str:
    """Return text with characters escaped that a terminal acts on: control characters, bidirectional marks, surrogates.

    Line ends and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def note(text: str) -> None:
    """Print a message for a person on stderr, with control characters escaped; nothing if stderr is closed."""
    if sys.stderr is not None:  # `print` would write to stdout
        print(escaped(text), file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a person is at the other end; None is a stream that was closed before the command began."""
    return stream is not None and stream.isatty()


def confirm(yes: bool, question: str) -> None:
    """Ask on stderr unless ``-y`` was given.

    Raises:
        click.UsageError: stdin is not a terminal.
        click.Abort: the answer was no.
    """
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError("stdin is no terminal: add -y to confirm")
    click.confirm(question, abort=True, err=True)


def warn_and_ask(yes: bool, warning: str, question: str) -> None:
    """Warn on stderr; ask only on a terminal, so that scripts without ``-y`` continue.

    Raises:
        click.Abort: the answer was no.
    """
    note(f"warning: {warning}")
    if not yes and is_terminal(sys.stdin):
        click.confirm(question, abort=True, err=True)


_TERMINAL_EVERY_MS = 100
_PLAIN_EVERY_MS = 5_000


class ProgressLine:
    """One live line on stderr, rewritten in place on a terminal; elsewhere a line every few seconds."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet or self._stream is None
        self._clock = clock
        self._is_terminal = is_terminal(self._stream)
        self._shown_ms: int | None = None
        self._left: str | None = None
        self._width = 0

    def update(self, text: str) -> None:
        """Show the text, unless the last one was shown a moment ago; the last text of all is shown by ``close``."""
        now_ms = self._clock.monotonic_ms()
        every_ms = _TERMINAL_EVERY_MS if self._is_terminal else _PLAIN_EVERY_MS
        if self._quiet:
            return
        if self._shown_ms is not None and now_ms - self._shown_ms < every_ms:
            self._left = text
            return
        self._shown_ms, self._left = now_ms, None
        if self._is_terminal:
            # A line that wraps cannot be rewritten: \r only returns to its last row.
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """Print a line that remains."""
        if self._quiet:
            return
        self._left = None
        self.close()
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the live line; elsewhere show the last text, so that no older one stands as the result."""
        if self._left is not None and not self._is_terminal:
            self._stream.write(self._left + "\n")
            self._stream.flush()
        self._left = None
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
        self._shown_ms = None


_SHOWN_MAX = 20
_ALIKE_SHOWN_MAX = 4


def finding_subject(finding: Finding) -> str:
    """Return the subject of a finding: a partition, a broker, or the store."""
    if finding.topic is not None:
        return f"{finding.topic}-{finding.partition}"
    return "store" if finding.broker_id is None else f"broker {finding.broker_id}"


def finding_remedy(finding: Finding, settings: Settings) -> str:
    """Return the remedy with commands that can be typed as they are."""
    return typed(finding.remedy, settings)


def typed(remedy: str, settings: Settings) -> str:
    """Return a remedy whose commands name the store, unless the environment does."""
    if settings.store is None or settings.is_store_from_environment:
        return remedy
    return remedy.replace("replog ", f"replog -s {shlex.quote(settings.store)} ")


def finding_items(findings: Sequence[Finding], settings: Settings) -> list[dict[str, Any]]:
    """Return findings as JSON values, in their order."""
    return [
        {
            "level": finding.level.name,
            "fault": finding.fault.value,
            "topic": finding.topic,
            "partition": finding.partition,
            "broker": finding.broker_id,
            "detail": finding.detail,
            "remedy": finding_remedy(finding, settings),
        }
        for finding in findings
    ]


def finding_text(findings: Sequence[Finding], settings: Settings) -> str:
    """Return a table of the findings and the commands that help, each once; empty without findings.

    Findings with the same fault and remedy are one row, since a fenced broker needs only one action.
    """
    kinds: dict[tuple[int, str, str], list[Finding]] = {}
    for each in sorted(findings, key=lambda each: (-each.level, each.topic in INTERNAL_TOPICS)):
        kinds.setdefault((each.level, each.fault.value, finding_remedy(each, settings)), []).append(each)
    if not kinds:
        return ""
    rows = [
        (
            alike[0].level.name,
            finding_subject(alike[0]),
            alike[0].fault.value,
            alike[0].detail + _alike_words(alike[1:]),
        )
        for alike in list(kinds.values())[:_SHOWN_MAX]
    ]
    lines = [table(["LEVEL", "WHERE", "FAULT", "DETAIL"], rows)]
    if len(kinds) > len(rows):
        lines.append(f"and {len(kinds) - len(rows)} more: add -f json to list all")
    remedies = dict.fromkeys(remedy for _, _, remedy in list(kinds)[:_SHOWN_MAX])
    return "\n".join([*lines, "", *(f"-> {remedy}" for remedy in remedies)])


def _alike_words(others: Sequence[Finding]) -> str:
    names = ", ".join(map(finding_subject, others[:_ALIKE_SHOWN_MAX]))
    more = len(others) - _ALIKE_SHOWN_MAX
    return f"; also {names}" + (f" and {more:,} more: -f json" if more > 0 else "") if others else ""


def exit_code_of_findings(findings: Sequence[Finding]) -> int:
    """Return 4 if one is critical, else 3, or 0 without findings."""
    worst = max((finding.level for finding in findings), default=0)
    return EXIT_CRITICAL if worst == EXIT_CRITICAL else EXIT_WARN if findings else EXIT_OK
