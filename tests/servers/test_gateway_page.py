"""The blocks of docs/gateway.md for clients that are no Python, run as they stand: only the address is another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateways import RunningGateway
from tests.servers.builds import KAFKA_CONNECT, KAFKA_TOOLS, KCAT, Build, NotBuilt
from tests.servers.connect_worker import ConnectWorker
from tests.servers.gateway_page import block_of
from tests.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.wide


def built(build: Build) -> Path:
    try:
        return build.folder()
    except NotBuilt as why:
        pytest.skip(str(why))


@pytest.fixture
def gateway() -> Iterator[RunningGateway]:
    with RunningGateway() as running:
        running.store.admin().create_topic("orders", 2)
        yield running


def values(gateway: RunningGateway, topic: str) -> list[bytes]:
    return gateway.store.topic(topic).scan().to_arrow().column("value").to_pylist()


def test_kcat(gateway):
    path = f"{built(KCAT) / 'usr/bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **KCAT.environment(), "PATH": path}
    block = block_of("test_kcat", gateway.address)
    done = subprocess.run(["sh", "-ec", block], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["first"]
    assert values(gateway, "orders") == [b"first"]


def test_java(gateway, tmp_path):
    jars, compiler = built(KAFKA_TOOLS), shutil.which("javac")
    if compiler is None:
        pytest.skip("no Java compiler is on the PATH")
    (tmp_path / "Orders.java").write_text(block_of("test_java", gateway.address), encoding="utf-8")
    java = str(Path(compiler).with_name("java"))
    done = subprocess.run(
        [java, "-Xmx256m", "-cp", f"{jars}/*", "Orders.java"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert done.stdout.strip() == "customer-7 first", done.stdout + done.stderr
    assert values(gateway, "orders") == [b"first"]


def test_connect(gateway, tmp_path):
    built(KAFKA_CONNECT)
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\nthree\n")
    source = {"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
              "file": str(lines), "topic": "orders"}  # fmt: skip
    with ConnectWorker(tmp_path, gateway.address) as worker:
        worker.make("lines", source)
        wait_until(lambda: len(values(gateway, "orders")) == 3, worker.describe, pause_seconds=0.5)
    assert [json.loads(value)["payload"] for value in values(gateway, "orders")] == ["one", "two", "three"]
    for name in ("connect-configs", "connect-offsets", "connect-status"):
        assert gateway.store.admin().describe_topic(name).config["cleanup.policy"] == "compact"
