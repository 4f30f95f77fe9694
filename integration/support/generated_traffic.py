"""Generated rows of generated schemas through real Spark and plain Python: each reader sees what each writer wrote."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from remote import run_in
from spark_driver import SparkDriver
from typed_rows import through_spark

import spark_replog
from tests.generated_rows import batches, has_single_keys
from tests.typed_traffic import plain_rows, read_by_all, write_by_all


def holds_of_generated_rows(driver: SparkDriver, count: int) -> None:
    """Write generated rows by plain Python and by Spark, and read them by both, `count` times: they are the same."""

    @settings(max_examples=count, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(batches().filter(lambda batch: batch.num_rows and has_single_keys(batch)))  # Spark takes no empty table
    def check(batch: pa.RecordBatch) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = spark_replog.init(str(Path(folder) / "store"), 1, fsync=False)
            store.admin().create_topic("rows", partitions=1, schema=batch.schema)
            copies = 1 + write_by_all(store, "rows", batch, Path(folder))
            expected = plain_rows(batch.to_pylist(), batch.schema) * copies
            run_in(driver, through_spark, path=store.path, topic="rows", name=str(Path(folder) / "rows.arrow"))
            with pa.ipc.open_file(Path(folder) / "rows.arrow.read") as file:
                read = file.read_all().drop_columns("_metadata").to_pylist()
            assert plain_rows(read, batch.schema) == expected
            for reader, rows in read_by_all(store, "rows", batch.schema):
                assert rows == expected, reader

    check()
