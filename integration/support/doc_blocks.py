"""Python and SQL blocks of the documentation, and how a page says what they need.

A comment on the line before a block says that it cannot run here, and why:
``<!-- does not run here: REASON -->``. A comment anywhere on the page prepares what its blocks use:
``<!-- blocks use: {"topics": {"orders": 2}, "rows": {"orders": 20}} -->``; without it there is an empty topic
``orders``. All other blocks run, in order, in one namespace per page, with ``spark`` in it. ``/data/`` stands for a
folder that is made for the page.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"(?:<!-- does not run here: (?P<reason>[^\n]+?) -->\n)?"
    r"^```(?P<language>python|sql)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
_NEEDS = re.compile(r"<!-- blocks use: (\{.*?\}) -->", re.S)


@dataclass
class Page:
    """A page with its blocks, as Python."""

    path: Path
    blocks: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why each of the other blocks does not run."""
    topics: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


def read_page(path: Path) -> Page:
    """Return the page's blocks; the line of a block is kept, so that a traceback names the page's line."""
    text = path.read_text(encoding="utf-8")
    page = Page(path)
    for needs in _NEEDS.findall(text):
        given = json.loads(needs)
        page.topics.update(given.get("topics", {}))
        page.rows.update(given.get("rows", {}))
    for match in _BLOCK.finditer(text):
        if match["reason"]:
            page.reasons.append(match["reason"])
        else:
            code = match["code"] if match["language"] == "python" else _as_python(match["code"])
            page.blocks.append("\n" * text.count("\n", 0, match.start("code")) + code)
    page.topics = page.topics or {"orders": 2}
    return page


def _as_python(statements: str) -> str:
    """Return Python that runs SQL statements, each ended by a semicolon."""
    return "".join(f"spark.sql({text.strip()!r}).collect()\n" for text in statements.split(";") if text.strip())
