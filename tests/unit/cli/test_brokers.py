"""broker, coordinator, topic elect and reassign on a real store of four directories."""

from __future__ import annotations

import pytest


@pytest.fixture
def store(tmp_path, replog):
    path = tmp_path / "store"
    assert replog("-s", path, "init", "--brokers", 4, "--no-fsync").exit_code == 0
    assert replog("-s", path, "topic", "create", "orders", "-p", 4, "--replicas", 3).exit_code == 0
    return path


def leaders(replog, store):
    (topic,) = replog("-s", store, "topic", "describe", "orders", "-f", "json").items
    return [partition["leader"] for partition in topic["partitions"]]


def test_brokers_are_listed_with_what_they_lead(store, replog):
    items = replog("-s", store, "broker", "list", "-f", "json").items
    assert [(broker["broker"], broker["state"], broker["root"], broker["journal"]) for broker in items] == [
        (0, "active", "ok", True), (1, "active", "ok", True), (2, "active", "ok", True), (3, "active", "ok", False),
    ]  # fmt: skip
    assert [broker["leaders"] for broker in items] == [1, 1, 1, 1]
    assert replog("-s", store, "broker", "list").out.startswith("BROKER  STATE   ROOT  JOURNAL  LEADERS  IN-SYNC")


def test_a_fenced_broker_loses_its_leaders_and_elect_brings_them_back(store, replog):
    before = leaders(replog, store)
    (fenced,) = replog("-s", store, "broker", "fence", 1, "-y", "-f", "json").items
    assert (fenced["state"], fenced["leaders"], fenced["inSync"]) == ("fenced", 0, 0)
    assert 1 not in leaders(replog, store)
    failed = replog("-s", store, "topic", "elect", "orders", "-f", "json")
    assert failed.exit_code == 1
    assert [partition.get("error") for partition in failed.items].count("PREFERRED_LEADER_NOT_AVAILABLE") == 1
    assert [partition.get("note") for partition in failed.items].count("ELECTION_NOT_NEEDED") == 3
    assert replog("-s", store, "broker", "unfence", 1).exit_code == 0
    (report,) = replog("-s", store, "coordinator", "run", "--once", "-f", "json").items
    assert (report["ledgerCount"], report["joinedCount"], report["failedCount"]) == (1, 1, 0)
    assert leaders(replog, store) == before
    unknown = replog("-s", store, "broker", "fence", 9, "-y", "-f", "json")
    assert (unknown.exit_code, unknown.items[0]["error"]) == (1, "BROKER_ID_NOT_REGISTERED")


def test_one_round_says_why_a_replica_has_not_joined(store, replog):
    def round_of(*flags):
        (report,) = replog("-s", store, "coordinator", "run", "--once", *flags, "-f", "json").items
        return report["joinedCount"], [(replica["broker"], replica["reason"]) for replica in report["outOfSync"]]

    text = replog("-s", store, "coordinator", "run", "--once").out
    assert text.splitlines()[1:] == ["every replica is in sync"] and round_of() == (0, [])
    root = store / "broker-1"
    root.rename(store / "away")
    joined, ((broker, reason),) = round_of()
    assert (joined, broker) == (0, 1) and "does not answer" in reason
    assert "does not answer" in replog("-s", store, "coordinator", "run", "--once").out
    (store / "away").rename(root)
    joined, ((broker, reason),) = round_of("-c", "replica.rejoin.wait.ms=3600000")
    assert (joined, broker) == (0, 1) and "replica.rejoin.wait.ms" in reason
    assert round_of("-c", "replica.rejoin.wait.ms=0") == (1, [])
    assert replog("-s", store, "broker", "fence", 1, "-y").exit_code == 0
    joined, ((broker, reason),) = round_of()
    assert (joined, broker) == (0, 1) and "broker unfence 1" in reason


def test_fencing_needs_a_confirmation_off_a_terminal(store, replog):
    refused = replog("-s", store, "broker", "fence", 1)
    assert refused.exit_code == 2 and "add -y" in refused.err
    assert {item["state"] for item in replog("-s", store, "broker", "list", "-f", "json").items} == {"active"}


def test_fencing_below_min_isr_is_warned_of(store, replog):
    assert "warning" not in replog("-s", store, "broker", "fence", 0, "-y").err
    warned = replog("-s", store, "broker", "fence", 1, "-y")
    assert warned.exit_code == 0 and "orders-" in warned.err and "min.insync.replicas" in warned.err


def test_the_coordinator_takes_its_settings(store, replog):
    def elected(*settings):
        flags = [flag for setting in settings for flag in ("-c", setting)]
        (report,) = replog("-s", store, "coordinator", "run", "--once", *flags, "-f", "json").items
        return report["electedCount"]

    replog("-s", store, "broker", "fence", 1, "-y")
    replog("-s", store, "broker", "unfence", 1)
    wait = "replica.rejoin.wait.ms=0"
    assert elected("auto.leader.rebalance.enable=false", wait) == 0
    assert 1 not in leaders(replog, store)
    assert elected("leader.imbalance.per.broker.percentage=100", wait) == 0
    assert elected("leader.imbalance.per.broker.percentage=99", wait) == 1
    assert 1 in leaders(replog, store)
    unknown = replog("-s", store, "coordinator", "run", "--once", "-c", "leader.imbalance=1", "-f", "json")
    assert unknown.items[0]["error"] == "REPLOG_UNKNOWN_OPTION"
    assert replog("-s", store, "coordinator", "run", "--once", "-c", "once").exit_code == 2


