"""What consumers cost while no rows come, counted; and that they still find rows, rights and members in time."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from spark_replog import Producer, TopicPartition
from spark_replog.admin.access_admin import AclAdmin
from spark_replog.admin.controller import Controller
from spark_replog.client.look_schedule import LOCAL_GETS_PER_SECOND, LOOKS_AFTER_ROWS, REMOTE_GETS_PER_SECOND
from spark_replog.cluster import journal_peek
from spark_replog.cluster.cluster import ROOT_CHECK_MS
from spark_replog.cluster.journal_peek import PEEKS_PER_READ, JournalPeek
from spark_replog.errors import AuthorizationError, ErrorCode, ReplogError, RetriableError
from spark_replog.ids import new_id
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.storage.paths import ROOT_FILE_KEY, journal_key
from tests.at_rest import wait_at_rest
from tests.manual_clock import ManualClock
from tests.unit.client.consumer_setup import ManualClock as RunningClock
from tests.unit.client.consumer_setup import Store, consumer, rows, values
from tests.waiting import wait_until

LONG_FETCH = {"fetch_max_wait_ms": 60_000}
"""A shorter one only plans more often, which takes this test's time."""
ROOTS, BOB = 3, "User:bob"
SLACK = 4 * ROOTS
"""Gets of one read that the window may begin or end with, and of names that are read again every few minutes."""


def idle_store(path, topics, ledger_name=None, clock=None):
    made = Store.init(str(path), ROOTS, clock or ManualClock(1_700_000_000_000))
    made.names = [f"t{number:03d}" for number in range(topics)]
    for name in made.names:
        Controller(made.cluster).create_topic(name, 1, ledger_name=ledger_name)
    made.count_calls()
    return made


def wait(store, reader, duration_ms):
    """Poll for that long, and return the gets; no rows come."""
    store.forget_calls()
    until_ms = store.clock.time_ms + duration_ms
    while store.clock.time_ms < until_ms:
        assert not reader.poll(timeout_ms=min(60_000, until_ms - store.clock.time_ms))
    return store.calls().get("get", 0)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("topics", "ledger_name", "delay_ms"),
    [(1, None, 1_375), (10, None, 7_563), (100, "shared", 1_375), (100, None, 69_438)],
)
def test_an_idle_consumer_on_buckets_costs_two_gets_a_second(topics, ledger_name, delay_ms):
    store = idle_store(f"memory://{new_id()}", topics, ledger_name)
    with consumer(store, *store.names, **LONG_FETCH) as reader:
        assert not reader.poll()
        first, ledgers = wait(store, reader, delay_ms * 10), 1 if ledger_name else topics
        assert first <= delay_ms / 100 * REMOTE_GETS_PER_SECOND + ROOTS * (LOOKS_AFTER_ROWS + ledgers) + SLACK
        assert 0 < wait(store, reader, 120_000) <= 120 * REMOTE_GETS_PER_SECOND + SLACK
        store.another_process().write(store.names[-1], rows(1))
        assert values(reader.poll(timeout_ms=delay_ms + 1)) == rows(1)


@pytest.mark.parametrize(("topics", "delay_ms"), [(1, 1_000), (10, 1_000)])
def test_an_idle_consumer_on_local_roots_costs_twenty_gets_a_second(tmp_path, topics, delay_ms):
    """By a clock that the kernel's watch does not know: with it, a row is found at once."""
    store = idle_store(tmp_path / "s", topics)
    with consumer(store, *store.names) as reader:
        wait(store, reader, 10_000)
        assert 0 < wait(store, reader, 20_000) <= 20 * LOCAL_GETS_PER_SECOND + SLACK
        store.another_process().write(store.names[-1], rows(1))
        assert values(reader.poll(timeout_ms=delay_ms)) == rows(1)


def test_an_idle_member_of_a_group_costs_no_more():
    store = idle_store(f"memory://{new_id()}", 1)
    with consumer(store, *store.names, group="g") as reader:
        assert not reader.poll(timeout_ms=20_000)
        assert reader.assignment() == {TopicPartition("t000", 0)}
        wait(store, reader, 60_000)
        assert 0 < wait(store, reader, 120_000) <= 120 * REMOTE_GETS_PER_SECOND + SLACK
        other, began_ms, (_, alone) = store.another_process(), store.clock.time_ms, reader.group_metadata()
        with consumer(other, *store.names, group="g") as second:
            while reader.group_metadata()[1] == alone or reader.group_metadata()[1] != second.group_metadata()[1]:
                assert store.clock.time_ms < began_ms + 30_000
                second.poll(timeout_ms=200)
                reader.poll(timeout_ms=200)


