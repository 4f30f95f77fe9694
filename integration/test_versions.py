"""One wheel for Spark 4.0, 4.1, 4.2 and 4.3: stream and batch, in and out."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from spark_driver import SparkDriver

pytestmark = pytest.mark.case("connector-all-short-spark-4-0-4-1-4-2")

SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
    "headers:array<struct<key:string,value:binary>>>"
)

REFUSALS = {
    "value": "Required attribute 'value' not found",
    "type": "value must be a(n) string or binary",
    "topic": "topic option required when no 'topic' attribute is present",
    "null topic": "[REPLOG_NULL_TOPIC]",
    "serializer": "kafka option 'key.serializer' is not supported",
    "partition": "names partition 9",
}
"""The sink's contract in short; ``contract/`` has it in full for the newest version."""


OLDER = [pytest.param(version, marks=pytest.mark.older_spark(version)) for version in ("4.0", "4.1", "4.2")]


@pytest.mark.parametrize("version", [*OLDER, "4.3"])
def test_version(version, request, make_store, work_folder):
    store = make_store()
    store.topic("numbers")
    store.topic("copy")
    if version == "4.3":
        driver = request.getfixturevalue("spark")
    else:
        environment = request.getfixturevalue("older_environment")(version).quick_to_start()
        driver = SparkDriver(environment, work_folder / f"driver-{version}.log", "serve")
    try:
        assert driver.call("about")["spark"].startswith(version)
        rules = driver.call("sink_rules", path=str(store.path), topic=store.topic("rules"))
        found = driver.call("everything", path=str(store.path), checkpoint_folder=str(store.folder))
        if version != "4.3":  # there ``contract/`` shows it in full
            holds_the_source_contract(driver.call("source_contract", path=str(store.path), folder=str(store.folder)))
        for topic in ("heard", "heard-out"):
            store.topic(topic, 1)
        driver.call("write", path=str(store.path), topic="heard", start=0, end=6)
        heard = driver.call(
            "listened_copy", path=str(store.path), source="heard", sink="heard-out", checkpoint=store.checkpoint()
        )
        holds_what_docs_say_of_the_listener(heard, version)
        holds_the_level_policy(driver.log_text(), heard["id"])
        if version in ("4.0", "4.1"):
            assert "Spark before 4.2 does not pass the trigger" in driver.log_text()
    finally:
        if version != "4.3":
            driver.close()
    assert rules["rows"] == [[1, 0, "k", "v"], [1, 1, None, None]]
    assert rules["headers"] == [[["h", "1"], ["h", "2"]], None]
    assert rules["filtered"] == [1, 1]
    for name, text in REFUSALS.items():
        assert text in rules["refused"][name]
    assert found["values"] == list(range(125))
    by_partition = {}
    for partition, offset in found["offsets"]:
        by_partition.setdefault(partition, []).append(offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())
    assert sum(found["limited"]) + sum(found["rest"]) == 125
    assert max(found["limited"]) <= 40
    assert found["idle"] == []
    assert found["schema"] == SCHEMA
    assert found["headers"] is None


def holds_the_source_contract(found):
    """The reading half of the connector's contract in short."""
    both = {"short-0": list(range(10)), "short-1": [0]}
    assert found["ends"] == {"short-0": [0, 1], "short-1": [0]}
    assert found["by_time"] == both
    assert found["split"] == 4
    assert found["joined"] == {"tasks": 1, "rows": both}
    words = ["one of the following options", "can't be latest for batch", "must be positive", "nowhere"]
    assert all(word in text for word, text in zip(words, found["refused"], strict=True))
    assert [batch["rows"] for batch in found["first"]] == [both]
    assert "offsets 10 to 12 (exclusive) of short-0" in found["loss"]
    assert [batch["rows"] for batch in found["rest"]] == [{"short-0": [12, 13], "short-2": [0, 1]}]


def holds_what_docs_say_of_the_listener(heard, version):
    """Lag, verdict, rates and storage calls per query; the source's calls from Spark 4.2 on."""
    assert (heard["name"], heard["lag"], heard["verdict"], heard["batch"]) == (heard["id"], 0, "OK", 5)
    lag = {"replog_reader_lag_rows", "replog_reader_lag_seconds", "replog_reader_verdict"}
    rates = {"replog_query_input_rows_per_second", "replog_query_processed_rows_per_second"}
    assert {*lag, *rates, "replog_storage_calls_total"} <= set(heard["metrics"])
    calls = {(broker, kind, purpose): count for broker, kind, purpose, count in heard["calls"]}
    objects = {
        broker: count for (broker, kind, purpose), count in calls.items() if (kind, purpose) == ("create", "objects")
    }
    assert objects and all(broker.isdigit() for broker in objects)
    assert set(objects.values()) == {6}, "six batches, of each one task had rows"
    assert sum(count for (_, kind, purpose), count in calls.items() if (kind, purpose) == ("create", "journal")) >= 6


def holds_the_level_policy(text, query_id):
    """Of six batches no line comes with each of them, and an entry of a ledger is an event of one process at most."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]
    events = [(each["event"], each["ledger"], each["index"], each["message"]) for each in lines if "index" in each]
    assert events and len(set(events)) == len(events)
    of_query = [each for each in lines if each.get("query") == query_id and "event" not in each]
    shapes = Counter((each["logger"], re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", each["message"])) for each in of_query)
    assert [shape for shape, count in shapes.items() if count > 2] == []
