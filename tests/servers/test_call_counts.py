"""How many requests each verb costs at the server."""

from __future__ import annotations

import pytest

from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.obstore_client import NAMES_PER_PAGE
from spark_replog.storage.open_store import open_store
from spark_replog.storage.parts import ONE_REQUEST_BYTES_MAX
from spark_replog.storage.retrying_store import RetryingStore
from spark_replog.testing.http_fault_proxy import HttpFaultProxy
from tests.servers.conftest import on_buckets, on_fsspec_buckets
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


@on_fsspec_buckets
def test_a_listing_of_several_pages_is_whole(real, monkeypatch):
    """obstore turns pages itself: the test below has more than one."""
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
    [(VersityGateway, "fsspec"), (VersityGateway, "obstore"), (FakeGcs, "fsspec"), (Azurite, "fsspec")],
    ids=["s3", "s3-obstore", "gs", "abfs"],
    indirect=True,
)
def test_a_body_above_the_clients_own_bounds_is_one_conditional_request(real):
    """Above 50, 64 or 100 MiB they would send parts of their own: test_parts.py has what goes in parts."""
    body = bytes({"s3": 101, "gs": 51, "abfs": 65}[real.scheme] << 20)
    with HttpFaultProxy(real.port, one_at_a_time=False) as proxy:
        store = open_store(real.new_root(), real.options(proxy.port))
        assert store.create("f/a", body) is CreateOutcome.CREATED
        assert [method for method, _ in proxy.requests] == [real.put]
        if (real.scheme, real.client) == ("s3", "obstore"):
            # A server that refuses at once may cut the connection while the body is still being sent.
            assert RetryingStore(store, deadline_ms=60_000).create("f/a", body[1:]) is CreateOutcome.EXISTS
        assert [info.size_bytes for info in store.list_keys("f/")] == [len(body)]


@pytest.mark.parametrize(
    "real",
    [(VersityGateway, "fsspec"), (VersityGateway, "obstore"), (FakeGcs, "fsspec"), (Azurite, "fsspec")],
    ids=["s3", "s3-obstore", "gs", "abfs"],
    indirect=True,
)
def test_a_data_object_of_the_default_size_or_by_obstore_or_on_gcs_is_one_request(real):
    is_always_one = real.scheme == "gs" or real.client == "obstore"
    body = bytes(ONE_REQUEST_BYTES_MAX + is_always_one)
    with HttpFaultProxy(real.port, one_at_a_time=False) as proxy:
        store = open_store(real.new_root(), real.options(proxy.port))
        assert store.create("ledgers/x/data/000000/a", body) is CreateOutcome.CREATED
        assert [method for method, _ in proxy.requests] == [real.put]


def test_obstore_turns_pages(servers):
    """The names are put where the server keeps them."""
    server = servers(VersityGateway)
    store = open_store(server.new_root(), {**server.options(), "client": "obstore"})
    folder = server.folder / "data" / store.url.split("/")[2] / "some/root/f"
    folder.mkdir(parents=True)
    names = [f"{number:04}" for number in range(NAMES_PER_PAGE + 5)]
    for name in names:
        (folder / name).touch()
    assert [info.key for info in store.list_keys("f/")] == [f"f/{name}" for name in names]
