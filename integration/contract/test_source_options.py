"""Section 1 of the connector's contract: options of a read, what is refused and in which words."""

from __future__ import annotations

import pytest

GOOD = {"subscribe": "good"}
JSON = '{"good":{"0":%s,"1":%s}}'

EITHER = {
    "no subscription": ({}, "one of the following options must be specified"),
    "two subscriptions": ({"subscribe": "good", "assign": '{"good":[0]}'}, "only one of the following options can be"),
    "no topics": ({"subscribe": " , "}, "no topics to subscribe"),
    "empty pattern": ({"subscribePattern": " "}, "pattern to subscribe is empty"),
    "assign is no JSON": ({"assign": "good"}, "no topicpartitions to assign"),
    "assign is bad JSON": ({"assign": '{"good":0}'}, "Expected e.g."),
    "missing topic": ({"subscribe": "good,nowhere"}, "nowhere"),
    "missing topic, assigned": ({"assign": '{"nowhere":[0]}'}, "nowhere"),
    "servers, not roots": ({**GOOD, "path": "", "kafka.bootstrap.servers": "h:9092"}, "must be specified"),
    "unreadable start": ({**GOOD, "startingOffsets": "newest"}, "Expected e.g."),
    "partial start": ({**GOOD, "startingOffsets": '{"good":{"0":0}}'}, "must specify all TopicPartitions"),
    "key twice": ({**GOOD, "startingOffsets": '{"good":{"0":0,"0":1,"1":0}}'}, "'0' is given twice"),
    "both forms": ({**GOOD, "startingOffsets": '{"good":"earliest","good":{"0":0}}'}, "both a topic-level offset"),
    "word for another topic": (
        {**GOOD, "startingOffsets": '{"good":"earliest","x":"earliest"}'},
        "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    ),
    "word in a partition": ({**GOOD, "startingOffsets": '{"good":{"0":"earliest","1":0}}'}, "Expected e.g."),
    "unreadable times": ({**GOOD, "startingOffsetsByTimestamp": "5"}, "Expected e.g."),
    "partial times": (
        {**GOOD, "startingOffsetsByTimestamp": '{"good":{"0":5}}'},
        "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    ),
    "unreadable time": ({**GOOD, "startingTimestamp": "soon"}, "Expected a single long value, got soon"),
    "no row that late": (
        {**GOOD, "startingTimestamp": "9999999999999"},
        "No offset matched from request of topic-partition good-0 and timestamp 9999999999999",
    ),
    "strategy": ({**GOOD, "startingOffsetsByTimestampStrategy": "first"}, "error, latest"),
    "failOnDataLoss": ({**GOOD, "failOnDataLoss": "maybe"}, "failOnDataLoss"),
    "includeHeaders": ({**GOOD, "includeHeaders": "2"}, "includeHeaders"),
    "minPartitions text": ({**GOOD, "minPartitions": "a"}, "must be positive"),
    "minPartitions fraction": ({**GOOD, "minPartitions": "1.0"}, "must be positive"),
    "minPartitions 0": ({**GOOD, "minPartitions": "0"}, "must be positive"),
    "maxRecordsPerPartition": ({**GOOD, "maxRecordsPerPartition": "-1"}, "maxrecordsperpartition must be positive"),
    "maxPartitions": ({**GOOD, "maxPartitions": "1", "minPartitions": "2"}, "minPartitions(2) is higher"),
    "maxOffsetsPerTrigger 0": ({**GOOD, "maxOffsetsPerTrigger": "0"}, "must be positive"),
    "minOffsets above maxOffsets": (
        {**GOOD, "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
        "minOffsetPerTrigger(20) is higher than the maxOffsetsPerTrigger(15)",
    ),
    "maxTriggerDelay": ({**GOOD, "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
    "auto.offset.reset": ({**GOOD, "kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported"),
    "enable.auto.commit": ({**GOOD, "kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
    "interceptor.classes": ({**GOOD, "kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
    "key.deserializer": ({**GOOD, "kafka.key.deserializer": "x"}, "'key.deserializer' is not supported"),
    "value.deserializer": ({**GOOD, "kafka.value.deserializer": "x"}, "'value.deserializer' is not supported"),
    "isolation.level": ({**GOOD, "kafka.isolation.level": "none"}, "isolation.level"),
    "misspelled": ({**GOOD, "maxOffsetPerTrigger": "5"}, "Did you mean 'maxOffsetsPerTrigger'"),
}
BATCH = {
    "start at latest": ({**GOOD, "startingOffsets": "Latest"}, "starting offset can't be latest for batch"),
    "start of a partition at latest": (
        {**GOOD, "startingOffsets": JSON % (-1, 0)},
        "startingOffsets for good-0 can't be latest",
    ),
    "end at earliest": ({**GOOD, "endingOffsets": "earliest"}, "ending offset can't be earliest for batch"),
    "end of a partition at earliest": ({**GOOD, "endingOffsets": JSON % (0, -2)}, "good-1 can't be earliest"),
    "different keys": (
        {"subscribe": "good", "startingOffsets": JSON % (0, 0), "endingOffsets": '{"good":{"0":1}}'},
        "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
    ),
    "different keys of times": (
        {
            **GOOD,
            "startingOffsetsByTimestamp": JSON % (0, 0),
            "endingOffsetsByTimestamp": '{"good":{"0":1}}',
        },
        "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
    ),
    "backwards": (
        {**GOOD, "startingOffsets": JSON % (1, 0), "endingOffsets": JSON % (0, 0)},
        "specified start offset 1 is greater than the end offset 0",
    ),
    "backwards in time": (
        {**GOOD, "startingOffsetsByTimestamp": JSON % (9, 0), "endingOffsetsByTimestamp": JSON % (8, 0)},
        "specified start timestamp 9 is greater than the end timestamp 8",
    ),
    "backwards when resolved": (
        {**GOOD, "startingOffsets": JSON % (3, 0), "endingTimestamp": "1"},
        "resolved start offset 3 is greater than the resolved end offset 0",
    ),
    "past the end": ({**GOOD, "endingOffsets": JSON % (99, 0)}, "partition good-0's offset was changed from 99 to 4"),
}
STREAM = {
    "endingOffsets": ({**GOOD, "endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
    "endingOffsetsByTimestamp": (
        {**GOOD, "endingOffsetsByTimestamp": JSON % (1, 1)},
        "ending timestamp not valid in streaming queries",
    ),
    "endingTimestamp": ({**GOOD, "endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
    "past the end": ({**GOOD, "startingOffsets": JSON % (99, 0)}, "partition good-0's offset was changed from 99 to 4"),
}


@pytest.fixture(scope="module")
def good(spark, store):
    topic = store.topic("good", 2)
    spark.call("feed", path=str(store.path), topic=topic, rows={0: 4, 1: 2})
    return topic


def answers_of(spark, store, job, *tables, **more):
    cases = {name: case for table in tables for name, case in table.items()}
    given = [options for options, _ in cases.values()]
    answers = spark.call(job, path=str(store.path), cases=given, timeout_s=300, **more)
    return dict(zip(cases, answers, strict=True))


@pytest.fixture(scope="module")
def batch_answers(spark, store, good):
    return answers_of(spark, store, "batch_refusals", EITHER, BATCH)


@pytest.fixture(scope="module")
def stream_answers(spark, store, good):
    # What schema() refuses needs no query: a stream is started for what only a stream can tell.
    late = {name: EITHER[name] for name in ("missing topic", "partial start", "no row that late", "partial times")}
    return answers_of(spark, store, "stream_refusals", late, STREAM, checkpoint_folder=store.checkpoint("refused"))


@pytest.mark.case("connector-every-refusal-section-1-4-4-4-5")
@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("name", [*EITHER, *BATCH])
def test_a_batch_read_is_refused(batch_answers, name):
    assert (EITHER | BATCH)[name][1] in str(batch_answers[name])


@pytest.mark.case("connector-every-refusal-section-1-4-4-4-5")
@pytest.mark.parametrize("name", ["missing topic", "partial start", "no row that late", "partial times", *STREAM])
def test_a_stream_is_refused(stream_answers, name):
    assert (EITHER | STREAM)[name][1] in str(stream_answers[name])


def load_only(spark, path, options):
    """Load, in both modes, without reading."""
    refused = []
    for reader in (spark.read, spark.readStream):
        try:
            reader.format("replog").options(**options).load(path)
            refused.append(False)
        except Exception:
            refused.append(True)
    return refused


@pytest.mark.case("connector-mistakes-either-mode-refused-load")
def test_what_is_wrong_in_either_mode_is_refused_by_load(spark, store, good):
    from remote import run_in

    for options in ({}, {**GOOD, "minPartitions": "0"}, {**GOOD, "kafka.key.deserializer": "x"}):
        assert run_in(spark, load_only, path=str(store.path), options=options) == [True, True], options
    assert run_in(spark, load_only, path=str(store.path), options={**GOOD, "endingOffsets": "latest"}) == [False, False]


@pytest.mark.case("connector-names-any-case")
def test_names_are_taken_in_any_case(spark, store, good):
    options = {
        "SUBSCRIBE": "good",
        "STARTINGoffsets": "EARLIEST",
        "endingOFFSETS": JSON % (2, -1),
        "MinPartitions": "3",
    }
    answer = spark.call("batch_offsets", path=str(store.path), options=options)
    assert answer["rows"] == {"good-0": [0, 1], "good-1": [0, 1]}


@pytest.mark.case("connector-settings-without-meaning-taken")
def test_a_job_changes_its_format_and_its_address_only(spark, store, good):
    options = {
        "kafka.bootstrap.servers": str(store.path), "subscribe": " good ,good,", "startingOffsets": " earliest ",
        "kafka.group.id": "g", "groupIdPrefix": "p", "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": "1000", "fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "10",
        "kafka.max.poll.records": "9", "kafka.security.protocol": "PLAINTEXT", "maxOffsetsPerTrigger": "1",
        "kafka.acks": "all",
    }  # fmt: skip
    answer = spark.call("batch_offsets", path=None, options=options)
    assert answer["rows"] == {"good-0": [0, 1, 2, 3], "good-1": [0, 1]}


@pytest.mark.case("connector-schema-given-user")
def test_a_schema_of_ones_own_is_refused(spark, store, good):
    from remote import run_in
    from spark_driver import JobFailed

    def own_schema(spark, path):
        spark.read.format("replog").option("subscribe", "good").schema("value binary").load(path).collect()

    with pytest.raises(JobFailed, match="fixed schema"):
        run_in(spark, own_schema, path=str(store.path))


@pytest.mark.case("connector-patterns-search-internal-topics")
def test_patterns_search_and_hide_internal_topics(spark, store):
    for name in ("search-a", "search-b", "other-search", "unlike"):
        store.topic(name, 1, 1)
    spark.call("feed", path=str(store.path), topic="search-a", rows={0: 1})
    spark.call("feed", path=str(store.path), topic="other-search", rows={0: 1})
    answer = spark.call("batch_offsets", path=str(store.path), options={"subscribePattern": "search"})
    assert answer["rows"] == {"search-a-0": [0], "other-search-0": [0]}
    nothing = spark.call("batch_offsets", path=str(store.path), options={"subscribePattern": "^nothing"})
    assert nothing["rows"] == {}


@pytest.mark.case("connector-assign-leaves-out-does-not-exist")
def test_assigned_partitions_that_do_not_exist_are_left_out(spark, store, good):
    answer = spark.call("batch_offsets", path=str(store.path), options={"assign": '{"good":[1,9]}'})
    assert answer["rows"] == {"good-1": [0, 1]}
