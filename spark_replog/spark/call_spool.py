"""Passes the storage calls of a query's micro-batches to the listener, in small files in a folder of the driver's host.

Spark takes no metrics from a Python sink, and commits in separate processes. A commit writes one file, and only if a
listener has made the folder. The listener sums the files and deletes them.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from spark_replog.ids import new_id
from spark_replog.storage.call_counter import Calls, NamedCalls, calls_from_json, calls_to_json, summed


def _folder(query_id: str) -> Path:
    return Path(tempfile.gettempdir()) / f"replog-calls-{os.getuid()}" / Path(query_id).name


def _is_own(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def listen(query_id: str) -> None:
    """Make the folder; without one nothing is written."""
    folder = _folder(query_id)
    with suppress(OSError):
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        if _is_own(folder.parent):
            folder.mkdir(mode=0o700, exist_ok=True)


def heard_folder(query_id: str) -> Path | None:
    """Return the folder that a listener has made, None if none listens."""
    folder = _folder(query_id)
    return folder if _is_own(folder.parent) and _is_own(folder) else None


def report(folder: Path, calls: Mapping[tuple[str, str, str], Calls]) -> None:
    """Write the calls of a micro-batch to a file. A failure loses only these numbers."""
    part = folder / f".{new_id()}"
    with suppress(OSError):
        part.write_text(json.dumps(calls_to_json(calls)))
        part.rename(part.with_name(part.name[1:]))


def collect(query_id: str) -> NamedCalls:
    """Return the sum of the files written since the last call, and delete them."""
    calls: list[NamedCalls] = []
    folder = heard_folder(query_id)
    with suppress(OSError):
        for path in () if folder is None else folder.iterdir():
            if not path.name.startswith("."):
                with suppress(ValueError, TypeError):
                    calls.append(calls_from_json(json.loads(path.read_text())))
                path.unlink()
    return summed(calls)


def end(query_id: str) -> None:
    """Remove the folder."""
    if _is_own(_folder(query_id).parent):
        shutil.rmtree(_folder(query_id), ignore_errors=True)
