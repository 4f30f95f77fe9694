"""The verbs of docs/least-privilege.md, each row as the only thing that a user of a real server may do."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from tests.http_fault_proxy import HttpFault, HttpFaultProxy, PlannedAnswer
from tests.servers import policy_page
from tests.servers.server import Azurite, FakeGcs, Minio, VersityGateway, statements_of
from tests.servers.stores import RealRoots

ROLES = ("reader", "producer, consumer of a group, streaming sink", "coordinator, admin")
"""On the page, for GCS, each has the rights of the one before too."""


def cell_of(role: str, back_end: int) -> str:
    """Return what the page lists for a role; back ends count from 1."""
    return policy_page.cell("Buckets: verbs below a folder", role, back_end)


def s3_options(server, path: str, name: str, role: str) -> dict[str, str]:
    bucket = path.split("/")[2]
    return server.make_user(name, bucket, statements_of(bucket, re.findall(r"`(s3:\w+)`", cell_of(role, 1))))


def azure_options(server, path: str, name: str, role: str) -> dict[str, str]:
    letters = re.findall(r"`([rcdl]+)`", cell_of(role, 3))[0]
    return server.token_options(path.split("/")[2], letters, soon(hours=1))


def soon(**more: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(**more)


@pytest.fixture(
    params=[(VersityGateway, s3_options), (Minio, s3_options), (Azurite, azure_options)],
    ids=lambda param: param[0].name,
    scope="module",
)
def back_end(request, servers):
    return servers(request.param[0]), request.param[1]


@pytest.fixture
def store(back_end):
    server, options_of = back_end
    roots = RealRoots.of(server, 1)
    opened = roots.make("orders", replicas=1)
    with opened.producer() as producer:
        assert producer.send("orders", b"0").result(timeout=60).offset == 0

    def as_user(name: str, role: str) -> RealRoots:
        return RealRoots([roots.path], options_of(server, roots.path, name, role))

    return as_user


def refused(call) -> None:
    with pytest.raises(ReplogError) as raised:
        call()
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED, raised.value


def test_a_reader_reads_and_writes_nothing(store):
    roots = store("reader", "reader")
    opened = spark_replog.open(roots.path, roots.options)
    assert opened.topic("orders").scan().to_arrow()["value"].to_pylist() == [b"0"]
    with opened.consumer("orders", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(20_000)] == [b"0"]
    raw = open_store(f"{roots.path}/broker-0", roots.options)
    refused(lambda: raw.create("ledgers/x", b"x"))
    refused(lambda: raw.delete("replog.json"))
    assert raw.get("replog.json") is not None
    assert roots.replog("store", "verify", "--deep")[0] == 0
    for inline_bytes, timeout_ms in ((0, 6_000), (4096, 20_000)):  # a root refuses the object, and the ledger the entry
        producer = opened.producer(
            inline_max_bytes=inline_bytes, request_timeout_ms=timeout_ms - 1_000, delivery_timeout_ms=timeout_ms
        )
        with producer, pytest.raises(ReplogError, match="REPLOG_STORE_REFUSED"):
            producer.send("orders", b"1").result(timeout=60)


def test_a_producer_writes_and_deletes_nothing(store):
    roots = store("producer", "producer, consumer of a group, streaming sink")
    opened = spark_replog.open(roots.path, roots.options)
    for number, inline_bytes in ((1, 0), (2, 4096)):
        with opened.producer(inline_max_bytes=inline_bytes) as producer:
            assert producer.send("orders", b"%d" % number).result(timeout=60).offset == number
    assert open_store(f"{roots.path}/broker-0", roots.options).create("replog.json", b"x") is CreateOutcome.EXISTS
    with opened.consumer("orders", group="billing", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll(20_000)) > 0
        consumer.commit()
    refused(lambda: open_store(f"{roots.path}/broker-0", roots.options).delete("replog.json"))
    assert open_store(f"{roots.path}/broker-0", roots.options).get("replog.json") is not None


def test_a_coordinator_deletes_what_is_trimmed(store):
    roots = store("coordinator", "coordinator, admin")
    settings = [text for name, value in roots.options.items() for text in ("-X", f"storage.{name}={value}")]
    assert run(["-s", roots.path, "-q", *settings, "topic", "delete", "orders", "-y"]) == 0
    assert roots.replog("store", "gc", "--now", "--older-than", "0s")[0] == 0
    keys = [
        info.key
        for info in open_store(f"{roots.path}/broker-0", roots.options).list_keys("ledgers/")
        if "/data/" in info.key
    ]
    assert keys == []
    assert roots.replog("store", "repair", "--dry-run")[0] == 0


def test_a_token_that_ran_out_is_refused_at_once_and_named(servers):
    server = servers(Azurite)
    url = server.new_root()
    over = open_store(url, server.token_options(url.split("/")[2], "rcdl", soon(seconds=-60)))
    for call in (lambda: over.create("a", b"x"), lambda: over.get("a"), lambda: list(over.list_keys(""))):
        refused(call)
    assert list(open_store(url, server.options()).list_keys("")) == []


def test_on_gcs_each_role_needs_its_verbs_alone(servers):
    """fake-gcs-server checks no rights: a proxy before it refuses the verbs that a role's row lacks."""
    server = servers(FakeGcs)
    path = RealRoots.of(server, 1).path
    with HttpFaultProxy(server.port, one_at_a_time=False) as proxy:
        roots = RealRoots([path], server.options(proxy.port))

        def as_role(role: str) -> Any:
            proxy.clear()
            for method, verb in (("POST", "create"), ("DELETE", "delete")):
                if not any(f"storage.objects.{verb}" in cell_of(row, 2) for row in ROLES[: ROLES.index(role) + 1]):
                    proxy.plan(method, PlannedAnswer(HttpFault.BEFORE, 403, b"{}"), times=1000)
            return spark_replog.open(roots.path, roots.options)

        roots.make("orders", replicas=1)
        opened = as_role("producer, consumer of a group, streaming sink")
        with opened.producer(inline_max_bytes=0) as producer:
            assert producer.send("orders", b"0").result(timeout=60).offset == 0
        with opened.consumer("orders", group="billing", auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.poll(20_000)] == [b"0"]
            consumer.commit()
        posts = [target for method, target in proxy.requests if method not in ("GET", "DELETE")]
        assert posts and all("ifGenerationMatch=0" in target for target in posts)
        reader = as_role("reader")
        assert reader.topic("orders").scan().to_arrow()["value"].to_pylist() == [b"0"]
        assert roots.replog("store", "verify", "--deep")[0] == 0
        assert {method for method, _ in proxy.requests} == {"GET"}
        refused(lambda: open_store(f"{path}/broker-0", roots.options).create("ledgers/x", b"x"))
        refused(lambda: open_store(f"{path}/broker-0", roots.options).delete("replog.json"))
        as_role("coordinator, admin")
        assert roots.replog("topic", "delete", "orders", "-y")[0] == 0
        assert roots.replog("store", "gc", "--now", "--older-than", "0s")[0] == 0
        assert roots.replog("store", "repair", "-y")[0] == 0
        assert {method for method, _ in proxy.requests} == {"GET", "POST", "DELETE"}
