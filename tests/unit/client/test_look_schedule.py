"""When a waiting reader looks at which ledger, and that waiting costs a bounded number of gets."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from spark_replog.client.look_schedule import (
    AWAKE_PAUSE_MS,
    IDLE_SHARE,
    LOOKS_AFTER_ROWS,
    REMOTE_GETS_PER_SECOND,
    LookSchedule,
)
from spark_replog.cluster.journal_peek import PEEKS_PER_READ

ROOTS, RARELY = 3, "cluster"
BURST = LOOKS_AFTER_ROWS * ROOTS


class Waiting:
    """A reader that does what a schedule says, on a clock of its own; a read that a peek leads to costs two a root."""

    def __init__(self, ledgers, *, rate=REMOTE_GETS_PER_SECOND, interval_ms=None, look_ms=0):
        self.now_ms, self.look_ms = 0.0, look_ms
        self.schedule = LookSchedule(ROOTS, rate, interval_ms, 0)
        self.gets, self.peeks, self.at_ms = Counter(), Counter(), defaultdict(list)
        self.schedule.keep([f"l{number}" for number in range(ledgers)], 0, rarely=RARELY, rarely_ms=1_000)

    def run(self, until_ms):
        """Look until then; return the gets."""
        before = self.gets.total()
        while (next_ms := max(self.now_ms, self.schedule.next_ms(self.now_ms))) < until_ms:
            self.now_ms = next_ms
            due = self.schedule.due(self.now_ms)
            for ledger, is_read in due.items():
                self.at_ms[ledger].append(self.now_ms)
                self.gets[ledger] += ROOTS if is_read else 1
                self.peeks[ledger] += not is_read
                if not is_read and (self.peeks[ledger] + list(self.peeks).index(ledger)) % PEEKS_PER_READ == 0:
                    self.gets[ledger] += 2 * ROOTS - 1
            self.now_ms += self.look_ms
            self.schedule.looked(due, self.now_ms, self.look_ms)
        self.now_ms = until_ms
        return self.gets.total() - before

    def gaps(self, ledger, since_ms):
        times_ms = [at_ms for at_ms in self.at_ms[ledger] if at_ms >= since_ms]
        return [after - at_ms for at_ms, after in pairwise(times_ms)]


@pytest.mark.parametrize(("ledgers", "longest_ms"), [(1, 1_375), (10, 7_563), (100, 69_438)])
def test_an_idle_reader_costs_no_more_however_many_ledgers_it_reads(ledgers, longest_ms):
    waiting = Waiting(ledgers)
    begin_ms = 10 * longest_ms
    first = waiting.run(begin_ms)
    assert first <= (ledgers + 1) * ROOTS + BURST + begin_ms / 1000 * REMOTE_GETS_PER_SECOND
    assert waiting.run(5 * begin_ms) <= 4 * begin_ms / 1000 * REMOTE_GETS_PER_SECOND + 2 * ROOTS
    for number in range(ledgers):
        assert max(waiting.gaps(f"l{number}", begin_ms)) <= longest_ms + 1


@pytest.mark.parametrize(("look_ms", "looks"), [(0, range(40, 50)), (30, range(5, 10))])
def test_the_looks_while_rows_may_come_are_bounded(look_ms, looks):
    waiting = Waiting(1, look_ms=look_ms)
    waiting.run(IDLE_SHARE * AWAKE_PAUSE_MS)
    assert len(waiting.at_ms["l0"]) in looks
    assert not waiting.peeks["l0"]


def test_rows_that_come_often_are_found_soon():
    """Each within 1/8 of the time since the last ones, and 1 ms, whatever else the reader waits for."""
    waiting = Waiting(100)
    waiting.run(3_600_000)
    for gap_ms in (1, 10, 160, 800, 5_000):
        came_ms = waiting.now_ms
        waiting.schedule.rows_came(["l7"], came_ms)
        waiting.run(came_ms + gap_ms + 1 + gap_ms / IDLE_SHARE + 1)
        assert waiting.at_ms["l7"][-1] >= came_ms + gap_ms


def test_an_interval_that_is_set_is_the_longest_pause_and_there_is_no_limit():
    waiting = Waiting(10, interval_ms=250)
    waiting.run(10_000)
    gets = waiting.run(70_000)
    assert all(set(waiting.gaps(f"l{number}", 10_000)) == {250} for number in range(10))
    assert set(waiting.gaps(RARELY, 10_000)) == {1_000}
    assert gets > 60 * 4 * 10


def test_what_a_watch_reports_is_read_at_once():
    waiting = Waiting(100)
    waiting.run(1_000_000)
    waiting.schedule.told(["l42", "of another reader"])
    assert waiting.schedule.next_ms(waiting.now_ms) <= waiting.now_ms
    assert waiting.schedule.due(waiting.now_ms)["l42"]


def test_gets_elsewhere_take_at_most_half_of_the_limit():
    waiting, longest_ms = Waiting(10), 7_563
    waiting.run(1_000_000)
    for second in range(1_000, 2_000):
        waiting.schedule.spend_elsewhere(1_000, waiting.now_ms)
        waiting.run(second * 1_000)
    for number in range(10):
        assert longest_ms < max(waiting.gaps(f"l{number}", 1_000_000)) <= 2 * longest_ms + 1_000
