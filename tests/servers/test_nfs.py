"""The contract over NFS, and what it alone has: other clients' changes, lost answers of links, waiting for a server."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.brokers import write_root_files
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.posix_store import sweep_temp_files
from spark_replog.storage.probe import probe_root
from spark_replog.storage.retrying_store import RetryingStore
from tests.contract.store_contract import ObjectStoreContract
from tests.servers.nfs import Nfs
from tests.waiting import SECONDS_MAX

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS


@pytest.fixture
def nfs(servers):
    return servers(Nfs)


class TestRealNfs(ObjectStoreContract):
    race_name_count, race_racer_count = 10, 4

    @pytest.fixture
    def store(self, nfs):
        return open_store(nfs.new_root())


def test_probe_passes(nfs):
    store = RetryingStore(open_store(nfs.new_root()), deadline_ms=5_000)
    assert probe_root(store).file_system.startswith("fuse")
    assert list(store.list_keys("")) == []


@pytest.fixture
def two(nfs):
    """One root, as two clients have it mounted."""
    url = nfs.new_root()
    with nfs.mount() as other:
        yield open_store(url), open_store(url.replace(str(nfs.mounted.point), str(other.point)))


def test_of_two_clients_one_creates_a_name_and_both_see_it_at_once(two):
    names = [f"f/{number}" for number in range(40)]
    two[0].make_folder("f")
    barrier, won = threading.Barrier(4), [[] for _ in range(4)]

    errors = []

    def race(number):
        try:
            for name in names:
                barrier.wait(SECONDS_MAX)
                if two[number % 2].create(name, b"%d" % number) is CREATED:
                    won[number].append(name)
                assert two[number % 2].get(name) is not None, name
        except threading.BrokenBarrierError:
            pass  # another one failed, and says why
        except Exception as error:
            errors.append(error)
            barrier.abort()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(race, range(4)))
    assert errors == [] and not barrier.broken
    assert sorted(itertools.chain(*won)) == sorted(names)
    for store in two:
        assert [info.key for info in store.list_keys("f/")] == sorted(names)
        assert all(store.get(name) == b"%d" % number for number in range(4) for name in won[number])


def test_a_link_whose_answer_is_lost_is_known_as_ours(nfs):
    """The client repeats it, and the server answers EEXIST."""
    store = open_store(nfs.new_root())
    assert store.create("a", b"theirs") is CREATED
    for name, outcome in (("b", CREATED), ("a", EXISTS)):
        before = nfs.mounted.ask("lost links")
        nfs.mounted.ask("lose a link")
        assert store.create(name, b"ours") is outcome
        assert nfs.mounted.ask("lost links") == before + (outcome is CREATED)
        nfs.mounted.ask("lose no link")
    assert (store.get("a"), store.get("b")) == (b"theirs", b"ours")
    assert sorted(os.listdir(store.url.removeprefix("file://"))) == ["a", "b"]


def test_what_another_client_deletes_is_absent_and_its_folder_is_made_again(two):
    ours, theirs = two
    assert ours.create("f/a", b"1", make_parent=True) is CREATED
    assert ours.get("f/a") == theirs.get("f/a") == b"1"
    theirs.delete("f/a")
    assert ours.get("f/a") is None
    theirs.delete("f/")
    assert (ours.get("f/a"), list(ours.list_keys("f/"))) == (None, [])
    with pytest.raises(ReplogError, match="Its folder is missing") as raised:
        ours.create("f/b", b"2")
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
    assert ours.create("f/b", b"2", make_parent=True) is CREATED
    assert theirs.get("f/b") == b"2"


def test_two_roots_that_are_one_folder_under_two_mounts_are_found_at_init(two):
    urls = [store.url.removeprefix("file://") for store in two]
    with pytest.raises(ReplogError) as raised:
        write_root_files(urls, {})
    assert raised.value.code is ErrorCode.REPLOG_STORE_EXISTS
    assert "one place" in str(raised.value), raised.value


def test_temp_files_are_swept_by_the_servers_clock(nfs):
    store = open_store(nfs.new_root())
    store.make_folder("f")
    folder = Path(store.url.removeprefix("file://")) / "f"
    (folder / ".tmp-left").write_bytes(b"x")
    assert sweep_temp_files(store.url, 3_600_000) == 0
    os.utime(folder / ".tmp-left", (0, 0))
    assert sweep_temp_files(store.url, 3_600_000) == 1
    assert os.listdir(folder) == []


def test_a_call_waits_for_a_server_that_is_away(nfs):
    store = RetryingStore(open_store(nfs.new_root()), deadline_ms=60_000)
    assert store.create("a", b"1") is CREATED
    nfs.kill()
    try:
        with ThreadPoolExecutor(2) as pool:
            made, read = pool.submit(store.create, "b", b"2"), pool.submit(store.get, "a")
            assert wait([made, read], timeout=0.5).not_done == {made, read}
            nfs.start()
            assert (made.result(60), read.result(60)) == (CREATED, b"1")
    finally:
        if not nfs.is_answering():
            nfs.start()
    assert store.get("b") == b"2"
