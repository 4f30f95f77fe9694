"""What a user may write in option(...), and what the refusals say."""

from __future__ import annotations

import pickle

import pytest

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import InvalidConfigError, NotFoundError
from spark_replog.log.model import ResetPolicy
from spark_replog.logs import Once
from spark_replog.spark import options
from spark_replog.spark.options import parse_schema_options, parse_sink_options, parse_source_options

pytestmark = pytest.mark.case("connector-several-mistakes-same-one-told")

READ = {"path": "/s", "subscribe": "a"}
WRITE = {"path": "/s", "topic": "a"}


def read(streaming=True, **options):
    return parse_source_options({**READ, **options}, streaming=streaming)


def write(streaming=True, **options):
    return parse_sink_options({**WRITE, **options}, streaming=streaming)


def check_schema_options(given):
    return "headers" in parse_schema_options(given).form.kafka_names


def test_defaults_of_a_stream_and_a_batch():
    assert read().starting.default == -1
    assert read(streaming=False).starting.default == -2
    assert read().fail_on_data_loss is True
    assert not read().limits.is_set
    assert read().limits.delay_max_ms == 900_000


def test_names_are_compared_in_lower_case():
    options = parse_source_options(
        {"path": "/s", "SUBSCRIBE": "b, a,,b", "MaxOffsetsPerTrigger": "5", "includeheaders": "TRUE"},
        streaming=True,
    )
    assert options.subscription.topics == ("b", "a")
    assert (options.limits.rows_max, options.form.include_headers) == (5, True)


def test_options_travel_to_tasks():
    assert pickle.loads(pickle.dumps(read())) == read()
    assert pickle.loads(pickle.dumps(write())) == write()


def test_several_paths_are_one_store():
    options = parse_source_options({"paths": '["/a","/b"]', "subscribe": "a"}, streaming=True)
    assert options.store.path == "/a,/b"


def test_storage_options_lose_their_prefix():
    assert read(**{"storage.endpoint_url": "http://x"}).store.storage == (("endpoint_url", "http://x"),)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxoffsetspertriger": "1"}, r"REPLOG_UNKNOWN_OPTION.*'maxOffsetsPerTrigger'"),
        ({"kafka.auto.offset.reset": "latest"}, r"kafka option 'auto.offset.reset' is not supported.*startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, r"kafka option 'enable.auto.commit' is not supported"),
        ({"kafka.value.deserializer": "x"}, r"kafka option 'value.deserializer' is not supported.*Cast"),
        ({"kafka.startingoffsets": "earliest"}, r"REPLOG_UNKNOWN_OPTION.*Write 'startingOffsets'"),
        ({"storage.fsync": "false"}, r"REPLOG_INVALID_OPTION.*replog init"),
        ({"assign": '{"a":[0]}'}, r"REPLOG_CONFLICTING_OPTIONS.*only one"),
        ({"subscribe": " , "}, r"REPLOG_INVALID_OPTION.*no topics"),
        ({"endingoffsets": "latest"}, r"REPLOG_INVALID_OPTION.*batch"),
        ({"failondataloss": "maybe"}, r"REPLOG_INVALID_OPTION.*true, false"),
        ({"maxoffsetspertrigger": "0"}, r"REPLOG_INVALID_OPTION.*maxOffsetsPerTrigger"),
        ({"minpartitions": "1.0"}, r"REPLOG_INVALID_OPTION.*minPartitions"),
        ({"path": " "}, r"REPLOG_MISSING_OPTION.*no store"),
    ],
)
def test_source_refuses(options, text):
    with pytest.raises(InvalidConfigError, match=text):
        read(**options)


