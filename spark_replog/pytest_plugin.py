"""pytest's fixture `kafka_server`: a Kafka for the tests of one run. pytest loads this file in each of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_replog.testing import KafkaServer

_PARTITIONS = "kafka_server_partitions"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting of pytest's configuration file."""
    parser.addini(
        _PARTITIONS, "Partitions of topics that clients of kafka_server use without creating them.", default="4"
    )


@pytest.fixture(scope="session")
def kafka_server(pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """A Kafka in memory, one for the whole run: ``kafka_server.bootstrap_servers``. Needs spark-replog[gateway]."""
    from spark_replog.testing import kafka

    with kafka(partitions=int(pytestconfig.getini(_PARTITIONS))) as server:
        yield server
