"""The registry of settings, the classes made from it, and the two places that repeat it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from spark_replog.config import (
    CONFIG_KEYS,
    ConfigKey,
    ConsumerConfig,
    CoordinatorConfig,
    ProducerConfig,
    TopicConfig,
    keys_of,
    normalise_key,
    read_consumer_config,
    read_coordinator_config,
    read_producer_config,
    read_topic_config,
    storage_options,
    unknown_option_error,
)
from spark_replog.errors import ErrorCode, InvalidConfigError

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


def shown_default(key: ConfigKey) -> str:
    """The default as a user would type it."""
    if key.default is None:
        return ""
    for word, meaning in (key.choices or {}).items():
        if meaning == key.default:
            return word
    return str(key.default).lower() if isinstance(key.default, bool) else str(key.default)


def documented_line(key: ConfigKey) -> str:
    """The key's row in docs/configuration.md."""
    kafka = key.kafka_default if key.kafka_default is not None else ""
    cells = [f"`{key.name}`", shown_default(key), kafka, key.unit, key.doc.replace("|", "\\|")]
    return "| " + " | ".join(cells) + " |"


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
    if shown_default(key):
        read = READERS[key.group]({key.name: shown_default(key)})
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
        ({"compression.type": "gzip"}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "lz4"),
    ],
)
def test_refusals_of_a_producer(options, code, said):
    with pytest.raises(InvalidConfigError) as refused:
        read_producer_config(options)
    assert refused.value.code == code
    assert said in str(refused.value)


def test_a_batch_size_of_nothing_is_one_record_a_batch_as_in_kafka():
    assert read_producer_config({"kafka.batch.size": "0"}).batch_size_bytes == 1


def test_topic_takes_nothing_beside_its_own():
    with pytest.raises(InvalidConfigError) as refused:
        read_topic_config({"acks": "all"})
    assert refused.value.code == ErrorCode.REPLOG_UNKNOWN_OPTION
    with pytest.raises(InvalidConfigError) as refused:
        read_topic_config({"cleanup.policy": "compact"})
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def test_replica_lag_must_fit_the_request_timeout():
    with pytest.raises(InvalidConfigError, match="less than half"):
        read_coordinator_config({"replica.lag.time.max.ms": "15000"})
    assert read_coordinator_config({"replica.lag.time.max.ms": "14999"}).replica_lag_time_max_ms == 14_999


@pytest.mark.parametrize(("replicas", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_min_insync_replicas_is_a_majority(replicas, least):
    assert TopicConfig().min_insync(replicas) == least
    assert TopicConfig(min_insync_replicas=1).min_insync(replicas) == 1


def test_suggestion_ignores_case():
    assert "'startingOffsets'" in str(unknown_option_error("startingoffset", ["startingOffsets", "topic"]))


def test_docs_hold_every_key_and_nothing_else():
    lines = (ROOT / "docs/configuration.md").read_text().splitlines()
    documented = [line for line in lines if line.startswith("| `")]
    assert documented == [documented_line(key) for key in CONFIG_KEYS]


def test_conf_shows_every_default():
    settings = re.findall(r"^#(\S+)=(.*)$", (ROOT / "conf/replog-defaults.conf").read_text(), re.MULTILINE)
    groups = ("producer", "client", "consumer", "coordinator", "topic")
    wanted = [(key.name, shown_default(key)) for key in keys_of(*groups)]
    assert settings == wanted
