"""Destinations that share roots take turns: counted in objects, not in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spark_replog.write.producer_batch import Destination
from tests.unit.write.sender_setup import CONFIG, TP, Setup

ONE = replace(CONFIG, max_in_flight=1, request_timeout_ms=30_000, delivery_timeout_ms=120_000)
BUSY = Destination("busy", 0, (0, 1), None, "none")
QUIET = Destination("quiet", 0, (0, 1), None, "none")
WIDE = Destination("wide", 0, (0, 1, 2), None, "none")
OTHER = Destination("other", 0, (2,), None, "none")


def setup_of(make: Callable[..., Setup], *destinations: Destination) -> Setup:
    setup = make(ONE, idempotent=False, batch_size=100)
    setup.answers_puts = False
    for queue, destination in zip(setup.queues, destinations, strict=False):
        setup.accumulator.assign(queue, destination)
    return setup


def fill(setup: Setup, partition: int, count: int) -> None:
    for _ in range(count):
        setup.send(partition, value=b"v" * 84)


def step(setup: Setup, ledger: str) -> None:
    """Let the roots answer the object of a ledger that is on its way, and its commit."""
    (request,) = [sent for sent in setup.sent_requests() if sent.destination.ledger_id == ledger]
    for broker_id in request.destination.brokers:
        setup.transport.answer(broker_id, sequence=request.sequence)
    setup.run()
    setup.answer(request, offset=0)


def ledgers(setup: Setup) -> list[str]:
    return [request.destination.ledger_id for request in setup.sent_requests()]


def test_a_quiet_ledger_waits_for_one_object_of_a_busy_one(make: Callable[..., Setup]) -> None:
    setup = setup_of(make, BUSY, QUIET)
    fill(setup, 0, 20)
    setup.run()
    fill(setup, 1, 2)
    seen = []
    for _ in range(6):
        setup.run()
        (ledger,) = ledgers(setup)
        seen.append(ledger)
        step(setup, ledger)
    assert seen == ["busy", "quiet", "busy", "quiet", "busy", "busy"]


def test_a_destination_over_more_roots_is_not_overtaken_for_ever(make: Callable[..., Setup]) -> None:
    setup = setup_of(make, BUSY, OTHER, WIDE)
    fill(setup, 0, 20)
    fill(setup, 1, 20)
    setup.run()
    assert ledgers(setup) == ["busy", "other"]
    fill(setup, 2, 1)
    setup.run()
    step(setup, "busy")
    assert ledgers(setup) == ["other"]  # roots 0 and 1 are kept for the one that waits longest
    step(setup, "other")
    assert ledgers(setup) == ["wide"]
    step(setup, "wide")
    assert ledgers(setup) == ["busy", "other"]


def test_no_root_is_kept_for_a_destination_that_waits_for_a_late_root(make: Callable[..., Setup]) -> None:
    setup = setup_of(make, BUSY, OTHER, WIDE)
    fill(setup, 0, 20)
    fill(setup, 1, 20)
    setup.run()
    fill(setup, 2, 1)
    setup.run(after_ms=3_000)  # root 2 has not answered for longer than a put takes that is not late
    step(setup, "busy")
    assert ledgers(setup) == ["other", "busy"]
    assert [batch.topic_partition for request in setup.sent_requests() for batch in request.batches] == [TP[1], TP[0]]
