"""What a user may write in option(...), and what the refusals say."""

from __future__ import annotations

import pickle

import pytest

from spark_replog.errors import InvalidConfigError
from spark_replog.log.commands import ResetPolicy
from spark_replog.spark import kafka_options
from spark_replog.spark.options import check_schema_options, parse_sink_options, parse_source_options

READ = {"path": "/s", "subscribe": "a"}
WRITE = {"path": "/s", "topic": "a"}


def read(streaming=True, **options):
    return parse_source_options({**READ, **options}, streaming=streaming)


def write(streaming=True, **options):
    return parse_sink_options({**WRITE, **options}, streaming=streaming)


def test_defaults_of_a_stream_and_a_batch():
    assert read().starting.default == -1
    assert read(streaming=False).starting.default == -2
    assert read().fail_on_data_loss is True
    assert read().row_limit is None


def test_names_are_compared_in_lower_case():
    options = parse_source_options(
        {"path": "/s", "SUBSCRIBE": "b, a,,b", "MaxOffsetsPerTrigger": "5", "includeheaders": "TRUE"},
        streaming=True,
    )
    assert options.subscription.topics == ("b", "a")
    assert (options.row_limit, options.include_headers) == (5, True)


def test_options_travel_to_tasks():
    assert pickle.loads(pickle.dumps(read())) == read()
    assert pickle.loads(pickle.dumps(write())) == write()


def test_several_paths_are_one_store():
    options = parse_source_options({"paths": '["/a","/b"]', "subscribe": "a"}, streaming=True)
    assert options.store.path == "/a,/b"


def test_storage_options_lose_their_prefix():
    assert read(**{"storage.endpoint_url": "http://x"}).store.storage_options() == {"endpoint_url": "http://x"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxoffsetspertriger": "1"}, r"REPLOG_UNKNOWN_OPTION.*'maxOffsetsPerTrigger'"),
        ({"kafka.auto.offset.reset": "latest"}, r"kafka option 'auto.offset.reset' is not supported.*startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, r"kafka option 'enable.auto.commit' is not supported"),
        ({"kafka.value.deserializer": "x"}, r"kafka option 'value.deserializer' is not supported.*Cast"),
        ({"acks": "all"}, r"REPLOG_UNKNOWN_OPTION.*for the sink"),
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


@pytest.mark.parametrize("pattern", ["", "a("])
def test_bad_pattern(pattern):
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_OPTION.*subscribePattern"):
        parse_source_options({"path": "/s", "subscribepattern": pattern}, streaming=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingoffsets": "latest"}, "can't be latest"),
        ({"startingoffsets": '{"a":{"0":-1}}'}, "can't be latest"),
        ({"endingoffsets": "earliest"}, "can't be earliest"),
        (
            {"startingoffsets": '{"a":{"0":5}}', "endingoffsets": '{"a":{"0":4}}'},
            "greater than the end offset 4",
        ),
    ],
)
def test_batch_bounds(options, text):
    with pytest.raises(InvalidConfigError, match=text):
        read(streaming=False, **options)


def test_sink_takes_kafka_names_with_and_without_prefix():
    options = write(**{"kafka.acks": "1", "linger.ms": "7", "checkpointlocation": "/c", "queryname": "q"})
    assert (options.producer.acks, options.producer.linger_ms, options.client_id) == (1, 7, "q")


def test_principal():
    assert write(principal="User:me").principal == "User:me"
    assert write().principal is None


def test_transactional_id():
    options = write(**{"transactional.id": "app", "oncheckpointreset": "skip"})
    assert (options.transactional_id, options.on_reset) == ("app", ResetPolicy.SKIP)


def test_batch_transaction():
    assert write(streaming=False, txnappid="app", txnversion="7").txn == ("app", 7)


@pytest.mark.parametrize(
    ("streaming", "options", "text"),
    [
        (True, {"ack": "1"}, "REPLOG_UNKNOWN_OPTION.*'acks'"),
        (True, {"subscribe": "a"}, "REPLOG_UNKNOWN_OPTION.*for the source"),
        (True, {"kafka.key.serializer": "x"}, "REPLOG_UNKNOWN_OPTION.*kafka option 'key.serializer' is not supp.*Cast"),
        (False, {"kafka.value.serializer": "x"}, "kafka option 'value.serializer' is not supported"),
        (True, {"kafka.aks": "1"}, "REPLOG_UNKNOWN_OPTION.*'acks'"),
        (True, {"acks": "2"}, "REPLOG_INVALID_OPTION"),
        (True, {"txnappid": "a", "txnversion": "1"}, "REPLOG_CONFLICTING_OPTIONS.*batch writes"),
        (False, {"txnappid": "a"}, "REPLOG_MISSING_OPTION.*together"),
        (False, {"txnappid": "a", "txnversion": "x"}, "REPLOG_INVALID_OPTION.*txnVersion"),
        (False, {"transactional.id": "a"}, "REPLOG_CONFLICTING_OPTIONS.*streaming"),
        (True, {"oncheckpointreset": "skip"}, "REPLOG_MISSING_OPTION.*transactional.id"),
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
        check_schema_options({**READ, "wrong": "1"})


def test_schema_of_a_catalog_table_does_not_look_at_its_properties():
    table = {"provider": "replog", "owner": "me", "p.q": "1", "option.rows": "5", "rows": "5"}
    assert check_schema_options(table) is False


def test_kafka_options_that_mean_nothing_here_are_named_once(caplog):
    harmless = {
        "kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SASL_SSL", "kafka.sasl.jaas.config": "x",
        "kafka.retries": "3", "includeheaders": "true",
    }  # fmt: skip
    kafka_options._logged.clear()
    assert write(**harmless) == write()
    assert write(**harmless, **{"kafka.client.id": "me"}).client_id == "me"
    assert read(**{"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g"}) == read()
    assert check_schema_options({**READ, **harmless}) is True
    texts = [record.getMessage() for record in caplog.records]
    assert sum("kafka.bootstrap.servers" in text for text in texts) == 1
    assert not any("includeheaders" in text for text in texts)


def test_a_producer_setting_is_never_taken_for_a_harmless_one():
    assert write(**{"kafka.metadata.max.age.ms": "5"}).coordinator.metadata_max_age_ms == 5
    assert write(**{"kafka.linger.ms": "9"}).producer.linger_ms == 9
