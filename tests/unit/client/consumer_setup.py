"""A real store on memory or local roots, with rows in it, and a clock that a test moves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest

from spark_replog import Consumer, TopicPartition
from spark_replog.admin.controller import Controller
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.producer import ProducerConfig
from spark_replog.ids import new_id
from spark_replog.log.model import Append, IdentityKind, ProducerIdentity
from spark_replog.write.task_writer import TaskWriter
from tests.at_rest import wait_at_rest
from tests.counting_store import CountingStore

TIME = pa.timestamp("us", tz="UTC")


class ManualClock:
    """The machine's time, and what a test adds to it; a sleep only adds."""

    def __init__(self) -> None:
        self.added_ms = 0
        self.wrong_ms = 0
        """How far the wall time is ahead of the other processes' clocks."""
        self.slept: list[float] = []
        self.on_sleep: list = []
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self.added_ms + self.wrong_ms

    def monotonic_ms(self) -> int:
        return SYSTEM_CLOCK.monotonic_ms() + self.added_ms

    def advance(self, duration_ms: float) -> None:
        with self._lock:
            self.added_ms += max(1, int(duration_ms))

    def sleep_ms(self, duration_ms: float) -> None:
        self.slept.append(duration_ms)
        self.advance(duration_ms)
        if self.on_sleep:
            self.on_sleep.pop(0)()


class Store:
    """One store, as one process sees it."""

    def __init__(self, path: str, clock: ManualClock | None = None) -> None:
        self.path = path
        self.clock = clock or ManualClock()
        self.cluster = Cluster.open(path, clock=self.clock)
        self.counted: dict[int, CountingStore] = {}

    @classmethod
    def init(cls, path: str, brokers: int = 1, clock: ManualClock | None = None) -> Store:
        init_cluster(path, brokers, {}, fsync=False)
        return cls(path, clock)

    def another_process(self) -> Store:
        """The same store with nothing cached."""
        return Store(self.path, self.clock)

    def count_calls(self) -> dict[int, CountingStore]:
        """Begin to count this process's storage calls, per root; before it opened any ledger."""
        brokers = self.cluster.brokers
        for broker_id in brokers.broker_ids:
            self.counted[broker_id] = CountingStore(brokers.store(broker_id))
            brokers.stores[broker_id] = self.counted[broker_id]
        again = Cluster(brokers, path=self.path, storage_options={}, config=self.cluster.config, clock=self.clock)
        self.cluster = again
        return self.counted

    def calls(self) -> dict[str, int]:
        """Storage calls over all roots since ``count_calls`` or the last ``forget_calls``, once they are over.

        Without those of snapshots, which are written in the background.
        """
        wait_at_rest(self.cluster.brokers)
        total: Counter[str] = Counter()
        for counted in self.counted.values():
            calls = list(counted.calls)
            total.update(verb for verb, key in calls if not {"snapshots", "pages"} & set(key.split("/")))
        return dict(total)

    def forget_calls(self) -> None:
        wait_at_rest(self.cluster.brokers)
        for counted in self.counted.values():
            counted.reset()

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        Controller(self.cluster).create_topic(topic, partitions, config=settings, start_index=0)

    def write(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        times_ms: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: list | None = None,
    ) -> None:
        """Append the rows as one batch write: one section."""
        row_values = list(values)
        columns = {
            "value": pa.array(row_values, pa.binary()),
            "key": pa.array(keys if keys is not None else [None] * len(row_values), pa.binary()),
            "partition": pa.array([partition] * len(row_values), pa.int32()),
        }
        if times_ms is not None:
            columns["timestamp"] = pa.array([time_ms * 1000 for time_ms in times_ms], pa.int64()).cast(TIME)
        if headers is not None:
            struct = pa.struct([("key", pa.string()), ("value", pa.binary())])
            columns["headers"] = pa.array(headers, pa.list_(struct))
        plan = make_write_plan(self.cluster, [topic])
        writer = TaskWriter(
            plan,
            ProducerConfig(),
            self.cluster.brokers,
            query_id=new_id(),
            batch_id=0,
            task_id=0,
            default_topic=topic,
        )
        writer.append(pa.record_batch(columns))
        objects = writer.close().objects
        identity = ProducerIdentity(new_id(), "", 0, "", IdentityKind.ONE_SHOT)
        append = Append(identity, "User:test", "", self.clock.now_ms(), tuple(item for _, item in objects))
        requests = {objects[0][0]: AppendRequest(append, 30_000)}
        (answer,) = ReplicaManager(self.cluster).append_records(requests).values()
        assert answer.error is None


def rows(count: int, first: int = 0) -> list[bytes]:
    """count values that tell their number."""
    return [b"v%d" % (first + number) for number in range(count)]


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def with_a_group(path, group="billing"):
    """Return a store of three brokers: ten rows in orders, and a group whose position in orders-0 is 4."""
    made = Store.init(str(path), 3)
    made.create("orders", 2)
    made.write("orders", rows(10))
    with Consumer(made.cluster, group=group, enable_auto_commit=False) as reader:
        reader.assign([P0])
        reader.commit({P0: 4})
    return made


def consumer(store, *topics, **settings):
    """A consumer of a store that reads from the beginning."""
    settings.setdefault("auto_offset_reset", "earliest")
    return Consumer(store.cluster, *topics, **settings)


def assigned(store, *keys, **settings):
    """A consumer with these partitions, else with both of ``filled``."""
    made = consumer(store, **settings)
    made.assign(keys or (P0, P1))
    return made


def membership_of(consumer):
    """The consumer's part in its group."""
    return consumer._membership


def end_process(consumer):
    """As if its process were gone: no thread, no poll, and the group is told nothing."""
    membership_of(consumer)._beats.stop()


def values(records):
    """The records' values."""
    return [record.value for record in records]


@pytest.fixture
def store():
    """A store of one root in memory."""
    return Store.init(f"memory://{new_id()}")


@pytest.fixture
def store3():
    """A store of three roots in memory."""
    return Store.init(f"memory://{new_id()}", 3)


@pytest.fixture
def filled(store):
    """Two partitions of ten rows each, in two sections."""
    store.create("orders", 2)
    for first in (0, 5):
        store.write("orders", rows(5, first), partition=0, times_ms=[1000 * (first + n) for n in range(5)])
        store.write("orders", rows(5, 100 + first), partition=1, times_ms=[1000] * 5)
    return store
