"""The way of a follower back into the in-sync replicas, step by step, on a clock that stands still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.replica_fetcher import ReplicaFetcher
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import IsrChange
from tests.manual_clock import ManualClock


def ledger_of(store):
    return store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)


def test_a_root_that_is_back_gets_one_object_a_look_however_large_and_is_looked_at_again_at_once(store) -> None:
    store.create("orders")
    store.away(2)
    for batch in range(3):
        assert store.append("orders", {0: 1}, batch=batch, holders={0, 1}).error is None
    assert store.isr("orders") == (0, 1)
    store.back(2)
    config = replace(store.config, replica_rejoin_wait_ms=30_000, replica_catchup_bytes=1)
    clock = ManualClock(store.cluster.clock.now_ms() + 60_000)
    fetcher = ReplicaFetcher(store.cluster.brokers, config, clock=clock)
    catch_up = CatchUp(fetcher)
    for look in range(3):
        assert len(store.held_by("orders", 2)) == look and store.isr("orders") == (0, 1)
        catch_up.readmit(ledger_of(store))
    assert len(store.held_by("orders", 2)) == 3 and store.isr("orders") == (0, 1, 2)


TIMES = [(86_400_000, True), (20_000, False), (-20_000, False), (-31_000, True)]


@pytest.mark.parametrize(("ahead_ms", "is_back"), TIMES)
def test_a_clock_that_was_ahead_when_a_root_left_does_not_keep_it_out(store, ahead_ms, is_back) -> None:
    store.create("orders")
    clock = ManualClock(store.cluster.clock.now_ms())
    leave = encode_command(IsrChange(None, 2, False, clock.now_ms() + ahead_ms))
    ledger_of(store).append(lambda _: leave, timeout_ms=10_000)
    config = replace(store.config, replica_rejoin_wait_ms=30_000)
    catch_up = CatchUp(ReplicaFetcher(store.cluster.brokers, config, clock=clock))
    assert ("is due in" in catch_up.why_out(ledger_of(store))[2]) != is_back
    assert catch_up.readmit(ledger_of(store)) == is_back


def test_a_follower_that_failed_is_left_alone_for_the_backoff(store) -> None:
    # min.insync.replicas keeps it in the ISR, so that only the backoff spares each commit the try.
    store.create("orders", replicas=2, config={"min.insync.replicas": "2"})
    store.away(1)
    clock = ManualClock(store.cluster.clock.now_ms())
    config = replace(store.config, replica_fetch_backoff_ms=1_000)
    asked: list[int] = []
    fetcher = ReplicaFetcher(store.cluster.brokers, config, clock=clock)
    copy = fetcher.copy
    fetcher.copy = lambda *args, **more: (asked.append(args[1]), copy(*args, **more))[1]  # type: ignore[method-assign]
    catch_up = CatchUp(fetcher)
    made = store.put("orders", {0: 1}, {0})
    idle = ReplicaFetcher(store.cluster.brokers, replace(config, replica_catchup_budget_ms=0), clock=clock)
    store.manager._catch_up = CatchUp(idle)
    assert store.append("orders", {}, batch=0, objects=(made,), acks=1).error is None
    for _ in range(3):
        catch_up.copy_to_followers(ledger_of(store))
    assert asked == [1] and store.isr("orders") == (0, 1)
    clock.time_ms += 1_000
    store.back(1)
    catch_up.copy_to_followers(ledger_of(store))
    assert asked == [1, 1] and store.high_watermarks("orders") == [1]
    assert fetcher._targets[1].failure_count == 0  # the next failure waits as briefly as the first


def test_a_follower_that_takes_no_copies_stays_in_sync_where_it_alone_holds_rows(store) -> None:
    # Its root answers, so an election cuts nothing: a shrink that cut its rows would lose what acks=1 acknowledged.
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders")
    for batch, holders in enumerate(({0}, {1})):
        assert store.append("orders", {0: 1}, batch=batch, holders=holders, acks=1).error is None
    config = replace(store.config, replica_catchup_budget_ms=5_000)
    fetcher = ReplicaFetcher(store.cluster.brokers, config, clock=store.cluster.clock)

    def copy(job, target, *args, **more):
        sources = {} if target == 1 else {"sources": str(job.sources)}
        raise RetriableError(ErrorCode.KAFKA_STORAGE_ERROR, "it neither reads nor writes. Look at it.", **sources)

    fetcher.copy = copy  # type: ignore[method-assign]
    CatchUp(fetcher).copy_to_followers(ledger_of(store))
    (partition,) = store.controller.describe_topic("orders").partitions
    assert (partition.log_end_offset, partition.isr) == (2, (0, 1, 2))
