"""Every setting of Kafka's producer: taken, or refused with its reason; contradictions refused."""

from __future__ import annotations

import pytest

from spark_replog.client.settings import LINGER_MS, ProducerSettings
from spark_replog.config.registry import keys_of, unused_reason
from spark_replog.errors import ErrorCode, InvalidConfigError

KAFKA_4 = """
acks batch.size bootstrap.servers buffer.memory client.dns.lookup client.id compression.gzip.level compression.lz4.level
compression.type compression.zstd.level config.providers connections.max.idle.ms delivery.timeout.ms enable.idempotence
enable.metrics.push interceptor.classes key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.request.size metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url security.protocol security.providers
send.buffer.bytes socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.serializer
"""


def read(**given):
    return ProducerSettings.read({name.replace("__", "."): value for name, value in given.items()})


@pytest.mark.parametrize("name", KAFKA_4.split())
def test_every_setting_of_kafka_is_taken_or_refused_with_its_reason(name):
    taken = {key.name for key in keys_of("producer", "client", "coordinator")}
    assert (name in taken) != (unused_reason(name, "producer") is not None)
    if name not in taken:
        with pytest.raises(InvalidConfigError, match="REPLOG_UNKNOWN_OPTION") as refused:
            ProducerSettings.read({name: "x"})
        assert refused.value.code is ErrorCode.REPLOG_UNKNOWN_OPTION
        assert str(unused_reason(name, "producer")) in str(refused.value)


def test_nothing_given_means_kafkas_linger_and_idempotence():
    settings = ProducerSettings.read()
    assert settings.producer.linger_ms == LINGER_MS == 5
    assert settings.is_idempotent
    assert settings.client.client_id == ""


def test_keywords_and_dotted_names_mean_the_same():
    dotted = ProducerSettings.read({"linger.ms": "7", "max.in.flight.requests.per.connection": 2, "acks": "1"})
    keywords = ProducerSettings.read(linger_ms=7, max_in_flight_requests_per_connection=2, acks=1)
    assert dotted == keywords
    assert ProducerSettings.read({"kafka.linger.ms": 7}).producer.linger_ms == 7


def test_a_setting_given_twice_is_refused():
    with pytest.raises(InvalidConfigError, match=r"linger\.ms") as refused:
        ProducerSettings.read({"linger.ms": 7}, linger_ms=8)
    assert refused.value.code is ErrorCode.REPLOG_CONFLICTING_OPTIONS


def test_a_setting_with_and_without_its_prefix_has_one_value():
    assert ProducerSettings.read({"linger.ms": 7, "kafka.linger.ms": 7}).producer.linger_ms == 7
    for one, other in (("linger.ms", "kafka.linger.ms"), ("kafka.linger.ms", "linger.ms")):
        with pytest.raises(InvalidConfigError, match=r"kafka\.linger\.ms") as refused:
            ProducerSettings.read({one: 7, other: 8})
        assert refused.value.code is ErrorCode.REPLOG_CONFLICTING_OPTIONS


def test_names_heed_case_as_those_of_kafkas_client():
    with pytest.raises(InvalidConfigError, match=r"Linger\.MS.*'linger\.ms'") as refused:
        ProducerSettings.read({"Linger.MS": 7})
    assert refused.value.code is ErrorCode.REPLOG_UNKNOWN_OPTION


@pytest.mark.parametrize("key", [key.name for key in keys_of("producer", "client", "coordinator")])
def test_none_means_not_set(key):
    unset = ProducerSettings.read()
    assert ProducerSettings.read({key: None}) == ProducerSettings.read(**{key.replace(".", "_"): None}) == unset


def test_a_setting_of_none_contradicts_nothing():
    assert ProducerSettings.read({"client.id": "a"}, client_id=None).client.client_id == "a"
    assert ProducerSettings.read({"client.id": None}, client_id="a").client.client_id == "a"


def test_storage_options_go_to_the_file_system():
    assert ProducerSettings.read({"storage.key": "k"}).storage == {"key": "k"}


def test_objects_stand_for_class_names():
    serializer = object()
    settings = ProducerSettings.read(key_serializer=serializer, value_serializer="string")
    assert settings.objects == {"key.serializer": serializer}
    assert settings.client.value_serializer == "string"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enable.idempotence": "true", "acks": "1"}, "acks=all"),
        ({"enable.idempotence": "true", "retries": "0"}, "retries"),
        ({"enable.idempotence": "true", "max.in.flight.requests.per.connection": "6"}, "at most 5"),
        ({"transactional.id": "t", "acks": "0"}, "acks=all"),
        ({"transactional.id": "t", "enable.idempotence": "false"}, "needs idempotence"),
        ({"transactional.id": ""}, "is empty"),
    ],
)
def test_contradictions_about_idempotence_are_refused(given, said):
    with pytest.raises(InvalidConfigError, match=said) as refused:
        ProducerSettings.read(given)
    assert refused.value.code is ErrorCode.REPLOG_CONFLICTING_OPTIONS


@pytest.mark.parametrize(
    "given", [{"acks": "1"}, {"acks": "0"}, {"retries": "0"}, {"max.in.flight.requests.per.connection": "6"}]
)
def test_idempotence_by_default_gives_way(given):
    assert not ProducerSettings.read(given).is_idempotent


def test_a_delivery_timeout_that_was_given_must_leave_room():
    with pytest.raises(InvalidConfigError, match=r"linger\.ms .*request\.timeout\.ms"):
        ProducerSettings.read({"delivery.timeout.ms": 100, "linger.ms": 60, "request.timeout.ms": 50})


def test_a_default_delivery_timeout_gives_way(caplog):
    settings = ProducerSettings.read({"linger.ms": 100_000})
    assert settings.producer.delivery_timeout_ms == 130_000
    assert "delivery.timeout.ms is raised to 130000" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch.sise": 1}, "Did you mean 'batch.size'"),
        ({"metadata.max.idle.ms": 4_999}, "from 5000 to"),
        ({"metrics.num.samples": 0}, "from 1 to"),
        ({"acks": "2"}, "all, -1, 0, 1"),
        ({"compression.type": "gzip"}, "none, lz4, zstd"),
        ({"retries": -1}, "from 0 to"),
    ],
)
def test_bad_values_are_refused(given, said):
    with pytest.raises(InvalidConfigError, match=said):
        ProducerSettings.read(given)
