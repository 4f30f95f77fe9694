"""A full disk below stdout: the command says so in one line, and its exit code is its own, not Python's 120."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


@pytest.mark.parametrize("is_buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["topic", "--help"],
        ["--version"],
        ["explain", "NOT_LEADER_OR_FOLLOWER"],
        ["-s", "nowhere", "-f", "json", "topic", "list"],
        ["completion", "bash"],
    ],
    ids=" ".join,
)
def test_what_stdout_does_not_take_is_reported_once(tmp_path, words, is_buffered):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    variables |= {"PYTHONPATH": str(ROOT)} | ({} if is_buffered else {"PYTHONUNBUFFERED": "1"})
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spark_replog", *words],
            cwd=tmp_path, env=variables, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("replog: [REPLOG_ENVIRONMENT] ") and "No space left on device" in line
