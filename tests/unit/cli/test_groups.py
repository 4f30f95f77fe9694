"""``replog group`` and ``replog consume`` on a real store."""

from __future__ import annotations

import json

import click
import pytest

from spark_replog import Consumer, TopicPartition
from spark_replog.cli.settings import parse_duration_ms, parse_time_ms
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import MemberIdentity
from spark_replog.groups.group_notes import Note, NoteKind
from spark_replog.groups.group_rebalance import GroupSubscription, encode_subscription
from spark_replog.log.codec.group_records import GroupMember, OffsetAndMetadata
from tests.unit.client.consumer_setup import ManualClock, Store

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"))
    made.create("orders", 2)
    made.write(
        "orders",
        [b"a", b"b", b"c"],
        keys=[b"k", None, b"l"],
        times_ms=[1_000, 2_000, 3_000],
        headers=[[{"key": "h", "value": b"1"}], None, None],
    )
    made.write("orders", [b"\xff\x00", None], partition=1, times_ms=[4_000, 5_000])
    return made


@pytest.fixture
def call(store, replog):
    return lambda *words: replog("-s", store.path, *words)


@pytest.fixture
def billing(store):
    """A group that has read the first row of partition 0."""
    with Consumer(store.cluster, group="billing", enable_auto_commit=False) as reader:
        reader.assign([P0, P1])
        reader.commit({P0: 1})


def test_no_groups(call):
    assert call("group", "list").out == "no groups\n"
    assert call("group", "list", "-f", "json").items == []


def test_list_and_describe_say_how_far_a_group_is(call, billing):
    (item,) = call("group", "list", "-f", "json").items
    assert item == {"group": "billing", "state": "EMPTY", "members": 0, "topics": ["orders"], "ok": True}
    (group,) = call("group", "describe", "billing", "-f", "json").items
    part, other = group["partitions"]
    assert (other["partition"], other["committed"], other["lag"], other["highWatermark"]) == (1, None, None, 2)
    assert (part["topic"], part["partition"], part["committed"], part["highWatermark"], part["lag"]) == (
        "orders",
        0,
        1,
        3,
        2,
    )
    assert part["lagMs"] >= 0
    answer = call("group", "describe", "--all-groups")
    assert "billing  orders" in answer.out and "1 partitions without a position" in answer.out
    assert answer.exit_code == 0


def test_numbers_of_partitions_are_names(call, store, tmp_path):
    store.create("wide", 1_001)
    lines = tmp_path / "lines"
    lines.write_text("a\n")
    with Consumer(store.cluster, group="billing", enable_auto_commit=False) as reader:
        reader.assign([TopicPartition("wide", 1_000)])
        reader.commit({TopicPartition("wide", 1_000): 0})
    for words in (
        ("group", "describe", "billing"),
        ("group", "reset-offsets", "billing", "--topic", "wide:1000", "--to-earliest"),
        ("produce", "wide", "-p", 1_000, lines),
    ):
        output = call(*words).out.split()
        assert "1000" in output and "1,000" not in output


@pytest.mark.case("kafka-124e")
def test_lag_is_undefined_without_a_commit_and_zero_at_the_end(call, store):
    with Consumer(store.cluster, group="g", enable_auto_commit=False) as reader:
        reader.subscribe(["orders"])
        reader.poll(timeout_ms=5_000)
        reader.commit({P0: 3})
        (group,) = call("group", "describe", "g", "-f", "json").items
        members = call("group", "describe", "g", "--members")
    lags = {part["partition"]: (part["lag"], part["lagMs"]) for part in group["partitions"]}
    assert lags == {0: (0, 0), 1: (None, None)}
    assert all(part["member"].startswith("consumer-") for part in group["partitions"])
    assert "orders-0,orders-1" in members.out


@pytest.mark.parametrize("words", [(), ("--members",)])
def test_of_a_group_that_is_not_there_no_empty_table_is_shown(call, words):
    answer = call("group", "describe", "nothing", *words)
    assert (answer.exit_code, answer.out) == (1, "") and "GROUP_ID_NOT_FOUND" in answer.err


