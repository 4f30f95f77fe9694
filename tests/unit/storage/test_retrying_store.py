from __future__ import annotations

import pickle
from contextlib import suppress

import pytest

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.retrying_store import LOOK_SIZE_BYTES_MIN, RetryingStore
from tests.counting_store import CountingStore
from tests.faulty_store import Fault, FaultRates, FaultyStore
from tests.manual_clock import ManualClock
from tests.memory_store import new_memory_store

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def faulty():
    return FaultyStore(CountingStore(new_memory_store()))


@pytest.fixture
def store(faulty, clock):
    return RetryingStore(faulty, deadline_ms=2000, clock=clock, jitter=lambda: 1.0)


def test_good_weather_costs_one_call_each(faulty, store, clock):
    assert store.create("a", b"x") is CREATED
    assert store.get("a") == b"x"
    assert store.get("b") is None
    assert [info.key for info in store.list_keys("")] == ["a"]
    store.delete("a")
    store.make_folder("f")
    assert set(faulty.store.counts.values()) == {1, 2} and faulty.store.counts["get"] == 2
    assert clock.slept_ms == []


def test_backoff_doubles_up_to_its_cap_and_stops_at_the_deadline(faulty, store, clock):
    faulty.is_down = True
    with pytest.raises(RetriableError):
        store.get("a")
    assert clock.slept_ms == [5, 10, 20, 40, 80, 160, 320, 500, 500]
    assert clock.time_ms <= 2000
    clock.slept_ms.clear()
    with pytest.raises(OutcomeUnknownError):
        store.create("a", b"x")
    assert clock.slept_ms == [5, 10, 20, 40, 80, 160, 320, 500, 500]


def test_jitter_halves_at_most(faulty, clock):
    faulty.is_down = True
    with pytest.raises(RetriableError):
        RetryingStore(faulty, deadline_ms=20, clock=clock, jitter=lambda: 0.0).get("a")
    assert clock.slept_ms == [2.5, 5, 10]


@pytest.mark.parametrize("verb", ["get", "list_keys", "delete", "make_folder"])
def test_reads_and_deletes_are_repeated(faulty, store, verb):
    store.create("a", b"x")
    faulty.fail_next(verb, Fault.FAIL_BEFORE, times=3)
    result = getattr(store, verb)("a")
    assert (verb == "get") == (result == b"x")
    assert len(faulty.injected) == 3


@pytest.mark.parametrize("verb", ["get", "list_keys", "delete", "make_folder"])
def test_the_deadline_of_all_but_creates_begins_with_the_first_failure(faulty, store, clock, verb):
    """A dead pooled connection takes the client's whole time-out, longer than the deadline: the next one is new."""
    call = getattr(faulty.store, verb)

    def slow(*args, **kwargs):
        setattr(faulty.store, verb, call)
        clock.time_ms += 10_000
        raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer.")

    setattr(faulty.store, verb, slow)
    getattr(store, verb)("a")
    assert faulty.store.counts[verb] == 1


def test_the_deadline_of_a_create_begins_with_the_call(faulty, store, clock):
    def slow(*args, **kwargs):
        clock.time_ms += 10_000
        raise OutcomeUnknownError(ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "no answer.")

    faulty.store.create = slow
    with pytest.raises(OutcomeUnknownError):
        store.create("a", b"x")
    assert clock.slept_ms == []


def test_a_stale_or_refusing_root_is_not_waited_for(faulty, store, clock):
    for code in (ErrorCode.REPLOG_ROOT_STALE, ErrorCode.REPLOG_STORE_REFUSED):

        def fail(key, code=code, **kwargs):
            raise RetriableError(code, "gone.")

        faulty.store.get = fail
        with pytest.raises(RetriableError):
            store.get("a")
    assert clock.slept_ms == []


def test_refused_create_is_not_repeated(faulty, store, clock):
    faulty.fail_next("create", Fault.REFUSE)
    with pytest.raises(ReplogError) as raised:
        store.create("a", b"x")
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
    assert clock.slept_ms == []


def test_refused_after_unknown_is_unknown(faulty, store):
    faulty.fail_next("create", Fault.LOSE_ANSWER)
    faulty.fail_next("create", Fault.REFUSE)
    with pytest.raises(OutcomeUnknownError):
        store.create("a", b"x")


def test_create_before_the_effect_is_repeated(faulty, store):
    faulty.fail_next("create", Fault.FAIL_BEFORE, times=4)
    assert store.create("a", b"x") is CREATED


