"""The global flags, before or after the sub-command; the later one wins. And the commands that have them.

A group refuses a command that does not exist, with those that may be meant. Values are parsed here as users type them:
what cannot be parsed is a ``click.UsageError`` with an example.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.config.consumer import duration_ms
from spark_replog.config.key import STORAGE_PREFIX
from spark_replog.config.registry import storage_options, unknown_option_error
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.logs import log_to_stderr

if TYPE_CHECKING:
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.log.acl import AclOperation

FORMATS = ("text", "json", "jsonl")
_META = "spark_replog.cli"


@dataclass
class Settings:
    """The global flags of one run."""

    command: str = "replog"
    store: str | None = None
    format: str = "text"
    quiet: bool = False
    verbose: int = 0
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)  # secrets
    arguments: list[str] = field(default_factory=list, repr=False)  # all that was typed

    def required_store(self) -> str:
        """Return the store's path; REPLOG_MISSING_OPTION if neither the flag nor the environment variable is set."""
        if not self.store:
            raise InvalidConfigError(ErrorCode.REPLOG_MISSING_OPTION, "no store. Add '-s PATH' or set REPLOG_STORE.")
        return self.store

    @property
    def is_store_from_environment(self) -> bool:
        """Return whether a command typed without ``-s`` uses the same store."""
        return self.store == os.environ.get("REPLOG_STORE")

    def open_cluster(
        self, coordinator_settings: Mapping[str, object] | None = None, *, needs: AclOperation | None = None
    ) -> Cluster:
        """Open the store.

        Args:
            coordinator_settings: coordinator keys, if the command accepts them.
            needs: the right on the whole store without which the command is refused: see ``require_of_readable``.
        """
        path = self.required_store()
        from spark_replog.cluster.authorizer import require_of_readable
        from spark_replog.cluster.cluster import Cluster
        from spark_replog.config.registry import read_coordinator_config

        config = read_coordinator_config(coordinator_settings or {})
        cluster = Cluster.open(path, self.storage_options, config=config)
        if needs is not None:
            require_of_readable(cluster, needs)
        return cluster


def current_settings(context: click.Context | None = None) -> Settings:
    """Return the settings of the running command, or of a context."""
    meta = (context or click.get_current_context()).find_root().meta
    if _META not in meta:
        meta[_META] = Settings(store=os.environ.get("REPLOG_STORE"))
    settings: Settings = meta[_META]
    return settings


_NOT_GIVEN = (None, (), False, 0)
"""What Click passes for a global flag that was left out. Where the value came from, Click 8.4.0 says only later."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    settings = current_settings(context)
    settings.command = context.command_path.partition(" ")[2] or settings.command
    if parameter.name is None or value in _NOT_GIVEN:
        return
    if parameter.name == "settings_override":
        settings.storage_options.update(_overrides(value))
    else:
        setattr(settings, parameter.name, value)
    if parameter.name == "verbose":
        try:
            log_to_stderr(logging.INFO if settings.verbose == 1 else logging.DEBUG)
        except ValueError as error:
            raise click.UsageError(f"{error}") from error


def _overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    if any("=" not in pair for pair in pairs):
        raise click.UsageError("-X needs KEY=VALUE, and one has no '='")  # the value is not shown: it may be a secret
    options = key_values("-X", pairs)
    for name in options:
        if not name.startswith(STORAGE_PREFIX):
            raise unknown_option_error(name, [STORAGE_PREFIX + "*"])
    return storage_options(options)


def key_values(flag: str, pairs: Iterable[str]) -> dict[str, str]:
    """Return the values of a repeatable flag ``KEY=VALUE`` by name; the last one wins."""
    return dict(named_values(flag, pairs, "KEY=VALUE"))


def named_values(flag: str, pairs: Iterable[str], shape: str) -> list[tuple[str, str]]:
    """Return the names and values of a repeatable flag, in order."""
    values = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{flag} needs {shape}, not '{pair}'")
        values.append((name.strip(), value))
    return values


def _complete_folder(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _global_flags() -> list[click.Parameter]:
    def flag(*names: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_keep, **more)

    return [
        flag("-s", "--store", metavar="STORE", shell_complete=_complete_folder,
             help="Parent directory of the roots, or a comma-separated list of roots. [REPLOG_STORE]"),
        flag("-f", "--format", type=click.Choice(FORMATS), help="Output format. [text]"),
        flag("-X", "--set", "settings_override", multiple=True, metavar="KEY=VALUE",
             help="Option for the file system, as storage.NAME=VALUE. Repeatable."),
        flag("-q", "--quiet", is_flag=True, help="Show no progress."),
        flag("-v", "--verbose", count=True, help="Show tracebacks and log lines; -vv: of each call too."),
    ]  # fmt: skip


class FiniteRange(click.FloatRange):
    """A range of floats without NaN, which is neither below nor above a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, as Click does."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def _show_help(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    try:
        click.echo(context.get_help())
    except BrokenPipeError:
        raise
    except OSError as error:
        text = f"the help cannot be printed: {error.strerror}. Make room there, or print it elsewhere."
        raise ReplogError(ErrorCode.REPLOG_ENVIRONMENT, text) from error
    context.exit()