def test_partitions_are_reassigned_shown_and_cancelled(store, replog):
    (topic,) = replog("-s", store, "topic", "describe", "orders", "-f", "json").items
    replicas = topic["partitions"][0]["replicas"]
    (other,) = {0, 1, 2, 3} - set(replicas)
    target = [other, *replicas[:2]]
    answer = replog("-s", store, "topic", "reassign", "orders", f"0={','.join(map(str, target))}", "-f", "json")
    (item,) = answer.items
    assert (item["addingReplicas"], item["removingReplicas"]) == ([other], [replicas[2]])
    assert "coordinator run --once" in answer.err
    (described,) = replog("-s", store, "topic", "describe", "orders", "-f", "json").items
    moving = [(partition["addingReplicas"], partition["removingReplicas"]) for partition in described["partitions"]]
    assert moving == [([other], [replicas[2]]), ([], []), ([], []), ([], [])]
    lines = replog("-s", store, "topic", "describe", "orders").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("PARTITION"))
    heading, first = lines[at : at + 2]
    cells = first.split()
    assert heading.split()[4:7] == ["REPLICAS", "ADDING", "REMOVING"]
    assert cells[5:7] == [str(other), str(replicas[2])]
    assert replog("-s", store, "topic", "reassign", "orders", "-f", "json").items[0]["partition"] == 0
    cancelled = replog("-s", store, "topic", "reassign", "orders", "--cancel", "-p", 0, "-f", "json")
    assert sorted(cancelled.items[0]["replicas"]) == sorted(replicas)
    assert "no reassignment" in replog("-s", store, "topic", "reassign", "orders").out
    assert "ADDING" not in replog("-s", store, "topic", "describe", "orders").out, "as Kafka: shown only meanwhile"
    assert replog("-s", store, "topic", "reassign", "orders", "0:1").exit_code == 2
    refused = replog("-s", store, "topic", "reassign", "orders", "0=1,1", "-f", "json")
    assert refused.items[0]["error"] == "INVALID_REPLICA_ASSIGNMENT"


def test_unclean_elections_ask_first(store, replog):
    assert replog("-s", store, "topic", "elect", "orders", "--unclean").exit_code == 2
    answer = replog("-s", store, "topic", "elect", "orders", "--unclean", "-y", "-f", "json")
    assert {partition["note"] for partition in answer.items} == {"ELECTION_NOT_NEEDED"}


def test_settings_are_shown_set_and_unset(store, replog):
    def settings(*arguments):
        answer = replog("-s", store, "topic", "config", "orders", *arguments, "-f", "json")
        return {row["key"]: (row["value"], row["source"]) for row in answer.items[0].get("settings", [])}, answer

    values, _ = settings("get")
    assert values["retention.ms"] == ("604800000", "default")
    assert values["unclean.leader.election.enable"] == ("false", "default")
    values, _ = settings("set", "retention.ms=1000", "unclean.leader.election.enable=true")
    assert values["retention.ms"] == ("1000", "topic")
    assert values["unclean.leader.election.enable"] == ("true", "topic")
    values, _ = settings("unset", "retention.ms")
    assert values["retention.ms"] == ("604800000", "default")
    _, answer = settings("set", "retention.ms=soon")
    assert (answer.exit_code, answer.items[0]["error"]) == (2, "INVALID_CONFIG")
    _, answer = settings("unset", "retention.mz")
    assert (answer.exit_code, answer.items[0]["hint"]) == (2, "Did you mean 'retention.ms'?")
    for wrong in (("get", "a"), ("set",), ("set", "a"), ("unset", "a=b")):
        assert settings(*wrong)[1].exit_code == 2
    assert settings("get")[0]["unclean.leader.election.enable"] == ("true", "topic")


def test_cancel_without_partitions_cancels_those_that_move(store, replog):
    (topic,) = replog("-s", store, "topic", "describe", "orders", "-f", "json").items
    (other,) = {0, 1, 2, 3} - set(topic["partitions"][2]["replicas"])
    target = ",".join(map(str, [other, *topic["partitions"][2]["replicas"][:2]]))
    assert replog("-s", store, "topic", "reassign", "orders", f"2={target}").exit_code == 0
    cancelled = replog("-s", store, "topic", "reassign", "orders", "--cancel", "-f", "json")
    assert [(item["partition"], item["ok"]) for item in cancelled.items] == [(2, True)]
    assert cancelled.exit_code == 0


@pytest.mark.parametrize("words, named", [((), "0,1,2,3"), (("-p", "1,3"), "1,3")])
def test_an_error_that_several_partitions_have_is_printed_once(store, replog, words, named):
    answer = replog("-s", store, "topic", "reassign", "orders", "--cancel", *words)
    (said,) = [line for line in answer.err.splitlines() if "NO_REASSIGNMENT_IN_PROGRESS" in line]
    assert ",".join(f"orders-{number}" for number in named.split(",")) in said
    assert answer.exit_code == 1


def test_of_a_moved_store_the_roots_that_were_opened_are_listed(store, replog):
    (before, *_) = replog("-s", store, "broker", "list", "-f", "json").items
    assert before["url"] == before["registeredUrl"]
    assert "REGISTERED" not in replog("-s", store, "broker", "list").out
    moved = store.rename(store.with_name("moved"))
    items = replog("-s", moved, "broker", "list", "-f", "json").items
    assert [(item["root"], item["url"]) for item in items] == [("ok", f"file://{moved}/broker-{n}") for n in range(4)]
    assert items[0]["registeredUrl"] == before["url"]
    assert "REGISTERED AS" in replog("-s", moved, "broker", "list").out
