"""How many requests each verb costs at the server."""

from __future__ import annotations

import pytest

from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.parts import ONE_REQUEST_BYTES_MAX
from tests.http_fault_proxy import HttpFaultProxy
from tests.servers.conftest import on_buckets
from tests.servers.server import Azurite, FakeGcs, VersityGateway


@on_buckets
def test_each_verb_is_one_request(real):
    with HttpFaultProxy(real.port, one_at_a_time=False) as proxy:
        store = open_store(real.new_root(), real.options(proxy.port))
        store.create("f/a", b"0123456789")
        told = {}
        for name, call in {
            "create": lambda: store.create("f/b", b"0123456789"),
            "taken": lambda: store.create("f/a", b"x"),
            "get": lambda: store.get("f/a"),
            "range": lambda: store.get("f/a", start=2, size_bytes=3),
            "absent": lambda: store.get("f/absent", size_bytes=9),
            "list": lambda: list(store.list_keys("f/")),
            "list nothing": lambda: list(store.list_keys("none/")),
            "list some": lambda: list(store.list_keys("f/b")),
            "delete": lambda: store.delete("f/b"),
        }.items():
            proxy.clear()
            call()
            told[name] = len(proxy.requests)
        assert told == dict.fromkeys(told, 1)


@on_buckets
def test_a_listing_of_several_pages_is_whole(real, monkeypatch):
    store = open_store(real.new_root(), real.options())
    keys = [f"f/{number:03}" for number in range(7)]
    for key in keys:
        store.create(key, b"x")
    client = store.file_system()
    verb = {"s3": "call_s3", "gs": "call"}.get(real.scheme)
    if verb is not None:  # the SDK of Azure turns pages itself
        plain, few = getattr(client, verb), {"s3": {"MaxKeys": 3}, "gs": {"maxResults": 3}}[real.scheme]
        monkeypatch.setattr(client, verb, lambda *given, **more: plain(*given, **more, **few))
    assert [info.key for info in store.list_keys("f/")] == keys


@pytest.mark.parametrize(
    "real",
    [VersityGateway, FakeGcs, Azurite],
    ids=lambda kind: kind.scheme,
    indirect=True,
)
def test_a_body_above_the_clients_own_bounds_is_one_conditional_request(real):
    """Above 50, 64 or 100 MiB they would send parts of their own: test_parts.py has what goes in parts."""
    body = bytes({"s3": 101, "gs": 51, "abfs": 65}[real.scheme] << 20)
    with HttpFaultProxy(real.port, one_at_a_time=False) as proxy:
        store = open_store(real.new_root(), real.options(proxy.port))
        assert store.create("f/a", body) is CreateOutcome.CREATED
        assert [method for method, _ in proxy.requests] == [real.put]
        assert [info.size_bytes for info in store.list_keys("f/")] == [len(body)]


@pytest.mark.parametrize(
    "real",
    [VersityGateway, FakeGcs, Azurite],
    ids=lambda kind: kind.scheme,
    indirect=True,
)
def test_a_data_object_of_the_default_size_or_on_gcs_is_one_request(real):
    body = bytes(ONE_REQUEST_BYTES_MAX + (real.scheme == "gs"))
    with HttpFaultProxy(real.port, one_at_a_time=False) as proxy:
        store = open_store(real.new_root(), real.options(proxy.port))
        assert store.create("ledgers/x/data/000000/a", body) is CreateOutcome.CREATED
        assert [method for method, _ in proxy.requests] == [real.put]
