"""How a transaction ends when something else goes on: other threads, a close, a newer program, no majority."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_replog.client import transactions
from spark_replog.client.committer import Answer, Appender
from spark_replog.errors import (
    ErrorCode,
    FencedError,
    InvalidConfigError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
)
from tests.faulty_store import Fault
from tests.unit.client.producer_setup import held_puts, thread_of, transactions_of
from tests.unit.client.test_transactions import TILL, entries
from tests.waiting import wait_until

pytestmark = pytest.mark.case("producer-send-close-newer-program-majority")


def in_time(call):
    """Return what a call that must not hang raised or gave."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).exception(20)
    finally:
        pool.shutdown(wait=False)


def in_doubt(shop, monkeypatch):
    """Return a producer whose commit had no answer and did not land, and the handle of its record."""
    shop.topic()
    producer = shop.producer(**TILL)
    with producer.transaction():
        producer.send("orders", b"before")
    producer.begin_transaction()
    handle = producer.send("orders", b"doubt")
    unknown = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer.")
    with monkeypatch.context() as patch:
        patch.setattr(Appender, "append", lambda *_, **__: Answer({}, unknown))
        with pytest.raises(OutcomeUnknownError):
            producer.commit_transaction()
    return producer, handle


def wait_until_closing(producer) -> None:
    wait_until(lambda: producer._refusal is not None)


def held_commit(producer, monkeypatch):
    """Return events: the commit reached its append; it may go on."""
    entered, go = threading.Event(), threading.Event()
    real = Appender.append

    def append(*arguments, **keywords):
        entered.set()
        assert go.wait(20)
        return real(*arguments, **keywords)

    monkeypatch.setattr(Appender, "append", append)
    return entered, go


@pytest.mark.parametrize("end", ["abort_transaction", "close"])
@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_callback_of_an_aborted_record_does_not_wait_for_the_others(shop, end, call):
    """Records that were not sent yet are told on the thread that aborts them."""
    shop.topic(partitions=2)
    producer = shop.producer(**(TILL | {"linger__ms": 20_000}))
    producer.begin_transaction()
    handles = [producer.send("orders", b"v", partition=number) for number in range(2)]
    raised = []

    def callback(_):
        try:
            getattr(producer, call)()
        except InvalidConfigError as error:
            raised.append(error.code)

    for handle in handles:
        handle.add_done_callback(callback)
    assert in_time(getattr(producer, end)) is None
    assert raised == ([ErrorCode.INVALID_REQUEST] * 2 if call == "flush" else [])
    assert all(handle.exception(0) is not None for handle in handles)
    assert in_time(producer.close) is None


