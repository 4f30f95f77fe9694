"""Small sends that ride in the ledger's entry: when they do, what a reader sees, and how the ledger gets room again."""

from __future__ import annotations

import threading

import pytest

import spark_replog
from spark_replog.admin.admin import PartitionAdmin
from spark_replog.admin.controller import Controller
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.client.committer import Appender
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import new_id
from spark_replog.log.fold.object_table import INLINE_BYTES_MAX
from spark_replog.maintenance import upkeep
from spark_replog.maintenance.compaction import Compactor
from spark_replog.maintenance.garbage import GarbageCollector
from spark_replog.maintenance.repair import StoreRepair
from spark_replog.maintenance.scrub import scrub
from spark_replog.maintenance.segment_writer import SegmentWriter
from spark_replog.storage.brokers import Broker, BrokerSet
from tests.unit.client.producer_setup import Shop
from tests.unit.write.support import FaultyBrokers
from tests.waiting import wait_until


@pytest.fixture
def shops(tmp_path):
    made = []

    def shop(brokers):
        made.append(Shop(tmp_path / str(len(made)), FaultyBrokers, brokers))
        return made[-1]

    yield shop
    for made_shop in made:
        made_shop.close()


def objects_of(shop):
    return sum(len(shop.brokers.data_keys(broker_id)) for broker_id in shop.brokers.broker_ids)


def state_of(shop, topic="orders"):
    reader = shop.open()
    ledger, _ = reader.topic_state(reader.lookup(topic))
    return ledger.state


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_rows_of_small_sends_are_read_back_and_no_root_has_a_file(shops, brokers, acks):
    shop = shops(brokers)
    shop.topic(partitions=2)
    with shop.producer(inline__max__bytes=4096, acks=acks) as producer:
        for number in range(30):
            producer.send("orders", b"%d" % number, key=b"k", headers=[("h", b"1")], partition=number % 2).result(30)
    assert objects_of(shop) == 0
    assert shop.values() == [b"%d" % number for number in range(0, 30, 2)]
    rows = spark_replog.open(shop.path).topic("orders").scan().to_arrow().to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(30))
    assert {row["key"] for row in rows} == {b"k"}
    assert {row["headers"][0]["value"] for row in shop.rows(partition=1)} == {b"1"}
    with spark_replog.open(shop.path).consumer("orders", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll(20_000)) == 30


def test_sends_that_are_larger_and_all_sends_by_default_on_a_disk_are_objects(shops):
    shop = shops(1)
    shop.topic()
    shop.producer(inline__max__bytes=4096).send("orders", b"v" * 5_000).result(30)
    shop.producer().send("orders", b"v").result(30)
    shop.producer(inline__max__bytes=0).send("orders", b"v").result(30)
    assert objects_of(shop) == 3
    shop.producer(inline__max__bytes=4096).send("orders", b"v" * 3_000).result(30)
    assert objects_of(shop) == 3


@pytest.mark.parametrize(
    ("urls", "is_remote"),
    [
        (("s3://a/b", "gs://a/b"), True),
        (("s3://a/b", "file:///a"), False),
        (("memory://a", "memory://b"), False),
        (("webhdfs://a/b",), True),
    ],
)
def test_the_default_is_for_roots_that_all_are_beyond_a_network(urls, is_remote):
    brokers = tuple(Broker(number, url, None) for number, url in enumerate(urls))
    made = BrokerSet(new_id(), brokers, tuple(range(len(urls))), fsync=True, storage_options={})
    assert made.near_ids.isdisjoint(made.broker_ids) is is_remote


def test_over_a_network_small_sends_are_inline_by_default(shops, monkeypatch):
    monkeypatch.setattr("spark_replog.storage.brokers.is_far", lambda _url: True)
    shop = shops(3)
    shop.topic()
    shop.producer().send("orders", b"v").result(30)
    assert objects_of(shop) == 0


def test_more_bytes_than_an_entry_should_carry_are_refused(shop):
    with pytest.raises(InvalidConfigError) as caught:
        shop.producer(inline__max__bytes=64 * 1024 + 1)
    assert caught.value.code is ErrorCode.REPLOG_INVALID_OPTION


def test_where_a_majority_is_fewer_copies_than_acks_all_requires_rows_are_objects(shops):
    shop = shops(3)
    shop.topic(config={"min.insync.replicas": "3"})
    shop.producer(inline__max__bytes=4096).send("orders", b"v").result(30)
    assert objects_of(shop) == 3


