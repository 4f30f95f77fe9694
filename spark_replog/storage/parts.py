"""A large body in parts: how it is cut, and how some parts at a time are sent on a client's event loop."""

from __future__ import annotations

import asyncio
import threading
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
"""How long a failed or interrupted call waits for the abort of its upload."""


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

    The first error ends the others' requests, and is raised when these have ended.
    """
    found: dict[int, T] = {}
    numbers = iter(range(len(parts)))

    async def send_some() -> None:
        for number in numbers:
            found[number] = await send(number, b"".join(parts[number]))

    tasks = [asyncio.ensure_future(send_some()) for _ in range(min(PARTS_AT_ONCE, len(parts)))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return [found[number] for number in range(len(parts))]


def run_on(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a call on a client's event loop, which another thread turns, and return its result.

    If the caller is interrupted, the call is cancelled and has ``CLEAN_UP_SECONDS`` to clean up. With fsspec's own
    ``sync`` it would go on, and might create the object after its caller has given up.
    """
    has_ended = threading.Event()

    async def watched() -> T:
        try:
            return await call()
        finally:
            has_ended.set()

    running = asyncio.run_coroutine_threadsafe(watched(), loop)
    try:
        return running.result()
    except BaseException:
        if running.cancel():  # False: the call itself has ended
            has_ended.wait(CLEAN_UP_SECONDS + 1)
        raise
