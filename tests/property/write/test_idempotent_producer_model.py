"""An idempotent producer whose commits are refused and lose their answers, against a model of the log's rules."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_replog.errors import ReplogError
from spark_replog.log.model import PartitionResponse
from spark_replog.write.data_request import DeliveryResult
from spark_replog.write.producer_batch import ProducerBatch
from tests.unit.write.conftest import clock, make, make_topic
from tests.unit.write.sender_setup import CONFIG, NOT_LEADER, OUT_OF_ORDER, TOO_LARGE, TP, UNKNOWN, Setup

__all__ = ["clock", "make", "make_topic"]

PARTITIONS = 2
FATES = ["go"] * 5 + ["again", "again before"] * 2 + ["lost", "lost before", "away", "too large"]
Numbers = tuple[int, int, int, list[bytes]]
"""Of a batch: epoch, first sequence, records, and their values."""


class Log:
    """One partition, as `log/fold/producer_state.py` judges a producer that it knows."""

    def __init__(self) -> None:
        self.epoch, self.next_sequence = 0, 0
        self.window: deque[tuple[int, int, int, int]] = deque(maxlen=5)
        self.rows: list[bytes] = []

    def append(self, batches: list[Numbers]) -> int | None:
        """Return the offset of the first row, that of the first time for a repetition, or None for a gap."""
        offsets = {entry[:3]: entry[3] for entry in self.window}
        if all(batch[:3] in offsets for batch in batches):
            return offsets[batches[0][:3]]
        assert not any(batch[:3] in offsets for batch in batches), "an append is known as a whole or not at all"
        epoch, following = self.epoch, self.next_sequence
        for number, first, count, _ in batches:
            assert number >= epoch
            if first != (following if number == epoch else 0):
                return None
            epoch, following = number, first + count
        base_offset = len(self.rows)
        for number, first, count, values in batches:
            if number > self.epoch:
                self.window.clear()
            self.window.append((number, first, count, len(self.rows)))
            self.epoch, self.next_sequence = number, first + count
            self.rows += values
        return base_offset


class World:
    """A sender, the log, and the appends on their way: numbered when they are delivered, decided in that order."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.logs = {name: Log() for name in TP[:PARTITIONS]}
        self.values: dict[int, list[bytes]] = {}
        self.handles: list[tuple[bytes, Any]] = []
        self.on_their_way: deque[tuple[int, dict[Any, list[Numbers]]]] = deque()
        self.doubted: set[int] = set()
        self.seen = 0

    def send(self, partition: int) -> None:
        value = b"%d" % len(self.handles)
        handle = self.setup.send(partition, value)
        self.values.setdefault(id(handle.batch_result), []).append(value)
        self.handles.append((value, handle))

    def run(self, after_ms: int) -> None:
        self.setup.run(after_ms)
        for request in self.setup.delivery.delivered[self.seen :]:
            appends: dict[Any, list[Numbers]] = {}
            for batch in request.batches:
                appends.setdefault(batch.topic_partition, []).append(self.numbers(batch))
            self.on_their_way.append((request.sequence, appends))
            self.seen += 1

    def numbers(self, batch: ProducerBatch) -> Numbers:
        return batch.producer.epoch, batch.base_sequence, batch.row_count, self.values[id(batch.result)]

    def decide(self, fate: str) -> None:
        """Decide the oldest append: ``go``, ``lost`` (it may land, no answer), or an error of all its partitions.

        ``again`` and ``again before`` lose the answer too, and the committer repeats the append: it has the lane. From
        then on it tells no refusal that the log did not give: the outcome is unknown.
        """
        if not self.on_their_way:
            return
        sequence, appends = self.on_their_way.popleft()
        if sequence in self.doubted and fate in ("away", "too large"):
            fate = "lost before"
        if fate.startswith("again"):
            for name, batches in appends.items():
                if fate == "again":
                    self.logs[name].append(batches)
            self.on_their_way.appendleft((sequence, appends))
            self.doubted.add(sequence)
            return
        responses = {}
        for name, batches in appends.items():
            error: ReplogError | None = {"away": NOT_LEADER, "lost before": UNKNOWN, "too large": TOO_LARGE}.get(fate)
            offset = None if error is not None else self.logs[name].append(batches)
            if fate == "lost":
                error = UNKNOWN
            elif error is None and offset is None:
                error = OUT_OF_ORDER
            responses[name] = PartitionResponse(error, -1 if error is not None or offset is None else offset)
        self.setup.delivery.results.append(DeliveryResult(sequence, responses))


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("seed", range(300))
def test_rows_land_once_and_in_order_whatever_is_refused_and_whichever_answers_are_lost(
    make: Callable[..., Setup], seed: int
) -> None:
    source = random.Random(seed)
    config = replace(CONFIG, delivery_timeout_ms=100_000, max_in_flight=source.choice([1, 3, 5]))
    world = World(make(config))
    for _ in range(source.randint(5, 60)):
        for _ in range(source.randint(0, 2)):
            world.send(source.randrange(PARTITIONS))
        world.run(after_ms=source.choice([0, 5, 20]))
        if source.random() < 0.7:
            world.decide(source.choice(FATES))
    for _ in range(400):
        world.run(after_ms=20)
        world.decide("go")
    assert not world.setup.accumulator.has_incomplete
    for log in world.logs.values():
        assert [int(row) for row in log.rows] == sorted({int(row) for row in log.rows})
    for value, handle in world.handles:
        log = world.logs[handle.batch_result.topic_partition]
        if handle.exception(0) is None:
            assert log.rows[handle.result(0).offset] == value