def test_rows_sent_before_acks_all_required_more_copies_are_sent_again_as_an_object(shops):
    shop = shops(3)
    shop.topic()
    producer = shop.producer(inline__max__bytes=4096, metadata__max__age__ms=600_000)
    producer.send("orders", b"0").result(30)
    Controller(shop.open()).alter_config("orders", {"min.insync.replicas": "3"})
    assert producer.send("orders", b"1").result(30).offset == 1
    assert objects_of(shop) == 3 and shop.values() == [b"0", b"1"]


def test_where_a_replica_is_no_metadata_root_rows_are_objects(shops):
    shop = shops(4)
    shop.topic(partitions=4, replicas=2)
    producer = shop.producer(inline__max__bytes=4096)
    replicas = [state.replicas for state in state_of(shop).topics[shop.cluster.lookup("orders").topic_id].partitions]
    for number in range(4):
        before = objects_of(shop)
        producer.send("orders", b"v", partition=number).result(30)
        assert (objects_of(shop) == before) == (3 not in replicas[number]), replicas[number]


def test_a_transaction_writes_objects(shop):
    """Its rows wait for its end; then one entry would carry all of them."""
    shop.topic()
    producer = shop.producer(transactional__id="t", inline__max__bytes=4096)
    producer.begin_transaction()
    producer.send("orders", b"v")
    producer.commit_transaction()
    assert objects_of(shop) == 1 and shop.values() == [b"v"]


def test_a_ledger_without_room_takes_objects_until_upkeep_has_moved_rows(shops, monkeypatch):
    monkeypatch.setattr(upkeep, "INLINE_ROOM_BYTES_MIN", 0)
    shop = shops(3)
    shop.topic()
    producer = shop.producer(inline__max__bytes=4096)
    sent = 0

    def send_until(is_inline):
        nonlocal sent
        for _ in range(200):
            before = objects_of(shop)
            producer.send("orders", b"%d " % sent + b"v" * 3_000).result(30)
            sent += 1
            if (objects_of(shop) == before) == is_inline:
                return
        raise AssertionError(sent)

    send_until(is_inline=False)
    room = state_of(shop).inline_room_bytes
    assert 0 <= room < 4096 and sent > 50
    ledger = shop.cluster.topic_ledger(shop.cluster.lookup("orders").ledger_id)
    report = Compactor(shop.cluster).move_inline(ledger)
    assert report.run_count == 1 and report.sections_after == 1
    assert state_of(shop).inline_room_bytes == INLINE_BYTES_MAX
    send_until(is_inline=True)
    assert [value.split()[0] for value in shop.values()] == [b"%d" % number for number in range(sent)]


def test_sends_that_wait_for_one_entry_do_not_pass_the_room_together(shops, monkeypatch):
    monkeypatch.setattr(upkeep, "INLINE_ROOM_BYTES_MIN", 0)
    shop = shops(1)
    shop.topic(partitions=100)
    released, append = threading.Event(), Appender.append

    def held(*args, **how):
        assert released.wait(60)
        return append(*args, **how)

    monkeypatch.setattr(Appender, "append", held)
    with shop.producer(inline__max__bytes=4096, linger__ms=0) as producer:
        handles = []
        while len(handles) < 100 and not objects_of(shop):
            handles.append(producer.send("orders", b"v" * 3_000, partition=len(handles)))
            wait_until(lambda: producer.metrics()["requests-in-flight"] >= len(handles))
        released.set()
        assert {handle.result(30).offset for handle in handles} == {0}
    inline_count = len(handles) - objects_of(shop)  # the loop may send some more before an object can be seen
    assert 50 < inline_count <= INLINE_BYTES_MAX // 3_000 and inline_count < len(handles)


