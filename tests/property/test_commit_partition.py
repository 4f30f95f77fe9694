"""The provisional tail of a partition against a slow, obvious model: rows one by one, replicas as sets of rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.commit.replication import Partition
from spark_replog.errors import ErrorCode

BROKERS = (0, 1, 2, 3)
APPEND = st.tuples(st.just("append"), st.integers(1, 4), st.sets(st.sampled_from(BROKERS), min_size=1))
COPY = st.tuples(st.just("copy"), st.integers(0, 9), st.sampled_from(BROKERS))
SHRINK = st.tuples(st.just("shrink"), st.just(0), st.sampled_from(BROKERS))


class SlowPartition:
    """Every row by itself: who holds it."""

    def __init__(self, isr: set[int], min_insync: int, high_watermark: int) -> None:
        self.isr = set(isr)
        self.min_insync = min_insync
        self.start = self.high_watermark = high_watermark
        self.rows: list[set[int]] = []
        self.objects: list[list[int]] = []

    def append(self, row_count: int, holders: set[int]) -> None:
        self.objects.append(list(range(len(self.rows), len(self.rows) + row_count)))
        self.rows += [set(holders) for _ in range(row_count)]
        self.advance()

    def copy(self, number: int, broker_id: int) -> None:
        for row in self.objects[number]:
            self.rows[row].add(broker_id)
        self.advance()

    def shrink(self, broker_id: int) -> None:
        self.isr.discard(broker_id)
        self.advance()

    def end_of(self, broker_id: int) -> int:
        offset = self.start
        for holders in self.rows:
            if broker_id not in holders:
                break
            offset += 1
        return offset

    def advance(self) -> None:
        if len(self.isr) >= self.min_insync:
            least = min((self.end_of(broker_id) for broker_id in self.isr), default=self.start + len(self.rows))
            # A section is the unit of a copy, so the least end is the end of one.
            self.high_watermark = max(self.high_watermark, least)


@pytest.mark.case("server-5-4-least-end-isr-monotone-frozen")
@given(
    isr=st.sets(st.sampled_from(BROKERS), min_size=1),
    min_insync=st.integers(1, 4),
    high_watermark=st.integers(0, 100),
    steps=st.lists(st.one_of(APPEND, COPY, SHRINK), max_size=40),
)
def test_a_partition_is_what_the_model_says(
    isr: set[int], min_insync: int, high_watermark: int, steps: list[tuple[str, int, object]]
) -> None:
    partition = Partition(BROKERS, isr, min_insync, high_watermark, now_ms=0)
    model = SlowPartition(isr, min_insync, high_watermark)
    objects: list[set[int]] = []
    before = high_watermark
    for verb, number, who in steps:
        if verb == "append":
            assert isinstance(who, set)
            objects.append(set(who))
            partition.append(number, objects[-1])
            model.append(number, who)
        elif verb == "copy" and objects:
            assert isinstance(who, int)
            objects[number % len(objects)].add(who)
            model.copy(number % len(objects), who)
        elif verb == "shrink":
            assert isinstance(who, int)
            partition.shrink(who)
            model.shrink(who)
        watermark = partition.high_watermark()
        end = model.start + len(model.rows)
        assert partition.log_end_offset == end
        assert partition.in_sync == model.isr
        assert watermark == model.high_watermark
        assert before <= watermark <= end  # never backwards, never beyond the log
        before = watermark
        if len(model.isr) < min_insync:
            assert partition.check_enough_replicas_reach_offset(watermark + 1) == (True, ErrorCode.NOT_ENOUGH_REPLICAS)
        else:
            assert partition.check_enough_replicas_reach_offset(watermark) == (True, None)
            assert partition.check_enough_replicas_reach_offset(watermark + 1) == (False, None)
        for broker_id in BROKERS:
            # Above the high watermark the replica's end is exact; below, everything in sync is there.
            assert partition.replica_end_offset(broker_id) == max(model.end_of(broker_id), watermark) or (
                broker_id not in model.isr
            )
        lagging = {replica for replica in model.isr if model.end_of(replica) < end}
        assert set(partition.out_of_sync_replicas(10_001, 10_000)) == {
            replica for replica in lagging if partition.replica_end_offset(replica) < end
        }
        assert partition.out_of_sync_replicas(10_000, 10_000) == []
