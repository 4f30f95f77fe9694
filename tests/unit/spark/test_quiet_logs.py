"""No line comes with every batch: neither in good weather nor while a root is away."""

from __future__ import annotations

import logging
import re
from collections import Counter

import pytest

from tests.unit.spark.sink_writes import Writes

BATCHES = 8


@pytest.mark.parametrize("is_away", [False, True], ids=["all roots", "a root away"])
def test_no_line_is_repeated_per_batch(source, monkeypatch, caplog, is_away):
    source.topic("orders")
    writes = Writes(source, monkeypatch)
    if is_away:
        (source.path / "broker-2").rename(source.path.with_name("away"))
    caplog.set_level(logging.INFO, "spark_replog")
    for batch in range(BATCHES):
        writes.run(batch, [b"a"], [b"b"], topic="orders", **{"replica.lag.time.max.ms": "1000"})
    lines = Counter((record.name, re.sub(r"[0-9a-f]{6,}|\d+", "N", record.getMessage())) for record in caplog.records)
    assert {line: count for line, count in lines.items() if count > BATCHES // 2} == {}
