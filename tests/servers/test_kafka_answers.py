"""Real Kafka 4.1 answers as the table of answers says, which the gateway is held to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kafka.protocol.metadata import MetadataRequest

from benchmarks.peers import kafka
from tests.gateways import WireClient
from tests.protocol import answer_table
from tests.protocol.case_run import CASES, answers_of
from tests.servers.builds import KAFKA_TOOLS, NotBuilt
from tests.waiting import wait_until

pytestmark = pytest.mark.wide
SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "log.retention.ms": -1,  # the cases' records are dated 1970
    "message.max.bytes": 1_048_588,
    "offsets.topic.num.partitions": 1,
}
"""What the gateway has no setting for, or another default."""


@pytest.fixture(scope="module")
def port(tmp_path_factory) -> Iterator[int]:
    try:
        jars = KAFKA_TOOLS.folder()
    except NotBuilt as why:
        pytest.skip(str(why))
    folder = tmp_path_factory.mktemp("kafka")
    with kafka(folder, 1, is_fsync=False, settings=SETTINGS, jars_folder=jars) as (address, _):
        number = int(address.rpartition(":")[2])

        def is_ready() -> bool:
            with WireClient(number) as client:
                return bool(client.ask(MetadataRequest(topics=None), 12).brokers)

        wait_until(is_ready, pause_seconds=0.2)
        yield number


@pytest.mark.parametrize("name", CASES)
def test_kafka_answers_as_the_table_says(name, port):
    answers = answers_of(name, port)
    if os.environ.get("REPLOG_WRITE_ANSWERS") == "1":
        answer_table.record(name, answers)
    assert answers == answer_table.expected(answer_table.load()[name], "kafka")
