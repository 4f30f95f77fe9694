"""Groups while roots go away and come back: three members read a topic to its end soon after the last write.

One round by default; ``REPLOG_FAULT_ROUNDS=50`` makes a long run, each round with another seed.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from spark_replog import Consumer, Producer
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ReplogError
from spark_replog.ids import new_id
from tests.faulty_store import FaultRates, FaultyStore

ROUNDS = int(os.environ.get("REPLOG_FAULT_ROUNDS", "1"))
PARTITIONS = 6
END_SECONDS_MAX = 30


class Faults:
    """Three roots that every opened store shares: away for all at once, or failing now and then."""

    def __init__(self, seed: int) -> None:
        self.path = ",".join(f"memory://{new_id()}" for _ in range(3))
        self.random = random.Random(seed)
        self.roots: list[list[FaultyStore]] = [[], [], []]
        init_cluster(self.path, fsync=False)
        Controller(Cluster.open(self.path)).create_topic("orders", PARTITIONS)

    def open(self) -> Cluster:
        cluster = Cluster.open(self.path)
        for number in cluster.brokers.broker_ids:
            root = FaultyStore(cluster.brokers.store(number), seed=self.random.randrange(2**32))
            cluster.brokers.stores[number] = root
            self.roots[number].append(root)
        return cluster

    def set_away(self, number: int, *, is_away: bool) -> None:
        for root in self.roots[number]:
            root.is_down = is_away

    def set_rates(self, rates: FaultRates) -> None:
        for root in [store for roots in self.roots for store in roots]:
            root.set_rates(rates, seed=self.random.randrange(2**32))


class Run:
    def __init__(self, seed: int) -> None:
        self.faults = Faults(seed)
        self.stopped = threading.Event()
        self.written: set[bytes] = set()
        self.read: set[bytes] = set()
        self.errors: list[str] = []

    def write(self) -> None:
        with Producer(self.faults.open(), {"linger.ms": 1, "delivery.timeout.ms": 60_000}) as producer:
            number = 0
            while not self.stopped.is_set():
                value = b"%d" % number
                try:
                    producer.send("orders", value, partition=number % PARTITIONS).result(timeout=60)
                    self.written.add(value)
                except ReplogError as error:
                    self.errors.append(f"writer: {error}")
                number += 1
                time.sleep(0.02)

    def consume(self, ended: threading.Event) -> None:
        settings = {"auto.offset.reset": "earliest", "heartbeat.interval.ms": 300, "session.timeout.ms": 6_000}
        while not ended.is_set():  # as a supervisor would: a consumer that fails is started again
            member = Consumer(self.faults.open(), "orders", group="g", config=settings)
            try:
                while not ended.is_set():
                    self.read |= {record.value for record in member.poll(timeout_ms=200)}
            except ReplogError as error:
                self.errors.append(f"member: {error}")
                time.sleep(0.2)
            finally:
                try:
                    member.close()
                except ReplogError as error:
                    self.errors.append(f"close: {error}")


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_group_reads_to_the_end_after_a_root_was_away(seed):
    run, ended = Run(seed), threading.Event()
    writer = threading.Thread(target=run.write, daemon=True)
    members = [threading.Thread(target=run.consume, args=(ended,), daemon=True) for _ in range(3)]
    for thread in (writer, *members):
        thread.start()
    chosen = random.Random(seed)
    time.sleep(1)
    for _ in range(2):
        number = chosen.randrange(3)
        run.faults.set_away(number, is_away=True)
        time.sleep(chosen.uniform(0.5, 4))
        run.faults.set_away(number, is_away=False)
        run.faults.set_rates(FaultRates(fail_before=0.02, lose_answer=0.02))
        time.sleep(chosen.uniform(0.5, 2))
        run.faults.set_rates(FaultRates())
    run.stopped.set()
    writer.join(60)
    end = time.monotonic() + END_SECONDS_MAX
    while not run.written <= run.read and time.monotonic() < end:
        time.sleep(0.1)
    missing = sorted(run.written - run.read)
    ended.set()
    for thread in members:
        thread.join(30)
    assert missing == [], (seed, len(run.written), run.errors[-5:])
    assert len(run.written) > 20
