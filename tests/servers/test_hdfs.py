"""What only a real NameNode and DataNode show: two servers in one write, folders, permissions."""

from __future__ import annotations

import random
from collections import Counter
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.retrying_store import RetryingStore
from tests.http_fault_proxy import HttpFaultProxy
from tests.servers.hdfs import Hdfs
from tests.servers.stores import RealRoots
from tests.servers.test_lies import LIES

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS


@pytest.fixture
def hdfs(servers):
    return servers(Hdfs)


def test_what_each_verb_asks_the_name_node(hdfs):
    with HttpFaultProxy(hdfs.port, one_at_a_time=False) as proxy:
        store = open_store(hdfs.new_root(), hdfs.options(proxy.port))
        store.make_folder("f")
        store.create("f/a", b"0123456789")
        for call, asked in (
            (lambda: store.create("f/b", b"x"), {"CREATE": 1, "RENAME": 1}),
            (lambda: store.create("f/a", b"x"), {"CREATE": 1, "RENAME": 1, "GETFILESTATUS": 1, "DELETE": 1}),
            (lambda: store.get("f/a", start=2, size_bytes=3), {"GETFILESTATUS": 1, "OPEN": 1}),
            (lambda: store.get("f/absent"), {"GETFILESTATUS": 1}),
            (lambda: list(store.list_keys("f/")), {"LISTSTATUS": 1}),
            (lambda: store.delete("f/b"), {"DELETE": 1}),
        ):
            proxy.clear()
            call()
            assert Counter(parse_qs(urlsplit(path).query)["op"][0] for _, path in proxy.requests) == asked


def test_a_folder_is_made_once_a_process_and_again_when_it_is_gone(hdfs):
    """More bytes than a connection holds: a DataNode that refuses them early may cut it, and no answer is heard."""
    with HttpFaultProxy(hdfs.port, one_at_a_time=False) as proxy:
        url = hdfs.new_root()
        store = open_store(url, hdfs.options(proxy.port))
        store.make_folder("data")

        def asked(key, body):
            proxy.clear()
            assert RetryingStore(open_store(url, hdfs.options(proxy.port)), deadline_ms=30_000).create(
                key, body, make_parent=True
            ) is CREATED  # fmt: skip
            return Counter(parse_qs(urlsplit(path).query)["op"][0] for _, path in proxy.requests)

        assert asked("data/0/a", b"x") == {"GETFILESTATUS": 1, "MKDIRS": 1, "CREATE": 1, "RENAME": 1}
        assert asked("data/0/b", b"x") == {"CREATE": 1, "RENAME": 1}
        for key, body in (("data/0/c", b"x"), ("data/0/d", bytes(64 << 20))):
            store.file_system().rm(f"{urlsplit(url).path}/data/0", recursive=True)
            assert asked(key, body)["MKDIRS"] == 1
            assert [info.key for info in store.list_keys("")] == [key]
        store.file_system().rm(f"{urlsplit(url).path}/data", recursive=True)
        with pytest.raises(ReplogError) as raised:
            store.create("data/0/e", b"x", make_parent=True)
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED


def test_a_listing_of_several_pages_is_whole(hdfs):
    """The NameNode reads three names at a time here."""
    store = open_store(hdfs.new_root(), hdfs.options())
    store.make_folder("f")
    keys = [f"f/{number:03}" for number in range(7)]
    for key in keys:
        store.create(key, b"x")
    assert [info.key for info in store.list_keys("f/")] == keys


def test_bytes_are_settled_when_the_data_node_lies(hdfs):
    with HttpFaultProxy(hdfs.data_port, one_at_a_time=False) as proxy:
        store = open_store(hdfs.new_root(), hdfs.hasty_options(hdfs.port))
        store.file_system().proxy = {f":{hdfs.data_port}/": f":{proxy.port}/"}
        retrying = RetryingStore(store, deadline_ms=20_000)
        for name, lie in LIES.items():
            body = random.randbytes(70_000)
            proxy.plan("PUT", lie)
            assert retrying.create(name, body) is CREATED
            assert not proxy.is_planned()
            assert retrying.create(name, b"another's") is EXISTS
            assert store.get(name) == body
            proxy.clear()
        assert [info.key for info in store.list_keys("")] == sorted(LIES)


def test_a_data_node_that_is_away_costs_time_and_nothing_else(hdfs):
    store = open_store(hdfs.new_root(), hdfs.options())
    assert store.create("a", b"0") is CREATED
    hdfs.kill_data_node()
    try:
        with pytest.raises(OutcomeUnknownError):
            store.create("b", b"1")
        with pytest.raises(RetriableError) as raised:
            store.get("a")
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        assert [info.key for info in store.list_keys("")] == ["a"]
    finally:
        hdfs.start_data_node()
    retrying = RetryingStore(store, deadline_ms=60_000)
    assert retrying.get("a") == b"0"
    assert (retrying.create("b", b"1"), retrying.get("b")) == (CREATED, b"1")


def test_garbage_collection_sweeps_old_temp_files_by_the_clock_of_the_name_node(hdfs):
    roots = RealRoots.of(hdfs, 1)
    roots.make("orders", replicas=1)
    files = open_store(f"{roots.path}/broker-0", roots.options).file_system()
    folder = f"{urlsplit(roots.path).path}/broker-0/ledgers"
    day_ms = 86_400_000
    for name, age_ms in ((".tmp-old", day_ms), (".tmp-young", day_ms // 2)):
        files.pipe_file(f"{folder}/{name}", b"part")
        made_ms = files.info(f"{folder}/{name}")["modificationTime"]
        query = f"op=SETTIMES&modificationtime={made_ms - age_ms}&user.name={hdfs.user}"
        url = f"http://127.0.0.1:{hdfs.port}/webhdfs/v1{folder}/{name}?{query}"
        with urlopen(Request(url, method="PUT"), timeout=30):
            pass
    code, items = roots.replog("store", "gc")
    assert (code, [item["files"] for item in items if item.get("reason") == "left by an interrupted writer"]) == (
        0,
        [1],
    )
    names = files.find(f"{folder.rpartition('/')[0]}")
    assert [name for name in names if "/.tmp-" in name] == [f"{folder}/.tmp-young"]
