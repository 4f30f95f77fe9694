"""The question before a command takes something away for good."""

from __future__ import annotations

import sys

import click


def confirm(yes: bool, question: str) -> None:
    """Ask on stderr unless ``-y`` was given.

    Raises:
        click.UsageError: nobody is there to ask.
        click.Abort: the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: add -y to confirm")
    click.confirm(question, abort=True, err=True)


__all__ = ["confirm"]
