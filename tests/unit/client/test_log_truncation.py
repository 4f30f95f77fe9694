"""An unclean election cuts rows that a consumer has read, and their offsets are given again (KIP-320)."""

from __future__ import annotations

import logging

import pytest

from spark_replog import Consumer
from spark_replog.admin.admin import BrokerAdmin, PartitionAdmin
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import TopicPartition
from tests.unit.client.consumer_setup import rows

pytestmark = pytest.mark.case("server-4-11-end-offset-epoch")

P0 = TopicPartition("orders", 0)
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


def values(records):
    return [record.value for record in records]


@pytest.fixture
def lonely(store3):
    """Two rows that all replicas hold, and three that only broker 0 does."""
    store3.create("orders", 1, **UNCLEAN)
    store3.write("orders", rows(2, 0), partition=0)
    brokers = BrokerAdmin(store3.cluster)
    for broker_id in (1, 2):
        brokers.fence(broker_id)
    store3.write("orders", rows(3, 2), partition=0)
    return store3


def elect_another(store):
    """Broker 0 is gone for good; 1 leads, with the first two rows."""
    brokers = BrokerAdmin(store.cluster)
    brokers.fence(0)
    for broker_id in (1, 2):
        brokers.unfence(broker_id)
    (won,) = PartitionAdmin(store.cluster).elect_leaders("orders", is_unclean=True)
    assert won.error is None, won.error


def reader(store, policy):
    made = Consumer(store.cluster, auto_offset_reset=policy)
    made.assign([P0])
    made.seek(P0, 0)
    return made


def as_records(consumer):
    return values(consumer.poll(100))


def as_arrow(consumer):
    return consumer.to_arrow()["value"].to_pylist()


@pytest.mark.parametrize("read_first", [as_records, as_arrow])
def test_as_arrow_a_reader_goes_on_from_the_cut_too(lonely, read_first, caplog):
    with reader(lonely, "latest") as consumer:
        assert read_first(consumer) == rows(5, 0)
        elect_another(lonely)
        lonely.write("orders", rows(6, 100), partition=0)
        assert as_arrow(consumer) == rows(6, 100)
        assert "was cut back to offset 2" in caplog.text
        assert as_arrow(consumer) == []


def test_as_arrow_a_position_out_of_range_is_never_silent(lonely, caplog):
    with reader(lonely, "earliest") as consumer:
        consumer.seek(P0, 99)
        assert as_arrow(consumer) == rows(5, 0)
        assert "orders-0 has offsets 0 to 5, not 99" in caplog.text
    with reader(lonely, "none") as consumer:
        consumer.seek(P0, 99)
        with pytest.raises(ReplogError, match=r"OFFSET_OUT_OF_RANGE.*orders-0\D+99\D+0\D+5"):
            as_arrow(consumer)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_reader_goes_on_where_the_log_was_cut_and_misses_no_row_of_the_new_leader(lonely, policy, caplog):
    with reader(lonely, policy) as consumer:
        assert len(consumer.poll(100)) == 5
        elect_another(lonely)
        lonely.write("orders", rows(6, 100), partition=0)
        with caplog.at_level(logging.WARNING):
            records = consumer.poll(100)
        assert values(records) == rows(6, 100)
        assert [record.offset for record in records] == [2, 3, 4, 5, 6, 7]
        assert "was cut back to offset 2" in caplog.text
        consumer.seek(P0, 99)  # out of range for another reason: the policy says where to go, not the cut
        consumer.poll(100, max_records=0)
        assert consumer.position(P0) == (0 if policy == "earliest" else 8)


def test_without_a_policy_it_is_an_error_that_names_the_cut(lonely):
    with reader(lonely, "none") as consumer:
        consumer.poll(100)
        elect_another(lonely)
        lonely.write("orders", rows(6, 100), partition=0)
        with pytest.raises(ReplogError, match=r"\b2\b.*unclean") as raised:
            consumer.poll(100)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_position_that_was_sought_is_taken_as_it_is(lonely, caplog):
    with reader(lonely, "earliest") as consumer:
        consumer.poll(100)
        elect_another(lonely)
        lonely.write("orders", rows(6, 100), partition=0)
        consumer.seek(P0, 4)
        assert [record.offset for record in consumer.poll(100)] == [4, 5, 6, 7]
        assert "cut back" not in caplog.text


def test_a_leader_change_that_cut_nothing_is_not_noticed(store3, caplog):
    store3.create("orders", 1, **UNCLEAN)
    store3.write("orders", rows(2, 0), partition=0)
    with reader(store3, "none") as consumer:
        assert len(consumer.poll(100)) == 2
        BrokerAdmin(store3.cluster).fence(0)
        store3.write("orders", rows(2, 2), partition=0)
        assert [record.offset for record in consumer.poll(100)] == [2, 3]
