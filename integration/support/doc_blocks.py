"""Python and SQL blocks of the documentation, and how a page says what they need.

A comment on the line before a block says which test has a place for it, ``<!-- runs in FILE::TEST -->``, or with which
older Spark, jars and confs it runs, where the newest Spark has no such jar:
``<!-- runs on Spark 4.1 with group:artifact:version name=value -->``. A comment anywhere on the page
prepares what its blocks use: ``<!-- blocks use: {"topics": {"orders": 2}, "rows": {"orders": 20}} -->``; without it
there is an empty topic ``orders``. All other blocks run, in order, in one namespace per page, with ``spark`` in it.
``/data/`` stands for a folder that is made for the page.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"(?:<!-- (?:runs in (?P<elsewhere>\S+)|runs on Spark (?P<spark>\S+) with (?P<needs>[^\n]+?)) -->\n)?"
    r"^```(?P<language>python|sql)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
_NEEDS = re.compile(r"<!-- blocks use: (\{.*?\}) -->", re.S)


@dataclass
class Page:
    """A page with its blocks, as Python."""

    path: Path
    blocks: list[str] = field(default_factory=list)
    elsewhere: list[tuple[str, str]] = field(default_factory=list)
    """Test and block that it runs."""
    with_jars: list[str] = field(default_factory=list)
    """Blocks that need jars, and those before them that they build on."""
    jars_count: int = 0
    """How many of them need jars."""
    spark: str = ""
    """The Spark that they run on."""
    jars: list[str] = field(default_factory=list)
    confs: dict[str, str] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


def read_page(path: Path) -> Page:
    """Return the page's blocks; the line of a block is kept, so that a traceback names the page's line."""
    text = path.read_text(encoding="utf-8")
    page = Page(path)
    blocks: list[tuple[str, bool]] = []
    for needs in _NEEDS.findall(text):
        given = json.loads(needs)
        page.topics.update(given.get("topics", {}))
        page.rows.update(given.get("rows", {}))
    for match in _BLOCK.finditer(text):
        if match["elsewhere"]:
            page.elsewhere.append((match["elsewhere"], match["code"]))
            continue
        code = match["code"] if match["language"] == "python" else _as_python(match["code"])
        code = "\n" * text.count("\n", 0, match.start("code")) + code
        blocks.append((code, bool(match["needs"])))
        if match["needs"]:
            assert page.spark in ("", match["spark"]), f"{path}: one older Spark a page"
            page.spark = match["spark"]
            page.jars += [need for need in match["needs"].split() if "=" not in need]
            page.confs |= dict(need.split("=", 1) for need in match["needs"].split() if "=" in need)
    page.blocks = [code for code, needs_jars in blocks if not needs_jars]
    page.with_jars = _built_on(blocks)
    page.jars_count = len(blocks) - len(page.blocks)
    page.topics = page.topics or {"orders": 2}
    return page


def _built_on(blocks: list[tuple[str, bool]]) -> list[str]:
    """Return the marked blocks, and the earlier ones that make a name which they use."""
    kept: list[str] = []
    wanted: set[str] = set()
    for code, is_marked in reversed(blocks):
        nodes = list(ast.walk(ast.parse(code)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        made = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        made |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
        made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        if is_marked or made & wanted:
            kept.append(code)
            wanted = (wanted - made) | ({name.id for name in names if isinstance(name.ctx, ast.Load)} - made)
    return kept[::-1]


def _as_python(statements: str) -> str:
    """Return Python that runs SQL statements, each ended by a semicolon."""
    return "".join(f"spark.sql({text.strip()!r}).collect()\n" for text in statements.split(";") if text.strip())
