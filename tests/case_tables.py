"""Which tests show a rule: read from markers, written into the pages that list the rules.

A test says what it shows, ``@pytest.mark.case("kafka-43")`` or ``@pytest.mark.guarantee("G3")``; the pages below hold
the rules, and this program fills in the tests beside them. ``tests/test_docs.py`` fails where a page is out of date.

    python tests/case_tables.py --write
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASE_PAGES = sorted((ROOT / "tests" / "cases").glob("*.md"))
GUARANTEES_PAGE = ROOT / "docs" / "guarantees.md"
_ROW = re.compile(r"\| *([a-z][\w-]*) *\|(.*)\|[^|]*\|")
_BLOCK = re.compile(r"<!-- tests of (\w+) -->\n.*?<!-- end -->", re.DOTALL)


@cache
def marked_tests() -> dict[str, list[str]]:
    """Return marker ids -> tests as ``file::Class::name``, in the order of files and lines."""
    tests: dict[str, list[str]] = {}
    for path in sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("integration/**/test_*.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT).as_posix()
        for marker_id, test in _marks_of(tree, name):
            tests.setdefault(marker_id, []).append(test)
    return tests


def _marks_of(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "pytestmark" for target in node.targets):
            values = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            yield from ((marker_id, name) for marker_id in _ids(values))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from ((marker_id, f"{name}::{node.name}") for marker_id in _ids(node.decorator_list))
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    test = f"{name}::{node.name}::{method.name}"
                    yield from ((marker_id, test) for marker_id in _ids(method.decorator_list))


def _ids(decorators: list[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") in ("case", "guarantee"):
            yield from (argument.value for argument in decorator.args if isinstance(argument, ast.Constant))


def listed_ids() -> list[str]:
    """Return the ids that the pages list, in their order."""
    cases = [
        match[1] for page in CASE_PAGES for line in page.read_text().splitlines() if (match := _ROW.fullmatch(line))
    ]
    return [case for case in cases if case != "id"] + _BLOCK.findall(GUARANTEES_PAGE.read_text())


def filled(page: Path, tests: dict[str, list[str]]) -> str:
    """Return the text of a page with the tests of every rule."""
    text = page.read_text()
    if page == GUARANTEES_PAGE:
        return _BLOCK.sub(
            lambda match: "\n".join(
                [f"<!-- tests of {match[1]} -->", *(f"- `{test}`" for test in tests.get(match[1], ())), "<!-- end -->"]
            ),
            text,
        )
    lines = []
    for line in text.splitlines():
        match = _ROW.fullmatch(line)
        if match and match[1] != "id":
            line = f"| {match[1]} |{match[2]}| " + ", ".join(f"`{test}`" for test in tests.get(match[1], ())) + " |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the pages, or say which are out of date."""
    tests = marked_tests()
    stale = [page for page in (*CASE_PAGES, GUARANTEES_PAGE) if filled(page, tests) != page.read_text()]
    if "--write" in sys.argv[1:]:
        for page in stale:
            page.write_text(filled(page, tests))
    for page in stale:
        print(page.relative_to(ROOT), file=sys.stderr)
    sys.exit(0 if "--write" in sys.argv[1:] or not stale else 1)


if __name__ == "__main__":
    main()
