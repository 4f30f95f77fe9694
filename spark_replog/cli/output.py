"""Output of commands: data on stdout, everything else on stderr, errors with their remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

import click

from spark_replog.cli.settings import Settings, current_settings
from spark_replog.cli.tables import Table, console_of, cut, escaped, is_terminal, shown
from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import ErrorCode, InvalidConfigError, OutcomeUnknownError, ReplogError, RetriableError

if TYPE_CHECKING:
    from rich.live import Live

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

Item = Mapping[str, Any]


class OutputError(ReplogError):
    """REPLOG_ENVIRONMENT: stdout cannot be written; the effect of the command remains."""


def emit(
    items: Sequence[Item], *parts: str | Table, exit_code: int | None = None, settings: Settings | None = None
) -> int:
    """Print a command's result in the requested format and return the exit code.

    Args:
        items: JSON values in a fixed order; any with ``"ok": false`` makes the exit code 1.
        parts: lines and tables, printed for ``-f text``; nothing if all are empty.
        exit_code: verdict, if the command is a check.
        settings: None: those of the running command.
    """
    settings = settings or current_settings()
    ok = all(item.get("ok", True) for item in items)
    if settings.format == "json":
        envelope = {"_command": settings.command, "_schema": SCHEMA, "ok": ok, "items": list(items)}
        show(json_text(envelope))
    elif settings.format == "jsonl":
        for item in items:
            show(json_text(item))
    else:
        if any(parts):
            show("\n".join(map(shown, parts)))
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


@cache
def _paths(keys: str) -> list[tuple[str, list[str]]]:
    words = [word.partition("=") for word in keys.split()]
    return [(key, (path or re.sub("[A-Z]", r"_\g<0>", key).lower()).split(".")) for key, _, path in words]


def item_of(value: object, keys: str) -> dict[str, Any]:
    """Return attributes of an object as JSON values: enums by value, sequences as lists.

    Args:
        keys: ``key``, or ``key=attribute`` where that is not the same in snake_case. An attribute's attribute follows
            it after a dot, and is None where there is none.
    """
    item = {}
    for key, path in _paths(keys):
        field: Any = value
        for name in path:
            field = None if field is None else getattr(field, name)
        item[key] = list(field) if isinstance(field, tuple) else field.value if isinstance(field, Enum) else field
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
    """Call ``act`` for each name; an error becomes the item of its name, but raises if the store does not answer."""
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


def json_text(value: object) -> str:
    """Return one line of JSON; text stays readable, except that characters a terminal acts on are escaped.

    If stdout is not UTF, all that is not ASCII is escaped.
    """
    text = json.dumps(value, ensure_ascii="utf" not in (getattr(sys.stdout, "encoding", None) or "utf-8").lower())
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def note(text: str) -> None:
    """Print a message for a person on stderr, with control characters escaped; nothing if stderr is closed."""
    if sys.stderr is not None:  # `print` would write to stdout
        print(escaped(text), file=sys.stderr, flush=True)


def confirm(yes: bool, question: str) -> None:
    """Ask on stderr unless ``-y`` was given; no answer but yes ends the command."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError("stdin is no terminal: add -y to confirm")
    click.confirm(question, abort=True, err=True)


@contextmanager
def on_signals(handler: Callable[[int, Any], None]) -> Iterator[dict[int, Any]]:
    """Call a function on SIGTERM and Ctrl-C; yield the handlers that were there before, which come back afterwards."""
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


_PLAIN_EVERY_MS = 5_000


class ProgressLine:
    """One live line on stderr, by rich on a terminal; elsewhere a line every few seconds. A context manager."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet or self._stream is None
        self._clock = clock
        self._live: Live | None = None
        self._shown_ms: int | None = None
        self._left: str | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, text: str) -> None:
        """Show the text, unless the last one was shown a moment ago; the last text of all is shown by ``close``."""
        if self._quiet:
            return
        if is_terminal(self._stream):
            from rich.live import Live

            if self._live is None:
                self._live = Live(cut(text), console=console_of(self._stream), transient=True)
                self._live.start(refresh=True)
            self._live.update(cut(text))
            return
        now_ms = self._clock.monotonic_ms()
        self._left = text
        if self._shown_ms is None or now_ms - self._shown_ms >= _PLAIN_EVERY_MS:
            self._shown_ms = now_ms
            self._print_left()

    def _print_left(self) -> None:
        if self._left is not None:
            print(self._left, file=self._stream, flush=True)
        self._left = None

    def say(self, text: str) -> None:
        """Print a line that remains."""
        if not self._quiet:
            self._left = None
            self.close()
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Clear the live line; elsewhere show the last text, so that no older one stands as the result."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._print_left()
        self._shown_ms = None
