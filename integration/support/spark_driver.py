"""A Spark driver in a process of a fresh environment, which runs jobs of ``jobs.py`` on request."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from environments import Environment

JOBS = Path(__file__).resolve().parent / "jobs.py"
MARK = "@@replog "


class JobFailed(Exception):
    """A job raised; the text is what a user would see."""


class SparkDriver:
    """Owns one process group: Python, its JVM and their workers.

    Args:
        environment: whose Python runs.
        log: file for stdout and stderr of the process.
        arguments: of ``jobs.py``.
    """

    def __init__(self, environment: Environment, log: Path, *arguments: str) -> None:
        self._log = log
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._log_file = log.open("a")
        self._process = subprocess.Popen(
            [str(environment.python), "-u", str(JOBS), *arguments],
            env={**environment.variables(), "REPLOG_LOG_LEVEL": "INFO", "REPLOG_LOG_FORMAT": "json"},
            cwd=log.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._pump, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def call(self, job: str, *, timeout_s: float = 300, **arguments: Any) -> Any:
        """Run a job and return its result.

        Raises:
            JobFailed: it raised.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        answer = self.next_message(timeout_s)
        if "error" in answer:
            raise JobFailed(answer["error"])
        return answer["result"]

    def poll_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message, None where there is none in time."""
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def next_message(self, timeout_s: float) -> dict[str, Any]:
        """Return the next message of the process."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"no answer in {timeout_s} s; last lines:\n{self.log_tail()}") from None
        if answer is None:
            raise AssertionError(f"the driver died; last lines:\n{self.log_tail()}")
        return answer

    def kill(self) -> None:
        """End the whole group at once, as a power cut would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=60)
        self._close()

    def close(self) -> None:
        """Let the process finish; kill it where it does not."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=60)
        self._close()

    def log_tail(self, lines: int = 60) -> str:
        """Return the end of what the process printed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def log_text(self) -> str:
        """Return all that the process printed."""
        return self._log.read_text(errors="replace")

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._log_file):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _pump(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                if line.startswith(MARK):
                    self._answers.put(json.loads(line[len(MARK) :]))
                else:
                    self._log_file.write(line)
                    self._log_file.flush()
        except ValueError:
            pass  # closed under us
        self._answers.put(None)