def test_a_commit_that_no_thread_can_be_started_for_may_be_repeated(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    first = producer.send("orders", b"1")

    def without_a_thread(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "IO_POOL", SimpleNamespace(post_to=without_a_thread))
        with pytest.raises(RuntimeError):
            producer.commit_transaction()
    second = producer.send("orders", b"2")
    producer.commit_transaction()
    assert [first.result(0).offset, second.result(0).offset] == [0, 1]


def test_nothing_is_sent_begun_or_ended_while_another_thread_commits(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"in")
    entered, go = held_commit(producer, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        commit = pool.submit(producer.commit_transaction)
        assert entered.wait(20)
        table = pa.table({"value": pa.array([b"late"], pa.binary())})
        for call in (
            lambda: producer.send("orders", b"late"),
            lambda: producer.send_arrow("orders", table),
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
        ):
            with pytest.raises(InvalidConfigError) as refused:
                call()
            assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        go.set()
        assert commit.exception(20) is None
    assert handle.result(0).offset == 0
    with producer.transaction():
        producer.send("orders", b"next")
    assert shop.values() == [b"in", b"next"]


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_an_end_waits_for_the_sends_of_other_threads(shop, monkeypatch, end):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    producer.send("orders", b"first")
    entered, go = threading.Event(), threading.Event()
    real = producer._append

    def append(*arguments):
        entered.set()
        assert go.wait(20)
        return real(*arguments)

    producer._append = append
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(producer.send, "orders", b"second")
        assert entered.wait(20)
        ended = pool.submit(getattr(producer, end))
        wait_until(lambda: transactions_of(producer).state is not transactions.TransactionState.OPEN)
        assert not ended.done()
        go.set()
        assert ended.exception(20) is None
    handle = sent.result(0)
    if end == "commit_transaction":
        assert handle.result(0).offset == 1
        assert shop.values() == [b"first", b"second"]
    else:
        assert handle.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
        assert shop.values() == []


def test_the_first_sends_of_several_threads_claim_the_ledger_once(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    both = threading.Barrier(2)
    claims = []
    real = transactions.claim_producer

    def claim(*arguments, **keywords):
        claims.append(keywords)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for a second claim, which would come now
        return real(*arguments, **keywords)

    monkeypatch.setattr(transactions, "claim_producer", claim)
    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(lambda number: producer.send("orders", b"%d" % number), range(4)))
    producer.commit_transaction()
    assert len(claims) == 1
    assert sorted(handle.result(0).offset for handle in handles) == [0, 1, 2, 3]


def test_a_table_of_which_a_part_was_refused_can_be_aborted_only(shop):
    shop.topic()
    producer = shop.producer(**TILL, **{"max.request.size": 1_000, "batch.size": 500})
    parts = [pa.record_batch({"value": pa.array([value], pa.binary())}) for value in (b"small", b"x" * 2_000)]
    producer.begin_transaction()
    with pytest.raises(InvalidConfigError) as refused:
        producer.send_arrow("orders", pa.Table.from_batches(parts))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(InvalidConfigError, match="abort_transaction"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        with pytest.raises(InvalidConfigError):
            producer.send_arrow("orders", pa.table({"no value": [1]}))  # nothing of it was appended
        producer.send("orders", b"after")
    assert shop.values() == [b"after"]


def test_a_table_in_the_middle_of_which_a_users_class_raises_can_be_aborted_only(shop):
    shop.topic()

    class Raising:
        calls = 0

        def partition_array(self, keys, count):
            self.calls += 1
            return [0] if self.calls == 1 else {}["mine"]

    producer = shop.producer(**TILL, **{"partitioner.class": Raising})
    parts = [pa.record_batch({"value": pa.array([value], pa.binary())}) for value in (b"1", b"2")]
    producer.begin_transaction()
    with pytest.raises(KeyError, match="mine"):
        producer.send_arrow("orders", pa.Table.from_batches(parts))
    with pytest.raises(InvalidConfigError, match="abort_transaction"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert shop.values() == []


def test_an_abort_does_not_wait_for_batches_that_wait_to_be_put_again(shop):
    shop.topic()
    producer = shop.producer(**TILL | {"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000})
    producer.begin_transaction()
    producer.partitions_for("orders")
    shop.brokers.faulty[0].fail_next("create", Fault.REFUSE, key_part="/data/", times=1_000)
    handle = producer.send("orders", b"v")
    wait_until(lambda: shop.brokers.faulty[0].injected and producer._parts.accumulator.waiting_count)
    assert not handle.done()
    assert in_time(producer.abort_transaction) is None
    assert handle.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED  # and no timeout


def test_a_close_does_not_wait_for_a_commit_without_answer(shop, monkeypatch):
    producer, handle = in_doubt(shop, monkeypatch)
    assert in_time(producer.close) is None
    assert isinstance(handle.exception(0), OutcomeUnknownError)
    assert shop.values() == [b"before"]


def test_a_close_waits_for_the_commit_of_another_thread(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"v")
    entered, go = held_commit(producer, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        commit = pool.submit(producer.commit_transaction)
        assert entered.wait(20)
        close = pool.submit(producer.close)
        wait_until_closing(producer)
        go.set()
        assert (commit.exception(20), close.exception(20)) == (None, None)
    assert handle.result(0).offset == 0
    assert shop.values() == [b"v"]


def test_a_close_ends_though_the_commit_of_another_thread_is_refused(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"v")
    error = ReplogError(ErrorCode.INVALID_RECORD, "no.")
    entered, go = threading.Event(), threading.Event()

    def append(*_, **__):
        entered.set()
        assert go.wait(20)
        return Answer({}, error)

    monkeypatch.setattr(Appender, "append", append)
    with ThreadPoolExecutor(2) as pool:
        commit = pool.submit(producer.commit_transaction)
        assert entered.wait(20)
        close = pool.submit(producer.close)
        wait_until_closing(producer)
        go.set()
        assert commit.exception(20) is error
        assert close.exception(20) is None
    assert handle.exception(0) is error


def test_a_close_without_time_does_not_wait_for_the_puts_of_an_open_transaction(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    parked = producer.send("orders", b"parked")
    producer.flush()
    put_count = shop.brokers.put_count()
    with held_puts(shop) as begun:
        sent = producer.send("orders", b"on its way")
        assert begun.wait(60)
        producer.close(0)
        assert sent.exception(0).code is ErrorCode.REPLOG_PRODUCER_CLOSED  # its put was not waited for
        assert parked.done() and parked.exception(0) is not None
    assert shop.values() == [] and shop.brokers.put_count() >= put_count


def test_a_close_drops_what_is_stored_behind_it(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    with ThreadPoolExecutor(1) as pool, held_puts(shop) as begun:
        sent = producer.send("orders", b"on its way")
        assert begun.wait(60)
        close = pool.submit(producer.close)
        wait_until_closing(producer)
    assert close.exception(20) is None
    assert sent.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
    assert shop.values() == []


def test_a_close_ends_though_a_commit_of_another_thread_is_refused_before_its_append(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"v")
    entered, go = threading.Event(), threading.Event()
    refusal = InvalidConfigError(ErrorCode.INVALID_TXN_STATE, "no.")

    def check_commit():
        if handle.batch_result.wait_until_settled(0):  # the second check, behind the flush
            entered.set()
            assert go.wait(20)
            raise refusal

    monkeypatch.setattr(transactions_of(producer), "check_commit", check_commit)
    with ThreadPoolExecutor(2) as pool:
        commit = pool.submit(producer.commit_transaction)
        assert entered.wait(20)
        close = pool.submit(producer.close)
        wait_until_closing(producer)
        go.set()
        assert commit.exception(20) is refusal
        assert close.exception(20) is None
    assert handle.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED


def test_a_close_in_a_callback_drops_the_open_transaction(shop):
    shop.topic()
    producer = shop.producer(**TILL)
    refused = []

    def callback(_):
        producer.begin_transaction()
        producer.send("orders", b"dropped")
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(InvalidConfigError, match="callback"):
                call()
            refused.append(call)
        producer.close()

    with producer.transaction():
        producer.send("orders", b"kept").add_done_callback(callback)
    assert thread_of(producer)._ended.wait(20)
    assert len(refused) == 2
    assert shop.values() == [b"kept"]


def test_an_abort_of_a_commit_without_answer_is_told_when_a_newer_program_came(shop, monkeypatch):
    producer, handle = in_doubt(shop, monkeypatch)
    newer = shop.producer(shop.open(), **TILL)
    with newer.transaction():
        newer.send("orders", b"newer")
    assert isinstance(in_time(producer.abort_transaction), FencedError)
    assert handle.exception(0).code is ErrorCode.PRODUCER_FENCED
    with pytest.raises(FencedError):
        producer.abort_transaction()
    assert shop.values() == [b"before", b"newer"]


@pytest.mark.parametrize("lands", [True, False])
def test_an_abort_without_answer_leaves_all_in_doubt_and_can_be_repeated(shop, monkeypatch, lands):
    """A claim that landed unheard would fence itself, were it repeated under another name."""
    producer, handle = in_doubt(shop, monkeypatch)
    unknown = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer.")
    real = transactions.claim_producer

    def claim(*arguments, **keywords):
        if lands:
            real(*arguments, **keywords)
        raise unknown

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "claim_producer", claim)
        assert in_time(producer.abort_transaction) is unknown
    assert not handle.done()
    with pytest.raises(InvalidConfigError, match=r"abort_transaction\(\)"):
        producer.begin_transaction()
    assert in_time(producer.abort_transaction) is None
    assert handle.exception(0).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
    with producer.transaction():
        producer.send("orders", b"after")
    assert shop.values() == [b"before", b"after"]


def test_an_abort_of_what_is_in_the_log_on_too_few_replicas_says_that_it_was_committed(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handle = producer.send("orders", b"decided")
    real = Appender.append
    late = RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "the rows are in the log. Repeat the batch.")

    def decided_and_not_yet_replicated(*arguments, **keywords):
        assert real(*arguments, **keywords).error is None
        return Answer({}, late)

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "append", decided_and_not_yet_replicated)
        with pytest.raises(RetriableError, match="AFTER_APPEND"):
            producer.commit_transaction()
    with pytest.raises(InvalidConfigError, match="was committed"):
        producer.abort_transaction()
    assert handle.exception(0) is None
    producer.begin_transaction()
    producer.abort_transaction()


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_transaction_that_is_in_the_log_is_not_called_aborted_where_a_newer_program_wrote_to_a_part(
    shop, monkeypatch, end
):
    shop.topic("orders", 2)
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    handles = [producer.send("orders", b"%d" % number, partition=number) for number in range(2)]
    real = Appender.append
    unknown = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer.")

    def decided_without_answer(*arguments, **keywords):
        assert real(*arguments, **keywords).error is None
        return Answer({}, unknown)

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "append", decided_without_answer)
        with pytest.raises(OutcomeUnknownError):
            producer.commit_transaction()
    newer = shop.producer(shop.open(), **TILL)
    with newer.transaction():
        newer.send("orders", b"newer", partition=0)
    entries(shop)  # this process learns of it
    for call in (end, "abort_transaction"):  # the program that gives up aborts
        assert isinstance(in_time(getattr(producer, call)), FencedError)
    assert [handle.exception(0).code for handle in handles] == [ErrorCode.PRODUCER_FENCED] * 2
    assert (shop.values(), shop.values("orders", 1)) == ([b"0", b"newer"], [b"1"])


def interrupted_after(call):
    """Return the function with Ctrl-C right after it has returned."""

    def interrupted(*args, **named):
        call(*args, **named)
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize("name", ["begin_send", "end_send"])
def test_a_send_that_ctrl_c_interrupts_on_its_way_in_or_out_holds_up_no_abort(shop, monkeypatch, name):
    shop.topic()
    producer = shop.producer(**TILL)
    owner = transactions_of(producer)

    def run():
        with producer.transaction():
            producer.send("orders", b"before")
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, interrupted_after(getattr(owner, name)))
                producer.send("orders", b"a")

    assert isinstance(in_time(run), KeyboardInterrupt)
    with producer.transaction():
        producer.send("orders", b"b")
    assert shop.values() == [b"b"]


def test_a_send_whose_begin_was_interrupted_before_it_counted_ends_without_harm(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(transactions_of(producer), "begin_send", interrupt)
        producer.send("orders", b"a")
    producer.send("orders", b"b")
    assert in_time(producer.commit_transaction) is None
    assert shop.values() == [b"b"]


def test_ctrl_c_in_an_abort_leaves_no_record_without_an_outcome(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    stored = producer.send("orders", b"a")
    producer.flush()

    def interrupt(*_args):
        patch.undo()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "results_of", interrupt)
        assert isinstance(in_time(producer.abort_transaction), KeyboardInterrupt)
    assert stored.exception(20).code is ErrorCode.REPLOG_TRANSACTION_ABORTED
    with producer.transaction():
        producer.send("orders", b"b")
    assert shop.values() == [b"b"]


def test_ctrl_c_while_other_threads_send_leaves_the_transaction_open(shop, monkeypatch):
    shop.topic()
    producer = shop.producer(**TILL)
    producer.begin_transaction()
    producer.send("orders", b"a")

    def interrupt(_condition, _predicate):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Condition, "wait_for", interrupt)
        producer.commit_transaction()
    producer.commit_transaction()
    assert shop.values() == [b"a"]


def test_records_that_were_never_sent_are_aborted_on_a_thread_that_ctrl_c_does_not_reach(shop):
    shop.topic()
    producer = shop.producer(**TILL, linger__ms=20_000)
    producer.begin_transaction()
    threads = []
    producer.send("orders", b"a").add_done_callback(lambda _: threads.append(threading.current_thread()))
    producer.abort_transaction()
    assert len(threads) == 1 and threads[0] is not threading.current_thread()
