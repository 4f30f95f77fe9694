"""Section 2.1 of the connector's contract: options of the sink."""

from __future__ import annotations

import pytest
from remote import run_in
from spark_driver import JobFailed


def put(spark, store, query, **options):
    spark.call("write_sql", path=str(store.path), query=query, options=options)


def rows_of(spark, store, topic):
    return spark.call("read", path=str(store.path), topic=topic)


@pytest.mark.case("connector-option-topic-trimmed-wins-over")
def test_topic_option_is_trimmed_and_wins_over_the_column(spark, store):
    chosen, other = store.topic("chosen", 1), store.topic("other", 1)
    put(spark, store, f"select 'a' value, '{other}' topic", topic=f"  {chosen} ")
    put(spark, store, "select 'b' value, cast(null as string) topic", topic=chosen)
    put(spark, store, "select 'c' value, 5 topic", topic=chosen)
    assert [row[3] for row in rows_of(spark, store, chosen)] == ["a", "b", "c"]
    assert rows_of(spark, store, other) == []


@pytest.mark.case("connector-settings-kafka-s-producer-taken")
def test_a_job_keeps_its_kafka_options(spark, store):
    topic = store.topic("kept-options", 1)
    options = {
        "kafka.bootstrap.servers": "broker:9092", "kafka.security.protocol": "SASL_SSL", "kafka.acks": "all",
        "kafka.linger.ms": "5", "kafka.batch.size": "16384", "kafka.max.block.ms": "1000",
        "kafka.compression.type": "lz4", "kafka.client.id": "job", "kafka.enable.idempotence": "true",
        "kafka.max.poll.records": "9", "includeHeaders": "true", "KAFKA.Request.Timeout.MS": "20000",
    }  # fmt: skip
    put(spark, store, "select 'a' value", topic=topic, **options)
    assert [row[3] for row in rows_of(spark, store, topic)] == ["a"]
    ignored = [line for line in spark.log_text().splitlines() if "there are no servers here" in line]
    assert any("kafka.bootstrap.servers" in line for line in ignored)
    assert not any("kafka.acks" in line or "linger" in line for line in ignored)


@pytest.mark.case("connector-settings-kafka-s-producer-taken")
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compression(spark, store, compression):
    topic = store.topic(f"compressed-{compression}", 1)
    put(spark, store, "select 'a' value", topic=topic, **{"kafka.compression.type": compression})
    assert [row[3] for row in rows_of(spark, store, topic)] == ["a"]


@pytest.mark.case("connector-serializers-wrong-values-refused")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kafka.key.serializer": "x"}, "kafka option 'key.serializer' is not supported"),
        ({"kafka.value.serializer": "x"}, "kafka option 'value.serializer' is not supported"),
        ({"kafka.compression.type": "gzip"}, "[UNSUPPORTED_COMPRESSION_TYPE]"),
        ({"kafka.acks": "2"}, "all, -1, 0, 1"),
        ({"kafka.linger.ms": "soon"}, "'soon' for 'linger.ms'"),
        ({"kafka.partitioner.class": "no.such.Class"}, "partitioner.class 'no.such.Class' cannot be imported"),
        ({"kafka.lingr.ms": "5"}, "Did you mean 'linger.ms'?"),
        ({"subscrib": "a"}, "Did you mean 'subscribe'?"),
    ],
)
def test_refused_options(spark, store, options, text):
    if not hasattr(store, "refusals"):
        store.refusals = store.topic("refusals", 1)
    with pytest.raises(JobFailed) as caught:
        put(spark, store, "select 'a' value", topic=store.refusals, **options)
    assert text in str(caught.value)
    assert rows_of(spark, store, store.refusals) == []


@pytest.mark.case("connector-topic-option-topic-column")
def test_no_topic_anywhere(spark, store):
    with pytest.raises(JobFailed, match="topic option required when no 'topic' attribute is present"):
        put(spark, store, "select 'a' value")


@pytest.mark.case("connector-address-checked-at-once")
def test_address_is_checked_before_any_row_moves(spark, store):
    with pytest.raises(JobFailed, match=r"\[REPLOG_MISSING_OPTION\] no store is given"):
        run_in(spark, write_without_a_path)
    with pytest.raises(JobFailed, match=r"\[REPLOG_STORE_NOT_INITIALISED\]"):
        spark.call(
            "write_sql", path=str(store.folder / "none"), query="select 'a' value", options={"topic": "refusals"}
        )


def write_without_a_path(spark):
    spark.sql("select 'a' value").write.format("replog").mode("append").option("topic", "refusals").save()
