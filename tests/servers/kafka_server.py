"""One broker of Kafka 4.1, from Maven's jars, for tests of what reads and writes Kafka."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spark_replog.cli.java import java_environment
from tests.servers.builds import KAFKA_TOOLS
from tests.waiting import wait_until

STARTS_MAX = 3
"""Two free ports may be taken before the broker listens there."""


class KafkaServer:
    """A broker that also is its controller. Use `running`.

    Attributes:
        address: HOST:PORT for clients.
    """

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        java_home = java_environment(os.environ).get("JAVA_HOME") or os.environ.get("JAVA_HOME")
        java = f"{java_home}/bin/java" if java_home else "java"
        self._base = [java, "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{KAFKA_TOOLS.folder()}/*"]
        self._home = home
        home.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
            port, control = first.getsockname()[1], second.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._port = port
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{control}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(home / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            **settings,
        }
        self._conf = home / "server.properties"
        self._conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        tool = [*self._base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._conf)]
        subprocess.run(tool, check=True, capture_output=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, or start it again with what it holds."""
        with open(self._home / "server.log", "ab") as log:
            command = [*self._base, "kafka.Kafka", str(self._conf)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self._is_listening() or not self.is_running)
        if not self.is_running:
            raise RuntimeError((self._home / "server.log").read_text()[-3000:])

    @property
    def is_running(self) -> bool:
        """Return whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def _is_listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[KafkaServer]:
    """Yield a broker with settings, whose dots are underscores here."""
    server: KafkaServer | None = None
    for number in range(STARTS_MAX):
        try:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            server = KafkaServer(folder / f"kafka-{number}", named)
            break
        except RuntimeError:
            if number == STARTS_MAX - 1:
                raise
    assert server is not None
    try:
        yield server
    finally:
        server.stop()
