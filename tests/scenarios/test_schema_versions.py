"""Writers and readers of different versions of a topic's schema, side by side and asleep over changes."""

from __future__ import annotations

import logging
from decimal import Decimal

import pyarrow as pa
import pytest

import spark_replog
from spark_replog.admin.access_admin import AclAdmin
from spark_replog.client.store import Store, init_store
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import AuthorizationError, ErrorCode, InvalidConfigError, ReplogError
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.row_schema import RowSchema
from spark_replog.maintenance.compaction import Compactor
from tests.waiting import wait_until

FIRST = "id BIGINT NOT NULL, amount INT, place STRUCT<x: INT>, must STRING NOT NULL"
SECOND = "id BIGINT NOT NULL, amount BIGINT, place STRUCT<x: INT, y: INT>, must STRING NOT NULL, note STRING"
THIRD = (
    "id BIGINT NOT NULL, amount DECIMAL(24,2), place STRUCT<x: BIGINT, y: INT>, must STRING, note STRING, paid BOOLEAN"
)


@pytest.fixture(params=[1, 3], ids=["one root", "three roots"])
def store(request, tmp_path):
    made = init_store(str(tmp_path / "store"), request.param, fsync=False)
    made.admin().create_topic("orders", 2, schema=FIRST, key=["id"])
    return made


@pytest.fixture
def other(store):
    """The store as another process sees it."""
    return Store(Cluster.open(store.path))


def row(number, **more):
    return {"id": number, "amount": number, "place": {"x": number}, "must": "m", **more}


def write(producer, *rows):
    for value in rows:
        producer.send("orders", value)
    producer.flush()


def by_id(rows):
    return {value["id"]: value for value in rows}


def scanned(store, **how):
    return by_id(store.topic("orders").scan(**how).to_arrow().to_pylist())


def stored_versions(store):
    """The versions that the sections of the topic name."""
    handle = store.cluster.lookup("orders")
    ledger, topic = store.cluster.topic_state(handle)
    return {
        section.object.schema_version
        for number in range(len(topic.partitions))
        for section in ledger.ask(lambda state: state.sections(handle.topic_id, number, 0, 1 << 40))  # noqa: B023
    }


def polled(consumer, count):
    rows = []
    wait_until(lambda: len(rows.extend(consumer.poll(timeout_ms=200)) or rows) >= count)
    return by_id(record.value for record in rows)


def test_old_rows_read_through_the_newest_schema_after_two_changes(store, other):
    with store.producer() as producer:
        write(producer, row(1), row(2, amount=None, place=None))
    for ddl in (SECOND, THIRD):
        other.admin().evolve_schema("orders", ddl)
    newest = {"note": None, "paid": None}
    expected = {
        1: {"id": 1, "amount": Decimal("1.00"), "place": {"x": 1, "y": None}, "must": "m", **newest},
        2: {"id": 2, "amount": None, "place": None, "must": "m", **newest},
    }
    assert scanned(store) == expected
    with other.consumer("orders", auto_offset_reset="earliest") as consumer:
        assert polled(consumer, 2) == expected


def test_a_producer_that_was_open_goes_on_with_its_version(store, other, caplog):
    caplog.set_level(logging.INFO, "spark_replog")
    with store.producer(metadata_max_age_ms=1) as older:
        write(older, row(1))
        other.admin().evolve_schema("orders", SECOND)
        for number in range(2, 8):
            write(older, row(number))
        older.send_arrow("orders", pa.table({"id": [8], "must": ["m"]})).result()
        assert older.schema_for("orders").version == 1
        wait_until(lambda: "goes on with version 1" in caplog.text)
    assert caplog.text.count("goes on with version 1") == 1
    assert stored_versions(store) == {1}
    assert sorted(scanned(store)) == list(range(1, 9))


def test_a_row_that_needs_a_newer_version_takes_its_producer_there(store, other):
    with store.producer(retry_backoff_ms=0) as older:
        write(older, row(1))
        with pytest.raises(InvalidConfigError, match=r"INVALID_RECORD.*'note'"):
            older.send("orders", row(2, note="n"))
        other.admin().evolve_schema("orders", SECOND)
        older.send_arrow("orders", pa.table({"id": [3], "must": ["m"], "note": ["n"]})).result()
        write(older, row(2, note="n", amount=1 << 40))
        assert older.schema_for("orders").version == 2
    assert stored_versions(store) == {1, 2}
    rows = scanned(store)
    assert (rows[1]["note"], rows[2]["amount"], rows[3]["note"]) == (None, 1 << 40, "n")


