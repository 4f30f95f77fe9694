"""Fetches that wait for rows: one thread looks at the ledgers for all of them, however many there are."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable

from spark_replog.client.ledger_looks import LedgerLooks
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ReplogError
from spark_replog.gateway.gateway import Gateway
from spark_replog.ids import LedgerId

_LOG = logging.getLogger(__name__)
KEEP_MS = 30_000
"""How long a ledger is looked at after the last fetch that waited for its rows: a consumer comes again soon."""
PAUSE_MS_MAX = 100
"""Meanwhile no ledger that fetches begin to wait for is taken in."""
AWAY_MS = 1_000
"""Pause after a look that failed, as when the store is away."""


class RowWaiters:
    """Wakes fetches when a ledger gets entries: of this gateway, at once, or of others, as the thread sees them."""

    def __init__(self, gateway: Gateway) -> None:
        self._cluster = gateway.cluster
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[LedgerId, set[asyncio.Future[None]]] = {}
        self._lock = threading.Lock()
        self._kept: dict[LedgerId, tuple[float, TopicHandle]] = {}
        """Ledgers to look at: when a fetch asked last, and a topic of it."""
        self._is_wanted = threading.Event()
        self._is_ended = threading.Event()
        self._thread: DaemonThread | None = None
        gateway.on_appended(self._wake)
        gateway.on_close(self.close)

    def wait_for(self, handles: Iterable[TopicHandle]) -> asyncio.Future[None]:
        """Return what is done once a ledger of these topics has new entries. Pass it to ``leave`` in the end."""
        woken: asyncio.Future[None] = self._loop.create_future()
        now_ms = self._cluster.clock.monotonic_ms()
        with self._lock:
            for handle in handles:
                self._kept[handle.ledger_id] = now_ms, handle
                self._waiting.setdefault(handle.ledger_id, set()).add(woken)
        self._is_wanted.set()
        if self._thread is None:
            self._thread = DaemonThread(self._run, name="replog-gateway looks", stop=self.close)
            self._thread.start()
        return woken

    def leave(self, woken: asyncio.Future[None], handles: Iterable[TopicHandle]) -> None:
        """Wait no more."""
        for handle in handles:
            waiting = self._waiting.get(handle.ledger_id, set())
            waiting.discard(woken)
            if not waiting:
                self._waiting.pop(handle.ledger_id, None)

    def is_kept(self, ledger_id: LedgerId) -> bool:
        """Return whether the thread looks at a ledger, so that its fold is about as new as a look would make it."""
        return ledger_id in self._kept

    def close(self) -> None:
        """End the thread."""
        self._is_ended.set()
        self._is_wanted.set()

    def _wake(self, ledger_id: LedgerId) -> None:
        """Wake those who wait for a ledger. Any thread."""
        if self._waiting.get(ledger_id) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_here, ledger_id)

    def _wake_here(self, ledger_id: LedgerId) -> None:
        for woken in self._waiting.get(ledger_id, ()):
            if not woken.done():
                woken.set_result(None)

    def _run(self) -> None:
        looks = LedgerLooks(self._cluster, None)
        clock = self._cluster.clock
        ends: dict[LedgerId, int] = {}  # at the last wake: whoever folds an entry first, its waiters are woken here
        while not self._is_ended.is_set():
            now_ms = clock.monotonic_ms()
            with self._lock:
                self._kept = {key: pair for key, pair in self._kept.items() if now_ms - pair[0] < KEEP_MS}
                handles = {ledger_id: handle for ledger_id, (_, handle) in self._kept.items()}
                if not handles:
                    self._is_wanted.clear()
            if not handles:
                self._is_wanted.wait()
                continue
            try:
                looks.keep(handles)
                next_ms = looks.look(handles, None)
                newest = {ledger_id: self._end(ledger_id) for ledger_id in handles}
                grown = [ledger_id for ledger_id, end in newest.items() if ends.get(ledger_id) != end]
                looks.rows_came([ledger_id for ledger_id in grown if ledger_id in ends])
                for ledger_id in grown:
                    self._wake(ledger_id)
                ends = newest
                looks.pause(min(max(1, next_ms - clock.monotonic_ms()), PAUSE_MS_MAX))
            except ReplogError as error:
                _LOG.debug("a look at the ledgers failed: %s", error)
                self._is_ended.wait(AWAY_MS / 1000)
        looks.close()

    def _end(self, ledger_id: LedgerId) -> int:
        return self._cluster.topic_ledger(ledger_id).ask(lambda state: state.applied_index)
