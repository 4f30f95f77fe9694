"""Each test is in one tier, and what selects, skips and counts the tests does what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("tests", "integration")
    for path in ROOT.glob(f"{folder}/**/test_*.py")
)


def test_the_union_of_the_tiers_is_all_and_each_test_is_in_one():
    for path in FILES:
        for marks in ([], ["wide"]):
            (tier,) = (name for name in tiers.TIERS if tiers.is_selected(f"{path}::test_it[a]", marks, [name]))
            assert all(
                tiers.may_hold_selected(place, [tier]) for place in (path, *map(str, list(Path(path).parents)[:-1]))
            )


def test_the_table_of_tiers_names_files_that_are_there():
    assert [name for name in tiers.TIER_OF if not (ROOT / name).exists()] == []
    assert set(tiers.TIER_OF.values()) == set(tiers.TIERS)
    assert {tiers.tier_of_path(path) for path in FILES if path.startswith("integration/")} == {"spark", "wide"}
    for name in tiers.NEWCOMER_SPARK:
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text()
        assert tiers.is_selected(name, [], [tiers.NEWCOMER])
        assert tiers.may_hold_selected(path, [tiers.NEWCOMER])
        assert not tiers.is_selected(name, [], [tiers.SPARK, tiers.BUT_NEWCOMER])


def test_contributing_lists_the_tiers_and_their_commands():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = [f"| {name} | {what} | `.venv/bin/python -m pytest --tier {name}` |" for name, what in tiers.TIERS.items()]
    assert re.search(r"\| tier \|.*\n\|[ -|]+\n((?:\|.*\n)+)", text)[1].splitlines() == rows


PROJECT = {
    "tests/unit/test_fast.py": """
        import pytest
        def test_one(): pass
        @pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.wide)])
        def test_seeds(seeds): pass
        def test_tool(): pytest.skip("no tool")
        def test_listed(): pytest.skip("asserts an assertion, so")
    """,
    "tests/scenarios/test_plain.py": "def test_two(): pass",
    "tests/servers/conftest.py": "import not_installed",
    "tests/servers/test_outside.py": "def test_three(): pass",
    "integration/test_faults.py": "def test_root_goes_and_comes_back(): pass\ndef test_more(): pass",
    "integration/test_versions.py": "import not_installed",
}


@pytest.fixture
def run_pytest(tmp_path):
    """Return a function: arguments of pytest in a small project to its exit code and the outcome of each test."""
    for name in ("conftest.py", "pyproject.toml", "tests/tiers.py", "tests/examples.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join(line[8:] if line[:8].isspace() else line for line in text.split("\n")))

    def run(*arguments):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        outcomes = re.findall(
            r"(?:(PASSED|FAILED|SKIPPED) )?\S*::(test_[\w\[\]]+)(?: (PASSED|FAILED|SKIPPED))?", done.stdout
        )
        return done.returncode, {name: first or last for first, name, last in outcomes if first or last}, done.stdout

    return run


def test_without_a_path_the_newcomers_tests_run_on_all_processors(run_pytest):
    code, outcomes, text = run_pytest()
    assert (code, outcomes) == (
        0,
        {
            "test_one": "PASSED", "test_seeds[1]": "PASSED", "test_tool": "SKIPPED", "test_listed": "SKIPPED",
            "test_two": "PASSED", "test_root_goes_and_comes_back": "PASSED",
        },
    ), text  # fmt: skip
    assert len(set(re.findall(r"\[gw\d+\]", text))) > 1  # the last to be ready may get none of so few files
    assert re.search(r"^fast +0.0 min +4 tests$", text, re.M)


def test_a_path_runs_all_that_it_names_and_tier_selects_of_it(run_pytest):
    assert run_pytest("tests/unit/test_fast.py")[1].keys() == {
        "test_one",
        "test_seeds[1]",
        "test_seeds[2]",
        "test_tool",
        "test_listed",
    }
    assert run_pytest("tests/unit", "--tier", "wide")[1] == {"test_seeds[2]": "PASSED"}
    assert run_pytest("--tier", "spark,plain", "-n", "0")[1].keys() == {
        "test_two",
        "test_root_goes_and_comes_back",
        "test_more",
    }
    assert run_pytest("--tier", "spark,-newcomer", "-n", "0")[1].keys() == {"test_more"}
    assert run_pytest("--tier", "quick")[0] == pytest.ExitCode.USAGE_ERROR


def test_a_skip_fails_where_skips_are_not_allowed(run_pytest):
    code, outcomes, text = run_pytest("--no-skips", "-n", "1")
    assert code == 1
    assert (outcomes["test_tool"], outcomes["test_listed"]) == ("FAILED", "SKIPPED")
    assert "no tool" in text
