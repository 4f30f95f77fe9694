"""Kafka's record batches to columns and back, beside kafka-python's own decoder and encoder; one core.

    python -m benchmarks.record_batches [--records 10000] [--rounds 15]

Cases in turn. The mark is 0.60 us a record of 100 bytes for `decode`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from spark_replog.gateway.compression import CODECS
from spark_replog.gateway.record_batch import decode, encode

SHAPES: dict[str, tuple[int, bytes | None, Sequence[tuple[str, bytes]]]] = {
    "100 B": (100, None, ()),
    "100 B with key": (100, b"0123456789", ()),
    "100 B with key and 2 headers": (100, b"0123456789", (("traceparent", bytes(55)), ("kind", b"order"))),
    "1 KiB": (1024, None, ()),
}
SMALL = 150
"""Records of one batch as librdkafka and Java's producer send it with their defaults, of 100 bytes each."""
MEMORY_BYTES = 1 << 28


def built(count: int, size: int, key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a batch that kafka-python wrote."""
    source = random.Random(count)
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for number in range(count):
        builder.append(number, 1_700_000_000_000 + number // 7, key, source.randbytes(size), list(headers))
    return bytes(builder.build())


def records_of(batch: bytes) -> list[Any]:
    """Read a batch with kafka-python's decoder."""
    return list(DefaultRecordBatch(batch))


def rebuilt(data: pa.RecordBatch) -> None:
    """Write the rows with kafka-python's encoder."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    keys, values = data.column("key").to_pylist(), data.column("value").to_pylist()
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        builder.append(number, 1_700_000_000_000, key, value, [])
    builder.build()


def measure(cases: dict[str, Callable[[], object]], count: int, rounds: int) -> dict[str, float]:
    """Return the median of microseconds per record of each case; the cases run in turn."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    repeats = max(1, min(100, 2000 // count))
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            for _ in range(repeats):
                case()
            times[name].append((time.perf_counter() - start) / repeats)
    return {name: round(statistics.median(taken) / count * 1e6, 3) for name, taken in times.items()}


def main() -> None:
    """Print microseconds per record, a line for each shape of record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    shapes = [(args.records, *shape) for shape in SHAPES.items()]
    shapes += [(count, f"100 B, {count} a batch", SHAPES["100 B"]) for count in (SMALL, 1)]
    for count, name, shape in shapes:
        batch = built(count, *shape)
        data = decode(batch, bytes_max=MEMORY_BYTES, now_ms=0)[0].data
        numbers = pa.array(np.arange(count)), pa.array(np.zeros(count, np.int32))
        columns = {column: data.column(column) for column in data.schema.names}
        rows = pa.RecordBatch.from_pydict({**columns, "offset": numbers[0], "timestampType": numbers[1]})
        cases: dict[str, Callable[[], object]] = {
            "decode": partial(decode, batch, bytes_max=MEMORY_BYTES, now_ms=0),
            "kafka-python's decoder": partial(records_of, batch),
            "encode": partial(encode, rows, 0, count),
            "kafka-python's encoder": partial(rebuilt, data),
        }
        if name == "100 B with key":
            for codec in CODECS[1:]:
                (packed,) = encode(rows, 0, count, compression=codec, size_bytes=MEMORY_BYTES)
                cases[f"decode {codec}"] = partial(decode, packed.data, bytes_max=MEMORY_BYTES, now_ms=0)
        print(json.dumps({"records": name, "us_per_record": measure(cases, count, args.rounds)}), flush=True)


if __name__ == "__main__":
    main()
