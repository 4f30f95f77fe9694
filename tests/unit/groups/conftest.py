"""Fixtures of the group coordinator: stores in memory."""

from __future__ import annotations

from tests.unit.client.consumer_setup import filled, store, store3

__all__ = ["filled", "store", "store3"]
