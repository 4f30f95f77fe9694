"""A query with ``group.id`` is seen by the tools for consumer groups; its checkpoint stays the truth."""

from __future__ import annotations

import pytest

from tests.waiting import wait_until


def committed(store, group):
    (description,) = store.cli("group", "describe", group)
    return {part["partition"]: (part["committed"], part["lag"]) for part in description["partitions"]}


@pytest.mark.case("connector-query-group-id-seen-replog-group")
def test_a_query_shows_its_position_as_a_group(spark, store):
    path, topic = str(store.path), store.topic("shown", 2)
    spark.call("feed", path=path, topic=topic, rows={0: 10, 1: 4})
    options = {"subscribe": topic, "startingOffsets": "earliest", "group.id": "billing"}
    spark.call("stream_start", name="shown", path=path, checkpoint=store.checkpoint("shown"), options=options)
    try:
        spark.call("stream_take", name="shown")

        def is_shown():
            has_group = any(item["group"] == "billing" for item in store.cli("group", "list"))
            return has_group and committed(store, "billing") == {0: (10, 0), 1: (4, 0)}

        wait_until(is_shown, pause_seconds=0.2)
    finally:
        spark.call("stream_stop", name="shown")
