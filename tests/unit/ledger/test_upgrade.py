"""A next release raises a ledger's feature level: this one stops there, whatever it knew of the ledger before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog import Consumer, Producer
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import UnsupportedFormatError
from spark_replog.ledger.record import TAG_SIZE_BYTES, decode_record
from spark_replog.log.codec.commands import decode_commands, encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.entry_fold import EntryFold
from spark_replog.log.model import ClusterConfigSet, FeatureSet
from tests.unit.ledger.conftest import LEDGER_ID
from tests.unit.ledger.snapshot_setup import BY_HAND, shoot

NEXT_LEVEL = EntryFold.newest_level + 1


class NextState(ClusterLedgerState):
    """Of a release with other rules of judging."""

    newest_level = own_level = NEXT_LEVEL


def put(process, first, end):
    for number in range(first, end):
        command = encode_command(ClusterConfigSet(((f"k{number}", "v"),)))
        process.ledger.append(lambda _, command=command: command, timeout_ms=60_000)


def config_of(process):
    return set(process.ledger.refresh().config)


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("older_count", [0, 1, 40])
@pytest.mark.parametrize("root_count", [1, 3])
def test_a_process_of_an_older_release_that_slept_over_every_cut_can_do_no_harm(make_store, root_count, older_count):
    store = make_store(root_count)
    sleepers = [store.process(BY_HAND, ClusterLedgerState()) for _ in range(2)]
    config_of(sleepers[0])
    put(sleepers[0], 0, older_count)
    config_of(sleepers[1])
    writer = store.process(replace(BY_HAND, kept_record_count=0), NextState())
    for round_ in range(4):
        put(writer, older_count + 30 * round_, older_count + 30 * (round_ + 1))
        shoot(writer)
        writer.ledger.collect()
    kept = [int(path.name) for path in store.journal(0)]
    assert kept[-1] - len(kept) > 60, "journals were cut all the same"
    for older in (*sleepers, store.process(BY_HAND, ClusterLedgerState())):
        before = older.ledger.state.applied_index
        with pytest.raises(UnsupportedFormatError, match=f"feature level {NEXT_LEVEL}.*Upgrade"):
            put(older, 10_000, 10_001)
        with pytest.raises(UnsupportedFormatError, match=f"feature level {NEXT_LEVEL}.*Upgrade"):
            config_of(older)
        assert older.ledger.state.applied_index == before
    assert not list(store.root_path(0).glob(f"ledgers/{LEDGER_ID}/**/out"))
    wanted = {f"k{number}" for number in range(older_count + 120)}
    assert config_of(writer) == config_of(store.process(BY_HAND, NextState())) == wanted
    put(writer, 20_000, 20_001)
    assert config_of(writer) == wanted | {"k20000"}


def test_the_next_release_raises_the_level_in_its_first_entry_and_never_again(make_store):
    store = make_store(1)
    put(store.process(BY_HAND, ClusterLedgerState()), 0, 3)
    for first in (3, 5):  # two processes, one after the other
        put(store.process(BY_HAND, NextState()), first, first + 2)
    payloads = [decode_record(path.read_bytes(), root="", position=0).payload for path in store.journal(0)]
    entries = [decode_commands(payload[TAG_SIZE_BYTES:]) for payload in payloads]
    assert [FeatureSet(NEXT_LEVEL) in commands for commands in entries] == [False] * 3 + [True] + [False] * 3


@pytest.mark.parametrize("is_open", [False, True], ids=["begins later", "was open before"])
def test_clients_of_the_older_release_stop_and_say_what_to_do(tmp_path, monkeypatch, is_open):
    path = str(tmp_path / "store")
    init_cluster(path, 1, {}, fsync=False)
    older = Cluster.open(path)  # one cluster is one process
    Controller(older).create_topic("orders", 1)
    with Producer(older) as producer:
        assert producer.send("orders", b"1").result(20).offset == 0
    newer = Cluster.open(path)
    with monkeypatch.context() as patch:
        [patch.setattr(EntryFold, name, NEXT_LEVEL) for name in ("newest_level", "own_level")]
        with Producer(newer) as producer:
            assert producer.send("orders", b"2").result(20).offset == 1
    older = older if is_open else Cluster.open(path)
    with Producer(older) as producer, pytest.raises(UnsupportedFormatError, match="Upgrade"):
        producer.send("orders", b"3").result(20)
    consumer = Consumer(older, "orders", auto_offset_reset="earliest")
    with consumer, pytest.raises(UnsupportedFormatError, match="Upgrade"):
        consumer.poll(20)
    with monkeypatch.context() as patch:
        [patch.setattr(EntryFold, name, NEXT_LEVEL) for name in ("newest_level", "own_level")]
        with Consumer(Cluster.open(path), "orders", auto_offset_reset="earliest") as consumer:
            assert consumer.to_arrow().column("value").to_pylist() == [b"1", b"2"]
