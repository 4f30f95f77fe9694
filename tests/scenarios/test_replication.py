"""Replicas that fall behind, leave, come back: real directories renamed away and back."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest

from spark_replog.commit import catch_up
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode
from spark_replog.log.model import Outcome
from tests.waiting import wait_until


def is_applied(response) -> bool:
    return response.error is None and response.result.outcome is Outcome.APPLIED


def code_of(response):
    assert response.error is not None, response
    return response.error.code.name


def test_a_root_goes_and_comes_back(store) -> None:
    store.create("orders", 2)
    assert is_applied(store.append("orders", {0: 5, 1: 1}, batch=0))
    store.away(2)
    # The writer got two copies only; the commit finds the third root gone and shrinks the ISR in
    # the same entry: min.insync.replicas is 2 of 3.
    assert is_applied(store.append("orders", {0: 5}, batch=1, holders={0, 1}))
    assert set(store.isr("orders")) == {0, 1}
    assert store.high_watermarks("orders") == [10, 1]
    for batch in range(2, 5):
        assert is_applied(store.append("orders", {0: 1, 1: 1}, batch=batch, holders={0, 1}))
    assert store.high_watermarks("orders") == [13, 4]
    store.back(2)
    # The next commit copies what it missed; the replica joins once it holds everything.
    assert is_applied(store.append("orders", {0: 1}, batch=5, holders={0, 1}))
    assert set(store.isr("orders")) == {0, 1, 2}
    assert store.held_by("orders", 2) == store.held_by("orders", 0)
    assert all(section.object.holders == {0, 1, 2} for section in store.sections("orders"))
    # And it counts again: a batch that it misses is copied to it before the entry is decided.
    assert is_applied(store.append("orders", {0: 1}, batch=6, holders={0, 1}))
    assert store.held_by("orders", 2) == store.held_by("orders", 0)
    # Nothing was lost, nothing doubled, and another process sees the same.
    store.reopen()
    assert store.high_watermarks("orders") == [15, 4]
    ends = [(section.base_offset, section.row_count) for section in store.sections("orders")]
    assert [base for base, _ in ends] == [sum(rows for _, rows in ends[:number]) for number in range(len(ends))]


def entries_of(store) -> int:
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    ledger.refresh()
    return ledger.state.applied_index + 1


def test_whatever_an_append_needs_is_in_its_own_entry(store) -> None:
    # The rejoin wait keeps later entries of the same commit away.
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders")
    before = entries_of(store)
    # Copies that the commit made:
    assert is_applied(store.append("orders", {0: 1}, batch=0, holders={1}))
    assert entries_of(store) == before + 1
    # New holders of an older entry, which stood above the stable index:
    assert is_applied(store.append("orders", {0: 1}, batch=1, holders={0}, acks=1))
    assert is_applied(store.append("orders", {0: 1}, batch=2))
    assert entries_of(store) == before + 3
    # A replica that left:
    store.away(2)
    assert is_applied(store.append("orders", {0: 1}, batch=3, holders={0, 1}))
    assert entries_of(store) == before + 4
    assert store.high_watermarks("orders") == [4]


def test_the_leader_goes(store) -> None:
    store.create("orders", 3)
    leaders = [description.leader for description in store.controller.describe_topic("orders").partitions]
    gone = leaders[0]
    assert is_applied(store.append("orders", {0: 1, 1: 1, 2: 1}, batch=0))
    store.away(gone)
    others = {0, 1, 2} - {gone}
    assert is_applied(store.append("orders", {0: 1, 1: 1, 2: 1}, batch=1, holders=others))
    for before, partition in zip(leaders, store.controller.describe_topic("orders").partitions, strict=True):
        assert partition.leader in others
        assert partition.leader_epoch == (before == gone)
        assert partition.high_watermark == 2


def test_a_replica_stays_out_for_the_rejoin_wait(store) -> None:
    store.config = CoordinatorConfig(replica_rejoin_wait_ms=30_000)
    store.reopen()
    store.create("orders")
    store.append("orders", {0: 1}, batch=0)
    store.away(2)
    assert is_applied(store.append("orders", {0: 1}, batch=1, holders={0, 1}))
    store.back(2)
    store.reopen()
    assert is_applied(store.append("orders", {0: 1}, batch=2, holders={0, 1}))
    assert set(store.isr("orders")) == {0, 1}


def test_catching_up_goes_on_over_commits(store) -> None:
    store.config = CoordinatorConfig(replica_rejoin_wait_ms=0, replica_catchup_bytes=25)
    store.reopen()
    store.create("orders")
    store.away(2)
    for batch in range(5):
        assert is_applied(store.append("orders", {0: 1}, batch=batch, holders={0, 1}))
    store.back(2)
    seen = []
    for batch in range(5, 15):
        assert is_applied(store.append("orders", {0: 1}, batch=batch, holders={0, 1}))
        seen.append(2 in store.isr("orders"))
    # Two objects of 10 bytes a commit: it gains one a commit, and stays in once it is in.
    assert seen == sorted(seen) and not seen[0] and seen[-1]
    assert store.high_watermarks("orders") == [15]


def test_too_few_replicas_refuse_the_batch_and_decide_nothing(store) -> None:
    store.create("orders", config={"min.insync.replicas": "3"})
    assert is_applied(store.append("orders", {0: 1}, batch=0))
    store.away(2)
    response = store.append("orders", {0: 1}, batch=1, holders={0, 1})
    assert code_of(response) == "NOT_ENOUGH_REPLICAS"
    assert "broker 2" in str(response.error)
    assert set(store.isr("orders")) == {0, 1, 2}
    assert store.high_watermarks("orders") == [1]
    store.back(2)
    assert is_applied(store.append("orders", {0: 1}, batch=1, holders={0, 1}))
    assert store.high_watermarks("orders") == [2]


def test_fewer_than_a_majority_of_roots(store, short_quorum_wait, monkeypatch) -> None:
    store.create("orders")
    store.append("orders", {0: 1}, batch=0)
    objects = (store.put("orders", {0: 1}, {0, 1, 2}),)
    store.away(1), store.away(2)
    store.config = CoordinatorConfig(delivery_timeout_ms=500, request_timeout_ms=5000)
    short_quorum_wait()
    store.reopen()
    with pytest.raises(Exception, match="REPLOG_NO_QUORUM"):
        store.append("orders", {0: 1}, batch=1, objects=objects)
    monkeypatch.undo()
    store.back(1), store.back(2)
    store.reopen()
    assert is_applied(store.append("orders", {0: 1}, batch=1, objects=objects))


def test_a_slow_replica_leaves_the_isr_after_the_lag_time(store, faults) -> None:
    store.create("orders")
    config = CoordinatorConfig(replica_lag_time_max_ms=200, replica_rejoin_wait_ms=60_000)
    with faults(store, config) as broken:
        objects = (store.put("orders", {0: 1}, {0, 1}),)
        broken.stores[2].data_gate.clear()
        assert is_applied(store.append("orders", {0: 1}, batch=0, objects=objects))
        # Nobody waited for the copy: it has not come back yet.
        assert store.held_by("orders", 2) == set()
        assert set(store.isr("orders")) == {0, 1}


@pytest.mark.case("server-5-8-fetcher-former-follower")
def test_a_replica_that_left_gets_no_more_of_the_copies_that_the_append_had_waited_for(store, faults) -> None:
    # Kafka stops the fetcher of a follower that is no longer one. Its copies would pass by the throttle, too.
    store.create("orders")
    with faults(store, replace(store.config, num_replica_fetchers=1, replica_rejoin_wait_ms=60_000)) as broken:
        objects = tuple(store.put("orders", {0: 1}, {0, 1}) for _ in range(5))
        broken.stores[2].data_gate.clear()
        assert store.append("orders", {}, batch=0, objects=objects).error is None
        assert set(store.isr("orders")) == {0, 1}
        gate, broken.stores[2].data_gate = broken.stores[2].data_gate, threading.Event()
        broken.stores[2].data_gate.set()
        gate.set()
        target = store.manager._services.fetcher._targets[2]
        wait_until(lambda: not (target.active_count or target.waiting))
        assert len(store.held_by("orders", 2)) == 1, "the copy that was under way ends"


@pytest.mark.guarantee("G4")
def test_a_hung_root_stops_nobody(store, faults, monkeypatch) -> None:
    monkeypatch.setattr(catch_up, "PLANNER_ROOT_TIMEOUT_MS", 500)  # it does hang
    store.create("orders")
    config = CoordinatorConfig(replica_lag_time_max_ms=300, replica_rejoin_wait_ms=0)
    with faults(store, config) as broken:
        assert is_applied(store.append("orders", {0: 1}, batch=0))
        broken.stores[2].hung.clear()  # every call to this root blocks, as on a dead NFS mount
        answered = broken.stores[2].answered_count
        for batch in range(1, 4):
            assert is_applied(store.append("orders", {0: 1}, batch=batch, holders={0, 1}))
        store.controller.create_topic("clicks")
        assert broken.stores[2].answered_count == answered  # whatever was asked of it is still out
        assert set(store.isr("orders")) == {0, 1}
        assert set(store.isr("clicks")) == {0, 1}
        broken.stores[2].hung.set()
        batches = itertools.count(4)

        def is_back() -> bool:  # the calls that hung end first, and copies may take their time
            assert is_applied(store.append("orders", {0: 1}, batch=next(batches), holders={0, 1}))
            return set(store.isr("orders")) == {0, 1, 2}

        wait_until(is_back)


@pytest.mark.case("server-request-timed-out-kafka-s-rows")
def test_a_request_that_expires_first_decides_nothing(store, faults) -> None:
    store.create("orders")
    config = CoordinatorConfig(replica_lag_time_max_ms=2000)
    with faults(store, config) as broken:
        objects = (store.put("orders", {0: 1}, {0, 1}),)
        broken.stores[2].stall_seconds = 1.5
        response = store.append("orders", {0: 1}, batch=0, objects=objects, timeout_ms=100)
        assert code_of(response) == "REQUEST_TIMED_OUT"
        assert store.high_watermarks("orders") == [0]
        broken.stall_seconds = 0.0
        assert is_applied(store.append("orders", {0: 1}, batch=0, objects=objects))
        assert store.high_watermarks("orders") == [1]


@pytest.mark.guarantee("G2")
def test_acks_1_is_invisible_until_the_followers_have_it(store) -> None:
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders")
    assert is_applied(store.append("orders", {0: 4}, batch=0, holders={0}, acks=1))
    partition = store.controller.describe_topic("orders").partitions[0]
    assert (partition.high_watermark, partition.log_end_offset) == (0, 4)
    # An acks=all batch waits for the copies of what lies below it, too.
    assert is_applied(store.append("orders", {0: 1}, batch=1))
    assert store.high_watermarks("orders") == [5]
    assert store.held_by("orders", 2) == store.held_by("orders", 0)


def test_acks_1_followers_are_brought_up_to_date_behind_the_commit(store) -> None:
    store.create("orders")
    assert is_applied(store.append("orders", {0: 4}, batch=0, holders={0}, acks=1))
    assert store.high_watermarks("orders") == [4]
    assert all(section.object.holders == {0, 1, 2} for section in store.sections("orders"))


def test_a_repeated_acks_all_batch_waits_until_its_first_self_is_replicated(store) -> None:
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders")
    assert is_applied(store.append("orders", {0: 4}, batch=0, holders={0}, acks=1))
    again = store.append("orders", {0: 4}, batch=0)
    assert again.error is None and again.result.outcome is Outcome.DUPLICATE
    assert store.high_watermarks("orders") == [4]


@pytest.mark.case("server-acks-0-drops-replica-took")
def test_acks_0_names_only_what_an_in_sync_replica_holds(store, caplog: pytest.LogCaptureFixture) -> None:
    store.create("orders")
    objects = (store.put("orders", {0: 2}, {0}), store.put("orders", {0: 3}, set()))
    assert is_applied(store.append("orders", {}, batch=0, objects=objects, acks=0))
    assert store.high_watermarks("orders") == [2]
    assert "[REPLOG_ACKS0_DROPPED] 3 rows" in caplog.text
    assert code_of(store.append("orders", {}, batch=1, objects=objects, acks=1)) == "NOT_ENOUGH_REPLICAS"


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("damage", ["flipped", "longer"])
def test_a_bad_source_copy_is_not_spread(store, damage: str) -> None:
    # Longer: behind the sections, which have checksums, lies the footer, which has none.
    store.create("orders")
    made = store.put("orders", {0: 2}, {0, 1})
    handle = store.cluster.lookup("orders")
    bad = store.path / "broker-0" / "ledgers" / handle.ledger_id / "data" / "000000" / made.id.name
    body = bytearray(bad.read_bytes())
    if damage == "flipped":
        body[3] ^= 1
    else:
        body += b"?"
    bad.chmod(0o644)
    bad.write_bytes(body)
    assert is_applied(store.append("orders", {}, batch=0, objects=(made,)))
    copied = store.path / "broker-2" / "ledgers" / handle.ledger_id / "data" / "000000" / made.id.name
    good = store.path / "broker-1" / "ledgers" / handle.ledger_id / "data" / "000000" / made.id.name
    assert copied.read_bytes() == good.read_bytes() != bad.read_bytes()


@pytest.mark.parametrize("acks", [2, -2, 17])
def test_invalid_acks_append_nothing(store, acks: int) -> None:
    store.create("orders")
    assert code_of(store.append("orders", {0: 1}, batch=0, acks=acks)) == "INVALID_REQUIRED_ACKS"
    assert store.controller.describe_topic("orders").partitions[0].log_end_offset == 0


def test_internal_topics_are_for_coordinators(store) -> None:
    store.create("__consumer_offsets")
    assert code_of(store.append("__consumer_offsets", {0: 1}, batch=0)) == "INVALID_TOPIC_EXCEPTION"
    assert store.controller.describe_topic("__consumer_offsets").partitions[0].log_end_offset == 0


def test_a_topic_deleted_under_its_writer(store) -> None:
    store.create("orders")
    objects = (store.put("orders", {0: 1}, {0, 1, 2}),)
    response = store.append("orders", {}, batch=0, objects=objects)
    ledger_id = store.cluster.lookup("orders").ledger_id
    assert is_applied(response)
    store.controller.delete_topic("orders")
    from spark_replog.log.model import Append, IdentityKind, ProducerIdentity

    append = Append(ProducerIdentity("q", "q", 5, "run", IdentityKind.STREAM), "User:test", "", 0, objects)
    assert code_of(store.commit({ledger_id: append})[ledger_id]) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_two_ledgers_in_one_micro_batch(store) -> None:
    from spark_replog.log.model import Append, IdentityKind, ProducerIdentity

    store.create("orders")
    store.create("strict", config={"min.insync.replicas": "3"})
    store.away(2)
    entries = {
        store.cluster.lookup(topic).ledger_id: Append(
            ProducerIdentity("q", "q", 0, "run", IdentityKind.STREAM), "User:test", "", 0,
            (store.put(topic, {0: 1}, {0, 1}),),
        )
        for topic in ("orders", "strict")
    }  # fmt: skip
    good, refused = store.commit(entries).values()
    assert is_applied(good)
    assert code_of(refused) == "NOT_ENOUGH_REPLICAS"
    store.back(2)
    # The replay skips the decided one.
    again, now = store.commit(entries).values()
    assert again.result.outcome is Outcome.DUPLICATE
    assert is_applied(now)
    assert store.high_watermarks("orders") == store.high_watermarks("strict") == [1]


def test_an_empty_batch_writes_no_entry(store) -> None:
    store.create("orders")
    before = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id).state.applied_index
    assert is_applied(store.append("orders", {}, batch=0, objects=()))
    store.reopen()
    store.controller.describe_topic("orders")
    assert store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id).state.applied_index == before


def test_leaving_the_in_sync_replicas_is_logged_once_and_only_when_it_is_decided(store, caplog) -> None:
    def departures() -> list[str]:
        return [record.message for record in caplog.records if "out of the in-sync replicas" in record.message]

    store.create("strict", config={"min.insync.replicas": "3"})
    store.create("orders")
    store.away(2)
    for batch in range(3):
        error = store.append("strict", {0: 1}, batch=batch, holders={0, 1}).error
        assert error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert departures() == [] and store.isr("strict") == (0, 1, 2)
    for batch in range(3):
        assert store.append("orders", {0: 1}, batch=batch, holders={0, 1}).error is None
    (departure,) = departures()
    assert "broker 2" in departure and store.isr("orders") == (0, 1)
