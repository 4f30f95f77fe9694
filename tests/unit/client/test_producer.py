"""The plain producer from end to end: the order of its steps, and what it refuses."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.client import settings as client_settings
from spark_replog.client.consumer import Consumer
from spark_replog.client.producer import Producer
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.cluster import cluster
from spark_replog.commit.append_request import refuse_all, without_partitions
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.errors import (
    AuthorizationError,
    ErrorCode,
    InvalidConfigError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
)
from spark_replog.ids import new_id
from spark_replog.ledger import rivals
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.model import PartitionResponse
from spark_replog.maintenance.garbage import GarbageCollector
from spark_replog.write.partitioner import partition_of
from tests.faulty_store import Fault
from tests.unit.client.consumer_setup import Store
from tests.unit.client.producer_setup import Shop, held_puts, metadata_of, thread_of
from tests.unit.write.support import FaultyBrokers


def code_of(handle):
    error = handle.exception(10)
    return None if error is None else error.code


def test_a_record_comes_back_with_its_offset_and_all_its_fields(shop):
    shop.topic()
    producer = shop.producer()
    handle = producer.send("orders", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=1234)
    assert handle.result(10) == ("orders", 0, 0, 1234)
    assert producer.send("orders", None, key=b"").result(10).offset == 1
    first, second = shop.rows()
    assert (first["key"], first["value"]) == (b"k", b"v")
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert first["timestamp"].timestamp() == 1.234
    assert (second["key"], second["value"]) == (b"", None)


def test_records_of_one_thread_keep_their_order_and_offsets_are_dense(shop):
    shop.topic()
    producer = shop.producer(batch__size=300, max__request__size=2_000)
    handles = [producer.send("orders", b"%d" % number) for number in range(500)]
    producer.flush()
    assert [handle.result(0).offset for handle in handles] == list(range(500))
    assert shop.values() == [b"%d" % number for number in range(500)]


def test_threads_share_a_producer(shop):
    shop.topic(partitions=3)
    producer = shop.producer(batch__size=500)
    handles: list[list] = [[] for _ in range(4)]

    def work(number):
        for index in range(200):
            handles[number].append(producer.send("orders", b"%d/%d" % (number, index), key=b"%d" % number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    for number, mine in enumerate(handles):
        partition = partition_of(b"%d" % number, 3)
        values = shop.values(partition=partition)
        assert [values[handle.result(0).offset] for handle in mine] == [b"%d/%d" % (number, i) for i in range(200)]


@pytest.mark.case("kafka-2")
def test_a_key_has_its_murmur2_partition_and_an_explicit_one_wins(shop):
    """Reference case 2."""
    shop.topic(partitions=10)

    class Nine:
        def partition(self, topic, key, key_bytes, value, value_bytes, count):
            return 9

    producer = shop.producer()
    assert producer.send("orders", b"v", key=b"kafka").result(10).partition == 0
    assert producer.send("orders", b"v", key=b"").result(10).partition == 1  # an empty key is hashed
    small = shop.producer(batch__size=1)
    null = {small.send("orders", b"v").result(10).partition for _ in range(30)}
    assert len(null) > 1  # no key is not an empty one: that would be one partition for all
    custom = shop.producer(partitioner__class=Nine)
    assert custom.send("orders", b"v", key=b"kafka", partition=4).result(10).partition == 4
    assert custom.send("orders", b"v", key=b"kafka").result(10).partition == 9


def test_records_without_a_key_avoid_partitions_without_a_leader(tmp_path):
    shop = Shop(tmp_path, FaultyBrokers, brokers=2)
    shop.topic("orders", None, assignment=[[0], [1], [0]])
    BrokerAdmin(shop.cluster).fence(0)
    producer = shop.producer(batch__size=256, delivery__timeout__ms=6000, request__timeout__ms=5000)
    handles = [producer.send("orders", b"%d" % number) for number in range(100)]
    producer.flush()
    assert {handle.result(timeout=60).partition for handle in handles} == {1}
    shop.close()


def test_ignored_keys_are_not_hashed(shop):
    shop.topic(partitions=10)
    producer = shop.producer(partitioner__ignore__keys="true", linger__ms=50)
    handles = [producer.send("orders", b"v", key=b"%d" % number) for number in range(50)]
    assert len({handle.result(10).partition for handle in handles}) == 1


def test_round_robin_takes_turns(shop):
    shop.topic(partitions=3)
    producer = shop.producer(partitioner__class="RoundRobinPartitioner")
    handles = [producer.send("orders", b"v", key=b"same") for _ in range(6)]
    assert [handle.result(10).partition for handle in handles] == [0, 1, 2, 0, 1, 2]


def test_arrow_rows_and_records_end_in_the_same_partitions(shop):
    shop.topic(partitions=5)
    producer = shop.producer()
    keys = [b"key%d" % number for number in range(40)]
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())})
    handle = producer.send_arrow("orders", table)
    first_rows = handle.result(10)
    assert sum(handle.row_counts) == 40 and len(first_rows) == len(handle.parts)
    for key in keys:
        producer.send("orders", key, key=key)
    producer.flush()
    for partition in range(5):
        values = shop.values(partition=partition)
        assert values == values[: len(values) // 2] * 2
        assert all(partition_of(value, 5) == partition for value in values)


def test_an_empty_table_is_done_at_once(shop):
    shop.topic()
    told = []
    handle = shop.producer().send_arrow("orders", pa.table({"value": pa.array([], pa.binary())}))
    handle.add_done_callback(told.append)
    assert handle.done() and handle.result(0) == [] and told == [handle]


def test_a_topic_that_comes_in_time_is_waited_for(shop):
    producer = shop.producer(max__block__ms=10_000)
    left_ms = []
    real = producer._append
    producer._append = lambda *arguments: (left_ms.append(arguments[6]), real(*arguments))[1]
    timer = threading.Timer(0.2, shop.topic)
    timer.start()
    assert producer.send("orders", b"v").result(10).offset == 0
    timer.join()
    assert 0 < left_ms[0] < 10_000  # what the topic took of max.block.ms is not there for memory


@pytest.mark.case("producer-metadata-missing-topic-partition")
def test_a_partition_that_comes_in_time_is_waited_for(shop):
    shop.topic()
    producer = shop.producer(max__block__ms=10_000)
    producer.send("orders", b"v").result(10)
    timer = threading.Timer(0.2, shop.controller.add_partitions, ("orders", 3))
    timer.start()
    assert producer.send("orders", b"v", partition=2).result(10).partition == 2
    timer.join()


@pytest.mark.parametrize("topic", [[], None, 7, b"orders"])
@pytest.mark.parametrize(
    "call",
    [lambda p, t: p.send(t, b"v"), lambda p, t: p.partitions_for(t), lambda p, t: p.send_arrow(t, pa.table({}))],
)
def test_a_topic_that_is_no_text_is_refused_at_the_call(shop, topic, call):
    producer = shop.producer(max__block__ms=20)
    with pytest.raises(InvalidConfigError) as refused:
        call(producer, topic)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.case("producer-metadata-missing-topic-partition")
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"topic": "nothing"}, ErrorCode.REQUEST_TIMED_OUT),
        ({"partition": 7}, ErrorCode.REQUEST_TIMED_OUT),
        ({"topic": "a/b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"topic": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"value": b"x" * 3_000}, ErrorCode.MESSAGE_TOO_LARGE),
        ({"key": b"x" * 3_000}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_what_kafka_tells_through_the_future_fails_the_handle(shop, sent, code):
    shop.topic()
    producer = shop.producer(max__block__ms=20, max__request__size=2_000)
    assert code_of(producer.send(**({"topic": "orders", "value": b"v"} | sent))) is code
    assert producer.metrics()["record-error-total"] == 1
    assert producer.send("orders", b"after").result(10).offset == 0
    assert shop.values() == [b"after"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"value": "text"}, ErrorCode.INVALID_RECORD),
        ({"key": 7}, ErrorCode.INVALID_RECORD),
        ({"partition": -1}, ErrorCode.INVALID_PARTITIONS),
        ({"partition": "0"}, ErrorCode.INVALID_PARTITIONS),
        ({"timestamp_ms": -1}, ErrorCode.INVALID_TIMESTAMP),
        ({"timestamp_ms": 1.5}, ErrorCode.INVALID_TIMESTAMP),
        ({"timestamp_ms": 2**53}, ErrorCode.INVALID_TIMESTAMP),  # microseconds would not hold it
        ({"timestamp_ms": True}, ErrorCode.INVALID_TIMESTAMP),
        ({"headers": [("h", "text")]}, ErrorCode.INVALID_RECORD),
        ({"headers": [(b"h", b"1")]}, ErrorCode.INVALID_RECORD),
        ({"headers": [("h",)]}, ErrorCode.INVALID_RECORD),
        ({"headers": {"h": b"1"}}, ErrorCode.INVALID_RECORD),
        ({"headers": [("\ud800", b"1")]}, ErrorCode.INVALID_RECORD),  # a str that is no text
        ({"headers": 7}, ErrorCode.INVALID_RECORD),
    ],
)
def test_what_is_the_callers_mistake_is_raised_and_nothing_is_half_written(shop, sent, code):
    shop.topic()
    producer = shop.producer()
    for _ in range(2):  # before the topic is known, and behind that
        with pytest.raises(InvalidConfigError) as refused:
            producer.send(**({"topic": "orders", "value": b"v"} | sent))
        assert refused.value.code is code
        producer.partitions_for("orders")
    assert producer.send("orders", b"after").result(10).offset == 0
    assert shop.values() == [b"after"]


def test_a_record_larger_than_the_pool_is_refused(shop):
    shop.topic()
    producer = shop.producer(buffer__memory=4_000, batch__size=500)
    assert code_of(producer.send("orders", b"x" * 4_000)) is ErrorCode.MESSAGE_TOO_LARGE
    assert producer.send("orders", b"x" * 3_900).result(10).offset == 0


@pytest.mark.parametrize("answer", [-1, 3, None, "0", 1.0, True])
def test_a_partitioner_that_answers_no_partition_is_told(shop, answer):
    shop.topic(partitions=3)

    class Wrong:
        def partition(self, *_):
            return answer

    with pytest.raises(InvalidConfigError, match="partitioner Wrong") as refused:
        shop.producer(partitioner__class=Wrong).send("orders", b"v")
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    assert [shop.values(partition=partition) for partition in range(3)] == [[], [], []]


def test_a_null_that_the_serializer_refuses_is_told(shop):
    shop.topic()

    class NoNulls:
        def serialize(self, topic, value):
            if value is None:
                raise ValueError("no nulls")
            return value

    producer = shop.producer(value__serializer=NoNulls)
    with pytest.raises(InvalidConfigError, match=r"value serializer NoNulls .*no nulls") as refused:
        producer.send("orders", None)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_memory_that_stays_exhausted_fails_the_handle(shop):
    shop.topic()

    producer = shop.producer(buffer__memory=4_000, batch__size=1_500, max__block__ms=0, linger__ms=0)
    producer.partitions_for("orders")
    with held_puts(shop):
        handles = [producer.send("orders", b"x" * 1_400) for _ in range(4)]
    assert ErrorCode.REPLOG_BUFFER_EXHAUSTED in [code_of(handle) for handle in handles]
    assert len(shop.values()) == sum(code_of(handle) is None for handle in handles)


@pytest.mark.case("producer-close-ends-wait-metadata-forced")
def test_nothing_goes_through_a_closed_producer(shop):
    shop.topic()
    producer = shop.producer()
    handle = producer.send("orders", b"v")
    producer.close()
    assert handle.result(0).offset == 0
    producer.close()
    for call in (lambda: producer.send("orders", b"v"), lambda: producer.send_arrow("orders", pa.table({}))):
        with pytest.raises(ReplogError) as refused:
            call()
        assert refused.value.code is ErrorCode.REPLOG_PRODUCER_CLOSED
    assert shop.values() == [b"v"]


def test_a_close_without_time_fails_what_is_left(shop):
    shop.topic()
    producer = shop.producer()
    producer.partitions_for("orders")
    with held_puts(shop):
        handle = producer.send("orders", b"v")
        producer.close(0)
        assert code_of(handle) is ErrorCode.REPLOG_PRODUCER_CLOSED
    assert "close()" in str(handle.exception(0))
    assert producer._parts.appender._stopped.is_set()  # no append goes on behind it


@pytest.mark.case("producer-send-flush-close-callback")
def test_close_and_flush_in_a_callback_do_not_wait_for_themselves(shop):
    shop.topic()
    producer = shop.producer()
    raised = []

    def callback(handle):
        with pytest.raises(InvalidConfigError, match="callback"):
            producer.flush()
        producer.close()
        raised.append(handle.result(0).offset)

    handle = producer.send("orders", b"v")
    handle.add_done_callback(callback)
    handle.result(10)
    assert thread_of(producer)._ended.wait(10)
    assert raised == [0]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_acks_say_what_a_handle_knows(shop, acks):
    shop.topic()
    producer = shop.producer(acks=acks)
    assert [producer.send("orders", b"v").result(10).offset for _ in range(2)] == ([-1, -1] if acks == "0" else [0, 1])
    producer.close()
    assert shop.values() == [b"v", b"v"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression(shop, compression):
    shop.topic()
    shop.producer(compression__type=compression).send("orders", b"v" * 1_000).result(10)
    assert shop.values() == [b"v" * 1_000]


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.LOSE_ANSWER])
@pytest.mark.parametrize(("where", "inline_bytes"), [("/data/", 0), ("/journal/", 0), ("/journal/", 4096)])
def test_one_lost_call_loses_and_repeats_nothing(shop, fault, where, inline_bytes):
    shop.topic()
    producer = shop.producer(inline__max__bytes=inline_bytes)
    producer.send("orders", b"0").result(10)
    shop.brokers.faulty[0].fail_next("create", fault, key_part=where)
    handles = [producer.send("orders", b"%d" % number) for number in range(1, 4)]
    assert [handle.result(10).offset for handle in handles] == [1, 2, 3]
    assert shop.values() == [b"0", b"1", b"2", b"3"]
    assert shop.brokers.faulty[0].injected


def test_a_commit_without_answer_for_too_long_is_told_as_unknown_and_the_next_record_goes_on(shop):
    shop.topic()
    # Longer than a busy machine stands still: the records that have to succeed have no more time.
    producer = shop.producer(delivery__timeout__ms=3_000, request__timeout__ms=2_000, replica__lag__time__max__ms=100)
    producer.send("orders", b"0").result(10)
    faulty = shop.brokers.faulty[0]
    faulty.fail_next("create", Fault.FAIL_BEFORE, key_part="/journal/", times=100_000)
    error = producer.send("orders", b"lost").exception(10)
    assert isinstance(error, (OutcomeUnknownError, RetriableError))
    faulty.clear()
    assert producer.send("orders", b"after").result(20).offset >= 1
    values = shop.values()
    assert values[0] == b"0" and values[-1] == b"after" and values.count(b"lost") <= 1


def test_metrics_have_kafkas_names(shop):
    shop.topic()
    producer = shop.producer()
    for _ in range(10):
        producer.send("orders", b"v" * 84)
    producer.flush()
    metrics = producer.metrics()
    assert metrics["record-send-total"] == 10
    assert metrics["outgoing-byte-total"] > 1_000
    assert metrics["record-size-avg"] == metrics["record-size-max"] == 100
    assert metrics["request-total"] >= 1 and metrics["commit-total"] >= 1
    assert 0 < metrics["records-per-request-avg"] <= 10
    for name in [
        "record-send-rate",
        "record-error-rate",
        "record-retry-rate",
        "batch-size-avg",
        "record-queue-time-avg",
        "request-latency-avg",
        "buffer-available-bytes",
        "buffer-total-bytes",
        "requests-in-flight",
    ]:
        assert name in metrics


def test_a_deleted_topic_fails_its_records_and_a_new_one_of_its_name_is_found(shop):
    shop.topic()
    producer = shop.producer(max__block__ms=5_000)
    producer.send("orders", b"old").result(10)
    shop.controller.delete_topic("orders")
    assert code_of(producer.send("orders", b"between")) in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
    shop.topic()
    metadata_of(producer).refresh()
    assert producer.send("orders", b"new").result(10).offset == 0
    assert shop.values() == [b"new"]


def test_rows_that_acks_0_loses_in_the_commit_are_logged_and_counted(shop, caplog):
    shop.topic()
    producer = shop.producer(acks="0")
    producer.send("orders", b"1").result(10)
    producer.close(10)
    producer = shop.producer(acks="0", retries="0")
    producer.partitions_for("orders")
    shop.controller.delete_topic("orders")
    assert producer.send("orders", b"2").result(10).offset == -1
    producer.close(10)
    (line,) = [record.getMessage() for record in caplog.records if "REPLOG_ACKS0_DROPPED" in record.getMessage()]
    assert "orders-0" in line and "1 rows" in line
    assert producer.metrics()["record-error-total"] == 1


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize(("inline_bytes", "object_count"), [(None, 1), (4096, 0)])
def test_one_send_is_one_object_and_one_round_of_entries(monkeypatch, brokers, inline_bytes, object_count):
    """Nothing is waited for beside: no linger although one is the default, and no look before or after."""
    monkeypatch.setattr(client_settings, "LINGER_MS", 60_000)
    # However slow this machine is: who made the topic writes no more, and rights are not looked up again.
    monkeypatch.setattr(rivals, "RIVAL_MS", 0.0)
    monkeypatch.setattr(cluster, "ACCESS_AGE_MS", 3_600_000)
    store = Store.init(f"memory://{new_id()}", brokers, SYSTEM_CLOCK)
    store.create("orders", 1)
    store.count_calls()
    with Producer(store.cluster, inline_max_bytes=inline_bytes) as producer:
        for number in range(3):
            assert producer.send("orders", b"v").result(30).offset == number
        store.forget_calls()
        for number in range(3, 13):
            assert producer.send("orders", b"v").result(30).offset == number
        calls = store.calls()
    assert calls["create"] == 10 * (1 + object_count) * brokers
    assert calls.get("get", 0) <= 10 * brokers


def test_rows_in_the_log_that_lack_replicas_are_not_sent_again_with_others(shop, monkeypatch):
    shop.topic(partitions=2)
    after = RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "the rows are in the log. Repeat it.")
    append, handles = ReplicaManager.append_records, []

    def answer_short(self, requests):
        ((ledger_id, request),) = requests.items()
        answer = append(self, requests)
        if len(handles) == 1:
            handles.append(producer.send("orders", b"1", partition=1))  # would go with the retry
            return {ledger_id: refuse_all(request.append, after)}
        return answer

    monkeypatch.setattr(ReplicaManager, "append_records", answer_short)
    producer = shop.producer(linger__ms=100)
    handles.append(producer.send("orders", b"0", partition=0))
    assert handles[0].result(10).offset == 0
    assert handles[1].result(10).offset == 0
    assert [shop.values(partition=number) for number in range(2)] == [[b"0"], [b"1"]]


@pytest.mark.guarantee("G3")
def test_of_an_append_without_an_answer_the_allowed_partition_goes_on_and_the_refused_one_is_unknown(shop, monkeypatch):
    """The first attempt lands; then one topic's right is taken away, and the append is refused as a whole."""
    shop.topic(partitions=2)
    unknown = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer. Try again.")
    denied = AuthorizationError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed. Ask for the right.")
    append, asked = ReplicaManager.append_records, []

    def deny_a_part(self, requests):
        ((ledger_id, request),) = requests.items()
        asked.append(request.is_atomic)
        second = max(request.append.row_counts)
        if len(asked) == 1:
            append(self, requests)
            return {ledger_id: refuse_all(request.append, unknown)}
        if request.is_atomic:
            return {ledger_id: refuse_all(request.append, denied)}
        rest = without_partitions(request.append, {second})
        answer = append(self, {ledger_id: replace(request, append=rest)})[ledger_id]
        return {ledger_id: replace(answer, partitions={**answer.partitions, second: PartitionResponse(denied)})}

    monkeypatch.setattr(ReplicaManager, "append_records", deny_a_part)
    producer = shop.producer(linger__ms=20_000)
    handles = [producer.send("orders", b"%d" % number, partition=number) for number in range(2)]
    producer.flush()  # both in one append
    assert handles[0].result(10).offset == 0
    assert handles[1].exception(10) is unknown
    assert asked == [False, True, False]
    monkeypatch.undo()
    handles = [producer.send("orders", b"more", partition=number) for number in range(2)]
    producer.flush()
    assert [handle.result(10).offset for handle in handles] == [1, 1]
    assert [shop.values(partition=number) for number in range(2)] == [[b"0", b"more"], [b"1", b"more"]]


