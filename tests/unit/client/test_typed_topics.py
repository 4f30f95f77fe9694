"""Typed topics in plain Python, on one root and on three: rows in by send and send_arrow, out by scan and Consumer."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import spark_replog
from spark_replog.client.topic_copy import TopicCopy
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import new_id
from spark_replog.log.json_rows import row_json
from spark_replog.log.row_key import key_bytes
from spark_replog.log.row_schema import RowSchema
from spark_replog.maintenance.compaction import Compactor
from spark_replog.maintenance.segment_writer import make_run
from spark_replog.read.offsets_for_times import offsets_for_times
from spark_replog.read.rows import LOG_COLUMNS
from spark_replog.write.partitioner import partition_of

DDL = (
    "id BIGINT, region STRING, amount DECIMAL(12,2), at TIMESTAMP, day DATE, tags ARRAY<STRING>, "
    "place STRUCT<x: DOUBLE, y: DOUBLE>, counts MAP<STRING, INT>, value BINARY, `_metadata` STRING"
)
NAMES = RowSchema(DDL).names


def row_of(number: int) -> dict:
    return {
        "id": number,
        "region": f"r{number % 3}",
        "amount": Decimal(number).scaleb(-2),
        "at": datetime(2024, 5, 1, tzinfo=UTC),
        "day": date(1960, 1, 1),
        "tags": ["a", None][: number % 3],
        "place": {"x": 0.5, "y": None} if number % 2 else None,
        "counts": {"k": number},
        "value": bytes([number % 256]),
        "_metadata": None,
    }


@pytest.fixture(params=[1, 3])
def store(request):
    made = spark_replog.init(f"memory://{new_id()}", request.param, fsync=False)
    made.admin().create_topic("orders", partitions=4, schema=DDL, key=["region", "id"])
    return made


def table_of(store, numbers) -> pa.Table:
    schema = store.admin().describe_topic("orders").schema.arrow
    return pa.Table.from_pylist([row_of(number) | {"counts": [("k", number)]} for number in numbers], schema)


def scanned(store, **how) -> list[dict]:
    return store.topic("orders").scan(**how).to_arrow().to_pylist(maps_as_pydicts="strict")


def by_id(rows) -> list[dict]:
    return sorted(rows, key=lambda row: row["id"])


def by_place(rows) -> list[dict]:
    return sorted(rows, key=lambda row: (row["_replog_partition"], row["_replog_offset"]))


def test_rows_that_were_sent_alone_and_as_a_table_are_read_alike(store):
    with store.producer() as producer:
        handles = [producer.send("orders", row_of(number), headers=[("h", b"1")]) for number in range(150)]
        producer.send_arrow("orders", table_of(store, range(150, 300))).result()
        placed = {number: handle.result().partition for number, handle in enumerate(handles)}
    expected = [row_of(number) for number in range(300)]
    table = store.topic("orders").scan().to_arrow()
    assert table.schema.names == NAMES
    assert table.schema == RowSchema(DDL, ("region", "id")).arrow
    assert by_id(scanned(store)) == expected
    with store.consumer("orders", auto_offset_reset="earliest") as reader:
        records = list(reader.poll(timeout_ms=10_000, max_records=1000))
    assert by_id(record.value for record in records) == expected
    for record in records:
        kinds = [pa.string(), pa.int64()]
        assert record.key == key_bytes([record.value["region"], record.value["id"]], kinds)
        assert record.partition == partition_of(record.key, 4)
        assert record.headers == ((("h", b"1"),) if record.value["id"] < 150 else ())
        assert record.partition == placed.get(record.value["id"], record.partition)


def test_only_columns_asked_for_are_read_with_those_of_the_log(store):
    with store.producer() as producer:
        producer.send_arrow("orders", table_of(store, range(40))).result()
    table = store.topic("orders").scan(columns=["_replog_offset", "tags", "_replog_partition", "id"]).to_arrow()
    assert table.schema.names == ["_replog_offset", "tags", "_replog_partition", "id"]
    offsets: dict[int, list[int]] = {}
    for row in table.to_pylist():
        assert row["tags"] == row_of(row["id"])["tags"]
        offsets.setdefault(row["_replog_partition"], []).append(row["_replog_offset"])
    assert all(numbers == list(range(len(numbers))) for numbers in offsets.values())
    every = store.topic("orders").scan(columns=LOG_COLUMNS).to_arrow()
    assert every.schema.names == list(LOG_COLUMNS)
    assert every.num_rows == 40
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_OPTION"):
        store.topic("orders").scan(columns=["offset"])


def test_its_objects_are_arrow_files_with_the_columns_in_the_open(tmp_path):
    store = spark_replog.init(str(tmp_path / "s"), 1, fsync=False)
    store.admin().create_topic("orders", partitions=4, schema=DDL, key="id", config={"compression.type": "zstd"})
    store.admin().create_topic("notes", ledger_name="shared")
    store.admin().create_topic("sales", schema="id INT", ledger_name="shared")
    store.admin().create_topic("visits", schema="id INT", ledger_name="shared")
    with store.producer(inline_max_bytes=0, linger_ms=60_000) as producer:
        producer.send_arrow("orders", table_of(store, range(10)))
        producer.send("notes", b"x")
        producer.send("sales", {"id": 1})
        producer.send("visits", {"id": 2})
        producer.flush()
    columns = []
    for path in tmp_path.rglob("*.arrow"):
        with pa.ipc.open_file(path) as file:
            columns.append(tuple(file.read_all().schema.names))
    assert sorted(columns) == sorted(
        [(*NAMES, "_replog_timestamp"), ("key", "value", "timestamp"), *[("id", "_replog_timestamp")] * 2]
    )


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        (b"bytes", ["bytes", "dict"]),
        (None, ["tombstone", "dict"]),
        ({"id": 1}, ["'region'", "NOT NULL"]),
        ({"id": None, "region": "r"}, ["'id'", "NOT NULL"]),
        ({"id": 1, "region": "r", "more": 1}, ["more"]),
        ({"id": "one", "region": "r"}, ["'id' BIGINT", "str 'one'"]),
        ({"id": 2**63, "region": "r"}, ["'id' BIGINT"]),
        ({"id": True, "region": "r"}, ["'id' BIGINT", "bool"]),
        ({"id": 1, "region": "r", "amount": Decimal("0.001")}, ["'amount' DECIMAL(12,2)"]),
        ({"id": 1, "region": "r", "place": {"x": "?"}}, ["'place'"]),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_nothing_is_sent(store, row, facts):
    with store.producer() as producer:
        with pytest.raises(InvalidConfigError) as caught:
            producer.send("orders", row)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert all(fact in str(caught.value) for fact in ["'orders'", *facts]), str(caught.value)
        with pytest.raises(InvalidConfigError, match="key"):
            producer.send("orders", row_of(1), key=b"k")
    assert scanned(store) == []


def test_bytes_and_rows_are_not_mixed_up(store):
    store.admin().create_topic("notes")
    with store.producer() as producer:
        with pytest.raises(InvalidConfigError, match="INVALID_RECORD"):
            producer.send("notes", {"id": 1})
        with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA"):
            producer.send_arrow("notes", table_of(store, [1]).select(["id"]))
        with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA") as caught:
            producer.send_arrow("orders", pa.table({"key": [b"k"], "value": [b"v"]}))
        assert "'key'" in str(caught.value)
    store.admin().create_topic("orders-2", partitions=4)
    for names in (("orders", "orders-2"), ("notes", "orders")):
        with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA"):
            TopicCopy(store.cluster, names[0], store.cluster, names[1], by_key=True)
    with pytest.raises(InvalidConfigError, match="POLICY_VIOLATION"):
        store.admin().create_topic("t", schema="id INT", config={"cleanup.policy": "compact"})
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA"):
        store.admin().create_topic("t", key=["id"])


def test_two_versions_side_by_side_lose_nothing(store):
    older = store.producer(inline_max_bytes=0)
    older.send("orders", row_of(1)).result()
    asleep = store.topic("orders").scan()
    wider = DDL.replace("day DATE", "day DATE, note STRING").replace("DECIMAL(12,2)", "DECIMAL(14,3)")
    wider = wider.replace("x: DOUBLE", "z: INT, x: DOUBLE")
    described = store.admin().evolve_schema("orders", wider)
    assert described.schema.version == 2
    assert store.admin().evolve_schema("orders", wider).schema.version == 2
    new_row = row_of(2) | {"note": "n", "amount": Decimal("2.125"), "place": {"z": 7, "x": 0.0, "y": 1.0}}
    with store.producer(inline_max_bytes=0) as newer, older:
        older.send("orders", row_of(3)).result()
        newer.send("orders", new_row).result()
        older.send_arrow("orders", table_of(store, [4]).select(["id", "region"])).result()
    assert {row["id"] for row in asleep.to_arrow().to_pylist()} == {1}
    rows = {row["id"]: row for row in scanned(store)}
    assert rows[2] == new_row
    assert list(rows[1]) == RowSchema(wider).names
    assert rows[1]["note"] is None
    assert rows[1]["amount"] == Decimal("0.010")
    assert rows[3]["place"] == {"z": None, "x": 0.5, "y": None}
    assert rows[4] == {**dict.fromkeys(RowSchema(wider).names), "id": 4, "region": "r1"}
    versions = {
        item.object.schema_version
        for part in range(4)
        for item in store.cluster.topic_state(store.cluster.lookup("orders"))[0].ask(
            lambda state: state.sections(store.cluster.lookup("orders").topic_id, part, 0, 99)  # noqa: B023
        )
    }
    assert versions == {1, 2}
    with store.consumer("orders", auto_offset_reset="earliest") as reader:
        values = {record.value["id"]: record.value for record in reader.poll(timeout_ms=10_000)}
    assert values == rows


def test_a_writer_that_learns_of_a_version_takes_its_columns(store):
    with store.producer(metadata_max_age_ms=1) as producer:
        producer.send("orders", row_of(1)).result()
        store.admin().evolve_schema("orders", DDL + ", note STRING")
        for number in range(2, 200):
            try:
                producer.send("orders", row_of(number) | {"note": "n"}).result()
                break
            except InvalidConfigError:  # its metadata are older
                producer.send("orders", row_of(number)).result()
    assert "n" in {row["note"] for row in scanned(store)}


def test_changes_that_older_rows_do_not_fit_are_refused(store):
    store.admin().create_topic("notes")
    for topic, ddl in (("orders", DDL.replace("day DATE, ", "")), ("notes", "id INT")):
        with pytest.raises(InvalidConfigError) as caught:
            store.admin().evolve_schema(topic, ddl)
        assert caught.value.code is ErrorCode.REPLOG_INVALID_SCHEMA
    assert store.admin().describe_topic("orders").schema.version == 1


def test_small_objects_are_joined_into_one_of_the_newest_version(store):
    with store.producer(inline_max_bytes=0) as producer:
        for number in range(6):
            producer.send("orders", row_of(number), headers=[("h", b"1")] if number == 4 else None).result()
        store.admin().evolve_schema("orders", DDL + ", note STRING")
        for number in range(6, 40):
            producer.send("orders", row_of(number)).result()
    before = by_id(scanned(store))
    places = by_place(scanned(store, columns=LOG_COLUMNS))
    report = Compactor(store.cluster).compact(store.cluster.lookup("orders"), is_eager=True)
    assert report.failed_count == 0
    assert report.sections_after < report.sections_before
    assert by_id(scanned(store)) == before
    assert by_place(scanned(store, columns=LOG_COLUMNS)) == places


def test_times_headers_and_partitions_come_with_reserved_columns(store):
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    table = table_of(store, range(3)).select(["id", "region"])
    table = table.append_column("_replog_timestamp", pa.array([moment, None, moment], pa.timestamp("ms", tz="UTC")))
    table = table.append_column("_replog_partition", pa.array([3, 3, 3], pa.int32()))
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = table.append_column("_replog_headers", pa.array([[("h", b"1")], [], None], pairs))
    with store.producer() as producer:
        producer.send_arrow("orders", table).result()
        handle = store.cluster.lookup("orders")
        producer.send("orders", row_of(9), partition=3, timestamp_ms=5).result()
    rows = scanned(store, columns=["id", "_replog_timestamp", "_replog_partition", "_replog_headers"])
    assert [row["_replog_partition"] for row in rows] == [3] * 4
    assert rows[0]["_replog_timestamp"] == moment == rows[2]["_replog_timestamp"]
    assert rows[0]["_replog_headers"] == [{"key": "h", "value": b"1"}]
    assert rows[1]["_replog_headers"] is None
    assert rows[3]["_replog_timestamp"] == datetime.fromtimestamp(0.005, UTC)
    ledger, _ = store.cluster.topic_state(handle)
    first = offsets_for_times(ledger, store.cluster.brokers, "orders", handle.topic_id, {3: 1_600_000_000_000})
    assert first == {3: 1}


def test_a_topic_without_a_key_spreads_its_rows_and_has_no_keys(store):
    store.admin().create_topic("loose", partitions=2, schema="id INT, `odd name` STRING")
    with store.producer() as producer:
        producer.send("loose", {"odd name": "x"}).result()
        producer.send_arrow("loose", pa.table({"id": pa.array([1], pa.int16())})).result()
    with store.consumer("loose", auto_offset_reset="earliest") as reader:
        records = reader.poll(timeout_ms=10_000)
    assert [record.key for record in records] == [None, None]
    assert sorted((record.value["id"] or 0, record.value["odd name"]) for record in records) == [(0, "x"), (1, None)]


def test_a_topic_that_was_made_again_with_other_columns_refuses_waiting_rows(store):
    with store.producer(linger_ms=60_000, metadata_max_age_ms=1) as producer:  # the sender's thread looks too
        waiting = producer.send("orders", row_of(1))
        store.admin().delete_topic("orders")
        store.admin().create_topic("orders", partitions=4)
        producer._parts.metadata.refresh()  # or the sender's thread did, and found no topic between the two
        assert producer.schema_for("orders") is None
        with pytest.raises(ReplogError) as caught:
            waiting.result(timeout=60)
        assert caught.value.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert store.topic("orders").scan().to_arrow().num_rows == 0


@pytest.mark.parametrize("step", ["made", "made as a table", "drained"])
@pytest.mark.parametrize("ddl", ["id BIGINT, region BINARY", None])
def test_a_row_of_a_topic_that_is_made_again_meanwhile_is_never_read_as_the_new_ones(store, step, ddl):
    """Between any two steps of a send, by another thread that has sent to the new topic already."""

    def made_again():
        store.admin().delete_topic("orders")
        store.admin().create_topic("orders", schema=ddl)
        with store.producer() as other:
            other.send("orders", {"id": -1} if ddl else b"new").result(timeout=60)
        parts.metadata.take_newest("orders", is_certain=True)

    with store.producer(linger_ms=0) as producer:
        parts = producer._parts
        producer.send("orders", row_of(0)).result(timeout=60)
        where, name = {
            "made": (producer, "_row"),
            "made as a table": (producer, "_fitting"),
            "drained": (parts.accumulator, "drain"),
        }[step]
        real, again = getattr(where, name), []

        def slow(*given):
            done = real(*given)
            if done and not again:
                again.append(True)
                made_again()
            return done

        setattr(where, name, slow)
        if step == "made as a table":
            with pytest.raises(ReplogError) as caught:
                producer.send_arrow("orders", table_of(store, [1])).result(timeout=60)
        else:
            with pytest.raises(ReplogError) as caught:
                producer.send("orders", row_of(1)).result(timeout=60)
        assert caught.value.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        producer.send("orders", {"id": 2, "region": b"r"} if ddl else b"new").result(timeout=60)
    rows = scanned(store, columns=["id", "region"] if ddl else ["value"])
    assert rows == ([{"id": -1, "region": None}, {"id": 2, "region": b"r"}] if ddl else [{"value": b"new"}] * 2)


def test_rows_survive_a_transaction_and_a_large_batch(store):
    with store.producer(transactional_id="t", batch_size=2_000, compression_type="lz4") as producer:
        with producer.transaction():
            for number in range(300):
                producer.send("orders", row_of(number))
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("orders", row_of(999))
            raise ZeroDivisionError
    assert by_id(scanned(store)) == [row_of(number) for number in range(300)]


def test_rows_become_json_without_loss():
    row = {"id": 1, "amount": Decimal("1.10"), "raw": b"\xff", "at": datetime(2024, 1, 1, tzinfo=UTC),
           "x": float("nan"), "m": {1: [None, date(2024, 1, 1)]}}  # fmt: skip
    assert json.loads(row_json(row)) == {
        "id": 1, "amount": "1.10", "raw": "/w==", "at": "2024-01-01T00:00:00+00:00", "x": "NaN",
        "m": {"1": [None, "2024-01-01"]},
    }  # fmt: skip


@pytest.mark.parametrize(("schema", "config", "expected"), [
    ("a STRING", {}, "zstd"), ("a STRING", {"compression.type": "none"}, "none"),
    ("a STRING", {"compression.type": "lz4"}, "lz4"), (None, {}, "none"),
])  # fmt: skip
def test_typed_topics_are_compressed_unless_they_say_otherwise(store, schema, config, expected):
    """By writers and by compaction, of what the ledger has: no setting is written for it."""
    cluster = Cluster.shared(store.path)
    store.admin().create_topic("t", partitions=1, schema=schema, config=config)
    for _ in range(2):
        with store.producer() as producer:
            rows = pa.table({"a": ["x"] * 5}) if schema else pa.table({"value": ["x"] * 5})
            producer.send_arrow("t", rows).result()
    assert make_write_plan(cluster, ["t"]).topic("t").compression == expected
    handle = cluster.newest_topics(["t"])["t"]
    ledger = cluster.topic_ledger(handle.ledger_id)
    run = ledger.ask(lambda state: make_run(state, handle.topic_id, 0, state.sections(handle.topic_id, 0, 0, 10)))
    assert run.compression == expected


def test_topics_with_different_columns_are_not_one_table(store):
    store.admin().create_topic("notes", partitions=1)
    with store.producer() as producer:
        producer.send("orders", row_of(1))
        producer.send("notes", b"x")
    with (
        store.consumer("notes", "orders", auto_offset_reset="earliest") as reader,
        pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA") as caught,
    ):
        reader.to_arrow()
    assert "notes and orders" in str(caught.value)
