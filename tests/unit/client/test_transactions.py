"""Transactions: one entry of one ledger, or nothing; crashes, lost answers, repetitions and newer owners."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from spark_replog.admin.controller import Controller
from spark_replog.client.committer import Answer, Appender
from spark_replog.client.transactions import claim_producer
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, FencedError, InvalidConfigError, OutcomeUnknownError, ReplogError
from tests.faulty_store import Fault
from tests.unit.client.producer_setup import transactions_of

TILL = {
    "transactional.id": "till",
    "delivery.timeout.ms": 60_000,
    "request.timeout.ms": 30_000,
    "replica.lag.time.max.ms": 300,
}
# Longer than a busy machine stands still: what has to succeed has no more time than what has to fail.
IMPATIENT = TILL | {"delivery.timeout.ms": 3_000, "request.timeout.ms": 2_000, "replica.lag.time.max.ms": 100}


def entries(shop, topic="orders"):
    handle = shop.cluster.lookup(topic)
    ledger = shop.cluster.topic_ledger(handle.ledger_id)
    ledger.refresh()
    return ledger.state.applied_index


@pytest.mark.case("kafka-93")
def test_a_transaction_is_one_entry_over_partitions_and_topics_of_a_ledger(shop):
    shop.topic("orders", 2, ledger_name="shop")
    shop.topic("stock", 1, ledger_name="shop")
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    first = producer.send("orders", b"a", partition=0)
    entries_before = entries(shop)
    handles = [first, producer.send("orders", b"b", partition=1), producer.send("stock", b"c")]
    producer.flush()
    table = producer.send_arrow("stock", pa.table({"value": pa.array([b"d", b"e"], pa.binary())}))
    producer.flush()
    assert (shop.values(), shop.values("stock")) == ([], [])
    assert not any(handle.done() for handle in [*handles, table])
    producer.commit_transaction()
    assert entries(shop) == entries_before + 1
    assert [handle.result(0).offset for handle in handles] == [0, 0, 0]
    assert table.result(0)[0].offset == 1
    assert (shop.values(), shop.values("orders", 1), shop.values("stock")) == ([b"a"], [b"b"], [b"c", b"d", b"e"])


def test_transactions_follow_each_other(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    for number in range(8):  # more than the window of five
        with producer.transaction():
            producer.send("orders", b"%d" % number)
    assert shop.values() == [b"%d" % number for number in range(8)]


def test_a_transaction_has_more_objects_of_a_partition_than_the_log_knows_again(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    with producer.transaction():
        handles = []
        for number in range(12):
            if number == 7:  # a put that is repeated waits for none of those before it
                shop.brokers.faulty[0].fail_next("create", Fault.REFUSE, key_part="/data/")
            handles.append(producer.send("orders", b"%d" % number))
            producer.flush()
    assert [handle.result(0).offset for handle in handles] == list(range(12))
    assert shop.values() == [b"%d" % number for number in range(12)]


@pytest.mark.case("producer-commit-waits-flight-refused-fails")
def test_nothing_of_an_aborted_one_is_ever_visible(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    with producer.transaction():
        producer.send("orders", b"before")
    producer.begin_transaction()
    stored = producer.send("orders", b"stored")
    producer.flush()
    waiting = producer.send("orders", b"waiting")
    producer.abort_transaction()
    for handle in (stored, waiting):
        assert handle.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
    with producer.transaction():
        producer.send("orders", b"after")
    assert shop.values() == [b"before", b"after"]


def test_a_block_that_raises_aborts(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    with pytest.raises(KeyError), producer.transaction():
        handle = producer.send("orders", b"v")
        raise KeyError
    assert handle.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
    assert shop.values() == []


def test_close_aborts_what_is_open(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"v")
    producer.close()
    assert handle.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
    assert shop.values() == []


def test_an_empty_transaction_writes_no_entry(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    before = entries(shop)
    with producer.transaction():
        pass
    producer.begin_transaction()
    producer.abort_transaction()
    assert entries(shop) == before


def test_a_record_of_an_open_transaction_is_not_waited_for_with_a_flush(shop):
    shop.topic("orders")
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"a")
    producer.flush()
    with pytest.raises(TimeoutError) as unknown:
        handle.result(0.01)
    assert "commit_transaction()" in str(unknown.value) and "flush" not in str(unknown.value)
    producer.commit_transaction()
    assert handle.result(0).offset == 0


def test_a_second_ledger_is_refused_when_a_record_is_sent_to_it(shop):
    shop.topic("orders")
    shop.topic("stock")
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    producer.send("orders", b"a")
    with pytest.raises(InvalidConfigError, match="--ledger NAME") as refused:
        producer.send("stock", b"b")
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    producer.commit_transaction()
    assert (shop.values(), shop.values("stock")) == ([b"a"], [])


@pytest.mark.case("producer-order-transactional-calls-behind")
def test_calls_that_do_not_fit_the_state_are_refused(shop):
    shop.topic()
    plain, producer = shop.producer(), shop.producer(**TILL)
    calls = [
        plain.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("orders", b"v"),
        lambda: producer.send_arrow("orders", pa.table({"value": pa.array([b"v"], pa.binary())})),
    ]
    for call in calls:
        with pytest.raises(InvalidConfigError) as refused:
            call()
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    producer.begin_transaction()
    with pytest.raises(InvalidConfigError, match="INVALID_TXN_STATE"):
        producer.begin_transaction()
    assert shop.values() == []


def test_a_result_that_waits_for_the_commit_does_not_hang(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"v")
    with pytest.raises(InvalidConfigError, match="commit_transaction"):
        handle.result()
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    producer.commit_transaction()
    assert handle.result().offset == 0


@pytest.mark.case("producer-order-transactional-calls-behind")
def test_one_failed_send_makes_the_commit_impossible(shop):
    shop.topic()
    producer = shop.producer(**TILL, **{"max.request.size": 1_000})
    producer.begin_transaction()
    producer.send("orders", b"v")
    assert producer.send("orders", b"x" * 2_000).exception(0).code is ErrorCode.MESSAGE_TOO_LARGE
    for call in (lambda: producer.send("orders", b"w"), producer.commit_transaction):
        with pytest.raises(InvalidConfigError, match="abort_transaction") as refused:
            call()
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    producer.abort_transaction()
    assert shop.values() == []


def test_a_transaction_that_is_open_too_long_is_not_committed(shop):
    shop.topic()
    producer = shop.producer(**TILL, **{"transaction.timeout.ms": 1})
    producer.begin_transaction()
    producer.send("orders", b"v")
    producer.flush()
    SYSTEM_CLOCK.sleep_ms(5)  # the flush alone may take less than the timeout
    with pytest.raises(InvalidConfigError, match=r"transaction\.timeout\.ms"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert shop.values() == []


@pytest.mark.case("producer-order-transactional-calls-behind")
def test_a_newer_program_fences_the_older_one(shop):
    shop.topic()
    old, new = shop.producer(**TILL), shop.producer(shop.open(), **TILL)
    with old.transaction():
        old.send("orders", b"old")
    old.begin_transaction()
    late = old.send("orders", b"late")
    new.begin_transaction()
    new.send("orders", b"new")  # the claim is made here, before anything is committed
    with pytest.raises(FencedError) as fenced:
        old.commit_transaction()
    assert fenced.value.code is ErrorCode.PRODUCER_FENCED
    new.commit_transaction()
    for call in (old.begin_transaction, old.commit_transaction, lambda: old.send("orders", b"again")):
        with pytest.raises(FencedError):
            call()
    assert late.exception(5).code is ErrorCode.PRODUCER_FENCED
    old.close()
    assert shop.values() == [b"old", b"new"]


def test_a_fenced_program_does_not_take_the_id_back_by_aborting(shop):
    shop.topic()
    old, new = shop.producer(**TILL), shop.producer(shop.open(), **TILL)
    with old.transaction():
        old.send("orders", b"old")
    old.begin_transaction()
    old.send("orders", b"late")
    with new.transaction():
        new.send("orders", b"new")
    old.abort_transaction()
    old.begin_transaction()
    with pytest.raises(FencedError):
        old.send("orders", b"again")
    with new.transaction():
        new.send("orders", b"newer")
    assert shop.values() == [b"old", b"new", b"newer"]


def test_a_crash_before_the_commit_leaves_nothing_and_the_next_start_goes_on(shop):
    shop.topic()
    crashed = shop.producer(**TILL)
    crashed.begin_transaction()
    crashed.send("orders", b"lost")
    crashed.flush()  # its object is stored; then the process is gone
    restarted = shop.producer(shop.open(), **TILL)
    with restarted.transaction():
        restarted.send("orders", b"kept")
    assert shop.values() == [b"kept"]


def test_a_crash_after_the_commit_keeps_it_and_the_next_start_goes_on(shop):
    shop.topic()
    crashed = shop.producer(**TILL)
    with crashed.transaction():
        crashed.send("orders", b"committed")
    crashed.begin_transaction()
    crashed.send("orders", b"lost")
    crashed.flush()  # then the process is gone
    restarted = shop.producer(shop.open(), **TILL)
    with restarted.transaction():
        restarted.send("orders", b"next")
    assert shop.values() == [b"committed", b"next"]


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_ANSWER])
@pytest.mark.parametrize("where", ["/data/", "/journal/"])
def test_a_lost_call_commits_once(shop, fault, where):
    shop.topic()
    producer = shop.producer(**TILL)
    with producer.transaction():
        producer.send("orders", b"0")
    producer.begin_transaction()
    handle = producer.send("orders", b"1")
    shop.brokers.faulty[0].fail_next("create", fault, key_part=where)
    producer.commit_transaction()
    assert handle.result(0).offset == 1
    with producer.transaction():
        producer.send("orders", b"2")
    assert shop.values() == [b"0", b"1", b"2"]
    assert shop.brokers.faulty[0].injected


def in_doubt(shop):
    """A producer whose commit had no answer, and whose store works again."""
    shop.topic()
    producer = shop.producer(**IMPATIENT)
    with producer.transaction():
        producer.send("orders", b"before")
    producer.begin_transaction()
    handle = producer.send("orders", b"doubt")
    producer.flush()
    faulty = shop.brokers.faulty[0]
    faulty.fail_next("create", Fault.FAIL_BEFORE, key_part="/journal/", times=100_000)
    with pytest.raises(ReplogError) as unknown:
        producer.commit_transaction()
    faulty.clear()
    return producer, handle, unknown.value


def test_a_commit_without_answer_can_be_repeated(shop):
    producer, handle, error = in_doubt(shop)
    if isinstance(error, OutcomeUnknownError):
        with pytest.raises(InvalidConfigError, match=r"abort_transaction\(\)"):
            producer.begin_transaction()
    producer.commit_transaction()
    assert handle.result(5).offset == 1
    assert shop.values() == [b"before", b"doubt"]
    with producer.transaction():
        producer.send("orders", b"after")
    assert shop.values() == [b"before", b"doubt", b"after"]


def test_a_commit_without_answer_can_be_aborted_and_is_then_either_in_or_never(shop):
    producer, handle, _ = in_doubt(shop)
    try:
        producer.abort_transaction()
    except InvalidConfigError as error:
        assert "was committed" in str(error)
        expected = [b"before", b"doubt"]
    else:
        assert handle.exception(5).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
        expected = [b"before"]
    with producer.transaction():
        producer.send("orders", b"after")
    assert shop.values() == [*expected, b"after"]


def test_an_abort_finds_a_decided_commit_though_its_topic_was_deleted_since(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"in")
    real, unknown = Appender.append, OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer.")

    def lose_answer(*arguments, **keywords):
        assert real(*arguments, **keywords).error is None
        return Answer({}, unknown)

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "append", lose_answer)
        with pytest.raises(OutcomeUnknownError):
            producer.commit_transaction()
    Controller(shop.open()).delete_topic("orders")
    with pytest.raises(InvalidConfigError, match="was committed"):
        producer.abort_transaction()
    assert handle.exception(5) is None


def test_what_an_abort_found_undecided_can_never_be_decided(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    with producer.transaction():
        producer.send("orders", b"before")
    producer.begin_transaction()
    handle = producer.send("orders", b"lost")
    unknown = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer.")
    with monkeypatch.context() as patch:
        patch.setattr(Appender, "append", lambda *_, **__: Answer({}, unknown))
        with pytest.raises(OutcomeUnknownError):
            producer.commit_transaction()
    late = transactions_of(producer).current.append
    producer.abort_transaction()
    assert handle.exception(5).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
    again = producer._parts.appender.append(shop.cluster.lookup("orders").ledger_id, late, 0, is_atomic=True)
    assert again.error.code is ErrorCode.PRODUCER_FENCED
    with producer.transaction():
        producer.send("orders", b"after")
    assert shop.values() == [b"before", b"after"]


def test_two_programs_that_start_together_take_turns(shop):
    shop.topic()
    handle = shop.cluster.lookup("orders")
    clusters = [shop.open() for _ in range(4)]
    epochs, fenced = [], []

    def claim(cluster, name):
        cluster.lookup("orders")
        try:
            ledger = cluster.topic_ledger(handle.ledger_id)
            epochs.append(claim_producer(ledger, "till", name, timeout_ms=10_000))
        except FencedError:
            fenced.append(name)

    threads = [threading.Thread(target=claim, args=(c, f"i{n}")) for n, c in enumerate(clusters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(epochs) + len(fenced) == 4
    assert sorted(set(epochs)) == sorted(epochs) and max(epochs) == len(epochs) - 1


def test_a_repeated_claim_of_one_instance_is_the_same_claim(shop):
    shop.topic()
    ledger = shop.cluster.topic_ledger(shop.cluster.lookup("orders").ledger_id)
    assert [claim_producer(ledger, "till", name, timeout_ms=5_000) for name in ("a", "a", "b", "b")] == [0, 0, 1, 1]
    with pytest.raises(FencedError):
        claim_producer(ledger, "till", "a2", previous_instance_id="a", timeout_ms=5_000)
