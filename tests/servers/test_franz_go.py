"""franz-go, the client of most programs in Go, at a gateway."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateways import RunningGateway
from tests.servers.builds import FRANZ, NotBuilt
from tests.waiting import SECONDS_MAX

pytestmark = pytest.mark.wide
COUNT = 2_000


@pytest.fixture
def gateway() -> Iterator[RunningGateway]:
    try:
        FRANZ.folder()
    except NotBuilt as why:
        pytest.skip(str(why))
    with RunningGateway() as gateway:
        yield gateway


def run(gateway: RunningGateway, command: str, *arguments: object) -> list[dict[str, Any]]:
    """Run the program; return what it printed."""
    words = [str(FRANZ.folder() / "franz"), command, gateway.address, "orders", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_records_groups_and_an_administrator(gateway):
    run(gateway, "create", 3)
    sent = run(gateway, "produce", COUNT)
    rows = (
        gateway.store.topic("orders").scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    stored = {(row["partition"], row["offset"]): row for row in rows.to_pylist()}
    assert {(row["partition"], row["offset"]): row["key"].encode() for row in sent} == {
        place: row["key"] for place, row in stored.items()
    }
    assert sorted(int(row["key"]) for row in stored.values()) == list(range(COUNT))
    for number in range(3):
        offsets = [offset for partition, offset in stored if partition == number]
        assert offsets and offsets == list(range(len(offsets)))
    read = run(gateway, "consume", "billing", COUNT)
    assert len(read) == COUNT and {row["member"] for row in read} == {0, 1}
    for row in read:
        number, place = int(row["key"]), (row["partition"], row["offset"])
        has_value = number % 7 != 0
        assert row["value"] == (f"value {number}" if has_value else None)
        assert row["headers"] == ({"number": str(number), "empty": ""} if has_value else {})
        assert row["time_ms"] == 1_000_000 + number == stored[place]["timestamp"].timestamp() * 1_000
        assert stored.pop(place)["key"] == row["key"].encode()
    (told,) = run(gateway, "list", "billing")
    assert told == {
        "topics": ["orders"], "partitions": 3, "end": COUNT, "groups": ["billing"], "lag": 0, "state": "Empty",
    }  # fmt: skip
