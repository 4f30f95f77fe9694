"""The table of Kafka's cases names every case, and only tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
LAST_CASE = 58


def names_in(path: Path) -> set[str]:
    """Return functions and classes of a test file, methods as ``Class::method`` too."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            found |= {f"{node.name}::{name}" for name in methods} | set(methods)
    return found


def rows() -> list[tuple[str, str]]:
    lines = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1:-1] for line in lines if re.match(r"\| \d", line)]
    return [(row[0].strip(), row[-1]) for row in cells]


def test_every_case_has_a_row() -> None:
    numbers = {int(number) for cases, _ in rows() for number in re.findall(r"\d+", cases)}
    assert numbers >= set(range(1, LAST_CASE + 1))


def test_every_test_that_is_named_exists() -> None:
    named = 0
    for cases, text in rows():
        path = None
        for name in re.findall(r"`([^`]+)`", text):
            file, _, test = name.partition("::")
            if file.endswith(".py"):
                path = (HERE.parents[2] if "/" in file else HERE) / file
                assert path.exists(), f"case {cases}: {file} is not there"
            else:
                test = name
            if test.startswith(("test_", "Test")):
                assert path is not None
                assert test in names_in(path), f"case {cases}: {path.name} has no {test}"
                named += 1
    assert named >= LAST_CASE - 5
