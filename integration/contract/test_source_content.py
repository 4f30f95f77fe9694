"""Section 3 of the connector's contract: the columns of a read and what stands in them."""

from __future__ import annotations

import pytest
from remote import run_in

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


def written_and_read(spark, path, topic, options):
    """Write rows of every kind; compare what is read with what Kafka's connector shows, by chispa."""
    from chispa import assert_df_equality

    spark.sql(
        """
        select 0 partition, binary('k') key, binary('v') value, timestamp'2024-05-06 07:08:09.123' timestamp,
               array(named_struct('key', 'b', 'value', binary('1')), named_struct('key', 'a', 'value', binary('2')),
                     named_struct('key', 'b', 'value', cast(null as binary))) headers
        union all select 0, null, binary(''), timestamp'1970-01-01 00:00:00.001', array()
        union all select 1, binary(''), null, timestamp'2024-05-06 07:08:09', null
        """
    ).coalesce(1).write.format("replog").mode("append").option("topic", topic).save(path)
    expected = spark.sql(
        f"""
        select binary('k') key, binary('v') value, '{topic}' topic, 0 partition, 0L offset,
               timestamp'2024-05-06 07:08:09.123' timestamp, 0 timestampType,
               array(named_struct('key', 'b', 'value', binary('1')), named_struct('key', 'a', 'value', binary('2')),
                     named_struct('key', 'b', 'value', cast(null as binary))) headers
        union all select null, binary(''), '{topic}', 0, 1L, timestamp'1970-01-01 00:00:00.001', 0, null
        union all select binary(''), null, '{topic}', 1, 0L, timestamp'2024-05-06 07:08:09', 0, null
        """
    )
    frame = batch_frame(spark, path, {"subscribe": topic, **options})  # noqa: F821
    if "includeHeaders" not in options:
        expected = expected.drop("headers")
    assert_df_equality(frame, expected, ignore_nullable=True, ignore_row_order=True)
    return [[field.name, field.dataType.simpleString(), field.nullable] for field in frame.schema.fields]


@pytest.mark.case("connector-columns-types-nulls-tombstones")
@pytest.mark.parametrize("headers", [True, False])
def test_every_column(spark, store, headers):
    topic = store.topic(f"content-{headers}", 2)
    options = {"includeHeaders": "TRUE"} if headers else {}
    fields = run_in(spark, written_and_read, path=str(store.path), topic=topic, options=options)
    types = ["binary", "binary", "string", "int", "bigint", "timestamp", "int"]
    types.append("array<struct<key:string,value:binary>>")
    count = 8 if headers else 7
    assert fields == [[name, kind, True] for name, kind in zip(COLUMNS[:count], types, strict=False)]


@pytest.mark.case("connector-streams-show-same-rows")
def test_a_stream_shows_the_same_rows_as_a_batch(spark, store):
    topic = store.topic("content-stream", 1)
    path = str(store.path)
    columns = [*COLUMNS[:4], "offset", "timestamp", "timestampType", "headers"]
    query = "select 'k' key, cast(null as string) value, timestamp'2024-05-06 07:08:09.123' timestamp"
    spark.call("write_sql", path=path, query=query, options={"topic": topic})
    options = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    (batch,) = spark.call(
        "stream_run", path=path, checkpoint=store.checkpoint("content"), options=options, columns=columns
    )
    assert batch["rows"]["rows"] == [["k", None, topic, 0, 0, "2024-05-06 07:08:09.123000", 0, None]]


def append_times(spark, path, topic):
    frame = batch_frame(spark, path, {"subscribe": topic})  # noqa: F821
    row = frame.selectExpr(
        "count(distinct timestamp) times", "min(timestampType) low", "max(timestampType) high",
        "abs(unix_millis(current_timestamp()) - unix_millis(min(timestamp))) < 600000 recent",
    ).collect()[0]  # fmt: skip
    return list(row)


@pytest.mark.case("connector-timestamptype")
def test_log_append_time_is_the_time_of_the_commit(spark, store):
    topic = store.topic("append-time", 1, 3, "-c", "message.timestamp.type=LogAppendTime")
    query = "select cast(id as string) value, timestamp'2001-01-01' timestamp from range(10)"
    spark.call("write_sql", path=str(store.path), query=query, options={"topic": topic})
    assert run_in(spark, append_times, path=str(store.path), topic=topic) == [1, 1, 1, True]


@pytest.mark.case("connector-timestamptype")
def test_create_time_without_a_column_is_the_time_of_the_write(spark, store):
    topic = store.topic("create-time", 1)
    spark.call("feed", path=str(store.path), topic=topic, rows={0: 5})
    times, low, high, recent = run_in(spark, append_times, path=str(store.path), topic=topic)
    assert (times >= 1, low, high, recent) == (True, 0, 0, True)
