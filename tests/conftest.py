"""Options that belong to the whole test command."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds",
        type=int,
        default=10_000,
        help="schedules of the ledger simulation (about 2 ms each; a failure prints its seed)",
    )
