"""The core step by step, with the answers that a root would give."""

from __future__ import annotations

import random

import pytest

from spark_replog.ledger.core import LedgerCore, Phase
from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.root import Check, Completion, Create, Read, Status
from spark_replog.ledger.types import LedgerSettings


class OneRoot:
    """A core over one root whose journal is a list."""

    def __init__(self):
        self.core = LedgerCore(["root 0"], genesis_hash("l"), b"i" * 16, LedgerSettings(), random.Random(1))
        self.records = []

    def reach_ready(self):
        """Begin a write and answer what the core asks until it wants a value."""
        self.core.begin(0.0, is_write=True)
        while True:
            operations = self.core.poll(0.0)
            if self.core.phase is Phase.READY:
                return
            (operation,) = operations
            found = tuple(self.records[operation.position :]) if isinstance(operation, Read) else ()
            assert isinstance(operation, Read | Check)
            self.core.complete(Completion(operation, Status.DONE, found, ended=True), 0.0)


@pytest.fixture
def one_root():
    return OneRoot()


def test_a_value_is_open_from_its_first_create_to_its_decision(one_root):
    core = one_root.core
    for index in range(2):
        one_root.reach_ready()
        core.propose(b"value %d" % index)
        assert not core.is_user_open()  # nothing was sent: its caller may be told so
        (create,) = core.poll(0.0)
        assert isinstance(create, Create)
        assert core.is_user_open()
        one_root.records.append(create.data)
        core.complete(Completion(create, Status.DONE), 0.0)
        core.advance(0.0)
        assert core.settled == (index, True)
        assert not core.is_user_open()
        core.finish()


def test_an_answer_to_an_operation_that_is_not_out_changes_nothing(one_root):
    core = one_root.core
    one_root.reach_ready()
    core.propose(b"x")
    (create,) = core.poll(0.0)
    twin = Create(create.root, create.position, create.data, create.marker_no)
    core.complete(Completion(twin, Status.DONE), 0.0)
    assert core.prefix.length == 0
    assert core.poll(0.0) == []  # still out
    core.complete(Completion(create, Status.DONE), 0.0)
    core.complete(Completion(create, Status.DONE), 0.0)
    assert core.prefix.length == 1
    assert core.prefix.views[0].next_position == 1


def test_a_root_that_fails_is_tried_less_and_less_often_up_to_a_bound():
    settings = LedgerSettings(root_retry_ms=20, root_retry_max_ms=250)
    core = LedgerCore(["root 0"], genesis_hash("l"), b"i" * 16, settings, random.Random(1))
    core.begin(0.0, is_write=False)
    now_ms, waits_ms = 0.0, []
    for _ in range(1000):
        (operation,) = core.poll(now_ms)
        core.complete(Completion(operation, Status.FAILED, error=OSError("gone")), now_ms)
        assert core.poll(now_ms) == []
        waits_ms.append(core.wake_at_ms - now_ms)
        now_ms = core.wake_at_ms
    for wait_ms, bound_ms in zip(waits_ms, [20, 40, 80, 160, *[250] * 996], strict=True):
        assert bound_ms / 2 <= wait_ms <= bound_ms
    assert len(set(waits_ms[4:])) > 900  # two processes that failed together part


def test_a_root_that_was_asked_just_now_is_not_reported_as_missing():
    core = LedgerCore(["root 0"], genesis_hash("l"), b"i" * 16, LedgerSettings(), random.Random(1))
    core.begin(0.0, is_write=False)
    (check,) = core.poll(0.0)
    core.complete(Completion(check, Status.DONE), 1.0)
    assert core.poll(1.0) != []
    assert core.missing_roots(100.0) == []
    assert core.missing_roots(60_000.0) == [0]
