"""Section 2.2 of the connector's contract: which columns the sink takes, and what becomes of them."""

from __future__ import annotations

import pytest
from remote import run_in
from spark_driver import JobFailed


def put(spark, store, query, **options):
    spark.call("write_sql", path=str(store.path), query=query, options=options)


def same_content(spark, path, topic, expected):
    """Compare what lies in a topic with what a query returns, by chispa."""
    from chispa import assert_df_equality

    frame = spark.read.format("replog").option("subscribe", topic).option("includeHeaders", "true").load(path)
    wanted = spark.sql(expected)
    assert_df_equality(
        frame.select(*wanted.columns), wanted, ignore_row_order=True, ignore_nullable=True, ignore_metadata=True
    )


@pytest.mark.case("connector-key-value-string-binary-null")
def test_key_and_value_of_every_kind(spark, store):
    topic = store.topic("kinds", 1)
    for query in (
        "select 'k' key, 'v' value",
        "select binary('k2') key, binary('v2') value",
        "select cast(null as string) key, 'no key' value",
        "select 'gone' key, cast(null as binary) value",
        "select 'only value' value",
        "select '' key, '' value",
        "select 'ä€' value",
    ):
        put(spark, store, query, topic=topic)
    run_in(spark, same_content, path=str(store.path), topic=topic, expected="""
        select * from values (binary('k'), binary('v'), 0L), (binary('k2'), binary('v2'), 1L),
            (null, binary('no key'), 2L), (binary('gone'), null, 3L), (null, binary('only value'), 4L),
            (binary(''), binary(''), 5L), (null, X'C3A4E282AC', 6L) as t(key, value, offset)
    """)  # fmt: skip


@pytest.mark.case("connector-headers-order-repetition-empty")
def test_headers_keep_order_and_repetition(spark, store):
    topic = store.topic("headers", 1)
    pair = "named_struct('key', {}, 'value', {})"
    some = f"array({pair.format(repr('b'), 'X' + repr('01'))}, {pair.format(repr('a'), 'cast(null as binary)')}, "
    some += f"{pair.format(repr('b'), 'X' + repr('02'))})"
    put(spark, store, f"select '1' value, {some} headers", topic=topic)
    put(spark, store, "select '2' value, cast(array() as array<struct<key:string,value:binary>>) headers", topic=topic)
    put(spark, store, "select '3' value, cast(null as array<struct<key:string,value:binary>>) headers", topic=topic)
    put(spark, store, "select '4' value, array(named_struct('KEY', 'a', 'Value', X'03')) headers", topic=topic)
    put(spark, store, "select '5' value", topic=topic)
    run_in(spark, same_content, path=str(store.path), topic=topic, expected=f"""
        select binary('1') value, {some} headers
        union all select binary('2'), null union all select binary('3'), null union all select binary('5'), null
        union all select binary('4'), array(named_struct('key', 'a', 'value', X'03'))
    """)  # fmt: skip


@pytest.mark.case("connector-key-s-murmur2-decides-partition")
def test_keys_go_where_kafka_puts_them(spark, store):
    four, three = store.topic("four", 4), store.topic("three", 3)
    query = "select cast(id as string) key, cast(id as string) value from range(0, {}, 1, 1)"
    put(spark, store, query.format(5), topic=four)
    put(spark, store, query.format(10), topic=three)
    for topic, expected in ((four, [0, 3, 0, 3, 1]), (three, [2, 0, 2, 2, 1, 0, 1, 0, 0, 2])):
        by_key = {int(row[2]): row[0] for row in spark.call("read", path=str(store.path), topic=topic)}
        assert [by_key[key] for key in range(len(expected))] == expected


@pytest.mark.case("connector-partition-column-wins-null-leaves")
def test_partition_column_wins_and_null_leaves_it_to_the_key(spark, store):
    topic = store.topic("directed", 4)
    put(
        spark, store,
        "select '1' key, 'there' value, 2 partition union all select '1', 'by key', cast(null as int)", topic=topic,
    )  # fmt: skip
    rows = spark.call("read", path=str(store.path), topic=topic)
    assert {row[3]: row[0] for row in rows} == {"there": 2, "by key": 3}


@pytest.mark.case("connector-timestamp-column-kafka-s")
def test_timestamp_column_is_kept_and_null_means_now(spark, store):
    topic = store.topic("times", 1)
    put(
        spark, store,
        "select 'then' value, timestamp'2001-02-03 04:05:06.789' timestamp "
        "union all select 'now', cast(null as timestamp)", topic=topic,
    )  # fmt: skip

    def times(spark, path, topic):
        frame = spark.read.format("replog").option("subscribe", topic).load(path)
        return [
            list(row)
            for row in frame.selectExpr(
                "cast(value as string)", "cast(timestamp as string)",
                "abs(unix_timestamp(timestamp) - unix_timestamp()) < 600 recent",
            ).orderBy("recent").collect()
        ]  # fmt: skip

    (then, now) = run_in(spark, times, path=str(store.path), topic=topic)
    assert then == ["then", "2001-02-03 04:05:06.789", False]
    assert now[2] is True