@pytest.mark.guarantee("G6")
def test_an_object_of_an_append_without_an_answer_is_not_named_by_two_appends(shop, monkeypatch):
    """Garbage collection would delete it with the rows of the first one, though the second one's are still there."""
    shop.topic(partitions=2)
    short = RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few. Wait.")
    unknown = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer. Try again.")
    append, asked = ReplicaManager.append_records, []

    def refuse_a_part(self, requests):
        ((ledger_id, request),) = requests.items()
        asked.append(request)
        second = max(request.append.row_counts)
        if len(asked) == 1:
            return {ledger_id: refuse_all(request.append, unknown)}
        if len(asked) > 2 or second[1] == 0:
            return append(self, requests)
        if request.is_atomic:
            return {ledger_id: refuse_all(request.append, short)}
        rest = without_partitions(request.append, {second})
        answer = append(self, {ledger_id: replace(request, append=rest)})[ledger_id]
        return {ledger_id: replace(answer, partitions={**answer.partitions, second: PartitionResponse(short)})}

    monkeypatch.setattr(ReplicaManager, "append_records", refuse_a_part)
    producer = shop.producer(linger__ms=50)
    handles = [producer.send("orders", b"%d" % number, partition=number) for number in range(2)]
    assert [handle.result(10).offset for handle in handles] == [0, 0]
    shop.controller.delete_records("orders", {0: -1})
    GarbageCollector(shop.cluster).run()
    assert shop.values(partition=1) == [b"1"]


