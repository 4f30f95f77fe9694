"""``replog tail``: what it prints of several topics, and how it ends."""

from __future__ import annotations

import pytest

from spark_replog import Producer
from spark_replog.admin.controller import Controller
from tests.unit.client.consumer_setup import Store, rows


@pytest.fixture
def store(tmp_path):
    store = Store.init(str(tmp_path / "store"))
    for name in ("orders", "payments"):
        store.create(name)
        store.write(name, rows(12), partition=0)
    return store


@pytest.fixture
def tail(replog, store):
    return lambda *words: replog("-s", store.path, "tail", "orders", "payments", "--no-follow", *words)


def test_it_begins_with_the_newest_rows_of_each_topic(tail):
    lines = tail("-n", 2).out.splitlines()
    assert [line.split()[1:3] for line in lines] == [[name, at] for name in ("orders-0", "payments-0")
                                                     for at in ("10", "11")]  # fmt: skip
    assert lines[0].endswith(" v10") and lines[0][:2] == "20" and lines[0].split()[0].endswith("Z")
    assert len(tail().out.splitlines()) == 20
    assert tail("-n", 0).out == ""


def test_ranges_and_filters_are_those_of_consume(tail):
    assert [line.split()[2] for line in tail("--from", 3, "--to", 5).out.splitlines()] == ["3", "4"] * 2
    assert [line.split()[2] for line in tail("--from", "end-3", "--to", "end-1").out.splitlines()] == ["9", "10"] * 2
    assert len(tail("--from", -2).out.splitlines()) == 24 and tail("--from", -1).out == ""
    assert "end-5" in tail("--from", -5).err
    assert [line.split()[2] for line in tail("--grep", "v7", "-n", 99).out.splitlines()] == ["7"] * 2
    assert tail("--key", "nobody").out == ""


def test_topics_have_colours_where_they_are_asked_for(tail, monkeypatch):
    first, second = tail("-n", 1, "--color", "always").out.splitlines()
    assert "\x1b[36morders-0 11\x1b[0m" in first and "\x1b[33mpayments-0 11\x1b[0m" in second
    assert "\x1b" not in tail("-n", 1).out


def test_hostile_bytes_are_escaped(tail, store):
    with Producer(store.path) as producer:
        producer.send("orders", b"\x1b[2J\xff\nx", key=b"\x07", headers=[("\x1bh", b"\r")]).result(30)
    line, _ = tail("-n", 1).out.splitlines()
    assert "\x1b" not in line and line.endswith(r"'\x07' ['\x1bh'='\r'] '\x1b[2J\\xff\nx'")
    assert r'"b64"' in tail("-n", 1, "-f", "jsonl").out


@pytest.mark.parametrize(
    "words", [("-f", "json"), ("--follow", "--to", "end"), ("--grep", "["), ("--from", 5, "--to", 3)]
)
def test_what_makes_no_sense_is_refused(tail, words):
    assert tail(*words).exit_code == 2


def test_partitions_that_are_added_are_read_from_their_first_row(store, replog, monkeypatch):
    """The first look is at what is there, the next one at what was added."""
    from spark_replog.cli import tail as module

    looks = []

    def record_twice(reader, stops, given, *, is_member):
        looks.append(reader)
        yield from reader.poll(0)
        store.cluster.refresh()
        Controller(store.cluster).add_partitions("orders", 2)
        store.write("orders", rows(2), partition=1)
        reader._membership._assignment.look_again()
        yield from reader.poll(0)

    monkeypatch.setattr(module, "records_of", record_twice)
    answer = replog("-s", store.path, "tail", "orders", "-n", 1)
    assert [line.split()[1:3] for line in answer.out.splitlines()] == [
        ["orders-0", "11"], ["orders-1", "0"], ["orders-1", "1"]]  # fmt: skip
