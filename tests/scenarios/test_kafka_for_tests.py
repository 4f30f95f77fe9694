"""The Kafka that users' tests start: it is there at once, has the topics that suites expect, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from spark_replog.errors import InvalidConfigError
from spark_replog.testing import kafka
from tests.waiting import SECONDS_MAX, wait_until

ROOT = Path(__file__).parents[2]
QUIET = {"log_level": 0}
"""librdkafka writes to stderr that the server went, as it should."""


def block_of(page: str, test: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    block = re.search(rf"<!-- runs in \S+::{test} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1]


def is_served(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def send(address: str, topic: str) -> list[object]:
    errors: list[object] = []
    options = {"bootstrap.servers": address, "allow.auto.create.topics": True, "message.timeout.ms": 20_000}
    options["topic.metadata.propagation.max.ms"] = 1000
    producer = Producer(options | QUIET)
    producer.produce(topic, b"1", on_delivery=lambda error, _: errors.append(error and error.name()))
    assert producer.flush(SECONDS_MAX) == 0
    return errors


def partitions(address: str, topic: str) -> int:
    topics = AdminClient({"bootstrap.servers": address} | QUIET).list_topics(timeout=SECONDS_MAX).topics
    return len(topics[topic].partitions)


def test_topics_are_there_when_they_are_used_and_gone_afterwards():
    with kafka() as first, kafka(partitions=2) as second:
        for server, count in ((first, 4), (second, 2)):
            assert send(server.bootstrap_servers, "orders") == [None]
            assert partitions(server.bootstrap_servers, "orders") == count
        assert first.bootstrap_servers.startswith("127.0.0.1:")
    assert not is_served(first.bootstrap_servers)
    assert not is_served(second.bootstrap_servers)


def test_settings_are_those_of_the_gateway():
    with kafka(settings={"auto.create.topics.enable": False}) as server:
        assert send(server.bootstrap_servers, "orders") != [None]
        with pytest.raises(KeyError):
            partitions(server.bootstrap_servers, "orders")
    with pytest.raises(InvalidConfigError, match="auto\\.create"), kafka(settings={"auto.create.topic": True}):
        pass


def test_it_ends_with_a_test_run_that_is_killed():
    program = "from spark_replog.testing import kafka\nwith kafka() as server:\n print(server, flush=True)\n input()"
    run = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        address = run.stdout.readline().split("'")[1]
        assert is_served(address)
        os.kill(run.pid, signal.SIGKILL)
        wait_until(lambda: not is_served(address), "the end of the gateway")
    finally:
        run.kill()
        run.communicate()


def test_the_fixture_of_the_page(tmp_path):
    """In a project whose own folder has the name of a package that the gateway needs."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka/__init__.py").write_text("raise ImportError('this is the package of the project')")
    (tmp_path / "pytest.ini").write_text("[pytest]\nkafka_server_partitions = 3\n")
    more = (
        "\n\ndef test_partitions(kafka_server):\n"
        "    from confluent_kafka.admin import AdminClient\n"
        "    client = AdminClient({'bootstrap.servers': kafka_server.bootstrap_servers})\n"
        "    assert len(client.list_topics(timeout=60).topics['orders'].partitions) == 3\n"
    )
    (tmp_path / "test_page.py").write_text(block_of("docs/kafka-in-ci.md", "test_the_fixture_of_the_page") + more)
    options = ["-q", "-p", "spark_replog.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_block_of_the_page():
    block = block_of("docs/kafka-in-ci.md", "test_the_block_of_the_page")
    exec(compile(block, "docs/kafka-in-ci.md", "exec"), {})


def test_the_block_of_the_gateway(capsys):
    block = block_of("docs/gateway.md", "test_the_block_of_the_gateway")
    assert block.count("127.0.0.1:9092") == 2
    with kafka() as server:
        exec(compile(block.replace("127.0.0.1:9092", server.bootstrap_servers), "docs/gateway.md", "exec"), {})
    assert capsys.readouterr().out == "b'first'\n"


def test_a_process_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Exception, match="exit code 1") as caught, kafka():
        pass
    assert "REPLOG_ENVIRONMENT" in str(caught.value)
