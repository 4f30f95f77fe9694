"""Disks that are full, that fail, and that show what was before: mounted folders whose calls are answered so."""

from __future__ import annotations

import contextlib
import os

import pytest

import spark_replog
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.retrying_store import RetryingStore
from tests.servers.builds import NotBuilt
from tests.servers.mount import Mount
from tests.servers.stores import RealRoots

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS
REFUSED, UNKNOWN = ErrorCode.REPLOG_STORE_REFUSED, ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN
FAILED = ErrorCode.KAFKA_STORAGE_ERROR


class Faulty:
    """A mounted folder; ``below`` has its files without faults."""

    def __init__(self, mount, below):
        self.root, self.below, self._mount = mount.point / "log", below / "log", mount
        self.below.mkdir()

    def set(self, *faults, stale=0, seed=0):
        """Let these be wrong from now on; return what was wrong since the last time, and how often."""
        return self._mount.ask({"seed": seed, "faults": faults, "stale": stale})


@pytest.fixture
def faulty(tmp_path):
    """Return a function that mounts one more."""
    with contextlib.ExitStack() as stack:

        def make(name="disk"):
            below = tmp_path / name
            below.mkdir()
            try:
                mounted = stack.enter_context(
                    Mount(tmp_path / f"{name}-mounted", "tests.servers.faulty_folder", str(below))
                )
            except NotBuilt as why:
                pytest.skip(str(why))
            return Faulty(mounted, below)

        yield make


def raised_by(call, disk):
    with pytest.raises(ReplogError) as raised:
        call()
    assert raised.value.context["url"] == f"file://{disk.root}"
    assert raised.value.context["key"].startswith("f/")
    assert disk.set() != {}
    return raised.value


@pytest.mark.parametrize("call", ["create", "write", "fsync"])
@pytest.mark.parametrize(
    ("what", "said"), [("EIO", "mount options"), ("ENOSPC", "full"), ("EDQUOT", "full"), ("EROFS", "mount")]
)
def test_a_write_that_fails_before_the_link_leaves_nothing(faulty, call, what, said):
    disk = faulty()
    store = open_store(str(disk.root))
    store.make_folder("f")
    disk.set([call, what, 1.0])
    error = raised_by(lambda: store.create("f/a", b"x" * 200_000), disk)
    assert error.code is REFUSED and said in str(error)
    assert os.listdir(disk.below / "f") == []
    assert store.create("f/a", b"y") is CREATED


@pytest.mark.parametrize("fault", [("link", "EIO"), ("link", "EIO after"), ("fsyncdir", "EIO")])
def test_a_link_that_fails_is_in_doubt_and_settled_by_the_bytes(faulty, fault):
    disk = faulty()
    store = open_store(str(disk.root))
    store.make_folder("f")
    disk.set([*fault, 1.0])
    assert raised_by(lambda: store.create("f/a", b"ours"), disk).code is UNKNOWN
    retrying = RetryingStore(store, deadline_ms=10_000)
    disk.set([*fault, 0.5], seed=3)
    for name in "bcdefg":
        assert retrying.create(f"f/{name}", name.encode()) is CREATED
        assert retrying.create(f"f/{name}", b"theirs") is EXISTS
    assert disk.set() != {}
    assert [(info.key, store.get(info.key)) for info in store.list_keys("f/b")] == [("f/b", b"b")]


@pytest.mark.parametrize("what", ["EPERM", "EOPNOTSUPP", "ENOSYS"])
def test_a_mount_without_hard_links_is_named_with_what_to_use_instead(faulty, what):
    disk = faulty()
    store = open_store(str(disk.root))
    store.make_folder("f")
    disk.set(["link", what, 1.0])
    error = raised_by(lambda: store.create("f/a", b"x"), disk)
    assert error.code is REFUSED
    assert "fuse refuses hard links" in str(error) and "s3://" in str(error)
    assert os.listdir(disk.below / "f") == []


@pytest.mark.parametrize(
    ("fault", "verb"),
    [
        (("read", "EIO"), lambda store: store.get("f/a")),
        (("open", "EIO"), lambda store: store.get("f/a")),
        (("getattr", "EIO"), lambda store: store.get("f/a")),
        (("open", "ESTALE"), lambda store: store.get("f/a")),
        (("readdir", "EIO"), lambda store: list(store.list_keys("f/"))),
        (("unlink", "EIO"), lambda store: store.delete("f/a")),
    ],
    ids=lambda parameter: " ".join(parameter) if isinstance(parameter, tuple) else "",
)
def test_what_cannot_be_read_or_deleted_is_an_error_and_never_absent(faulty, fault, verb):
    disk = faulty()
    store = open_store(str(disk.root))
    assert store.create("f/a", b"x", make_parent=True) is CREATED
    disk.set([*fault, 1.0])
    assert raised_by(lambda: verb(store), disk).code is FAILED
    assert store.get("f/a") == b"x"
    assert [info.key for info in store.list_keys("f/")] == ["f/a"]


SETTINGS = {"acks": "all", "request.timeout.ms": 20_000, "retry.backoff.ms": 5, "replica.lag.time.max.ms": 500}
COUNT = 24
SICK = {
    "full now and then": [["write", "ENOSPC", 0.04], ["create", "ENOSPC", 0.02], ["mkdir", "ENOSPC", 0.1]],
    "input and output errors": [
        *([call, "EIO", 0.02] for call in ("create", "write", "fsync", "link", "open", "read", "fsyncdir", "readdir")),
        ["link", "EIO after", 0.03],
    ],
    "all of them, and short reads": [
        ["write", "ENOSPC", 0.02],
        ["link", "EIO after", 0.02],
        ["open", "EIO", 0.02],
        ["read", "short", 0.02],
    ],
}


