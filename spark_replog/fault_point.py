"""Named steps at which a test ends or stops this process: ``REPLOG_FAULT_POINT=step[:nth[:stop]]``.

Not set, a step does nothing. The steps are in maintenance; around the calls of one micro-batch a test puts its own.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "REPLOG_FAULT_POINT"
_step, _nth, _action = f"{os.environ.get(VARIABLE, '')}::".split(":")[:3]
_left = int(_nth or 1)


def fault_point(step: str) -> None:
    """Send this process SIGKILL, or SIGSTOP for ``stop``, at the nth passing (from 1) of the step that is named."""
    global _left
    if step == _step:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGSTOP if _action == "stop" else signal.SIGKILL)
