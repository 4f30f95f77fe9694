"""One application for every way to run Spark: batch in, a stream copies it, batch out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

master, path, checkpoint, *settings = sys.argv[1:]
blocks = [setting.removeprefix("block=") for setting in settings if setting.startswith("block=")]
settings = [setting for setting in settings if not setting.startswith("block=")]
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
if master.startswith("connect:"):
    builder = builder.remote(master.removeprefix("connect:"))
elif master != "submitted":
    builder = builder.master(master)
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()

facts = {}
if not master.startswith("connect:"):
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    deadline = time.monotonic() + 180
    wanted = 3 if master.startswith(("local-cluster", "spark://")) else 1
    while executors().size() < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    facts["executors"] = executors().size() - 1

# Looked up by Spark itself: nothing was registered.
numbers = spark.range(0, 100, 1, 4).selectExpr("cast(id as string) as key", "cast(id as string) as value")
numbers.write.format("replog").mode("append").option("topic", "in").save(path)

if master.startswith("connect:"):
    import spark_replog

    spark_replog.register(spark)
    spark_replog.register(spark)

source = spark.readStream.format("replog").option("subscribe", "in").option("startingOffsets", "earliest").load(path)
query = (
    source.select("key", "value")
    .writeStream.format("replog")
    .option("topic", "out")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start(path)
)
query.awaitTermination(600)
error = query.exception()
facts["error"] = None if error is None else str(error)
spark.sql(f"create or replace temporary view copied using replog options (path '{path}', subscribe 'out')")
row = spark.sql("select count(*) n, count(distinct cast(value as string)) d, max(offset) m from copied").collect()[0]
facts["rows"], facts["distinct"] = row.n, row.d
for block in blocks:
    exec(compile(Path(block).read_text(), block, "exec"), {})
print("@@replog " + json.dumps(facts), flush=True)
spark.stop()
