"""The schema that is read and the columns that may be written."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    DateType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_replog.errors import InvalidConfigError, ReplogError
from spark_replog.logs import Once
from spark_replog.spark.data_source import ReplogDataSource, read_schema
from spark_replog.spark.messages import QueryTask, WriteMessage
from spark_replog.spark.row_form import RowForm
from spark_replog.spark.sink import input_check
from spark_replog.spark.sink.input_check import check_write_schema
from spark_replog.spark.sink.sink import StreamWriter
from spark_replog.write.columns import is_time

HEADERS = "array<struct<key:string,value:binary>>"


def ddl(text):
    """Parse ``name type, ...`` without a JVM."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType

    types = {
        "string": StringType(), "binary": BinaryType(), "int": IntegerType(), "long": LongType(),
        "timestamp": TimestampType(),
        "headers": ArrayType(
            StructType([StructField("Key", StringType(), False), StructField("VALUE", BinaryType())]), False
        ),
        "strings": ArrayType(StringType()),
    }  # fmt: skip
    pairs = [item.split() for item in text.split(",")]
    return StructType([StructField(name, types[kind]) for name, kind in pairs])


def test_read_schema():
    assert read_schema(include_headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        f"timestampType:int,headers:{HEADERS}>"
    )
    assert len(read_schema(include_headers=False).fields) == 7


def test_user_schema_is_refused():
    RowForm().views(read_schema(include_headers=False), {"orders": ()})
    with pytest.raises(InvalidConfigError, match=r"\[REPLOG_INVALID_SCHEMA\] replog has a fixed schema"):
        RowForm().views(ddl("value string"), {"orders": ()})


@pytest.mark.parametrize(
    "text",
    ["value string", "value binary,key string,partition int,headers headers,timestamp timestamp,x long"],
)
def test_accepted(text):
    check_write_schema(ddl(text), topic="t")


@pytest.mark.parametrize(
    ("text", "topic", "message"),
    [
        ("key string", "t", "Required attribute 'value' not found"),
        ("Value string", "t", "Required attribute 'value' not found"),
        ("value string", None, "topic option required when no 'topic' attribute is present"),
        ("value long", "t", r"value must be a\(n\) string or binary"),
        ("value string,key long", "t", r"key must be a\(n\) string or binary"),
        ("key string", None, "topic option required"),
        ("value long,key long", "t", r"key attribute unsupported type bigint. key must be"),
        ("value string,topic int", None, r"topic must be a\(n\) string"),
        ("value string,partition long", "t", r"partition must be a\(n\) int"),
        (
            "value string,headers strings",
            "t",
            r"headers must be a\(n\) array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_refused(text, topic, message):
    with pytest.raises(InvalidConfigError, match=message):
        check_write_schema(ddl(text), topic=topic)


def test_a_topic_column_of_any_type_is_ignored_where_the_option_names_the_topic():
    check_write_schema(ddl("value string,topic int,offset long,timestampType int"), topic="t")


def test_a_timestamp_column_that_is_none_is_ignored_and_named_once(caplog, monkeypatch):
    monkeypatch.setattr(input_check, "WARNED_TYPES", Once())
    check_write_schema(ddl("value string,timestamp timestamp"), topic="t")
    assert caplog.messages == []
    for _ in range(2):
        check_write_schema(ddl("value string,timestamp long"), topic="t")
    check_write_schema(ddl("value string,timestamp string"), topic="t")
    assert ["bigint" in text for text in caplog.messages] == [True, False]
    assert all("'timestamp'" in text and "TIMESTAMP" in text for text in caplog.messages)


@pytest.mark.parametrize(
    "kind", [TimestampType(), TimestampNTZType(), StringType(), LongType(), DateType(), NullType()], ids=str
)
def test_driver_and_tasks_agree_on_what_a_timestamp_column_is(kind, caplog, monkeypatch):
    """The driver names what is ignored, the tasks ignore it: each has its own types to look at."""
    monkeypatch.setattr(input_check, "WARNED_TYPES", Once())
    check_write_schema(StructType([StructField("value", StringType()), StructField("timestamp", kind)]), topic="t")
    assert is_time(to_arrow_type(kind, timezone="UTC")) == (caplog.messages == [])


def test_a_write_is_refused_in_kafkas_order_save_mode_then_options_then_columns(source):
    wrong, columns = {"path": "/s", "kafka.key.serializer": "x"}, ddl("key string")
    for options, overwrite, text in (
        (wrong, True, "save mode Overwrite not allowed for Kafka"),
        (wrong, False, "kafka option 'key.serializer' is not supported"),
        ({"path": "/s"}, False, "topic option required"),
        ({"path": str(source.path), "topic": source.topic("t")}, False, "Required attribute 'value' not found"),
    ):
        with pytest.raises(InvalidConfigError, match=text):
            ReplogDataSource(options).writer(columns, overwrite)


def test_a_commit_without_any_message_is_told_as_what_a_continuous_trigger_does():
    writer = StreamWriter.__new__(StreamWriter)  # the commit needs nothing of what the planning makes
    with pytest.raises(ReplogError, match=r"\[REPLOG_ENVIRONMENT\].*trigger\(processingTime=...\)"):
        writer.commit([None, None], 0)
    with pytest.raises(ReplogError, match=r"\[INVALID_REQUEST\]"):
        writer.commit([None, WriteMessage(QueryTask("q", 0, "r"), 1)], 0)
    writer.commit([], 0)
