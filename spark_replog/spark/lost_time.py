"""What a query's micro-batches lose because its session was started without ``spark_replog.session_conf()``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import pyspark

from spark_replog.config import SESSION_SETTINGS, UNIX_SOCKETS, lost_ms
from spark_replog.logs import Once

SLOW_RENAME_MS = 8
"""From here on Spark's checkpoint files take longer than a rename does: 1 to 5 ms are usual, 16 to 30 ms by default."""
_LOG = logging.getLogger(__name__)
HINTED_QUERIES = Once()


def log_lost_time(
    query_id: str, checkpoint: str | None, batch_id: int, environ: Mapping[str, str] = os.environ
) -> None:
    """Log once for each query what its micro-batches lose without ``session_conf()``, in ms. Commit process.

    A worker does not see the session's settings. It sees whether it was started with Unix sockets, and how long Spark
    took to give the micro-batch's offsets file its name: the time from its last write to its last change.
    """
    if not HINTED_QUERIES.is_first(query_id):
        return
    has_sockets = environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() == "true"
    lost = lost_ms({UNIX_SOCKETS: str(has_sockets)}, pyspark.__version__)
    found = {} if has_sockets or UNIX_SOCKETS not in lost else {UNIX_SOCKETS: lost[UNIX_SOCKETS]}
    rename_ms = _rename_ms(checkpoint, batch_id)
    if rename_ms is not None and rename_ms >= SLOW_RENAME_MS:
        found |= {each.name: each.saved_ms for each in SESSION_SETTINGS if each.is_local_only}
    if found:
        _LOG.warning(
            "each micro-batch of query %s takes about %d ms longer than it needs to: %s. Start the session with "
            "the settings that spark_replog.session_conf() returns.",
            query_id,
            sum(found.values()),
            ", ".join(f"{name} ({ms} ms)" for name, ms in found.items()),
        )


def _rename_ms(checkpoint: str | None, batch_id: int) -> float | None:
    """Return how long a written offsets file waited for its name; None: it is not a local file."""
    path = (checkpoint or "").removeprefix("file://").removeprefix("file:")
    if not path.startswith("/"):
        return None
    try:
        found = os.stat(f"{path}/offsets/{batch_id}")
    except OSError:
        return None
    return (found.st_ctime_ns - found.st_mtime_ns) / 1e6
