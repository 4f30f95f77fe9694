"""Vectors of Kafka's quotas (8.1, case 123), and what the fold measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, DataObject, IdentityKind, Outcome, ProducerIdentity, Section, TopicInit
from spark_replog.log.quotas import (
    DEFAULT_NAME,
    ProduceRates,
    QuotaAlter,
    QuotaEntity,
    QuotaScope,
    QuotaSet,
    SampledRate,
    rate_key,
    throttle_time_ms,
)

TOPIC, LEDGER = "a" * 32, "b" * 32
KEY = "producer_byte_rate"


def observed(samples, amount):
    """Return the rate after one amount, and its window."""
    rate = SampledRate(samples)
    rate.record(amount, 1_000_000)
    return rate.per_second(1_000_000), rate.elapsed_ms(1_000_000)


@pytest.mark.case("server-8-1-123-50-against-100-over-three")
@pytest.mark.parametrize(
    ("quota", "samples", "amount", "throttle_ms"), [(50, 3, 200, 2000), (50, 2, 55, 100), (50, 3, 100, 0)]
)
def test_throttle_times_of_quota_utils(quota, samples, amount, throttle_ms):
    rate, window_ms = observed(samples, amount)
    assert window_ms == (samples - 1) * 1000
    assert throttle_time_ms(rate, quota, window_ms, 10_000) == throttle_ms


@pytest.mark.case("server-8-1-123-50-against-100-over-three", "server-8-1-123-bounded-500-500-ms")
def test_throttle_times_are_bounded_and_none_is_due_at_or_below_the_quota():
    assert throttle_time_ms(100, 50, 2000, 500) == 500
    assert throttle_time_ms(100, 50, 2000, 10_000) == 2000
    assert throttle_time_ms(55, 50, 1000, 500) == 100
    assert throttle_time_ms(50, 50, 2000, 500) == 0
    assert throttle_time_ms(40, 50, 2000, 500) == 0
    assert throttle_time_ms(40, 0, 2000, 500) == 500


@pytest.mark.case("server-8-1-rate-s-window-n-1-full")
def test_a_burst_at_the_start_is_spread_over_ten_full_windows():
    rate, window_ms = observed(11, 1000)
    assert (rate, window_ms) == (100.0, 10_000)


@pytest.mark.case("server-8-1-rate-s-window-n-1-full")
def test_the_window_grows_with_the_part_of_the_running_sample_and_slides():
    rate = SampledRate()
    rate.record(1000, 0)
    assert rate.elapsed_ms(500) == 10_500
    rate.record(1000, 999)
    rate.record(500, 1000)  # the second sample
    assert rate.per_second(1000) == 250.0
    assert rate.elapsed_ms(10_400) == 10_400
    assert rate.per_second(11_998) == 2500 * 1000 / 11_998
    assert rate.per_second(11_999) == 500 * 1000 / 10_999  # the first sample's last event is 11 s ago
    assert rate.live(11_999)
    assert not rate.live(12_000)
    assert rate.per_second(12_000) == 0


def test_no_more_samples_are_kept_than_counted():
    rate = SampledRate(3)
    for second in range(5):
        rate.record(1, second * 1000)
    assert rate.per_second(4000) == 3 * 1000 / 2000


def test_a_sample_that_began_before_the_window_counts_as_long_as_its_end_is_in_it():
    rate = SampledRate(3)
    for time_ms in (0, 999, 1000, 1999, 2000, 2999, 3000):
        rate.record(1, time_ms)
    assert (rate.per_second(3000), rate.elapsed_ms(3000)) == (7 * 1000 / 3000, 3000)
    rate.record(1, 4000)
    assert (rate.per_second(4000), rate.elapsed_ms(4000)) == (6 * 1000 / 3000, 3000)


LEVELS = [
    (QuotaEntity("User:a", "c"), QuotaScope.USER_CLIENT),
    (QuotaEntity("User:a", DEFAULT_NAME), QuotaScope.USER_CLIENT),
    (QuotaEntity("User:a", None), QuotaScope.USER),
    (QuotaEntity(DEFAULT_NAME, "c"), QuotaScope.USER_CLIENT),
    (QuotaEntity(DEFAULT_NAME, DEFAULT_NAME), QuotaScope.USER_CLIENT),
    (QuotaEntity(DEFAULT_NAME, None), QuotaScope.USER),
    (QuotaEntity(None, "c"), QuotaScope.CLIENT),
    (QuotaEntity(None, DEFAULT_NAME), QuotaScope.CLIENT),
]


@pytest.mark.case("server-8-1-eight-levels")
def test_the_most_specific_of_eight_levels_holds():
    quotas = QuotaSet()
    for number, (entity, _) in enumerate(LEVELS):
        quotas.alter(QuotaAlter(entity, ((KEY, number),)))
    for number, (entity, scope) in enumerate(LEVELS):
        quota = quotas.find(KEY, "User:a", "c")
        assert quota is not None
        assert (quota.entity, quota.limit_per_second, quota.scope) == (entity, number, scope)
        assert quotas.alter(QuotaAlter(entity, ((KEY, None),)))
    assert quotas.find(KEY, "User:a", "c") is None
    assert len(quotas) == 0


def test_a_level_that_sets_another_key_is_passed_over():
    quotas = QuotaSet()
    quotas.alter(QuotaAlter(QuotaEntity("User:a", None), (("consumer_byte_rate", 5),)))
    quotas.alter(QuotaAlter(QuotaEntity(None, DEFAULT_NAME), ((KEY, 7),)))
    assert quotas.find(KEY, "User:a", "c").limit_per_second == 7
    assert quotas.find("consumer_byte_rate", "User:b", "c") is None


def test_quotas_are_folded():
    state = ClusterLedgerState()

    def apply(*changes):
        payload = encode_entry([encode_command(QuotaAlter(QuotaEntity("User:a", None), changes))])
        return state.apply(state.applied_index + 1, payload)[0].outcome

    assert apply((KEY, 10), ("consumer_byte_rate", 20)) is Outcome.APPLIED
    assert apply((KEY, 10)) is Outcome.EXISTS
    assert apply((KEY, None)) is Outcome.APPLIED
    assert list(state.quotas) == [(QuotaEntity("User:a", None), {"consumer_byte_rate": 20})]


def append_of(sequence, size_bytes, time_ms, principal="User:a", client="c"):
    section = Section(TOPIC, 0, 1, 0, size_bytes, 0, 0, 0)
    item = DataObject(ObjectId(0, f"o{sequence}"), size_bytes, False, frozenset({0}), (section,))
    identity = ProducerIdentity(f"{principal}{client}", "", sequence, "", IdentityKind.ONE_SHOT)
    identity = replace(identity, producer_id=f"p{sequence}", incarnation=f"p{sequence}")
    return Append(identity, principal, client, time_ms, (item,))


def test_the_fold_measures_applied_appends_by_their_own_times():
    states = [TopicLedgerState(LEDGER), TopicLedgerState(LEDGER)]
    commands = [
        TopicInit(TOPIC, "t", ((0,),), ()),
        append_of(0, 1000, 5_000),
        append_of(0, 1000, 6_000),  # a duplicate counts for nothing
        append_of(1, 3000, 4_000),  # the log's time never falls: 5,000
        append_of(2, 500, 7_000, client="d"),
        append_of(3, 250, 7_000, principal="b"),
    ]
    for state in states:
        for index, command in enumerate(commands):
            state.apply(index, encode_entry([encode_command(command)]))
    rates = states[0].produce_rates
    assert rates.measure(rate_key(QuotaScope.USER_CLIENT, "User:a", "c"), 7_000) == (400.0, 10_000)
    assert rates.measure(rate_key(QuotaScope.USER, "User:a", "any"), 7_000) == (450.0, 10_000)
    assert rates.measure(rate_key(QuotaScope.CLIENT, "any", "c"), 7_000) == (425.0, 10_000)
    assert rates.measure(rate_key(QuotaScope.USER, "User:b", ""), 7_000) == (25.0, 10_000)
    assert rates.measure(rate_key(QuotaScope.USER, "User:nobody", ""), 7_000) == (0.0, 10_000)
    key = rate_key(QuotaScope.USER, "User:a", "c")
    assert states[1].produce_rates.measure(key, 9_000) == rates.measure(key, 9_000)


def test_every_object_of_an_append_counts():
    state = TopicLedgerState(LEDGER)
    one = append_of(0, 1000, 5_000)
    both = replace(one, objects=(*one.objects, *append_of(1, 500, 0).objects))
    for index, command in enumerate((TopicInit(TOPIC, "t", ((0,),), ()), both)):
        state.apply(index, encode_entry([encode_command(command)]))
    assert state.produce_rates.measure(rate_key(QuotaScope.USER, "User:a", ""), 5_000) == (150.0, 10_000)


def test_a_client_that_goes_on_keeps_no_idle_one():
    rates = ProduceRates()
    for second in range(13):
        rates.record("User:busy", "busy", 1, second * 1000)
        if second == 0:
            rates.record("User:once", "once", 1, 0)
    assert len(rates.rates) == 3


def test_only_clients_of_the_last_eleven_seconds_are_kept():
    rates = ProduceRates()
    for number in range(1000):
        rates.record(f"User:{number}", f"c{number}", 1, number * 1000)
    assert len(rates.rates) == 3 * 11


DAY_MS = 86_400_000


class Clocked:
    """A ledger whose appends come from proposers with clocks of their own."""

    def __init__(self, log_append_time=False):
        self.state = TopicLedgerState(LEDGER)
        config = (("message.timestamp.type", "LogAppendTime"),) if log_append_time else ()
        self.state.apply(0, encode_entry([encode_command(TopicInit(TOPIC, "t", ((0,),), config))]))

    def append(self, clock_ms, size_bytes=1000):
        index = self.state.applied_index + 1
        (result,) = self.state.apply(index, encode_entry([encode_command(append_of(index, size_bytes, clock_ms))]))
        assert result.outcome is Outcome.APPLIED
        return self.state.append_time_ms

    def rate(self):
        return self.state.produce_rates.measure(rate_key(QuotaScope.USER, "User:a", ""), self.state.append_time_ms)[0]


def test_clocks_that_differ_a_little_never_move_time_back():
    log = Clocked()
    assert [log.append(clock_ms) for clock_ms in (100_000, 40_000, 99_999, 40_001, 130_000, 70_000)] == [
        100_000, 100_000, 100_000, 100_000, 130_000, 130_000
    ]  # fmt: skip


def test_one_clock_a_day_ahead_is_outvoted_by_the_next_three_appends():
    log = Clocked(log_append_time=True)
    now_ms = 50 * DAY_MS
    log.append(now_ms)
    assert log.append(now_ms + DAY_MS) == now_ms + DAY_MS
    assert [log.append(now_ms + 100 * n) - now_ms for n in (1, 2, 3, 4)] == [DAY_MS, DAY_MS, 300, 400]
    times = [section.append_time_ms - now_ms for section in log.state.sections(TOPIC, 0, 0, 6)]
    assert times == [0, DAY_MS, DAY_MS, DAY_MS, 300, 400]
    assert log.state.offset_for_time(TOPIC, 0, now_ms + 400) == 1, "a time is found although times went back"


def test_a_quota_recovers_with_the_clock():
    log = Clocked()
    now_ms = 50 * DAY_MS
    log.append(now_ms + DAY_MS)
    for second in range(60):
        log.append(now_ms + 1000 * second, size_bytes=500)
    assert 400 <= log.rate() <= 600, "500 bytes a second, not all of them in one second of tomorrow"


def test_one_clock_that_is_slow_never_moves_time_back_beside_a_sound_one():
    log = Clocked()
    now_ms = 50 * DAY_MS
    times = []
    for second in range(20):
        times.append(log.append(now_ms + 1000 * second))
        times += [log.append(now_ms - DAY_MS), log.append(now_ms - DAY_MS)]
    assert times == sorted(times) and times[-1] == now_ms + 19_000


def test_a_ledger_whose_only_writer_is_slow_follows_its_clock():
    log = Clocked()
    log.append(50 * DAY_MS)
    assert [log.append(40 * DAY_MS + n) for n in range(4)] == [50 * DAY_MS] * 2 + [40 * DAY_MS + 2, 40 * DAY_MS + 3]


def test_a_generation_that_began_tomorrow_is_dated_back_with_the_clock():
    log = Clocked()
    log.append(2 * DAY_MS)
    for _ in range(3):
        log.append(DAY_MS)
    assert log.state.generations.began_ms == {0: DAY_MS}
