"""What Spark is told of a query beside its offsets: the limit that holds, and how far the log goes."""

from __future__ import annotations

import json

import pytest

from spark_replog.spark.compat import ReadAllAvailable, ReadMaxRows
from spark_replog.spark.source import stream_reader


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"minOffsetsPerTrigger": "7"}, ReadMaxRows(2**63 - 1)),
        ({"maxBytesPerTrigger": "7"}, ReadMaxRows(2**63 - 1)),
    ],
)
def test_any_limit_of_ours_is_a_limit_for_spark(source, options, limit):
    assert source.stream(subscribe="t", **options).getDefaultReadLimit() == limit


def test_progress_shows_the_high_watermarks_that_were_seen_last(source, start_query, monkeypatch):
    source.topic("t", 12)
    source.write("t", {2: 9, 11: 1})
    query = start_query(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert query.reader.reportLatestOffset() is None
    query.next()
    monkeypatch.setattr(stream_reader, "view_topics", None)  # it is asked for after each look: it makes none
    told = query.reader.reportLatestOffset()
    assert told["t"] == {**{str(number): 0 for number in range(12)}, "2": 9, "11": 1}
    assert list(told) == ["t", "@"]
    assert list(told["t"]) == [str(number) for number in range(12)]
    assert query.position("t")["2"] < 9
    assert "from" not in json.dumps(told), "where the query started is of no use to who reads it"


@pytest.mark.parametrize(("knows_triggers", "options", "warns"), [(False, {"maxOffsetsPerTrigger": "7"}, True),
                         (False, {}, False), (True, {"maxOffsetsPerTrigger": "7"}, False)])  # fmt: skip
def test_where_a_limit_ends_an_available_now_run_early_the_log_says_so(
    source, monkeypatch, caplog, knows_triggers, options, warns
):
    monkeypatch.setattr(stream_reader, "HAS_READ_LIMITS", knows_triggers)
    source.stream(subscribe="t", **options)
    assert ("end the run after one limited batch" in caplog.text) is warns