def test_a_poll_that_does_not_wait_reads_what_is_there_now():
    store = idle_store(f"memory://{new_id()}", 10)
    with consumer(store, *store.names) as reader:
        wait(store, reader, 60_000)
        store.another_process().write("t005", rows(2))
        assert values(reader.poll()) == rows(2)


def test_rows_that_come_after_a_long_wait_are_refused_by_a_right_taken_meanwhile():
    store = idle_store(f"memory://{new_id()}", 20)
    with consumer(store, *store.names, principal=BOB, **LONG_FETCH) as reader:
        wait(store, reader, 200_000)
        other = store.another_process()
        other.write("t015", rows(1))
        AclAdmin(other.cluster, "User:admin").add(
            [
                AclBinding(
                    ResourceType.TOPIC, "t015", PatternType.LITERAL, "User:bob", AclOperation.READ, Permission.DENY
                )
            ]
        )
        with pytest.raises(AuthorizationError, match="t015"):
            reader.poll(timeout_ms=20_000)


@pytest.mark.parametrize("timeout_ms", [0, 1_000])
@pytest.mark.parametrize("has_pattern", [False, True])
def test_a_first_poll_reads_each_ledger_once(timeout_ms, has_pattern):
    """To find the topics, to find where their partitions begin, and for rows: one read serves all three."""
    store = idle_store(f"memory://{new_id()}", 3)
    for name in store.names:
        store.write(name, rows(1))
    cold = store.another_process()
    cold.count_calls()
    topics = () if has_pattern else store.names
    with consumer(cold, *topics, auto_offset_reset="earliest", **LONG_FETCH) as reader:
        if has_pattern:
            reader.subscribe(pattern="t.*")
        assert len(reader.poll(timeout_ms=timeout_ms)) == 3
    got = Counter(call for counted in cold.counted.values() for call in counted.calls if "/journal/" in call[1])
    got = {key: count for (verb, key), count in got.items() if verb == "get"}
    assert got and set(got.values()) == {ROOTS}


def test_a_pattern_is_searched_again_for_one_get_a_ledger():
    store = idle_store(f"memory://{new_id()}", 10)
    with consumer(store, **LONG_FETCH) as reader:
        reader.subscribe(pattern="t.*")
        wait(store, reader, 100_000)
        Controller(store.another_process().cluster).create_topic("t-new", 1)
        wait(store, reader, 310_000)
        assert TopicPartition("t-new", 0) in reader.assignment()
        assert wait(store, reader, 600_000) <= 600 * REMOTE_GETS_PER_SECOND + SLACK


# --------------------------------------------------------------------------------------------- a store that is gone


def remove(store, broker_ids):
    """As a shell empties the roots."""
    for root in [store.cluster.brokers.store(broker_id) for broker_id in broker_ids]:
        for info in list(root.list_keys("")):
            root.delete(info.key)


def error_of(call):
    try:
        call()
    except ReplogError as error:
        return error
    return None


@pytest.mark.parametrize("topics", [1, 20])
@pytest.mark.parametrize("brokers", [0, 1, ROOTS])
def test_an_idle_consumer_on_buckets_notices_that_the_store_was_removed_or_made_again(topics, brokers):
    """With as many brokers, with fewer, or not at all."""
    store = idle_store(f"memory://{new_id()}", topics, clock=RunningClock())
    with consumer(store, *store.names, **LONG_FETCH) as reader:
        assert not reader.poll(timeout_ms=60_000)
        remove(store, range(ROOTS))
        if brokers:
            Store.init(store.path, brokers, store.clock).create("t000")
        for _ in range(2):  # it stays so
            error = wait_until(lambda: error_of(lambda: reader.poll(timeout_ms=60_000)), "the consumer notices")
            assert error.code is (ErrorCode.REPLOG_CLUSTER_MISMATCH if brokers else ErrorCode.REPLOG_NO_QUORUM)
            assert ("made again" if brokers else "replog.json") in str(error)


def root_file_gets(store):
    """How often each root's file was read."""
    wait_at_rest(store.cluster.brokers)
    return [counted.calls.count(("get", ROOT_FILE_KEY)) for counted in store.counted.values()]


def test_a_root_in_turn_is_checked_once_a_minute_whatever_is_read(tmp_path):
    store = idle_store(f"memory://{new_id()}", 2)
    handles = [store.cluster.lookup(name) for name in store.names]
    store.cluster.refresh_topics(handles)
    before = root_file_gets(store)
    for number in range(2 * ROOTS):
        store.clock.time_ms += ROOT_CHECK_MS
        for _ in range(5):
            store.cluster.refresh()
            store.cluster.refresh_topics(handles)
        assert sum(root_file_gets(store)) - sum(before) == number + 1
    assert [after - was for after, was in zip(root_file_gets(store), before, strict=True)] == [2] * ROOTS
    on_disk = idle_store(tmp_path / "s", 1)
    on_disk.cluster.refresh()
    before = root_file_gets(on_disk)
    on_disk.clock.time_ms += ROOT_CHECK_MS
    on_disk.cluster.refresh()
    assert root_file_gets(on_disk) == before  # a folder's journal shows by itself that its root is another one


