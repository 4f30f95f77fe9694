"""One wheel for Spark 4.0, 4.1 and 4.2 too: stream and batch, in and out. All other files show the newest, 4.3."""

from __future__ import annotations

import pytest
from generated_traffic import holds_of_generated_rows
from listening import holds_of_a_listener
from remote import run_in
from spark_driver import SparkDriver
from typed_rows import DDL, compare, copy, rows, write
from typed_rows import SCHEMA as TYPED_SCHEMA

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


@pytest.mark.parametrize("version", OLDER)
def test_version(version, older_environment, make_store, work_folder):
    store = make_store()
    store.topic("numbers")
    store.topic("copy")
    environment = older_environment(version).quick_to_start()
    with SparkDriver(environment, work_folder / f"driver-{version}.log", "serve") as driver:
        assert driver.call("about")["spark"].startswith(version)
        rules = driver.call("sink_rules", path=str(store.path), topic=store.topic("rules"))
        answers = driver.call("everything", path=str(store.path), checkpoint_folder=str(store.folder))
        holds_the_source_contract(driver.call("source_contract", path=str(store.path), folder=str(store.folder)))
        holds_of_a_listener(driver, store)
        holds_of_typed_topics(driver, store)
        holds_of_generated_rows(driver, 10)
        if version in ("4.0", "4.1"):
            assert "Spark before 4.2 does not pass the trigger" in driver.log_text()
    assert rules["rows"] == [[1, 0, "k", "v"], [1, 1, None, None]]
    assert rules["headers"] == [[["h", "1"], ["h", "2"]], None]
    assert rules["filtered"] == [1, 1]
    for name, text in REFUSALS.items():
        assert text in rules["refused"][name]
    assert answers["values"] == list(range(125))
    by_partition = {}
    for partition, offset in answers["offsets"]:
        by_partition.setdefault(partition, []).append(offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())
    assert sum(answers["limited"]) + sum(answers["rest"]) == 125
    assert max(answers["limited"]) <= 40
    assert answers["idle"] == []
    assert answers["schema"] == SCHEMA
    assert answers["headers"] is None


def holds_of_typed_topics(driver, store):
    """Every type of column goes in as a batch and as a stream, and out again, with nulls."""
    path = str(store.path)
    source, sink = (store.topic(name, 2, 3, "--schema", DDL, "--key", "id") for name in ("typed", "typed-copy"))
    run_in(driver, write, path=path, topic=source, query=rows(0, 100), options={})
    run_in(driver, copy, path=path, source=source, sink=sink, checkpoint=store.checkpoint("typed"))
    answer = run_in(driver, compare, path=path, topic=sink, query=rows(0, 100))
    assert answer == {"schema": TYPED_SCHEMA, "count": 100, "other": []}


def holds_the_source_contract(answers):
    """The reading half of the connector's contract in short."""
    both = {"short-0": list(range(10)), "short-1": [0]}
    assert answers["ends"] == {"short-0": [0, 1], "short-1": [0]}
    assert answers["by_time"] == both
    assert answers["split"] == 4
    assert answers["joined"] == {"tasks": 1, "rows": both}
    words = ["one of the following options", "can't be latest for batch", "must be positive", "nowhere"]
    assert all(word in text for word, text in zip(words, answers["refused"], strict=True))
    assert [batch["rows"] for batch in answers["first"]] == [both]
    assert "offsets 10 to 12 (exclusive) of short-0" in answers["loss"]
    assert [batch["rows"] for batch in answers["rest"]] == [{"short-0": [12, 13], "short-2": [0, 1]}]
