"""Run by ``spark-submit --py-files``: nothing is installed, the wheel comes along."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import spark_replog

path = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
spark_replog.register(spark)
spark_replog.register(spark)
spark.range(10).selectExpr("cast(id as string) as value").write.format("replog").mode("append").option(
    "topic", "carried"
).save(path)
row_count = spark.read.format("replog").option("subscribe", "carried").load(path).count()


def origin(_):
    import spark_replog

    return spark_replog.__file__


where = spark.sparkContext.parallelize([0], 1).map(origin).collect()[0]
print(f"@@replog rows={row_count} driver={spark_replog.__file__} worker={where}", flush=True)
spark.stop()
