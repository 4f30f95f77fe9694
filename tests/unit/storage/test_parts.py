"""How a body is cut, sent some parts at a time, and what an error or an interruption leaves running."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from spark_replog.storage import parts as module
from spark_replog.storage.parts import PARTS_AT_ONCE, parts_of, run_on, sent


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], [b""]),
        ([b""], [b""]),
        ([b"abcd"], [b"abcd"]),
        ([b"abcde"], [b"abcd", b"e"]),
        ([b"a", bytearray(b"bc"), b"", memoryview(b"defghi")], [b"abcd", b"efgh", b"i"]),
        ([b"abcd", b"efgh"], [b"abcd", b"efgh"]),
    ],
)
def test_a_body_is_cut_across_its_pieces(pieces, expected):
    assert [b"".join(part) for part in parts_of(pieces, 4)] == expected


def test_a_part_is_a_view_until_it_is_sent():
    body = bytearray(b"abcdef")
    (first, second) = parts_of([body], 4)
    body[0], body[5] = b"XY"
    assert (b"".join(first), b"".join(second)) == (b"Xbcd", b"eY")


def test_some_parts_are_sent_at_a_time_and_answers_keep_their_order():
    parts = parts_of([bytes(range(20))], 1)
    running, most = 0, 0

    async def send(number, body):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20 - number):  # later parts end earlier
            await asyncio.sleep(0)
        running -= 1
        return number, body

    assert asyncio.run(sent(parts, send)) == [(number, bytes([number])) for number in range(20)]
    assert most == PARTS_AT_ONCE


def test_the_first_error_is_raised_when_the_others_have_ended_and_no_more_part_is_sent():
    ended = []

    async def send(number, body):
        if number == 1:
            raise OSError("first")
        for _ in range(20):
            await asyncio.sleep(0)
        ended.append(number)

    with pytest.raises(OSError, match="first"):
        asyncio.run(sent(parts_of([bytes(9)], 1), send))
    assert sorted(ended) == [0, *range(2, PARTS_AT_ONCE)]


def test_the_first_error_keeps_its_cause_and_cuts_off_who_does_not_end(monkeypatch):
    monkeypatch.setattr(module, "CLEAN_UP_SECONDS", 0.01)
    ended = []

    async def send(number, body):
        if number == 1:
            raise OSError("first") from ValueError("cause")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(OSError, match="first") as raised:
        asyncio.run(sent(parts_of([bytes(9)], 1), send))
    assert isinstance(raised.value.__cause__, ValueError)
    assert sorted(ended) == [0, *range(2, PARTS_AT_ONCE)]


def test_the_result_or_the_error_of_a_call_is_the_callers(loop):
    async def call(is_failing):
        if is_failing:
            raise OSError("its own")
        return 7

    assert run_on(loop, lambda: call(False)) == 7
    with pytest.raises(OSError, match="its own"):
        run_on(loop, lambda: call(True))


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_caller_waits_until_the_call_has_cleaned_up(loop, interruptible):
    cleaned = []

    async def call():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            cleaned.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_on(loop, call)
    assert cleaned == [True]
