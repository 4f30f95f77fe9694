"""Topics of bytes that plain Python fills, read as columns by real Spark: as a batch and as a stream, in each mode."""

from __future__ import annotations

import pytest
from remote import run_in
from spark_driver import JobFailed

import spark_replog

DDL = "id BIGINT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<x: DOUBLE>"
CORRUPT = f"{DDL}, _corrupt_record STRING"
VALUE = b'{"id": %d, "amount": "%d.25", "at": "2024-05-06T07:08:09.123456Z", "tags": ["a", null], "place": {"x": 1}}'
BAD = {3: b'{"id": "x"}', 7: b"\xff\xfe", 11: b'{"id": 11}{"id": 12}', 15: b'{"amount": 1}'}


def decoded(spark, path, topic, options, checkpoint):
    """Return the rows of a batch read, or those of a stream up to its end."""
    reader = spark.read if checkpoint is None else spark.readStream.option("startingOffsets", "earliest")
    reader = reader.format("replog").option("subscribe", topic).option("valueFormat", "json")
    frame = reader.options(**options).load(path)
    if checkpoint is not None:
        writing = frame.writeStream.format("memory").queryName("decoded").trigger(availableNow=True)
        query = writing.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        frame = spark.table("decoded")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    texts = frame.selectExpr("to_json(struct(*)) text", "*").orderBy("text").collect()
    return {"schema": frame.schema.simpleString(), "rows": [row.text for row in texts]}


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_topic_of_bytes_is_read_as_columns(spark, store, tmp_path, is_stream):
    path, topic = str(store.path), store.topic(f"raw-{is_stream}", 2, 3)
    with spark_replog.open(path).producer() as producer:
        for number in range(20):
            producer.send(topic, BAD.get(number, VALUE % (number, number)), partition=number % 2)

    def read(**options):
        checkpoint = str(tmp_path / f"checkpoint-{options.get('mode')}") if is_stream else None
        return run_in(spark, decoded, path=path, topic=topic, options=options, checkpoint=checkpoint)

    good = [number for number in range(20) if number not in BAD]
    text = '{"id":%d,"amount":%d.25,"at":"2024-05-06T07:08:09.123Z","tags":["a",null],"place":{"x":1.0}}'
    wanted = sorted(text % (number, number) for number in good)
    answer = read(mode="DROPMALFORMED", valueSchema=DDL)
    assert answer["rows"] == wanted
    assert answer["schema"] == (
        "struct<id:bigint,amount:decimal(12,2),at:timestamp,tags:array<string>,place:struct<x:double>>"
    )
    bad = read(mode="PERMISSIVE", valueSchema=CORRUPT, columns="id,_corrupt_record")["rows"]
    assert len(bad) == 20
    assert [row for row in bad if "_corrupt" in row] == sorted(
        f'{{"_corrupt_record":{value}}}'
        for value in (
            '"{\\"id\\": \\"x\\"}"', '"{\\"b64\\":\\"//4=\\"}"', '"{\\"id\\": 11}{\\"id\\": 12}"', '"{\\"amount\\": 1}"'
        )
    )  # fmt: skip
    with pytest.raises(JobFailed, match=r"REPLOG_DESERIALIZATION.*offset [0-9]+ of raw-\w+-[01] does not fit"):
        read(mode="FAILFAST", valueSchema=DDL)