@pytest.mark.case("connector-timestamp-column-another-type")
@pytest.mark.parametrize(
    ("column", "kind"),
    [("'yesterday'", "string"), ("7L", "bigint"), ("timestamp_ntz'2001-02-03 04:05:06'", "timestamp_ntz")],
)
def test_a_timestamp_column_that_is_none_is_ignored_as_by_kafka_and_the_log_says_so(spark, store, column, kind):
    topic = store.topic(f"no-time-{kind.replace('_', '-')}", 1)
    query = f"select 'a' value, {column} timestamp"
    put(spark, store, query, topic=topic)

    def stream_and_read(spark, path, topic, query, checkpoint):
        ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        frame = ticks.selectExpr(*query.removeprefix("select ").split(", "))
        writer = frame.writeStream.format("replog").option("topic", topic).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(path)
        query.awaitTermination(600)
        if query.exception() is not None:
            raise query.exception()
        frame = spark.read.format("replog").option("subscribe", topic).load(path)
        return [
            list(row)
            for row in frame.selectExpr(
                "cast(value as string)", "abs(unix_timestamp(timestamp) - unix_timestamp()) < 600 recent"
            ).collect()
        ]

    arguments = {"path": str(store.path), "topic": topic, "query": query, "checkpoint": store.checkpoint(topic)}
    rows = run_in(spark, stream_and_read, **arguments)
    assert len(rows) >= 2
    assert all(row == ["a", True] for row in rows)
    lines = [line for line in spark.log_text().splitlines() if "'timestamp'" in line and "ignored" in line]
    assert any(f" {kind} " in line for line in lines)


@pytest.mark.case("connector-other-columns-ignored")
def test_unknown_columns_are_ignored(spark, store):
    topic = store.topic("extra", 1)
    put(spark, store, "select 'a' value, 1.5D price, array(1) list, 7L offset, 'x' timestampType", topic=topic)
    assert [row[1:4] for row in spark.call("read", path=str(store.path), topic=topic)] == [[0, None, "a"]]


@pytest.mark.case("connector-frame-was-read-goes-back-own")
def test_a_frame_read_from_the_log_goes_back_to_its_topic_unless_told_otherwise(spark, store):
    source, target = store.topic("loop", 2), store.topic("loop-target", 2)
    put(spark, store, "select 'k' key, 'v' value, 1 partition", topic=source)

    def write_back(spark, path, source, options):
        frame = spark.read.format("replog").option("subscribe", source).load(path)
        frame.write.format("replog").mode("append").options(**options).save(path)

    run_in(spark, write_back, path=str(store.path), source=source, options={"topic": target})
    run_in(spark, write_back, path=str(store.path), source=source, options={})
    path = str(store.path)
    assert [row[:2] for row in spark.call("read", path=path, topic=target)] == [[1, 0]]
    assert [row[:2] for row in spark.call("read", path=path, topic=source)] == [[1, 0], [1, 1]]


@pytest.mark.case("connector-missing-value-wrong-types-wrong")
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("select 'a' key", "Required attribute 'value' not found"),
        ("select 'a' Value", "Required attribute 'value' not found"),
        ("select 1 value", "value attribute unsupported type int. value must be a(n) string or binary"),
        ("select 'a' value, 1L key", "key attribute unsupported type bigint. key must be a(n) string or binary"),
        ("select 'a' value, 1L partition", "partition must be a(n) int"),
        ("select 'a' value, '1' partition", "partition must be a(n) int"),
        ("select 'a' value, 1S partition", "partition must be a(n) int"),
        ("select 'a' value, array('x') headers", "headers must be a(n) array<struct<key:string,value:binary>>"),
        ("select 'a' value, map('a', X'00') headers", "headers must be a(n) array<struct<key:string,value:binary>>"),
        (
            "select 'a' value, array(named_struct('key', cast(null as string), 'value', X'00')) headers",
            "[INVALID_RECORD] 1 headers have a null key",
        ),
        ("select 'a' value, -1 partition", "[INVALID_PARTITIONS]"),
        ("select 'a' value, 9 partition", "names partition 9, but topic 'strict' has partitions 0 to 1"),
    ],
)
def test_refused_rows(spark, store, query, text):
    if not hasattr(store, "strict"):
        store.strict = store.topic("strict", 2)
    with pytest.raises(JobFailed) as caught:
        put(spark, store, query, topic="strict")
    assert text in str(caught.value)
    assert spark.call("read", path=str(store.path), topic="strict") == []


@pytest.mark.case("connector-topic-column-several-topics-null")
def test_topic_column(spark, store):
    one, two = store.topic("by-column-1", 1), store.topic("by-column-2", 1)
    put(spark, store, f"select '{one}' topic, 'a' value union all select '{two}', 'b'")
    assert [row[3] for row in spark.call("read", path=str(store.path), topic=one)] == ["a"]
    for query, text in (
        ("select 5 topic, 'a' value", "topic must be a(n) string"),
        (f"select '{one}' topic, 'a' value union all select null, 'b'", "null topic"),
        ("select 'nowhere' topic, 'a' value", "no topic 'nowhere'"),
    ):
        with pytest.raises(JobFailed) as caught:
            put(spark, store, query)
        assert text in str(caught.value)
    assert len(spark.call("read", path=str(store.path), topic=f"{one},{two}")) == 2
