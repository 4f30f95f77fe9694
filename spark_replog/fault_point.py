"""Named steps at which a test ends this process: ``REPLOG_FAULT_POINT=step[:nth]``. Not set, a step does nothing."""

from __future__ import annotations

import os
import signal

VARIABLE = "REPLOG_FAULT_POINT"
_step, _, _nth = os.environ.get(VARIABLE, "").partition(":")
_left = int(_nth or 1)


def fault_point(step: str) -> None:
    """End the process as SIGKILL does if the variable names this step, at its nth passing (counted from 1)."""
    global _left
    if step == _step:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