def repaired(roots):
    """Repair and check the store; return the values of its rows."""
    repair = roots.replog("store", "repair", "-y")
    assert repair[0] == 0, repair
    verify = roots.replog("store", "verify", "--deep")
    assert verify[0] == 0, verify
    return spark_replog.open(roots.path).topic("orders").scan().to_arrow()["value"].to_pylist()


@pytest.mark.guarantee("G3", "G4")
@pytest.mark.parametrize("faults", SICK.values(), ids=SICK.keys())
def test_on_three_sick_disks_nothing_acknowledged_is_lost_and_nothing_is_there_twice(faulty, faults):
    """A send that fails names the error by its code; its row may be in the log, once."""
    disks = [faulty(f"disk-{number}") for number in range(3)]
    roots = RealRoots([str(disk.root) for disk in disks], {})
    store = roots.make("orders")
    for number, disk in enumerate(disks):
        disk.set(*faults, seed=number)
    told, number = {}, 0
    while number < 40:
        with contextlib.suppress(ReplogError), store.producer(SETTINGS) as producer:
            while number < 40:
                value = b"%d" % number
                number += 1
                try:
                    told[producer.send("orders", value).result(timeout=60).offset] = value
                except ReplogError as error:
                    assert error.code.name in ErrorCode.__members__
                    break
    counted = [disk.set() for disk in disks]
    assert sum(sum(counts.values()) for counts in counted) >= 5, counted
    assert len(told) >= 10
    rows = repaired(roots)
    assert {offset: rows[offset] for offset in told} == told
    assert len(set(rows)) == len(rows)
    with spark_replog.open(roots.path).consumer("orders", auto_offset_reset="earliest") as consumer:
        got = []
        while len(got) < len(rows):
            got += [record.value for record in consumer.poll(30_000)]
    assert got == rows


@pytest.mark.guarantee("G3", "G4")
def test_of_two_writers_one_sees_all_roots_late_and_both_have_each_row_once(faulty):
    """As NFS with its cache of names: what was absent stays so for a look more."""
    disks = [faulty(f"disk-{number}") for number in range(3)]
    late, early = (RealRoots([str(getattr(disk, at)) for disk in disks], {}) for at in ("root", "below"))
    stores = [late.make("orders"), spark_replog.open(early.path)]
    for number, disk in enumerate(disks):
        disk.set(stale=1, seed=number)
    told, got = {}, []
    with (
        stores[0].producer(SETTINGS) as one,
        stores[1].producer(SETTINGS) as two,
        stores[0].consumer("orders", group="billing", auto_offset_reset="earliest") as consumer,
    ):
        for number in range(COUNT):
            value = b"%d" % number
            told[(one, two)[number % 2].send("orders", value).result(timeout=60).offset] = value
            if number % 2:
                got += [record.value for record in consumer.poll(1_000)]
                consumer.commit()
        while len(got) < COUNT:
            got += [record.value for record in consumer.poll(30_000)]
    counted = [disk.set() for disk in disks]
    assert sum(counts["stale name"] for counts in counted) > 0, counted
    assert told == {number: b"%d" % number for number in range(COUNT)}
    assert got == list(told.values()) == repaired(late)


def test_a_consumer_reads_on_while_its_disks_fail(faulty):
    disks = [faulty(f"disk-{number}") for number in range(3)]
    roots = RealRoots([str(disk.root) for disk in disks], {})
    store = roots.make("orders")
    with store.producer() as producer:
        for number in range(30):
            assert producer.send("orders", b"%d" % number).result(timeout=60).offset == number
    faults = [["open", "EIO", 0.2], ["read", "EIO", 0.2], ["read", "short", 0.2], ["readdir", "EIO", 0.2]]
    for number, disk in enumerate(disks):
        disk.set(*faults, seed=number)
    got = []
    with spark_replog.open(roots.path).consumer("orders", auto_offset_reset="earliest") as consumer:
        while len(got) < 30:
            got += [record.value for record in consumer.poll(30_000)]
    assert got == [b"%d" % number for number in range(30)]
    assert sum(sum(disk.set().values()) for disk in disks) >= 5


def test_full_disks_stop_writers_with_their_names_and_go_on_when_there_is_space(faulty):
    disks = [faulty(f"disk-{number}") for number in range(3)]
    roots = RealRoots([str(disk.root) for disk in disks], {})
    store = roots.make("orders")
    full = [["write", "ENOSPC", 1.0], ["create", "ENOSPC", 1.0], ["mkdir", "ENOSPC", 1.0]]
    with store.producer(SETTINGS) as producer:
        assert producer.send("orders", b"0").result(timeout=60).offset == 0
        disks[0].set(*full)
        assert producer.send("orders", b"1").result(timeout=60).offset == 1
    for disk in disks:
        disk.set(*full)
    with (
        pytest.raises(ReplogError) as raised,
        store.producer({**SETTINGS, "request.timeout.ms": 2_000, "delivery.timeout.ms": 3_000}) as producer,
    ):
        producer.send("orders", b"lost").result(timeout=60)
    assert "full" in str(raised.value) and str(disks[0].root.parent.parent) in str(raised.value), raised.value
    for disk in disks:
        disk.set()
    with store.producer(SETTINGS) as producer:
        assert producer.send("orders", b"2").result(timeout=60).offset == 2
    assert repaired(roots) == [b"0", b"1", b"2"]
