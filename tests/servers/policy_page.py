"""What docs/least-privilege.md says: tests run its tables, commands and policies, so the page stays true."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/least-privilege.md"


def section(heading: str) -> str:
    """Return the text below a heading, with that of headings below it."""
    text = PAGE.read_text(encoding="utf-8")
    (match,) = re.finditer(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    rest = text[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", re.sub(r"^# ", "- ", rest, flags=re.MULTILINE), re.MULTILINE)
    return rest[: end.start()] if end else rest


def cell(heading: str, role: str, column: int) -> str:
    """Return a cell of the section's table; columns count from 1 after the role's."""
    (row,) = (line for line in section(heading).splitlines() if line.startswith(f"| {role} |"))
    return row.split("|")[1 + column]


def filled(text: str, names: Mapping[str, str]) -> str:
    """Return the text with names in place of words in capitals."""
    return re.sub("|".join(names), lambda match: names[match[0]], text)


def policy(role: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the statements of the file that the page names for a role, with names in place of words in capitals."""
    (link,) = re.findall(r"\]\((.+?)\)", cell("S3: policies by prefix", role, 1))
    statements: list[dict[str, Any]] = json.loads(filled((PAGE.parent / link).read_text("utf-8"), names))["Statement"]
    return statements


def commands(heading: str, number: int, names: Mapping[str, str]) -> str:
    """Return a block of commands of the section, counted from 0, with names in place of words in capitals."""
    return filled(re.findall(r"```sh\n(.*?)```", section(heading), re.DOTALL)[number], names)
