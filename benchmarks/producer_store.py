"""A throw-away store and a write plan for the producer's benchmarks: no ledger, no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from spark_replog.ids import new_id
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.storage.brokers import BrokerSet, write_root_files
from spark_replog.storage.paths import ledger_folders

TOPIC = "orders"


def make_store(
    folder: Path, *, roots: int, partitions: int, compression: str, fsync: bool
) -> tuple[BrokerSet, WritePlan]:
    """Return the roots under a folder and the plan of one topic that every root replicates."""
    brokers = write_root_files([str(folder / f"broker-{number}") for number in range(roots)], fsync=fsync)
    ledger_id = new_id()
    for broker_id in brokers.broker_ids:
        for prefix in ledger_folders(ledger_id):
            brokers.store(broker_id).make_folder(prefix)
    sets = tuple(tuple((number + shift) % roots for shift in range(roots)) for number in range(partitions))
    topic = TopicPlan(
        name=TOPIC,
        topic_id=new_id(),
        ledger_id=ledger_id,
        generation=0,
        replica_sets=sets,
        in_sync=sets,
        min_insync=roots // 2 + 1,
        compression=compression,
        max_message_bytes=2**31 - 1,
    )
    return brokers, WritePlan(str(folder), (topic,), "User:benchmark", 0)


def make_input(rows: int, value_bytes: int, *, keyed: bool) -> bytes:
    """Return an Arrow stream of one batch, as Spark would send it."""
    columns = {"value": pa.array([b"%0*d" % (value_bytes, number) for number in range(rows)], pa.binary())}
    if keyed:
        columns["key"] = pa.array([b"%010d" % number for number in range(rows)], pa.binary())
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_input(stream: bytes) -> pa.RecordBatch:
    """Return the batch in memory of its own, as a worker gets it from its socket."""
    return next(iter(pa.ipc.open_stream(bytearray(stream))))
