"""The pool under random histories against a model that anybody can check: a number and a queue."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.write.buffer_pool import BufferPool
from tests.examples import examples

TOTAL_BYTES = 20
POOLABLE_BYTES = 4
WAIT_SECONDS = 10


class GaveUp(Exception):
    pass


@dataclass
class Asker:
    """A thread that allocates, and how far the model says it is."""

    size_bytes: int
    missing_bytes: int
    thread: threading.Thread = field(default_factory=threading.Thread)
    turn: threading.Event = field(default_factory=threading.Event)
    gives_up: bool = False
    has_given_up: bool = False
    is_blocked: threading.Event = field(default_factory=threading.Event)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(TOTAL_BYTES, clock=SYSTEM_CLOCK, poolable_bytes=POOLABLE_BYTES)
        self.available = TOTAL_BYTES
        self.queue: list[Asker] = []
        self.held: list[tuple[int, bytearray | None]] = []

    @rule(size_bytes=st.one_of(st.just(POOLABLE_BYTES), st.integers(0, TOTAL_BYTES)))
    def take_buffer(self, size_bytes: int) -> None:
        """Buffers are taken only where that does not block: who waits is in ``ask``."""
        if self.queue or size_bytes > self.available:
            return
        buffer = self.pool.allocate_buffer(size_bytes, 0)
        assert len(buffer) == size_bytes
        assert all(buffer is not other for _, other in self.held)
        self.available -= size_bytes
        self.held.append((size_bytes, buffer))

    @rule(size_bytes=st.integers(1, TOTAL_BYTES))
    def ask(self, size_bytes: int) -> None:
        """Reserve, on a thread where it must wait."""
        # Kafka's quirk cannot show here: what is free while somebody waits is that one's already.
        if size_bytes <= self.available:
            self.pool.allocate(size_bytes, 0)
            self.available -= size_bytes
            self.held.append((size_bytes, None))
            return
        asker = Asker(size_bytes, size_bytes)

        def run_once(_left_ms: int) -> None:
            asker.is_blocked.set()
            asker.turn.wait(WAIT_SECONDS)
            asker.turn.clear()
            if asker.gives_up:
                raise GaveUp

        def allocate() -> None:
            try:
                self.pool.allocate(size_bytes, WAIT_SECONDS * 1000, run_once)
            except GaveUp:
                asker.has_given_up = True

        asker.thread = threading.Thread(target=allocate, daemon=True)
        asker.thread.start()
        assert asker.is_blocked.wait(WAIT_SECONDS)
        self.queue.append(asker)
        self.serve()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        size_bytes, buffer = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        is_reusable = data.draw(st.booleans())
        self.pool.deallocate(size_bytes, buffer if is_reusable else None)
        self.available += size_bytes
        self.serve()

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        asker = self.queue.pop(data.draw(st.integers(0, len(self.queue) - 1)))
        asker.gives_up = True
        asker.turn.set()
        asker.thread.join(WAIT_SECONDS)
        assert asker.has_given_up
        self.available += asker.size_bytes - asker.missing_bytes
        self.serve()

    @precondition(lambda self: self.held)
    @rule(size_bytes=st.integers(1, 6))
    def copy_and_release(self, size_bytes: int) -> None:
        """A copy is charged without waiting, then its original goes."""
        self.pool.charge(size_bytes)
        self.pool.deallocate(size_bytes)

    def serve(self) -> None:
        """The model: the first in the queue gets all there is until it has enough."""
        while self.queue and self.available > 0:
            first = self.queue[0]
            given = min(self.available, first.missing_bytes)
            self.available -= given
            first.missing_bytes -= given
            if first.missing_bytes:
                return
            self.queue.pop(0)
            first.turn.set()
            first.thread.join(WAIT_SECONDS)
            assert not first.thread.is_alive() and not first.has_given_up
            self.held.append((first.size_bytes, None))

    @invariant()
    def agrees(self) -> None:
        assert self.pool.available_bytes == self.available
        assert len(self.pool.waiters) == len(self.queue)
        assert 0 <= self.pool.unallocated_bytes <= self.pool.available_bytes
        assert (self.pool.available_bytes - self.pool.unallocated_bytes) % POOLABLE_BYTES == 0
        held = sum(size for size, _ in self.held) + sum(item.size_bytes - item.missing_bytes for item in self.queue)
        assert held + self.available == TOTAL_BYTES

    def teardown(self) -> None:
        for asker in self.queue:
            asker.gives_up = True
            asker.turn.set()
        for asker in self.queue:
            asker.thread.join(WAIT_SECONDS)
            assert asker.has_given_up
        for size_bytes, buffer in self.held:
            self.pool.deallocate(size_bytes, buffer)
        assert (self.pool.available_bytes, len(self.pool.waiters)) == (TOTAL_BYTES, 0)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
