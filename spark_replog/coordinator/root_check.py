"""Is a root there? Asked on its own I/O lane, so that a hung mount cannot hold up who asks."""

from __future__ import annotations

from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import io_pool


def is_root_there(brokers: BrokerSet, broker_id: BrokerId, timeout_ms: int) -> bool:
    """Return whether the root answers in time and is what its ``replog.json`` said at open."""
    answer = io_pool().submit_to(brokers.url(broker_id), brokers.check_root, broker_id)
    try:
        answer.result(timeout_ms / 1000.0)
    except (ReplogError, TimeoutError):
        answer.cancel()
        return False
    return True
