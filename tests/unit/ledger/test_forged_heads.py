"""A head that one root alone has: another state, whole and with the checksums and names that fit it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.snapshot_files import decode_snapshot, encode_snapshot, snapshot_name
from spark_replog.snapshot import DecidedSnapshot, hash_of
from spark_replog.storage.paths import page_key, snapshot_key
from tests.unit.ledger.conftest import LEDGER_ID, Store
from tests.unit.ledger.snapshot_setup import KEPT, command, core_of, fill, paged, shoot, store_and_die
from tests.waiting import wait_until

GENESIS = genesis_hash(LEDGER_ID)


def newest_head(store: Store, root: int) -> bytes:
    """Return the newest head of a root, once each root has it."""
    folders = [store.root_path(each) / f"ledgers/{LEDGER_ID}/snapshots" for each in range(store.root_count)]
    name = sorted(path.name for path in folders[root].glob("[0-9]*"))[-1]
    wait_until(lambda: all((each / name).exists() for each in folders))
    return (folders[root] / name).read_bytes()


def forge(store: Store, root: int, *, index_more: int = 0) -> None:
    """Put two heads and a page on one root: a state without the rows, and a newer head that calls it decided."""
    folder = store.root_path(root) / f"ledgers/{LEDGER_ID}"
    true = decode_snapshot(newest_head(store, root), genesis=GENESIS, root_count=store.root_count, where="it")
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
