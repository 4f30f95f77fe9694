"""Several gateways on one machine: a process for each, started again when one ends, until a signal ends all.

This process holds the sockets, so a gateway that is started again has its address, and clients that connect meanwhile
wait for it. Needs no Kafka library.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import new_id
from spark_replog.logs import event

_LOG = logging.getLogger(__name__)
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 30.0
"""Before a gateway is started again; twice as long each time, unless it has run for long."""
LONG_SECONDS = 60.0


class WorkerFailedError(Exception):
    """A gateway ended before clients could connect; it has said why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class _Worker:
    """One gateway: its socket, and its process now."""

    def __init__(self, number: int, bound: socket.socket) -> None:
        self.number, self.bound, self.run = number, bound, ""
        self.process: asyncio.subprocess.Process | None = None
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def terminate(self) -> None:
        """Let it answer what it has read, and end."""
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()


class Workers:
    """Keeps a gateway running on each socket.

    Args:
        command: of a gateway; it is given ``--worker`` with its place too, prints its address when clients can
            connect, and ends when its standard input does.
    """

    def __init__(self, command: Sequence[str], sockets: Sequence[socket.socket]) -> None:
        self._command, self._sockets = tuple(command), tuple(sockets)

    def serve(self, on_ready: Callable[[Sequence[str]], None]) -> int:
        """Run until SIGTERM or Ctrl-C; then let all drain, and return the exit code.

        Args:
            on_ready: called with all addresses once clients can connect to all.
        """
        return asyncio.run(self._serve(on_ready))

    async def _serve(self, on_ready: Callable[[Sequence[str]], None]) -> int:
        self._ended = asyncio.Event()
        self._exit_code = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._ended.set)
        workers = [_Worker(number, bound) for number, bound in enumerate(self._sockets)]
        keepers = [asyncio.create_task(self._keep(worker)) for worker in workers]
        start = asyncio.gather(*(worker.address for worker in workers))
        start.add_done_callback(lambda done: self._started(done, on_ready))
        try:
            await self._ended.wait()
        finally:
            self._ended.set()
            for worker in workers:
                worker.terminate()
            await asyncio.gather(*keepers)
            start.cancel()
        return self._exit_code

    def _started(self, start: asyncio.Future[list[str]], on_ready: Callable[[Sequence[str]], None]) -> None:
        """Tell that all gateways run; or end all, if one could not start."""
        if start.cancelled():
            return
        error = start.exception()
        if isinstance(error, WorkerFailedError):
            self._exit_code = error.exit_code
            self._ended.set()
        else:
            on_ready(start.result())

    async def _keep(self, worker: _Worker) -> None:
        """Start a gateway, again and again."""
        loop, pause_seconds = asyncio.get_running_loop(), PAUSE_SECONDS
        while not self._ended.is_set():
            started = loop.time()
            exit_code = await self._run(worker)
            if self._ended.is_set():
                return
            if not worker.address.done():
                worker.address.set_exception(WorkerFailedError(exit_code if exit_code > 0 else 1))
                return
            if loop.time() - started >= LONG_SECONDS:
                pause_seconds = PAUSE_SECONDS
            fields = {"address": worker.address.result(), "exitCode": exit_code}
            words = f"the gateway at {worker.address.result()} ended with exit code {exit_code}: it is started again"
            _LOG.warning("%s in %.0f s", words, pause_seconds, extra={"replog_fields": fields})
            try:
                async with asyncio.timeout(pause_seconds):
                    await self._ended.wait()
            except TimeoutError:
                pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)

    async def _run(self, worker: _Worker) -> int:
        """Run a gateway until it ends, and return its exit code."""
        descriptor, ended_run = worker.bound.fileno(), worker.run
        worker.run = new_id()
        worker.process = process = await asyncio.create_subprocess_exec(
            *self._command,
            "--worker",
            f"{worker.number}:{descriptor}:{worker.run}:{ended_run}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(descriptor,),
        )
        if self._ended.is_set():
            worker.terminate()
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        if address:
            fields = {"address": address, "process": process.pid}
            event(_LOG, "gateway-started", f"the gateway at {address} is process {process.pid}", fields)
            if not worker.address.done():
                worker.address.set_result(address)
        return await process.wait()


def worker_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs ``replog`` with these arguments again, as this process was run."""
    is_module = os.path.basename(sys.argv[0]) == "__main__.py"
    flags = [] if is_module and not sys.flags.safe_path else ["-P"]  # a folder here may have the name of a package
    return [sys.executable, *flags, "-m", "spark_replog", *arguments]


class Place(NamedTuple):
    """What a gateway is given by the process that started it.

    Attributes:
        run: names its notes.
        ended_run: of the process that was here before; None: there was none.
    """

    number: int
    bound: socket.socket
    run: str
    ended_run: str | None

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that ``--worker`` tells.

        Raises:
            InvalidConfigError: REPLOG_INPUT: it tells none.
        """
        try:
            number, descriptor, run, ended_run = text.split(":")
            return cls(int(number), socket.socket(fileno=int(descriptor)), run, ended_run or None)
        except (ValueError, OSError) as error:
            text = "--worker is for processes that 'replog gateway --workers' starts. Leave it out."
            raise InvalidConfigError(ErrorCode.REPLOG_INPUT, text) from error
