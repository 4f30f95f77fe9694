"""Kafka's own command-line tools, of Kafka 4.1, at a gateway."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replog.cli.java import java_environment
from spark_replog.client.producer import Producer
from spark_replog.gateway.placement import Placement
from spark_replog.groups.group_coordinator import GroupCoordinator
from tests.gateways import RunningGateway
from tests.servers.builds import KAFKA_TOOLS, NotBuilt
from tests.waiting import SECONDS_MAX

pytestmark = pytest.mark.wide
TOOLS = "org.apache.kafka.tools"
COUNT = 2_000


class Tools:
    """Kafka's tools, which ask one gateway."""

    def __init__(self, jars: Path, gateway: RunningGateway) -> None:
        home = java_environment(os.environ).get("JAVA_HOME") or os.environ.get("JAVA_HOME")
        self.jars = jars
        self._java = [f"{home}/bin/java" if home else "java", "-Xmx256m", "-cp", f"{jars}/*"]
        self.gateway = gateway

    def run(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Run a tool; return what it printed."""
        return self.run_with(tool, "--bootstrap-server", self.gateway.address, *arguments, stdin=stdin)

    def run_with(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Run a tool that takes the address in its own way; return what it printed."""
        command = [*self._java, tool, *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=SECONDS_MAX
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    try:
        jars = KAFKA_TOOLS.folder()
    except NotBuilt as why:
        pytest.skip(str(why))
    with RunningGateway() as gateway:
        yield Tools(jars, gateway)


def events(text: str, name: str) -> list[dict[str, object]]:
    """Return the lines of a verifiable client that tell of one kind of event."""
    return [event for line in text.splitlines() if line.startswith("{") and (event := json.loads(line))["name"] == name]


def test_topics(tools):
    topics = f"{TOOLS}.TopicCommand"
    tools.run(topics, "--create", "--topic", "made", "--partitions", "2", "--config", "cleanup.policy=compact")
    tools.run(topics, "--alter", "--topic", "made", "--partitions", "3")
    told = tools.run(topics, "--describe", "--topic", "made")
    assert "PartitionCount: 3" in told and "cleanup.policy=compact" in told
    configs = "kafka.admin.ConfigCommand"
    tools.run(configs, "--alter", "--entity-type", "topics", "--entity-name", "made", "--add-config", "retention.ms=77")
    assert "retention.ms=77" in tools.run(configs, "--describe", "--entity-type", "topics", "--entity-name", "made")
    listed = tools.run(configs, "--describe", "--entity-type", "topics")
    assert "made" in listed
    tools.run(topics, "--delete", "--topic", "made")
    assert "made" not in tools.run(topics, "--list").split()


def test_records_groups_and_offsets(tools):
    tools.run(f"{TOOLS}.TopicCommand", "--create", "--topic", "orders", "--partitions", "3")
    sent = tools.run(f"{TOOLS}.VerifiableProducer", "--topic", "orders", "--max-messages", str(COUNT))
    assert events(sent, "tool_data")[0]["acked"] == COUNT
    ends = tools.run(f"{TOOLS}.GetOffsetShell", "--topic", "orders").split()
    assert sum(int(line.rpartition(":")[2]) for line in ends) == COUNT
    reading = ["--topic", "orders", "--group-id", "g", "--max-messages", str(COUNT), "--reset-policy", "earliest"]
    read = tools.run(f"{TOOLS}.VerifiableConsumer", *reading)
    assert sum(int(str(event["count"])) for event in events(read, "records_consumed")) == COUNT
    assert all(event["success"] for event in events(read, "offsets_committed"))
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    told = [line.split() for line in tools.run(groups, "--describe", "--group", "g").splitlines() if "orders" in line]
    assert sum(int(row[3]) for row in told) == COUNT and {row[5] for row in told} == {"0"}, "no lag"
    assert "Empty" in tools.run(groups, "--describe", "--group", "g", "--state")
    reset = ["--reset-offsets", "--to-earliest", "--execute", "--group", "g", "--topic", "orders"]
    assert tools.run(groups, *reset).count("orders") == 3
    committed = GroupCoordinator(tools.gateway.cluster).fetch_offsets("g")
    assert [at.offset for at in committed.values() if at is not None] == [0, 0, 0]
    tools.run(groups, "--delete", "--group", "g")
    assert "g" not in tools.run(groups, "--list").split()


def test_a_consumer_reads_from_the_gateway_of_its_rack(tools):
    with RunningGateway(rack="a") as far, RunningGateway(far.cluster, node_id=1, rack="b") as near:
        for gateway in (far, near):
            gateway.gateway.placement = Placement([far.gateway.node, near.gateway.node])
        far.store.admin().create_topic("racks", 8)
        value = b"x" * 100_000
        with Producer(far.cluster) as producer:
            for number in range(80):
                producer.send("racks", value, partition=number % 8)
        other = Tools(tools.jars, far)
        reading = [
            "--topic",
            "racks",
            "--from-beginning",
            "--max-messages",
            "80",
            "--consumer-property",
            "client.rack=b",
        ]
        assert len(other.run(f"{TOOLS}.consumer.ConsoleConsumer", *reading).split()) == 80
        assert far.server.counts()["sentBytes"] < 1_000_000 < 80 * len(value) < near.server.counts()["sentBytes"]


def test_the_console(tools):
    tools.run(f"{TOOLS}.TopicCommand", "--create", "--topic", "lines", "--partitions", "1")
    tools.run(f"{TOOLS}.ConsoleProducer", "--topic", "lines", stdin="one\ntwo\nthree\n")
    reading = ["--topic", "lines", "--from-beginning", "--max-messages", "3"]
    assert tools.run(f"{TOOLS}.consumer.ConsoleConsumer", *reading).split() == ["one", "two", "three"]


def test_the_performance_tools_and_the_list_of_groups(tools):
    tools.run(f"{TOOLS}.TopicCommand", "--create", "--topic", "fast", "--partitions", "2")
    address = f"bootstrap.servers={tools.gateway.address}"
    sending = ["--topic", "fast", "--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1"]
    told = tools.run_with(f"{TOOLS}.ProducerPerformance", *sending, "--producer-props", address, "acks=all")
    assert f"{COUNT} records sent" in told
    reading = ["--topic", "fast", "--messages", str(COUNT), "--group", "perf", "--hide-header"]
    row = tools.run(f"{TOOLS}.ConsumerPerformance", *reading, "--timeout", "60000").strip().splitlines()[-1].split(", ")
    assert int(row[4]) >= COUNT
    assert "perf" in tools.run(f"{TOOLS}.GroupsCommand", "--list")
    told = tools.run_with(f"{TOOLS}.EndToEndLatency", tools.gateway.address, "fast", "50", "all", "100")
    assert "Percentiles" in told
