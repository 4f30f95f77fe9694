"""Garbage collection on real roots: what goes, what stays, and what a collector may meet."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from spark_replog.cli.main import run
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.retention import raise_floor
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.fold import frozen_topics
from spark_replog.maintenance import garbage as garbage_module
from spark_replog.maintenance import scrub as scrub_module
from spark_replog.maintenance import upkeep as upkeep_module
from spark_replog.maintenance.garbage import GarbageCollector, Why
from spark_replog.maintenance.repair import StoreRepair
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.paths import data_key
from tests.faulty_store import FaultyStore
from tests.scenarios.committing import SMALL, commit_until_merged
from tests.scenarios.sink_query import Query, read

BROKERS = {0, 1, 2}


def ledger_of(store, topic="orders"):
    return store.cluster.topic_ledger(store.cluster.lookup(topic).ledger_id)


def put_loser(store, topic="orders", generation=0, holders=BROKERS):
    """Write what no entry will ever name: the loser of a speculation."""
    name = f"lost-0-0-{new_id()}.arrow"
    for broker_id in holders:
        key = data_key(ledger_of(store, topic).ledger_id, generation, name)
        store.cluster.brokers.store(broker_id).create(key, b"x" * 50, make_parent=True)
    return name


def collect(store, **more):
    return GarbageCollector(store.cluster, **more).run()


def names(store, broker_id):
    return store.held_by("orders", broker_id)


def append_until_merged(store, batch):
    """Append five rows at a time, from this batch on, until trimmed rows hold no object; return how many times."""
    batches = itertools.count(batch)

    def append():
        made = store.put("orders", {0: 5}, BROKERS, generation=ledger_of(store).refresh().generations.newest)
        store.append("orders", {}, batch=next(batches), objects=(made,))

    return commit_until_merged(store.cluster.path, "orders", append)


@pytest.mark.guarantee("G6")
def test_nothing_goes_that_may_still_be_named(store):
    store.create("orders")
    store.append("orders", {0: 5}, batch=0)
    loser = put_loser(store)
    before = {broker_id: names(store, broker_id) for broker_id in BROKERS}

    assert collect(store).files == {}  # its writer may be slow
    assert {broker_id: names(store, broker_id) for broker_id in BROKERS} == before
    raise_floor(ledger_of(store), 5_000)
    slow = put_loser(store, generation=1)  # not below the floor: its writer planned after it
    report = collect(store)

    assert report.files == {(broker_id, Why.BELOW_FLOOR): 1 for broker_id in BROKERS}
    assert report.size_bytes[0, Why.BELOW_FLOOR] == 50
    assert {broker_id: names(store, broker_id) for broker_id in BROKERS} == {
        broker_id: before[broker_id] - {loser} | {slow} for broker_id in BROKERS
    }
    assert collect(store).files == {}


@pytest.mark.guarantee("G6")
def test_a_writer_that_slept_past_the_floor_is_refused_and_its_retry_writes_again(store):
    """I11 and I12: whatever a stopped process wakes up to, its batch is in the log once."""
    store.create("orders")
    slept = store.put("orders", {0: 5}, BROKERS)
    raise_floor(ledger_of(store), 5_000)
    assert collect(store).files[0, Why.BELOW_FLOOR] == 1

    refused = store.append("orders", {0: 5}, batch=0, objects=(slept,))
    assert refused.error is not None and refused.error.code is ErrorCode.REPLOG_JOB_TOO_LONG
    assert store.high_watermarks("orders") == [0]
    again = replace(store.put("orders", {0: 5}, BROKERS), id=ObjectId(1, slept.id.name))
    for broker_id in BROKERS:
        body = store.cluster.brokers.store(broker_id)
        body.create(data_key(ledger_of(store).ledger_id, *again.id), os.urandom(50), make_parent=True)
    assert store.append("orders", {0: 5}, batch=0, objects=(again,)).error is None
    assert store.append("orders", {0: 5}, batch=0, objects=(again,)).error is None  # a replay
    assert store.high_watermarks("orders") == [5]


def test_a_commit_before_the_floor_keeps_its_objects(store):
    store.create("orders")
    item = store.put("orders", {0: 5}, BROKERS)
    assert store.append("orders", {0: 5}, batch=0, objects=(item,)).error is None
    raise_floor(ledger_of(store), 5_000)
    assert collect(store).files == {}
    assert names(store, 0) == {item.id.name}


def test_trimmed_rows_free_their_objects_and_deleted_topics_all(store):
    store.create("orders")
    store.create("other", ledger_name=None)
    first = store.put("orders", {0: 5}, BROKERS)
    store.append("orders", {0: 5}, batch=0, objects=(first,))
    store.append("orders", {0: 5}, batch=1)
    store.append("other", {0: 5}, batch=0)
    store.controller.delete_records("orders", {0: 5})
    report = collect(store)
    assert report.files == {(broker_id, Why.DROPPED): 1 for broker_id in BROKERS}
    assert len(names(store, 0)) == 2 and first.id.name not in names(store, 0)

    put_loser(store, "other")
    ledger_id = ledger_of(store, "other").ledger_id
    store.controller.delete_topic("other")
    store.reopen()
    collect(store)
    assert not list((store.path / "broker-0" / "ledgers" / ledger_id / "data").iterdir())
    before = store.cluster.topic_ledger(ledger_id).refresh().applied_index
    collect(store)
    assert store.cluster.topic_ledger(ledger_id).refresh().applied_index == before  # one entry was enough
    assert len(names(store, 0)) == 1


def test_a_deleted_topic_whose_rows_lie_in_pages_leaves_nothing(store, monkeypatch):
    monkeypatch.setattr(frozen_topics, "FLUSH_ROWS", 1)
    store.create("other")
    for batch in range(6):
        store.append("other", {0: 5}, batch=batch)
    ledger = ledger_of(store, "other")
    ledger.snapshot(timeout_ms=60_000)
    assert set(ledger.state.page_names())
    store.controller.delete_topic("other")
    store.reopen()
    collect(store)
    assert not list((store.path / "broker-0" / "ledgers" / ledger.ledger_id / "data").iterdir())


@pytest.mark.parametrize("rows_are", ["in the head", "in pages"])
@pytest.mark.parametrize("way", ["topic deleted", "rows trimmed"])
def test_files_of_a_shared_ledger_go_with_their_rows_whichever_process_collects(store, monkeypatch, way, rows_are):
    """The process that saw the rows go is gone, and a snapshot came after it."""
    if rows_are == "in pages":
        monkeypatch.setattr(frozen_topics, "FLUSH_ROWS", 1)
    for topic in ("kept", "old"):
        store.create(topic, ledger_name="both")
    for batch in range(20):
        store.append("old", {0: 5}, batch=2 * batch)
        store.append("kept", {0: 5}, batch=2 * batch + 1)
    ledger = ledger_of(store, "old")
    ledger.snapshot(timeout_ms=60_000)
    monkeypatch.undo()
    if way == "topic deleted":
        store.controller.delete_topic("old")
    else:
        store.controller.delete_records("old", {0: 100})
    ledger.snapshot(timeout_ms=60_000)
    store.reopen()
    seen = []
    assert collect(store, is_dry_run=True, on_file=seen.append).files.total() == 60
    report = collect(store)
    assert report.files == {(broker_id, Why.DROPPED): 20 for broker_id in BROKERS}
    assert {file.id.name for file in seen}.isdisjoint(names(store, 0)) and len(names(store, 0)) == 20
    store.reopen()
    assert collect(store).files == {}


class MovedClock:
    """The system's clock, moved ahead."""

    def __init__(self):
        self.moved_ms = 0

    def now_ms(self):
        return SYSTEM_CLOCK.now_ms() + self.moved_ms

    def monotonic_ms(self):
        return SYSTEM_CLOCK.monotonic_ms() + self.moved_ms

    def sleep_ms(self, duration_ms):
        SYSTEM_CLOCK.sleep_ms(duration_ms)


