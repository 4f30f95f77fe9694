"""One file of a checkpoint's `offsets/`: the end of a micro-batch in each source of the query.

Version 1 has a line a source, in the query's order; version 2, for named sources, begins each with the source's name.
Source: Spark's ``OffsetSeqLog``; version 2 is known from files that Spark 4.3 wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError

NO_OFFSET = "-"
"""Of a source that has no offset yet."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The end of a batch in one source.

    Attributes:
        name: of the source and of its folder below `sources/`: its place in the query, or what the query calls it.
        text: what the source wrote, JSON by most sources.
        has_name: whether the line begins with the name.
    """

    name: str
    text: str
    has_name: bool = False

    @property
    def value(self) -> Any:
        """Return the text as JSON; None: it is none, or there is no offset."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """All of one file.

    Attributes:
        metadata: the line of the watermark, the batch's time and settings, as Spark wrote it.
    """

    version: str
    metadata: str
    sources: tuple[SourceOffset, ...]

    @classmethod
    def parse(cls, data: bytes, name: str) -> OffsetFile:
        """Read the bytes of a file.

        Args:
            name: says in errors which file it is.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: it is cut off, or no such file.
            UnsupportedFormatError: UNSUPPORTED_VERSION.
        """
        try:
            version, metadata, *lines = data.decode().splitlines()
        except ValueError:
            raise damaged(name) from None
        if version not in ("v1", "v2"):
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{name} has version '{version[:20]}'; this release reads v1 and v2. Upgrade.",
            )
        sources = []
        for number, line in enumerate(lines):
            source, colon, text = line.partition(":")
            has_name = version == "v2" and bool(colon) and not line.startswith("{")
            sources.append(SourceOffset(source, text, True) if has_name else SourceOffset(str(number), line))
        return cls(version, metadata, tuple(sources))

    def render(self) -> bytes:
        """Return the bytes that `parse` reads; those that Spark wrote, where nothing was replaced."""
        lines = [f"{source.name}:{source.text}" if source.has_name else source.text for source in self.sources]
        return "\n".join([self.version, self.metadata, *lines]).encode()

    def convert(self, convert: Callable[[SourceOffset], str | None]) -> OffsetFile:
        """Return the file with other texts; None leaves a source as it is."""
        texts = [(source, convert(source)) for source in self.sources]
        sources = tuple(source if text is None else replace(source, text=text) for source, text in texts)
        return replace(self, sources=sources)


def damaged(name: str) -> CorruptDataError:
    """Return CORRUPT_MESSAGE for a file of a checkpoint."""
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{name} cannot be read: Spark did not write it in this form. Give another checkpoint, or "
        "restore this one from a backup.",
    )