def test_source_needs_a_subscription():
    with pytest.raises(InvalidConfigError, match=r"REPLOG_MISSING_OPTION.*one of the following"):
        parse_source_options({"path": "/s"}, streaming=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingoffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingoffsetsbytimestamp": "x"}, "ending timestamp not valid in streaming queries"),
        ({"endingtimestamp": "5"}, "ending timestamp not valid in streaming queries"),
        ({"endingoffsets": "x", "maxoffsetspertrigger": "0"}, "ending offset not valid"),
        ({"startingtimestamp": "soon"}, "Expected a single long value, got soon"),
        ({"startingoffsetsbytimestamp": "[]"}, r"Expected e\.g\."),
        ({"startingoffsetsbytimestampstrategy": "newest"}, "error, latest"),
        ({"minoffsetspertrigger": "20", "maxoffsetspertrigger": "15"},
         r"minOffsetPerTrigger\(20\) is higher than the maxOffsetsPerTrigger\(15\)"),
        ({"maxtriggerdelay": "soon", "minoffsetspertrigger": "1"}, "maxTriggerDelay 'soon'"),
        ({"maxoffsetspertrigger": "a"}, 'maxOffsetsPerTrigger: For input string: "a"'),
        ({"minoffsetspertrigger": "-1"}, "must be positive"),
        ({"maxbytespertrigger": "0"}, "must be positive"),
        ({"minpartitions": "a"}, "must be positive"),
        ({"failondataloss": "1"}, 'failOnDataLoss: For input string: "1"'),
        ({"includeheaders": ""}, 'includeHeaders: For input string: ""'),
        ({"minpartitions": "-1"}, "minpartitions must be positive"),
        ({"minpartitions": "2147483648"}, 'minPartitions: For input string: "2147483648"'),
        ({"maxoffsetspertrigger": "9223372036854775808"}, "maxOffsetsPerTrigger: For input string"),
        ({"maxrecordsperpartition": "0"}, "maxrecordsperpartition must be positive"),
        ({"maxpartitions": "0"}, "maxpartitions must be positive"),
        ({"maxpartitions": "2", "maxrecordsperpartition": "5"}, "REPLOG_CONFLICTING_OPTIONS.*maxRecordsPerPartition"),
        ({"maxpartitions": "2", "minpartitions": "3"}, r"REPLOG_CONFLICTING_OPTIONS.*minPartitions\(3\)"),
        ({"kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported.*startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
        ({"Kafka.KEY.deserializer": "x"}, "'key.deserializer' is not supported"),
        ({"kafka.value.deserializer": "x"}, "'value.deserializer' is not supported"),
        ({"kafka.isolation.level": "none"}, "read_committed, read_uncommitted"),
        ({"fetchoffset.numretries": "x"}, "fetchOffset.numRetries: For input string"),
    ],
)  # fmt: skip
def test_stream_refuses_in_the_words_that_kafka_users_search_for(options, text):
    with pytest.raises(InvalidConfigError, match=text):
        read(**options)


@pytest.mark.parametrize(
    "mistakes",
    [
        ["endingoffsets", "subscribe"],
        ["subscribe", "minpartitions"],
        ["minpartitions", "maxrecordsperpartition"],
        ["maxrecordsperpartition", "kafka.key.deserializer"],
        ["kafka.key.deserializer", "path"],
        ["path", "maxoffsetspertrigger"],
    ],
)
def test_of_several_mistakes_the_one_that_kafka_reports_is_told(mistakes):
    wrong = {"endingoffsets": "1", "subscribe": " ", "path": "", "kafka.key.deserializer": "x"}
    one, two = mistakes
    with pytest.raises(InvalidConfigError) as first:
        read(**{one: wrong.get(one, "0")})
    with pytest.raises(InvalidConfigError) as both:
        read(**{one: wrong.get(one, "0"), two: wrong.get(two, "0")})
    assert str(both.value) == str(first.value)


def test_time_wins_over_times_wins_over_offsets():
    given = {
        "startingtimestamp": "5",
        "startingoffsetsbytimestamp": "not read",
        "startingoffsets": "not read either",
        "endingoffsetsbytimestamp": '{"a":{"0":7}}',
        "endingoffsets": "not read",
    }
    options = read(streaming=False, **given)
    assert options.starting.default.epoch_ms == 5
    assert [time.epoch_ms for time in options.ending.times.values()] == [7]
    assert (options.starting.is_latest_without_match, options.ending.is_latest_without_match) == (False, True)
    del given["startingtimestamp"]
    with pytest.raises(InvalidConfigError, match="startingOffsetsByTimestamp cannot be read"):
        read(streaming=False, **given)


def test_strategy_of_a_starting_time():
    options = read(startingTimestamp="5", startingOffsetsByTimestampStrategy="LATEST")
    assert options.starting.is_latest_without_match is True


def test_limits_of_a_stream():
    given = {
        "minoffsetspertrigger": "2",
        "maxoffsetspertrigger": "9",
        "maxtriggerdelay": "90s",
        "maxbytespertrigger": "7",
    }
    limits = read(**given).limits
    assert (limits.rows_min, limits.rows_max, limits.delay_max_ms, limits.size_max_bytes) == (2, 9, 90_000, 7)


def test_options_of_streams_are_named_in_a_batch(caplog):
    read(streaming=False, maxoffsetspertrigger="5", maxTriggerDelay="1s")
    assert "maxOffsetsPerTrigger is for streams and ignored" in caplog.text
    assert "maxTriggerDelay is for streams and ignored" in caplog.text


def test_address_may_stand_where_kafkas_stood():
    given = {"kafka.bootstrap.servers": "/data/store", "subscribe": "a"}
    assert parse_source_options(given, streaming=True).store.path == "/data/store"
    assert check_schema_options(given) is False
    assert parse_sink_options(
        {"kafka.bootstrap.servers": "s3://a,s3://b", "topic": "t"}, streaming=True
    ).store.path == ("s3://a,s3://b")
    assert read(**{"kafka.bootstrap.servers": "h:9092"}).store.path == "/s"


@pytest.mark.parametrize("servers", ["h:9092", "a.example:1,b:2", "[::1]:9092"])
def test_servers_are_no_address(servers):
    with pytest.raises(InvalidConfigError, match=r"REPLOG_MISSING_OPTION.*no store.*names servers.*must be specified"):
        parse_source_options({"kafka.bootstrap.servers": servers, "subscribe": "a"}, streaming=True)


def test_mistakes_of_either_mode_are_found_by_the_schema():
    wrong = {"minpartitions": "0", "kafka.key.deserializer": "x", "maxoffsetspertrigger": "0", "startingoffsets": "?"}
    for name, value in wrong.items():
        with pytest.raises(InvalidConfigError, match=f"(?i){name.removeprefix('kafka.')}"):
            check_schema_options({**READ, name: value})


@pytest.mark.parametrize(
    ("options", "stream", "batch"),
    [
        ({"endingoffsets": "latest"}, "ending offset not valid in streaming", "one of the following options must be"),
        ({"startingoffsets": "latest"}, "one of the following options must be", "starting offset can't be latest"),
        ({"subscribe": "a", "endingoffsets": "earliest"}, "not valid in streaming", "ending offset can't be earliest"),
    ],
)
def test_where_the_modes_refuse_in_different_words_each_says_its_own(options, stream, batch):
    given = {"path": "/s", **options}
    assert check_schema_options(given) is False
    for streaming, text in ((True, stream), (False, batch)):
        with pytest.raises(InvalidConfigError, match=text):
            parse_source_options(given, streaming=streaming)


def test_schema_warns_of_nothing_that_the_read_warns_of(caplog):
    given = {**READ, "startingtimestamp": "5", "startingoffsets": "earliest", "maxtriggerdelay": "1s"}
    check_schema_options(given)
    assert not caplog.records
    parse_source_options(given, streaming=True)
    assert "startingTimestamp takes precedence over startingOffsets" in caplog.text
    assert "maxTriggerDelay has no effect" in caplog.text


def test_options_of_the_connector_without_a_meaning_are_named_once(caplog, monkeypatch):
    monkeypatch.setattr(options, "LOGGED_OPTIONS", Once())  # other tests of this process name them too
    read(groupIdPrefix="x", **{"fetchOffset.numRetries": "3", "kafka.isolation.level": "read_committed"})
    read(groupIdPrefix="x")
    assert caplog.text.count("groupidprefix") == 1


@pytest.mark.case("connector-patterns-java-python-would-read")
@pytest.mark.parametrize("pattern", ["", "a(", "[a-z&&[^q]]", "[[ab]c]", r"\p{Lower}", r"\Qa.b\E", "(?<name>a)"])
def test_bad_pattern(pattern):
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_OPTION.*subscribePattern"):
        parse_source_options({"path": "/s", "subscribepattern": pattern}, streaming=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingoffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
        ({"startingoffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest for batch queries on Kafka"),
        ({"startingoffsets": '{"a":"latest"}'}, "can't be latest"),
        ({"endingoffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest for batch queries on Kafka"),
        ({"endingoffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
        (
            {"startingoffsets": '{"a":{"0":5}}', "endingoffsets": '{"a":{"0":4}}'},
            "specified start offset 5 is greater than the end offset 4.*UNRESOLVED_START_OFFSET_GREATER_THAN",
        ),
        (
            {"startingoffsetsbytimestamp": '{"a":{"0":5}}', "endingoffsetsbytimestamp": '{"a":{"0":4}}'},
            "specified start timestamp 5 is greater than the end timestamp 4",
        ),
        (
            {"startingoffsets": '{"a":{"0":5}}', "endingoffsets": '{"a":{"1":9}}'},
            "a-0, a-1.*MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
        ),
    ],
)
def test_batch_bounds(options, text):
    with pytest.raises(InvalidConfigError, match=text):
        read(streaming=False, **options)


def test_sink_takes_kafka_names_with_and_without_prefix():
    options = write(**{"kafka.acks": "1", "linger.ms": "7", "checkpointlocation": "/c", "queryname": "q"})
    assert (options.producer.acks, options.producer.linger_ms, options.client_id) == (1, 7, "q")


def test_one_end_of_a_batch_may_be_a_time_and_the_other_one_offsets():
    offsets = '{"orders":{"0":5}}'
    source_options = read(streaming=False, startingOffsets=offsets, endingTimestamp="1000")
    assert (source_options.starting.option, source_options.ending.option) == ("startingOffsets", "endingTimestamp")
    source_options = read(streaming=False, startingTimestamp="1000", endingOffsets=offsets)
    assert (source_options.starting.option, source_options.ending.option) == ("startingTimestamp", "endingOffsets")


def test_principal():
    for side in (read, write):
        assert side(principal="User:me").principal == "User:me"
    assert write().principal is None


def test_transactional_id():
    options = write(**{"transactional.id": "app", "oncheckpointreset": "skip"})
    assert (options.transactional_id, options.on_reset) == ("app", ResetPolicy.SKIP)


def test_batch_transaction():
    assert write(streaming=False, txnappid="app", txnversion="7").txn == ("app", 7)


@pytest.mark.parametrize(
    ("streaming", "options", "text"),
    [
        (True, {"topic": " "}, "REPLOG_INVALID_OPTION.*option 'topic' is empty"),
        (True, {"ack": "1"}, "REPLOG_UNKNOWN_OPTION.*'acks'"),
        (True, {"kafka.topic": "a"}, "REPLOG_UNKNOWN_OPTION.*Write 'topic'"),
        (True, {"kafka.key.serializer": "x"}, "REPLOG_UNKNOWN_OPTION.*kafka option 'key.serializer' is not supp.*Cast"),
        (False, {"kafka.value.serializer": "x"}, "kafka option 'value.serializer' is not supported"),
        (True, {"kafka.aks": "1"}, "REPLOG_UNKNOWN_OPTION.*'acks'"),
        (True, {"acks": "2"}, "REPLOG_INVALID_OPTION"),
        (True, {"txnappid": "a", "txnversion": "1"}, "REPLOG_CONFLICTING_OPTIONS.*batch writes"),
        (False, {"txnappid": "a"}, "REPLOG_MISSING_OPTION.*together"),
        (False, {"txnappid": "a", "txnversion": "x"}, "REPLOG_INVALID_OPTION.*txnVersion"),
        (False, {"transactional.id": "a"}, "REPLOG_CONFLICTING_OPTIONS.*streaming"),
        (False, {"oncheckpointreset": "skip"}, "REPLOG_MISSING_OPTION.*txnAppId"),
        (
            True,
            {"transactional.id": "a", "oncheckpointreset": "x"},
            "REPLOG_INVALID_OPTION.*fail, append, skip",
        ),
    ],
)
def test_sink_refuses(streaming, options, text):
    with pytest.raises(InvalidConfigError, match=text):
        write(streaming, **options)


def test_schema_takes_the_options_of_both_sides():
    assert check_schema_options(READ) is False
    assert check_schema_options({**READ, "includeheaders": "true"}) is True
    assert check_schema_options(WRITE) is False  # a SQL view to insert into
    with pytest.raises(InvalidConfigError, match="REPLOG_MISSING_OPTION"):
        check_schema_options({"path": "/s"})
    with pytest.raises(InvalidConfigError, match="REPLOG_UNKNOWN_OPTION"):
        check_schema_options({**READ, "subscrib": "1"})


def test_schema_of_a_catalog_table_does_not_look_at_its_properties():
    table = {"provider": "replog", "owner": "me", "p.q": "1", "option.rows": "5", "rows": "5"}
    assert check_schema_options(table) is False


def test_kafka_options_that_mean_nothing_here_are_named_once(caplog, monkeypatch):
    harmless = {
        "kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SASL_SSL", "kafka.sasl.jaas.config": "x",
        "kafka.client.rack": "3", "kafka.config.providers.env.class": "x", "kafka.auto.include.jmx.reporter": "true",
        "includeheaders": "true",
    }  # fmt: skip
    monkeypatch.setattr(options, "LOGGED_OPTIONS", Once())
    assert write(**harmless) == write()
    assert write(**harmless, **{"kafka.client.id": "me"}).client_id == "me"
    assert read(**{"kafka.bootstrap.servers": "h:1", "kafka.fetch.max.wait.ms": "9"}) == read()
    assert check_schema_options({**READ, **harmless}) is True
    texts = [record.getMessage() for record in caplog.records]
    assert sum("kafka.bootstrap.servers" in text for text in texts) == 1
    assert not any("includeheaders" in text for text in texts)


def test_a_producer_setting_is_never_taken_for_a_harmless_one():
    assert write(**{"kafka.metadata.max.age.ms": "5"}).coordinator.metadata_max_age_ms == 5
    assert write(**{"kafka.linger.ms": "9"}).producer.linger_ms == 9


@pytest.mark.parametrize("name", ["linger.ms", "transactional.id"])
def test_a_setting_with_and_without_its_prefix_and_two_values_is_refused(name):
    assert write(**{name: "1", f"kafka.{name}": "1"}) == write(**{name: "1"})
    with pytest.raises(InvalidConfigError, match=rf"REPLOG_CONFLICTING_OPTIONS.*{name}"):
        write(**{name: "1", f"kafka.{name}": "2"})


@pytest.mark.parametrize("streaming", [True, False])
def test_settings_of_kafkas_other_client_are_named_once_as_one_set_of_options_serves_a_job(
    caplog, monkeypatch, streaming
):
    monkeypatch.setattr(options, "LOGGED_OPTIONS", Once())
    of_producer = {"kafka.acks": "all", "kafka.linger.ms": "x", "kafka.key.serializer": "y", "kafka.retries": "3"}
    of_consumer = {"kafka.max.poll.records": "9", "kafka.group.id": "g", "kafka.auto.offset.reset": "latest"}
    for _ in range(2):
        assert read(streaming, **of_producer) == read(streaming)
        assert write(streaming, **of_consumer) == write(streaming)
    of_source, of_sink = [record.getMessage() for record in caplog.records]
    assert "producer" in of_source and of_source.endswith(": " + ", ".join(sorted(of_producer)))
    assert "consumer" in of_sink and of_sink.endswith(": " + ", ".join(sorted(of_consumer)))
    for name in ("kafka.key.deserializer", "kafka.acsk"):
        with pytest.raises(InvalidConfigError, match="REPLOG_UNKNOWN_OPTION"):
            read(streaming, **{name: "x"})


FOREIGN = {
    "source": ("acks", "topic", "txnAppId", "batch.size", "key.deserializer", "auto.offset.reset", "client.id"),
    "sink": ("subscribe", "failOnDataLoss", "group.id", "kafka.group.id", "value.deserializer", "startingOffsets"),
}
UNKNOWN = ("schema.registry.url", "truncate", "enable.partition.eof", "numRows", "kafka.schema.registry.url", "header")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("side", FOREIGN)
def test_names_that_the_connector_ignores_are_named_once_and_change_nothing(caplog, monkeypatch, side, streaming):
    monkeypatch.setattr(options, "LOGGED_OPTIONS", Once())
    call = {"source": read, "sink": write}[side]
    given = dict.fromkeys((*FOREIGN[side], *UNKNOWN), "x")
    plain = call(streaming=streaming)
    assert [call(streaming=streaming, **given) for _ in range(2)] == [plain, plain]
    logged = [record.getMessage() for record in caplog.records]
    for name in given:
        assert sum(f" {name.lower()}" in f"{line.replace(',', '')} " for line in logged) >= 1, name
    assert len(logged) <= 3
    assert check_schema_options({**READ, **{name.lower(): "x" for name in UNKNOWN}}) is False


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maxOffsetsPerTriger", "maxOffsetsPerTrigger"), ("startingOffset", "startingOffsets"), ("topics", "topic"),
        ("kafka.ack", "acks"), ("fetchOffset.numRetry", "fetchOffset.numRetries"), ("txnApp", "txnAppId"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"), ("kafka.max.poll.record", "kafka.max.poll.records"),
        ("include_headers", "includeHeaders"), ("transactionalId", "transactional.id"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("call", [read, write])
def test_a_likely_misspelling_of_what_either_side_knows_is_refused(call, name, meant):
    for streaming in (True, False):
        with pytest.raises(InvalidConfigError, match=f"REPLOG_UNKNOWN_OPTION.*Did you mean '{meant}'"):
            call(streaming=streaming, **{name.lower(): "1"})


@pytest.mark.parametrize(
    "address", ["broker1:9092", "broker1", "b1:9092, b2:9092", "SASL_SSL://b-1.kafka.eu.example.com:9098", "[::1]:9092"]
)
def test_an_address_of_servers_is_no_store(address):
    for call in (parse_source_options, parse_sink_options):
        given = {"kafka.bootstrap.servers": address, "subscribe": "a", "topic": "a"}
        with pytest.raises(InvalidConfigError, match=r"REPLOG_MISSING_OPTION.*names servers.*'path'") as raised:
            call(given, streaming=True)
        assert "init" not in str(raised.value)
    if ":" in address and "//" not in address:
        with pytest.raises(NotFoundError, match="is the address of a server") as raised:
            Cluster.open(address)
        assert "init" not in str(raised.value)


def test_a_client_id_is_used_and_so_not_called_ignored(caplog, monkeypatch):
    monkeypatch.setattr(options, "LOGGED_OPTIONS", Once())
    assert write(**{"kafka.client.id": "me"}).client_id == "me"
    assert not caplog.records


@pytest.mark.parametrize("name", ["group.id", "kafka.group.id"])
def test_a_group_is_where_a_stream_shows_its_position(name):
    assert read(**{name: "billing"}).group_id == "billing"
    assert read().group_id is None


def test_sink_carries_the_users_classes_under_their_plain_names_only():
    options = write(**{"interceptor.classes": "a.B", "value.serializer": "c.D"})
    assert (options.hooks.interceptor_classes, options.hooks.value_serializer) == ("a.B", "c.D")
    assert options.hooks.key_serializer == "bytes"
    with pytest.raises(InvalidConfigError, match=r"kafka option 'interceptor\.classes' is not supported"):
        write(**{"kafka.interceptor.classes": "a.B"})
