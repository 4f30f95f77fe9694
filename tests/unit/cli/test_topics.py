"""init, topic and store on a real store of three directories."""

from __future__ import annotations

import shutil

import pytest

import spark_replog
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.posix_store import PosixStore
from tests.waiting import wait_until

ONE_ITEM_KEYS = {
    "partition",
    "leader",
    "leaderEpoch",
    "replicas",
    "isr",
    "addingReplicas",
    "removingReplicas",
    "logStartOffset",
    "highWatermark",
    "logEndOffset",
    "bytes",
    "fenced",
    "minInsync",
    "heldUntilMs",
}


@pytest.fixture
def store(tmp_path, replog):
    path = tmp_path / "store"
    assert replog("-s", path, "init", "--brokers", 3, "--no-fsync").exit_code == 0
    return path


def test_init_says_what_it_made(tmp_path, replog):
    answer = replog("-s", tmp_path / "s", "init", "--brokers", 4, "--no-fsync", "-f", "json")
    (item,) = answer.items
    assert answer.json["_command"] == "init"
    assert [broker["broker"] for broker in item["brokers"]] == [0, 1, 2, 3]
    assert [broker["metadata"] for broker in item["brokers"]] == [True, True, True, False]
    assert item["fsync"] is False
    assert len(item["clusterId"]) == 32
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [f"broker-{number}" for number in range(4)]


def test_init_twice_is_refused(store, replog):
    answer = replog("-s", store, "init", "--brokers", 3, "-f", "json")
    assert answer.exit_code == 1
    assert answer.items[0]["error"] == "REPLOG_STORE_EXISTS"
    assert answer.items[0]["context"].keys() == {"url"}


def test_init_of_a_list_of_roots_with_racks(tmp_path, replog):
    roots = ",".join(str(tmp_path / name) for name in ("a", "b", "c"))
    made = replog("-s", roots, "init", "--no-fsync", "--rack", "r1", "--rack", "r2", "--rack", "r3")
    assert made.exit_code == 0
    (item,) = replog("-s", roots, "store", "info", "-f", "json").items
    assert [broker["rack"] for broker in item["brokers"]] == ["r1", "r2", "r3"]


def test_init_wants_a_rack_per_broker(tmp_path, replog):
    assert replog("-s", tmp_path / "s", "init", "--brokers", 3, "--rack", "r1").exit_code == 2
    assert not (tmp_path / "s").exists()


def test_two_brokers_are_warned_of(tmp_path, replog):
    answer = replog("-s", tmp_path / "s", "init", "--brokers", 2, "--no-fsync", "-f", "json")
    assert answer.exit_code == 0
    assert "majority of two" in answer.err


