"""Named steps at which a test kills or stops this process: ``REPLOG_FAULT_POINT=step[:nth[:stop]]``.

If not set, a step does nothing. Steps are in maintenance, snapshots, copies, derivations, mirrors and table syncs;
tests add their own elsewhere.
"""

from __future__ import annotations

import os
import signal
import threading

VARIABLE = "REPLOG_FAULT_POINT"
_step, _nth, _action = f"{os.environ.get(VARIABLE, '')}::".split(":")[:3]
_left = int(_nth or 1)


def fault_point(step: str) -> None:
    """Send this process SIGKILL, or SIGSTOP for ``stop``, when it reaches the named step for the nth time (from 1).

    The signal goes to the calling thread: one to the process stops it only when some thread takes it, and on a busy
    machine this one would go on until then.
    """
    global _left
    if step == _step:
        _left -= 1
        if _left == 0:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if _action == "stop" else signal.SIGKILL)
