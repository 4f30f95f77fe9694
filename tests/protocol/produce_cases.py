"""Cases of Produce and InitProducerId: batches that are refused, and an idempotent producer's sequences."""

from __future__ import annotations

import gzip
import time
from functools import partial
from typing import Any
from uuid import UUID

from kafka.protocol.producer import InitProducerIdRequest

from tests.gateways import Sender, record_batch
from tests.protocol.altered_batch import altered
from tests.protocol.case_run import LATEST, CaseRun, case
from tests.waiting import wait_until
from tests.wire_requests import produce_request

HOUR_MS = 3_600_000
COORDINATOR_LOADS = 14
"""Of a server that has just begun."""
GZIP, UNKNOWN_CODEC, APPEND_TIME, TRANSACTIONAL, CONTROL = 1, 5, 0x08, 0x10, 0x20


def of(sender: Sender, sequence: int, *values: bytes) -> bytes:
    return record_batch(*values or (b"x",), sender=sender, sequence=sequence)


@case
def acks_of_a_produce_request(run: CaseRun) -> None:
    run.create_topic()
    run.produced("all", record_batch(b"a", b"b"))
    run.produced("leader", record_batch(b"c"), acks=1)
    run.produced("two", record_batch(b"d"), acks=2)
    run.produced("minus two", record_batch(b"d"), acks=-2)
    run.connect().send(produce_request({0: record_batch(b"e")}, run.topic, acks=0), 9)
    wait_until(lambda: run.listed(LATEST).offset == 4)
    run.fetched("what is there")


@case
def an_error_closes_a_connection_that_waits_for_no_answer(run: CaseRun) -> None:
    run.create_topic()
    other = run.connect()
    other.send(produce_request({7: record_batch(b"x")}, run.topic, acks=0), 9)
    run.note("unknown partition with acks=0", 0, closed=other.is_closed)


@case
def places_that_do_not_exist(run: CaseRun) -> None:
    run.create_topic()
    run.produced("three partitions", {0: record_batch(b"a"), 1: record_batch(b"b"), -1: record_batch(b"c")})
    run.produced("unknown topic", record_batch(b"x"), topic="none")
    run.produced("no topic name", record_batch(b"x"), topic="a/b")
    run.produced("topic id", record_batch(b"x"), topic_id=run.topic_id, version=13)
    run.produced("unknown topic id", record_batch(b"x"), topic_id=UUID(int=77), version=13)
    run.produced("no topic id", record_batch(b"x"), topic_id=UUID(int=0), version=13)


