"""What a process that reads thousands of partitions takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_replog import Producer
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster

READ_WIDE = """
import re, sys
import pyarrow as pa
from spark_replog import Consumer

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

with Consumer(sys.argv[1], "wide", auto_offset_reset="earliest") as consumer:
    peak_before, arrow_before = peak(), pa.total_allocated_bytes()
    table = consumer.to_arrow()
    grown = peak() - peak_before
print(table.num_rows, table.nbytes, table.get_total_buffer_size(), pa.total_allocated_bytes() - arrow_before, grown)
"""


@pytest.mark.parametrize("partition_count", [300, pytest.param(5_000, marks=pytest.mark.wide)])
def test_a_process_that_reads_many_partitions_keeps_little_more_than_the_rows(tmp_path, partition_count):
    """Counted by Arrow, by its pool, and by the kernel: the most that the process had, with the state of the topic."""
    path = str(tmp_path / "store")
    Controller(init_cluster(path, 1, {}, fsync=False)).create_topic("wide", partition_count)
    with Producer(path) as producer:
        for number in range(partition_count):
            producer.send("wide", b"v" * 200, partition=number)
    done = subprocess.run([sys.executable, "-c", READ_WIDE, path], capture_output=True, text=True, check=True)
    rows, rows_bytes, held_bytes, allocated_bytes, grown_bytes = map(int, done.stdout.split())
    assert rows == partition_count and rows_bytes > 200 * rows
    assert held_bytes <= 3 * rows_bytes and allocated_bytes <= 3 * rows_bytes
    assert grown_bytes <= 3 * rows_bytes + 50_000_000
