"""A head that one root alone has: another state, whole and with the checksums and names that fit it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from spark_replog.errors import OutcomeUnknownError, RetriableError
from spark_replog.ledger.journal_rebuild import copy_snapshots
from spark_replog.ledger.record import Epoch, genesis_hash
from spark_replog.ledger.snapshot_files import decode_snapshot, encode_snapshot, snapshot_name
from spark_replog.snapshot import DecidedSnapshot, hash_of
from spark_replog.storage.paths import page_key, snapshot_key
from spark_replog.storage.posix_store import PosixStore
from tests.faulty_store import Fault
from tests.unit.ledger.conftest import LEDGER_ID, Store
from tests.unit.ledger.snapshot_setup import (
    KEPT,
    PagedState,
    command,
    core_of,
    fill,
    heads,
    keeper_of,
    paged,
    shoot,
    store_and_die,
)
from tests.waiting import wait_until

GENESIS = genesis_hash(LEDGER_ID)


def newest_head(store: Store, root: int) -> bytes:
    """Return the newest head of a root, once each root has it."""
    folders = [store.root_path(broker) / f"ledgers/{LEDGER_ID}/snapshots" for broker in range(store.root_count)]
    name = sorted(path.name for path in folders[root].glob("[0-9]*"))[-1]
    wait_until(lambda: all((folder / name).exists() for folder in folders))
    return (folders[root] / name).read_bytes()


def forge(store: Store, root: int, *, index_more: int = 0, promised: Epoch | None = None) -> None:
    """Put two heads and a page on one root: a state without the rows, and a newer head that calls it decided."""
    folder = store.root_path(root) / f"ledgers/{LEDGER_ID}"
    true = decode_snapshot(newest_head(store, root), genesis=GENESIS, root_count=store.root_count, where="it")
    if promised is not None:
        true = replace(true, points=tuple(point._replace(promised=promised) for point in true.points))
    page = json.dumps([command(666).hex()]).encode()
    page_name = f"{true.decided.no:012d}-{hash_of(page)}"
    index = true.base.index + index_more
    body = json.dumps([[page_name], index]).encode()
    bases = [replace(true.base, index=index + step) for step in (0, 1)]
    forged = encode_snapshot(GENESIS, replace(true, base=bases[0], body=body))
    decided = DecidedSnapshot(true.decided.no + 1, index, snapshot_name(index, forged), index)
    newest = encode_snapshot(GENESIS, replace(true, base=bases[1], body=body, decided=decided))
    key = store.root_path(root) / page_key(LEDGER_ID, page_name)
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_bytes(page)
    for at, data in ((index, forged), (index + 1, newest)):
        (folder / "snapshots" / snapshot_name(at, data)).write_bytes(data)


@pytest.mark.parametrize("root", range(3))
@pytest.mark.parametrize("index_more", [0, 1_000_000])
def test_a_newer_head_on_one_root_is_not_believed_where_the_others_lack_it(make_store, root, index_more):
    store = make_store(3)
    writer = paged(store, KEPT)
    fill(writer, 0, 30)
    shoot(writer)
    wanted = fill(writer, 30, 40)
    forge(store, root, index_more=index_more)
    cold = paged(store)
    assert cold.commands() == wanted
    assert cold.append(command(40)).result == "applied"
    assert shoot(cold).decided == 1
    assert paged(store).commands() == [*wanted, command(40)]


def written(make_store, count=40) -> tuple[Store, list[bytes]]:
    store = make_store(3)
    writer = paged(store, KEPT)
    fill(writer, 0, 30)
    shoot(writer)
    return store, fill(writer, 30, count)


@pytest.mark.parametrize("root", range(3))
@pytest.mark.parametrize("index_more", [0, 5, 1_000_000])
@pytest.mark.parametrize("settings", [KEPT, replace(KEPT, read_only=True)], ids=["writer", "reader"])
def test_a_forged_head_is_dropped_where_no_entry_names_it_and_one_root_is_away(
    make_store, caplog, root, index_more, settings
):
    store, wanted = written(make_store)
    forge(store, root, index_more=index_more)
    store.take_away((root + 1) % 3)
    cold = paged(store, settings)
    assert cold.commands() == wanted
    assert cold.ledger.state.snapshot.no == 1
    assert f"broker {root} (file://{store.root_path(root)}) is left out" in caplog.text
    if not settings.read_only:
        assert cold.append(command(40)).result == "applied"
        assert shoot(cold).decided == 1
        assert paged(store).commands() == [*wanted, command(40)]


def test_a_first_append_is_not_proposed_on_a_forged_state(make_store):
    store, wanted = written(make_store)
    forge(store, 1)
    store.take_away(2)
    cold, seen = paged(store, KEPT), []

    def propose(state: PagedState) -> bytes:
        seen.append(list(state.commands))
        return command(40)

    assert cold.ledger.append(propose, timeout_ms=60_000).result == "applied"
    assert seen and all(commands == wanted for commands in seen)  # asked again once it has claimed


def test_an_append_after_a_first_read_that_failed_is_not_proposed_on_a_forged_state(make_store):
    """The read began with the forged head, and then too few roots answered."""
    store, wanted = written(make_store)
    forge(store, 1)
    store.take_away(2)
    cold = paged(store, replace(KEPT, quorum_timeout_ms=1_000))
    cold.faulty[0].fail_next("get", Fault.FAIL_BEFORE, key_part="/journal/", times=10_000)
    with pytest.raises(RetriableError):
        cold.commands()
    cold.faulty[0].clear()

    def has_appended() -> bool:
        """A busy machine may not read within a second."""
        with suppress(RetriableError):
            assert cold.append(command(40)).result in ("applied", None)
            return True
        return False

    wait_until(has_appended)
    assert paged(store, KEPT).commands() == [*wanted, command(40)]


def test_a_claim_waits_until_the_head_is_proven(make_store):
    """One root alone has the tail, and a forged head whose promise, in a claim, would damage every journal."""
    store, wanted = written(make_store)
    forge(store, 1, promised=Epoch(1 << 50, bytes(16)))
    writer = paged(store, KEPT)
    writer.append(command(40))  # it has claimed now
    for root in (0, 2):
        writer.faulty[root].fail_next("create", Fault.FAIL_BEFORE, key_part="/journal/", times=10_000)
    with pytest.raises(OutcomeUnknownError):
        writer.append(command(41), timeout_ms=2_000)
    store.take_away(2)
    cold = paged(store, KEPT)
    assert cold.commands() == [*wanted, command(40), command(41)]
    assert core_of(cold).prefix.promised().round < 1 << 32


def remove_heads(store: Store, root: int, index_min: int) -> None:
    for path in (store.root_path(root) / f"ledgers/{LEDGER_ID}/snapshots").glob("[0-9]*"):
        if int(path.name[:20]) >= index_min:
            path.unlink()


def test_a_true_head_whose_commit_is_the_unclear_tail_gives_way_to_the_journals(make_store):
    """Roots 0 and 2 have the entry that names it, and root 2 is away."""
    store = make_store(3)
    writer = paged(store, KEPT)
    fill(writer, 0, 30)
    shoot(writer)
    wanted = fill(writer, 30, 40)
    store_and_die(writer)
    wait_until(lambda: heads(store, 0) == heads(store, 1) == heads(store, 2))
    decided = max(heads(store, 0))
    writer.faulty[1].fail_next("create", Fault.FAIL_BEFORE, key_part="/journal/", times=10_000)
    writer.ledger.append(lambda _: keeper_of(writer).rider(), timeout_ms=60_000)
    store_and_die(writer)  # names it as decided
    wait_until(lambda: len(heads(store, 0)) == len(heads(store, 1)) == 3)
    remove_heads(store, 1, decided + 1)
    store.take_away(2)
    reader = paged(store, replace(KEPT, read_only=True))
    assert reader.commands() == wanted
    assert (reader.ledger.is_tail_unclear, reader.ledger.state.snapshot.no) == (True, 1)
    assert paged(store, KEPT).commands() == wanted


def test_an_undecided_head_gives_way_to_the_journals_where_the_decided_one_is_gone(make_store):
    store = make_store(3)
    writer = paged(store, KEPT)
    fill(writer, 0, 30)
    shoot(writer)
    wanted = fill(writer, 30, 40)
    store_and_die(writer)
    wait_until(lambda: len(heads(store, 0)) == len(heads(store, 1)) == 2)
    store.take_away(2)
    (store.root_path(0) / snapshot_key(LEDGER_ID, writer.ledger.state.snapshot.name)).unlink()
    remove_heads(store, 1, 0)
    cold = paged(store, KEPT)
    assert cold.commands() == wanted
    assert core_of(cold).prefix.snapshot_name == ""


def test_a_head_that_one_root_of_two_that_answer_has_still_counts(make_store):
    """It may be the decided one: the third root may have the other copy."""
    store = make_store(3)
    writer = paged(store)
    fill(writer, 0, 30)
    shoot(writer)
    wanted = fill(writer, 30, 60)
    shoot(writer)
    wanted = fill(writer, 60, 64)
    newest_head(store, 0)
    for path in (store.root_path(1) / f"ledgers/{LEDGER_ID}/snapshots").glob("[0-9]*"):
        path.unlink()
    store.take_away(2)
    assert paged(store).commands() == wanted


def test_a_rebuilt_root_gets_no_head_that_one_other_root_alone_has(make_store):
    """Else it would be on a majority, by its copy."""
    store, _ = written(make_store)
    true = newest_head(store, 0)
    forge(store, 0)
    stores = [PosixStore(f"file://{store.root_path(root)}", fsync=False) for root in range(3)]
    store.empty(2)
    copy_snapshots(LEDGER_ID, stores[:2], stores[2], holders_min=2)
    assert heads(store, 2) == heads(store, 1) != heads(store, 0)
    (path,) = (store.root_path(2) / f"ledgers/{LEDGER_ID}/snapshots").glob("[0-9]*")
    assert path.read_bytes() == true
    path.unlink()
    (store.root_path(1) / f"ledgers/{LEDGER_ID}/snapshots" / path.name).unlink()
    copy_snapshots(LEDGER_ID, stores[:2], stores[2], holders_min=2, named={path.name})
    assert path.read_bytes() == true


def test_the_decided_head_is_taken_also_where_one_root_alone_has_it_left(make_store):
    """A newer head that a majority has names it by its hash; to begin with the newer one, undecided, would be wrong."""
    store = make_store(3)
    writer = paged(store, KEPT)
    fill(writer, 0, 30)
    shoot(writer)
    fill(writer, 30, 60)
    shoot(writer)
    decided = writer.ledger.state.snapshot.name
    wanted = fill(writer, 60, 70)
    store_and_die(writer)
    newest_head(store, 0)
    for root in (1, 2):
        (store.root_path(root) / snapshot_key(LEDGER_ID, decided)).unlink()

    def takes_the_decided_one() -> bool:
        """A process that roots 1 and 2 answer first does not see it; what it reads is the same."""
        cold = paged(store)
        assert cold.commands() == wanted
        return core_of(cold).prefix.snapshot_name == decided

    wait_until(takes_the_decided_one)
