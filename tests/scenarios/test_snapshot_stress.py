"""A share of the stress form of the test command (tests/snapshot_stress.py) in each run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARE = ["test_exactly_once", "test_cut_rows", "test_fence_on_create"]


@pytest.mark.skipif(os.environ.get("REPLOG_TEST_SNAPSHOTS") == "1", reason="the whole command runs in that form")
def test_ledgers_that_live_on_pages_and_truncated_journals_pass_the_same_tests() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += [f"tests/scenarios/{name}.py" for name in SHARE]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env={**environment, "REPLOG_TEST_SNAPSHOTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
