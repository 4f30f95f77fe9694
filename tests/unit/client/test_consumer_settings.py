"""Settings of the consumer: taken, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replog import Consumer
from spark_replog.client.settings import ConsumerSettings
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.config.registry import keys_of, read_consumer_config, unused_reason
from spark_replog.errors import ErrorCode, InvalidConfigError

ROOT = Path(__file__).parents[3]

KAFKA_4 = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.servers check.crcs client.dns.lookup
client.id client.rack config.providers connections.max.idle.ms default.api.timeout.ms enable.auto.commit
enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level
key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes session.timeout.ms
share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type
ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
value.deserializer
"""


@pytest.mark.parametrize("name", KAFKA_4.split())
def test_every_setting_of_kafka_is_taken_or_refused_with_its_reason(name):
    taken = {key.name for key in keys_of("consumer", "coordinator")} - {"request.timeout.ms"}  # of appends
    assert (name in taken) != (unused_reason(name, "consumer") is not None)
    if name not in taken:
        with pytest.raises(InvalidConfigError, match="REPLOG_UNKNOWN_OPTION") as refused:
            read_consumer_config({name: "x"})
        assert refused.value.code is ErrorCode.REPLOG_UNKNOWN_OPTION
        assert str(unused_reason(name, "consumer")) in str(refused.value)


def test_every_field_that_is_read_has_an_effect_outside_of_the_settings():
    """A setting that is taken and ignored would be worse than one that is refused."""
    code = "".join(
        path.read_text() for room in ("client", "groups") for path in (ROOT / "spark_replog" / room).glob("*.py")
    )
    unused = {name for name in ConsumerConfig.__dataclass_fields__ if f"config.{name}" not in code}
    # Both levels read the same, sections are always checked, and deserializers are taken out before.
    assert unused == {"isolation_level", "check_crcs", "key_deserializer", "value_deserializer"}


def test_a_keyword_of_none_leaves_the_dotted_name():
    assert ConsumerSettings.read({"client.id": "a"}, None, {"client_id": None}).consumer.client_id == "a"
    assert ConsumerSettings.read({"client.id": "a"}, None, {"client_id": "b"}).consumer.client_id == "b"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bootstrap.servers": "a:1"}, "There are no servers"),
        ({"sasl.mechanism": "PLAIN"}, "'storage.' options"),
        ({"group.protocol": "consumer"}, "partition.assignment.strategy"),
        ({"metric.reporters": "x"}, "metrics()"),
        ({"fetch.min.bites": "1"}, "Did you mean 'fetch.min.bytes'?"),
        ({"auto.offset.reset": "soon"}, "latest, earliest, none, or by_duration:"),
        ({"auto.offset.reset": "by_duration:-PT1H"}, "by_duration:PT1H30M"),
        ({"auto.offset.reset": "by_duration"}, "by_duration:PT1H30M"),
        ({"enable.auto.commit": "true"}, "group.id"),
        ({"group.instance.id": ""}, "1 to 249 letters"),
        ({"group.instance.id": ".."}, "not only dots"),
        ({"group.instance.id": "a" * 250}, "1 to 249 letters"),
        ({"group.instance.id": "a b"}, "1 to 249 letters"),
        ({"check.crcs": "false"}, "true"),
        ({"heartbeat.interval.ms": "20000"}, "a third of session.timeout.ms"),
        ({"partition.assignment.strategy": "best"}, "range, roundrobin, sticky"),
        ({"value.deserializer": "no.such.Class"}, "no.such.Class"),
        ({"key.deserializer": 7}, "module.Class"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused_with_the_reason(store, settings, said):
    with pytest.raises(InvalidConfigError) as refused:
        Consumer(store.cluster, config=settings)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", sorted(key.name for key in keys_of("consumer")))
def test_none_means_not_set(name):
    for given, named in (({name: None}, {}), ({}, {name.replace(".", "_"): None})):
        assert ConsumerSettings.read(given, None, named).consumer == ConsumerConfig()


def test_two_consumers_with_no_instance_id_are_two_members(filled):
    members = [
        Consumer(filled.another_process().cluster, "orders", group="g", group_instance_id=None, client_id=None)
        for _ in range(2)
    ]
    for _ in range(8):
        filled.clock.advance(3_000)
        for member in members:
            member.poll()
    assert [len(member.assignment()) for member in members] == [1, 1]
    for member in members:
        member.close()


def test_settings_of_the_coordinator_hold_for_this_consumer_alone(filled):
    configured_consumer = Consumer(filled.path, "orders", config={"metadata.max.age.ms": "5"})
    other = Consumer(filled.path, "orders")
    assert configured_consumer._cluster.config.metadata_max_age_ms == 5
    assert other._cluster.config.metadata_max_age_ms == 300_000
    assert other._cluster is Consumer(filled.path)._cluster
