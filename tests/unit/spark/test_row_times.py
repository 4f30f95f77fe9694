"""How far a row may be dated from its write (`message.timestamp.before.max.ms`, `message.timestamp.after.max.ms`)."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from spark_replog import Producer
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.health.store import Fault, describe, topic_findings

YEAR_9999_MS = 253_370_764_800_000
HOUR_MS = 3_600_000
AFTER, BEFORE = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"


def dated(*times_ms, topic="orders"):
    return pa.record_batch(
        {
            "topic": pa.array([topic] * len(times_ms), pa.string()),
            "value": pa.array([b"x"] * len(times_ms), pa.binary()),
            "timestamp": pa.array(
                [None if time_ms is None else time_ms * 1000 for time_ms in times_ms], pa.timestamp("us", "UTC")
            ),
        }
    )


def arrow_in(writes, topic, *times_ms):
    with Producer(str(writes.source.path)) as producer:
        producer.send_arrow(topic, dated(*times_ms).select(["value", "timestamp"])).result(60)


def one_by_one(writes, topic, *times_ms):
    with Producer(str(writes.source.path)) as producer:
        for time_ms in times_ms:
            producer.send(topic, b"x", timestamp_ms=time_ms).result(60)


WAYS = {
    "df.write": lambda writes, topic, *times_ms: writes.batch(dated(*times_ms), topic=topic),
    "df.write, rows name their topic": lambda writes, topic, *times_ms: writes.batch(dated(*times_ms, topic=topic)),
    "writeStream": lambda writes, topic, *times_ms: writes.run(0, dated(*times_ms), topic=topic),
    "Producer.send": one_by_one,
    "Producer.send_arrow": arrow_in,
}
each_way = pytest.mark.parametrize("write", WAYS.values(), ids=WAYS)


@each_way
def test_a_row_dated_in_the_year_9999_is_refused(writes, write):
    now_ms = int(time.time() * 1000)
    with pytest.raises(InvalidConfigError, match=f"9999.*{AFTER}") as raised:
        write(writes, "orders", now_ms, YEAR_9999_MS)
    assert raised.value.code is ErrorCode.INVALID_TIMESTAMP
    write(writes, "orders", 0, now_ms, now_ms + HOUR_MS // 2)  # Kafka's defaults: any age, and up to an hour ahead
    assert b"".join(writes.values()).startswith(b"xxx")


@each_way
def test_a_topic_has_bounds_of_its_own(writes, write):
    writes.source.topic("bound", **{AFTER: "10000000", BEFORE: "60000"})
    now_ms = int(time.time() * 1000)
    for wrong in (now_ms - HOUR_MS, now_ms + 20_000_000):
        with pytest.raises(InvalidConfigError) as raised:
            write(writes, "bound", wrong)
        assert raised.value.code is ErrorCode.INVALID_TIMESTAMP
    write(writes, "bound", now_ms + 2 * HOUR_MS, now_ms)
    assert len(writes.values("bound")) == 2


def test_rows_without_a_time_of_their_own_have_no_bounds(writes):
    writes.source.topic("append-time", **{"message.timestamp.type": "LogAppendTime"})
    writes.source.topic("tight", **{AFTER: "0", BEFORE: "0"})
    writes.batch(dated(YEAR_9999_MS, 0), topic="append-time")
    writes.batch([b"a"], topic="tight")
    writes.batch(dated(None, None), topic="tight")
    assert len(writes.values("append-time")) == 2
    assert len(writes.values("tight")) == 3


def test_rows_that_are_dated_ahead_by_a_setting_hold_retention_and_the_status_says_so(writes):
    writes.source.topic("ahead", **{AFTER: str(2**62), "retention.ms": "1000"})
    cluster = writes.source.cluster

    def findings():
        ledger, _ = cluster.topic_state(cluster.lookup("ahead"))
        with ledger.lock:
            return topic_findings([describe(ledger.state, cluster.lookup("ahead").topic_id, "ahead")])

    writes.batch(dated(YEAR_9999_MS), topic="ahead")
    assert findings() == []  # the newest section stays in any case
    writes.batch([b"a"], topic="ahead")
    (finding,) = findings()
    assert (finding.fault, finding.topic, finding.partition) == (Fault.RETENTION_HELD, "ahead", 0)
    assert "9999" in finding.detail
    assert "topic trim ahead" in finding.remedy
    writes.source.controller.delete_records("ahead", {0: 1})
    assert findings() == []
