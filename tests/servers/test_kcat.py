"""kcat, of Debian, at a gateway."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateways import RunningGateway
from tests.servers.builds import KCAT, NotBuilt
from tests.waiting import SECONDS_MAX

pytestmark = pytest.mark.wide
COUNT = 2_000


class Kcat:
    """kcat, which asks one gateway."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._program, self._environment = KCAT.folder() / "usr/bin/kcat", KCAT.environment()
        self.gateway = gateway

    def run(self, *arguments: str, stdin: str = "") -> str:
        """Run it; return what it printed."""
        done = subprocess.run(
            [self._program, "-b", self.gateway.address, "-m", "60", *arguments], input=stdin, capture_output=True,
            text=True, check=False, timeout=SECONDS_MAX, env=self._environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def read(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the records, as far as there are any."""
        return [json.loads(line) for line in self.run("-C", "-e", "-J", *arguments).splitlines()]

    def write(self, topic: str, numbers: range, *arguments: str) -> None:
        """Send numbers as text, under one of ten keys."""
        lines = "".join(f"k{number % 10}:{number}\n" for number in numbers)
        self.run("-P", "-t", topic, "-K", ":", "-X", "enable.idempotence=true", *arguments, stdin=lines)

    def direct(self, topic: str) -> dict[tuple[int, int], dict[str, Any]]:
        """Return the records of a topic by place, from the store."""
        rows = self.gateway.store.topic(topic).scan(
            columns=["partition", "offset", "key", "value", "headers", "timestamp"]
        )
        return {(row["partition"], row["offset"]): row for row in rows.to_arrow().to_pylist()}


@pytest.fixture(scope="module")
def kcat() -> Iterator[Kcat]:
    try:
        KCAT.folder()
    except NotBuilt as why:
        pytest.skip(str(why))
    with RunningGateway() as gateway:
        yield Kcat(gateway)


def test_records_with_keys_headers_and_times(kcat):
    kcat.gateway.store.admin().create_topic("orders", 3)
    kcat.write("orders", range(COUNT), "-H", "from=kcat", "-H", "empty=", "-z", "zstd")
    kcat.run("-P", "-t", "orders", "-p", "1", "-Z", "-K", ":", stdin="gone:\n")
    read = kcat.read("-t", "orders", "-o", "beginning")
    assert sorted(int(row["payload"] or -1) for row in read) == list(range(-1, COUNT))
    direct = kcat.direct("orders")
    assert len(direct) == len(read)
    for row in read:
        stored = direct[row["partition"], row["offset"]]
        text = [None if data is None else data.decode() for data in (stored["key"], stored["value"])]
        assert [row["key"], row["payload"], row["ts"]] == [*text, stored["timestamp"].timestamp() * 1_000]
        headers = [part for header in stored["headers"] or [] for part in (header["key"], header["value"].decode())]
        assert row.get("headers", []) == headers == (["from", "kcat", "empty", ""] if row["payload"] else [])
    by_partition = [[row["offset"] for row in read if row["partition"] == number] for number in range(3)]
    assert by_partition == [list(range(len(offsets))) for offsets in by_partition]
    grouped = kcat.run("-G", "billing", "-e", "-X", "auto.offset.reset=earliest", "-f", "%k:%s\n", "orders")
    assert sorted(grouped.split()) == sorted(f"{row['key']}:{row['payload'] or ''}" for row in read)
    assert kcat.run("-G", "billing", "-e", "-f", "%s\n", "orders") == ""


def test_offsets_and_times_are_places_to_begin_at(kcat):
    kcat.gateway.store.admin().create_topic("places", 1)
    kcat.write("places", range(100))
    kcat.write("places", range(100, 150))
    times = [row["ts"] for row in kcat.read("-t", "places", "-o", "beginning")]
    middle, end = times[100], times[-1] + 1
    assert times[99] < middle and times == sorted(times)
    for place, numbers in (
        (["-o", "90"], range(90, 150)),
        (["-o", "-20"], range(130, 150)),
        (["-o", "90", "-c", "7"], range(90, 97)),
        (["-o", "end"], range(0)),
        (["-o", f"s@{middle}"], range(100, 150)),
        (["-o", f"s@{middle}", "-o", f"e@{middle}"], range(0)),
        (["-o", "s@1", "-o", f"e@{middle}"], range(100)),
    ):
        assert [int(row["payload"]) for row in kcat.read("-t", "places", "-p", "0", *place)] == list(numbers), place
    assert kcat.run("-Q", "-t", f"places:0:{middle}").split() == ["places", "[0]", "offset", "100"]
    assert kcat.run("-Q", "-t", f"places:0:{end}").split() == ["places", "[0]", "offset", "-1"]


def test_the_list_of_brokers_and_topics(kcat):
    kcat.gateway.store.admin().create_topic("listed", 2)
    told = json.loads(kcat.run("-L", "-J"))
    (broker,) = told["brokers"]
    assert broker["name"] == kcat.gateway.address
    (topic,) = [topic for topic in told["topics"] if topic["topic"] == "listed"]
    alone = {"leader": broker["id"], "replicas": [{"id": broker["id"]}], "isrs": [{"id": broker["id"]}]}
    assert topic["partitions"] == [{"partition": number, **alone} for number in range(2)]
