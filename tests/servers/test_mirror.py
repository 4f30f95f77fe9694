"""``replog mirror`` of a real Kafka 4.1: every row at its offset, whatever the source and the mirror go through."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from spark_replog import Producer
from spark_replog.admin.controller import Controller
from spark_replog.client.store import TopicScan
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.maintenance.compaction import Compactor
from spark_replog.mirror.client_config import read_client_config
from spark_replog.mirror.kafka_source import EARLIEST, LATEST, KafkaSource
from spark_replog.mirror.mirror import Mirror
from tests.servers.builds import NotBuilt
from tests.servers.kafka_server import KafkaServer, running
from tests.waiting import wait_until

pytestmark = pytest.mark.wide
SETTINGS = {"log_cleaner_backoff_ms": "200", "log_retention_check_interval_ms": "500"}
SMALL_FETCHES = (
    "import spark_replog.mirror.mirror as m; m.FETCH_BYTES = 3000\nfrom spark_replog.cli.main import main; main()"
)
Row = tuple[int, int, Any, Any, Any, int, int]
"""Partition, offset, key, value, headers, time in ms, and its type."""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[KafkaServer]:
    try:
        with running(tmp_path_factory.mktemp("kafka"), **SETTINGS) as server:
            yield server
    except NotBuilt as why:
        pytest.skip(str(why))


class Source:
    """Topics of the server, with names of their own."""

    def __init__(self, server: KafkaServer) -> None:
        self.address = server.address
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def topic(self, partitions: int = 2, name: str = "", **config: str) -> str:
        name = name or f"t-{uuid4().hex}"
        named = {key.replace("_", "."): value for key, value in config.items()}
        made = NewTopic(name, partitions, 1, config={"retention.ms": "-1", **named})  # rows are dated years ago
        self.admin.create_topics([made])[name].result(60)
        return name

    def producer(self, **config: Any) -> KafkaProducer:
        return KafkaProducer({"bootstrap.servers": self.address, "log_level": 0, **config})

    def send(self, topic: str, first: int, count: int, partitions: int = 2, **config: Any) -> None:
        producer = self.producer(**config)
        for number in range(first, first + count):
            send_row(producer, topic, number, partitions)
        assert producer.flush(60) == 0

    def transaction(self, topic: str, first: int, count: int, *, is_committed: bool, partitions: int = 2) -> None:
        producer = self.producer(**{"transactional.id": uuid4().hex, "linger.ms": 0})
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(first, first + count):
            send_row(producer, topic, number, partitions)
        assert producer.flush(60) == 0
        if is_committed:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)

    def ends(self, topic: str, at: int = LATEST) -> dict[int, int]:
        with KafkaSource(self.address) as source:
            return source.offsets(source.topics([topic])[topic], at)

    def rows(self, topic: str) -> list[Row]:
        """Return what a consumer of committed records reads, all of it."""
        starts, ends = self.ends(topic, EARLIEST), self.ends(topic)
        config = {"bootstrap.servers": self.address, "group.id": "x", "isolation.level": "read_committed"}
        rows: list[Row] = []
        with closing(KafkaConsumer({**config, "enable.partition.eof": True, "enable.auto.commit": False})) as consumer:
            waiting = {number for number in ends if ends[number] > starts[number]}
            consumer.assign([TopicPartition(topic, number, starts[number]) for number in waiting])
            while waiting:
                message = consumer.poll(60)
                assert message is not None
                if message.error() is not None:  # the end of a partition
                    waiting.discard(message.partition())
                    continue
                kind, time_ms = message.timestamp()
                place = message.partition(), message.offset()
                headers = [(key, value) for key, value in message.headers() or ()]
                rows.append((*place, message.key(), message.value(), headers, time_ms, kind - 1))
        return sorted(rows, key=lambda row: row[:2])


def send_row(producer: KafkaProducer, topic: str, number: int, partitions: int) -> None:
    headers = [("trace", b"%d" % number), ("empty", b""), ("none", None)] if number % 5 == 0 else None
    producer.produce(
        topic,
        key=None if number % 7 == 0 else b"key-%d" % (number % 20),
        value=None if number % 11 == 0 else b"value %d " % number * (number % 4 + 1),
        headers=headers,
        partition=number % partitions,
        timestamp=1_700_000_000_000 + number,
    )


@pytest.fixture
def source(server):
    return Source(server)


@pytest.fixture
def cluster(tmp_path):
    init_cluster(str(tmp_path / "store"), 1, {}, fsync=False)
    return Cluster.open(str(tmp_path / "store"))


def mirrored(cluster: Cluster, source: Source, *topics: str, **options: Any) -> Mirror:
    """Mirror what there is, in this process; return the mirror with what it has to say."""
    with KafkaSource(source.address) as kafka:
        mirror = Mirror(cluster, kafka, topics, **options)
        mirror.run_once(lambda: False)
    return mirror


def rows_of(cluster: Cluster, topic: str) -> list[Row]:
    table = TopicScan(cluster, topic, "earliest", "latest").to_arrow()
    columns = [table.column(name).to_pylist() for name in ("partition", "offset", "key", "value", "headers")]
    times = [time_us // 1000 for time_us in table.column("timestamp").cast("int64").to_pylist()]
    rows = []
    for *fields, headers, time_ms, kind in zip(*columns, times, table.column("timestampType").to_pylist(), strict=True):
        rows.append((*fields, [(pair["key"], pair["value"]) for pair in headers or ()], time_ms, kind))
    return sorted(rows, key=lambda row: row[:2])


def bounds(cluster: Cluster, topic: str) -> list[tuple[int, int]]:
    cluster.refresh()
    _, state = cluster.topic_state(cluster.lookup(topic))
    return [(part.log_start_offset, part.log_end_offset) for part in state.partitions]


def check_equal(cluster: Cluster, source: Source, topic: str) -> list[Row]:
    rows = source.rows(topic)
    assert rows_of(cluster, topic) == rows
    assert dict(enumerate(end for _, end in bounds(cluster, topic))) == source.ends(topic)
    return rows


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_transactions_headers_tombstones_and_times(source, cluster, codec):
    topic = source.topic()
    source.send(topic, 0, 300, **{"compression.type": codec, "linger.ms": 50})
    mirrored(cluster, source, topic)
    check_equal(cluster, source, topic)
    for number, is_committed in enumerate((True, False, True, False, False)):
        source.transaction(topic, 1000 + 40 * number, 40, is_committed=is_committed)
        source.send(topic, 300 + number, 1)
    source.transaction(topic, 2000, 30, is_committed=False)
    mirrored(cluster, source, topic)
    rows = check_equal(cluster, source, topic)
    assert len(rows) == 300 + 2 * 40 + 5
    offsets = [row[1] for row in rows if row[0] == 0]
    assert offsets[-1] - offsets[0] >= len(offsets), "there are gaps"
    Compactor(cluster).compact(cluster.lookup(topic), is_eager=True)
    assert rows_of(cluster, topic) == rows


def test_the_time_of_the_append(source, cluster):
    topic = source.topic(message_timestamp_type="LogAppendTime")
    source.send(topic, 0, 50)
    mirrored(cluster, source, topic)
    rows = check_equal(cluster, source, topic)
    assert {row[6] for row in rows} == {1}


def test_an_open_transaction_holds_the_mirror_where_it_holds_readers(source, cluster):
    topic = source.topic(1)
    producer = source.producer(**{"transactional.id": uuid4().hex})
    producer.init_transactions(60)
    producer.begin_transaction()
    source.send(topic, 0, 10, 1)
    send_row(producer, topic, 11, 1)
    assert producer.flush(60) == 0
    source.send(topic, 12, 10, 1)
    mirrored(cluster, source, topic)
    assert len(check_equal(cluster, source, topic)) == 10
    producer.commit_transaction(60)
    mirrored(cluster, source, topic)
    assert len(check_equal(cluster, source, topic)) == 21


def test_a_partition_with_aborted_rows_only(source, cluster):
    topic = source.topic(1)
    source.transaction(topic, 0, 10, is_committed=False, partitions=1)
    mirrored(cluster, source, topic)
    assert bounds(cluster, topic) == [(11, 11)], "Kafka's begins at 0; there is no row in between"
    source.send(topic, 0, 3, 1)
    mirrored(cluster, source, topic)
    assert rows_of(cluster, topic) == source.rows(topic)


def send_keys(source: Source, topic: str, first: int) -> None:
    producer = source.producer()
    for number in range(first, first + 200):
        producer.produce(topic, key=b"k%d" % (number % 30), value=b"v%d" % number)
    assert producer.flush(60) == 0


def compact(source: Source, topic: str, below: int) -> None:
    """Wait until Kafka has compacted a topic below an offset, and let it compact no more."""

    def is_compacted() -> bool:
        producer = source.producer()
        producer.produce(topic, key=b"last", value=b"x")  # begins a segment, so that those before it may be cleaned
        assert producer.flush(60) == 0
        return len([row for row in source.rows(topic) if row[1] < below]) < 100

    wait_until(is_compacted, pause_seconds=0.3)
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    source.admin.incremental_alter_configs([resource])[resource].result(60)


COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "100",
             "max_compaction_lag_ms": "200"}  # fmt: skip


@pytest.mark.guarantee("G1")
def test_a_topic_that_is_compacted_while_it_is_mirrored(source, cluster):
    topic = source.topic(1, **COMPACTED)
    send_keys(source, topic, 0)
    mirrored(cluster, source, topic)
    assert Controller(cluster).describe_topic(topic).config["cleanup.policy"] == "compact"
    Controller(cluster).alter_config(topic, {"cleanup.policy": "delete"})  # what is here now stays
    before = {row[:2]: row for row in rows_of(cluster, topic)}
    send_keys(source, topic, 200)
    compact(source, topic, 400)
    mirrored(cluster, source, topic)
    rows = {row[:2]: row for row in rows_of(cluster, topic)}
    assert rows == before | {row[:2]: row for row in source.rows(topic)}, "what Kafka had then, and what it has left"


@pytest.mark.guarantee("G1")
def test_a_compacted_topic_from_its_beginning(source, cluster):
    topic = source.topic(1, **COMPACTED)
    send_keys(source, topic, 0)
    send_keys(source, topic, 200)
    compact(source, topic, 400)
    mirrored(cluster, source, topic)
    check_equal(cluster, source, topic)


def test_partitions_that_are_added(source, cluster):
    topic = source.topic(1)
    source.send(topic, 0, 20, 1)
    mirrored(cluster, source, topic)
    source.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    wait_until(lambda: len(source.ends(topic)) == 3)
    source.send(topic, 20, 60, 3)
    mirrored(cluster, source, topic)
    assert {row[0] for row in check_equal(cluster, source, topic)} == {0, 1, 2}


def delete_records(source: Source, topic: str, offset: int) -> None:
    source.admin.delete_records([TopicPartition(topic, 0, offset)])[TopicPartition(topic, 0)].result(60)
    wait_until(lambda: source.ends(topic, EARLIEST)[0] == offset)


def test_a_beginning_that_is_gone_is_named(source, cluster):
    topic, other = source.topic(1), source.topic(1)
    source.send(topic, 0, 50, 1)
    delete_records(source, topic, 30)
    mirrored(cluster, source, topic)
    assert bounds(cluster, topic) == [(30, 50)], "it begins where Kafka's does"
    source.send(topic, 50, 50, 1)
    delete_records(source, topic, 70)
    source.send(other, 0, 10, 1)
    mirror = mirrored(cluster, source, topic, other)
    error = mirror.topics[topic].error
    assert error is not None and error.code is ErrorCode.REPLOG_MIRROR_LOST
    assert (error.context["missing_start"], error.context["missing_end"]) == (50, 70)
    assert bounds(cluster, topic) == [(30, 50)] and len(check_equal(cluster, source, other)) == 10
    mirror = mirrored(cluster, source, topic, accepts_loss=True)
    assert mirror.topics[topic].lost == {0: (50, 70)} and mirror.topics[topic].error is None
    assert [row[1] for row in rows_of(cluster, topic)] == [*range(30, 50), *range(70, 100)]


def test_a_topic_that_is_made_again_is_never_mixed_in(source, cluster):
    topic, other = source.topic(1), source.topic(1)
    source.send(topic, 0, 20, 1)
    mirrored(cluster, source, topic)
    before = rows_of(cluster, topic)
    source.admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in source.admin.list_topics(timeout=60).topics)
    mirror = mirrored(cluster, source, other)
    assert mirror.topics[other].error is None
    with pytest.raises(ReplogError) as caught:
        mirrored(cluster, source, topic)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    source.topic(1, topic)
    source.send(topic, 500, 40, 1)
    mirror = mirrored(cluster, source, topic)
    assert mirror.refused[topic].code is ErrorCode.REPLOG_MIRROR_MISMATCH
    assert rows_of(cluster, topic) == before


def test_it_follows_until_it_is_stopped_and_sees_what_changes(source, cluster):
    topic, doomed = source.topic(1), source.topic(1)
    source.send(topic, 0, 20, 1)
    source.send(doomed, 0, 20, 1)
    steps = []

    def on_round() -> None:
        state = job.topics
        if not steps and topic in state and bounds(cluster, topic)[0][1] == 20 == bounds(cluster, doomed)[0][1]:
            steps.append("grown")
            source.send(topic, 20, 20, 1)
            source.admin.delete_topics([doomed])[doomed].result(60)

    def is_stopped() -> bool:
        return bool(steps) and bounds(cluster, topic)[0][1] == 40 and job.topics[doomed].error is not None

    with KafkaSource(source.address) as kafka:
        job = Mirror(cluster, kafka, (topic, doomed))
        job.run(is_stopped, on_round)
    check_equal(cluster, source, topic)
    error = job.topics[doomed].error
    assert error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(rows_of(cluster, doomed)) == 20, "what it has stays"


def test_promotion_gives_the_topic_to_ordinary_writers(source, cluster):
    topic = source.topic(1)
    source.send(topic, 0, 10, 1)
    source.transaction(topic, 10, 10, is_committed=False, partitions=1)
    mirrored(cluster, source, topic)
    assert bounds(cluster, topic) == [(0, 21)]
    Controller(cluster).promote(topic)
    with Producer(cluster) as producer:
        assert [producer.send(topic, b"x").result(60).offset for _ in range(3)] == [21, 22, 23]
    source.send(topic, 30, 5, 1)
    assert mirrored(cluster, source, topic).refused[topic].code is ErrorCode.REPLOG_MIRROR_MISMATCH
    assert [row[1] for row in rows_of(cluster, topic)] == [*range(10), 21, 22, 23]


def command(cluster: Cluster, source: Source, *words: str) -> list[str]:
    return [sys.executable, "-c", SMALL_FETCHES, "-s", cluster.path, "-f", "json", "mirror",
            f"kafka://{source.address}", *words]  # fmt: skip


def verified(cluster: Cluster, source: Source, topic: str) -> tuple[int, list[dict[str, Any]]]:
    words = command(cluster, source, "--topics", topic, "--verify")
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    return answer.returncode, json.loads(answer.stdout)["items"]


def test_both_sides_are_compared_and_the_first_difference_is_named(source, cluster):
    topic = source.topic()
    source.send(topic, 0, 300, **{"compression.type": "lz4"})
    source.transaction(topic, 1000, 40, is_committed=False)
    source.send(topic, 300, 50)
    mirrored(cluster, source, topic)
    source.send(topic, 350, 10)  # which the mirror has not got yet
    ends = bounds(cluster, topic)
    code, items = verified(cluster, source, topic)
    assert (code, [item["rows"] for item in items]) == (0, [175, 175])
    assert [(item["from"], item["to"]) for item in items] == ends
    Controller(cluster).promote(topic)
    with Producer(cluster) as producer:
        for number in (0, 1):
            producer.send(topic, b"of this side", partition=number).result()
    code, items = verified(cluster, source, topic)
    assert code == 1
    assert [item["difference"].partition(":")[0] for item in items] == [f"offset {end}" for _, end in ends]
    for words in ("value b'of this side'", "in Kafka timestamp 1700000000350"):
        assert words in items[0]["difference"]


@pytest.mark.guarantee("G5")
def test_a_mirror_that_is_killed_and_two_at_once_mirror_each_row_once(source, cluster, request):
    topic = source.topic(2)
    first = 0
    for number in range(request.config.getoption("--mirror-kills")):
        source.transaction(topic, first, 60, is_committed=number % 3 != 1)
        source.send(topic, first + 60, 140)
        first += 200
        step = ("mirror.written:1", "mirror.appended:1", "mirror.written:2", "mirror.appended:2")[number % 4]
        words = command(cluster, source, "--topics", topic, "--once")
        died = subprocess.run(words, env={**os.environ, "REPLOG_FAULT_POINT": step}, capture_output=True, check=False)
        assert died.returncode == -signal.SIGKILL, (step, died.stdout, died.stderr)
    runs = [
        subprocess.Popen(command(cluster, source, "--topics", topic, "--once"), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
        for _ in range(2)
    ]  # fmt: skip
    outputs = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    for out, _ in outputs:
        (item,) = json.loads(out)["items"]
        assert (item["lag"], item["error"]) == (0, None)
    check_equal(cluster, source, topic)


def test_a_pattern_takes_later_topics_and_leaves_others_alone(source, cluster):
    prefix = uuid4().hex
    names = [source.topic(1, f"{prefix}.{number}") for number in range(2)]
    other = source.topic(1, f"x{prefix}.0")
    for name in (*names, other):
        source.send(name, 0, 5, 1)
    mirrored(cluster, source, pattern=f"{prefix}[.].*")
    names.append(source.topic(1, f"{prefix}.late"))
    source.send(names[-1], 0, 5, 1)
    mirrored(cluster, source, pattern=f"{prefix}[.].*")
    cluster.refresh()
    assert sorted(name for name in cluster.topic_names() if prefix in name) == sorted(names)
    for name in names:
        check_equal(cluster, source, name)


def test_what_is_wrong_is_said(source, cluster, tmp_path: Path):
    topic = source.topic(1)
    Controller(cluster).create_topic(topic, 1)
    assert mirrored(cluster, source, topic).refused[topic].code is ErrorCode.REPLOG_MIRROR_MISMATCH
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=p\n")
    with pytest.raises(ReplogError) as caught:
        KafkaSource(source.address, read_client_config(file))
    assert caught.value.code is ErrorCode.REPLOG_MIRROR_SOURCE
