"""How many requests each verb costs at the server."""

from __future__ import annotations

from spark_replog.storage.open_store import open_store
from spark_replog.testing.http_fault_proxy import HttpFaultProxy
from tests.servers.conftest import on_buckets


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