def test_a_group_that_is_not_there_fails_alone(call, billing):
    answer = call("group", "describe", "billing", "nobody", "-f", "json")
    assert answer.exit_code == 1
    assert [item["ok"] for item in answer.items] == [True, False]
    assert answer.items[1]["error"] == "GROUP_ID_NOT_FOUND"
    assert call("group", "describe").exit_code == 2


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 3, 1: 2}),
        (["--to-current"], {0: 1, 1: 2}),
        (["--to-offset", "0"], {0: 0, 1: 0}),
        (["--to-offset", "2"], {0: 2, 1: 2}),
        (["--to-offset", "99"], {0: 3, 1: 2}),
        (["--to-offset", "latest"], {0: 3, 1: 2}),
        (["--to-offset", "-2"], {0: 0, 1: 0}),
        (["--shift-by", "-5"], {0: 0, 1: 0}),
        (["--shift-by", "0"], {0: 1, 1: 2}),
        (["--shift-by", "1"], {0: 2, 1: 2}),
        (["--to-datetime", "1970-01-01T00:00:02"], {0: 1, 1: 0}),
        (["--by-duration", "PT1S"], {0: 3, 1: 2}),
    ],
)
def test_a_reset_shows_its_plan_and_does_it_when_told(call, store, billing, caplog, words, after):
    plan = call("group", "reset-offsets", "billing", "--topic", "orders", *words, "-f", "json")
    assert {item["partition"]: item["after"] for item in plan.items} == after
    assert [item["before"] for item in plan.items] == [1, None]
    assert all(item["dry_run"] for item in plan.items)
    said = [record.args[0] for record in caplog.records if "is not used" in record.msg]
    assert said == ([99, 99] if "99" in words else [-4, -3] if "-5" in words else [3] if "1" in words else [])
    caplog.clear()
    (group,) = call("group", "describe", "billing", "-f", "json").items
    assert group["partitions"][0]["committed"] == 1
    call("group", "reset-offsets", "billing", "--topic", "orders", *words, "--execute")
    (group,) = call("group", "describe", "billing", "-f", "json").items
    assert {part["partition"]: part["committed"] for part in group["partitions"]} == after


def test_a_reset_reads_a_file_and_takes_single_partitions(call, billing, tmp_path):
    (tmp_path / "plan.csv").write_text("orders,0,2\norders,1,1\n")
    plan = call("group", "reset-offsets", "billing", "--from-file", tmp_path / "plan.csv", "-f", "json")
    assert [item["after"] for item in plan.items] == [2, 1]
    one = call("group", "reset-offsets", "billing", "--topic", "orders:1", "--to-earliest", "-f", "json")
    assert [item["partition"] for item in one.items] == [1]
    mine = call("group", "reset-offsets", "billing", "--all-topics", "--to-earliest", "-f", "json")
    assert [item["partition"] for item in mine.items] == [0]


@pytest.mark.parametrize("damaged", [b"orders,0,\xff\n", b"orders,0,1\r0\n", b"orders,0\n"])
def test_a_reset_refuses_a_file_that_is_no_plan(call, billing, tmp_path, damaged):
    (tmp_path / "plan.csv").write_bytes(damaged)
    answer = call("group", "reset-offsets", "billing", "--from-file", tmp_path / "plan.csv")
    assert answer.exit_code == 2 and "needs lines of topic,partition,offset" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--to-earliest", "--to-latest", "--all-topics"],
        ["--to-earliest"],
        ["--to-earliest", "--topic", "orders:x"],
        ["--to-datetime", "noon", "--all-topics"],
        ["--by-duration", "an hour", "--all-topics"],
    ],
)
def test_a_reset_that_cannot_be_meant_is_a_usage_error(call, billing, words):
    assert call("group", "reset-offsets", "billing", *words).exit_code == 2


def test_a_group_in_use_is_neither_reset_nor_deleted(call, store):
    with Consumer(store.cluster, "orders", group="g", enable_auto_commit=False) as reader:
        reader.poll(timeout_ms=5_000)
        reset = call("group", "reset-offsets", "g", "--topic", "orders", "--to-earliest", "--execute", "-f", "json")
        gone = call("group", "delete", "g", "-y", "-f", "json")
    assert (reset.exit_code, reset.items[0]["error"]) == (1, "NON_EMPTY_GROUP")
    assert (gone.exit_code, gone.items[0]["error"]) == (1, "NON_EMPTY_GROUP")
    assert call("group", "delete", "g", "-y").exit_code == 0


