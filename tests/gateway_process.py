"""A gateway in a process of its own, which a test may kill and stop."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import spark_replog
from spark_replog.client.store import Store
from tests.waiting import SECONDS_MAX, wait_until


class GatewayProcess:
    """A gateway in a process of its own; its address is in the first line that it prints."""

    def __init__(self, store: Path, log: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "spark_replog", "-s", str(store), "gateway", "--listen", "127.0.0.1:0"]
        environment = {**os.environ, "PYTHONPATH": str(Path(spark_replog.__file__).parents[1])}
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen([*command, *arguments], stderr=out, env=environment)
        wait_until(lambda: self._said_address() or self.process.poll() is not None, lambda: self.text)
        self.address = self._said_address()

    def _said_address(self) -> str:
        """Return the address once its whole line is there, else ''."""
        address, end, _ = self.text.partition("bootstrap.servers=")[2].partition("\n")
        return address if end else ""

    @property
    def text(self) -> str:
        return self._log.read_text()

    @property
    def memory_bytes(self) -> int:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)


@contextmanager
def gateway_process(store: Store, port: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a gateway that answers, in a process of its own."""
    command = [sys.executable, "-m", "spark_replog", "-s", store.path, "gateway", "--listen", f"127.0.0.1:{port}"]
    command += arguments
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert f"bootstrap.servers=127.0.0.1:{port}" in line, line
            reading = threading.Thread(target=process.stderr.read, daemon=True)  # or it would wait with its log
            reading.start()
            yield process
        finally:
            process.kill()
        reading.join()


def free_port() -> int:
    """Return a port that nobody listens on, and that no client is given by chance while a gateway is away."""
    while True:
        port = random.randrange(20_000, 32_000)  # Linux gives clients ports from 32,768 on
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
