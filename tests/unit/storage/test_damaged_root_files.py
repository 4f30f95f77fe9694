"""A damaged or deviating ``replog.json`` never changes the quorum: it is outvoted and reported, or the open fails."""

from __future__ import annotations

import json
import logging

import crc32c
import pytest

from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    ReplogError,
    RetriableError,
    UnsupportedFormatError,
)
from spark_replog.ids import new_id
from spark_replog.storage.brokers import BrokerSet, write_root_files
from spark_replog.storage.open_store import open_store
from spark_replog.storage.paths import ROOT_FILE_KEY
from spark_replog.storage.root_file import ROOT_FILE_BYTES_MAX, decode_root_file


class Roots:
    """A store in memory whose root files a test replaces."""

    def __init__(self, count):
        self.path = f"memory://{new_id()}"
        self.written = write_root_files([f"{self.path}/broker-{number}" for number in range(count)])

    def read(self, broker_id):
        return bytes(open_store(self.written.url(broker_id)).get(ROOT_FILE_KEY))

    def replace(self, broker_id, data):
        store = open_store(self.written.url(broker_id))
        store.delete(ROOT_FILE_KEY)
        store.create(ROOT_FILE_KEY, data)

    def change(self, broker_id, **fields):
        """Write a file with some fields changed, and the checksum of the result."""
        self.replace(broker_id, sealed(self.read(broker_id), **fields))

    def paths(self):
        explicit = ",".join(broker.url for broker in self.written.brokers)
        return [self.path, explicit, self.written.url(0), self.written.url(1)]


def sealed(data, **changed):
    fields = json.loads(data)
    fields.pop("crc32c")
    body = json.dumps({**fields, **changed}, indent=2).encode().removesuffix(b"\n}")
    return body + b',\n  "crc32c": "%08x"\n}\n' % crc32c.crc32c(body)


def quorum_of(brokers):
    return brokers.cluster_id, brokers.brokers, brokers.metadata_broker_ids, brokers.fsync


def flipped(data):
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def is_readable(data):
    try:
        decode_root_file(data, url="memory://x")
    except (CorruptDataError, UnsupportedFormatError):
        return False
    return True


def test_a_flipped_bit_anywhere_is_damage_that_the_other_roots_outvote():
    roots = Roots(3)
    path = roots.paths()[1]
    for damaged in flipped(roots.read(1)):
        assert not is_readable(damaged)
        roots.replace(1, damaged)
        assert quorum_of(BrokerSet.open(path)) == quorum_of(roots.written)


@pytest.mark.parametrize("path", range(4), ids=["parent", "all roots", "a good root", "the damaged root"])
def test_a_damaged_file_is_out_by_any_path(path):
    roots = Roots(3)
    roots.replace(1, next(flipped(roots.read(1))))
    if path == 3:  # nothing tells where the others are
        with pytest.raises(CorruptDataError):
            BrokerSet.open(roots.paths()[path])
        return
    brokers = BrokerSet.open(roots.paths()[path])
    assert quorum_of(brokers) == quorum_of(roots.written)
    with pytest.raises(RetriableError) as raised:
        brokers.check_root(1)
    assert raised.value.code is ErrorCode.REPLOG_ROOT_STALE


@pytest.mark.parametrize(
    ("changed", "names_the_others"),
    [
        ({"metadataBrokers": [0, 1, 1]}, False),
        ({"metadataBrokers": [0]}, True),
        ({"metadataBrokers": [2, 1, 0]}, True),
        ({"brokers": [{"id": 0, "url": "broker-0", "rack": None}] * 3}, False),
        ({"fsync": False}, True),
        ({"clusterId": "0" * 32}, False),
        ({"brokerId": 2}, True),
    ],
)
@pytest.mark.parametrize("path", range(4))
def test_a_deviating_file_is_outvoted_and_reported(changed, names_the_others, path, caplog):
    roots = Roots(3)
    roots.change(1, **changed)
    if path == 3 and not names_the_others:  # the only root that the user named
        with pytest.raises(ReplogError) as refused:
            BrokerSet.open(roots.paths()[path])
        assert refused.value.code in (ErrorCode.REPLOG_CLUSTER_MISMATCH, ErrorCode.CORRUPT_MESSAGE)
        return
    with caplog.at_level(logging.WARNING):
        brokers = BrokerSet.open(roots.paths()[path])
    assert quorum_of(brokers) == quorum_of(roots.written)
    assert any("[REPLOG_ROOT_STALE]" in line and "broker-1" in line for line in caplog.messages)
    with pytest.raises(RetriableError) as raised:
        brokers.check_root(1)
    assert raised.value.code is ErrorCode.REPLOG_ROOT_STALE


