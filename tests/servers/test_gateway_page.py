"""The blocks of docs/gateway.md for clients that are no Python, run as they stand: only the address is another one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.gateways import RunningGateway
from tests.servers.builds import KAFKA_CONNECT, KAFKA_TOOLS, KCAT, Build, NotBuilt
from tests.servers.server import free_port
from tests.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.wide
PAGE = Path(__file__).parents[2] / "docs/gateway.md"


def block_of(test: str, address: str) -> str:
    """Return the block that a test runs, for a gateway at an address."""
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"<!-- runs in \S+::{test} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1].replace("127.0.0.1:9092", address)


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
    jars, rest = built(KAFKA_CONNECT), f"127.0.0.1:{free_port()}"
    settings, lines, log = tmp_path / "worker.properties", tmp_path / "lines.txt", tmp_path / "connect.log"
    settings.write_text(f"{block_of('test_connect', gateway.address)}listeners=http://{rest}\n", encoding="utf-8")
    lines.write_text("one\ntwo\nthree\n")
    command = ["java", "-Xmx512m", "-cp", f"{jars}/*", "org.apache.kafka.connect.cli.ConnectDistributed", settings]
    source = {"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
              "file": str(lines), "topic": "orders"}  # fmt: skip
    request = urllib.request.Request(
        f"http://{rest}/connectors/lines/config", json.dumps(source).encode(), method="PUT"
    )
    request.add_header("Content-Type", "application/json")

    def is_made() -> bool:
        assert worker.poll() is None, log.read_text()[-3000:]
        with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status in (200, 201)
        return False

    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=tmp_path) as worker:
        try:
            wait_until(is_made, lambda: log.read_text()[-3000:], pause_seconds=0.5)
            wait_until(lambda: len(values(gateway, "orders")) == 3, lambda: log.read_text()[-3000:], pause_seconds=0.5)
        finally:
            worker.terminate()
    assert [json.loads(value)["payload"] for value in values(gateway, "orders")] == ["one", "two", "three"]
    for name in ("connect-configs", "connect-offsets", "connect-status"):
        assert gateway.store.admin().describe_topic(name).config["cleanup.policy"] == "compact"
