"""The file systems of fsspec that a process keeps open, so that roots with the same options share one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

CLIENTS_MAX = 16
"""The newest file systems that a process keeps open, used or not: each takes megabytes, and each new token needs one.
All roots with the same options share one."""
_newest: dict[str, Any] = {}
"""By a digest of class and options, which may hold secrets; the one used last comes last."""
_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_inherited: list[Any] = []
"""The parent's, kept for ever in a forked child. If it released one, its clean-up would close connections in the event
poll that the child SHARES with its parent, and the parent would wait for answers for ever."""


def _keep_inherited() -> None:
    _inherited.extend(_alive.values())
    _alive.clear()
    _newest.clear()


os.register_at_fork(after_in_child=_keep_inherited)


def kept_file_system(name: str, make: Callable[[], Any]) -> Any:
    """Return the file system of a name, made if none is open.

    Args:
        name: a digest of class and options.
    """
    # No lock: a forked child could inherit it held. If two threads make one, both work.
    found = _newest.pop(name, None) or make()
    _newest[name] = found
    for oldest in list(_newest)[:-CLIENTS_MAX]:
        _newest.pop(oldest, None)
    return found


def note_in_use(file_system: Any) -> None:
    """Remember a file system for as long as anything uses it: a forked child must not release it."""
    _alive[id(file_system)] = file_system
