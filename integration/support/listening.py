"""What a listener of a query knows, and what the query logs, on any version of Spark."""

from __future__ import annotations

import json
import re
from collections import Counter


def holds_of_a_listener(driver, store):
    """A listener of a query of six batches: what it knows, and what the log has."""
    for topic in ("heard", "heard-out"):
        store.topic(topic, 1)
    driver.call("write", path=str(store.path), topic="heard", start=0, end=6)
    heard = driver.call(
        "listened_copy", path=str(store.path), source="heard", sink="heard-out", checkpoint=store.checkpoint("heard")
    )
    holds_what_docs_say_of_the_listener(heard)
    holds_the_level_policy(driver.log_text(), heard["id"])


def holds_what_docs_say_of_the_listener(heard):
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
    events = [(line["event"], line["ledger"], line["index"], line["message"]) for line in lines if "index" in line]
    assert events and len(set(events)) == len(events)
    of_query = [line for line in lines if line.get("query") == query_id and "event" not in line]
    shapes = Counter((line["logger"], re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", line["message"])) for line in of_query)
    assert [shape for shape, count in shapes.items() if count > 2] == []
