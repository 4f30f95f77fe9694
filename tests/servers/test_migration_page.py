"""docs/migrate-from-kafka.md, block by block, against a real Kafka 4.1: only the address and the folders are others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

import spark_replog
from spark_replog.ids import TopicPartition
from spark_replog.monitor.query_monitor import read_checkpoint
from tests.servers.builds import NotBuilt
from tests.servers.kafka_server import running

pytestmark = pytest.mark.wide
PAGE = Path(__file__).parents[2] / "docs/migrate-from-kafka.md"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def send(address: str, first: int, count: int) -> None:
    producer = KafkaProducer({"bootstrap.servers": address, "log_level": 0})
    for number in range(first, first + count):
        producer.produce("orders", b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0


def checkpoint(folder: Path) -> dict[str, bytes]:
    """Write the checkpoint of a query that has read three rows of each partition; return its files."""
    files = {
        "metadata": '{"id":"8d6ffc6b-5056-4aa3-ac15-a50bf5a3f39d"}',
        "sources/0/0": '\0v1\n{"orders":{"0":0,"1":0}}',
        "offsets/0": f'v1\n{METADATA}\n{{"orders":{{"0":3,"1":3}}}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "state/0/0/1.delta": "state",
    }
    for key, text in files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {key: text.encode() for key, text in files.items()}


def test_the_page(tmp_path):
    blocks = re.findall(r"<!-- runs in \S+::test_the_page -->\n```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 4
    store = spark_replog.init(str(tmp_path / "store"), brokers=1)
    original = checkpoint(tmp_path / "checkpoints" / "orders")
    begin = f'replog() {{ "{sys.executable}" -m spark_replog "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": str(Path(spark_replog.__file__).parents[1])}
    printed = []
    try:
        with running(tmp_path / "kafka") as server:
            admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
            admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(60)
            for number, block in enumerate(blocks):
                send(server.address, number * 20, 20)
                script = begin + block.replace("kafka:9092", server.address).replace("/data/", f"{tmp_path}/")
                command = ["sh", "-ec", script]
                done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
                assert done.returncode == 0, block + done.stdout + done.stderr
                printed.append(done.stdout)
    except NotBuilt as why:
        pytest.skip(str(why))
    assert "files converted: 1" in printed[1] and "files converted: 1" in printed[2]
    moved = read_checkpoint(str(tmp_path / "checkpoints" / "orders-replog"), {})
    assert moved.done[0].ends == {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 3}
    back = tmp_path / "checkpoints" / "orders-kafka"
    assert {str(path.relative_to(back)): path.read_bytes() for path in back.rglob("*") if path.is_file()} == original
    with store.producer() as producer:
        assert producer.send("orders", b"here", partition=0).result(60).offset == 40
    values = store.topic("orders").scan().to_arrow().column("value").to_pylist()
    assert sorted(values) == sorted([b"%d" % number for number in range(80)] + [b"here"])
