"""Kafka's VerifiableProducer, idempotent, while gateways are killed, stopped and slow, and a root is away, by turns."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import pytest

from benchmarks.peers import java
from spark_replog.client.store import Store, init_store
from tests.gateway_process import free_port, gateway_process
from tests.servers.builds import KAFKA_TOOLS, NotBuilt
from tests.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.wide
TURNS = 8
"""At least: each of four things happens to each of two gateways."""
TERMINATED = 143
PARTITIONS = 4
AWAY = 2
"""The root that goes: what comes back is behind, so another one that went then would leave too few."""
PATIENT = {
    "retries": 2**31 - 1,
    "delivery.timeout.ms": 600_000,
    "request.timeout.ms": 5_000,  # of a gateway that is stopped
    "metadata.max.age.ms": 1_000,
    "reconnect.backoff.max.ms": 200,
}
"""The producer has no retries unless its configuration says so."""


class VerifiableProducer:
    """Sends numbers from 0, and prints where each one is once it is acknowledged."""

    def __init__(self, jars: Path, folder: Path, servers: str) -> None:
        config = folder / "producer.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in PATIENT.items()))
        tool = "org.apache.kafka.tools.VerifiableProducer"
        command = [*java(jars), tool, "--bootstrap-server", servers, "--topic", "orders"]
        command += ["--producer.config", str(config)]
        self.acked: dict[int, tuple[int, int]] = {}
        self.errors: list[str] = []
        self._log = folder / "producer.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                said = json.loads(line) if line.startswith("{") else {}
                if said.get("name") == "producer_send_success":
                    self.acked[int(said["value"])] = said["partition"], said["offset"]
                elif said.get("name") == "producer_send_error":
                    self.errors.append(line)

    def go_on(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = len(self.acked) + count

        def has_more() -> bool:
            assert self.process.poll() is None, self._log.read_text()[-2_000:]
            return len(self.acked) >= wanted

        wait_until(has_more, lambda: f"{len(self.acked)} of {wanted}, {self.errors[:3]}", pause_seconds=0.05)

    def end(self) -> None:
        """Let it wait for what it has sent, and take all that it said."""
        assert self.errors == []
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(SECONDS_MAX) == TERMINATED, self._log.read_text()[-2_000:]
        self._hearing.join()
        closed = "Producer closed", "producer has been closed"
        others = [line for line in self.errors if not any(words in line for words in closed)]
        assert others == [], "all are of records that it did not send any more"


class Faults:
    """Two gateways and the roots of a store, and what happens to them in turn."""

    def __init__(self, store: Store, stack: ExitStack) -> None:
        self._store, self._stack = store, stack
        self.ports = free_port(), free_port()
        self.gateways = [self._start(port) for port in self.ports]
        self.counts = Counter[str]()

    def _start(self, port: int) -> subprocess.Popen[str]:
        often = ("-c", "gateway.heartbeat.interval.ms=300")
        return self._stack.enter_context(gateway_process(self._store, port, *often))

    def kill(self, number: int, go_on: Callable[[], None]) -> None:
        """Kill a gateway; another one takes its place once rows went through the other one."""
        self.gateways[number].kill()
        self.gateways[number].wait()
        go_on()
        self.gateways[number] = self._start(self.ports[number])

    def stop(self, number: int, go_on: Callable[[], None]) -> None:
        """Stop a gateway until rows went through the other one; what it had read it writes when it wakes."""
        self.gateways[number].send_signal(signal.SIGSTOP)
        go_on()
        self.gateways[number].send_signal(signal.SIGCONT)

    def slow(self, number: int, go_on: Callable[[], None]) -> None:
        """Let a gateway run for moments only."""
        is_over = threading.Event()

        def stutter() -> None:
            while not is_over.is_set():
                self.gateways[number].send_signal(signal.SIGSTOP)
                is_over.wait(0.1)
                self.gateways[number].send_signal(signal.SIGCONT)
                is_over.wait(0.02)

        thread = threading.Thread(target=stutter)
        thread.start()
        try:
            go_on()
        finally:
            is_over.set()
            thread.join()

    def lose_root(self, number: int, go_on: Callable[[], None]) -> None:
        """Let a root not answer."""
        root = Path(self._store.path) / f"broker-{AWAY}"
        root.rename(root.with_suffix(".away"))
        go_on()
        root.with_suffix(".away").rename(root)

    def run(self, producer: VerifiableProducer, count: int) -> None:
        """Let one thing after the other happen until so many records are acknowledged."""
        acts = self.kill, self.lose_root, self.stop, self.slow
        for turn in itertools.count():
            if turn >= TURNS and len(producer.acked) >= count:
                return
            act = acts[turn % len(acts)]
            act(turn // len(acts) % 2, lambda: producer.go_on(count // TURNS // 4))
            self.counts[act.__name__] += 1


def check(store: Store, acked: dict[int, tuple[int, int]]) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and each partition has its rows in the order of sending."""
    assert sorted(acked) == list(range(len(acked)))
    table = store.topic("orders").scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    places = list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    values = [int(value) for value in table.column("value").to_pylist()]
    assert dict(zip(values, places, strict=True)) == acked
    assert len(values) == len(acked), "none is there twice"
    for partition in range(PARTITIONS):
        rows = [(offset, value) for (number, offset), value in zip(places, values, strict=True) if number == partition]
        assert [offset for offset, _ in rows] == list(range(len(rows)))
        assert all(before[1] < after[1] for before, after in itertools.pairwise(rows)), partition


def read_all(servers: str, count: int) -> Counter[int]:
    """Return how often a consumer at the gateways reads each value."""
    options = {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False}
    consumer, read = confluent_kafka.Consumer(options), Counter[int]()
    consumer.assign([confluent_kafka.TopicPartition("orders", number, 0) for number in range(PARTITIONS)])

    def poll() -> bool:
        read.update(int(message.value()) for message in consumer.consume(10_000, 1.0) if message.error() is None)
        return read.total() >= count

    wait_until(poll, lambda: f"{read.total()} of {count}")
    consumer.close()
    return read


def test_a_producer_loses_doubles_and_reorders_nothing_under_faults_by_turns(tmp_path, request):
    try:
        jars = KAFKA_TOOLS.folder()
    except NotBuilt as why:
        pytest.skip(str(why))
    count = request.config.getoption("--records")
    store = init_store(tmp_path / "store", 3, fsync=False)
    store.admin().create_topic("orders", PARTITIONS, replicas=3)
    with ExitStack() as stack:
        faults = Faults(store, stack)
        servers = ",".join(f"127.0.0.1:{port}" for port in faults.ports)
        producer = VerifiableProducer(jars, tmp_path, servers)
        stack.callback(producer.process.kill)
        producer.go_on(1)
        faults.run(producer, count)
        producer.end()
        print(f"{len(producer.acked)} records, {dict(faults.counts)}")
        check(store, producer.acked)
        read = read_all(servers, len(producer.acked))
        assert len(read) == read.total() == len(producer.acked)