def test_delete_asks_and_deletes(call, billing):
    assert call("group", "delete", "billing").exit_code == 2
    typo = call("group", "delete-offsets", "billing", "--topic", "orders:0,7", "-y", "-f", "json")
    assert (typo.exit_code, typo.items[0]["error"]) == (1, "UNKNOWN_TOPIC_OR_PARTITION")
    assert call("group", "describe", "billing", "-f", "json").items[0]["partitions"] != []
    assert call("group", "delete-offsets", "billing", "--topic", "orders", "-y").exit_code == 0
    assert call("group", "describe", "billing", "-f", "json").items[0]["partitions"] == []
    assert call("group", "delete", "billing", "-y").out == "deleted billing\n"
    assert call("group", "list").out == "no groups\n"


def test_consume_prints_values_from_the_beginning_and_ends_at_the_end(call):
    assert call("consume", "orders", "-p", 0).out == "a\nb\nc\n"


def test_consume_prints_lines_of_json_and_bytes_that_are_no_text_as_base64(call):
    lines = [json.loads(line) for line in call("consume", "orders", "-f", "jsonl").out.splitlines()]
    assert lines[0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:01.000Z",
        "key": "k",
        "headers": [["h", "1"]],
        "value": "a",
    }
    assert [line["value"] for line in lines[1:]] == ["b", "c", {"b64": "/wA="}, None]
    assert [item["value"] for item in call("consume", "orders", "-n", 1, "-f", "json").items] == ["a"]


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["-n", "2"], "a\nb\n"),
        (["-o", "1"], "b\nc\n"),
        (["-o", "end-1"], "c\n"),
        (["-o", "end"], ""),
        (["-o", "beginning", "-n", "1"], "a\n"),
        (["--from-beginning", "-n", "1"], "a\n"),
        (["-o", "@1500"], "b\nc\n"),
        (["-o", "@1970-01-01T00:00:03Z"], "c\n"),
        (["--print-key", "--print-offset", "-n", "2"], "Offset:0\tk\ta\nOffset:1\tnull\tb\n"),
        (
            ["--print-timestamp", "--print-partition", "--print-headers", "--key-separator", "|", "-n", "2"],
            "CreateTime:1000|Partition:0|h:1|a\nCreateTime:2000|Partition:0|NO_HEADERS|b\n",
        ),
        (["--output", "raw"], "abc"),
        (["--output", r"%t/%p/%o %T %k=%s %h %K %S %%\n", "-n", "1"], "orders/0/0 1000 k=a h=1 1 1 %\n"),
        (
            ["--output", "csv", "-n", "2"],
            "topic,partition,offset,timestamp,key,value,headers\n"
            'orders,0,0,1970-01-01T00:00:01.000Z,k,a,"[[""h"", ""1""]]"\n'
            "orders,0,1,1970-01-01T00:00:02.000Z,,b,\n",
        ),
    ],
)
def test_consume_begins_ends_and_prints_as_told(call, words, out):
    assert call("consume", "orders", "-p", 0, *words).out == out


def test_consume_follows_until_nothing_came_for_a_while(call):
    assert call("consume", "orders", "-p", 0, "--follow", "--from-beginning", "--timeout-ms", 50).out == "a\nb\nc\n"
    assert call("consume", "orders", "--follow", "--timeout-ms", 50).out == ""


def test_consume_for_a_group_goes_on_where_it_ended(call):
    assert call("consume", "orders", "-p", 0, "-g", "app", "-n", 2).out == "a\nb\n"
    assert call("consume", "orders", "-p", 0, "-g", "app").out == "c\n"
    assert call("consume", "orders", "-p", 0, "-g", "app").out == ""


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["nothing"], 1),
        (["orders", "-p", "9"], 1),
        (["orders", "-o", "soon"], 2),
        (["orders", "--from-beginning", "-o", "3"], 2),
        (["orders", "--timeout-ms", "5"], 2),
        (["orders", "--follow", "-f", "json"], 2),
        (["orders", "--output", "xml"], 2),
        (["orders", "--output", "%q"], 2),
    ],
)
def test_consume_refuses_what_it_cannot_do(call, words, exit_code):
    assert call("consume", *words).exit_code == exit_code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("pt5s", 5_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("0s", 0),
    ],
)
def test_durations(text, expected):
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "-", "5", "5x", "m5", "-5m", "1h 30m"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(click.UsageError, match="30m, 1h30m"):
        parse_duration_ms(text)


