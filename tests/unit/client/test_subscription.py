"""What a consumer reads: by hand, by name, by pattern; and what it refuses."""

from __future__ import annotations

import pytest

from spark_replog import Consumer, OffsetAndMetadata, Producer, TopicPartition
from spark_replog.admin.controller import Controller
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from tests.unit.client.consumer_setup import P0, P1, assigned, consumer, rows, values


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda c: c.seek(P0, -1), ErrorCode.INVALID_REQUEST),
        (lambda c: c.seek(P0, "1"), ErrorCode.INVALID_REQUEST),
        (lambda c: c.seek(P0, 1.5), ErrorCode.INVALID_REQUEST),
        (lambda c: c.seek_to_time("2026-11-21"), ErrorCode.INVALID_REQUEST),
        (lambda c: c.offsets_for_times({P0: None}), ErrorCode.INVALID_REQUEST),
        (lambda c: c.seek(TopicPartition("orders", 9), 1), ErrorCode.INVALID_REQUEST),
        (lambda c: c.subscribe(["orders"]), ErrorCode.REPLOG_CONFLICTING_OPTIONS),
        (lambda c: c.end_offsets([TopicPartition("orders", 9)]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda c: c.end_offsets([TopicPartition("nothing", 0)]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_misuse_is_refused_by_code(filled, act, code):
    with pytest.raises(ReplogError) as refused:
        act(assigned(filled, P0))
    assert refused.value.code is code


@pytest.mark.parametrize("topics", [[None], ["orders", 7], [""], [b"orders"], [["orders"]]])
def test_a_subscription_takes_names_only(filled, topics):
    reader = consumer(filled)
    with pytest.raises(InvalidConfigError) as refused:
        reader.subscribe(topics)
    assert (refused.value.code, reader.subscription()) == (ErrorCode.INVALID_TOPIC_EXCEPTION, frozenset())


def test_a_subscription_and_an_assignment_exclude_each_other_until_unsubscribed(filled):
    reader = consumer(filled, "orders")
    with pytest.raises(InvalidConfigError):
        reader.assign([P0])
    reader.unsubscribe()
    reader.assign([P0])
    assert reader.assignment() == {P0}
    with pytest.raises(InvalidConfigError):
        consumer(filled).subscribe(["orders"], pattern="o.*")
    with pytest.raises(InvalidConfigError):
        consumer(filled).subscribe(pattern="(")


def test_a_pattern_finds_topics_made_later_and_never_the_internal_one(filled):
    reader = consumer(filled, group=None)
    reader.subscribe(pattern=".*")
    reader.poll()
    with assigned(filled, P0, group="g") as other:
        other.commit({P0: 1})
    filled.create("clicks")
    filled.clock.advance(300_000)
    reader.poll()
    assert {key.topic for key in reader.assignment()} == {"orders", "clicks"}


def test_a_topic_that_does_not_exist_or_is_deleted_is_an_error(filled):
    with pytest.raises(NotFoundError):
        consumer(filled, "nothing").poll()
    reader = assigned(filled, P0)
    reader.poll()
    Controller(filled.cluster).delete_topic("orders")
    with pytest.raises(NotFoundError) as refused:
        reader.poll()
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_a_pattern_matched_and_that_is_deleted_leaves_the_others_readable(filled):
    filled.create("orders2")
    filled.write("orders2", rows(3))
    reader = consumer(filled)
    reader.subscribe(pattern="orders.*")
    assert len(reader.poll(max_records=1)) == 1
    reader.seek_to_beginning()
    Controller(filled.another_process().cluster).delete_topic("orders")
    filled.clock.advance(2_000)
    assert values(reader.poll()) == rows(3)
    assert reader.assignment() == {TopicPartition("orders2", 0)}


@pytest.mark.parametrize(("policy", "expected"), [("earliest", rows(4, 100)), ("latest", [])])
def test_a_topic_made_again_under_its_name_is_read_as_the_policy_says_and_never_from_the_old_position(
    store, caplog, policy, expected
):
    store.create("orders")
    store.write("orders", rows(2))
    reader = consumer(store, "orders", auto_offset_reset=policy)
    reader.poll()
    reader.seek_to_beginning()
    assert values(reader.poll()) == rows(2)
    again = store.another_process()
    Controller(again.cluster).delete_topic("orders")
    again.create("orders")
    again.write("orders", rows(4, 100))
    store.clock.advance(2_000)
    assert values(reader.poll()) == expected
    assert "orders-0 was deleted and made again. It has offsets 0 to 4, not 2" in caplog.text
    again.write("orders", rows(1, 200))
    assert values(reader.poll()) == rows(1, 200)


def test_a_poll_without_time_finds_the_rows_of_a_topic_made_again(store, monkeypatch):
    store.create("orders")
    store.write("orders", rows(2))
    reader = consumer(store, "orders", auto_offset_reset="earliest")
    assert values(reader.poll()) == rows(2)
    Controller(store.another_process().cluster).delete_topic("orders")
    store.another_process().create("orders")
    store.another_process().write("orders", rows(4, 100))
    store.clock.advance(2_000)
    plain = store.clock.monotonic_ms
    monkeypatch.setattr(store.clock, "monotonic_ms", lambda: (store.clock.advance(1), plain())[1])  # time goes on
    assert values(reader.poll()) == rows(4, 100)


def test_without_a_policy_a_topic_made_again_is_an_error_until_its_position_is_sought(store):
    store.create("orders")
    store.write("orders", rows(2))
    reader = assigned(store, P0, auto_offset_reset="none")
    reader.seek(P0, 0)
    assert values(reader.poll()) == rows(2)
    Controller(store.cluster).delete_topic("orders")
    store.create("orders")
    store.write("orders", rows(4, 100))
    for _ in range(2):
        with pytest.raises(ReplogError, match=r"OFFSET_OUT_OF_RANGE.*orders-0\D+2\D+0\D+4"):
            reader.poll()
    reader.seek(P0, 2)
    assert values(reader.poll()) == rows(2, 102)


def test_to_subscribe_to_nothing_is_to_unsubscribe(filled):
    reader = consumer(filled, "orders")
    assert len(reader.poll(max_records=100)) == 20
    reader.subscribe()
    assert (reader.subscription(), reader.assignment()) == (set(), set())
    with pytest.raises(ReplogError) as refused:
        reader.poll(100)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    reader.assign([P0])


@pytest.mark.parametrize("first", ["assign", "subscribe"])
def test_to_assign_no_partition_is_to_unsubscribe(store, first):
    store.create("orders")
    store.write("orders", rows(2))
    reader = assigned(store, P0) if first == "assign" else consumer(store, "orders")
    reader.poll()
    reader.assign([])
    assert reader.assignment() == set() and reader.subscription() == set()
    reader.subscribe(["orders"])
    reader.unsubscribe()
    reader.assign([P0])
    assert reader.assignment() == {P0}


def test_a_position_that_another_committed_in_the_new_topic_is_not_taken_for_one_of_the_old(store):
    store.create("orders")
    store.write("orders", rows(2))
    reader = assigned(store, P0, group="g", enable_auto_commit=False)
    assert values(reader.poll()) == rows(2)
    reader.assign([])
    Controller(store.cluster).delete_topic("orders")
    store.create("orders")
    store.write("orders", rows(4, 100))
    with assigned(store, P0, group="g") as other:
        other.commit({P0: 2})
    reader.assign([P0])
    assert values(reader.poll()) == rows(2, 102)


@pytest.mark.parametrize("is_read_as_arrow", [True, False])
def test_as_arrow_a_topic_made_again_is_read_as_the_policy_says_too(store, is_read_as_arrow):
    store.create("orders")
    store.write("orders", rows(2))
    reader = assigned(store, P0)
    assert (reader.to_arrow().num_rows if is_read_as_arrow else len(reader.poll())) == 2
    again = store.another_process()
    Controller(again.cluster).delete_topic("orders")
    again.create("orders")
    again.write("orders", rows(4, 100))
    store.clock.advance(2_000)
    assert reader.to_arrow().column("value").to_pylist() == rows(4, 100)
    assert reader.to_arrow().num_rows == 0


def make_again(store, count=4):
    """Another process deletes orders and creates it again, with rows."""
    again = store.another_process()
    Controller(again.cluster).delete_topic("orders")
    again.create("orders")
    again.write("orders", rows(count, 100))
    store.clock.advance(2_000)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", rows(4, 100)), ("latest", [])])
def test_a_position_among_rows_that_wait_is_not_taken_for_one_of_the_topic_made_again(store, policy, expected):
    store.create("orders")
    store.write("orders", rows(5))
    reader = assigned(store, P0, auto_offset_reset=policy)
    reader.seek(P0, 0)
    assert values(reader.poll(max_records=1)) == rows(1)
    make_again(store)
    assert reader.to_arrow().column("value").to_pylist() == expected
    assert values(reader.poll()) == [], "rows of the old topic"


def column(table):
    return table.column("value").to_pylist()


@pytest.mark.parametrize(
    "read", [lambda reader: values(reader.poll(1_000)), lambda reader: column(reader.to_arrow(1_000))]
)
@pytest.mark.parametrize("group", [None, "g"])
def test_a_topic_made_again_with_fewer_partitions_is_read_on(store, group, read):
    store.create("orders", 3)
    for number in range(3):
        store.write("orders", rows(1), partition=number)
    reader, values_read = consumer(store, "orders", group=group), []
    while len(values_read) < 3:
        values_read += read(reader)
    make_again(store)
    values_read = []
    for _ in range(100):
        values_read += read(reader)
        if values_read:
            break
    assert (values_read, reader.assignment()) == (rows(4, 100), {P0})


def test_a_position_in_a_deleted_topic_is_not_committed_for_the_topic_made_again(store, caplog):
    store.create("orders")
    store.write("orders", rows(2))
    with assigned(store, P0, group="g") as reader:
        assert values(reader.poll()) == rows(2)
        make_again(store)
        for offsets in (None, {P0: 2}, {P0: OffsetAndMetadata(2)}):
            with pytest.raises(ReplogError, match=r"UNKNOWN_TOPIC_ID.*orders"):
                reader.commit(offsets)
    assert "commit of group g failed" not in caplog.text
    with assigned(store, P0, group="g") as reader:
        assert reader.committed([P0]) == {P0: None}
        assert values(reader.poll()) == rows(4, 100)


def test_a_commit_in_a_deleted_topic_cannot_be_repeated_in_the_topic_made_again(store):
    store.create("orders")
    with assigned(store, P0, group="g", enable_auto_commit=False) as reader:
        reader.commit({P0: 2})
        before = reader.committed([P0])
        make_again(store)
        with pytest.raises(ReplogError, match=r"UNKNOWN_TOPIC_ID.*orders"):
            reader.commit(before)


def test_as_arrow_the_rows_of_one_topic_are_not_followed_by_those_of_another_of_its_name(filled):
    reader = assigned(filled)
    batches = reader.to_batches()
    assert next(batches).column("value").to_pylist() == rows(10)
    again = filled.another_process()
    Controller(again.cluster).delete_topic("orders")
    again.create("orders", 2)
    again.write("orders", rows(20, 500), partition=1)
    filled.clock.advance(2_000)
    filled.cluster.refresh()
    assert next(batches).column("value").to_pylist() == rows(10, 100)
    assert list(batches) == []
    assert reader.to_arrow().column("value").to_pylist() == rows(20, 500)


def test_the_end_of_a_topic_made_again_that_is_sought_is_where_reading_goes_on(store):
    store.create("orders")
    store.write("orders", rows(2))
    reader = assigned(store, P0)
    assert values(reader.poll()) == rows(2)
    Controller(store.cluster).delete_topic("orders")
    store.create("orders")
    store.write("orders", rows(2, 100))
    reader.seek_to_end()  # the same offset, by chance
    assert values(reader.poll()) == []
    store.write("orders", rows(1, 200))
    assert values(reader.poll()) == rows(1, 200)


@pytest.mark.parametrize("is_assigned_between", [False, True])
def test_topics_that_were_unsubscribed_can_be_subscribed_to_again(filled, is_assigned_between):
    reader = consumer(filled, "orders")
    assert len(reader.poll()) == 20
    reader.unsubscribe()
    if is_assigned_between:
        reader.assign([P0])
        reader.unsubscribe()
    reader.subscribe(["orders"])
    assert len(reader.poll()) == 20


def test_a_pattern_means_whole_names(filled):
    reader = consumer(filled)
    reader.subscribe(pattern="order")
    reader.poll()
    assert reader.assignment() == set()
    reader.subscribe(pattern="order.")
    reader.poll()
    assert reader.assignment() == {P0, P1}


def test_partitions_that_a_topic_gains_are_found_though_nothing_is_fetched(filled):
    reader = consumer(filled, "orders")
    reader.poll()
    reader.pause([P0, P1])
    Controller(filled.another_process().cluster).add_partitions("orders", 3)
    filled.clock.advance(300_000)
    reader.poll()
    assert reader.assignment() == {P0, P1, TopicPartition("orders", 2)}


def test_topics_and_their_partitions_can_be_listed(filled):
    reader = consumer(filled)
    filled.another_process().create("clicks", 3)
    assert reader.list_topics() == ["clicks", "orders"]
    assert reader.partitions_for("clicks") == [TopicPartition("clicks", number) for number in range(3)]
    with pytest.raises(NotFoundError):
        reader.partitions_for("nothing")


@pytest.mark.parametrize("read", [lambda consumer: consumer.poll(), lambda consumer: consumer.to_arrow(), next])
def test_a_consumer_without_topics_is_refused_as_in_kafka(store, read):
    with Consumer(store.cluster) as consumer, pytest.raises(ReplogError) as caught:
        read(iter(consumer) if read is next else consumer)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "subscribe" in str(caught.value)


def test_settings_in_the_place_of_a_topic_are_refused_with_the_right_form(store):
    with pytest.raises(InvalidConfigError, match=r"INVALID_TOPIC_EXCEPTION.*config=\{\.\.\.\}"):
        consumer(store, "orders", {"group.id": "g"})
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_OPTION.*Give a mapping"):
        Producer(store.cluster, "orders")
