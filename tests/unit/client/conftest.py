"""Fixtures of the plain Python clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manual_clock import ManualClock
from tests.unit.client.consumer_setup import filled, store, store3
from tests.unit.client.producer_setup import Shop
from tests.unit.write.support import FaultyBrokers

__all__ = ["filled", "store", "store3"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """One broker; its store can fail."""
    made = Shop(tmp_path, FaultyBrokers)
    yield made
    made.close()
