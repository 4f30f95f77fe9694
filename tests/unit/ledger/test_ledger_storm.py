"""The real shell under random faults."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import pytest

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from tests.faulty_store import FaultRates, FaultyStore

RATES = FaultRates(fail_before=0.06, lose_answer=0.06, refuse=0.03, stall=0.02)


def insist(call):
    """Call as a replaying driver does: again until the answer is known, also where a majority refused at once."""
    while True:
        try:
            return call()
        except (OutcomeUnknownError, RetriableError):
            continue
        except ReplogError as error:
            assert error.code is ErrorCode.REPLOG_STORE_REFUSED, error  # nothing was decided


@pytest.mark.parametrize("root_count", [1, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_random_faults_apply_every_command_once(make_store, root_count, seed):
    store = make_store(root_count)
    processes = [store.process() for _ in range(2)]
    for number, process in enumerate(processes):
        for root, faulty in enumerate(process.faulty):
            process.counting[root].store = FaultyStore(
                faulty.store, seed=seed * 100 + number * 10 + root, rates=RATES, stall_ms=8
            )
    failures = []

    def write(process, name):
        try:
            for number in range(8):
                insist(partial(process.append, b"%s %d" % (name, number), timeout_ms=500))
        except BaseException as error:  # shown by the assertion below
            failures.append(error)

    threads = [
        threading.Thread(target=write, args=(process, b"p%d t%d" % (number, thread)))
        for number, process in enumerate(processes)
        for thread in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    commands = store.process().commands()
    assert len(commands) == len(set(commands)) == 32
    for process in processes:
        while len(process.ledger.state.commands) < 32:
            insist(process.ledger.refresh)
        assert process.ledger.state.commands == commands


def test_commits_go_on_while_a_root_hangs(make_store):
    process = make_store(3).process()
    for number in range(4):
        process.append(b"warm %d" % number)
    hung = process.faulty[1]
    released = threading.Event()
    arrived = []

    def hang(key, data, **how):
        arrived.append(key)
        released.wait()
        return hung.store.create(key, data, **how)

    process.counting[1].store = SimpleNamespace(create=hang, get=hung.get, url=hung.url)
    try:
        for number in range(10):
            assert process.append(b"command %d" % number).result == "applied"
        assert len(arrived) == 1  # and no second create is sent behind the one that hangs
        assert not released.is_set()
    finally:
        released.set()
