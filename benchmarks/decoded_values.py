"""JSON in a topic of bytes, as columns in Spark: ``valueFormat=json`` against ``from_json``, in one interleaved run.

    python -m benchmarks.decoded_values [--rows 1000000] [--rounds 3]

Both sum and count the same ten columns: numbers, text, a list, a struct. Needs Spark and Java.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING

import pyarrow as pa

import spark_replog
from benchmarks.bench_session import scratch, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

DDL = (
    "id BIGINT, n INT, price DOUBLE, share DOUBLE, amount DECIMAL(12,2), name STRING, city STRING, ok BOOLEAN, "
    "tags ARRAY<STRING>, place STRUCT<x: DOUBLE, y: DOUBLE>"
)
SUMS = (
    "count(*)", "sum(id)", "sum(n)", "sum(price)", "sum(share)", "sum(amount)",
    "sum(length(name))", "sum(length(city))",
    "count_if(ok)", "sum(size(tags))", "sum(place.x + place.y)",
)  # fmt: skip


def value_of(number: int) -> bytes:
    """Return one row as JSON."""
    row = {
        "id": number, "n": number % 1000, "price": number / 7, "share": number % 97 / 97,
        "amount": f"{number % 5000}.25",
        "name": f"customer number {number}", "city": f"city {number % 300}", "ok": number % 2 == 0,
        "tags": ["new", f"t{number % 10}"], "place": {"x": number / 3, "y": -1.5},
    }  # fmt: skip
    return json.dumps(row).encode()


def main() -> None:
    """Print the seconds and rows per second of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with scratch(None) as folder, session("decoded-values") as spark:
        measure(spark, str(folder / "store"), args.rows, args.rounds)


def measure(spark: SparkSession, path: str, row_count: int, rounds: int) -> None:
    """Fill a topic, then read it in turns."""
    from pyspark.sql import functions as f

    store = spark_replog.init(path)
    store.admin().create_topic("raw", partitions=2)
    with store.producer() as producer:
        for start in range(0, row_count, 50_000):
            values = [value_of(number) for number in range(start, min(start + 50_000, row_count))]
            producer.send_arrow("raw", pa.table({"value": pa.array(values, pa.binary())}))

    def decoded() -> DataFrame:
        return read().option("valueFormat", "json").option("valueSchema", DDL).load(path)

    def from_json() -> DataFrame:
        text = f.col("value").cast("string")
        return read().option("columns", "value").load(path).select(f.from_json(text, DDL).alias("row")).select("row.*")

    def read() -> DataFrameReader:
        return spark.read.format("replog").option("subscribe", "raw")

    seconds: dict[str, list[float]] = {"valueFormat=json": [], "from_json": []}
    answers = set()
    for _ in range(rounds + 1):
        for name, frame in (("valueFormat=json", decoded), ("from_json", from_json)):
            begun = time.perf_counter()
            answers.add(str(frame().selectExpr(*SUMS).collect()))
            seconds[name].append(time.perf_counter() - begun)
    assert len(answers) == 1, answers
    for name, taken in seconds.items():
        middle = statistics.median(taken[1:])  # the first starts workers
        print(f"{name}: {middle:.2f} s, {row_count / middle:,.0f} rows/s")


if __name__ == "__main__":
    main()
