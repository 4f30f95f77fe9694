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
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import new_id
from spark_replog.log.codec.group_records import GroupPhase
from spark_replog.testing.counting_store import CountingStore

ENTRIES_A_REBALANCE_MAX = 20
SECONDS_MAX = 30
"""For a machine that runs other tests at the same time."""


class Swarm:
    """Members in threads, each with an opened store of its own, as in processes of their own."""

    def __init__(self, topic_partitions: int) -> None:
        self.path = ",".join(f"memory://{new_id()}" for _ in range(3))
        init_cluster(self.path, fsync=False)
        Controller(Cluster.open(self.path)).create_topic("orders", topic_partitions)
        self.observer = GroupCoordinator(Cluster.open(self.path))
        self.members: list[Consumer] = []
        self.stores: list[CountingStore] = []
        self.errors: list[BaseException] = []
        self._stopped: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            cluster = Cluster.open(self.path)
            self.stores += _count_calls(cluster)
            member = Consumer(cluster, "orders", group="g", auto_offset_reset="earliest")
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
            self._threads.pop().join(SECONDS_MAX)
            self.members.pop()

    def wait_stable(self) -> float:
        """Wait until all members have the same generation; return the seconds."""
        start = time.monotonic()
        while time.monotonic() - start < SECONDS_MAX and not self.errors:
            state = self.observer.group("g")
            if state is not None and state.phase is GroupPhase.STABLE:
                generations = {member.group_metadata()[1] for member in self.members}
                if generations == {state.metadata.generation} and len(state.metadata.members) == len(self.members):
                    return time.monotonic() - start
            time.sleep(0.1)
        raise AssertionError(f"not stable after {SECONDS_MAX} s: {self.errors}, {self.observer.group('g')}")

    def entries(self) -> int:
        """Entries of the groups' ledger so far."""
        cluster = Cluster.open(self.path)
        ledger, _ = cluster.topic_state(cluster.lookup("__consumer_offsets"))
        return ledger.state.applied_index + 1

    def calls(self) -> Counter[str]:
        return sum((store.counts for store in self.stores), Counter())

    def _run(self, member: Consumer, stopped: threading.Event) -> None:
        try:
            while not stopped.is_set():
                member.poll(timeout_ms=500)
            member.close()
        except BaseException as error:  # shown by wait_stable
            self.errors.append(error)


def _count_calls(cluster: Cluster) -> list[CountingStore]:
    found = []
    for broker_id in cluster.brokers.broker_ids:
        found.append(CountingStore(cluster.brokers.store(broker_id)))
        cluster.brokers.stores[broker_id] = found[-1]
    return found


@pytest.fixture
def swarm():
    made = Swarm(topic_partitions=100)
    yield made
    made.stop()


def assigned(swarm):
    return sorted(key.partition for member in swarm.members for key in member.assignment())


def test_a_hundred_members_on_three_roots_become_stable_with_few_entries(swarm):
    swarm.start(100)
    seconds = swarm.wait_stable()
    generation = swarm.observer.group("g").metadata.generation
    assert assigned(swarm) == list(range(100))
    assert swarm.entries() <= ENTRIES_A_REBALANCE_MAX * generation, (seconds, generation)
    entries, calls = swarm.entries(), swarm.calls()
    swarm.start(1)
    swarm.wait_stable()
    assert swarm.observer.group("g").metadata.generation == generation + 1
    assert swarm.entries() - entries <= ENTRIES_A_REBALANCE_MAX
    assert swarm.calls()["list_keys"] - calls["list_keys"] <= 3 * 100
    entries = swarm.entries()
    swarm.stop(50)
    swarm.wait_stable()
    assert swarm.entries() - entries <= 2 * ENTRIES_A_REBALANCE_MAX
    assert assigned(swarm) == list(range(100))


def test_idle_members_write_one_entry_in_a_third_of_the_session_all_together(swarm):
    swarm.start(20)
    swarm.wait_stable()
    entries = swarm.entries()
    time.sleep(16)
    assert swarm.entries() - entries <= 2
    assert swarm.observer.group("g").phase is GroupPhase.STABLE
    assert swarm.errors == []