def test_commits_move_rows_when_half_of_the_room_is_gone(shops):
    shop = shops(1)
    shop.topic(partitions=2)
    with shop.producer(inline__max__bytes=4096) as producer:
        for number in range(120):
            producer.send("orders", b"%d " % number + b"v" * 3_000, partition=number % 2).result(30)
        wait_until(lambda: state_of(shop).inline_room_bytes >= INLINE_BYTES_MAX // 2)
    assert 2 <= objects_of(shop) <= 20
    for partition in (0, 1):
        numbers = [int(value.split()[0]) for value in shop.values(partition=partition)]
        assert numbers == list(range(partition, 120, 2))


def test_a_root_that_takes_no_copies_gets_no_others_one_more_each_second(shops, monkeypatch):
    monkeypatch.setattr(upkeep, "INLINE_ROOM_BYTES_MIN", INLINE_BYTES_MAX)
    monkeypatch.setattr(upkeep, "MOVE_PAUSE_MS", 0)
    shop = shops(3)
    shop.topic()
    tried = []

    def full(self, run, *given):
        tried.append(run)
        raise ReplogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")

    monkeypatch.setattr(SegmentWriter, "_put", full)
    monkeypatch.setattr(upkeep.Upkeep, "start", lambda *_: None)
    with shop.producer(inline__max__bytes=4096) as producer:
        for number in range(12):
            producer.send("orders", b"%d" % number).result(30)
    ledger = shop.cluster.topic_ledger(shop.cluster.lookup("orders").ledger_id)
    ledger.refresh()
    moving = upkeep.Upkeep(shop.cluster)
    for _ in range(3):
        moving._move_inline(ledger)
    assert len(tried) == 1


def test_few_rows_of_many_partitions_stay_where_they_are(shops):
    """To move them would cost more calls than their objects had."""
    shop = shops(1)
    shop.topic(partitions=30)
    with shop.producer(inline__max__bytes=4096) as producer:
        for number in range(60):
            producer.send("orders", b"v" * 2_500, partition=number % 30).result(30)
    ledger = shop.cluster.topic_ledger(shop.cluster.lookup("orders").ledger_id)
    ledger.refresh()
    assert Compactor(shop.cluster).move_inline(ledger).run_count == 0


def test_two_that_move_rows_at_once_are_harmless(shops):
    shop = shops(3)
    shop.topic()
    with shop.producer(inline__max__bytes=4096) as producer:
        for number in range(40):
            producer.send("orders", b"%d" % number).result(30)
    first, second = shop.open(), shop.open()
    ledgers = [cluster.topic_ledger(cluster.lookup("orders").ledger_id) for cluster in (first, second)]
    for topic_ledger in ledgers:
        topic_ledger.refresh()
    reports = [Compactor(cluster).move_inline(ledger) for cluster, ledger in zip((first, second), ledgers, strict=True)]
    assert [move.run_count for move in reports] == [1, 0] or [move.lost_race_count for move in reports] == [0, 1]
    assert shop.values() == [b"%d" % number for number in range(40)]


def test_a_reader_with_an_old_plan_reads_rows_that_were_moved_and_trimmed_since(shops):
    shop = shops(1)
    shop.topic()
    with shop.producer(inline__max__bytes=4096) as producer:
        for number in range(30):
            producer.send("orders", b"%d" % number).result(30)
    scan = spark_replog.open(shop.path).topic("orders").scan()
    batches = scan.to_batches()
    ledger = shop.cluster.topic_ledger(shop.cluster.lookup("orders").ledger_id)
    assert Compactor(shop.cluster).move_inline(ledger).run_count == 1
    assert sum(batch.num_rows for batch in batches) == 30


def test_a_root_that_lost_its_disk_is_rebuilt_and_the_rows_are_there(shops):
    shop = shops(3)
    shop.topic()
    with shop.producer(inline__max__bytes=4096) as producer:
        for number in range(12):
            producer.send("orders", b"%d" % number).result(30)
    store = shop.brokers.faulty[1]
    for info in list(store.list_keys("")):
        store.delete(info.key)
    StoreRepair(shop.open()).run()
    report = scrub(shop.open(), deep=True)
    assert (report.findings, report.object_count, report.lost_count) == ([], 0, 0)
    assert shop.values() == [b"%d" % number for number in range(12)]


def test_new_replicas_of_a_partition_wait_for_no_copy(shops):
    shop = shops(3)
    shop.topic(replicas=1)
    with shop.producer(inline__max__bytes=4096) as producer:
        producer.send("orders", b"v").result(30)
    (before,) = state_of(shop).topics[shop.cluster.lookup("orders").topic_id].partitions
    target = tuple(sorted({0, 1, 2} - set(before.replicas)))
    cluster = shop.open()
    PartitionAdmin(cluster).reassign("orders", {0: target})
    assert CoordinatorLoop(cluster).run_once().reassigned_count == 1
    (after,) = state_of(shop).topics[shop.cluster.lookup("orders").topic_id].partitions
    assert set(after.replicas) == set(after.isr) == set(target) and objects_of(shop) == 0
    assert shop.values() == [b"v"]


def test_garbage_collection_finds_nothing_to_delete(shops):
    shop = shops(1)
    shop.topic()
    with shop.producer(inline__max__bytes=4096) as producer:
        producer.send("orders", b"v").result(30)
    cluster = shop.open()
    ledger = cluster.topic_ledger(cluster.lookup("orders").ledger_id)
    ledger.refresh()
    assert list(GarbageCollector(cluster, is_dry_run=True).find(ledger, 0, {})) == []
