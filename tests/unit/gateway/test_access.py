"""Who may ask what of a gateway: users, exchanges, and addresses that are open to others."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.gateway.access import RefusedError, ScramExchange
from spark_replog.gateway.listening import is_any_address, require_safe, tls_context
from spark_replog.gateway.user_file import UserFile, credentials_of, encode_users, read_users
from tests.gateways import RunningGateway

PASSWORDS = {"alice": "pencil", "a,b=c": "p\u00e4ss,word="}


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    path.write_bytes(encode_users({name: credentials_of(password) for name, password in PASSWORDS.items()}))
    return UserFile(path)


@pytest.fixture(scope="module")
def gateway(users):
    with RunningGateway(users=users, connection_failed_authentication_delay_ms=0) as running:
        running.store.admin().create_topic("orders", 1)
        yield running


def begin(client, mechanism):
    return client.ask(SaslHandshakeRequest(mechanism=mechanism), 1).error_code


def step(client, data, version=2):
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=data), version)
    return answer.error_code, answer.auth_bytes


class ScramClient:
    """The client's side, written from RFC 5802 and not from the gateway's."""

    def __init__(self, name, password, hash_name):
        self._password, self._hash = password, hash_name
        self.first = "n=" + name.replace("=", "=3D").replace(",", "=2C") + ",r=abcdef"

    def last(self, answer: bytes, header="n,,") -> bytes:
        fields = dict(item.split("=", 1) for item in answer.decode().split(","))
        assert fields["r"].startswith("abcdef") and len(fields["r"]) > 20
        salt, count = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, count)
        bare = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
        messages = f"{self.first},{answer.decode()},{bare}".encode()
        key = hmac.digest(salted, b"Client Key", self._hash)
        signature = hmac.digest(hashlib.new(self._hash, key).digest(), messages, self._hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.expected = b"v=" + base64.b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", self._hash), messages, self._hash)
        )
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("name", PASSWORDS)
@pytest.mark.parametrize(("mechanism", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_proves_both_sides(gateway, name, mechanism, hash_name):
    with gateway.client() as client:
        assert begin(client, mechanism) == 0
        side = ScramClient(name, PASSWORDS[name], hash_name)
        code, answer = step(client, f"n,,{side.first}".encode())
        assert code == 0
        assert step(client, side.last(answer)) == (0, side.expected)
        assert client.ask(MetadataRequest(topics=None), 9).topics[0].name == "orders"
        assert begin(client, mechanism) == ErrorCode.ILLEGAL_SASL_STATE, "a client says it once"
        assert client.is_closed


def test_plain_takes_one_message(gateway):
    for name, password in PASSWORDS.items():
        with gateway.client() as client:
            assert begin(client, "PLAIN") == 0
            assert step(client, f"\0{name}\0{password}".encode(), 0) == (0, b"")
            assert client.ask(MetadataRequest(topics=None), 9).topics[0].name == "orders"


@pytest.mark.parametrize(
    "message",
    [b"\0alice\0wrong", b"\0alice\0", b"\0nobody\0pencil", b"bob\0alice\0pencil", b"alice\0pencil", b"", b"\xff\xfe"],
)
def test_a_client_that_is_refused_is_closed_and_never_asked_the_store(gateway, message):
    with gateway.client() as client:
        assert begin(client, "PLAIN") == 0
        assert step(client, message)[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed


def test_before_a_client_has_said_who_it_is_only_that_is_answered(gateway):
    with gateway.client() as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        client.send(MetadataRequest(topics=None), 9)
        assert client.is_closed
    with gateway.client() as client:
        assert begin(client, "GSSAPI") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert client.is_closed
    with gateway.client() as client:
        assert step(client, b"\0alice\0pencil")[0] == ErrorCode.ILLEGAL_SASL_STATE, "without a handshake"
        assert client.is_closed
    with gateway.client() as client:
        begin(client, "SCRAM-SHA-256")
        client.send(MetadataRequest(topics=None), 9)  # in the middle of the exchange
        assert client.is_closed
    with gateway.client() as client:
        client.socket.sendall((16 * 1024 + 1).to_bytes(4, "big"))
        assert client.is_closed, "it may not send much either"


def test_a_proof_holds_for_one_exchange_and_one_password(users):
    def refused(name="alice", password="pencil", header="n,,", change=lambda last: last, mechanism="SCRAM-SHA-256"):
        side, exchange = ScramClient(name, password, "sha256"), ScramExchange(users, mechanism)
        last = side.last(exchange.step(header.encode() + side.first.encode()), header)
        with pytest.raises(RefusedError):
            exchange.step(change(last))
        assert exchange.user is None
        return last

    replayed = refused(password="wrong")
    refused(name="nobody")
    refused(change=lambda _: replayed)
    refused(change=lambda last: last[:-8])
    refused(change=lambda last: last.replace(b"c=biws", b"c=eSws"))  # as if the client had seen another header
    refused(change=lambda last: last.partition(b",p=")[0])
    for first in (b"p=tls-unique,,n=alice,r=a", b"n,a=bob,n=alice,r=a", b"n,,n=al=2Xice,r=a", b"n,,r=a", b"", b"\xff"):
        with pytest.raises(RefusedError):
            ScramExchange(users, "SCRAM-SHA-256").step(first)


def test_a_name_that_is_no_user_is_asked_like_one(users):
    def asked(name):
        answer = ScramExchange(users, "SCRAM-SHA-256").step(f"n,,n={name},r=a".encode()).decode()
        return answer.split(",")[1:]

    assert asked("nobody") == asked("nobody") != asked("other")
    assert asked("nobody")[1] == asked("alice")[1]


def test_a_changed_file_of_users_is_read_again_and_a_damaged_one_lets_nobody_in(tmp_path):
    path = tmp_path / "users.json"
    path.write_bytes(encode_users({"alice": credentials_of("one")}))
    users = UserFile(path)
    assert users.credentials("alice") and not users.credentials("bob")
    path.write_bytes(encode_users({"bob": credentials_of("two")}))
    os.utime(path, (1, 1))
    assert users.credentials("bob") and not users.credentials("alice")
    for damage in (b"", b"{}", b'{"v": 2, "users": {}}', b'{"v": 1, "users": {"a": {"SCRAM-SHA-256": "salt=1"}}}',
                   encode_users({"a": credentials_of("x")}).replace(b"iterations=8192", b"iterations=1")):  # fmt: skip
        path.write_bytes(damage)
        with pytest.raises(InvalidConfigError) as caught:
            users.credentials("bob")
        assert caught.value.code is ErrorCode.REPLOG_INPUT
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(InvalidConfigError):
        read_users(path)


def test_other_machines_reach_a_gateway_only_with_tls_and_users_or_if_somebody_typed_it():
    for host in ("127.0.0.1", "127.3.3.3", "::1", "localhost"):
        require_safe(f"{host}:9092", host, has_tls=False, has_users=False, is_insecure=False)
    for host in ("0.0.0.0", "::", "10.0.0.7", "kafka.example.org", "localhost.example.org", "fe80::1", ""):
        require_safe(f"{host}:9092", host, has_tls=True, has_users=True, is_insecure=False)
        require_safe(f"{host}:9092", host, has_tls=False, has_users=False, is_insecure=True)
        for has_tls, has_users in ((False, False), (True, False), (False, True)):
            with pytest.raises(InvalidConfigError) as caught:
                require_safe(f"{host}:9092", host, has_tls=has_tls, has_users=has_users, is_insecure=False)
            assert caught.value.code is ErrorCode.REPLOG_OPEN_TO_ALL
            assert ("--tls-cert" in str(caught.value), "--users" in str(caught.value)) == (not has_tls, not has_users)
    assert [is_any_address(host) for host in ("0.0.0.0", "::", "", "10.0.0.7", "host")] == [True] * 3 + [False] * 2


def test_files_that_are_no_certificate_are_refused_with_their_names(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for content in (None, b"", b"nonsense"):
        if content is not None:
            certificate.write_bytes(content)
            key.write_bytes(content)
        with pytest.raises(InvalidConfigError) as caught:
            tls_context(certificate, key)
        assert caught.value.code is ErrorCode.REPLOG_INPUT
        assert str(certificate) in str(caught.value)
