"""Roots that are lost and rebuilt, and how the log is read after that."""

from __future__ import annotations

import re
import shutil
import time

import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.codec.data_object import data_schema, encode_data_object
from spark_replog.log.model import DataObject, Outcome
from spark_replog.maintenance.repair import RepairReport, StoreRepair
from spark_replog.storage.paths import data_key


def is_applied(response) -> bool:
    return response.error is None and response.result.outcome is Outcome.APPLIED


def repair(store, **more) -> RepairReport:
    """As a process of its own would."""
    return StoreRepair(Cluster.open(str(store.path), config=store.config), **more).run()


def lose(store, broker_id: int) -> None:
    """The disk is replaced by nothing, all at once: a process may be writing a snapshot there."""
    gone = store.path.with_name(f"gone-{time.monotonic_ns()}")
    (store.path / f"broker-{broker_id}").rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def fill(store, first_batch: int, count: int, holders=frozenset({0, 1, 2})) -> None:
    for batch in range(first_batch, first_batch + count):
        response = store.append("orders", {0: 2, 1: 3}, batch=batch, holders=holders)
        assert is_applied(response), response


def read_all(store) -> int:
    """Read every visible row's section from some root that is there; return the number of rows."""
    rows = 0
    for partition in range(2):
        for section in store.sections("orders", partition):
            bodies = []
            for broker_id in section.object.holders:
                key = data_key(section.object.ledger_id, *section.object.id)
                path = store.path / f"broker-{broker_id}" / key
                if path.exists():
                    bodies.append(path.read_bytes()[section.start_byte : section.start_byte + section.size_bytes])
            assert bodies, f"no copy of {section.object.id.name}"
            assert all(crc32c(body) == section.crc32c for body in bodies)
            rows += section.row_count
    return rows


def put_arrow(store, topic: str, rows: list[int], holders=frozenset({0, 1, 2})) -> DataObject:
    """Write an object as writers encode it, with a number of rows for each partition, to the holders."""
    handle = store.cluster.lookup(topic)
    inputs = []
    for partition, count in enumerate(rows):
        times = pa.array(range(count)).cast(pa.timestamp("us", tz="UTC"))
        values = pa.array([b"v"] * count, pa.binary())
        batch = pa.RecordBatch.from_arrays([values, values, times], schema=data_schema(False))
        inputs.append((topic, handle.topic_id, partition, batch, "query-1"))
    made = encode_data_object(inputs, compression="lz4", has_headers=False)
    id_ = ObjectId(0, f"q-0-0-{new_id()}.arrow")
    for broker_id in holders:
        key = data_key(handle.ledger_id, *id_)
        store.cluster.brokers.store(broker_id).create(key, b"".join(made.buffers), make_parent=True)
    return DataObject(id_, made.size_bytes, False, frozenset(holders), made.sections)


def told_cuts(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return how many rows went with a root by each warning of a loss."""
    told = [record.getMessage() for record in caplog.records]
    losses = [message for message in told if f"[{ErrorCode.REPLOG_DATA_LOSS.name}]" in message]
    return [re.findall(r"\d+ rows were cut", loss)[0] for loss in losses]
