"""The one way in which tests wait for something that another thread, process or server does."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS_MAX = 120.0
"""No test takes a hundredth of it. A machine that is busy with something else, or stops for a while, may."""


def wait_until(condition: Callable[[], T], what: object = "a condition", *, pause_seconds: float = 0.005) -> T:
    """Return the first true value of a condition.

    Args:
        condition: asked again and again; it may change something, send one more record for example.
        what: is waited for; or a function that then says how far it got, called once, when the time is up.
        pause_seconds: between two looks. Longer where a look is expensive.

    Raises:
        AssertionError: it was not true within `SECONDS_MAX`.
    """
    ends_at = time.monotonic() + SECONDS_MAX
    while not (value := condition()):
        if time.monotonic() > ends_at:
            raise AssertionError(f"not within {SECONDS_MAX:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause_seconds)
    return value


def wait_until_stopped(process: subprocess.Popen[Any]) -> None:
    """Wait until it has stopped itself. Whom somebody else stops for a moment, as all processes of a run, goes on."""

    def state(ends_at: float) -> str:
        changed, status = os.waitpid(process.pid, os.WCONTINUED | os.WNOHANG)
        assert not changed or os.WIFCONTINUED(status), process.communicate()
        return "goes on" if changed else "asleep" if time.monotonic() > ends_at else ""

    is_asleep = False
    while not is_asleep:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), process.communicate()
        is_asleep = wait_until(partial(state, time.monotonic() + 1.5), pause_seconds=0.05) == "asleep"