def test_one_root_that_is_gone_stops_nobody(tmp_path):
    store = idle_store(f"memory://{new_id()}", 1)
    with consumer(store, "t000", **LONG_FETCH) as reader:
        wait(store, reader, 60_000)
        remove(store, [0])
        for _ in range(ROOTS + 1):
            wait(store, reader, 60_000)
        store.another_process().write("t000", rows(1))
        assert values(reader.poll(timeout_ms=10_000)) == rows(1)


# ------------------------------------------------------------------------------------------ one root at a time


@pytest.fixture
def grown_store():
    store = idle_store(f"memory://{new_id()}", 1)
    store.ledger = store.cluster.topic_ledger(store.cluster.lookup("t000").ledger_id)
    store.ledger.refresh()
    return store


def peeks(store, peek, count):
    """The answers of so many peeks at the ledger, and the gets of each root."""
    store.forget_calls()
    answers = [peek.grown([store.ledger]) for _ in range(count)]
    gets = Counter({broker: counted.counts["get"] for broker, counted in store.counted.items()})
    return [answer.get(store.ledger.ledger_id) for answer in answers], gets


def test_roots_take_turns_and_one_look_in_sixteen_reads_all(grown_store):
    answers, gets = peeks(grown_store, JournalPeek(grown_store.cluster.brokers), 2 * PEEKS_PER_READ)
    assert Counter(answers) == {None: 2 * PEEKS_PER_READ - 2, False: 2}
    assert set(gets.values()) == {(2 * PEEKS_PER_READ - 2) // ROOTS}


def test_a_root_that_lacks_the_newest_entry_delays_it_by_one_look(grown_store):
    store = grown_store
    other = store.another_process()
    other.write("t000", rows(1))
    key = journal_key(store.ledger.ledger_id, store.ledger.journal_end(0))
    other.cluster.brokers.store(0).delete(key)
    answers, _ = peeks(store, JournalPeek(store.cluster.brokers), ROOTS)
    assert sorted(answers, key=str) == [None, True, True]


class OneRoot:
    """A root that answers as a test says."""

    def __init__(self, url, answer):
        self.url, self.answer, self.gets = url, answer, 0

    def get(self, key, *, start=0, size_bytes=None):
        self.gets += 1
        return self.answer()


def roots_of(*stores):
    return SimpleNamespace(metadata_broker_ids=tuple(range(len(stores))), store=lambda number: stores[number])


def test_a_root_that_fails_or_hangs_leads_to_a_read_and_one_that_hangs_is_passed_over(monkeypatch):
    def refuse():
        raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "away")

    monkeypatch.setattr(journal_peek, "PEEK_MS_MAX", 1)
    end = threading.Event()
    hung, other = OneRoot(f"a://{new_id()}", end.wait), OneRoot(f"b://{new_id()}", refuse)
    ledger = SimpleNamespace(ledger_id="l", journal_end=lambda broker_id: 0)
    peek = JournalPeek(roots_of(hung, other))
    try:
        wait_until(lambda: peek.grown([ledger]) is not None and other.gets >= 2 and hung.gets, "both roots were asked")
        other.answer = lambda: None
        monkeypatch.setattr(journal_peek, "PEEK_MS_MAX", 60_000)
        wait_until(lambda: peek.grown([ledger]) == {}, "an answer of the other root")
        assert hung.gets == 1
    finally:
        end.set()


# ----------------------------------------------------------------------------------------------- what is shown


def test_metrics_show_what_the_consumer_costs():
    store = idle_store(f"memory://{new_id()}", 1)
    with consumer(store, *store.names) as reader:
        wait(store, reader, 60_000)
        reader.metrics()
        wait(store, reader, 60_000)
        metrics = reader.metrics()
        assert 0 < metrics.storage_get_rate <= REMOTE_GETS_PER_SECOND + SLACK / 60
        assert metrics.peeks > metrics.refreshes > 0


def test_status_shows_what_the_members_of_groups_cost(tmp_path, replog):
    store = idle_store(tmp_path / "s", 1)
    with Producer(store.path) as producer:
        producer.send("t000", b"v").result(60)
    with consumer(store, *store.names, group="g") as reader:
        reader.poll(timeout_ms=20_000)
        (item,) = replog("-s", store.path, "status", "-f", "json").items
        assert item["readerCost"] == {"members": 1, "idleGetsPerSecondMax": 20, "idleGetsPerSecondMaxEach": 20}
        assert "1 group members cost at most 20 gets/s while no rows come" in replog("-s", store.path, "status").out