def test_writers_of_three_versions_side_by_side_lose_no_column(store, other):
    with store.producer(batch_size=1) as first, other.producer(batch_size=1) as second:
        write(first, row(1))
        other.admin().evolve_schema("orders", SECOND)
        write(second, row(2, note="n2"))
        store.admin().evolve_schema("orders", THIRD)
        with spark_replog.open(store.path).producer(batch_size=1) as third:
            for step in range(10, 40, 3):
                write(first, row(step))
                write(second, row(step + 1, note="n", amount=1 << 40))
                write(third, row(step + 2, note="t", paid=True, must=None, amount=Decimal("0.25")))
    assert stored_versions(store) == {1, 2, 3}
    rows = scanned(store)
    assert len(rows) == 32
    for step in range(10, 40, 3):
        assert [rows[step + at]["note"] for at in range(3)] == [None, "n", "t"]
        assert rows[step + 1]["amount"] == 1 << 40
        assert (rows[step + 2]["paid"], rows[step + 2]["must"]) == (True, None)
    Compactor(store.cluster).compact(store.cluster.lookup("orders"), is_eager=True)
    assert scanned(other) == rows


def test_a_reader_keeps_its_version_and_logs_once_that_there_is_a_newer_one(store, other, caplog):
    caplog.set_level(logging.INFO, "spark_replog")
    with (
        store.consumer("orders", auto_offset_reset="earliest") as consumer,
        store.producer() as older,
        other.producer() as newer,
    ):
        consumer.poll(timeout_ms=100)
        asleep = store.topic("orders").scan(end={0: 1000, 1: 1000})
        write(older, row(1))
        other.admin().evolve_schema("orders", SECOND)
        write(newer, row(2, note="n", place={"x": 2, "y": 3}))
        assert polled(consumer, 2) == {1: row(1), 2: row(2)}
        other.admin().evolve_schema("orders", THIRD)
        write(newer, row(3))
        assert polled(consumer, 1) == {3: row(3)}
    assert asleep.to_arrow().schema.names == RowSchema(FIRST).names
    assert caplog.text.count("this reader keeps version 1") == 1
    assert scanned(other)[2]["note"] == "n"


@pytest.mark.parametrize("value", [{"amount": 1 << 40}, {"must": None}])
def test_a_row_that_an_old_version_cannot_hold_ends_its_reader_and_no_row_is_lost(store, other, value):
    with store.consumer("orders", auto_offset_reset="earliest") as consumer, store.producer() as producer:
        write(producer, row(1))
        assert polled(consumer, 1) == {1: row(1)}
        for ddl in (SECOND, THIRD):
            other.admin().evolve_schema("orders", ddl)
        with other.producer() as newer:
            write(newer, row(2, **value))
        with pytest.raises(ReplogError, match=r"REPLOG_INVALID_SCHEMA.*orders.*version 1") as raised:
            wait_until(lambda: bool(consumer.poll(timeout_ms=200)))
        assert f"'{next(iter(value))}'" in str(raised.value)
        with pytest.raises(ReplogError, match="REPLOG_INVALID_SCHEMA"):
            consumer.poll(timeout_ms=200)
    with other.consumer("orders", auto_offset_reset="earliest") as again:
        assert sorted(polled(again, 2)) == [1, 2]


def test_rows_that_waited_over_two_changes_are_stored_in_their_version(store, other):
    with store.producer(linger_ms=60_000, batch_size=1 << 20) as slow:
        handle = slow.send("orders", row(1))
        for ddl in (SECOND, THIRD):
            other.admin().evolve_schema("orders", ddl)
        slow.flush()
        assert handle.result(30).offset == 0
    assert stored_versions(store) == {1}
    assert scanned(other)[1]["amount"] == Decimal("1.00")


def test_an_input_adds_its_columns_and_its_rows_have_them(store, other):
    wide = pa.table({"id": [2], "must": ["m"], "note": ["n"], "amount": pa.array([1 << 40])})
    with store.producer() as producer, other.producer() as second:
        write(producer, row(1))
        write(second, row(9))
        with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*'note'"):
            producer.send_arrow("orders", wide)
        producer.send_arrow("orders", wide, merge_schema=True).result()
        second.send_arrow("orders", pa.table({"id": [3], "must": ["m"], "paid": [True]}), merge_schema=True).result()
        write(producer, row(4, note="again"))
        with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*'must'.*BIGINT"):
            producer.send_arrow("orders", pa.table({"id": [5], "must": [5]}), merge_schema=True)
    rows = scanned(store)
    assert sorted(rows) == [1, 2, 3, 4, 9]
    assert (rows[2]["note"], rows[2]["amount"], rows[3]["paid"], rows[4]["note"]) == ("n", 1 << 40, True, "again")
    assert [version.version for version in store.admin().schema_history("orders")] == [1, 2, 3]


def test_an_input_whose_writer_may_not_change_the_topic_adds_nothing(store):
    rights = [("User:etl", AclOperation.WRITE), ("User:*", AclOperation.READ)]
    AclAdmin(store.cluster).add(
        AclBinding(ResourceType.TOPIC, "orders", PatternType.LITERAL, who, operation, Permission.ALLOW)
        for who, operation in rights
    )
    with store.producer(principal="User:etl") as producer:
        producer.send_arrow("orders", pa.table({"id": [1], "must": ["m"]}), merge_schema=True).result()
        with pytest.raises(AuthorizationError) as raised:
            producer.send_arrow("orders", pa.table({"id": [2], "must": ["m"], "note": ["n"]}), merge_schema=True)
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert sorted(scanned(store)) == [1]
