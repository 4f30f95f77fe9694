"""Gateways as processes, and clients that nobody here wrote: users and TLS, and gateways that are killed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ErrorCode
from spark_replog.monitor.store_monitor import StoreMonitor
from tests.certificates import Authority
from tests.gateway_process import GatewayProcess
from tests.waiting import SECONDS_MAX, wait_until


@pytest.fixture
def start(tmp_path) -> Iterator[object]:
    """Return a function that starts a gateway with arguments on one store."""
    store, started = tmp_path / "store", []
    init_cluster(str(store))

    def begin(*arguments: str) -> GatewayProcess:
        create = ("-c", "auto.create.topics.enable=true")
        log = tmp_path / f"gateway-{len(started)}.log"
        settings = (*create, "-c", "num.partitions=8", "-c", "gateway.heartbeat.interval.ms=300")
        started.append(GatewayProcess(store, log, *settings, *arguments))
        return started[-1]

    begin.store = store
    yield begin
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()


def send(client: Producer, topic: str, values: list[bytes]) -> list[KafkaError]:
    """Send records and return the errors."""
    answers: list[KafkaError | None] = []
    for value in values:
        client.produce(topic, value, on_delivery=lambda error, _: answers.append(error))
    assert client.flush(SECONDS_MAX) == 0
    assert len(answers) == len(values)
    return [error for error in answers if error is not None]


def test_users_come_in_by_each_mechanism_over_tls_and_are_the_principals_of_acls(start, tmp_path, capsys, monkeypatch):
    users, certificate, key = tmp_path / "users.json", tmp_path / "cert.pem", tmp_path / "key.pem"
    for name in ("alice", "bob"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(f"secret of {name}\n"))
            assert run(["user", "add", name, "--users", str(users)]) == 0
    assert "secret" not in users.read_text() + capsys.readouterr().out
    assert users.stat().st_mode & 0o077 == 0
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gateway",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    acl = ["acl", "add", "--allow-principal", "User:alice", "--operation", "all", "--topic", "orders"]
    assert run(["-s", str(start.store), *acl]) == 0
    gateway = start("--users", str(users), "--tls-cert", str(certificate), "--tls-key", str(key))

    def producer(name: str, password: str, mechanism: str, errors: list[int]) -> Producer:
        return Producer(
            {
                "bootstrap.servers": gateway.address,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(certificate),
                "sasl.mechanism": mechanism,
                "sasl.username": name,
                "sasl.password": password,
                "error_cb": lambda error: errors.append(error.code()),
                "log_level": 0,
            }
        )

    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        errors: list[int] = []
        assert send(producer("alice", "secret of alice", mechanism, errors), "orders", [b"1"]) == []
        assert errors == []
        client = producer("alice", "wrong", mechanism, errors)
        wait_until(lambda: client.poll(0.01) or KafkaError._AUTHENTICATION in errors)  # noqa: B023
    refused = send(producer("bob", "secret of bob", "SCRAM-SHA-512", []), "orders", [b"no"])
    assert [error.code() for error in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert gateway.end(signal.SIGTERM) == 0
    assert "secret" not in gateway.text
    assert "user 'alice' is unknown, or the password is wrong" in gateway.text


def test_clients_come_in_by_certificate_and_are_the_principals_of_acls(start, tmp_path):
    authority = Authority(tmp_path).make()
    certificate, key = authority.sign("server", "/CN=gateway", "IP:127.0.0.1")
    acl = ["acl", "add", "--allow-principal", "User:CN=alice,O=example", "--operation", "all", "--topic", "orders"]
    assert run(["-s", str(start.store), *acl]) == 0
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(authority.certificate))
    gateway = start(*tls)

    def producer(name: str | None, subject: str = "", errors: list[int] | None = None) -> Producer:
        told = [] if errors is None else errors
        options = {"bootstrap.servers": gateway.address, "security.protocol": "SSL", "log_level": 0,
                   "ssl.ca.location": str(authority.certificate)}  # fmt: skip
        if name is not None:
            client_certificate, client_key = authority.sign(name, subject)
            options |= {"ssl.certificate.location": str(client_certificate), "ssl.key.location": str(client_key)}
        return Producer({**options, "error_cb": lambda error: told.append(error.code())})

    assert send(producer("alice", "/O=example/CN=alice"), "orders", [b"1"]) == []
    refused = send(producer("bob", "/O=example/CN=bob"), "orders", [b"no"])
    assert [error.code() for error in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    errors: list[int] = []
    client = producer(None, errors=errors)
    wait_until(lambda: client.poll(0.01) or errors)
    assert gateway.end(signal.SIGTERM) == 0


def test_clients_go_on_at_the_other_gateway_when_one_is_killed(start):
    first, second = start("--id", "7"), start()
    addresses = f"{first.address},{second.address}"
    client = Producer({"bootstrap.servers": addresses, "enable.idempotence": True, "log_level": 0,
                       "topic.metadata.refresh.interval.ms": 500})  # fmt: skip
    reader = Consumer({"bootstrap.servers": addresses, "group.id": "g", "auto.offset.reset": "earliest",
                       "log_level": 0})  # fmt: skip
    numbers = range(400)
    assert send(client, "orders", [b"%d" % number for number in numbers[:200]]) == []
    brokers = wait_until(lambda: len(listed := client.list_topics(timeout=30).brokers) == 2 and listed)
    assert sorted(f"{broker.host}:{broker.port}" for broker in brokers.values()) == sorted(addresses.split(","))
    assert brokers[7].port == int(first.address.rpartition(":")[2])
    wait_until(lambda: leaders_of(client) == set(brokers), "each leads some of 8 partitions")
    first.end(signal.SIGKILL)
    assert send(client, "orders", [b"%d" % number for number in numbers[200:]]) == []
    reader.assign([TopicPartition("orders", partition, 0) for partition in range(8)])
    read: dict[int, list[int]] = {}
    wait_until(lambda: read_some(reader, read) or sum(map(len, read.values())) >= len(numbers), lambda: read)
    assert sorted(number for part in read.values() for number in part) == list(numbers), "each once"
    assert all(part == sorted(part) for part in read.values())
    wait_until(lambda: leaders_of(client) == set(brokers) - {7})


def leaders_of(client: Producer) -> set[int]:
    return {part.leader for part in client.list_topics(timeout=30).topics["orders"].partitions.values()}


def read_some(reader: Consumer, read: dict[int, list[int]]) -> None:
    for message in reader.consume(500, 0.2):
        if message.error() is None:
            read.setdefault(message.partition(), []).append(int(message.value()))


def test_consumers_read_from_the_gateway_of_their_rack(start):
    first, second = start("--rack", "a", "--id", "1"), start("--rack", "b", "--id", "2")
    addresses = f"{first.address},{second.address}"
    client = Producer({"bootstrap.servers": addresses, "log_level": 0, "topic.metadata.refresh.interval.ms": 500})
    numbers = range(200)
    assert send(client, "orders", [b"%d" % number for number in numbers]) == []
    wait_until(lambda: leaders_of(client) == {1, 2})
    for rack, broker in (("a", 1), ("b", 2)):
        brokers: dict[int, int] = {}

        def learn(text: str, brokers: dict[int, int] = brokers) -> None:
            parts = json.loads(text)["topics"].get("orders", {}).get("partitions", {})
            brokers.update({int(number): part["broker"] for number, part in parts.items() if int(number) >= 0})

        options = {"bootstrap.servers": addresses, "group.id": f"g{rack}", "client.rack": rack, "stats_cb": learn}
        reader = Consumer({**options, "statistics.interval.ms": 100, "log_level": 0})
        reader.assign([TopicPartition("orders", partition, 0) for partition in range(8)])
        read: dict[int, list[int]] = {}
        wait_until(lambda: read_some(reader, read) or set(brokers.values()) == {broker}, lambda: brokers)  # noqa: B023
        wait_until(lambda: read_some(reader, read) or sum(map(len, read.values())) >= len(numbers), lambda: read)  # noqa: B023
        assert sorted(number for part in read.values() for number in part) == list(numbers), "each once"
        reader.close()


def test_an_id_belongs_to_one_gateway_until_it_has_ended(start, capsys):
    first = start("--id", "7")
    refused = start("--id", "7")
    assert refused.process.wait(SECONDS_MAX) == 2
    assert ErrorCode.DUPLICATE_BROKER_REGISTRATION.name in refused.text
    gateways = StoreMonitor(Cluster.open(str(start.store))).gateways
    assert [(gateway.node_id, gateway.address) for gateway in gateways()] == [(7, first.address)]
    first.end(signal.SIGKILL)
    again = start("--id", "7")
    assert again.process.poll() is None
    assert [(gateway.node_id, gateway.address) for gateway in gateways()] == [(7, again.address)]

    def states():
        capsys.readouterr()
        run(["-s", str(start.store), "status", "-f", "json"])
        (item,) = json.loads(capsys.readouterr().out)["items"]
        return [(gateway["gateway"], gateway["state"]) for gateway in item["gateways"]]

    wait_until(lambda: states() == [(7, "ok")], states)
    assert again.end(signal.SIGTERM) == 0
    assert gateways() == (), "it has removed its note"


def is_served(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def processes(gateway: GatewayProcess) -> list[tuple[str, int]]:
    """Return the address and the number of each process that it says it has started, in their order."""
    return [
        (address, int(number)) for address, number in re.findall(r"gateway at (\S+) is process (\d+)", gateway.text)
    ]


def test_workers_are_brokers_of_their_own_started_again_when_they_die_and_drained_together(start):
    gateways = start("--workers", "2", "-v")
    addresses = gateways.address.split(",")
    client = Producer({"bootstrap.servers": addresses[0], "log_level": 0, "topic.metadata.refresh.interval.ms": 500})
    assert send(client, "orders", [b"%d" % number for number in range(100)]) == []
    brokers = wait_until(lambda: len(listed := client.list_topics(timeout=30).brokers) == 2 and listed)
    assert sorted(f"{broker.host}:{broker.port}" for broker in brokers.values()) == sorted(addresses)
    wait_until(lambda: leaders_of(client) == set(brokers), "one client uses all of them")
    killed = dict(processes(gateways))[addresses[1]]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(processes(gateways)) == 3, lambda: gateways.text)
    assert processes(gateways)[-1][0] == addresses[1], "at the same address"
    assert processes(gateways)[-1][1] != killed
    assert "exit code -9" in gateways.text
    assert send(client, "orders", [b"%d" % number for number in range(100)]) == []
    wait_until(lambda: set(client.list_topics(timeout=30).brokers) == set(brokers), lambda: gateways.text)
    other = Producer({"bootstrap.servers": addresses[1], "log_level": 0})
    assert send(other, "orders", [b"1"]) == []
    assert gateways.end(signal.SIGTERM) == 0
    assert not any(is_served(address) for address in addresses)


def test_workers_end_with_the_process_that_started_them(start):
    gateways = start("--workers", "2")
    addresses = gateways.address.split(",")
    assert all(is_served(address) for address in addresses)
    gateways.end(signal.SIGKILL)
    wait_until(lambda: not any(is_served(address) for address in addresses))


def test_workers_that_cannot_start_end_the_command_and_say_why(start):
    start("--id", "8")
    refused = start("--workers", "2", "--id", "7")
    assert refused.process.wait(SECONDS_MAX) == 2
    assert ErrorCode.DUPLICATE_BROKER_REGISTRATION.name in refused.text
