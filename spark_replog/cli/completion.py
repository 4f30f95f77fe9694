"""``replog completion``: the completion script of a shell, and the store's names that it offers."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from spark_replog.cli.output import emit
from spark_replog.cli.settings import Flag, ReplogCommand, Settings, current_settings
from spark_replog.config.key import ConfigGroup
from spark_replog.config.registry import keys_of

COMPLETE_VARIABLE = "_REPLOG_COMPLETE"
_PROGRAM = "replog"
_WAIT_SECONDS = 3.0
_SHELLS = ("bash", "zsh", "fish")

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command("completion", cls=ReplogCommand, examples=["completion bash"])
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> int:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(replog completion bash)"   in ~/.bashrc
    zsh:   eval "$(replog completion zsh)"   in ~/.zshrc, after compinit
    fish:  replog completion fish > ~/.config/fish/completions/replog.fish
    """  # noqa: D301 - Click reads the backspace as "do not wrap"
    made = get_completion_class(shell)
    assert made is not None
    script = made(click.get_current_context().find_root().command, {}, _PROGRAM, COMPLETE_VARIABLE).source()
    return emit([{"shell": shell, "script": script, "ok": True}], script.strip("\n"))


def answer_shell(tree: click.Command) -> int | None:
    """Answer a completion script on stdout; None if no script asks. Nothing is logged into the line being typed."""
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if not instruction:
        return None
    silent = logging.NullHandler()  # with a handler, Python does not print warnings on stderr
    logging.getLogger().addHandler(silent)
    try:
        return shell_complete(tree, {}, _PROGRAM, COMPLETE_VARIABLE, instruction)
    finally:
        logging.getLogger().removeHandler(silent)


def _topics(settings: Settings) -> list[str]:
    from spark_replog.admin.controller import Controller

    return [topic.name for topic in Controller(settings.open_cluster()).name_topics()]


def _groups(settings: Settings) -> list[str]:
    from spark_replog.groups.group_coordinator import GroupCoordinator

    return [state.group for state in GroupCoordinator(settings.open_cluster()).groups()]


def complete_settings(*groups: ConfigGroup, end: str = "=") -> Completer:
    """Return a completer for the settings of these groups, which puts ``end`` after the key."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(key.name + end, help=key.doc.partition(". ")[0])
            for key in keys_of(*groups)
            if key.name.startswith(incomplete)
        ]

    return complete


def config_flag(help_text: str, *groups: ConfigGroup) -> Flag:
    """Return the flag ``-c KEY=VALUE`` of a command, which completes the settings of these groups."""
    return click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help=help_text,
                        shell_complete=complete_settings(*groups))  # fmt: skip


def _completer(find: Callable[[Settings], list[str]]) -> Completer:
    """Return a completer that reads the store for a few seconds at most; it offers nothing if that fails."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names: list[str] = []
        settings = current_settings(context)

        def ask() -> None:
            with contextlib.suppress(Exception):  # a message would appear in the line that the user types
                names.extend(find(settings))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_WAIT_SECONDS)
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]

    return complete


complete_topics, complete_groups = _completer(_topics), _completer(_groups)
