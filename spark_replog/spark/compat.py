"""Differences between Spark 4.0 and 4.3, detected by imports, not by version number.

4.0 has no Arrow writer for streams, but its worker passes Arrow batches to a writer that is also a batch Arrow
writer. Read limits and ``Trigger.AvailableNow`` for Python sources need 4.2. Also measures the time that a session's
settings cost micro-batches, as far as a worker can see it.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import zipimport
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

from spark_replog.config.spark import SESSION_SETTINGS, UNIX_SOCKETS, lost_ms
from spark_replog.logs import Once

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_READ_LIMITS = True
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    except ImportError:  # 4.0

        class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """A stream writer that 4.0's worker treats as an Arrow writer."""

    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

        HAS_READ_LIMITS = True
    except ImportError:  # 4.0, 4.1

        class SupportsTriggerAvailableNow:
            """Empty: these versions run one batch."""

        class ReadAllAvailable:
            """Empty: these versions pass no limit."""

        ReadMaxRows = None
        HAS_READ_LIMITS = False

__all__ = ["ReadAllAvailable", "ReadMaxRows", "StreamArrowWriter", "SupportsTriggerAvailableNow"]
"""Pyspark's names, which others import from here."""

_LOG = logging.getLogger(__name__)
SLOW_RENAME_MS = 8
"""Above this, Spark's checkpoint files take longer than a rename: that takes 1 to 5 ms, Spark's default 16 to 30 ms."""
HINTED_QUERIES = Once()
ZIPIMPORT_PATCH_VARIABLE = "REPLOG_PATCH_ZIPIMPORT"
"""Set to 1 in the driver's and the executors' environment to save about 300 ms per batch on Spark < 4.2 with
Python < 3.13, where every Python call reads the directory of pyspark.zip again."""

COMMIT_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"
"""Commits a micro-batch; does not plan its tasks."""
PUSH_DOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""Plans a batch read with filters. Spark starts it only with its conf on. While that is off, the default, Spark refuses
a reader class that has ``pushFilters``."""
_frozen_module_count = 0


def is_worker(module: str) -> bool:
    """Return whether Spark started this process to run the module."""
    main_name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    return module in sys.modules or main_name == module


def freeze_garbage() -> None:
    """Exclude all loaded objects from garbage collection; again if modules were imported since the last call.

    ``pyspark.daemon`` collects after every call of a worker: with pandas and pyarrow loaded tens of milliseconds of CPU
    time. Call it at the start of a worker's call: then the garbage of the previous one is collected, and garbage that
    is frozen would never be freed.
    """
    global _frozen_module_count
    if len(sys.modules) > _frozen_module_count:
        _frozen_module_count = len(sys.modules)
        gc.freeze()


def patch_zipimport_if_asked() -> None:
    """Stop ``importlib.invalidate_caches`` from reading unchanged archives, if the user opted in."""
    if os.environ.get(ZIPIMPORT_PATCH_VARIABLE) != "1" or HAS_READ_LIMITS or sys.version_info >= (3, 13):
        return
    original = zipimport.zipimporter.invalidate_caches
    if getattr(original, "is_replog_patch", False):
        return
    seen: dict[str, tuple[int, int]] = {}

    def invalidate_caches(self: zipimport.zipimporter) -> None:
        try:
            status = os.stat(self.archive)
        except OSError:
            return original(self)
        signature = (status.st_mtime_ns, status.st_size)
        if seen.get(self.archive) != signature:
            original(self)
            seen[self.archive] = signature
        return None

    invalidate_caches.is_replog_patch = True  # type: ignore[attr-defined]
    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign]


def log_lost_time(
    query_id: str, checkpoint: str | None, batch_id: int, environ: Mapping[str, str] = os.environ
) -> None:
    """Log once per query how many ms its micro-batches lose without ``session_conf()``. Commit process.

    A worker does not see the session's settings. It sees whether it was started with Unix sockets, and how long Spark
    took to rename the micro-batch's offsets file: the time from its last write to its last change.
    """
    if not HINTED_QUERIES.is_first(query_id):
        return
    has_sockets = environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() == "true"
    lost = lost_ms({UNIX_SOCKETS: str(has_sockets)}, pyspark.__version__)
    losses = {} if has_sockets or UNIX_SOCKETS not in lost else {UNIX_SOCKETS: lost[UNIX_SOCKETS]}
    rename_ms = _rename_ms(checkpoint, batch_id)
    if rename_ms is not None and rename_ms >= SLOW_RENAME_MS:
        losses |= {setting.name: setting.saved_ms for setting in SESSION_SETTINGS if setting.is_local_only}
    if losses:
        _LOG.warning(
            "each micro-batch of query %s takes about %d ms longer than it needs to: %s. Start the session with "
            "the settings that spark_replog.session_conf() returns.",
            query_id,
            sum(losses.values()),
            ", ".join(f"{name} ({ms} ms)" for name, ms in losses.items()),
        )


def _rename_ms(checkpoint: str | None, batch_id: int) -> float | None:
    """Return how long the rename of a written offsets file took; None: it is not a local file."""
    path = (checkpoint or "").removeprefix("file://").removeprefix("file:")
    if not path.startswith("/"):
        return None
    try:
        status = os.stat(f"{path}/offsets/{batch_id}")
    except OSError:
        return None
    return (status.st_ctime_ns - status.st_mtime_ns) / 1e6
