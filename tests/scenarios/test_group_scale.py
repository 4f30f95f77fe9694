"""Many members of one group on three roots: how soon they are stable, and what they write."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from spark_replog import Consumer
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import NO_MEMBER, OFFSETS_TOPIC
from spark_replog.ids import new_id
from spark_replog.log.codec.group_records import GroupPhase
from spark_replog.log.fold.group_state import GroupState
from spark_replog.storage.paths import journal_folder, note_key
from tests.counting_store import CountingStore
from tests.waiting import wait_until

ENTRIES_A_REBALANCE_MAX = 20
ENTRIES_TO_STABLE_MAX = 200
"""Here a group that does not become stable is given up: it writes heartbeats for ever, so it comes to this."""
SILENT_SECONDS_MAX = 120
"""Without an entry for so long something hangs: an idle group's heartbeats come every 15 s."""
SHORT_SESSION_MS = 12_000


class Swarm:
    """Members in threads, each with an opened store of its own, as in processes of their own.

    What waits, waits for as long as the ledger gets entries, so that a slow machine only takes longer. A call that a
    process without CPU time could not do in time is repeated, as its error says.
    """

    def __init__(self, topic_partitions: int) -> None:
        self.path = ",".join(f"memory://{new_id()}" for _ in range(3))
        init_cluster(self.path, fsync=False)
        self.cluster = Cluster.open(self.path)
        Controller(self.cluster).create_topic("orders", topic_partitions)
        self.observer = GroupCoordinator(self.cluster)
        self.observer.command("g", NO_MEMBER)  # makes the topic
        self.members: list[Consumer] = []
        self.stores: list[CountingStore] = []
        self.errors: list[BaseException] = []
        self._stopped: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def start(self, count: int, **settings: object) -> None:
        for _ in range(count):
            cluster = repeated(lambda: Cluster.open(self.path))
            self.stores += _count_calls(cluster)
            member = Consumer(cluster, "orders", group="g", auto_offset_reset="earliest", **settings)
            self.members.append(member)
            self._stopped.append(threading.Event())
            thread = threading.Thread(target=self._run, args=(member, self._stopped[-1]), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, count: int | None = None) -> None:
        count = len(self.members) if count is None else count
        for stopped in self._stopped[len(self._stopped) - count :]:
            stopped.set()
        for _ in range(count):
            self._stopped.pop()
            thread = self._threads.pop()
            thread.join(SILENT_SECONDS_MAX)
            assert not thread.is_alive()
            self.members.pop()

    def wait_stable(self) -> None:
        """Wait until all members have the same generation."""
        first = newest = self.entries()
        silent_since = time.monotonic()
        while newest - first <= ENTRIES_TO_STABLE_MAX and time.monotonic() - silent_since <= SILENT_SECONDS_MAX:
            assert not self.errors, self.errors
            state = self.group()
            if state is not None and state.phase is GroupPhase.STABLE:
                generations = {member.group_metadata()[1] for member in self.members}
                if generations == {state.metadata.generation} and len(state.metadata.members) == len(self.members):
                    return
            time.sleep(0.1)
            if (entries := self.entries()) > newest:
                newest, silent_since = entries, time.monotonic()
        raise AssertionError(f"not stable after {newest - first} entries: {self.group()}")

    def group(self) -> GroupState | None:
        return repeated(lambda: self.observer.group("g"))

    def entries(self) -> int:
        """Entries of the groups' ledger so far."""
        ledger, _ = repeated(lambda: self.cluster.topic_state(self.cluster.lookup(OFFSETS_TOPIC)))
        return ledger.state.applied_index + 1

    def calls(self) -> Counter[str]:
        return sum((store.counts for store in self.stores), Counter())

    def records(self) -> int:
        """Records of the groups' ledger on one root: entries, and claims."""
        ledger_id = self.cluster.lookup(OFFSETS_TOPIC).ledger_id
        return len(list(self.cluster.brokers.store(0).list_keys(journal_folder(ledger_id))))

    def joins(self) -> list[str]:
        """Notes with joins on any root that are not deleted yet. The gatherer writes once more where it sees one."""
        prefix = note_key(self.cluster.lookup(OFFSETS_TOPIC).ledger_id, "")
        roots = map(self.cluster.brokers.store, self.cluster.brokers.broker_ids)
        return [info.key for root in roots for info in root.list_keys(prefix) if info.key.endswith(".join")]

    def _run(self, member: Consumer, stopped: threading.Event) -> None:
        try:
            while not stopped.is_set():
                repeated(lambda: member.poll(timeout_ms=500))
            member.close()
        except BaseException as error:  # shown by wait_stable
            self.errors.append(error)


def repeated(call):
    while True:
        try:
            return call()
        except RetriableError as error:
            assert error.code in (ErrorCode.REPLOG_LEDGER_BUSY, ErrorCode.REPLOG_NO_QUORUM), error


def _count_calls(cluster: Cluster) -> list[CountingStore]:
    counters = []
    for broker_id in cluster.brokers.broker_ids:
        counters.append(CountingStore(cluster.brokers.store(broker_id)))
        cluster.brokers.stores[broker_id] = counters[-1]
    return counters


@pytest.fixture
def swarm():
    made = Swarm(topic_partitions=100)
    yield made
    made.stop()


def assigned(swarm):
    return sorted(key.partition for member in swarm.members for key in member.assignment())


@pytest.mark.parametrize("count", [40, pytest.param(100, marks=pytest.mark.wide)])
def test_many_members_on_three_roots_become_stable_with_few_entries(swarm, count):
    swarm.start(count)
    swarm.wait_stable()
    generation = swarm.group().metadata.generation
    assert assigned(swarm) == list(range(100))
    assert swarm.entries() <= ENTRIES_A_REBALANCE_MAX * generation
    entries, records, calls = swarm.entries(), swarm.records(), swarm.calls()
    swarm.start(1)
    swarm.wait_stable()
    assert swarm.group().metadata.generation == generation + 1
    assert swarm.entries() - entries <= ENTRIES_A_REBALANCE_MAX
    assert swarm.records() - records <= 3 * ENTRIES_A_REBALANCE_MAX  # and so few claims
    assert swarm.calls()["list_keys"] - calls["list_keys"] <= 3 * count
    entries = swarm.entries()
    swarm.stop(count // 2)
    swarm.wait_stable()
    assert swarm.entries() - entries <= 2 * ENTRIES_A_REBALANCE_MAX
    assert assigned(swarm) == list(range(100))


def test_idle_members_write_one_entry_in_a_third_of_the_session_all_together(swarm):
    swarm.start(20, session_timeout_ms=SHORT_SESSION_MS)
    swarm.wait_stable()
    while swarm.joins() or len(swarm.group().offsets) < 100:  # each member's first commit
        time.sleep(0.1)
    third = SHORT_SESSION_MS / 3000

    def write_together() -> bool:
        """Whether the members write one entry in a third: stragglers of a busy machine join the others' next one."""
        entries, began = swarm.entries(), time.monotonic()
        time.sleep(third + 0.5)
        return swarm.entries() - entries <= 1 + (time.monotonic() - began) // third

    wait_until(write_together, swarm.entries)
    assert swarm.group().phase is GroupPhase.STABLE
    assert swarm.errors == []
