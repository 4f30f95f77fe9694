"""The registry of settings, the classes that declare them, and the pages that are made from it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from spark_replog.config.consumer import ConsumerConfig, duration_ms
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.key import SAME, normalise_key
from spark_replog.config.producer import ProducerConfig
from spark_replog.config.registry import (
    CONFIG_KEYS,
    is_kafka_setting,
    keys_of,
    read_consumer_config,
    read_coordinator_config,
    read_producer_config,
    read_topic_config,
    storage_options,
    stored_topic_config,
    unknown_option_error,
    unused_reason,
)
from spark_replog.config.store import TopicConfig
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.fold.topic_table import min_insync_replicas

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "producer": ProducerConfig,
    "consumer": ConsumerConfig,
    "coordinator": CoordinatorConfig,
    "topic": TopicConfig,
}
READERS = {
    "producer": read_producer_config,
    "consumer": read_consumer_config,
    "coordinator": read_coordinator_config,
    "topic": read_topic_config,
}


@pytest.mark.parametrize("group", sorted(SETTINGS))
def test_no_option_means_the_defaults(group):
    read = READERS[group]({})
    assert read == SETTINGS[group]()
    assert pickle.loads(pickle.dumps(read)) == read


@pytest.mark.parametrize(
    "key", keys_of("producer", "consumer", "coordinator", "topic"), ids=lambda key: f"{key.group}-{key.name}"
)
def test_default_can_be_given_as_text_and_names_a_field(key):
    assert key.field in SETTINGS[key.group].__dataclass_fields__
    if key.default_text:
        read = READERS[key.group]({key.name: key.default_text})
        assert getattr(read, key.field) == key.default


@pytest.mark.parametrize("group", sorted(SETTINGS))
def test_every_field_has_a_key(group):
    assert {key.field for key in keys_of(group)} == set(SETTINGS[group].__dataclass_fields__)


def test_no_key_twice_in_a_group():
    names = [(key.group, key.name) for key in CONFIG_KEYS]
    assert len(set(names)) == len(names)


def test_kafka_prefix_is_stripped():
    assert read_producer_config({"kafka.linger.ms": "7"}).linger_ms == 7
    assert normalise_key("kafka.acks") == "acks"
    assert normalise_key("acks") == "acks"


def test_producer_reads_its_own_and_leaves_the_coordinators():
    options = {"acks": "1", "replica.lag.time.max.ms": "1000", "storage.key": "k"}
    assert read_producer_config(options).acks == 1
    assert read_coordinator_config(options).replica_lag_time_max_ms == 1000
    assert storage_options(options) == {"key": "k"}


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"batch.sise": "1"}, ErrorCode.REPLOG_UNKNOWN_OPTION, "Did you mean 'batch.size'?"),
        ({"kafka.bootstrap.servers": "a:1"}, ErrorCode.REPLOG_UNKNOWN_OPTION, "as 'path'"),
        ({"zzz": "1"}, ErrorCode.REPLOG_UNKNOWN_OPTION, "explain --settings"),
        ({"acks": "2"}, ErrorCode.REPLOG_INVALID_OPTION, "all, -1, 0, 1"),
        ({"batch.size": "big"}, ErrorCode.REPLOG_INVALID_OPTION, "bytes"),
        ({"batch.size": "-1"}, ErrorCode.REPLOG_INVALID_OPTION, "from 0 to"),
        ({"batch.size": str(2**31)}, ErrorCode.REPLOG_INVALID_OPTION, "from 0 to"),
        ({"linger.ms": "-1"}, ErrorCode.REPLOG_INVALID_OPTION, "from 0 to"),
        ({"partitioner.ignore.keys": "yes"}, ErrorCode.REPLOG_INVALID_OPTION, "true, false"),
        ({"delivery.timeout.ms": "1"}, ErrorCode.REPLOG_INVALID_OPTION, "request.timeout.ms"),
        ({"compression.type": "gzip"}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd makes small objects like gzip"),
        ({"compression.type": "snappy"}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "lz4 is fast like snappy"),
        ({"compression.type": "producer"}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "none, lz4, zstd."),
    ],
)
def test_refusals_of_a_producer(options, code, said):
    with pytest.raises(InvalidConfigError) as refused:
        read_producer_config(options)
    assert refused.value.code == code
    assert said in str(refused.value)


def test_a_batch_size_of_nothing_is_one_record_a_batch_as_in_kafka():
    assert read_producer_config({"kafka.batch.size": "0"}).batch_size_bytes == 1


@pytest.mark.parametrize(("word", "means"), [("uncompressed", "none"), ("producer", "none"), ("lz4", "lz4")])
def test_a_topic_takes_all_of_kafkas_words_for_compression_that_arrow_has(word, means):
    assert read_topic_config({"compression.type": word}).compression_type == means
    assert stored_topic_config((("compression.type", word),))[0].compression_type == means


def test_topic_takes_nothing_beside_its_own():
    with pytest.raises(InvalidConfigError) as refused:
        read_topic_config({"acks": "all"})
    assert refused.value.code == ErrorCode.REPLOG_UNKNOWN_OPTION
    with pytest.raises(InvalidConfigError) as refused:
        read_topic_config({"cleanup.policy": "archive"})
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def test_replica_lag_must_fit_the_request_timeout():
    with pytest.raises(InvalidConfigError, match="less than half"):
        read_coordinator_config({"replica.lag.time.max.ms": "15000"})
    assert read_coordinator_config({"replica.lag.time.max.ms": "14999"}).replica_lag_time_max_ms == 14_999


@pytest.mark.parametrize(("replicas", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_min_insync_replicas_is_a_majority(replicas, least):
    assert min_insync_replicas({}, replicas) == least
    assert min_insync_replicas({"min.insync.replicas": "1"}, replicas) == 1
    assert min_insync_replicas({"min.insync.replicas": "9"}, replicas) == replicas


def test_suggestion_ignores_case():
    assert "'startingOffsets'" in str(unknown_option_error("startingoffset", ["startingOffsets", "topic"]))


def test_the_page_shows_every_setting_and_no_other():
    text = (ROOT / "docs/configuration.md").read_text()
    shown = re.findall(r"<!-- settings of (\w+) -->", text)
    assert sorted(shown) == sorted({*(key.group for key in CONFIG_KEYS), "kafka"})


def test_the_file_of_defaults_shows_every_setting():
    text = (ROOT / "conf/replog-defaults.conf").read_text()
    shown = re.findall(r"^#(\S+)=(.*)$", text, re.MULTILINE)
    assert shown == [(key.name, key.default_text) for key in CONFIG_KEYS]


@pytest.mark.parametrize("key", CONFIG_KEYS, ids=lambda key: f"{key.group}-{key.name}")
def test_a_declaration_is_complete(key):
    assert key.doc.endswith((".", "}"))
    assert key.unit in {"ms", "bytes", "count", "ratio", "choice", "bool", "text", "json"}
    assert (key.unit == "choice") == (key.choices is not None)
    assert key.kafka_default != SAME
    if isinstance(key.default, int) and key.unit in {"ms", "bytes", "count"}:
        assert key.minimum <= key.default <= key.maximum


@pytest.mark.parametrize(
    "newer",
    [{"remote.storage.enable": "true"}, {"cleanup.policy": "archive"}, {"min.insync.replicas": "many"}],
)
def test_a_stored_topic_setting_of_a_newer_release_is_reported_and_not_refused(newer):
    config, unknown = stored_topic_config((("retention.ms", "7"), *newer.items()))
    assert config == TopicConfig(retention_ms=7)
    assert unknown == tuple(newer)


def test_no_kafka_setting_is_both_read_and_unused():
    for client, groups in (("producer", ("producer", "client")), ("consumer", ("consumer",))):
        assert [key.name for key in keys_of(*groups) if unused_reason(key.name, client)] == []


@pytest.mark.parametrize(
    ("name", "clients"),
    [
        ("linger.ms", ["producer"]),
        ("fetch.min.bytes", ["consumer"]),
        ("ssl.key.password", ["producer", "consumer"]),
        ("metadata.max.age.ms", ["producer", "consumer"]),
        ("replica.grace.ms", []),
        ("retention.ms", []),
    ],
)
def test_settings_of_kafkas_clients_are_known(name, clients):
    assert [client for client in ("producer", "consumer") if is_kafka_setting(name, client)] == clients


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT8.29S", 8_290),
        ("PT0.999999999S", 999),
        ("PT1.5S", 1_500),
        ("P1DT2H3M4.005S", 93_784_005),
        ("PT9223372036854775.807S", 2**63 - 1),
        ("PT9223372036854775.808S", None),
        (f"PT{'9' * 400}S", None),
        (f"P{'9' * 5_000}D", None),
    ],
)
def test_durations_are_exact_and_none_beyond_64_bits(text, expected):
    assert duration_ms(text) == expected
