"""Kafka's LeaderEpochFileCacheTest vectors, and the cases of its log and partition tests that use the cache."""

from __future__ import annotations

import pytest

from spark_replog.log.fold.partition_state import LeaderEpochCache, PartitionState


def cache_of(*entries: tuple[int, int]) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


@pytest.mark.case("server-4-11-end-offset-epoch")
@pytest.mark.parametrize(
    ("entries", "epoch", "log_end", "answer"),
    [
        (((0, 10), (2, 13), (4, 17)), 1, 20, (0, 13)),
        (((0, 10), (2, 13), (4, 17)), 2, 20, (2, 17)),
        (((0, 10), (2, 13), (4, 17)), 3, 20, (2, 17)),
        (((5, 11), (6, 12), (7, 13)), 4, 20, (4, 11)),
        (((5, 11), (6, 12), (7, 13), (7, 12)), 5, 20, (5, 12)),
        (((5, 11), (6, 12), (7, 13), (7, 12)), 6, 20, (5, 12)),
        (((2, 100),), 3, 200, (-1, -1)),
        (((2, 100),), 2, 200, (2, 200)),
        (((2, 100),), -1, 200, (-1, -1)),
        ((), 0, 200, (-1, -1)),
    ],
)
def test_end_offset_for(
    entries: tuple[tuple[int, int], ...], epoch: int, log_end: int, answer: tuple[int, int]
) -> None:
    assert cache_of(*entries).end_offset_for(epoch, log_end) == answer


@pytest.mark.case("server-4-11-assign")
@pytest.mark.parametrize(
    ("assigned", "kept"),
    [
        (((1, 5), (2, 6), (1, 7)), ((1, 7),)),
        (((2, 9), (3, 9)), ((3, 9),)),
        (((2, 6), (2, 9)), ((2, 6),)),
        (((2, 6), (2, 4)), ((2, 4),)),
        (((2, 6), (-1, 7), (3, -1)), ((2, 6),)),
    ],
)
def test_assign(assigned: tuple[tuple[int, int], ...], kept: tuple[tuple[int, int], ...]) -> None:
    assert cache_of(*assigned).entries == kept


THREE = ((2, 6), (3, 8), (4, 11))


@pytest.mark.case("server-4-11-truncate-from-end-start")
@pytest.mark.parametrize(("end", "kept"), [(8, ((2, 6),)), (9, ((2, 6), (3, 8))), (12, THREE), (6, ()), (-1, THREE)])
def test_truncate_from_end(end: int, kept: tuple[tuple[int, int], ...]) -> None:
    cache = cache_of(*THREE)
    cache.truncate_from_end(end)
    assert cache.entries == kept


@pytest.mark.case("server-4-11-truncate-from-end-start")
@pytest.mark.parametrize(
    ("start", "kept"),
    [
        (8, ((3, 8), (4, 11))),
        (9, ((3, 9), (4, 11))),
        (11, ((4, 11),)),
        (15, ((4, 15),)),
        (1, THREE),
        (6, THREE),
        (-1, THREE),
    ],
)
def test_truncate_from_start(start: int, kept: tuple[tuple[int, int], ...]) -> None:
    cache = cache_of(*THREE)
    cache.truncate_from_start(start)
    assert cache.entries == kept


@pytest.mark.case("kafka-77")
@pytest.mark.parametrize(("end", "count"), [(20, 3), (11, 2), (10, 1), (0, 0)])
def test_truncating_a_log_truncates_its_epochs(end: int, count: int) -> None:
    # TruncateLeaderEpochs: epoch 0 has rows 0..9, 1 has 10..15, 2 has 16..19.
    cache = cache_of((0, 0), (1, 10), (2, 16))
    cache.truncate_from_end(end)
    assert len(cache.entries) == count


@pytest.mark.case("kafka-76")
@pytest.mark.parametrize("end", [29, 30])
def test_truncating_to_the_end_clears_an_epoch_without_rows(end: int) -> None:
    # TruncateToEndOffsetClearsEpochCache: 29 is the log end; 30 lies behind it.
    cache = cache_of((19, 27), (20, 29))
    cache.truncate_from_end(min(end, 29))
    assert cache.entries == ((19, 27),)


# testLastFetchedOffsetValidation: log end 17, leader epoch 10 without rows of its own.
DIVERGENCE_LOG = ((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17))


def diverges_at(cache: LeaderEpochCache, epoch: int, fetch_offset: int) -> tuple[int, int] | None:
    """What a follower of Kafka is told (section 5.6): where its log and the leader's part, or nothing."""
    epoch_end = cache.end_offset_for(epoch, 17)
    assert epoch_end.epoch >= 0, "OFFSET_OUT_OF_RANGE"
    is_diverging = epoch_end.epoch < epoch or epoch_end.start_offset < fetch_offset
    return (epoch_end.epoch, epoch_end.start_offset) if is_diverging else None


@pytest.mark.case("kafka-114b")
@pytest.mark.parametrize(
    ("epoch", "offset", "answer"),
    [
        (2, 5, (0, 2)),
        (0, 4, (0, 2)),
        (6, 6, (4, 13)),
        (5, 9, (4, 13)),
        (10, 18, (10, 17)),
        (0, 2, None),
        (7, 14, None),
        (9, 17, None),
        (10, 17, None),
    ],
)
def test_divergence(epoch: int, offset: int, answer: tuple[int, int] | None) -> None:
    assert diverges_at(cache_of(*DIVERGENCE_LOG), epoch, offset) == answer


@pytest.mark.case("kafka-114b")
def test_divergence_of_an_epoch_newer_than_all_is_out_of_range() -> None:
    with pytest.raises(AssertionError, match="OFFSET_OUT_OF_RANGE"):
        diverges_at(cache_of(*DIVERGENCE_LOG), 11, 5)


@pytest.mark.case("kafka-114b")
def test_divergence_behind_a_log_start() -> None:
    cache = cache_of(*DIVERGENCE_LOG)
    cache.truncate_from_start(5)
    assert diverges_at(cache, 2, 8) == (2, 5)
    assert diverges_at(cache, 0, 5) is None
    assert diverges_at(cache, 3, 5) is None


@pytest.mark.case("kafka-112")
def test_a_new_leader_has_its_epoch_before_any_append() -> None:
    # MakeLeaderUpdatesEpochCache: log end 4, then epoch 8 begins there.
    partition = PartitionState((0, 1, 2))
    partition.leader_epochs = cache_of((0, 0), (5, 2))
    partition.leader_epoch = 7
    partition.log_end_offset = 4
    assert partition.shrink(0)
    assert (partition.leader, partition.leader_epoch) == (1, 8)
    assert partition.leader_epochs.entries == ((0, 0), (5, 2), (8, 4))
    assert partition.leader_epochs.end_offset_for(8, partition.log_end_offset) == (8, 4)