def test_trim(store, replog):
    replog("-s", store, "topic", "create", "orders", "-p", 2)
    trim = ("-s", store, "topic", "trim", "orders", "--partition", 1)
    answer = replog(*trim, "--to", 0, "-y", "-f", "json")
    assert (answer.exit_code, answer.json["_command"]) == (0, "topic trim")
    assert answer.items == [{"topic": "orders", "partition": 1, "logStartOffset": 0, "ok": True}]
    refused = replog(*trim, "--to", 1, "-y", "-f", "json")
    assert (refused.exit_code, refused.items[0]["error"]) == (1, "OFFSET_OUT_OF_RANGE")
    assert replog(*trim, "--to", 0).exit_code == 2, "it asks, and nobody can answer"
    nowhere = replog("-s", store, "topic", "trim", "orders", "--partition", 2, "--to", 0, "-y", "-f", "json")
    assert nowhere.items[0]["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_compact(store, replog):
    replog("-s", store, "topic", "create", "orders", "-p", 2)
    with spark_replog.open(str(store)).producer() as producer:
        for number in range(6):
            producer.send("orders", b"v%d" % number, partition=0)
            producer.flush()
    compact = ("-s", store, "topic", "compact", "orders")
    assert replog(*compact, "-f", "json").items[0]["runs"] == 0
    answer = replog(*compact, "--all", "--partitions", "0", "-f", "json")
    assert (answer.exit_code, answer.json["_command"]) == (0, "topic compact")
    (item,) = answer.items
    assert (item["runs"], item["sectionsBefore"], item["sectionsAfter"], item["removedRecords"]) == (1, 5, 1, 0)
    assert replog("-s", store, "topic", "compact", "nothing", "-f", "json").exit_code == 1


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("number", [2, -1])
def test_compact_refuses_partitions_that_the_topic_does_not_have(store, replog, policy, number):
    replog("-s", store, "topic", "create", "orders", "-p", 2, "-c", f"cleanup.policy={policy}")
    with spark_replog.open(str(store)).producer() as producer:
        for _ in range(3):
            producer.send("orders", b"v", key=b"k", partition=1)
            producer.flush()
    answer = replog("-s", store, "topic", "compact", "orders", "--all", f"--partitions=0,{number}", "-f", "json")
    assert (answer.exit_code, answer.items[0]["error"]) == (1, "UNKNOWN_TOPIC_OR_PARTITION")
    assert f"partitions 0 to 1, not {number}" in answer.items[0]["message"]


def test_create_list_describe_delete(store, replog):
    made = replog(
        "-s",
        store,
        "topic",
        "create",
        "orders",
        "-p",
        6,
        "--replicas",
        3,
        "-c",
        "retention.ms=1",
        "-f",
        "json",
    )
    assert (made.exit_code, made.json["_command"]) == (0, "topic create")
    (listed,) = replog("-s", store, "topic", "list", "--size", "-f", "json").items
    assert (listed["topic"], listed["partitions"], listed["replicas"]) == ("orders", 6, 3)
    (named,) = replog("-s", store, "topic", "list", "-f", "json").items
    assert named == {key: listed[key] for key in ("topic", "topicId", "ledgerId")}
    (item,) = replog("-s", store, "topic", "describe", "orders", "-f", "json").items
    assert item["topicId"] == listed["topicId"] == made.items[0]["topicId"]
    assert item["config"] == {"retention.ms": "1"}
    assert [partition["partition"] for partition in item["partitions"]] == list(range(6))
    assert all(set(partition) == ONE_ITEM_KEYS for partition in item["partitions"])
    text = replog("-s", store, "topic", "describe", "orders").out
    assert "PARTITION" in text
    assert "retention.ms=1" in text
    assert replog("-s", store, "topic", "delete", "orders", "-y").exit_code == 0
    assert replog("-s", store, "topic", "list", "-f", "json").items == []


@pytest.mark.parametrize("arguments", [("list",), ("list", "--size")])
def test_names_of_topics_are_read_from_the_clusters_ledger_alone(store, replog, monkeypatch, arguments):
    ids = [replog("-s", store, "topic", "create", name, "-f", "json").items[0]["ledgerId"] for name in ("a", "b")]
    keys = []

    def note(verb):
        def call(self, key, **more):
            keys.append(key)
            return verb(self, key, **more)

        return call

    for name in ("get", "list_keys"):
        monkeypatch.setattr(PosixStore, name, note(getattr(PosixStore, name)))
    answer = replog("-s", store, "topic", *arguments)
    assert answer.exit_code == 0 and [line.split()[0] for line in answer.out.splitlines()] == ["TOPIC", "a", "b"]
    read = {ledger_id for ledger_id in ids if any(ledger_id in key for key in keys)}
    assert len(keys) > 3 and read == (set(ids) if "--size" in arguments else set())


def test_create_twice(store, replog):
    assert replog("-s", store, "topic", "create", "orders").exit_code == 0
    again = replog("-s", store, "topic", "create", "orders", "-f", "json")
    assert again.exit_code == 1
    assert again.items[0]["error"] == "TOPIC_ALREADY_EXISTS"
    assert "--if-not-exists" in again.items[0]["hint"]
    assert replog("-s", store, "topic", "create", "orders", "--if-not-exists").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["no/slash"], "INVALID_TOPIC_EXCEPTION"),
        (["t", "-p", "0"], "INVALID_PARTITIONS"),
        (["t", "--replicas", "4"], "INVALID_REPLICATION_FACTOR"),
        (["t", "-c", "retention.sm=1"], None),
        (["t", "-c", "compression.type=gzip"], None),
    ],
)
def test_create_refuses(store, replog, arguments, error):
    answer = replog("-s", store, "topic", "create", *arguments, "-f", "json")
    assert answer.exit_code in {1, 2}
    assert answer.items[0]["ok"] is False
    assert error is None or answer.items[0]["error"] == error
    assert replog("-s", store, "topic", "list", "-f", "json").items == []


