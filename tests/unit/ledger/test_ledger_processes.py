"""One ledger object over a fork, and a fold that something ended half-way."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from spark_replog.errors import ErrorCode, ReplogError

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(act):
    """Run in a forked child; return what it returned, as bytes, or the error's name."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs dies, and has answered nothing
        try:
            os.write(write_end, act())
        except ReplogError as error:
            os.write(write_end, error.code.name.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return answer


def test_forked_child_is_a_process_of_its_own(make_store):
    store = make_store(3)
    process = store.process()
    for number in range(3):
        process.append(b"parent %d" % number)

    def write():
        process.append(b"child")
        return b"%d" % process.ledger.stats.claims

    assert in_child(write) == b"1"
    process.append(b"parent again")
    assert process.commands()[-2:] == [b"child", b"parent again"]


def test_a_lock_that_another_thread_held_at_the_fork_does_not_stop_the_child(make_store):
    process = make_store(1).process()
    process.append(b"parent")
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with process.ledger.lock:
            held.set()
            let_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)

    def read():
        with process.ledger.lock:
            return b",".join(process.ledger.state.commands)

    assert in_child(read) == b"parent"
    let_go.set()
    holder.join()


def test_a_child_forked_in_the_middle_of_a_fold_refuses_to_use_it(make_store):
    store = make_store(1)
    process, writer = store.process(), store.process()
    writer.append(b"a")
    folding, go_on = threading.Event(), threading.Event()
    apply = process.ledger.state.apply

    def slow_apply(index, payload):
        folding.set()
        go_on.wait(60)
        return apply(index, payload)

    process.ledger.state.apply = slow_apply
    reader = threading.Thread(target=process.commands)
    reader.start()
    folding.wait(60)
    assert in_child(lambda: b"".join(process.commands())) == b"REPLOG_FOLD_INTERRUPTED"
    go_on.set()
    reader.join()
    assert process.commands() == [b"a"]  # the parent's own fold is whole
    assert in_child(lambda: b"".join(process.commands())) == b"a"


@pytest.mark.parametrize("root_count", [1, 3])
def test_after_an_interrupted_fold_nothing_is_answered_or_written(make_store, root_count):
    store = make_store(root_count)
    process, writer = store.process(), store.process()
    for number in range(3):  # the next append needs no look at the journals
        process.append(b"own %d" % number)
    apply = process.ledger.state.apply

    def interrupted(index, payload):
        apply(index, payload)
        process.ledger.state.commands.pop()  # Ctrl-C struck before the entry's last effect
        raise KeyboardInterrupt

    writer.append(b"other")
    process.ledger.state.apply = interrupted
    with pytest.raises(KeyboardInterrupt):
        process.ledger.refresh()
    process.ledger.state.apply = apply
    process.reset()
    for call in (process.commands, lambda: process.append(b"late")):
        with pytest.raises(ReplogError, match="open it again") as caught:
            call()
        assert caught.value.code is ErrorCode.REPLOG_FOLD_INTERRUPTED
    assert process.creates() == 0
    assert store.process().commands() == [b"own 0", b"own 1", b"own 2", b"other"]


def test_an_entry_that_this_release_cannot_fold_ends_the_ledger_with_its_own_error(make_store):
    store = make_store(3)
    process = store.process()
    process.append(b"a")
    newer = ReplogError(ErrorCode.UNSUPPORTED_VERSION, "Upgrade spark-replog.")

    def refuse(index, payload):
        raise newer

    process.ledger.state.apply = refuse
    store.process().append(b"b")
    for _ in range(2):
        with pytest.raises(ReplogError) as caught:
            process.ledger.refresh()
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    process.reset()
    with pytest.raises(ReplogError):
        process.append(b"c")
    assert process.creates() == 0
