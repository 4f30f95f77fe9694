"""Client quotas: whom they limit, which one applies, and how fast clients append and read. Pure.

Source: Kafka's ``ClientQuotaEntity``, ``ClientQuotaManager`` (levels of precedence), ``SampledStat``, ``Rate`` and
``QuotaUtils``. The caller gives the time: that of entries (`append_time_ms`) for appends, of one process for reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from spark_replog.log.acl import normal_principal
from spark_replog.wire import COUNT_MAX, SINT, TEXT, UINT, Kind, fields, list_of, map_of, record

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
QUOTA_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
SAMPLE_COUNT = 11
"""Kafka's ``quota.window.num``."""
WINDOW_MS = 1000
"""Kafka's ``quota.window.size.seconds``."""
DEFAULT_NAME = "<default>"
"""Kafka's name for all users or clients without their own quota."""


class QuotaEntity(NamedTuple):
    """Whom a quota limits. Each part is a name, DEFAULT_NAME for all without their own quota, or None for any."""

    user: str | None
    client_id: str | None


class QuotaScope(StrEnum):
    """Which traffic a quota measures together."""

    USER_CLIENT = "user-client"
    USER = "user"
    CLIENT = "client"


class Quota(NamedTuple):
    """The quota of one (user, client id): where it was set, its limit, and who shares it."""

    entity: QuotaEntity
    limit_per_second: int
    scope: QuotaScope


RateKey = tuple[QuotaScope, str, str]
"""Scope, user, client id; '' for the part that the scope leaves out."""


@dataclass(frozen=True, slots=True)
class FetchQuota:
    """The limit of one reader in one process. Pickled to tasks.

    Attributes:
        limit_per_second: bytes.
        key: whose reads are measured together.
    """

    limit_per_second: int
    key: RateKey

    @property
    def window_bytes(self) -> int:
        """How much may be read at once after a pause, without a wait."""
        return self.limit_per_second * (SAMPLE_COUNT - 1) * WINDOW_MS // 1000


@dataclass(frozen=True, slots=True)
class QuotaAlter:
    """Sets or removes (None) quotas of one entity."""

    entity: QuotaEntity
    changes: tuple[tuple[str, int | None], ...]


class QuotaSet:
    """The quotas of a store. Folded by the cluster ledger; read it under its lock."""

    def __init__(self) -> None:
        self._limits: dict[QuotaEntity, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Mapping[str, int]]]:
        for entity, limits in self._limits.items():
            yield entity, dict(limits)

    def alter(self, command: QuotaAlter) -> bool:
        """Apply the changes; return whether one changed anything."""
        limits = dict(self._limits.get(command.entity, {}))
        for key, value in command.changes:
            if value is None:
                limits.pop(key, None)
            else:
                limits[key] = value
        if limits == self._limits.get(command.entity, {}):
            return False
        if limits:
            self._limits[command.entity] = limits
        else:
            del self._limits[command.entity]
        return True

    def find(self, key: str, user: str, client_id: str) -> Quota | None:
        """Return the most specific quota of the eight levels, None if none is set."""
        if not self._limits:
            return None
        pair, one_user, one_client = QuotaScope.USER_CLIENT, QuotaScope.USER, QuotaScope.CLIENT
        levels = (
            (QuotaEntity(user, client_id), pair),
            (QuotaEntity(user, DEFAULT_NAME), pair),
            (QuotaEntity(user, None), one_user),
            (QuotaEntity(DEFAULT_NAME, client_id), pair),
            (QuotaEntity(DEFAULT_NAME, DEFAULT_NAME), pair),
            (QuotaEntity(DEFAULT_NAME, None), one_user),
            (QuotaEntity(None, client_id), one_client),
            (QuotaEntity(None, DEFAULT_NAME), one_client),
        )
        for entity, scope in levels:
            limit = self._limits.get(entity, {}).get(key)
            if limit is not None:
                return Quota(entity, limit, scope)
        return None


