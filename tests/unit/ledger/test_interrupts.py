"""Ctrl-C at any place of a call: the call ends, and the ledger goes on.

Only the main thread gets it, in a notebook for example, while other threads and later calls use the same ledger.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ledger import ledger
from tests.unit.ledger.conftest import FAST, Process
from tests.unit.ledger.snapshot_setup import BY_HAND, PagedState, command, fill, paged, shoot
from tests.waiting import wait_until

ROOM = ledger.__file__.rpartition("ledger.py")[0]
STEPS = [23, pytest.param(7, marks=pytest.mark.wide)]
"""Each place would take minutes: this is how far apart they are."""
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a generator's close


def interrupted(call: Callable[[], object], place: int) -> bool:
    """Run a call with an interrupt at its n-th place where Python looks for signals; return whether it has so many.

    These are the beginning of a function, and the end of a call of C code. Places in `threading` count too.
    """
    left = [place]

    def look(frame: FrameType, event: str, arg: object) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and (name.startswith(ROOM) or name == threading.__file__):
            left[0] -= 1
            if not left[0]:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        pass
    except RuntimeError as error:  # in the middle of the condition's own wait, which then holds no lock
        assert isinstance(error.__context__, KeyboardInterrupt), error
    finally:
        sys.setprofile(None)
    return left[0] <= 0


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("root_count", [1, 3])
@pytest.mark.parametrize("case", ["append", "append after another process", "refresh"])
def test_after_an_interrupt_anywhere_the_next_calls_succeed(make_store, root_count, case, step):
    store = make_store(root_count)
    other, reader = store.process(FAST), store.process(FAST)
    place, is_reached, appended = 1, True, 0
    while is_reached:
        process = store.process(FAST)
        for _ in range(2):
            process.append(b"own %d" % appended)
            appended += 1
        if case != "append":
            other.append(b"other %d" % place)

        def call(process: Process = process, place: int = place) -> object:
            return process.commands() if case == "refresh" else process.append(b"interrupted %d" % place)

        is_reached = interrupted(call, place)
        assert process.append(b"next %d" % place).result == "applied", place
        assert process.commands() == reader.commands(), place
        place += step if root_count == 1 or case != "append after another process" else 9 * step
    assert place > 50


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("root_count", [1, 3])
def test_an_interrupt_of_a_process_whose_entries_were_cut_leaves_its_state_whole(make_store, root_count, step):
    place, is_reached = 1, True
    while is_reached:
        store = make_store(root_count, f"at-{place}")
        writer, late = paged(store), paged(store)
        fill(writer, 0, 4)
        assert len(late.commands()) == 4
        fill(writer, 4, 30)
        shoot(writer)
        wanted = fill(writer, 30, 34)
        is_reached = interrupted(late.commands, place)
        try:
            assert late.commands() == wanted, place
        except ReplogError as error:  # in the middle of an entry
            assert error.code is ErrorCode.REPLOG_FOLD_INTERRUPTED
        else:
            assert late.ledger.state.snapshot == writer.ledger.state.snapshot, place
            late.append(b"last")
            assert writer.commands() == [*wanted, b"last"], place
        place += 5 * step
    assert place > 50


def test_a_command_whose_caller_was_interrupted_while_it_waited_is_never_decided(make_store):
    process = make_store(3).process(FAST)
    is_driven, may_end = threading.Event(), threading.Event()

    def drive(_: object) -> bytes:
        is_driven.set()
        may_end.wait(60)
        return b"first"

    driver = threading.Thread(target=lambda: process.ledger.append(drive, timeout_ms=60_000))
    driver.start()
    assert is_driven.wait(60)
    asked: list[str] = []

    def propose(_: object) -> bytes:
        asked.append("proposed")
        return b"its caller has left"

    place = 1
    while not asked and interrupted(lambda: process.ledger.append(propose, timeout_ms=200), place):
        place += 1
        assert place < 200
        if place > 30:
            break
    may_end.set()
    driver.join(60)
    process.append(b"last")
    assert process.commands() == [b"first", b"last"]
    assert not asked


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_while_the_entry_is_made_leaves_the_others_their_commands(make_store, error):
    process = make_store(3).process(FAST)
    is_asked, outcomes, encode = threading.Event(), [], process.ledger.state.encode

    def append_other() -> None:
        is_asked.wait(60)
        outcomes.append(process.ledger.append(lambda _: b"other", timeout_ms=60_000).result)

    def fail(commands: list[bytes]) -> bytes:
        if b"other" in commands and threading.current_thread() is threading.main_thread():
            process.ledger.state.encode = encode
            raise error
        return encode(commands)

    process.append(b"before")
    process.append(b"owner")
    process.ledger.state.encode = fail
    other = threading.Thread(target=append_other)
    other.start()

    def propose(_: object) -> bytes:
        is_asked.set()
        other.join(0.2)  # it waits now, and shares the next entry after the claim
        return b"mine"

    process.ledger.core.proposer.depose()  # the entry is made again after a claim, with both commands
    with pytest.raises(error):
        process.ledger.append(propose, timeout_ms=60_000)
    other.join(60)
    assert outcomes == ["applied"]
    assert process.commands() == [b"before", b"owner", b"other"]


def test_an_interrupted_restore_is_made_again(make_store, monkeypatch):
    """Between the state's restore and the note of the snapshot it derives from: they would not fit each other."""
    store = make_store(1)
    writer, late = paged(store, BY_HAND), paged(store, BY_HAND)
    fill(writer, 0, 4)
    late.commands()
    for first in (4, 30):
        wanted = fill(writer, first, first + 26)
        shoot(writer)
    restore = PagedState.restore

    def interrupt(self: PagedState, *args: object) -> None:
        restore(self, *args)
        monkeypatch.setattr(PagedState, "restore", restore)
        raise KeyboardInterrupt

    monkeypatch.setattr(PagedState, "restore", interrupt)
    with pytest.raises(KeyboardInterrupt):
        late.commands()
    assert late.commands() == wanted
    assert late.ledger.state.snapshot == writer.ledger.state.snapshot
    wait_until(lambda: late.append(command(99)).result == "applied")