def test_one_item_of_two_fails(store, replog):
    replog("-s", store, "topic", "create", "orders")
    answer = replog("-s", store, "topic", "describe", "nope", "orders", "-f", "json")
    assert answer.exit_code == 1
    assert [item["ok"] for item in answer.items] == [False, True]
    assert answer.items[0]["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_offsets(store, replog):
    replog("-s", store, "topic", "create", "orders", "-p", 3)
    answer = replog("-s", store, "topic", "offsets", "orders", "-f", "json")
    assert answer.items == [{"topic": "orders", "partition": part, "offset": 0} for part in range(3)]
    assert len(replog("-s", store, "topic", "offsets", "orders", "-p", "0,2", "--at", "start", "-f", "json").items) == 2
    (store.parent / "rows.txt").write_text("a\nb\n")
    assert replog("-s", store, "produce", "orders", store.parent / "rows.txt", "-p", 0).exit_code == 0
    for at, expected in (("earliest", 0), ("beginning", 0), ("-2", 0), ("latest", 2), ("END", 2), ("-1", 2)):
        rows = replog("-s", store, "topic", "offsets", "orders", "-p", 0, "--at", at, "-f", "json").items
        assert [row["offset"] for row in rows] == [expected], at
    for at in ("5", "newest", ""):
        wrong = replog("-s", store, "topic", "offsets", "orders", "--at", at)
        assert wrong.exit_code == 2 and "earliest, latest" in wrong.err
    assert replog("-s", store, "topic", "offsets", "orders", "-p", "3").exit_code == 2
    for wrong in ("x", ""):  # an empty variable of a script is not all partitions
        assert replog("-s", store, "topic", "offsets", "orders", "-p", wrong).exit_code == 2
    assert replog("-s", store, "topic", "offsets", "nope").exit_code == 1


def test_partitions_grow_only(store, replog):
    replog("-s", store, "topic", "create", "orders", "-p", 3)
    (item,) = replog("-s", store, "topic", "add-partitions", "orders", 5, "-y", "-f", "json").items
    assert len(item["partitions"]) == 5
    answer = replog("-s", store, "topic", "add-partitions", "orders", 4, "-y", "-f", "json")
    assert answer.exit_code == 1
    assert answer.items[0]["error"] == "INVALID_PARTITIONS"


@pytest.mark.parametrize("arguments", [("delete", "orders"), ("add-partitions", "orders", "9")])
def test_what_cannot_be_undone_is_confirmed(store, replog, arguments, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    replog("-s", store, "topic", "create", "orders", "-p", 3)
    assert replog("-s", store, "topic", *arguments).exit_code == 2
    assert len(replog("-s", store, "topic", "offsets", "orders", "-f", "json").items) == 3


def test_store_info_with_a_root_away_and_a_majority_away(store, replog, short_waits):
    replog("-s", store, "topic", "create", "orders")
    (item,) = replog("-s", store, "store", "info", "-f", "json").items
    assert (item["topics"], item["fsync"]) == (1, False)
    assert [broker["state"] for broker in item["brokers"]] == ["ok", "ok", "ok"]
    (store / "broker-1").rename(store / "broker-1.away")
    answer = replog("-s", store, "store", "info", "-f", "json")
    assert answer.exit_code == 3
    assert [broker["state"] for broker in answer.items[0]["brokers"]] == ["ok", "REPLOG_ROOT_STALE", "ok"]
    assert replog("-s", store, "topic", "list", "-f", "json").items[0]["topic"] == "orders"
    (store / "broker-2").rename(store / "broker-2.away")
    short_waits()
    answer = replog("-s", store, "topic", "list", "-f", "json")
    assert answer.exit_code == 5
    assert answer.items[0]["error"] == "REPLOG_NO_QUORUM"


def test_a_store_whose_roots_are_all_read_only_refuses_a_topic_and_a_snapshot_at_once(
    store, replog, monkeypatch, short_waits
):
    replog("-s", store, "topic", "create", "orders")
    create = PosixStore.create

    def refuse(self, key, data, **more):
        if not key.startswith("ledgers/"):
            return create(self, key, data, **more)
        raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "the file system is read-only.", url=self.url, key=key)

    monkeypatch.setattr(PosixStore, "create", refuse)
    short_waits()

    def names_all_roots(*command):
        """Return whether each error names all roots: a majority is enough, and one may answer late."""
        answer = replog("-s", store, *command, "-f", "json")
        assert answer.exit_code == 1
        refused = [item for item in answer.items if not item["ok"]]  # the newest snapshot of a ledger may exist
        assert {item["error"] for item in refused} == {"REPLOG_STORE_REFUSED"}
        texts = [f"{item['message']} {item['hint']}" for item in refused]
        assert not any("answered" in text for text in texts)
        return all(
            text.count("the file system is read-only") >= 3 and all(f"/broker-{number}" in text for number in range(3))
            for text in texts
        )

    wait_until(lambda: names_all_roots("topic", "create", "payments"), "a topic refused by all roots")
    wait_until(lambda: names_all_roots("store", "snapshot"), "snapshots refused by all roots")
    monkeypatch.undo()
    assert [item["topic"] for item in replog("-s", store, "topic", "list", "-f", "json").items] == ["orders"]


def test_store_info_names_a_root_whose_journals_are_gone(store, replog):
    replog("-s", store, "topic", "create", "orders")
    shutil.rmtree(store / "broker-1" / "ledgers")
    answer = replog("-s", store, "store", "info", "-f", "json")
    assert answer.exit_code == 3
    assert [broker["state"] for broker in answer.items[0]["brokers"]] == ["ok", "REPLOG_ROOT_STALE", "ok"]
    assert "store repair --rebuild 1" in answer.items[0]["brokers"][1]["detail"]
    verdicts = {item["check"]: item["verdict"] for item in replog("-s", store, "doctor", "-f", "json").items}
    assert [verdicts[f"root {broker}"] for broker in range(3)] == ["ok", "warn", "ok"]


def test_store_that_was_never_made(tmp_path, replog):
    answer = replog("-s", tmp_path / "nothing", "store", "info", "-f", "json")
    assert answer.exit_code == 1
    assert answer.items[0]["error"] == "REPLOG_STORE_NOT_INITIALISED"


def test_store_from_the_environment(store, replog, monkeypatch):
    monkeypatch.setenv("REPLOG_STORE", str(store))
    assert replog("topic", "list").exit_code == 0


def test_a_mistyped_topic_is_answered_with_the_list_and_how_to_create_it(store, replog):
    (item,) = replog("-s", store, "topic", "describe", "ordres", "-f", "json").items
    assert f"replog -s {store} topic list" in item["hint"]
    assert f"replog -s {store} topic create ordres" in item["hint"]