@case
def number_of_batches(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    run.produced("no bytes", b"")
    run.produced("two batches", record_batch(b"x") * 2)
    run.produced("no batch beside one", {0: b"", 1: record_batch(b"good")})


@case
def formats_of_a_batch(run: CaseRun) -> None:
    run.create_topic()
    for magic in (0, 1, 3, -1):
        run.produced(f"magic {magic}", altered(record_batch(b"x"), magic=magic))
    run.produced("magic 2", record_batch(b"x"))
    run.produced("an older request", record_batch(b"x"), version=3)


@case
def bytes_that_are_damaged(run: CaseRun) -> None:
    run.create_topic(partitions=3)
    batch = record_batch(b"value")
    run.produced("checksum", {0: altered(batch, crc=1), 1: record_batch(b"good")})
    run.produced("a changed byte", batch[:-1] + bytes([batch[-1] ^ 1]))
    run.produced("cut in a record", batch[:-3])
    run.produced("cut in the header", batch[:40])
    run.produced("some bytes", b"bytes")
    run.produced("more bytes after it", {2: batch + b"bytes"})
    run.produced("length is too small", altered(batch, length=20))
    run.produced("length is negative", altered(batch, length=-1))
    run.produced("length is too large", altered(batch, length=1_000))


@case
def counts_that_do_not_fit(run: CaseRun) -> None:
    run.create_topic()
    batch = record_batch(b"a", b"b")
    run.produced("no record", altered(batch, record_count=0, last_offset_delta=-1))
    run.produced("fewer records than there are", altered(batch, record_count=1, last_offset_delta=0))
    run.produced("more records than there are", altered(batch, record_count=3, last_offset_delta=2))
    run.produced("negative count", altered(batch, record_count=-1))
    run.produced("more offsets than records", altered(batch, last_offset_delta=5))
    run.produced("fewer offsets than records", altered(batch, last_offset_delta=0))
    run.produced("its own base offset", altered(batch, base_offset=77))
    run.produced("its own leader epoch", altered(batch, leader_epoch=7))


@case
def attributes_that_clients_may_not_set(run: CaseRun) -> None:
    run.create_topic()
    batch = record_batch(b"x")
    run.produced("control batch", altered(batch, attributes=CONTROL))
    run.produced("control batch of a producer", altered(of(Sender(5), 0), attributes=CONTROL | TRANSACTIONAL))
    run.produced("transaction without a producer", altered(batch, attributes=TRANSACTIONAL))
    run.produced("transaction of a producer that began none", altered(of(Sender(6), 0), attributes=TRANSACTIONAL))
    run.produced("append time", altered(batch, attributes=APPEND_TIME))
    run.produced("unknown codec", altered(batch, attributes=UNKNOWN_CODEC))


@case
def compressed_batches(run: CaseRun) -> None:
    run.create_topic()
    batch = record_batch(b"a", b"b")
    packed = batch[:61] + gzip.compress(batch[61:])
    run.produced("gzip", altered(packed, attributes=GZIP, length=len(packed) - 12))
    broken = batch[:61] + b"no gzip at all"
    run.produced("not what it says", altered(broken, attributes=GZIP, length=len(broken) - 12))
    cut = packed[:-6]
    run.produced("cut", altered(cut, attributes=GZIP, length=len(cut) - 12))
    run.fetched("what is there")


@case
def batches_that_are_too_large(run: CaseRun) -> None:
    run.create_topic(partitions=2, max_message_bytes=1_000)
    largest = record_batch(b"x" * (1_000 - len(record_batch(b"x" * 900)) + 900))
    assert len(largest) == 1_000
    run.produced("as large as allowed", largest)
    run.produced("a byte more", record_batch(b"x" * (1_001 - len(record_batch(b"x" * 900)) + 900)))
    run.produced("beside a small one", {0: record_batch(b"x" * 5_000), 1: record_batch(b"small")})


@case
def times_that_are_out_of_bounds(run: CaseRun) -> None:
    run.create_topic(message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=HOUR_MS)
    now_ms = time.time_ns() // 1_000_000
    run.produced("now", record_batch(b"x", time_ms=now_ms))
    run.produced("too old", record_batch(b"x", time_ms=now_ms - 2 * HOUR_MS))
    run.produced("too new", record_batch(b"x", time_ms=now_ms + 2 * HOUR_MS))
    run.produced("half an hour old", record_batch(b"x", time_ms=now_ms - HOUR_MS // 2))


@case
def times_of_the_append(run: CaseRun) -> None:
    run.create_topic(message_timestamp_type="LogAppendTime")
    run.produced("created at any time", record_batch(b"x", time_ms=7))
    run.produced("says that it is the append time", altered(record_batch(b"x"), attributes=APPEND_TIME))


@case
def keys_of_a_compacted_topic(run: CaseRun) -> None:
    run.create_topic(partitions=2, cleanup_policy="compact")
    run.produced("without key", record_batch(b"x"))
    run.produced("tombstone without key", record_batch(None))
    run.produced("key", record_batch(b"x", key=b"k"))
    run.produced("tombstone", record_batch(None, key=b"k"))
    run.produced("empty key", record_batch(b"x", key=b""))
    run.produced("without key beside a good one", {0: record_batch(b"x"), 1: record_batch(b"x", key=b"k")})
    run.produced("several records without key", record_batch(b"x", b"y", b"z"))


@case
def sequences_of_a_producer(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    sender = Sender(77)
    run.produced("first", of(sender, 0, b"a", b"b"))
    run.produced("first again", of(sender, 0, b"a", b"b"))
    run.produced("second", of(sender, 2, b"c"))
    run.produced("first again after the second", of(sender, 0, b"a", b"b"))
    run.produced("a gap", of(sender, 4, b"e"))
    run.produced("a part of the first", of(sender, 1, b"b"))
    run.produced("the first and more", of(sender, 0, b"a", b"b", b"c"))
    run.produced("third", of(sender, 3, b"d"))
    run.produced("another partition begins at 0", {1: of(sender, 0, b"z")})
    run.produced("another producer between", record_batch(b"other"))
    run.produced("fourth", of(sender, 4, b"e"))
    run.produced("third again", of(sender, 3, b"d"))
    run.fetched("what is there")


@case
def how_many_batches_are_known_again(run: CaseRun) -> None:
    run.create_topic()
    sender = Sender(78)
    for number in range(6):
        run.produced(f"batch {number}", of(sender, number))
    run.produced("the fifth from the end again", of(sender, 1))
    run.produced("the sixth from the end again", of(sender, 0))


@case
def epochs_of_a_producer(run: CaseRun) -> None:
    run.create_topic()
    run.produced("epoch 1", of(Sender(79, 1), 0))
    run.produced("an older epoch", of(Sender(79, 0), 1))
    run.produced("an older epoch from 0", of(Sender(79, 0), 0))
    run.produced("a newer epoch not from 0", of(Sender(79, 2), 1))
    run.produced("the same epoch goes on", of(Sender(79, 1), 1))
    run.produced("a newer epoch from 0", of(Sender(79, 2), 0))
    run.produced("the epoch before", of(Sender(79, 1), 2))
    run.produced("the newer epoch goes on", of(Sender(79, 2), 1))
    run.produced("its first batch again", of(Sender(79, 2), 0))


@case
def producers_that_the_log_does_not_know(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    run.produced("from 0", of(Sender(80), 0))
    run.produced("from 0 in epoch 3", of(Sender(81, 3), 0))
    run.produced("from 5", {1: of(Sender(82), 5)})
    run.produced("from 5 in epoch 3", {1: of(Sender(83, 3), 5)})


@case
def numbers_of_a_producer_that_do_not_fit(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    run.produced("sequence without a producer", altered(record_batch(b"x"), base_sequence=3))
    run.produced("no sequence", altered(of(Sender(84), 0), base_sequence=-1))
    run.produced("no epoch", {1: altered(of(Sender(85), 0), producer_epoch=-1)})


@case
def refused_batches_of_a_producer(run: CaseRun) -> None:
    run.create_topic(max_message_bytes=1_000)
    sender = Sender(86)
    run.produced("first", of(sender, 0))
    run.produced("too large", of(sender, 1, b"x" * 2_000))
    run.produced("the one after it", of(sender, 2))
    run.produced("in its place", of(sender, 1))


@case
def ids_of_producers(run: CaseRun) -> None:
    def asked(version: int, **fields: object) -> Any:
        answer = run.client.ask(InitProducerIdRequest(transaction_timeout_ms=60_000, **fields), version)
        return None if answer.error_code == COORDINATOR_LOADS else answer

    def noted(step: str, version: int = 4, **fields: object) -> tuple[int, int]:
        answer = wait_until(partial(asked, version, **fields), pause_seconds=0.1)
        is_given = answer.producer_id >= 0
        run.note(step, answer.error_code, given=is_given, epoch=answer.producer_epoch)
        return answer.producer_id, answer.producer_epoch

    first, second = noted("new", transactional_id=None), noted("another", transactional_id=None)
    run.note("two clients", 0, same_id=first[0] == second[0])
    again = noted("of a producer that has one", transactional_id=None, producer_id=first[0], producer_epoch=first[1])
    run.note("its id", 0, same=again[0] == first[0])
    noted("in version 0", 0, transactional_id=None)
    noted("empty transactional id", transactional_id="")
