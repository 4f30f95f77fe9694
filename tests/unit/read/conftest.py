from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.codec.data_object import HEADERS_TYPE, data_schema, encode_data_object
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, TopicInit
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.open_store import open_store
from spark_replog.storage.paths import data_key
from tests.unit.client.consumer_setup import filled, store, store3

__all__ = ["filled", "store", "store3"]

TOPIC = "ab" * 16


class Roots:
    """Three local roots behind the part of `BrokerSet` that a fetcher uses; counts and can fail."""

    broker_ids = (0, 1, 2)

    def __init__(self, folder, local=True):
        self.folder = folder
        self.local = local
        self.away = set()
        self.gets = []
        self.stores = {}
        for broker_id in self.broker_ids:
            root = folder / f"broker-{broker_id}"
            (root / "ledgers/L/data/000000").mkdir(parents=True)
            (root / "replog.json").write_text("{}")
            self.stores[broker_id] = open_store(str(root), {}, fsync=False)

    def url(self, broker_id):
        return f"file://{self.folder}/broker-{broker_id}"

    @property
    def local_ids(self):
        return frozenset(self.broker_ids if self.local else ())

    def store(self, broker_id):
        return _Counting(self, broker_id)

    def check_root(self, broker_id):
        if self.store(broker_id).get("replog.json") is None:
            raise RetriableError(ErrorCode.REPLOG_ROOT_STALE, "replog.json is missing.")

    def path(self, broker_id, name):
        return self.folder / f"broker-{broker_id}" / data_key("L", 0, name)


class _Counting:
    def __init__(self, roots, broker_id):
        self.roots, self.broker_id = roots, broker_id

    def get(self, key, *, start=0, size_bytes=None):
        self.roots.gets.append((self.broker_id, key, start, size_bytes))
        if self.broker_id in self.roots.away:
            raise RetriableError(ErrorCode.KAFKA_STORAGE_ERROR, "root is away.")
        return self.roots.stores[self.broker_id].get(key, start=start, size_bytes=size_bytes)


class Topic:
    """A topic with real objects on the roots."""

    def __init__(self, roots, partitions=2, config=()):
        self.roots = roots
        self.state = TopicLedgerState("L")
        self.sequence = 0
        self.entry(TopicInit(TOPIC, "orders", ((0, 1, 2),) * partitions, tuple(config)))

    def entry(self, command):
        return self.state.apply(self.state.applied_index + 1, encode_entry([encode_command(command)]))

    def write(self, rows, *, holders=(0, 1, 2), headers=None, compression="none", time_ms=77):
        """rows: list of (partition, values); one object, one append."""
        name = f"q-{self.sequence}-0-{self.sequence:032x}.arrow"
        parts = [("orders", TOPIC, p, self.batch(values, headers), "q") for p, values in rows]
        made = encode_data_object(parts, compression=compression, has_headers=headers is not None)
        for broker_id in holders:
            self.roots.stores[broker_id].create(data_key("L", 0, name), made.buffers)
        item = DataObject(ObjectId(0, name), made.size_bytes, headers is not None, frozenset(holders), made.sections)
        who = ProducerIdentity("q", "q", self.sequence, "r", IdentityKind.STREAM)
        self.entry(Append(who, "p", "c", time_ms, (item,)))
        self.sequence += 1
        return name

    @staticmethod
    def batch(values, headers):
        columns = [
            pa.array([b"k" + v if v else None for v in values], pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(np.arange(len(values), dtype=np.int64) + 5_000_000).cast(pa.timestamp("us", tz="UTC")),
        ]
        if headers is not None:
            columns.append(pa.array(headers, HEADERS_TYPE))
        return pa.RecordBatch.from_arrays(columns, schema=data_schema(headers is not None))


@pytest.fixture
def roots(tmp_path):
    return Roots(tmp_path)


@pytest.fixture(params=[True, False], ids=["local", "remote"])
def both_roots(tmp_path, request):
    return Roots(tmp_path, local=request.param)


@pytest.fixture
def jobs(monkeypatch):
    """The futures of what was given to the pool, by lane."""
    futures = {}
    plain = IO_POOL.submit_to

    def submit_to(lane, *call):
        futures.setdefault(lane, []).append(plain(lane, *call))
        return futures[lane][-1]

    monkeypatch.setattr(IO_POOL, "submit_to", submit_to)
    return futures


@pytest.fixture
def make_topic():
    return Topic


@pytest.fixture
def warnings_logged(caplog):
    caplog.set_level(logging.WARNING)
    return caplog
