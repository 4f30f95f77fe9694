"""Settings of the consumer: taken, or refused with the reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spark_replog
from spark_replog import Consumer
from spark_replog.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bootstrap.servers": "a:1"}, "There are no servers"),
        ({"sasl.mechanism": "PLAIN"}, "no connection"),
        ({"group.protocol": "consumer"}, "assignors"),
        ({"metric.reporters": "x"}, "Consumer.metrics()"),
        ({"fetch.min.bites": "1"}, "Did you mean 'fetch.min.bytes'?"),
        ({"auto.offset.reset": "soon"}, "latest, earliest, none"),
        ({"check.crcs": "false"}, "true"),
        ({"heartbeat.interval.ms": "20000"}, "a third of session.timeout.ms"),
        ({"partition.assignment.strategy": "best"}, "range, roundrobin, sticky"),
        ({"value.deserializer": "no.such.Class"}, "cannot be made"),
        ({"key.deserializer": 7}, "module.Class"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused_with_the_reason(store, settings, said):
    with pytest.raises(InvalidConfigError) as refused:
        Consumer(store.cluster, config=settings)
    assert said in str(refused.value)


def test_settings_of_the_coordinator_hold_for_this_consumer_alone(filled):
    own = Consumer(filled.path, "orders", config={"metadata.max.age.ms": "5"})
    other = Consumer(filled.path, "orders")
    assert own._cluster.config.metadata_max_age_ms == 5
    assert other._cluster.config.metadata_max_age_ms == 300_000
    assert other._cluster is Consumer(filled.path)._cluster


def test_the_package_shows_its_classes_and_imports_nothing_before_they_are_asked_for():
    done = subprocess.run(
        [sys.executable, "-c", "import spark_replog, sys; print(sorted({'pyarrow', 'numpy'} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert spark_replog.Consumer is Consumer
    with pytest.raises(AttributeError):
        _ = spark_replog.nothing
