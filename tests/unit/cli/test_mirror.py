"""``replog mirror`` before it connects, ``topic promote``, and what other commands show of a mirrored topic."""

from __future__ import annotations

import socket

import pyarrow as pa
import pytest

from spark_replog.admin.controller import Controller, MirrorOf
from spark_replog.client.chunk_append import ChunkAppender
from spark_replog.client.mirrored_log import MirroredLog
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster

SOURCE = "kafka:cluster/orders/id"


@pytest.fixture
def store(tmp_path):
    init_cluster(str(tmp_path / "store"), 1, {}, fsync=False)
    cluster = Cluster.open(str(tmp_path / "store"))
    Controller(cluster).create_topic("orders", 1, mirror=MirrorOf(SOURCE, (40,)))
    columns = {
        "value": pa.array([b"a", b"b", b"c"], pa.binary()),
        "partition": pa.array([0] * 3, pa.int32()),
        "offset": pa.array([40, 45, 47], pa.int64()),
    }
    log = MirroredLog(cluster, ChunkAppender(cluster, "mirror"), "orders", SOURCE)
    log.append([pa.RecordBatch.from_pydict(columns)], {0: (40, 50)})
    return cluster.path


@pytest.mark.guarantee("G1")
def test_consume_shows_the_offsets_of_the_source(store, replog):
    read = replog("-s", store, "consume", "orders", "--from", "earliest", "--to", "latest", "-f", "json")
    assert read.exit_code == 0, read.err
    assert [item["offset"] for item in read.items] == [40, 45, 47]
    (shown,) = replog("-s", store, "topic", "describe", "orders", "-f", "json").items
    assert shown["mirror"] == SOURCE
    (end,) = replog("-s", store, "topic", "offsets", "orders", "-f", "json").items
    assert end["offset"] == 50


def test_promote_ends_the_mirroring(store, replog, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("x\n")
    refused = replog("-s", store, "produce", "orders", lines, "-f", "json")
    assert refused.exit_code != 0 and "REPLOG_MIRRORED_TOPIC" in refused.out + refused.err
    done = replog("-s", store, "topic", "promote", "orders", "--yes", "-f", "json")
    assert (done.exit_code, done.items[0]["ends"]) == (0, {"0": 50})
    again = replog("-s", store, "topic", "promote", "orders", "--yes", "-f", "json")
    assert (again.exit_code, again.items[0]["error"]) == (1, "REPLOG_MIRRORED_TOPIC")
    assert replog("-s", store, "produce", "orders", lines).exit_code == 0
    (end,) = replog("-s", store, "topic", "offsets", "orders", "-f", "json").items
    assert end["offset"] == 51


@pytest.mark.parametrize(
    "words",
    [("kafka://h:1",), ("h:1", "--topics", "a"), ("kafka://", "--topics", "a"), ("kafka://h:1", "--topics", ",")],
)
def test_what_is_no_mirror_is_a_mistake_of_use(store, replog, words):
    assert replog("-s", store, "mirror", *words).exit_code == 2


def test_a_kafka_that_is_not_there_is_named(store, replog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    answer = replog("-s", store, "mirror", f"kafka://{address}", "--topics", "a", "--once", "-f", "json")
    assert answer.exit_code == 1
    assert answer.items[0]["error"] == "REPLOG_MIRROR_SOURCE" and address in answer.items[0]["message"]
