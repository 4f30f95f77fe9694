"""Which records ``consume`` and ``tail`` print: by key, by a regular expression in the value, by header."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from spark_replog.client.consumer_record import ConsumerRecord

_Command = TypeVar("_Command", bound=Callable[..., Any])


def filter_flags(command: _Command) -> _Command:
    """Give a command the flags of the filter."""
    key = click.option("--key", "keys", multiple=True, metavar="KEY", help="Only records with this key. Repeatable.")
    grep = click.option("--grep", metavar="REGEX", help="Only records in whose value Python's regular expression is.")
    header = click.option(
        "--header", "headers", multiple=True, metavar="NAME[=VALUE]", help="Only records with this header. Repeatable."
    )
    return key(grep(header(command)))


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """A record must have one of the keys, the pattern, and each of the headers; (name, None): any value."""

    keys: frozenset[bytes]
    pattern: re.Pattern[bytes] | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RecordFilter:
        """Return the filter that the flags give.

        Raises:
            click.UsageError: the regular expression is not one.
        """
        try:
            pattern = None if given["grep"] is None else re.compile(os.fsencode(given["grep"]))
        except re.error as error:
            raise click.UsageError(f"--grep is no regular expression: {error}") from None
        pairs = [each.partition("=") for each in given["headers"]]
        headers = tuple((name, os.fsencode(value) if equals else None) for name, equals, value in pairs)
        return cls(frozenset(map(os.fsencode, given["keys"])), pattern, headers)

    def __call__(self, record: ConsumerRecord) -> bool:
        """Return whether the record is wanted."""
        if self.keys and record.key not in self.keys:
            return False
        if self.pattern is not None and (record.value is None or self.pattern.search(record.value) is None):
            return False
        return all(
            any(name == found and value in (None, data) for found, data in record.headers)
            for name, value in self.headers
        )
