"""``python -O`` drops assertions: it must change nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "spark_replog").rglob("*.py"))
PURE = {"all", "any", "array", "callable", "frozenset", "isdisjoint", "isinstance", "len", "max", "min", "set", "sum"}
PURE |= {"count", "get", "has_claim_majority", "is_set", "issubset", "issuperset", "promised"}
"""Calls that an assertion may make: none of them changes anything."""
UNDER_O = [
    "tests/unit/log/test_topic_state.py",
    "tests/unit/ledger/test_core.py",
    "tests/unit/commit/test_state_changes.py",
    "tests/unit/write/test_task_writer.py",
]
MORE_UNDER_O = [
    "tests/unit/ledger/test_ledger_processes.py",
    "tests/scenarios/test_forks.py",
    "tests/unit/write/test_sender.py",
    "tests/unit/client/test_transactions.py",
]


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "?")


def test_an_assertion_has_no_effect() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Name) and node.id in ("__debug__", "AssertionError")), path
            if isinstance(node, ast.Assert):
                inside = list(ast.walk(node.test))
                assert not any(isinstance(inner, ast.NamedExpr) for inner in inside), f"{path}:{node.lineno}"
                called = {_called(inner) for inner in inside if isinstance(inner, ast.Call)}
                assert called <= PURE, f"{path}:{node.lineno}"


@pytest.mark.parametrize("files", [UNDER_O, pytest.param(MORE_UNDER_O, marks=pytest.mark.wide)], ids=["few", "more"])
def test_ledger_commit_and_write_task_work_without_assertions(files: list[str]) -> None:
    ignored = ["-W", "ignore:assertions not in test modules"]
    done = subprocess.run(
        [sys.executable, "-O", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *ignored, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