@pytest.mark.guarantee("G6")
def test_rows_without_sequences_whose_append_has_no_answer_are_sent_again_in_another_object(shop, monkeypatch):
    """The log cannot recognise the second append, so the rows may be there twice. It must not name one object twice."""
    shop.topic()
    unknown = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer. Try again.")
    full = ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "the disks are full. Make room.")
    append, asked = ReplicaManager.append_records, []

    def lose_the_answer(self, requests):
        ((ledger_id, request),) = requests.items()
        asked.append(request)
        answer = {ledger_id: refuse_all(request.append, full)} if 1 < len(asked) <= 3 else append(self, requests)
        return {ledger_id: refuse_all(request.append, unknown)} if len(asked) == 1 else answer

    monkeypatch.setattr(ReplicaManager, "append_records", lose_the_answer)
    assert shop.producer(acks="1").send("orders", b"v").result(10).offset == 1
    assert shop.values() == [b"v", b"v"]
    shop.controller.delete_records("orders", {0: 1})
    GarbageCollector(shop.cluster).run()
    with Consumer(shop.cluster, "orders", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(timeout_ms=5_000)] == [b"v"]


def test_what_is_left_of_a_batchs_time_goes_down_to_the_ledger(shop, monkeypatch):
    """An append that nobody waits for any more would hold up those behind it."""
    shop.topic()
    append, left_ms = Ledger.append, []

    def note(self, propose, *, timeout_ms, **how):
        left_ms.append(timeout_ms)
        return append(self, propose, timeout_ms=timeout_ms, **how)

    producer = shop.producer(delivery__timeout__ms=40_000, request__timeout__ms=20_000)
    producer.partitions_for("orders")
    monkeypatch.setattr(Ledger, "append", note)
    assert producer.send("orders", b"v").result(30).offset == 0
    assert left_ms and all(0 < timeout_ms <= 40_000 for timeout_ms in left_ms)