class _WithHelp(click.Command):
    """A disk that is too full for its help is an error of the environment."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the option of the help."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


class ReplogCommand(_WithHelp):
    """A command with the global flags, and example command lines below its help, without ``replog``."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _global_flags()
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}replog {example}\n")


class ReplogGroup(_WithHelp, click.Group):
    """A noun with the global flags, which its commands and groups have too."""

    command_class = ReplogCommand
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _global_flags()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help on stderr if a group gets no arguments: it is wrong usage with every version of Click."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True, color=ctx.color)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, as Click does; the error for an unknown one names those that may be meant."""
        word = args[0]
        if not ctx.resilient_parsing and not word.startswith("-") and self.get_command(ctx, word) is None:
            raise click.UsageError(f"No such command `{ctx.command_path} {word}`. {_suggestion(ctx, word)}", ctx)
        return super().resolve_command(ctx, args)


_SUGGESTED_MAX = 4
_ALIKENESS = 0.65
_MEANINGS = (
    {"info", "describe", "show", "get", "status"},
    {"list", "ls"},
    {"create", "init", "add", "new", "make"},
    {"delete", "remove", "rm", "drop"},
    {"config", "configs", "alter", "set"},
    {"consume", "read", "cat"},
    {"produce", "write", "append"},
    {"broker", "node", "nodes", "root", "roots"},
)
"""Words that mean the same to a user."""


def _suggestion(context: click.Context, word: str) -> str:
    """Return a sentence on a word that no command of a group has: those that may be meant, else all of its own."""
    own_names, others = _names(context), _others(context)
    alike = {synonym for meaning in _MEANINGS if word in meaning for synonym in meaning}
    meant = [path for path, name in own_names.items() if name in alike]
    meant += [path for path, name in others.items() if name == word]
    meant = meant or [path for path, name in others.items() if name in alike]
    if not meant:
        near = dict.fromkeys(get_close_matches(word, [*own_names.values(), *others.values()], cutoff=_ALIKENESS))
        meant = [path for best in near for path, name in (own_names | others).items() if name == best]
    if meant:
        *first, last = [f"`{path}`" for path in meant[:_SUGGESTED_MAX]]
        return f"Did you mean {', '.join(first)}{' or ' if first else ''}{last}?"
    return f"The commands of `{context.command_path}` are {', '.join(own_names.values())}."


def _names(context: click.Context) -> dict[str, str]:
    """Return the commands of a group: the words to type -> the last one."""
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return {f"{context.command_path} {name}": name for name in names}


def _others(context: click.Context) -> dict[str, str]:
    """Return where a verb may be instead: at the root, or, if it was looked for there, under the nouns."""
    above = context.parent
    if above is not None:
        return _names(above)
    names: dict[str, str] = {}
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        noun = group.get_command(context, name)
        if noun is not None:
            names |= _names(click.Context(noun, context, name, resilient_parsing=True))
    return names


Flag = Callable[[Any], Any]
"""What adds a flag, or several, to a command."""
yes_flag = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def flags(*options: Flag) -> Flag:
    """Return several flags as one, which the help shows in this order."""

    def add_all(command: Any) -> Any:
        return reduce(lambda made, flag: flag(made), reversed(options), command)

    return add_all


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPAN = re.compile(r"(?=.)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")


def _span_ms(text: str) -> int | None:
    """Return the milliseconds of ``1d2h3m4s`` or parts of it, else None."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(digits or 0) for digits in match.groups())
    return 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_time_ms(text: str, clock: Clock = SYSTEM_CLOCK) -> int:
    """Return epoch milliseconds of an ISO 8601 time (UTC without a zone), of milliseconds, or of ``-1h30m`` ago."""
    if text.isdecimal():
        return int(text)
    ago_ms = _span_ms(text[1:]) if text.startswith("-") else None
    if ago_ms is not None:
        return clock.now_ms() - ago_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"Invalid time '{text}'. Give 2026-11-21T08:30:00, -1h30m, or epoch milliseconds."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)  # exact, where a float may be a millisecond too early


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of ``1h30m``, or of an ISO 8601 duration: days, hours, minutes and seconds."""
    span_ms = _span_ms(text)
    if span_ms is None:
        span_ms = duration_ms(text)
    if span_ms is None:
        raise click.UsageError(f"Invalid duration '{text}'. Give 30m, 1h30m, 1d or PT30M.")
    return span_ms
