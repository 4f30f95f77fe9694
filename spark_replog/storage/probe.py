"""Tests a root: create-if-absent under a race, ranges, listing, deletion.

Runs in init and doctor, never on the commit path. It shows that the primitive works
now, through this client, from this host. It tests neither durability nor races between hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import new_id
from spark_replog.storage.io_pool import IoPool
from spark_replog.storage.mount_table import file_system_of
from spark_replog.storage.object_store import CreateOutcome, InParts, ObjectStore
from spark_replog.storage.open_store import scheme_of

PROBE_PREFIX = ".probe-"
RACE_NAMES = 8
RACE_THREADS = 6
RACE_TIMEOUT_SECONDS = 60.0
RACE_ATTEMPTS = 3
"""Races for one name, while the store tells every racer to try again and keeps none of their bodies."""
_BODY_SIZE_BYTES = 3000


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of a probe that found no error."""

    url: str
    file_system: str
    """The scheme; for directories the mount's type (``ext4``, ``nfs4``)."""
    duration_ms: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the report in the form that the cluster ledger stores as JSON."""
        return {"fileSystem": self.file_system, "durationMs": self.duration_ms, "warnings": list(self.warnings)}


def probe_root(store: ObjectStore) -> ProbeReport:
    """Test create (where the root has it also in parts), get, list and delete on a root, in a temporary folder.

    Args:
        store: preferably with retries, since some clients report their own write as existing.

    Raises:
        ReplogError: REPLOG_STORE_LIES: the store's answers contradict its contents; REPLOG_STORE_REFUSED.
        OutcomeUnknownError, RetriableError: no answer; nothing is known about the store.
    """
    started_ms = SYSTEM_CLOCK.monotonic_ms()
    folder = f"{PROBE_PREFIX}{new_id()}"
    store.make_folder(folder)
    keys = [f"{folder}/a", *(f"{folder}/race-{number}" for number in range(RACE_NAMES))]
    try:
        _probe_sequence(store, keys[0])
        sizes = {keys[0]: _BODY_SIZE_BYTES}
        # A separate pool: all racers must run at once, whatever else this process does.
        pool = IoPool(lane_threads_max=RACE_THREADS)
        for key in keys[1:]:
            sizes[key] = _probe_race(store, key, pool)
        _probe_listing(store, folder, sizes)
        keys.append(f"{folder}/parts")
        warnings = _probe_parts(store, keys[-1])
        for key in keys:
            store.delete(key)
            _expect(store.get(key, size_bytes=1) is None, store, "a deleted object is still there")
    finally:
        _clean_up(store, folder)
    kind, of_mount = _file_system_of(store)
    return ProbeReport(store.url, kind, SYSTEM_CLOCK.monotonic_ms() - started_ms, (*of_mount, *warnings))


def _probe_sequence(store: ObjectStore, key: str) -> None:
    first, second = _body(b"A"), _body(b"B")
    made = store.create(key, first) is CreateOutcome.CREATED
    _expect(made, store, "a create of a new name was answered EXISTS")
    again = store.create(key, second) is CreateOutcome.EXISTS
    _expect(again, store, "a second create of the same name was answered CREATED")
    _expect(store.get(key) == first, store, "a create that was answered EXISTS has changed the object")
    _expect(store.get(key, start=100, size_bytes=50) == first[100:150], store, "a range has wrong bytes")


def _probe_race(store: ObjectStore, key: str, pool: IoPool) -> int:
    """Let threads create one name at the same moment; return the winner's size.

    Raises:
        OutcomeUnknownError: every racer of the last attempt was told to try again, and nothing is there.
    """
    bodies = [_body(bytes([65 + number])) for number in range(RACE_THREADS)]
    for attempt in range(RACE_ATTEMPTS):
        winners, unknown = _race(store, key, bodies, pool)
        stored_body = store.get(key)
        if stored_body is not None or len(unknown) < RACE_THREADS:
            break
        if attempt + 1 == RACE_ATTEMPTS:
            raise unknown[-1]
    _expect(stored_body is not None, store, "racing creates left nothing")
    held = [number for number, body in enumerate(bodies) if body == stored_body]
    _expect(len(held) == 1, store, "racing creates left bytes that no racer wrote")
    what = f"racing creates had {len(winners)} winners, or another one than the bytes show"
    _expect(winners in ([], held), store, what)
    return len(bodies[held[0]])


def _race(
    store: ObjectStore, key: str, bodies: Sequence[bytes], pool: IoPool
) -> tuple[list[int], list[OutcomeUnknownError]]:
    """Return which bodies were answered CREATED, and the errors of those who cannot know (409 asks for a retry)."""
    barrier = threading.Barrier(len(bodies))

    def race(body: bytes) -> CreateOutcome:
        barrier.wait(RACE_TIMEOUT_SECONDS)
        return store.create(key, body)

    racers: list[Future[CreateOutcome]] = [pool.submit(race, body) for body in bodies]
    winners, unknown = [], []
    for number, racer in enumerate(racers):
        try:
            if racer.result(RACE_TIMEOUT_SECONDS) is CreateOutcome.CREATED:
                winners.append(number)
        except OutcomeUnknownError as error:
            unknown.append(error)
        except (TimeoutError, threading.BrokenBarrierError) as error:
            raise RetriableError(
                ErrorCode.REPLOG_STORE_UNAVAILABLE,
                f"a create got no answer in {RACE_TIMEOUT_SECONDS:g} s. Check network and endpoint, or the mount.",
                url=store.url,
                key=key,
            ) from error
    return winners, unknown


def _probe_listing(store: ObjectStore, folder: str, sizes: dict[str, int]) -> None:
    listed = [(info.key, info.size_bytes) for info in store.list_keys(f"{folder}/")]
    _expect(listed == sorted(sizes.items()), store, "a listing misses objects, or has wrong sizes or order")


def _probe_parts(store: ObjectStore, key: str) -> tuple[str, ...]:
    """Test creates in parts, if the root has them; return what to warn of.

    A service that ignores the condition there is not refused: only names that no two writers share are sent in parts.
    """
    in_parts = store.in_parts() if isinstance(store, InParts) else None
    if in_parts is None:
        return ()
    first, second = _body(b"A"), _body(b"B")
    made = in_parts.create(key, first) is CreateOutcome.CREATED
    _expect(made, store, "a create of a new name in parts was answered EXISTS")
    again = in_parts.create(key, second)
    held = second if again is CreateOutcome.CREATED else first
    _expect(store.get(key) == held, store, "a create in parts was answered in one way and done in another")
    if again is CreateOutcome.EXISTS:
        return ()
    return (
        "an upload in parts overwrites an object, since the service ignores its condition. No log depends on it; use a "
        "newer server if there is one",
    )


def _body(letter: bytes) -> bytes:
    return letter * (_BODY_SIZE_BYTES - 32) + new_id().encode()


def _expect(holds: bool, store: ObjectStore, what: str) -> None:
    if not holds:
        raise ReplogError(
            ErrorCode.REPLOG_STORE_LIES,
            f"{what}: a log on this store would lose or double rows. Use another store or a newer server.",
            url=store.url,
        )


def _clean_up(store: ObjectStore, folder: str) -> None:
    with suppress(ReplogError):  # must not hide the probe's result; a leftover folder is harmless
        for info in list(store.list_keys(f"{folder}/")):
            store.delete(info.key)
        store.delete(f"{folder}/")


def _file_system_of(store: ObjectStore) -> tuple[str, tuple[str, ...]]:
    scheme = scheme_of(store.url)
    if scheme != "file":
        return scheme, ()
    mounted = file_system_of(store.url)
    if not mounted.is_remote:
        return mounted.type or "file", ()
    if mounted.type.startswith("nfs"):
        return mounted.type, tuple(mounted.nfs_faults())
    return mounted.type, (
        f"{mounted.type} is a network or user-space file system: it must store what it was asked to store before it "
        "answers, and show at once what others have made",
    )
