"""When the calls to a store are over: a majority of roots answers a caller, and the last one's call may still run."""

from __future__ import annotations

import time

from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL


def wait_at_rest(brokers: BrokerSet) -> None:
    """Return when this process has no call to any of the roots that waits or runs."""
    urls = {url for each in brokers.broker_ids for url in (brokers.url(each), brokers.store(each).url)}
    ends_at = time.monotonic() + 60
    while any(lane._open_count for name, lane in list(IO_POOL._lanes.items()) if name.partition("#")[0] in urls):
        assert time.monotonic() < ends_at
        time.sleep(0.001)
