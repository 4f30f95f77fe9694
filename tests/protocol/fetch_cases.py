"""Cases of Fetch, ListOffsets and OffsetForLeaderEpoch: what may be read, how much of it, and when."""

from __future__ import annotations

from uuid import UUID

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest

from tests.gateways import record_batch, records_of
from tests.protocol.case_run import LATEST, CaseRun, case
from tests.wire_requests import fetch_request, produce_request

EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -3, -4, -5
LONG_MS = 100_000
"""No answer takes so long: an answer that comes at all did not wait for it."""


def send(run: CaseRun, *values: bytes, partition: int = 0, time_ms: int = 1_000) -> None:
    """Send each value as a batch."""
    for value in values:
        answer = run.client.ask(produce_request({partition: record_batch(value, time_ms=time_ms)}, run.topic), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def leader_epoch(run: CaseRun) -> int:
    epoch: int = run.listed(LATEST).leader_epoch
    return epoch


def delete_before(run: CaseRun, offset: int) -> None:
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    parts = [topic.DeleteRecordsPartition(partition_index=0, offset=offset)]
    request = DeleteRecordsRequest(topics=[topic(name=run.topic, partitions=parts)], timeout_ms=30_000)
    part = run.client.ask(request, 2).topics[0].partitions[0]
    run.note("records deleted", part.error_code, low_watermark=part.low_watermark)


@case
def offsets_that_can_be_fetched(run: CaseRun) -> None:
    run.create_topic()
    run.fetched("an empty partition")
    send(run, b"a", b"b", b"c")
    for offset in range(5):
        run.fetched(f"offset {offset} of 3", offset)
    run.fetched("a negative offset", -1)
    run.fetched("far beyond", 1 << 40)
    delete_before(run, 2)
    run.fetched("below the start of the log", 1)
    run.fetched("the start of the log", 2)


@case
def places_that_cannot_be_fetched(run: CaseRun) -> None:
    run.create_topic()
    send(run, b"a")
    run.fetched("unknown topic", topic="none")
    run.fetched("unknown partition", partition=7)
    run.fetched("negative partition", partition=-1)
    run.fetched("topic id", topic_id=run.topic_id, version=16)
    run.fetched("unknown topic id", topic_id=UUID(int=77), version=16)
    run.fetched("no topic id", topic_id=UUID(int=0), version=16)


@case
def the_first_batch_comes_whatever_its_size(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    send(run, b"x" * 5_000)
    send(run, b"y" * 3_000, partition=1)
    run.fetched("a byte of the partition", bytes_max=1)
    run.fetched("a byte of the request", bytes_max=1 << 20, request_bytes_max=1)
    run.fetched("no byte", bytes_max=0)
    request = fetch_request(topic=run.topic, partitions={0: 0, 1: 0}, bytes_max=1)
    for part in run.client.ask(request, 12).responses[0].partitions:
        run.note_fetched(f"two partitions, {part.partition_index}", part, 0)
    request = fetch_request(topic=run.topic, partitions={1: 0, 0: 0}, request_bytes_max=100)
    for part in run.client.ask(request, 12).responses[0].partitions:
        run.note_fetched(f"the other one first, {part.partition_index}", part, 0)


@case
def bytes_of_an_answer(run: CaseRun) -> None:
    run.create_topic()
    send(run, *[b"%d" % number * 1_000 for number in range(4)])
    for bytes_max in (1_500, 2_500, 100_000):
        part = run.client.ask(fetch_request(topic=run.topic, bytes_max=bytes_max), 12).responses[0].partitions[0]
        offsets = [offset for offset, _, _ in records_of(part.records)]
        is_within = len(part.records) <= max(bytes_max, 1_100)
        run.note(f"at most {bytes_max} bytes", part.error_code, first=offsets[0], is_within=is_within)
    run.note("all of it", 0, offsets=offsets)


@case
def waits_of_a_fetch(run: CaseRun) -> None:
    run.create_topic()
    run.fetched("no row within the time", wait_ms=1, min_bytes=1)
    run.fetched("no byte is waited for", wait_ms=LONG_MS, min_bytes=0)
    run.fetched("an error is not waited for", 5, wait_ms=LONG_MS)
    other = run.connect()
    other.send(fetch_request(topic=run.topic, wait_ms=LONG_MS), 12)
    send(run, b"first")
    run.note_fetched("the first row ends it", other.receive().responses[0].partitions[0], 0)
    run.fetched("less than the bytes waited for", wait_ms=1, min_bytes=10_000)
    other.send(fetch_request(1, topic=run.topic, wait_ms=LONG_MS, min_bytes=5_000), 12)
    send(run, b"small", b"x" * 9_000)
    run.note_fetched("enough bytes end it", other.receive().responses[0].partitions[0], 1)


@case
def leader_epochs_of_a_fetch(run: CaseRun) -> None:
    run.create_topic()
    send(run, b"a")
    epoch = leader_epoch(run)
    run.fetched("this epoch", epoch=epoch)
    run.fetched("a later epoch", epoch=epoch + 1)
    answer = run.listed(LATEST, epoch=epoch + 1)
    run.note("offsets in a later epoch", answer.error_code, offset=answer.offset)

    def diverging(step: str, offset: int, last_epoch: int) -> None:
        request = fetch_request(offset, topic=run.topic, epoch=epoch)
        request.topics[0].partitions[0].last_fetched_epoch = last_epoch
        part = run.client.ask(request, 12).responses[0].partitions[0]
        end = part.diverging_epoch
        told = None if end is None or end.end_offset < 0 else end.end_offset
        run.note(step, part.error_code, diverges_at=told, records=len(records_of(part.records)))

    diverging("read before in this epoch", 0, epoch)
    diverging("read further than the log is", 1, epoch)
    diverging("read in an epoch that is to come", 1, epoch + 5)


@case
def sessions_of_fetches(run: CaseRun) -> None:
    run.create_topic()
    send(run, b"a")

    def asked(step: str, session_id: int, session_epoch: int) -> None:
        request = fetch_request(topic=run.topic)
        request.session_id, request.session_epoch = session_id, session_epoch
        answer = run.client.ask(request, 12)
        count = sum(len(topic.partitions) for topic in answer.responses)
        run.note(step, answer.error_code, has_session=answer.session_id != 0, partitions=count)

    asked("no session", 0, -1)
    asked("a new session", 0, 0)
    asked("a session that is not there", 12_345, 3)
    asked("an end of one that is not there", 12_345, -1)
    asked("a new one in place of one that is not there", 12_345, 0)


@case
def levels_of_isolation(run: CaseRun) -> None:
    run.create_topic()
    send(run, b"a")
    for level in (0, 1):
        request = fetch_request(topic=run.topic)
        request.isolation_level = level
        part = run.client.ask(request, 12).responses[0].partitions[0]
        run.note_fetched(f"fetch in level {level}", part, 0)
        aborted = part.aborted_transactions or []
        run.note(f"end in level {level}", 0, last_stable=part.last_stable_offset, aborted=aborted)


@case
def offsets_of_ends_and_times(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    for time_ms in (1_000, 3_000, 2_000, 3_000):
        send(run, b"x", time_ms=time_ms)
    epoch = leader_epoch(run)

    def listed(step: str, time_ms: int, **options: int) -> None:
        answer = run.listed(time_ms, version=9, **options)
        has_epoch = answer.leader_epoch == epoch
        run.note(step, answer.error_code, offset=answer.offset, time=answer.timestamp, has_epoch=has_epoch)

    names = {"latest": LATEST, "earliest": EARLIEST, "newest time": MAX_TIMESTAMP, "earliest local": EARLIEST_LOCAL,
             "latest tiered": LATEST_TIERED}  # fmt: skip
    for name, time_ms in names.items():
        listed(name, time_ms)
    for name, time_ms in names.items():
        listed(f"{name}, empty partition", time_ms, partition=1)
    for time_ms in (0, 1_000, 1_500, 2_500, 3_000, 3_001):
        listed(f"time {time_ms}", time_ms)
    listed("time 5, empty partition", 5, partition=1)
    listed("minus 100", -100)
    listed("unknown partition", LATEST, partition=7)
    answer = run.listed(LATEST, topic="none")
    run.note("unknown topic", answer.error_code, offset=answer.offset)
    delete_before(run, 2)
    listed("earliest after a deletion", EARLIEST)
    listed("time 0 after a deletion", 0)
    listed("newest time after a deletion", MAX_TIMESTAMP)


@case
def a_partition_that_is_asked_for_twice(run: CaseRun) -> None:
    run.create_topic()
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = topic.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = ListOffsetsRequest(replica_id=-1, topics=[topic(name=run.topic, partitions=[part, part])])
    for number, answer in enumerate(run.client.ask(request, 8).topics[0].partitions):
        run.note(f"offsets, answer {number}", answer.error_code, offset=answer.offset)
    fetched = FetchRequest.FetchTopic
    parts = [fetched.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)] * 2
    both = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1_000, topics=[fetched(topic=run.topic, partitions=parts)]
    )
    for number, part in enumerate(run.client.ask(both, 12).responses[0].partitions):
        run.note_fetched(f"fetch, answer {number}", part, 0)


@case
def ends_of_leader_epochs(run: CaseRun) -> None:
    run.create_topic()
    send(run, b"a", b"b")
    epoch = leader_epoch(run)

    def end(step: str, asked: int, current: int = -1, topic: str = "", partition: int = 0) -> None:
        of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = of_topic.OffsetForLeaderPartition(partition=partition, leader_epoch=asked, current_leader_epoch=current)
        topics = [of_topic(topic=topic or run.topic, partitions=[part])]
        answer = run.client.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), 4).topics[0].partitions[0]
        told = "this" if answer.leader_epoch == epoch else answer.leader_epoch
        run.note(step, answer.error_code, epoch=told, end=answer.end_offset)

    end("this epoch", epoch)
    end("an epoch to come", epoch + 5)
    end("with a later current epoch", epoch, epoch + 1)
    end("unknown topic", epoch, topic="none")
    end("unknown partition", epoch, partition=7)