def test_two_writers_and_a_coordinator_leave_no_dead_file_after_a_minute_of_rest(store, monkeypatch):
    """Each of them writes snapshots, applies retention and deletes; time is moved."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    store.create("orders", partitions=2, config={"retention.ms": "1000"})
    clock = MovedClock()
    processes = [Cluster.open(str(store.path), config=store.config, clock=clock) for _ in range(3)]
    upkeeps, coordinator = list(map(Upkeep, processes)), processes.pop()
    ledger_id = ledger_of(store).ledger_id
    for batch in range(60):
        store.cluster, upkeep = processes[batch % 2], upkeeps[batch % 2]
        store.manager = ReplicaManager(store.cluster, after_append=upkeep.start)
        assert store.append("orders", {batch % 2: 5, 1: 5}, batch=batch).error is None
        assert upkeep.wait(60_000)
        clock.moved_ms += 8_000
        upkeeps[2].run_if_due(coordinator.topic_ledger(ledger_id))

    def live():
        store.reopen()
        return {section.object.id.name for partition in (0, 1) for section in store.sections("orders", partition)}

    at_rest, ledger = live(), coordinator.topic_ledger(ledger_id)
    assert len(at_rest) < 40, "retention did its part"
    for _ in range(2 + 60 + store.config.file_delete_delay_ms // 1000):
        clock.moved_ms += 1_000
        ledger.refresh()
        upkeeps[2].run_if_due(ledger)
    for broker_id in BROKERS:
        files = names(store, broker_id)
        assert live() <= files
        assert len(files - at_rest) <= 0.02 * len(files)  # the rows of others may have aged out just now


def test_a_root_that_was_away_is_collected_when_it_is_back(store):
    store.create("orders")
    store.append("orders", {0: 5}, batch=0)
    loser = put_loser(store)
    raise_floor(ledger_of(store), 5_000)
    store.away(2)
    report = collect(store)
    assert {broker_id for broker_id, _ in report.files} == {0, 1}
    assert [broker_id for broker_id, _ in report.failures] == [2]
    store.back(2)
    store.reopen()
    assert collect(store).files == {(2, Why.BELOW_FLOOR): 1}
    assert loser not in names(store, 2)


@pytest.mark.guarantee("G6")
def test_what_writers_put_lately_stays_where_the_floor_could_not_be_raised(store, monkeypatch):
    """`store gc --now` that ends between its two steps: until the floor has passed it, a batch may still be named."""
    store.create("orders")
    made = store.put("orders", {0: 5}, BROKERS)

    def fail(*_, **__):
        raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "the roots are away.")

    monkeypatch.setattr(garbage_module, "raise_floor", fail)
    report = collect(store, is_floor_raised=True)
    assert report.files == {} and [at for at, _ in report.failures] == [-1]
    assert store.append("orders", {}, batch=0, objects=(made,)).error is None


@pytest.mark.guarantee("G6")
def test_nothing_is_deleted_from_a_root_that_is_not_the_brokers(store):
    """As a mount of an older copy of the root, which is refused for its journals too."""
    store.create("orders")
    loser = put_loser(store)
    raise_floor(ledger_of(store), 5_000)
    root_file = store.path / "broker-2" / "replog.json"
    root_file.rename(root_file.with_name("away.json"))
    store.reopen()
    report = collect(store)
    assert [at for at, _ in report.failures] == [2]
    assert loser in names(store, 2) and loser not in names(store, 1)


def test_a_dry_run_explains_each_file_and_changes_nothing(store):
    store.create("orders")
    store.append("orders", {0: 5}, batch=0)
    loser = put_loser(store)
    seen = []
    collect(store, is_dry_run=True, on_file=seen.append)
    assert seen == []
    collect(store, is_dry_run=True, is_floor_raised=True, on_file=seen.append)
    assert [(file.broker_id, file.id.name, file.size_bytes, file.why) for file in seen] == [
        (broker_id, loser, 50, Why.BELOW_FLOOR) for broker_id in sorted(BROKERS)
    ]
    assert loser in names(store, 0)
    assert ledger_of(store).refresh().generations.floor == 0


def test_files_that_are_not_ours_stay(store):
    store.create("orders")
    store.append("orders", {0: 5}, batch=0)
    raise_floor(ledger_of(store), 5_000)
    folder = store.path / "broker-0" / "ledgers" / ledger_of(store).ledger_id / "data"
    strange = [folder / "000000" / "notes.txt", folder / "old" / "mine.arrow", folder / "0" / "mine.arrow"]
    for path in strange:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert collect(store).files == {}
    assert all(path.exists() for path in strange)


def test_two_collectors_at_once_delete_each_file_once_or_twice(store):
    store.create("orders")
    store.append("orders", {0: 5}, batch=0)
    kept = names(store, 0)
    for _ in range(250):
        put_loser(store)
    raise_floor(ledger_of(store), 5_000)
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(collect(store))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.failures for report in reports] == [[], []]
    assert names(store, 0) == names(store, 1) == names(store, 2) == kept


class _FullRoots:
    """Roots without a byte left: every create is refused, deletes work."""

    def __init__(self, store):
        self.store, self.url = store, store.url

    def __getattr__(self, name):
        return getattr(self.store, name)

    def create(self, key, data, *, make_parent=False):
        raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "no space left", key=key)


def test_a_full_disk_is_freed_by_what_is_decided_already(store):
    store.create("orders")
    store.append("orders", {0: 5}, batch=0)
    store.append("orders", {0: 5}, batch=1)
    put_loser(store)
    raise_floor(ledger_of(store), 5_000)
    store.controller.delete_records("orders", {0: 5})
    more = append_until_merged(store, 2)
    opened = BrokerSet.open(str(store.path))
    opened.stores.update({broker_id: _FullRoots(opened.store(broker_id)) for broker_id in BROKERS})
    config = replace(store.config, delivery_timeout_ms=300)
    store.cluster = Cluster(opened, path=str(store.path), storage_options={}, config=config)
    report = collect(store, is_floor_raised=True)
    assert sum(report.files.values()) == 6
    assert report.failures  # no entry can be written
    assert len(names(store, 0)) == 1 + more


def test_commits_do_a_part_of_it(store, monkeypatch):
    monkeypatch.setattr(upkeep_module, "DELETES_MAX", 3)
    store.config = replace(store.config, file_delete_delay_ms=0)
    store.reopen()
    store.create("orders", config={"retention.bytes": "60", "retention.ms": "-1"})
    for batch in range(3):
        store.append("orders", {0: 5}, batch=batch)  # 50 bytes each
    for generation in (0, 1):
        for _ in range(4):
            put_loser(store, generation=generation)
        raise_floor(ledger_of(store), 5_000)
    ledger, upkeep = ledger_of(store), Upkeep(store.cluster)
    upkeep.run_if_due(ledger)  # three of the newest generation below the floor; then the log start moves
    assert len(names(store, 0)) == 3 + 8 - 3
    assert store.controller.offsets("orders", "start") == {0: 5}
    upkeep.run_if_due(ledger)  # due at once: something was left
    assert len(names(store, 0)) == 2 + 8 - 4
    for _ in range(4):
        upkeep.run(ledger)
    assert len(names(store, 0)) == 2
    assert {path.name for path in (store.path / "broker-0/ledgers" / ledger.ledger_id / "data").iterdir()} == {"000000"}
    index = ledger.refresh().applied_index
    for _ in range(3):
        upkeep.run_if_due(ledger)
        upkeep.run(ledger)
    assert ledger.refresh().applied_index == index  # nothing due costs no entry


def test_commits_empty_the_ledgers_of_deleted_topics(store):
    store.create("orders")
    store.create("other")
    store.append("other", {0: 5}, batch=0)
    store.append("orders", {0: 5}, batch=0)
    ledger_id = ledger_of(store, "other").ledger_id
    store.controller.delete_topic("other")
    Upkeep(store.cluster).run(ledger_of(store))
    assert not list((store.path / "broker-0" / "ledgers" / ledger_id / "data").iterdir())
    assert len(names(store, 0)) == 1


def test_a_ledger_that_gets_a_topic_again_while_it_is_collected_keeps_its_floor(store, monkeypatch):
    store.create("orders", ledger_name="pair")
    store.append("orders", {0: 5}, batch=0)
    store.controller.delete_topic("orders")
    ledger_id = store.cluster.cluster_ledger.refresh().ledgers["pair"]
    collector = GarbageCollector(store.cluster)
    really = garbage_module.decide_upkeep
    store.reopen()
    made = []

    def slow(*given):
        """While files are deleted, others make a topic in the ledger, and a task writes its rows."""
        store.create("more", ledger_name="pair")
        made.append(store.put("more", {0: 5}, BROKERS))
        return really(*given)

    monkeypatch.setattr(garbage_module, "decide_upkeep", slow)
    collector.run_ledger(ledger_id)
    monkeypatch.undo()
    assert collector.report.failures == []
    assert store.append("more", {0: 5}, batch=1, objects=(made[0],)).error is None
    assert store.high_watermarks("more") == [5]


def test_ledgers_of_deleted_topics_are_emptied_on_a_root_that_was_away_too(store):
    """They get no more commits, so no collection would look there again."""
    store.create("orders")
    store.create("other")
    store.append("other", {0: 5}, batch=0)
    store.append("orders", {0: 5}, batch=0)
    folder = store.path / "broker-2" / "ledgers" / ledger_of(store, "other").ledger_id / "data"
    store.controller.delete_topic("other")
    upkeep = Upkeep(store.cluster, replace(store.config, log_retention_check_interval_ms=1))
    store.away(2)
    upkeep.run(ledger_of(store))
    store.back(2)
    assert list(folder.iterdir())
    upkeep.run(ledger_of(store))
    assert not list(folder.iterdir())


def test_a_root_that_hangs_is_asked_once_for_all_ledgers(store, monkeypatch):
    """The rounds of a coordinator elect leaders too: they must not wait for it again in each ledger."""
    topics = ("orders", "other", "more")
    for topic in topics:
        store.create(topic)
        raise_floor(ledger_of(store, topic), 5_000)
    store.cluster.brokers.stores[2] = away = FaultyStore(store.cluster.brokers.store(2))
    away.is_down = True
    asked = []
    check = BrokerSet.check_root
    monkeypatch.setattr(
        BrokerSet, "check_root", lambda self, broker_id, **how: asked.append(broker_id) or check(self, broker_id, **how)
    )
    upkeep = Upkeep(store.cluster)
    for topic in topics:
        upkeep.run(ledger_of(store, topic))
    assert asked.count(2) == 1
    assert asked.count(0) >= len(topics)


def test_a_full_generation_does_not_wait_for_the_next_run(store, monkeypatch):
    for name in ("spark_replog.commit.retention", "spark_replog.maintenance.upkeep"):
        monkeypatch.setattr(f"{name}.GENERATION_OBJECTS_MAX", 2)
    store.create("orders")
    upkeep, generations = Upkeep(store.cluster), []
    for batch in range(5):
        store.append("orders", {0: 5}, batch=batch)
        upkeep.run_if_due(ledger_of(store))
        generations.append(ledger_of(store).refresh().generations.newest)
    assert generations == [0, 1, 1, 1, 1]  # these objects are of generation 0: only newer ones count


def test_the_commits_of_a_query_apply_retention(store, monkeypatch):
    monkeypatch.setattr(Upkeep, "start", Upkeep.run_if_due)  # now, not in the background
    store.create("orders", config={"retention.bytes": "0"})
    query = Query(store, monkeypatch, **{"kafka.acks": "all"})
    for number in range(4):
        query.batch(b"%d" % number)
    assert store.controller.offsets("orders", "start") == {0: 3}
    assert store.controller.offsets("orders", "end") == {0: 4}


def test_collections_with_now_spare_a_micro_batch_that_is_being_written(store, monkeypatch):
    """Whenever its plan was made; what was written longer ago goes, once a later generation is as old."""
    store.create("orders")
    clock = MovedClock()
    query = Query(store, monkeypatch, **{"kafka.acks": "all"})
    query.batch(b"0")
    loser = put_loser(store)
    early, written = query.plan(), query.write(query.plan(), b"1")
    cluster = Cluster.open(str(store.path), config=store.config, clock=clock)
    for _ in range(6):
        GarbageCollector(cluster, is_floor_raised=True, age_ms=3_600_000).run()
        clock.moved_ms += 500_000
    assert loser in names(store, 0)
    query.commit(written)
    query.batch_id += 1
    query.commit(query.write(early, b"2"))
    query.batch_id += 1
    query.batch(b"3")
    clock.moved_ms += 3_600_000
    dry = GarbageCollector(cluster, is_dry_run=True, is_floor_raised=True, age_ms=3_600_000).run()
    assert dry.files == GarbageCollector(cluster, is_floor_raised=True, age_ms=3_600_000).run().files
    assert dry.files.total() == 3 and loser not in names(store, 0)
    assert ledger_of(store).refresh().generations.newest <= 5
    assert read(store) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("look", ["verify", "repair"])
def test_objects_that_are_collected_while_somebody_looks_are_not_reported_lost(store, monkeypatch, look):
    store.create("orders", config={"retention.ms": "-1"})
    for batch in range(2):
        store.append("orders", {0: 5}, batch=batch)
    other = type(store)(store.path, store.config)
    name = "_live_objects" if look == "verify" else "_needed_objects"
    owner = scrub_module if look == "verify" else StoreRepair
    listed = getattr(owner, name)

    def list_then_collect(*arguments):
        objects = list(listed(*arguments))
        other.controller.delete_records("orders", {0: 5})
        assert collect(other).files.total() == 3
        return objects

    monkeypatch.setattr(owner, name, list_then_collect)
    if look == "verify":
        report = scrub_module.scrub(store.cluster)
        assert (report.findings, report.lost_count, report.object_count) == ([], 0, 2)
    else:
        repair = StoreRepair(store.cluster, store.config)
        assert repair.run().lost_objects == []


STEPS = ["gc.delete:1", "gc.delete:2", "gc.decided:1"]


@pytest.mark.parametrize("step", STEPS)
def test_a_collector_that_is_killed_at_a_step_is_finished_by_the_next(store, step):
    store.create("orders", config={"retention.ms": "-1"})
    for batch in range(3):
        store.append("orders", {0: 5}, batch=batch)
    for _ in range(150):
        put_loser(store)
    store.controller.delete_records("orders", {0: 7})
    words = ["-s", str(store.path), "store", "gc", "--now", "--older-than", "0s"]
    command = [sys.executable, "-m", "spark_replog", *words]
    died = subprocess.run(
        command, env={**os.environ, "REPLOG_FAULT_POINT": step}, capture_output=True, text=True, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert run(words) == 0
    store.reopen()
    more = append_until_merged(store, 3)
    if more:
        collect(store, is_floor_raised=True)
    assert len(names(store, 0)) == len(names(store, 1)) == len(names(store, 2)) == 2 + more
    assert store.controller.offsets("orders", "start") == {0: 7}
    assert [section.base_offset for section in store.sections("orders")][:2] == [5, 10]
