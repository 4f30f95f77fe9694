"""The checkpoint's format and the rules around batch 0."""

from __future__ import annotations

import json

import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, UnsupportedFormatError
from spark_replog.ids import TopicPartition
from spark_replog.log.log_offset import LogOffset, advance, batch_start


def ends(**topics):
    return {TopicPartition(name, number): end for name, parts in topics.items() for number, end in parts.items()}


IDS = {"orders": "a1"}


def test_text_is_canonical():
    offset = LogOffset(
        {**ends(orders={10: 5, 9: 4, 0: 3}), **ends(clicks={1: 1})},
        {"orders": "a1", "clicks": "c1"},
        origin=ends(orders={0: 0}),
    )
    assert json.dumps(offset.to_json()) == (
        '{"clicks": {"1": 1}, "orders": {"0": 3, "9": 4, "10": 5}, '
        '"@": {"v": 1, "ids": {"clicks": "c1", "orders": "a1"}, "from": {"orders": {"0": 0}}}}'
    )


def test_text_survives_a_round_trip_through_json():
    offset = LogOffset(ends(orders={1: 2, 0: 1}), IDS, origin=ends(orders={1: 2, 0: 1}))
    text = json.dumps(offset.to_json())
    assert json.dumps(LogOffset.from_json(json.loads(text)).to_json()) == text
    assert LogOffset.from_json(json.loads(text)) == offset


def test_no_data_gives_the_start_back_with_its_origin():
    start = LogOffset(ends(orders={0: 80}), IDS, origin=ends(orders={0: 80}))
    assert advance(start, start.ends, ends(orders={0: 80}), IDS).to_json() == start.to_json()
    past_batch_0 = LogOffset(ends(orders={0: 100}), IDS, origin=ends(orders={0: 80}))
    assert advance(past_batch_0, past_batch_0.ends, past_batch_0.ends, IDS).to_json() == past_batch_0.to_json()


def test_origin_rides_until_batch_0_is_past():
    initial = LogOffset(ends(orders={0: 80}), IDS, origin=ends(orders={0: 80}))
    first = advance(initial, initial.ends, ends(orders={0: 100}), IDS)
    assert first.origin == ends(orders={0: 80})
    second = advance(first, first.ends, ends(orders={0: 120}), IDS)
    assert second.origin is None


def test_replay_of_batch_0_starts_where_the_first_run_started():
    asked_again = LogOffset(ends(orders={0: 280}), IDS, origin=ends(orders={0: 280}))
    logged_end = LogOffset(ends(orders={0: 100}), IDS, origin=ends(orders={0: 80}))
    assert batch_start(asked_again, logged_end) == ends(orders={0: 80})


def test_batch_1_starts_at_the_end_of_batch_0():
    batch_0 = LogOffset(ends(orders={0: 100}), IDS, origin=ends(orders={0: 80}))
    batch_1 = LogOffset(ends(orders={0: 300}), IDS)
    assert batch_start(batch_0, batch_1) == ends(orders={0: 100})


def test_batch_1_after_an_empty_batch_0():
    batch_0 = LogOffset(ends(orders={0: 80}), IDS, origin=ends(orders={0: 80}))
    batch_1 = advance(batch_0, batch_0.ends, ends(orders={0: 90}), IDS)
    assert batch_start(batch_0, batch_1) == ends(orders={0: 80})
    assert advance(batch_1, batch_1.ends, ends(orders={0: 95}), IDS).origin is None


def test_recreated_topic_is_new_even_at_the_same_offsets():
    start = LogOffset(ends(orders={0: 5, 1: 0}), {"orders": "old"})
    moved = advance(start, ends(orders={0: 0, 1: 0}), ends(orders={0: 5, 1: 0}), {"orders": "new"})
    assert moved.topic_ids == {"orders": "new"}


def test_recreated_topic_without_rows_is_not_new_twice():
    start = LogOffset(ends(orders={0: 5}), {"orders": "old"})
    moved = advance(start, ends(orders={0: 0}), ends(orders={0: 0}), {"orders": "new"})
    assert moved.ends == ends(orders={0: 0})
    assert advance(moved, ends(orders={0: 0}), ends(orders={0: 0}), {"orders": "newer"}) is moved


@pytest.mark.parametrize("more", [{}, {"@": 1}, {"@": {}}, {"@": {"v": "1", "ids": {}}}])
def test_foreign_checkpoint_is_refused(more):
    with pytest.raises(InvalidConfigError, match=r"^\[REPLOG_INPUT\]"):
        LogOffset.from_json({"orders": {"0": 1}, **more})


@pytest.mark.parametrize(
    "damage",
    [{"orders": 5}, {"orders": {"x": 1}}, {"orders": {"0": None}}, {"orders": {"0": float("inf")}},
     {"@": {"v": 1, "ids": []}},
     {"@": {"v": 1, "ids": {}, "from": {"orders": [1]}}}],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(damage):
    with pytest.raises(InvalidConfigError, match=r"^\[REPLOG_INPUT\].*damaged"):
        LogOffset.from_json({"orders": {"0": 1}, "@": {"v": 1, "ids": {}}, **damage})


def test_checkpoint_of_a_newer_release_is_refused():
    with pytest.raises(UnsupportedFormatError, match=r"^\[UNSUPPORTED_VERSION\].*Upgrade"):
        LogOffset.from_json({"orders": {"0": 1}, "@": {"v": 2, "ids": {}}})


def test_a_topic_created_again_before_batch_0_does_not_keep_its_old_start():
    start = LogOffset({**ends(orders={0: 7}), **ends(clicks={0: 2})}, {"orders": "a1", "clicks": "c1"}, origin=None)
    start = LogOffset(start.ends, start.topic_ids, origin=start.ends)
    end = advance(start, start.ends, {**ends(orders={0: 3}), **ends(clicks={0: 5})}, {"orders": "a2", "clicks": "c1"})
    assert end.origin == ends(clicks={0: 2})
    assert batch_start(start, end) == ends(clicks={0: 2})


@pytest.mark.parametrize("value", [None, 7, "text", [], [{"orders": {"0": 1}}]])
def test_what_is_no_object_is_no_offset(value):
    with pytest.raises(InvalidConfigError) as caught:
        LogOffset.from_json(value)
    assert caught.value.code is ErrorCode.REPLOG_INPUT
