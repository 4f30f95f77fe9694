"""The newest look at a store, shared by all viewers, and samples of lags since the console started."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from spark_replog.clock import Clock
from spark_replog.errors import ReplogError
from spark_replog.health.store import StoreView
from spark_replog.monitor.store_monitor import StoreWatch

_LOG = logging.getLogger(__name__)
SAMPLE_MS = 5_000
SAMPLES_KEPT = 720
"""An hour."""
READERS_KEPT = 64
"""Readers kept per sample, the furthest behind, so that memory is bounded whatever the store holds."""
KEEP_ALIVE_S = 15.0


class LagSample(NamedTuple):
    """Lags at one moment: (kind, name) -> (rows, ms); only readers with a lag."""

    time_ms: int
    lags: dict[tuple[str, str], tuple[int, int]]


class LiveStore:
    """Looks at the store on demand, if the last look is older than `age_ms`. Thread-safe."""

    def __init__(self, watch: StoreWatch, clock: Clock, age_ms: int) -> None:
        self.age_ms = age_ms
        self._watch, self._clock = watch, clock
        self._lock = threading.Lock()
        self._seen: tuple[int, StoreView] | None = None
        self._samples: deque[LagSample] = deque(maxlen=SAMPLES_KEPT)

    def seen(self) -> StoreView:
        """Return a look that is at most `age_ms` old. Raises the errors of ``StoreWatch.look``."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._seen is None or now_ms - self._seen[0] >= self.age_ms:
                seen = self._watch.look()
                self._seen = (now_ms, seen)
                self._sample(seen)
            return self._seen[1]

    @property
    def newest(self) -> StoreView | None:
        """The newest look, however old; None before the first."""
        return None if self._seen is None else self._seen[1]

    def shown(self) -> StoreView:
        """Return the newest look if less than 3 `age_ms` old, since the feed's poller renews it; else look now."""
        look = self._seen
        if look is not None and self._clock.monotonic_ms() - look[0] < 3 * self.age_ms:
            return look[1]
        return self.seen()

    def _sample(self, seen: StoreView) -> None:
        now_ms = seen.now_ms
        if self._samples and 0 <= now_ms - self._samples[-1].time_ms < SAMPLE_MS:
            return
        behind = sorted((reader for reader in seen.readers if reader.lag), key=lambda reader: -reader.lag_ms)
        lags = {(reader.kind, reader.name): (reader.lag, reader.lag_ms) for reader in behind[:READERS_KEPT]}
        self._samples.append(LagSample(now_ms, lags))

    def samples(self) -> list[LagSample]:
        """Return the samples of lags, oldest first."""
        with self._lock:
            return list(self._samples)


class Feed:
    """Sends each new look to the viewers: one poller for all, none without viewers. For one event loop.

    `is_answered` says whether the last look was.
    """

    def __init__(self, live: LiveStore) -> None:
        self._live = live
        self._number = 0
        self._changed = asyncio.Condition()
        self._poller: asyncio.Task[None] | None = None
        self.viewer_count = 0
        self.is_answered = True

    async def follow(self) -> AsyncIterator[int | None]:
        """Yield the number of each look, first the newest one's; None now and then without a new one, to keep alive."""
        self.viewer_count += 1
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        told = 0
        try:
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S), self._changed:
                        await self._changed.wait_for(lambda: self._number != told)  # noqa: B023
                    told = self._number
                    yield told
                except TimeoutError:
                    yield None
        finally:
            self.viewer_count -= 1
            if not self.viewer_count and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    async def _poll(self) -> None:
        while True:
            is_answered = False
            try:
                await asyncio.to_thread(self._live.seen)
                is_answered = True
            except ReplogError as error:  # pages that are loaded now get the same error
                _LOG.warning("the store does not answer: %s", error)
            except Exception:  # otherwise no viewer would get any further look
                _LOG.exception("a look at the store ended with an error that is not the store's")
            self._number, self.is_answered = self._number + 1, is_answered
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(self._live.age_ms / 1000)
