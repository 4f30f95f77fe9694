"""Folders whose every call is answered by a process of the tests, mounted through FUSE."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from tests.servers.builds import MOUNTS, NotBuilt
from tests.waiting import wait_until

_PR_SET_PDEATHSIG = 1


def library(name: str) -> str:
    """Return the path of a shared library of the build."""
    return str(next(MOUNTS.folder().glob(f"**/{name}.so*")))


def need_mounts() -> None:
    """Find out whether this process may mount.

    Raises:
        NotBuilt: no device, no right, no Python package or no library.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        raise NotBuilt("mounts need root and /dev/fuse")
    if find_spec("mfusepy") is None:
        raise NotBuilt("mounts need the package mfusepy: '.[test-all]' has it")
    library("libfuse3")


class Mount:
    """A mounted folder.

    Args:
        point: where; made.
        module: run as a program, with the point and the arguments; it calls `serve`.
    """

    def __init__(self, point: Path, module: str, *arguments: str) -> None:
        self.point = point
        self._command = [sys.executable, "-m", module, str(point), *arguments]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        need_mounts()
        self.point.mkdir(parents=True)
        device = self.point.stat().st_dev
        self._process = subprocess.Popen(
            self._command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "FUSE_LIBRARY_PATH": library("libfuse3")},
        )  # fmt: skip

        def is_mounted() -> bool:
            assert self._process is not None and self._process.poll() is None, f"{self.point} was not mounted"
            return self.point.stat().st_dev != device

        try:
            wait_until(is_mounted, f"{self.point} is mounted", pause_seconds=0.02)
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.point)], capture_output=True, check=False)
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def ask(self, question: Any) -> Any:
        """Send a question to the process, as JSON, and return its answer."""
        assert self._process is not None and self._process.stdin and self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def serve(operations: Any, point: str) -> None:
    """Answer the calls until the folder is unmounted; the kernel keeps neither names nor attributes."""
    import mfusepy

    # Whoever mounted it is gone: so is this process, and with it the mount.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    mfusepy.FUSE(
        operations, point, foreground=True, use_ino=True, hard_remove=True,
        attr_timeout=0, entry_timeout=0, negative_timeout=0,
    )  # fmt: skip