def test_files_without_a_majority_are_refused():
    roots = Roots(2)
    roots.change(1, fsync=False)
    with pytest.raises(InvalidConfigError) as raised:
        BrokerSet.open(roots.path)
    assert raised.value.code is ErrorCode.REPLOG_CLUSTER_MISMATCH
    assert "broker-0" in str(raised.value) and "broker-1" in str(raised.value)


def _fields(**changed):
    roots = Roots(2)
    return sealed(roots.read(0), **changed)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 100_000,
        b"1e999",
        b"null",
        b'"text"',
        b"\xed\xa0\x80",
        b'{"format": "replog-root", "version": 1e999}',
        b'{"format": "replog-root", "version": [1]}',
        b'{"format": "replog-root", "version": -1}',
        b'{"format": "replog-root", "version": true}',
        _fields(brokers=None),
        _fields(brokers={}),
        _fields(brokers=[]),
        _fields(brokers=["broker-0"]),
        _fields(brokers=[{"id": 10**30, "url": "x", "rack": None}]),
        _fields(brokers=[{"id": 0, "url": 7, "rack": None}, {"id": 1, "url": "broker-1", "rack": None}]),
        _fields(brokers=[{"id": 0, "url": "../x", "rack": None}, {"id": 1, "url": "broker-1", "rack": None}]),
        _fields(brokers=[{"id": 0, "url": "a\x1b[2J", "rack": None}, {"id": 1, "url": "broker-1", "rack": None}]),
        _fields(brokers=[{"id": 0, "url": "broker-0", "rack": 3}, {"id": 1, "url": "broker-1", "rack": None}]),
        _fields(brokers=[{"id": 0, "url": "broker-0", "rack": None}, {"id": 1, "url": "broker-0", "rack": None}]),
        _fields(metadataBrokers=[0, 0]),
        _fields(metadataBrokers="01"),
        _fields(metadataBrokers=[True, 1]),
        _fields(clusterId="../../etc"),
        _fields(clusterId=None),
        _fields(fsync="false"),
        _fields(brokerId="0"),
        _fields(rootId=7),
        _fields().replace(b"rootId", b"nothing"),
        (json.dumps({**json.loads(_fields()), "crc32c": None}, indent=2) + "\n").encode(),
        _fields().rpartition(b",")[0] + b"\n}\n",
        b" " * (ROOT_FILE_BYTES_MAX + 1),
    ],
    ids=lambda data: repr(data[:40]),
)
def test_absurd_files_are_coded_errors_that_name_root_and_file(data):
    with pytest.raises(CorruptDataError) as raised:
        decode_root_file(data, url="file:///the/root")
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert "file:///the/root" in str(raised.value) and "replog.json" in str(raised.value)


def test_a_huge_file_is_not_read_whole(monkeypatch):
    roots = Roots(1)
    roots.replace(0, b" " * (ROOT_FILE_BYTES_MAX * 3))
    with pytest.raises(CorruptDataError):
        BrokerSet.open(roots.path)


@pytest.mark.parametrize("number", range(4), ids=["parent", "list", "the copy", "the root that was copied"])
def test_a_root_with_a_copy_of_another_roots_file_is_out_and_the_others_go_on(number, caplog):
    roots = Roots(3)
    roots.replace(0, roots.read(1))
    opened = BrokerSet.open(roots.paths()[number])
    assert quorum_of(opened) == quorum_of(roots.written)
    assert "replog.json has broker id 1, and the cluster has broker 0 there" in caplog.text
    opened.check_root(1)
    with pytest.raises(RetriableError) as caught:
        opened.check_root(0)
    assert caught.value.code is ErrorCode.REPLOG_ROOT_STALE


def test_of_two_files_of_one_broker_at_places_that_no_file_records_none_is_taken_for_the_right_one():
    roots = Roots(3)
    copy = f"{roots.path}/elsewhere"
    open_store(copy).create(ROOT_FILE_KEY, roots.read(1))
    with pytest.raises(InvalidConfigError, match=r"one is a copy"):
        BrokerSet.open(",".join([*(roots.written.url(broker_id) for broker_id in range(3)), copy]))


def test_a_broker_that_no_root_file_lists_is_like_a_root_that_is_away():
    brokers = Roots(3).written
    assert (brokers.url(77), brokers.rack(77)) == ("unknown broker 77", None)
    for call in (brokers.store, brokers.check_root):
        with pytest.raises(RetriableError, match="broker 77 is none of the store's") as caught:
            call(77)
        assert caught.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
