"""When the calls to a store are over: a majority of roots answers a caller, and the last one's call may still run."""

from __future__ import annotations

from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from tests.waiting import wait_until


def wait_at_rest(brokers: BrokerSet) -> None:
    """Return when this process has no call to any of the roots that waits or runs."""
    urls = {url for broker_id in brokers.broker_ids for url in (brokers.url(broker_id), brokers.store(broker_id).url)}

    def is_at_rest() -> bool:
        lanes = list(IO_POOL._lanes.items())
        return not any(lane._open_count for name, lane in lanes if name.partition("#")[0] in urls)

    wait_until(is_at_rest, "no open call", pause_seconds=0.001)
