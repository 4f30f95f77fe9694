"""A worker of Kafka's Connect, with the settings of docs/gateway.md, at a gateway."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from benchmarks.peers import java
from tests.gateway_process import free_port
from tests.servers.builds import KAFKA_CONNECT
from tests.servers.gateway_page import block_of
from tests.waiting import wait_until


class ConnectWorker:
    """A worker in a process of its own; use it in a ``with`` statement.

    Args:
        folder: for its settings and its log.
        address: of the gateway.
        plugins: a folder with a folder of jars for each plugin; None: only what comes with Connect.

    Raises:
        NotBuilt: its program is not there.
    """

    def __init__(self, folder: Path, address: str, plugins: Path | None = None) -> None:
        self._rest = f"127.0.0.1:{free_port()}"
        settings = f"{block_of('test_connect', address)}listeners=http://{self._rest}\n"
        if plugins is not None:
            settings += f"plugin.path={plugins}\n"
        (folder / "worker.properties").write_text(settings, encoding="utf-8")
        self._log = folder / "connect.log"
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*java(KAFKA_CONNECT.folder()), main, "worker.properties"], stdout=log, stderr=log, cwd=folder
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def describe(self) -> str:
        """Return the end of what it printed, and the states of its connectors and their tasks."""
        states = "it does not answer"
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{self._rest}/connectors?expand=status", timeout=60) as answer,
        ):
            states = answer.read().decode()
        return f"{self._log.read_text()[-3_000:]}\n{states}"

    def make(self, name: str, config: Mapping[str, str]) -> None:
        """Make a connector, as soon as the worker takes it."""
        request = urllib.request.Request(
            f"http://{self._rest}/connectors/{name}/config", json.dumps(config).encode(), method="PUT"
        )
        request.add_header("Content-Type", "application/json")

        def is_made() -> bool:
            assert self._process.poll() is None, self.describe()
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status in (200, 201)
            return False

        wait_until(is_made, self.describe, pause_seconds=0.5)
