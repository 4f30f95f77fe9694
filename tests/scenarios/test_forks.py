"""A forked child of a process that uses the package: what it may use and what it may not."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import warnings

import pytest

from spark_replog import process_state
from spark_replog.errors import ReplogError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import process_id
from spark_replog.storage import direct_write
from spark_replog.storage.call_counter import (
    CallCounter,
    CallKey,
    Calls,
)
from spark_replog.storage.folder_watch import FolderWatch
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.posix_store import PosixStore
from tests.unit.client import conftest as producing
from tests.unit.client import consumer_setup
from tests.unit.client.consumer_setup import consumer
from tests.unit.client.producer_setup import held_puts
from tests.unit.ledger import conftest as ledgers
from tests.unit.storage import test_folder_watch

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
make_store, shop, folders = ledgers.make_store, producing.shop, test_folder_watch.folders
store, filled = consumer_setup.store, consumer_setup.filled


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


def test_a_child_begins_with_nothing_that_belongs_to_its_parent():
    """The contract of the registry: each renewal has run, in their order, and after them each container is empty.

    In this order: what only a container held may be something that a child must not close.
    """
    calls: list[str] = []
    cache = process_state.per_process({"of": "the parent"})
    process_state.in_each_child(lambda: calls.append(f"first, {len(cache)} kept"))
    process_state.in_each_child(lambda: calls.append("second"))
    parent_id, lanes = process_id(), IO_POOL.submit(len, "x").result()

    def look():
        kept = sum(map(len, process_state.CONTAINERS))
        is_new = process_id() != parent_id
        return f"{calls} {kept} {is_new} {IO_POOL.submit(len, 'xyz').result()}".encode()

    assert lanes == 1 and calls == []
    assert in_child(look) == b"['first, 1 kept', 'second'] 0 True 3"
    assert cache == {"of": "the parent"} and process_id() == parent_id


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


def test_a_forked_child_is_refused_and_does_not_take_the_parents_place_in_the_group(filled):
    reader = consumer(filled, "orders", group="g", enable_auto_commit=False)
    reader.poll(timeout_ms=5_000)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            reader.close()
            reader.poll()
            os.write(writing, b"polled")
        except ReplogError as error:
            os.write(writing, error.code.name.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        assert answer.read() == b"REPLOG_NOT_FORK_SAFE"
    (member,) = GroupCoordinator(filled.cluster).group("g").metadata.members
    assert member.member_id == reader.group_metadata()[0]
    reader.commit()
    reader.close()


def test_a_forked_child_is_refused_and_the_parent_goes_on(shop):
    shop.topic()
    producer = shop.producer()
    producer.send("orders", b"parent").result(10)
    with held_puts(shop):
        waiting = producer.send("orders", b"waiting")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            for call in (
                lambda: producer.send("orders", b"child"),
                lambda: producer.partitions_for("other"),
                producer.metrics,
                producer.flush,
                waiting.result,
            ):
                try:
                    call()
                    os.write(writing, b"sent ")
                except ReplogError as error:
                    os.write(writing, error.code.name.encode() + b" ")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 200).split() == [b"REPLOG_NOT_FORK_SAFE"] * 5
        os.close(reading)
        os.close(writing)
    assert (waiting.result(10).offset, producer.send("orders", b"again").result(10).offset) == (1, 2)


def test_a_forked_child_counts_from_zero():
    calls, key = CallCounter(), CallKey("r", "get", "journal")
    calls.count("r", "get", "ledgers/L/journal/0", 1)
    reader, writer = os.pipe()
    if os.fork() == 0:
        calls.count("r", "get", "ledgers/L/journal/0", 5)
        os.write(writer, pickle.dumps(calls.take()))
        os._exit(0)
    assert pickle.loads(os.read(reader, 9_999)) == {key: Calls(1, 5, 0)}
    os.wait()


def test_a_forked_child_writes_into_memory_of_its_own():
    chunk = direct_write._take_block()
    chunk[:4] = b"mine"
    child = os.fork()
    if child == 0:
        chunk[:4] = b"your"
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(chunk[:4]) == b"mine"


def test_a_forked_child_takes_no_events_of_its_parent(folders):
    watch = FolderWatch([folders[:1]])
    child = os.fork()
    if not child:
        watch.close()
        os._exit(watch.is_usable)
    assert os.waitpid(child, 0)[1] == 0
    PosixStore(folders[0]).create("7", b"x")
    assert watch.is_usable and watch.wait(test_folder_watch.PATIENCE_MS)


def test_a_forked_child_has_a_pool_of_its_own():
    IO_POOL.submit(pow, 2, 2).result(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if IO_POOL.submit(pow, 2, 5).result(60) == 32 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_lock_that_was_held_at_the_fork_stops_no_child():
    with IO_POOL._lanes[""]._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if IO_POOL.submit(pow, 2, 5).result(60) == 32 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