def test_a_large_body_is_looked_for_before_it_is_sent_again(faulty, store):
    """A server may cut the connection in the middle of a body whose name is taken: no repeated create is ever told."""
    mine, other = (bytes([number]) * LOOK_SIZE_BYTES_MIN for number in (1, 2))
    faulty.fail_next("create", Fault.LOSE_ANSWER)
    assert store.create("a", mine) is CREATED
    assert (faulty.store.counts["create"], faulty.store.counts["get"]) == (1, 1)
    faulty.fail_next("create", Fault.FAIL_BEFORE, times=9)
    assert store.create("a", other) is EXISTS
    assert faulty.store.counts["create"] == 1
    faulty.clear()
    faulty.fail_next("create", Fault.FAIL_BEFORE)
    assert store.create("b", mine) is CREATED


def test_others_bytes_are_exists_own_bytes_are_created(faulty, store):
    faulty.fail_next("create", Fault.LOSE_ANSWER)
    assert store.create("a", [b"12", b"34"]) is CREATED
    for other in (b"123", b"12345", b"1243", b""):
        assert store.create("a", other) is EXISTS
    assert store.create("a", b"1234") is CREATED


def test_exists_then_absent_is_asked_again(faulty, store, clock):
    memory = faulty.store.store
    real = memory.create
    answers = [EXISTS, EXISTS]  # a 409 that a client misread, a name deleted in between
    memory.create = lambda *args, **kwargs: answers.pop() if answers else real(*args, **kwargs)
    assert store.create("a", b"x") is CREATED
    assert len(clock.slept_ms) == 2
    answers.extend([EXISTS] * 1000)
    with pytest.raises(OutcomeUnknownError):
        store.create("b", b"x")


def test_exists_but_unreadable_is_unknown_not_exists(faulty, store):
    store.create("a", b"x")
    faulty.fail_next("get", Fault.FAIL_BEFORE, times=1000)
    with pytest.raises(OutcomeUnknownError):
        store.create("a", b"y")


def test_listing_that_fails_on_the_way_starts_again(store, faulty):
    for key in "abc":
        store.create(key, b"x")
    real = faulty.store.list_keys
    broken = [True]

    def list_keys(prefix, *, after):
        for info in real(prefix, after=after):
            if info.key == "b" and broken:
                broken.clear()
                raise RetriableError(ErrorCode.KAFKA_STORAGE_ERROR, "cut.")
            yield info

    faulty.store.list_keys = list_keys
    assert [info.key for info in store.list_keys("")] == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(25))
def test_under_any_faults_an_answer_is_true(seed, clock):
    rates = FaultRates(fail_before=0.2, lose_answer=0.2, refuse=0.05, stall=0.1)
    memory = new_memory_store()
    faulty = FaultyStore(memory, seed=seed, rates=rates, clock=clock)
    writers = [RetryingStore(faulty, deadline_ms=300, clock=clock) for _ in range(2)]
    for number in range(40):
        key = f"k/{number}"
        told = {}
        for writer_number, writer in enumerate(writers):
            body = f"{writer_number} writes {number}".encode()
            try:
                told[body] = writer.create(key, body)
            except OutcomeUnknownError:
                told[body] = None
            except ReplogError:
                told[body] = "refused"
        stored = memory.get(key)
        for body, answer in told.items():
            assert answer is not CREATED or stored == body
            assert answer is not EXISTS or stored not in (None, body)
            assert answer != "refused" or stored != body


def test_a_pickled_copy_of_a_faulty_store_goes_on_with_its_faults():
    store = FaultyStore(new_memory_store(), rates=FaultRates(lose_answer=0.5), seed=3)
    store.fail_next("create", Fault.REFUSE, key_part="b")
    copy = pickle.loads(pickle.dumps(store))
    for faulty_store in (store, copy):
        with pytest.raises(ReplogError, match="REPLOG_STORE_REFUSED"):
            faulty_store.create("b", b"x")
        for number in range(20):
            with suppress(ReplogError):
                faulty_store.get(f"{number}")
    assert copy.injected == store.injected and len(copy.injected) > 5


def test_the_same_seed_gives_the_same_faults():
    def run():
        faulty = FaultyStore(new_memory_store(), seed=7, rates=FaultRates(fail_before=0.3, corrupt=0.3))
        answers = []
        for number in range(50):
            try:
                faulty.create(f"{number}", b"body")
                answers.append(faulty.get(f"{number}"))
            except ReplogError as error:
                answers.append(error.code)
        return answers, [fault for _, _, fault in faulty.injected]

    first = run()
    assert first == run()
    assert {Fault.FAIL_BEFORE, Fault.CORRUPT} == set(first[1])
    assert any(isinstance(answer, bytes) and answer != b"body" for answer in first[0])