class SampledRate:
    """An amount per second over a window that slides by whole samples.

    Args:
        sample_count: samples of `WINDOW_MS` that make the window, at least 2.

    Attributes:
        samples: [start, last event, total], oldest first.
    """

    __slots__ = ("_sample_count", "samples")

    def __init__(self, sample_count: int = SAMPLE_COUNT, samples: Iterable[Iterable[int]] = ()) -> None:
        self._sample_count = sample_count
        self.samples = deque(list(sample) for sample in samples)

    def record(self, amount: int, now_ms: int) -> None:
        """Add an amount; times never fall."""
        samples = self.samples
        amount = min(amount, COUNT_MAX)
        if not samples or now_ms - samples[-1][0] >= WINDOW_MS:
            samples.append([now_ms, now_ms, amount])
            if len(samples) > self._sample_count + 1:  # the oldest one overlaps the window with its end
                samples.popleft()
            return
        samples[-1][1] = now_ms
        samples[-1][2] = min(samples[-1][2] + amount, COUNT_MAX)

    def elapsed_ms(self, now_ms: int) -> int:
        """Return the length of the window: since the oldest live sample, and at least N - 1 samples.

        The minimum keeps a burst at the start from looking like a sustained rate.
        """
        samples = self.live(now_ms)
        elapsed = now_ms - samples[0][0] if samples else 0
        missing = self._sample_count - 1 - elapsed // WINDOW_MS
        return elapsed + max(0, missing) * WINDOW_MS

    def per_second(self, now_ms: int) -> float:
        """Return the rate."""
        total = sum(sample[2] for sample in self.live(now_ms))
        return total * 1000.0 / self.elapsed_ms(now_ms)

    def live(self, now_ms: int) -> deque[list[int]]:
        """Drop the samples that have expired; return the others as [start, last event, total], oldest first."""
        expiry_ms = self._sample_count * WINDOW_MS
        while self.samples and now_ms - self.samples[0][1] >= expiry_ms:
            self.samples.popleft()
        return self.samples


def throttle_time_ms(observed: float, quota: float, window_ms: int, limit_ms: int) -> int:
    """Return how long to wait until a rate is back at its quota, at most `limit_ms`; 0 within the quota."""
    if observed <= quota:
        return 0
    if quota <= 0:  # refused when it is set; a damaged one must not divide by zero
        return limit_ms
    return min(round((observed - quota) / quota * window_ms), limit_ms)


def rate_key(scope: QuotaScope, user: str, client_id: str) -> RateKey:
    """Return the key of the rate that a quota of this scope limits."""
    return (
        scope,
        "" if scope is QuotaScope.CLIENT else user,
        "" if scope is QuotaScope.USER else client_id,
    )


class ProduceRates:
    """Byte rates of a ledger's appends. Part of the fold; holds the clients of the last eleven seconds only.

    Times are those of the entries (`append_time_ms`), never of one process; the fold clears the rates if these go back.
    """

    def __init__(self, rates: dict[RateKey, SampledRate] | None = None) -> None:
        self.rates = rates or {}  # by last use, oldest first

    def record(self, principal: str, client_id: str, size_bytes: int, now_ms: int) -> None:
        """Count the section bytes of an applied append, once for all its copies."""
        user = normal_principal(principal)
        for scope in _SCOPES:
            key = rate_key(scope, user, client_id)
            rate = self.rates.pop(key, None) or SampledRate()
            rate.record(size_bytes, now_ms)
            self.rates[key] = rate  # now the last: the client's own rates are never dropped below
        while len(self.rates) > len(_SCOPES) and not self.rates[oldest := next(iter(self.rates))].live(now_ms):
            del self.rates[oldest]

    def measure(self, key: RateKey, now_ms: int) -> tuple[float, int]:
        """Return bytes per second, and the length of the measured window in ms."""
        rate = self.rates.get(key)
        if rate is None:
            return 0.0, (SAMPLE_COUNT - 1) * WINDOW_MS
        return rate.per_second(now_ms), rate.elapsed_ms(now_ms)


_SAMPLES = list_of(SINT, SINT, UINT)
_SCOPES = list(QuotaScope)
_SCOPE = Kind(lambda writer, scope: writer.byte(_SCOPES.index(scope)), lambda reader: _SCOPES[reader.byte()])
_RATES = map_of(
    fields(_SCOPE, TEXT, TEXT),
    Kind(
        lambda writer, rate: _SAMPLES.write(writer, rate.samples),
        lambda reader: SampledRate(samples=_SAMPLES.read(reader)),
    ),
)
PRODUCE_RATES = record(ProduceRates, rates=_RATES)
