"""Fixtures: a cluster in memory whose roots can fail, plans for it, and senders and tasks on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_replog.config.producer import ProducerConfig
from spark_replog.ids import new_id
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.storage.brokers import BrokerSet, write_root_files
from tests.manual_clock import ManualClock
from tests.unit.write import task_sender_setup
from tests.unit.write.sender_setup import CONFIG, Setup
from tests.unit.write.support import PATIENT, FaultyBrokers, Task
from tests.unit.write.task_sender_setup import TaskSetup

LEDGER_ID = "a" * 32


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def make_brokers() -> Callable[..., FaultyBrokers]:
    def make(count: int = 3) -> FaultyBrokers:
        name = new_id()
        return FaultyBrokers(write_root_files([f"memory://{name}-{number}" for number in range(count)]))

    return make


@pytest.fixture
def make_plan() -> Callable[..., WritePlan]:
    def make(brokers: BrokerSet, *topics: TopicPlan, path: str = "memory://store") -> WritePlan:
        return WritePlan(path, topics, "User:test", 0)

    return make


@pytest.fixture
def make_topic() -> Callable[..., TopicPlan]:
    def make(name: str = "orders", sets: tuple[tuple[int, ...], ...] = ((0, 1, 2),), **changes: object) -> TopicPlan:
        values: dict[str, object] = {
            "name": name,
            "topic_id": f"{name:_<32}",
            "ledger_id": LEDGER_ID,
            "generation": 3,
            "replica_sets": sets,
            "in_sync": sets,
            "min_insync": len(sets[0]) // 2 + 1,
            "compression": "none",
            "max_message_bytes": 2**31 - 1,
        }
        return TopicPlan(**(values | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_task(
    make_brokers: Callable[..., Any],
    make_plan: Callable[..., WritePlan],
    make_topic: Callable[..., TopicPlan],
) -> Callable[..., Task]:
    def make(
        *topics: TopicPlan,
        config: ProducerConfig = PATIENT,
        brokers: int = 3,
        partitions: int = 1,
        default_topic: str | None = "orders",
    ) -> Task:
        cluster = make_brokers(brokers)
        plans = topics or (make_topic(sets=(tuple(range(brokers)),) * partitions),)
        return Task(cluster, make_plan(cluster, *plans), config, default_topic)

    return make


@pytest.fixture
def make(make_topic: Callable[..., TopicPlan], clock: ManualClock) -> Callable[..., Setup]:
    """A plain producer's sender; test modules of a write task's sender have their own."""

    def build(config: ProducerConfig = CONFIG, *, idempotent: bool = True, **more: Any) -> Setup:
        topic = make_topic(sets=((0,), (1,), (2,)), min_insync=1)
        return Setup(WritePlan("memory://store", (topic,), "User:t", 0), config, clock, idempotent, **more)

    return build


@pytest.fixture
def make_task_sender(make_topic: Callable[..., TopicPlan]) -> Callable[..., TaskSetup]:
    def build(config: ProducerConfig = task_sender_setup.CONFIG, **topic: Any) -> TaskSetup:
        plan = WritePlan("memory://store", (make_topic(sets=((0, 1, 2),) * 8, **topic),), "User:t", 0)
        return TaskSetup(plan, config)

    return build
