"""Journals that somebody has altered: records and whole files, on one root or on all of them.

A few hundred mutations by default; ``REPLOG_FUZZ=5000`` makes a long run. What a reader makes of them is an answer or a
``ReplogError``, in bounded memory; with one root altered it is the answer.
"""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crc32c import crc32c

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ReplogError
from spark_replog.ledger.record import (
    NONCE_SIZE_BYTES,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
    decode_record,
    encode_record,
    entry_hash,
    genesis_hash,
)
from spark_replog.maintenance.journal_repair import torn_tails
from spark_replog.maintenance.journal_scrub import scrub_journals

MUTATIONS = int(os.environ.get("REPLOG_FUZZ", "300"))
GROWTH_BYTES_MAX = 48 << 20


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def grow(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(rng.choice((1, 4, 1000)))


def overwrite(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at : at + rng.randint(1, 12)] = rng.choice((b"\xff" * 10, b"\0" * 10, b"\x80" * 12, b"\x7f"))


def swap(data: bytearray, rng: random.Random) -> None:
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    data[start:end] = bytes(reversed(data[start:end]))


DEFECTS: list[Callable[[bytearray, random.Random], None]] = [flip, cut, grow, overwrite, swap]


def altered(original: bytes, rng: random.Random) -> bytes:
    """A damaged record; every other one has a CRC that fits again, as of somebody who means it."""
    data = bytearray(original)
    for _ in range(rng.randint(1, 3)):
        if data:
            rng.choice(DEFECTS)(data, rng)
    if rng.random() < 0.5 and len(data) > 4:
        data[:5] = original[:5]
        data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")
    return bytes(data)


def assert_told(step: Callable[[], object]) -> bool:
    """Run a step; whatever it says of damage has a code and can be printed."""
    try:
        step()
    except ReplogError as error:
        assert error.code.name and str(error).replace("\n", "").isprintable()
        return False
    return True


def test_altered_records_are_decoded_or_told() -> None:
    rng = random.Random(7)
    last_records = tuple(LastKnown(number, number) for number in range(3))
    payload = rng.randbytes(300)
    digest = entry_hash(genesis_hash("l"), 0, payload)
    epoch, nonce = Epoch(3, rng.randbytes(16)), rng.randbytes(NONCE_SIZE_BYTES)
    record = encode_record(JournalRecord(RecordKind.ENTRY, epoch, nonce, 0, -1, digest, last_records, payload))
    tracemalloc.start()
    told = sum(
        not assert_told(lambda: decode_record(altered(record, rng), root="r", position=1)) for _ in range(MUTATIONS)
    )
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert MUTATIONS // 3 < told < MUTATIONS and peak_bytes < GROWTH_BYTES_MAX


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "store"
    init_cluster(str(path), 3, fsync=False)
    controller = Controller(Cluster.open(str(path)))
    for topic in ("orders", "billing"):
        controller.create_topic(topic, partitions=2)
    controller.alter_config("orders", {"retention.ms": "1000"})
    return path


def look(store: Path) -> None:
    """All that reads journals: a process that opens the store, and both that check it."""
    cluster = Cluster.open(str(store))
    assert_told(lambda: scrub_journals(cluster))
    for broker_id in cluster.brokers.broker_ids:
        assert_told(partial(torn_tails, cluster.brokers, broker_id))
    for topic in ("orders", "billing"):
        cluster.topic_state(cluster.lookup(topic))


WIDE = [pytest.param((root,), marks=pytest.mark.wide) for root in (1, 2)]


@pytest.mark.parametrize("share", [20, pytest.param(4, marks=pytest.mark.wide)])
@pytest.mark.parametrize("roots", [(0,), (0, 1, 2), *WIDE])
def test_altered_journal_files_stop_nobody_while_a_majority_is_whole(
    store: Path, roots: tuple[int, ...], share: int
) -> None:
    rng = random.Random(len(roots) * 10 + roots[0])
    journals = sorted(path.relative_to(store / "broker-0") for path in (store / "broker-0").rglob("journal/*"))
    look(store)
    tracemalloc.start()
    for _ in range(MUTATIONS // share):
        name = rng.choice(journals)
        files = [store / f"broker-{root}" / name for root in roots]
        originals = [file.read_bytes() if file.exists() else None for file in files]
        for file, data in zip(files, originals, strict=True):
            if data:
                file.unlink() if rng.random() < 0.1 else file.write_bytes(altered(data, rng))
        is_told = assert_told(lambda: look(store))
        assert is_told or len(roots) > 1, name
        for file, data in zip(files, originals, strict=True):
            if data is not None:
                file.write_bytes(data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < GROWTH_BYTES_MAX
    look(store)
