"""Rows of a typed topic with every kind of column, and what a driver does with them; see ``remote.run_in``."""

from __future__ import annotations

DDL = (
    "id BIGINT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, tags ARRAY<STRING>, "
    "counts MAP<STRING, INT>, place STRUCT<x: DOUBLE, inner: STRUCT<y: ARRAY<BIGINT>>>, took INTERVAL DAY TO SECOND, "
    "raw BINARY, nothing STRING, ok BOOLEAN"
)
SCHEMA = (
    "struct<id:bigint,amount:decimal(12,2),at:timestamp,local:timestamp_ntz,day:date,tags:array<string>,"
    "counts:map<string,int>,place:struct<x:double,inner:struct<y:array<bigint>>>,took:interval day to second,"
    "raw:binary,nothing:string,ok:boolean>"
)
ROWS = """
select id, if(id % 5 = 0, null, cast(id as decimal(10, 1))) amount,
  timestamp_micros(id * 1000003 - 500000000000000) at,
  timestamp_ntz'1969-12-31 23:59:59.999991' + make_dt_interval(0, 0, 0, id) local,
  date_add(date'1960-01-01', cast(id as int)) day,
  if(id % 3 = 0, null, array(cast(id as string), null)) tags, map('k', cast(id as int), 'null', null) counts,
  if(id % 4 = 0, null, named_struct('x', id / 2, 'inner', named_struct('y', array(id)))) place,
  make_dt_interval(0, 0, 0, id) took, encode(cast(id as string), 'utf-8') raw, cast(null as string) nothing,
  id % 2 = 0 ok
from range({start}, {end}, 1, 2)
"""


def rows(start, end):
    return ROWS.format(start=start, end=end)


def write(spark, path, topic, query, options):
    spark.sql(query).write.format("replog").mode("append").option("topic", topic).options(**options).save(path)


def compare(spark, path, topic, query):
    """Return the schema of a topic, its rows, and those that differ from a query's, as texts."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    read = spark.read.format("replog").option("subscribe", topic).load(path)
    expected = spark.createDataFrame([], read.schema).unionByName(spark.sql(query))

    def texts(frame):
        text = "to_json(struct(*), map('ignoreNullFields', 'false'))"  # times in milliseconds
        columns = f"concat({text}, cast(at as string), cast(local as string)) text"
        return {row.text for row in frame.selectExpr(columns).collect()}

    return {"schema": read.schema.simpleString(), "count": read.count(), "other": sorted(texts(read) ^ texts(expected))}


def copy(spark, path, source, sink, checkpoint, limits=None):
    """Copy one typed topic into another until nothing is left; return the rows of each micro-batch.

    Before Spark 4.2 a query with limits, and available now, ends after one micro-batch.
    """
    frame = spark.readStream.format("replog").option("subscribe", source).option("startingOffsets", "earliest")
    frame = frame.options(**(limits or {})).load(path)
    writer = frame.writeStream.format("replog").option("topic", sink).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(path)
    query.awaitTermination(200)
    if query.exception() is not None:
        raise query.exception()
    return [progress["numInputRows"] for progress in query.recentProgress]


def through_spark(spark, path, topic, name):
    """Append an Arrow file's rows to a topic, and write the topic's rows into another file, in the log's order."""
    import pyarrow as pa

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    schema = spark.read.format("replog").option("subscribe", topic).load(path).schema
    with pa.ipc.open_file(name) as file:
        frame = spark.createDataFrame(file.read_all(), schema)  # Spark takes nested times without a zone for others
    frame.coalesce(1).write.format("replog").mode("append").option("topic", topic).save(path)
    read = spark.read.format("replog").option("subscribe", topic).option("includeMetadata", "true").load(path)
    table = read.orderBy("_metadata.offset").toArrow()
    with pa.OSFile(name + ".read", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
