"""Generated rows of generated schemas: whatever writes them, whatever reads them, they are the same.

Spark as a writer and a reader beside these: ``integration/test_generated_rows.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings

import spark_replog
from tests.examples import examples
from tests.generated_rows import batches, has_single_keys
from tests.typed_traffic import plain_rows, read_by_all, write_by_all


@settings(max_examples=examples(25))
@given(batches().filter(has_single_keys))
def test_rows_of_every_schema_are_alike_whatever_writes_and_reads_them(batch):
    with tempfile.TemporaryDirectory() as folder:
        store = spark_replog.init(str(Path(folder) / "store"), 1, fsync=False)
        store.admin().create_topic("rows", partitions=1, schema=batch.schema)
        copies = write_by_all(store, "rows", batch, Path(folder))
        expected = plain_rows(batch.to_pylist(), batch.schema) * copies
        schema = store.admin().describe_topic("rows").schema.arrow
        for reader, rows in read_by_all(store, "rows", schema):
            assert rows == expected, reader
