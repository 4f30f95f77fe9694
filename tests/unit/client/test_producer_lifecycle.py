"""From first metadata to close: who waits for whom, and what ends a wait (Kafka's ``KafkaProducerTest``)."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_replog.admin.controller import Controller
from spark_replog.client import committer, producer_metadata
from spark_replog.client.committer import Appender
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError
from spark_replog.write import transport
from tests.faulty_store import Fault
from tests.unit.client.producer_setup import held_puts, metadata_of, sender_of, thread_of
from tests.waiting import wait_until

SECONDS = 10


def in_thread(call):
    """Call in a thread; return it and where its result or error will be."""
    outcomes = []

    def work():
        try:
            outcomes.append(call())
        except (ReplogError, TimeoutError) as error:
            outcomes.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, outcomes


@pytest.mark.case("producer-close-ends-wait-metadata-forced")
def test_a_close_ends_the_wait_for_a_topic_in_another_thread(shop, monkeypatch):
    producer = shop.producer(max__block__ms=600_000)
    has_looked = threading.Event()
    look_up = metadata_of(producer)._look_up
    monkeypatch.setattr(metadata_of(producer), "_look_up", lambda *given: (has_looked.set(), look_up(*given))[1])
    thread, outcomes = in_thread(lambda: producer.send("nothing", b"v"))
    assert has_looked.wait(SECONDS)
    producer.close()
    thread.join(SECONDS)
    assert outcomes[0].code is ErrorCode.REPLOG_PRODUCER_CLOSED


def test_a_topic_that_the_storage_refuses_is_not_waited_for(shop, short_waits):
    shop.topic()
    cluster = shop.open()  # knows nothing of the topic yet
    producer = shop.producer(cluster, max__block__ms=10_000)
    roots, ledger_id = cluster.brokers.faulty, cluster.lookup("orders").ledger_id
    for verb in ("get", "list_keys"):
        roots[0].fail_next(verb, Fault.REFUSE, key_part=ledger_id, times=1_000)
    short_waits()
    assert producer.send("orders", b"v").exception(0).code is ErrorCode.REPLOG_STORE_REFUSED
    with pytest.raises(ReplogError, match="REPLOG_STORE_REFUSED"):
        producer.partitions_for("orders")
    roots[0].clear()
    assert producer.send("orders", b"v").result(SECONDS).offset == 0


def test_a_plan_of_an_older_fold_does_not_replace_a_newer_one(shop, monkeypatch):
    """A thread that looks a topic up may be slower than the next one that does."""
    shop.topic()
    producer = shop.producer()
    older = make_write_plan(shop.cluster, ["orders"])
    shop.controller.add_partitions("orders", 2)
    assert producer.partitions_for("orders") == 2
    monkeypatch.setattr(producer_metadata, "make_write_plan", lambda *_: older)
    thread_of(producer).call(metadata_of(producer).refresh)
    assert producer.partitions_for("orders") == 2
    producer.send("orders", b"v", partition=1).result(10)


@pytest.mark.case("producer-close-ends-wait-metadata-forced")
def test_a_forced_close_ends_a_flush_in_another_thread(shop):
    shop.topic()
    producer = shop.producer()
    producer.partitions_for("orders")
    with held_puts(shop):
        handle = producer.send("orders", b"v")
        thread, outcomes = in_thread(producer.flush)
        wait_until(lambda: producer._parts.accumulator._flush_count)
        producer.close(0)
        thread.join(SECONDS)
    assert outcomes == [None]
    assert handle.exception(0).code is ErrorCode.REPLOG_PRODUCER_CLOSED


def test_a_flush_waits_for_what_was_sent_before_it_and_for_no_longer_than_it_may(shop):
    shop.topic()
    producer = shop.producer(linger__ms=60_000)
    producer.partitions_for("orders")
    with held_puts(shop):
        handle = producer.send("orders", b"v")
        with pytest.raises(TimeoutError):
            producer.flush(0.01)
        assert not handle.done()
    producer.flush()
    assert handle.result(0).offset == 0


@pytest.mark.case("producer-send-flush-close-callback")
def test_a_record_can_be_sent_in_a_callback(shop):
    shop.topic()
    producer = shop.producer()
    sent = threading.Event()
    again = []

    def callback(_handle):
        again.append(producer.send("orders", b"again"))
        sent.set()

    producer.send("orders", b"first").add_done_callback(callback)
    assert sent.wait(SECONDS)
    assert again[0].result(SECONDS).offset == 1
    assert shop.values() == [b"first", b"again"]


@pytest.mark.case("producer-send-flush-close-callback")
def test_a_callback_that_raises_harms_nobody(shop, caplog):
    shop.topic()
    producer = shop.producer(linger__ms=60_000)
    heard = []
    first, second = (producer.send("orders", b"v") for _ in range(2))
    first.add_done_callback(lambda _handle: 1 / 0)
    second.add_done_callback(heard.append)
    producer.flush()
    assert heard == [second]  # as in Kafka, callbacks have run when a flush returns
    producer.close()
    assert len(shop.values()) == 2
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("topic", ["", ".", "no topic"])
def test_a_name_that_no_topic_can_have_fails_the_handle(shop, topic):
    error = shop.producer().send(topic, b"v").exception(0)
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.case("producer-metadata-missing-topic-partition")
def test_the_number_of_partitions_is_told_and_waited_for(shop):
    shop.topic(partitions=3)
    producer = shop.producer(max__block__ms=0)
    assert producer.partitions_for("orders") == 3
    with pytest.raises(RetriableError, match=r"max\.block\.ms") as waited:
        producer.partitions_for("nothing")
    assert waited.value.code is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.case("producer-close-ends-wait-metadata-forced")
def test_a_negative_time_to_close_is_refused_and_closes_nothing(shop):
    shop.topic()
    producer = shop.producer()
    with pytest.raises(InvalidConfigError, match="-1") as refused:
        producer.close(-1)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert producer.send("orders", b"v").result(SECONDS).offset == 0


@pytest.mark.case("producer-order-transactional-calls-behind")
def test_no_transaction_goes_on_behind_a_close(shop):
    shop.topic()
    producer = shop.producer(transactional__id="till")
    producer.begin_transaction()
    producer.close()
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("orders", b"v"),
    ):
        with pytest.raises(ReplogError) as refused:
            call()
        assert refused.value.code is ErrorCode.REPLOG_PRODUCER_CLOSED


@pytest.mark.case("producer-commit-waits-flight-refused-fails")
def test_a_commit_is_refused_for_a_record_whose_failure_its_flush_finds(shop):
    shop.topic()
    producer = shop.producer(transactional__id="till", retries=1)
    with producer.transaction():
        producer.send("orders", b"before")
    producer.begin_transaction()
    shop.brokers.faulty[0].fail_next("create", Fault.REFUSE, key_part="/data/", times=10_000)
    lost = producer.send("orders", b"lost")
    with pytest.raises(InvalidConfigError, match="INVALID_TXN_STATE") as refused:
        producer.commit_transaction()
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert lost.exception(0).code is ErrorCode.NOT_ENOUGH_REPLICAS
    shop.brokers.faulty[0].clear()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", b"after")
    assert shop.values() == [b"before", b"after"]


@pytest.mark.case("producer-old-metadata-fetched-anew-behind")
def test_a_failure_that_old_metadata_may_cause_fetches_it_anew(shop, monkeypatch):
    shop.topic()
    producer = shop.producer()
    assert producer.send("orders", b"first").result(10).offset == 0
    calls = []
    refresh = metadata_of(producer).refresh
    monkeypatch.setattr(metadata_of(producer), "refresh", lambda: (calls.append(1), refresh()))
    assert producer.send("orders", b"second").result(10).offset == 1
    assert calls == []
    shop.brokers.faulty[0].fail_next("create", Fault.REFUSE, key_part="/data/")
    assert producer.send("orders", b"third").result(10).offset == 2
    count = len(calls)
    assert count > 0
    for _ in range(5):
        producer.send("orders", b"more").result(10)
    assert len(calls) == count  # once it is new it is new


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("settings", [{}, {"enable__idempotence": False}, {"transactional__id": "t"}])
def test_a_topic_that_another_process_made_again_is_found_after_the_first_refusal(shop, partitions, settings):
    shop.topic("orders", 2)
    producer = shop.producer(**settings)

    def send():
        with producer.transaction() if settings.keys() & {"transactional__id"} else nullcontext():
            handle = producer.send("orders", b"v")
        return handle.result(60)

    assert send().offset == 0
    other = Controller(shop.open())
    other.delete_topic("orders")
    other.create_topic("orders", partitions)
    refusals = []
    for _ in range(1_000):  # the sender's thread looks for the topic a moment after it told the refusal
        try:
            assert send().offset == 0
            break
        except NotFoundError as error:
            refusals.append(error.code)
            SYSTEM_CLOCK.sleep_ms(5)
    assert len(refusals) < 1_000
    assert sum(len(shop.rows("orders", number)) for number in range(partitions)) == 1


def test_an_unexpected_error_of_an_append_is_told_and_the_next_record_goes_on(shop, monkeypatch):
    shop.topic()
    producer = shop.producer()
    producer.send("orders", b"first").result(SECONDS)

    def fail(*_given, **_named):
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "append", fail)
        error = producer.send("orders", b"lost").exception(SECONDS)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a mistake of ours" in str(error)
    assert producer.send("orders", b"next").result(SECONDS).offset == 1
    assert shop.values() == [b"first", b"next"]


def test_a_close_in_time_ends_the_thread_without_an_error(shop, caplog):
    shop.topic()
    producer = shop.producer()
    handle = producer.send("orders", b"v")
    producer.close()
    assert handle.result(0).offset == 0
    assert (thread_of(producer).error, caplog.records) == (None, [])


def test_a_thread_that_ends_unexpectedly_fails_what_waits_and_says_so(shop, monkeypatch, caplog):
    shop.topic()
    producer = shop.producer(linger__ms=60_000)
    handle = producer.send("orders", b"v")

    def fail(_now_ms):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(sender_of(producer), "run_once", fail)
    with pytest.raises(ZeroDivisionError):
        thread_of(producer).call(lambda: 1 / 0)
    error = handle.exception(SECONDS)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a mistake of ours" in str(error)
    assert producer.send("orders", b"behind it").exception(SECONDS) is error
    ran = threading.Event()
    threading.Thread(target=thread_of(producer).call, args=(ran.set,), daemon=True).start()
    assert ran.wait(SECONDS)  # an abort behind it does not hang
    assert "the sender's thread ended" in caplog.text


TABLE = pa.table({"value": pa.array([b"row"], pa.binary())})


def test_a_topic_that_is_idle_is_forgotten_and_looked_up_again(shop):
    shop.topic("orders")
    shop.topic("stock")
    producer = shop.producer(linger__ms=60_000)
    metadata = metadata_of(producer)

    def sweep():
        metadata._swept_ms -= 300_000  # metadata.max.idle.ms
        metadata.refresh()
        return sorted(metadata.topics)

    producer.partitions_for("orders")
    waiting = producer.send("stock", b"v")
    assert sweep() == ["orders", "stock"]
    producer.send_arrow("orders", TABLE.slice(0, 0))
    assert sweep() == ["orders", "stock"]  # one was used since, of the other a record waits
    assert sweep() == ["stock"]
    producer.flush()
    assert sweep() == []
    assert producer.metrics()["metadata-topics"] == 0
    again = producer.send("stock", b"w")
    producer.flush()
    assert (waiting.result(0).offset, again.result(0).offset) == (0, 1)


def test_metadata_that_cannot_be_fetched_anew_serves_on(shop, monkeypatch):
    shop.topic()
    producer = shop.producer()
    entry = metadata_of(producer).wait_for("orders", None, 0)
    with monkeypatch.context() as patch:
        lost = RetriableError(ErrorCode.REPLOG_NO_QUORUM, "gone.")
        patch.setattr(producer_metadata, "make_write_plan", lambda *_: (_ for _ in ()).throw(lost))
        metadata_of(producer).refresh()
    assert metadata_of(producer).topics == {"orders": entry}
    assert producer.send("orders", b"v").result(SECONDS).offset == 0


def test_a_topic_that_is_dropped_while_a_send_looks_it_up_is_found(shop):
    """As by the sender's thread: its topic was deleted, or not used for long."""

    class Dropping(dict):
        def get(self, name, default=None):
            return self.pop(name, default)

    shop.topic()
    metadata = metadata_of(shop.producer())
    entry = metadata.wait_for("orders", None, 0)
    metadata.topics = Dropping(metadata.topics)
    assert metadata.wait_for("orders", None, 0) is entry


