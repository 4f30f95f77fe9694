"""What every ObjectStore must do. A pytest class: inherit it and give a fixture ``store``.

    class TestMyStore(ObjectStoreContract):
        @pytest.fixture
        def store(self): ...

Durability and the errors of a service are each store's own tests.
"""

from __future__ import annotations

import array
import multiprocessing
import os
import pickle
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from spark_replog.errors import CorruptDataError, ErrorCode, OutcomeUnknownError, ReplogError
from spark_replog.ids import new_id
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectStore
from spark_replog.storage.retrying_store import RetryingStore
from tests.waiting import wait_until

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS


class _LosesFirstAnswer:
    """A store whose first create takes effect without an answer."""

    def __init__(self, store: ObjectStore) -> None:
        self.store, self.url = store, store.url
        self.get, self.list_keys = store.get, store.list_keys
        self.make_folder, self.delete = store.make_folder, store.delete
        self.create_count = 0

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        outcome = self.store.create(key, data, make_parent=make_parent)
        self.create_count += 1
        if self.create_count == 1:
            raise OutcomeUnknownError(ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "the answer is lost.", key=key)
        return outcome


class ObjectStoreContract:
    """The tests. Class attributes say what kind of store it is; no test is ever skipped for them."""

    is_shared_between_processes: ClassVar[bool] = True
    """False: processes do not see each other's writes."""
    race_in_processes: ClassVar[bool] = True
    """False: races run in threads."""
    has_folders: ClassVar[bool] = True
    """True: writes need their folder; False: folders do not exist."""
    race_name_count: ClassVar[int] = 40
    race_racer_count: ClassVar[int] = 8

    def put(self, store: ObjectStore, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Create an object that must not exist yet, with its folder."""
        store.make_folder(key.rpartition("/")[0])
        assert store.create(key, data) is CREATED

    def read(self, store: ObjectStore, key: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """Return the range as bytes; the object must exist."""
        body = store.get(key, start=start, size_bytes=size_bytes)
        assert body is not None
        return bytes(body)

    # Absence, content, ranges

    def test_absent_object_is_none(self, store: ObjectStore) -> None:
        self.put(store, "f/there", b"x")
        assert store.get("f/absent") is None
        assert store.get("f/absent", start=3, size_bytes=5) is None
        assert store.get("f/absent", size_bytes=0) is None
        assert store.get("f/there", size_bytes=0) == b""
        assert store.get("no-folder/absent") is None
        assert store.get("f/there/below") is None

    def test_whole_object_comes_back(self, store: ObjectStore) -> None:
        for size_bytes in (1, 100, 65535, 65536, 300_001):
            body = os.urandom(size_bytes)
            self.put(store, f"whole/{size_bytes}", body)
            assert self.read(store, f"whole/{size_bytes}") == body

    @pytest.mark.parametrize("size_bytes", [10, 200_000])
    def test_ranges(self, store: ObjectStore, size_bytes: int) -> None:
        body = os.urandom(size_bytes)
        self.put(store, "ranges/a", body)
        half = size_bytes // 2
        for start, length in [(0, 1), (0, half), (1, half), (half, half), (half, size_bytes), (3, None)]:
            expected = body[start:] if length is None else body[start : start + length]
            assert self.read(store, "ranges/a", start, length) == expected
        assert self.read(store, "ranges/a", size_bytes - 1, 100_000) == body[-1:]

    def test_range_behind_the_end_is_empty_not_absent(self, store: ObjectStore) -> None:
        self.put(store, "ranges/short", b"0123456789")
        assert self.read(store, "ranges/short", 10, 5) == b""
        assert self.read(store, "ranges/short", 100, 100_000) == b""
        assert self.read(store, "ranges/short", 4, 0) == b""

    def test_pieces_are_joined_in_order(self, store: ObjectStore) -> None:
        numbers = memoryview(array.array("i", [1, 2, 3]))
        pieces: list[Buffer] = [b"one", bytearray(b"two"), b"", memoryview(b"three"), numbers]
        self.put(store, "pieces/few", pieces)
        assert self.read(store, "pieces/few") == b"onetwothree" + numbers.tobytes()
        many = [bytes([number % 256]) * (number % 7) for number in range(3000)]
        self.put(store, "pieces/many", many)
        assert self.read(store, "pieces/many") == b"".join(many)

    def test_answers_outlive_the_object(self, store: ObjectStore) -> None:
        body = os.urandom(200_000)
        self.put(store, "late/a", body)
        answer = store.get("late/a")
        store.delete("late/a")
        assert answer is not None and bytes(answer) == body

    # Create if absent

    def test_second_create_exists_and_changes_nothing(self, store: ObjectStore) -> None:
        self.put(store, "once/a", b"first")
        assert store.create("once/a", b"second, and longer") is EXISTS
        assert store.create("once/a", b"") is EXISTS
        assert self.read(store, "once/a") == b"first"

    def test_race_has_one_winner_whose_bytes_are_there(self, store: ObjectStore) -> None:
        store.make_folder("race")
        results = race_creates(
            store,
            [f"race/{number}" for number in range(self.race_name_count)],
            racers=self.race_racer_count,
            in_processes=self.race_in_processes,
        )
        assert [result for result in results if result.winners != (result.holder,)] == []

    def test_readers_see_all_or_nothing(self, store: ObjectStore) -> None:
        body = os.urandom(1 << 20)
        seen: list[int] = []
        stop = threading.Event()

        def watch() -> None:
            while not stop.is_set():
                for number in range(5):
                    answer = store.get(f"atomic/{number}")
                    if answer is not None and bytes(answer) != body:
                        seen.append(len(answer))
                seen.extend(info.size_bytes for info in store.list_keys("atomic/") if info.size_bytes != len(body))

        watcher = threading.Thread(target=watch)
        store.make_folder("atomic")
        watcher.start()
        try:
            for number in range(5):
                assert store.create(f"atomic/{number}", body) is CREATED
        finally:
            stop.set()
            watcher.join()
        assert seen == []

    # Own writes

    def test_own_write_is_recognised_after_a_lost_answer(self, store: ObjectStore) -> None:
        store.make_folder("own")
        losing = _LosesFirstAnswer(store)
        retrying = RetryingStore(losing, deadline_ms=10_000)
        body = [os.urandom(70_000), os.urandom(7)]
        assert retrying.create("own/a", body) is CREATED
        assert losing.create_count > 0
        assert retrying.create("own/a", body) is CREATED  # the same call again, from scratch
        assert retrying.create("own/a", [b"other"]) is EXISTS
        assert retrying.create("own/a", [*body, b"x"]) is EXISTS
        assert retrying.create("own/a", body[:1]) is EXISTS
        assert self.read(store, "own/a") == b"".join(body)

    def test_unknown_outcome_says_so_and_a_repeat_settles_it(self, store: ObjectStore) -> None:
        store.make_folder("own")
        retrying = RetryingStore(_LosesFirstAnswer(store), deadline_ms=0)
        with pytest.raises(OutcomeUnknownError) as raised:
            retrying.create("own/b", b"mine")
        assert raised.value.code is ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN
        assert retrying.create("own/b", b"mine") is CREATED

    # Listing

    def test_listing_is_in_key_order(self, store: ObjectStore) -> None:
        keys = ["list/a.b", "list/a/x", "list/a/y/z", "list/a0", "list/b", "list/" + "9" * 20]
        for key in reversed(keys):
            self.put(store, key, key.encode())
        self.put(store, "lists", b"outside")
        listed = list(store.list_keys("list/"))
        assert [info.key for info in listed] == sorted(keys)
        assert [info.size_bytes for info in listed] == [len(key) for key in sorted(keys)]
        assert [info.key for info in store.list_keys("list/a")] == ["list/a.b", "list/a/x", "list/a/y/z", "list/a0"]
        assert [info.key for info in store.list_keys("list/a/")] == ["list/a/x", "list/a/y/z"]
        assert [info.key for info in store.list_keys("list")] == [*sorted(keys), "lists"]

    def test_listing_can_begin_behind_a_key(self, store: ObjectStore) -> None:
        keys = ["behind/2", "behind/3.a", "behind/3/1", "behind/3/2", "behind/4", "behind/5"]
        for key in keys:
            self.put(store, key, key.encode())
        listed = list(store.list_keys("behind/", after="behind/3/1"))
        assert [info.key for info in listed] == ["behind/3/2", "behind/4", "behind/5"]
        assert [info.size_bytes for info in listed] == [len(info.key) for info in listed]
        assert [info.key for info in store.list_keys("behind/", after="behind/1")] == keys
        assert [info.key for info in store.list_keys("behind/3", after="behind/3")] == keys[1:4]
        assert list(store.list_keys("behind/", after="behind/5")) == []

    def test_listing_of_nothing_is_empty(self, store: ObjectStore) -> None:
        self.put(store, "something", b"x")
        assert list(store.list_keys("nothing/")) == []
        assert list(store.list_keys("some/thing")) == []

    def test_listing_sees_other_writers(self, store: ObjectStore) -> None:
        other: ObjectStore = pickle.loads(pickle.dumps(store))
        self.put(store, "fresh/one", b"1")
        assert [info.key for info in store.list_keys("fresh/")] == ["fresh/one"]
        self.put(other, "fresh/two", b"22")
        other.delete("fresh/one")
        assert [(info.key, info.size_bytes) for info in store.list_keys("fresh/")] == [("fresh/two", 2)]
        assert store.get("fresh/one") is None

    # Delete

    def test_delete(self, store: ObjectStore) -> None:
        self.put(store, "gone/a", b"a")
        self.put(store, "gone/b", b"b")
        store.delete("gone/a")
        store.delete("gone/a")
        store.delete("never/was")
        assert store.get("gone/a") is None
        assert [info.key for info in store.list_keys("gone/")] == ["gone/b"]

    def test_delete_of_a_folder_spares_what_is_in_it(self, store: ObjectStore) -> None:
        self.put(store, "keep/a", b"a")
        store.delete("keep/")
        assert self.read(store, "keep/a") == b"a"
        store.delete("keep/a")
        store.delete("keep/")
        store.delete("keep/")
        assert store.get("keep/a") is None

    # Folders

    def test_make_parent_makes_one_level_only(self, store: ObjectStore) -> None:
        store.make_folder("data")
        assert store.create("data/000001/a", b"x", make_parent=True) is CREATED
        assert store.create("data/000001/b", b"x", make_parent=True) is CREATED
        if self.has_folders:
            for make_parent in (False, True):
                with pytest.raises(ReplogError) as raised:
                    store.create("vanished/data/000001/a", b"x", make_parent=make_parent)
                assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
            assert store.get("vanished/data/000001/a") is None
        else:
            assert store.create("vanished/data/000001/a", b"x") is CREATED

    # Names

    @pytest.mark.parametrize(
        "key", ["a/../../b", "../b", "/etc/x", "a//b", "a/./b", "a\\b", "a\0b", "a/b\n", "a\x1b[2J", ""]
    )
    def test_a_key_that_could_leave_the_root_is_refused(self, store: ObjectStore, key: str) -> None:
        store.make_folder("a")
        for call in (lambda: store.get(key), lambda: store.create(key, b"x"), lambda: store.get(key, size_bytes=0)):
            with pytest.raises(CorruptDataError) as raised:
                call()
            assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
            assert store.url in str(raised.value) and "\x1b" not in str(raised.value)

    # Processes

    def test_pickles_as_settings(self, store: ObjectStore) -> None:
        self.put(store, "pickle/a", b"before")
        text = pickle.dumps(store)
        assert len(text) < 2000
        copy: ObjectStore = pickle.loads(text)
        assert copy.url == store.url
        assert self.read(copy, "pickle/a") == b"before"
        assert copy.create("pickle/a", b"again") is EXISTS

    def test_forked_child_works_with_an_inherited_store(self, store: ObjectStore) -> None:
        self.put(store, "fork/a", b"parent")
        assert [info.key for info in store.list_keys("fork/")] == ["fork/a"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads exist: that is the point
            child = os.fork()
        if child == 0:
            status = 1
            try:
                inherited = store.get("fork/a")
                if inherited is not None and bytes(inherited) == b"parent":
                    status = 0 if store.create("fork/child", b"child") is CREATED else 2
            finally:
                os._exit(status)
        assert _exit_code_of(child) == 0
        if self.is_shared_between_processes:
            assert self.read(store, "fork/child") == b"child"
            assert [info.key for info in store.list_keys("fork/")] == ["fork/a", "fork/child"]
        assert self.read(store, "fork/a") == b"parent"


def _exit_code_of(child: int) -> int:
    try:
        _, status = wait_until(lambda: result if (result := os.waitpid(child, os.WNOHANG))[0] else None, "the child")
    except AssertionError:
        os.kill(child, 9)
        raise
    return os.waitstatus_to_exitcode(status)


RACE_TIMEOUT_SECONDS = 60.0
_BODY_SIZE_BYTES = 3000


@dataclass(frozen=True, slots=True)
class RaceResult:
    """One name after a race.

    Attributes:
        key: the name.
        winners: racers that were told CREATED.
        holder: the racer whose bytes lie under the name; -1 where they are those of no racer.
    """

    key: str
    winners: tuple[int, ...]
    holder: int


def race_creates(store: ObjectStore, keys: Sequence[str], *, racers: int = 8, in_processes: bool) -> list[RaceResult]:
    """Let racers create each name at the same moment, and look who holds it.

    Args:
        in_processes: new interpreters (a store that processes share), else threads.
    """
    run = new_id()
    outcomes: Any
    barrier: Any
    if in_processes:
        context = multiprocessing.get_context("spawn")
        outcomes, barrier = context.Queue(), context.Barrier(racers)
        make: Callable[..., Any] = context.Process
    else:
        outcomes, barrier = queue.Queue(), threading.Barrier(racers)
        make = threading.Thread
    workers = [
        make(target=_race, args=(store, list(keys), number, run, barrier, outcomes), daemon=True)
        for number in range(racers)
    ]
    for worker in workers:
        worker.start()
    won: dict[str, list[int]] = {key: [] for key in keys}
    for _ in workers:
        number, created = outcomes.get(timeout=RACE_TIMEOUT_SECONDS)
        for key in created:
            won[key].append(number)
    for worker in workers:
        worker.join(RACE_TIMEOUT_SECONDS)
    return [RaceResult(key, tuple(sorted(won[key])), _holder(store, key, run, racers)) for key in keys]


def _race(store: ObjectStore, keys: list[str], number: int, run: str, barrier: Any, outcomes: Any) -> None:
    created = []
    for key in keys:
        barrier.wait(RACE_TIMEOUT_SECONDS)
        if store.create(key, _body(run, number)) is CreateOutcome.CREATED:
            created.append(key)
    outcomes.put((number, created))


def _body(run: str, number: int) -> bytes:
    head = f"{run}-{number:04d}-".encode()
    return head + bytes([65 + number % 26]) * (_BODY_SIZE_BYTES - len(head))


def _holder(store: ObjectStore, key: str, run: str, racers: int) -> int:
    body = store.get(key)
    for number in range(racers):
        if body is not None and bytes(body) == _body(run, number):
            return number
    return -1
