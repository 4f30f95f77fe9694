"""What a user may have meant who typed a command that does not exist."""

from __future__ import annotations

from difflib import get_close_matches

import click

SUGGESTED_MAX = 4
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


def suggestion(context: click.Context, word: str) -> str:
    """Return a sentence for the error: the commands that the user may have meant, else those that there are.

    Args:
        context: of the group that has no command of this name.
    """
    own, others = _names(context), _others(context)
    alike = {each for meaning in _MEANINGS if word in meaning for each in meaning}
    meant = [path for path, name in own.items() if name in alike]
    meant += [path for path, name in others.items() if name == word]
    meant = meant or [path for path, name in others.items() if name in alike]
    if not meant:
        near = dict.fromkeys(get_close_matches(word, [*own.values(), *others.values()], cutoff=_ALIKENESS))
        meant = [path for best in near for path, name in (own | others).items() if name == best]
    if meant:
        *first, last = [f"`{path}`" for path in meant[:SUGGESTED_MAX]]
        return f"Did you mean {', '.join(first)}{' or ' if first else ''}{last}?"
    return f"The commands of `{context.command_path}` are {', '.join(own.values())}."


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
    found: dict[str, str] = {}
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        noun = group.get_command(context, name)
        if noun is not None:
            found |= _names(click.Context(noun, context, name, resilient_parsing=True))
    return found
