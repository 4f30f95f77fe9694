"""A large body in parts: how it is cut, and how some parts at a time are sent on a client's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from spark_replog.storage.object_store import Buffer

T = TypeVar("T")
Part = Sequence[memoryview]
"""Views of the caller's buffers, joined only while the part is sent: clients take ``bytes``."""

PART_SIZE_BYTES = 16 << 20
"""A part that breaks is lost, and so is the time of its request. Services take parts of 5 MiB and more."""
ONE_REQUEST_BYTES_MAX = 36 << 20
"""A larger data object is sent in parts. The rows of one request have 32 MiB at most by default
(``max.request.size``); with their framing they stay one request, which costs less than five. What compaction makes is
larger, and one connection to a bucket carries some 50 to 100 MB/s only."""
PARTS_AT_ONCE = 4
"""Of one body: so many parts are copied in memory at a time."""
CLEAN_UP_SECONDS = 5.0
"""How long a failed call waits for its other requests, and then a failed or interrupted one for the abort."""


NO_PARTS_STATUSES = frozenset({403, 405, 501})
"""Answers of a service without uploads in parts to the first request of one. 403: a policy may demand the condition of
a put, which that request cannot have, or allow whole puts alone."""


class NoPartsError(Exception):
    """The service does not take this body in parts, and none of it can become visible: send it in one request."""


def parts_of(pieces: Sequence[Buffer], part_size_bytes: int) -> list[Part]:
    """Return the parts of a body, which is given as its pieces in order; one empty part if it has no bytes."""
    parts: list[list[memoryview]] = [[]]
    room_bytes = part_size_bytes
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view.nbytes:
            if room_bytes == 0:
                parts.append([])
                room_bytes = part_size_bytes
            taken = view[:room_bytes]
            parts[-1].append(taken)
            room_bytes -= taken.nbytes
            view = view[taken.nbytes :]
    return list(parts)


async def sent(parts: Sequence[Part], send: Callable[[int, bytes], Awaitable[T]]) -> list[T]:
    """Return what ``send`` returns for each part, in order; it gets the part's number from 0 and its bytes.

    The first error is raised when the requests beside it have ended; those that take longer than
    ``CLEAN_UP_SECONDS`` are cut off. A request that is cut off may reach the service after an abort, which then leaves
    its part. An interruption cuts off all requests at once.
    """
    answers: dict[int, T] = {}
    left = deque(range(len(parts)))

    async def send_some() -> None:
        while left:
            number = left.popleft()
            answers[number] = await send(number, b"".join(parts[number]))

    tasks = [asyncio.ensure_future(send_some()) for _ in range(min(PARTS_AT_ONCE, len(parts)))]
    try:
        await asyncio.gather(*tasks)
    except Exception:
        left.clear()
        await asyncio.wait(tasks, timeout=CLEAN_UP_SECONDS)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [answers[number] for number in range(len(parts))]


def run_on(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a call on a client's event loop, which another thread turns, and return its result.

    If the caller is interrupted, the call is cancelled and has ``CLEAN_UP_SECONDS`` to clean up. With fsspec's own
    ``sync`` it would go on, and might create the object after its caller has given up.
    """
    has_ended, is_given_up = threading.Event(), threading.Event()
    running: list[asyncio.Task[Any] | None] = []

    async def watched() -> T:
        running.append(asyncio.current_task())
        try:
            if is_given_up.is_set():
                raise asyncio.CancelledError
            return await call()
        finally:
            has_ended.set()

    def cancel() -> None:
        for task in running:
            if task is not None:
                task.cancel()

    try:  # an interruption may come at any step from here on
        return asyncio.run_coroutine_threadsafe(watched(), loop).result()
    except BaseException:
        if not has_ended.is_set():
            is_given_up.set()
            loop.call_soon_threadsafe(cancel)
            has_ended.wait(CLEAN_UP_SECONDS + 1)
        raise
