"""How fast each client appends to one ledger, from its decided entries alone: every coordinator agrees."""

from __future__ import annotations

from spark_replog.log.acl import normal_principal
from spark_replog.log.fold.quota_rate import SAMPLE_COUNT, WINDOW_MS, SampledRate
from spark_replog.log.model import Append
from spark_replog.log.quota_set import QuotaScope, RateKey


def rate_key(scope: QuotaScope, user: str, client_id: str) -> RateKey:
    """Return which rate a quota of this scope bounds."""
    return (
        scope,
        "" if scope is QuotaScope.CLIENT else user,
        "" if scope is QuotaScope.USER else client_id,
    )


class ProduceRates:
    """Byte rates of a ledger's appends. Part of the fold; holds the clients of the last eleven seconds only.

    Times are the entries' own (`append_time_ms`, which never falls), no process's clock.
    """

    def __init__(self) -> None:
        self._rates: dict[RateKey, SampledRate] = {}  # by last use, oldest first

    def __len__(self) -> int:
        return len(self._rates)

    def record(self, append: Append, now_ms: int) -> None:
        """Count an applied append's section bytes, once for all its copies."""
        size_bytes = sum(section.size_bytes for item in append.objects for section in item.sections)
        user = normal_principal(append.principal)
        for scope in QuotaScope:
            key = rate_key(scope, user, append.client_id)
            rate = self._rates.pop(key, None) or SampledRate()
            rate.record(size_bytes, now_ms)
            self._rates[key] = rate
        for key in list(self._idle(now_ms)):
            del self._rates[key]

    def measure(self, key: RateKey, now_ms: int) -> tuple[float, int]:
        """Return bytes per second, and the milliseconds that they are over."""
        rate = self._rates.get(key)
        if rate is None:
            return 0.0, (SAMPLE_COUNT - 1) * WINDOW_MS
        return rate.per_second(now_ms), rate.elapsed_ms(now_ms)

    def _idle(self, now_ms: int) -> list[RateKey]:
        found = []
        for key, rate in self._rates.items():
            if not rate.is_idle(now_ms):
                break
            found.append(key)
        return found
