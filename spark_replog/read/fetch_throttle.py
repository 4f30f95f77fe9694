"""The consumer quota, per process: readers of one client wait together. Source: ``ClientQuotaManager``."""

from __future__ import annotations

import os
import threading

from spark_replog.clock import Clock
from spark_replog.log.fold.quota_rate import SampledRate, bounded_throttle_time_ms
from spark_replog.log.quota_set import FetchQuota, RateKey

THROTTLE_MS_MAX = 15_000
"""The longest wait behind one read, half of the default ``request.timeout.ms``: a reader keeps showing life."""

_rates: dict[RateKey, SampledRate] = {}
_lock = threading.Lock()


def throttle(quota: FetchQuota, size_bytes: int, clock: Clock) -> int:
    """Count bytes that were read and wait as the quota asks; return for how long, ms.

    What was read is never dropped: its rows come after the wait.
    """
    now_ms = clock.monotonic_ms()
    with _lock:
        rate = _rates.setdefault(quota.key, SampledRate())
        rate.record(size_bytes, now_ms)
        wait_ms = bounded_throttle_time_ms(
            rate.per_second(now_ms), quota.limit_per_second, rate.elapsed_ms(now_ms), THROTTLE_MS_MAX
        )
    if wait_ms:
        clock.sleep_ms(wait_ms)
    return wait_ms


def forget_rates() -> None:
    """Start measuring anew: in a forked child, and in tests."""
    global _lock
    _lock = threading.Lock()
    _rates.clear()


os.register_at_fork(after_in_child=forget_rates)