def test_times():
    assert parse_time_ms("1970-01-01T01:00:00+01:00") == 0
    assert parse_time_ms("77") == 77
    assert parse_time_ms("2106-12-18T19:56:38.999") == 4_322_145_398_999, "to the millisecond"
    assert parse_time_ms("1969-12-31T23:59:59.9995") == -1


def test_describe_fails_above_a_lag(call, billing):
    assert call("group", "describe", "billing", "--fail-above", 2).exit_code == 0
    assert call("group", "describe", "billing", "--fail-above", 1).exit_code == 4


@pytest.mark.parametrize(("after", "code", "verdict"), [("PT5M", 0, "OK"), ("PT0S", 4, "STOPPED")])
def test_check_judges_groups_and_its_exit_code_is_the_worst(call, billing, after, code, verdict):
    answer = call("group", "check", "--all-groups", "--after", after, "-f", "json")
    assert (answer.exit_code, [item["verdict"] for item in answer.items]) == (code, [verdict])
    text = call("group", "check", "billing", "--after", after)
    assert text.exit_code == code and verdict in text.out
    assert call("group", "check").exit_code == 2
    beside = call("group", "check", "none", "billing", "--after", after, "-f", "json")
    assert [item.get("verdict") for item in beside.items] == [None, verdict]
    assert beside.exit_code == (code if code == 4 else 1)


def test_the_last_move_of_an_offset_is_kept_and_a_repeated_commit_is_none(store, billing):
    coordinator = GroupCoordinator(store.cluster)
    for offset in (1, 2, 2):
        store.clock.advance(10_000)
        coordinator.commit_offsets("billing", {P0: OffsetAndMetadata(offset)})
    state = coordinator.group("billing")
    move, at = state.moves["orders", 0], state.offsets["orders", 0]
    assert (move.from_offset, at.offset) == (1, 2)
    assert 9_000 < move.since_ms - move.from_ms < 20_000 and at.commit_time_ms - move.since_ms > 9_000


def test_offsets_at_a_time(call, store):
    def at(where):
        return [item["offset"] for item in call("topic", "offsets", "orders", "--at", where, "-f", "json").items]

    assert (at("start"), at("end")) == ([0, 0], [3, 2])
    assert at("@2000") == [1, 0]
    assert at("@-1h") == [3, 2]  # nothing is that late
    assert call("topic", "offsets", "orders", "--at", "noon").exit_code == 2


@pytest.mark.parametrize(("text", "ago_ms"), [("-1h", 3_600_000), ("-1d2h3m4s", 93_784_000), ("-90m", 5_400_000)])
def test_a_time_may_be_given_as_how_long_ago(text, ago_ms):
    clock = ManualClock()
    assert clock.now_ms() - 1_000 <= parse_time_ms(text, clock) + ago_ms <= clock.now_ms()


@pytest.mark.parametrize("text", ["-", "-1", "-1x", "1h", "--1h"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(click.UsageError):
        parse_time_ms(text)


def test_a_reset_begins_from_the_last_commit_of_a_member_that_left_unheard(store, call):
    """Its note waits for a leader that died; the command writes it, and only then plans."""
    member = GroupCoordinator(store.another_process().cluster)
    subscription = encode_subscription(GroupSubscription(("orders",)))
    member.join_group("billing", GroupMember("m", "", "app", 45_000, 300_000, True, (("range", subscription),)))
    who = MemberIdentity("m", "", member.group("billing").metadata.generation)
    member.sync_group("billing", who, {"m": b"{}"})
    member.commit_offsets("billing", {P0: OffsetAndMetadata(1)}, who)
    last = member.prepare_commit("billing", {P0: OffsetAndMetadata(3)}, who)
    member.relay.send("billing", Note(NoteKind.LEAVE, member.command("billing", who), last))
    words = ("group", "reset-offsets", "billing", "--topic", "orders:0", "--to-current", "--execute", "-f", "json")
    (item,) = call(*words).items
    assert (item["before"], item["after"]) == (3, 3)
    assert GroupCoordinator(store.cluster).fetch_offsets("billing", [P0])[P0].offset == 3
