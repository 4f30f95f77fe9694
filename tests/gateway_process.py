"""A gateway as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import spark_replog
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
