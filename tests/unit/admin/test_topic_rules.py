"""Topic names and their collisions: Kafka's ``TopicTest``."""

from __future__ import annotations

import numpy as np
import pytest

from spark_replog.admin import topic_rules
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError

FORBIDDEN = "/\\,\0:\"';*? \t\r\n="


@pytest.mark.case("kafka-120")
@pytest.mark.parametrize("name", ["valid", "TOPIC", "nAmEs", "ar6", "VaL1d", "_0-9_.", "...", "a" * 249])
def test_valid_names(name):
    topic_rules.check_name(name)


@pytest.mark.case("kafka-120")
@pytest.mark.parametrize(
    "name", ["", "foo bar", "..", "foo:bar", "foo=bar", ".", "a" * 250, *(f"Is{sign}illegal" for sign in FORBIDDEN)]
)
def test_invalid_names(name):
    with pytest.raises(InvalidConfigError, match="INVALID_TOPIC_EXCEPTION"):
        topic_rules.check_name(name)


@pytest.mark.case("kafka-120")
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


@pytest.mark.case("server-7-8-increase")
@pytest.mark.parametrize("total", [3, 2, 0, -1])
def test_a_topic_only_grows(total):
    with pytest.raises(InvalidConfigError, match="INVALID_PARTITIONS"):
        topic_rules.check_growth("orders", 3, total)
    topic_rules.check_growth("orders", 3, 4)


BOUNDS = [(0, 10), (4, 4)]


@pytest.mark.parametrize(
    ("asked", "moved"),
    [
        ({0: 10}, ((0, 10),)),
        ({0: -1, 1: -1}, ((0, 10),)),
        ({1: 4}, ()),
        ({0: 0}, ()),
        ({1: 2}, ()),
        ({0: 1}, ((0, 1),)),
    ],
)
def test_records_are_deleted_up_to_the_high_watermark_and_never_come_back(asked, moved):
    assert topic_rules.log_starts("orders", BOUNDS, asked) == moved


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({0: 11}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({0: -3}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({2: 0}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({-1: 0}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_records_that_cannot_be_deleted_are_refused(asked, code):
    with pytest.raises(ReplogError) as refused:
        topic_rules.log_starts("orders", BOUNDS, {0: 1} | asked)
    assert refused.value.code is code


@pytest.mark.parametrize("name", ["", "..", "a/b", "a" * 250])
def test_a_ledger_has_a_name_that_a_topic_could_have(name):
    topic_rules.check_ledger_name("shop.2")
    with pytest.raises(InvalidConfigError) as refused:
        topic_rules.check_ledger_name(name)
    assert refused.value.code is ErrorCode.REPLOG_INVALID_OPTION


@pytest.mark.parametrize("value", ["x", "3", 2.5, 2.0, True, None, [1]])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InvalidConfigError, match="Give a whole number") as caught:
        topic_rules.whole_number(value, "partitions", ErrorCode.INVALID_PARTITIONS)
    assert caught.value.code is ErrorCode.INVALID_PARTITIONS
    assert topic_rules.whole_number(np.int64(3), "partitions", ErrorCode.INVALID_PARTITIONS) == 3
