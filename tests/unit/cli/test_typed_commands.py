"""Commands that a message tells to type work as they stand, on a store whose path a shell would take apart."""

from __future__ import annotations

import re
import shlex

import pytest

from spark_replog import Producer
from spark_replog.errors import ReplogError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "it's my store")


@pytest.fixture
def type_it(replog, path):
    """Take the command out of a message, and run it."""

    def run(message: str, *confirmed: str):
        line = re.search(r"replog (-s .*?)(?:, or correct|\.( \w+=`|\n|$))", message)[1]
        words = shlex.split(line)
        assert words[:2] == ["-s", path]
        answer = replog(*words, *confirmed)
        assert answer.exit_code == 0, answer.err
        return words[2:]

    return run


def test_what_a_message_tells_to_type_does_what_was_missing(replog, path, type_it):
    assert type_it(replog("-s", path, "topic", "list").err) == ["init"]
    assert type_it(replog("-s", path, "topic", "describe", "orders").err) == ["topic", "create", "orders", "-p", "1"]
    with Producer(path, max_block_ms=0) as producer:
        missing = str(producer.send("clicks", b"v", partition=1).exception(0))
        assert type_it(missing) == ["topic", "create", "clicks", "-p", "2"]
        missing = str(producer.send("clicks", b"v", partition=3).exception(0))
        assert type_it(missing, "-y") == ["topic", "add-partitions", "clicks", "4"]
        assert producer.send("clicks", b"v", partition=3).result(30).partition == 3


def test_a_right_that_is_asked_for_is_given_by_the_command_in_the_refusal(replog, path, type_it):
    assert replog("-s", path, "init").exit_code == 0
    assert replog("-s", path, "topic", "create", "orders").exit_code == 0
    who = "User:somebody else"
    assert replog("-s", path, "acl", "add", "--allow-principal", "User:other", "--operation", "write",
                  "--topic", "orders").exit_code == 0  # fmt: skip
    with Producer(path, principal=who) as producer:
        with pytest.raises(ReplogError) as raised:
            producer.send("orders", b"v").result(30)
        assert f"'{who}'" in str(raised.value)
        type_it(str(raised.value))
    with Producer(path, principal=who) as producer:
        assert producer.send("orders", b"v").result(30).offset == 0
