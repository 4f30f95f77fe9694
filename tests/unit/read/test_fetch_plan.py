from __future__ import annotations

import pickle
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.errors import DataLossError, ErrorCode, ReplogError
from spark_replog.ids import ObjectId
from spark_replog.log.fold.partition_state import ObjectRef
from spark_replog.log.fold.section_table import SectionRow
from spark_replog.read.fetch_plan import FetchSlice, in_log_order, plan_fetch

TOPIC = "ab" * 16


def ref(base):
    return ObjectRef("L", ObjectId(0, f"o{base}"), 9, False, frozenset((0,)))


def state_of(spans, *, end=None, start=0, closed=False):
    """A fold's answer with the given (base, rows) sections."""
    table = [SectionRow(base, rows, base, 8, 8, 1, 0, 0, 0, base + rows) for base, rows in spans]
    mark = end if end is not None else sum(spans[-1])
    partition = SimpleNamespace(
        log_start_offset=start,
        log_start_reason=None,
        high_watermark=mark,
        sections_between=lambda low, high: [row for row in table if row.base_offset < high and row.end_offset > low],
    )
    return SimpleNamespace(
        ledger_id="L",
        topics={TOPIC: SimpleNamespace(partitions=[partition], closed=closed, schemas=())},
        objects=SimpleNamespace(refs=lambda numbers: {number: (ref(number), 5) for number in numbers}),
    )


def plan(state, start, end):
    return plan_fetch(state, "orders", TOPIC, 0, start, end)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_slices_cover_exactly_what_was_asked(rows, data):
    spans, base = [], 0
    for count in rows:
        spans.append((base, count))
        base += count
    start = data.draw(st.integers(0, base))
    end = data.draw(st.integers(start, base))
    slices = plan(state_of(spans), start, end)
    assert [o for s in slices for o in range(s.start_offset, s.end_offset)] == list(range(start, end))
    for piece in slices:
        assert piece.base_offset <= piece.start_offset < piece.end_offset <= piece.base_offset + piece.row_count
        assert piece.object.id.name == f"o{piece.base_offset}"


def test_an_empty_range_needs_nothing():
    assert plan(state_of([(0, 5)]), 3, 3) == ()


@pytest.mark.parametrize(
    ("state", "start", "end", "missing"),
    [
        (state_of([(0, 5), (7, 5)]), 0, 12, (5, 12)),
        (state_of([(2, 5)]), 0, 7, (0, 7)),
        (state_of([(0, 5)], end=9), 3, 9, (5, 9)),
        (state_of([(0, 5)]), 3, 8, (5, 8)),
        (state_of([(0, 5)]), 7, 8, (7, 8)),
        (state_of([(4, 6)], start=4), 1, 10, (1, 4)),
        (state_of([(4, 6)], start=4), 1, 2, (1, 2)),
    ],
)
def test_a_gap_is_data_loss_with_its_exact_range(state, start, end, missing):
    with pytest.raises(ReplogError, match="orders") as caught:
        plan(state, start, end)
    assert caught.value.code is ErrorCode.REPLOG_DATA_LOSS
    assert (caught.value.context["missing_start"], caught.value.context["missing_end"]) == missing
    log_start = state.topics[TOPIC].partitions[0].log_start_offset
    assert isinstance(caught.value, DataLossError) == (start < log_start), "only removed offsets are a proof"


def test_a_partition_that_this_fold_does_not_know_is_not_proved_to_be_lost():
    state = state_of([(0, 5)])
    for topic_id, partition in ((TOPIC, 1), ("cd" * 16, 0)):
        with pytest.raises(ReplogError) as caught:
            plan_fetch(state, "orders", topic_id, partition, 0, 5)
        assert caught.value.code is ErrorCode.REPLOG_DATA_LOSS
        assert not isinstance(caught.value, DataLossError)


def test_the_rows_of_a_deleted_topic_are_proved_to_be_lost():
    with pytest.raises(DataLossError, match="the topic was deleted") as caught:
        plan(state_of([(0, 5)], closed=True), 1, 4)
    assert (caught.value.context["missing_start"], caught.value.context["missing_end"]) == (1, 4)
    assert "metadata roots" not in str(caught.value)


def test_plans_travel_and_stay_small():
    slices = plan(state_of([(n * 10, 10) for n in range(1000)]), 0, 10_000)
    data = pickle.dumps(slices)
    assert pickle.loads(data) == slices
    assert len(data) / len(slices) < 130


def slices_of(ledger, partition, sections):
    """sections: (object, start byte), in offset order; one row each."""
    return [
        FetchSlice("t", TOPIC, partition, at, at + 1, at, 1,
                   ObjectRef(ledger, ObjectId(0, name), 9, False, frozenset((0,))), start, 8, 1, 0, 0)
        for at, (name, start) in enumerate(sections)
    ]  # fmt: skip


@given(st.data())
def test_several_partitions_are_read_in_the_order_of_their_log(data):
    """Each object once, each partition in its order, whatever objects it has rows in."""
    plans = []
    for ledger in ("L", "M"):
        for partition in range(data.draw(st.integers(1, 4))):
            numbers = sorted(data.draw(st.sets(st.integers(0, 6), min_size=1)))
            plans.append(slices_of(ledger, partition, [(f"o{99 - number}", 100 * partition) for number in numbers]))
    merged = in_log_order(plans)
    assert len(merged) == sum(map(len, plans))
    for plan in plans:
        key = plan[0].object.ledger_id, plan[0].partition
        assert [piece for piece in merged if (piece.object.ledger_id, piece.partition) == key] == plan
    objects = [(piece.object.ledger_id, piece.object.id.name) for piece in merged]
    runs = [object_key for at, object_key in enumerate(objects) if at == 0 or objects[at - 1] != object_key]
    assert len(runs) == len(set(runs)), "an object is left and taken up again"
    for before, after in pairwise(merged):
        if before.object == after.object:
            assert before.start_byte < after.start_byte


def test_an_object_whose_middle_compaction_replaced_is_read_in_two_parts():
    zero = slices_of("L", 0, [("first", 8), ("made", 8), ("first", 24), ("next", 8)])
    one = slices_of("L", 1, [("first", 32), ("next", 16)])
    merged = in_log_order([zero, one])
    assert [piece for piece in merged if piece.partition == 0] == zero
    assert [piece for piece in merged if piece.partition == 1] == one
    assert merged.index(one[0]) < merged.index(zero[1])


@pytest.mark.parametrize("one", [[], [("o2", 32), ("o5", 32)]])
def test_two_ranges_of_a_partition_are_read_one_after_the_other(one):
    ranges = slices_of("L", 0, [("o1", 8), ("o2", 8), ("o3", 8), ("o4", 8), ("o5", 8)])
    other = slices_of("L", 1, one)
    merged = in_log_order([ranges[:2], ranges[3:], other])
    assert [piece for piece in merged if piece.partition == 0] == ranges[:2] + ranges[3:]
    assert [piece for piece in merged if piece.partition == 1] == other


@pytest.mark.parametrize("one", [[], [("first", 32)]])
def test_two_ranges_may_share_an_object_whose_middle_compaction_replaced(one):
    ranges = slices_of("L", 0, [("first", 8), ("made", 8), ("first", 24)])
    half = ranges[1]._replace(end_offset=2, row_count=2)
    plans = [[ranges[0], half], [half._replace(start_offset=2, end_offset=3), ranges[2]], slices_of("L", 1, one)]
    merged = in_log_order(plans)
    assert [piece for piece in merged if piece.partition == 0] == plans[0] + plans[1]
