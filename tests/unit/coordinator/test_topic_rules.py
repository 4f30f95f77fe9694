"""Topic names and their collisions: Kafka's ``TopicTest``."""

from __future__ import annotations

import pytest

from spark_replog.coordinator import topic_rules
from spark_replog.errors import InvalidConfigError

FORBIDDEN = "/\\,\0:\"';*? \t\r\n="


@pytest.mark.parametrize("name", ["valid", "TOPIC", "nAmEs", "ar6", "VaL1d", "_0-9_.", "...", "a" * 249])
def test_valid_names(name):
    topic_rules.check_name(name)


@pytest.mark.parametrize(
    "name", ["", "foo bar", "..", "foo:bar", "foo=bar", ".", "a" * 250, *(f"Is{sign}illegal" for sign in FORBIDDEN)]
)
def test_invalid_names(name):
    with pytest.raises(InvalidConfigError, match="INVALID_TOPIC_EXCEPTION"):
        topic_rules.check_name(name)


@pytest.mark.parametrize(
    ("name", "other", "collide"),
    [
        ("to.pic", "to_pic", True),
        ("to_pic", "to.pic", True),
        (".topic", "_topic", True),
        ("_.topic", "__topic", True),
        (".topic", "topic_", False),
        ("topic", "topics", False),
    ],
)
def test_names_collide_when_dots_are_underscores(name, other, collide):
    if not collide:
        topic_rules.check_collision(name, [other])
        return
    with pytest.raises(InvalidConfigError, match=f"INVALID_TOPIC_EXCEPTION.*'{other}'"):
        topic_rules.check_collision(name, [other])


@pytest.mark.parametrize("total", [3, 2, 0, -1])
def test_a_topic_only_grows(total):
    with pytest.raises(InvalidConfigError, match="INVALID_PARTITIONS"):
        topic_rules.check_growth("orders", 3, total)
    topic_rules.check_growth("orders", 3, 4)
