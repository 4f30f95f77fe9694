"""Docs are held against the tree: what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])


def test_every_guarantee_has_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promised = re.split(r"^## G", text, flags=re.MULTILINE)[1:]

    missing = []
    for section in promised:
        named = re.findall(r"`((?:tests|integration)/[\w/]+\.py)::(\w+)`", section)
        assert named, section.splitlines()[0]
        for file, test in named:
            path = ROOT / file
            if not path.exists() or not re.search(rf"def {test}\(", path.read_text()):
                missing.append(f"{file}::{test}")

    assert len(promised) == 10
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())

    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(
        re.findall(
            r"`((?:spark|cli|producer|consumer|commit|cluster|admin|ledger|log|storage|maintenance)/\w+\.py)`", text
        )
    )

    assert named
    assert sorted(name for name in named if not (ROOT / "spark_replog" / name).exists()) == []


def test_kafkas_server_cases_have_tests_that_exist() -> None:
    text = (ROOT / "tests" / "unit" / "commit" / "README.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)

    assert len(named) > 50
    assert [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).exists() or not re.search(rf"def {test}\(", (ROOT / "tests" / file).read_text())
    ] == []


def test_the_connectors_contract_has_tests_that_exist() -> None:
    """A line names ``file.py::test``, seen from ``contract/``; a test without a file is in the one before it."""
    text = (ROOT / "integration" / "README.md").read_text().partition("## The connector's contract")[2]
    cells = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("|")]
    pattern = r"`(?:([\w./]+\.py)(?:::)?)?([\w.\[\]-]*)`"
    tests_by_line = {rule.strip(): re.findall(pattern, tests) for rule, tests in cells}

    missing = []
    for rule, tests in tests_by_line.items():
        if rule in ("contract", "---"):
            continue
        file = None
        for name, test in tests:
            if name:
                file = ROOT / name if name.startswith("tests/") else ROOT / "integration" / "contract" / name
            if file is None or not file.exists() or (test and f"\ndef {test}(" not in file.read_text()):
                missing.append(f"{rule}: {name}::{test}")
        if not tests:
            missing.append(f"{rule}: no test")

    assert len(tests_by_line) > 50
    assert missing == []
