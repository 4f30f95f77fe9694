"""Named tuples of many rows at once: a table with an object per row spends most of its time in their constructors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T", bound=NamedTuple)


def tuples_of(kind: type[T], rows: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Return rows as named tuples of a kind, made as they are read.

    Without a call of a Python function for each row, as the constructor and ``_make`` are.

    Args:
        kind: its fields are those of the rows; neither their number nor their types are checked.
        rows: often a zip of columns.
    """
    return cast("Iterator[T]", map(tuple.__new__, repeat(kind), rows))
