"""Clients that show certificates: who must, who they are then, and which name Kafka gives them."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.sasl import SaslHandshakeRequest

from spark_replog.admin.access_admin import AclAdmin
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.gateway.certificate import subject_name
from spark_replog.gateway.listening import tls_context
from spark_replog.gateway.user_file import UserFile, credentials_of, encode_users
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from tests.certificates import Authority
from tests.gateways import RunningGateway, WireClient

ODD = """
MIICvTCCAmOgAwIBAgIUYfwpsiKaJXqdW/9/kdvVbFCp45AwCgYIKoZIzj0EAwIwgbIxFzAVBgoJkiaJk/IsZAEZFgdleGFtcGxlMQswCQYDVQQG
EwJERTENMAsGA1UECAwEQiAreDEOMAwGA1UEBwwFIGxlYWQxEzARBgNVBAoMCmEsICJiIjs8Yz4xFDASBgkqhkiG9w0BCQEWBWFAYi5jMQ0wCwYD
VQQLDAR4PXkjMRMwEQYDVQQDDAphbGlcY2Ugw7wgMRwwCAYDVQQFEwE3MBAGCgmSJomT8ixkAQEMAnUxMCAXDTI2MTEyOTAzMDQzN1oYDzIxMjYx
MTA1MDMwNDM3WjCBsjEXMBUGCgmSJomT8ixkARkWB2V4YW1wbGUxCzAJBgNVBAYTAkRFMQ0wCwYDVQQIDARCICt4MQ4wDAYDVQQHDAUgbGVhZDET
MBEGA1UECgwKYSwgImIiOzxjPjEUMBIGCSqGSIb3DQEJARYFYUBiLmMxDTALBgNVBAsMBHg9eSMxEzARBgNVBAMMCmFsaVxjZSDDvCAxHDAIBgNV
BAUTATcwEAYKCZImiZPyLGQBAQwCdTEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASto6w2yf7G1dZG6VwF//HwWIcj03SAUrPaQKXFqEWq4YB6
BpMOLYtaPJ6O8u6NGo9orvOvVhoYMm8r4VF1Q1cqo1MwUTAdBgNVHQ4EFgQU7Q68Frviquk1oTszM6o1Q3N8QH4wHwYDVR0jBBgwFoAU7Q68Frvi
quk1oTszM6o1Q3N8QH4wDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBFbepwHrP0SNZlfqRCKOKtfdMPpr6/0hakaPs+vxkFtAIh
AJCG+vkmGf7YOCZgBlL249VI5IdzXKAJ61qg42S9paL/
"""
ODD_NAME = (
    r"2.5.4.5=#130137+UID=u1,CN=ali\\ce ü\ ,OU=x\=y\#,1.2.840.113549.1.9.1=#16056140622e63,"
    r"O=a\, \"b\"\;\<c\>,L=\ lead,ST=B \+x,C=DE,DC=example"
)
"""What ``X509Certificate.getSubjectX500Principal().getName()`` of Java 17 says of it."""
ALICE = "User:CN=alice,O=example"
TOPIC_REFUSED = 29


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority")).make()


@pytest.fixture(scope="module")
def server_files(authority) -> tuple[Path, Path]:
    return authority.sign("server", "/CN=gateway")


@pytest.fixture(params=["required", "requested"])
def gateway(request, authority, server_files) -> Iterator[RunningGateway]:
    with RunningGateway(tls=tls_context(*server_files, authority.certificate, request.param)) as running:
        running.store.admin().create_topic("orders", 1)
        me = AclBinding(ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, running.gateway.principal,
                        AclOperation.ALL, Permission.ALLOW)  # fmt: skip
        alice = AclBinding(ResourceType.TOPIC, "orders", PatternType.LITERAL, ALICE, AclOperation.ALL, Permission.ALLOW)
        AclAdmin(running.cluster).add([me, alice])
        running.cluster.refresh()
        yield running


def code_of_topic(client: WireClient) -> int:
    topic = MetadataRequest.MetadataRequestTopic(name="orders")
    code: int = client.ask(MetadataRequest(topics=[topic]), 9).topics[0].error_code
    return code


def test_the_name_is_what_java_writes():
    assert subject_name(base64.b64decode(ODD)) == ODD_NAME
    whole = base64.b64decode(ODD)
    for broken in (b"\x30\x03\x30\x01\x02", b"\x30\x00", *(whole[:end] for end in range(len(whole)))):
        with pytest.raises(ValueError):
            subject_name(broken)


def test_the_subject_of_a_certificate_is_the_principal(gateway, authority):
    with gateway.client(authority.client("alice")) as client:
        assert code_of_topic(client) == 0
    with gateway.client(authority.client("bob", "/CN=bob")) as client:
        assert code_of_topic(client) == TOPIC_REFUSED


@pytest.mark.parametrize("gateway", ["required"], indirect=True)
def test_who_has_none_or_one_of_others_does_not_come_in(gateway, authority, tmp_path):
    stranger = Authority(tmp_path).make()
    with_strange = ssl.create_default_context(cafile=str(authority.certificate))
    with_strange.check_hostname = False
    with_strange.load_cert_chain(*stranger.sign("alice", "/O=example/CN=alice"))
    for context in (authority.client(), with_strange):
        with pytest.raises((OSError, ConnectionError)), gateway.client(context) as client:
            code_of_topic(client)


@pytest.mark.parametrize("gateway", ["requested"], indirect=True)
def test_where_one_is_only_requested_who_has_none_is_anonymous(gateway, authority):
    with gateway.client(authority.client()) as client:
        assert code_of_topic(client) == TOPIC_REFUSED
    anonymous = AclBinding(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:ANONYMOUS", AclOperation.DESCRIBE,
                           Permission.ALLOW)  # fmt: skip
    AclAdmin(gateway.cluster).add([anonymous])
    gateway.cluster.refresh()
    with gateway.client(authority.client()) as client:
        assert code_of_topic(client) == 0


def test_with_users_a_certificate_does_not_say_who_it_is(authority, server_files, tmp_path):
    users = tmp_path / "users.json"
    users.write_bytes(encode_users({"bob": credentials_of("secret")}))
    context = tls_context(*server_files, authority.certificate)
    with RunningGateway(users=UserFile(users), tls=context) as gateway:
        with gateway.client(authority.client("alice2")) as client:
            client.send(MetadataRequest(topics=None), 9)
            assert client.is_closed
        with gateway.client(authority.client("alice3")) as client:
            assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0


def test_an_authority_that_cannot_be_read_is_refused(server_files, tmp_path):
    empty = tmp_path / "empty.pem"
    for path in (tmp_path / "nowhere.pem", empty):
        with pytest.raises(InvalidConfigError) as caught:
            tls_context(*server_files, path)
        assert caught.value.code is ErrorCode.REPLOG_INPUT
        assert str(path) in str(caught.value)
        empty.write_text("no certificate")