def test_tables_reach_partitions_that_were_added(shop):
    shop.topic()
    producer = shop.producer()
    assert producer.send_arrow("orders", TABLE).result(SECONDS)[0].partition == 0
    shop.controller.add_partitions("orders", 2)
    metadata_of(producer).refresh()
    table = TABLE.append_column("partition", pa.array([1], pa.int32()))
    assert producer.send_arrow("orders", table).result(SECONDS)[0].partition == 1
    assert shop.values(partition=1) == [b"row"]


def test_a_tables_callback_comes_once_and_behind_all_of_its_rows(shop):
    shop.topic(partitions=3)
    producer = shop.producer(linger__ms=60_000)
    table = pa.table({"value": pa.array([b"v"] * 3, pa.binary()), "partition": pa.array([0, 1, 2], pa.int32())})
    handle = producer.send_arrow("orders", table)
    told = []
    handle.add_done_callback(lambda it: told.append((it is handle, it.done())))
    producer.flush()
    assert told == [(True, True)]


def test_a_send_beside_a_close_is_refused_as_one_behind_it(shop, monkeypatch):
    shop.topic()
    producer = shop.producer()
    producer.partitions_for("orders")
    real = producer._now_ms
    monkeypatch.setattr(producer, "_now_ms", lambda: (producer.close(), real())[1])
    with pytest.raises(ReplogError) as refused:
        producer.send("orders", b"v")
    assert refused.value.code is ErrorCode.REPLOG_PRODUCER_CLOSED
    assert shop.values() == []


