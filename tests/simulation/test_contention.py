"""Processes that write one ledger at the same time take turns: what an entry costs, in operations and virtual time."""

from __future__ import annotations

import pytest

from tests.simulation.contention import Contention, Cost

SEEDS = range(5)


def run(*args: int, seeds: range = SEEDS, **how: object) -> list[Cost]:
    costs = [Contention(seed, *args, **how).run() for seed in seeds]  # type: ignore[arg-type]
    for cost in costs:
        assert cost.entries == args[0] * args[1]
    return costs


def test_one_writer_alone_claims_once_and_appends_in_one_round():
    for cost in run(1, 50):
        assert (cost.claims, cost.creates) == (1, 3 + 3 * 50)
        assert cost.gets <= 9


@pytest.mark.parametrize(
    ("process_count", "seeds"),
    [(2, SEEDS), (8, SEEDS), (30, SEEDS), (100, SEEDS[:1]), pytest.param(100, SEEDS[1:], marks=pytest.mark.wide)],
)
def test_writers_that_begin_at_once_claim_a_few_times_per_entry(process_count, seeds):
    for cost in run(process_count, 1, seeds=seeds):
        # Without turns: 4 claims per entry for 8 writers, 7 for 30, 12 for 100, and 40 creates.
        assert cost.claims <= 3.5 * process_count
        assert cost.creates <= 18 * process_count
        # Each reads what the others wrote before it: CLAIM and ENTRY on three roots at least.
        assert cost.gets <= process_count * (40 + 4 * process_count)
        # An entry in a few operations of 1 to 3 ms each, however many wait.
        assert cost.end_ms <= 50 + 20 * process_count


@pytest.mark.parametrize("seeds", [SEEDS[:2], pytest.param(SEEDS[2:], marks=pytest.mark.wide)])
def test_a_writer_now_and_then_is_not_held_up_by_many_others(seeds):
    for cost in run(30, 5, seeds=seeds, pause_ms=1000.0):
        assert cost.claims <= 1.2 * cost.entries
        assert cost.latency_ms(0.95) <= 30


@pytest.mark.parametrize("delay_ms", [(1.0, 3.0), (30.0, 60.0)])
def test_two_writers_take_turns_in_a_claim_round_and_an_entry_round(delay_ms):
    # Three operations at most where one alone needs one: look, claim, append.
    for cost in run(2, 50, pause_ms=10 * delay_ms[1], delay_ms=delay_ms):
        assert cost.claims <= 0.75 * cost.entries
        assert cost.creates <= 6 * cost.entries
        assert cost.latency_ms(0.5) <= 3.5 * delay_ms[1]
        assert cost.latency_ms(0.95) <= 7 * delay_ms[1]


def test_two_streaming_queries_pay_for_a_look_and_a_claim_and_no_more():
    # One entry alone takes 3 ms. A blind append, its refusal and a wait would make 17 of it in the 95th percentile.
    for cost in run(2, 60, pause_ms=400.0):
        assert cost.latency_ms(0.95) <= 13
        assert cost.creates <= 5 * cost.entries


def test_writers_without_a_pause_all_get_their_turn():
    for cost in run(8, 20):
        assert cost.claims <= 1.2 * cost.entries
        assert max(cost.latencies_ms) <= 0.95 * cost.end_ms
        assert cost.end_ms <= 8 * 20 * 6


def test_of_sixteen_writers_none_waits_much_longer_than_the_others():
    # Where those that lose wait longer each time, the worst waits 1,100 to 1,700 ms.
    share_ms = 16 * 7
    for cost in [Contention(seed, 16, 20, pause_ms=10.0).run() for seed in range(2)]:
        ordered = sorted(max(latencies) for latencies in cost.by_writer)
        assert ordered[-1] <= 6 * share_ms
        assert ordered[-1] <= 3 * ordered[len(ordered) // 2]
        assert 1000 * cost.entries / cost.end_ms >= 0.8 * 79  # what one writer alone decides in a second