def test_records_without_key_go_less_to_partitions_that_wait(shop):
    shop.topic(partitions=2)
    producer = shop.producer(batch__size=100, linger__ms=60_000, max__in__flight__requests__per__connection=1)
    producer.partitions_for("orders")
    with held_puts(shop):
        for _ in range(4):
            producer.send("orders", b"v" * 80, partition=0)
            thread_of(producer).call(lambda: None)
        sticky = producer._topics["orders"].sticky
        wait_until(lambda: sticky._table is not None)
    (first, both), partitions = sticky._table
    assert partitions == [0, 1]
    assert first < both - first
    producer.flush()


@pytest.mark.parametrize("place", [transport, committer])
def test_records_wait_while_no_thread_can_be_started(shop, monkeypatch, place):
    """As at the limit of a container's pids. Threads of idle roots have ended, so a put needs one again."""
    shop.topic()
    producer = shop.producer(retry__backoff__ms=1)
    fails, has_failed = [3], threading.Event()
    pool = place.IO_POOL

    def now_and_then(method, *arguments):
        if fails[0]:
            fails[0] -= 1
            has_failed.set()
            raise RuntimeError("can't start new thread")
        return method(*arguments)

    with monkeypatch.context() as patch:
        kept = {name: partial(now_and_then, getattr(pool, name)) for name in ("submit_to", "post_to")}
        patch.setattr(place, "IO_POOL", SimpleNamespace(**kept))
        first = producer.send("orders", b"1")
        assert first.result(SECONDS).offset == 0
        assert has_failed.is_set() and fails == [0]
    assert producer.send("orders", b"2").result(SECONDS).offset == 1
