"""``replog acl`` and ``replog quota`` as a user types them."""

from __future__ import annotations

import pytest


@pytest.fixture
def store(tmp_path, replog, monkeypatch):
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:admin")
    path = str(tmp_path / "store")
    assert replog("-s", path, "init", "--no-fsync").exit_code == 0

    def call(*arguments):
        return replog("-s", path, "-f", "json", *arguments)

    return call


def test_the_first_acl_of_a_resource_is_warned_of(store):
    grant = ("acl", "add", "--operation", "read", "--topic", "t", "--allow-principal")
    first = store(*grant, "etl")
    assert first.exit_code == 0 and "topic 't'" in first.err
    assert "warning" not in store(*grant, "bi").err
    settings = ("super.users=User:admin", "allow.everyone.if.no.acl.found=false")
    assert store("acl", "config", "set", *settings).exit_code == 0
    assert "warning" not in store("acl", "add", "--operation", "read", "--topic", "u", "--allow-principal", "etl").err


def test_acls_are_added_listed_and_removed(store):
    made = store(
        "acl", "add", "--allow-principal", "etl", "--operation", "write", "--operation", "read", "--topic", "t"
    )
    assert made.exit_code == 0
    assert made.json["_command"] == "acl add"
    assert made.items[0] == {
        "resourceType": "TOPIC",
        "resourceName": "t",
        "patternType": "LITERAL",
        "principal": "User:etl",
        "operation": "WRITE",
        "permissionType": "ALLOW",
    }
    assert len(made.items) == 2
    denied = store("acl", "add", "--deny-principal", "User:*", "--operation", "all", "--topic", "sec",
                   "--resource-pattern-type", "prefixed")  # fmt: skip
    assert [(item["permissionType"], item["patternType"]) for item in denied.items] == [("DENY", "PREFIXED")]
    assert store("acl", "add", "--deny-principal", "User:*", "--operation", "all", "--topic", "sec",
                 "--resource-pattern-type", "prefixed").items == []  # fmt: skip
    assert len(store("acl", "list").items) == 3
    matching = store("acl", "list", "--topic", "secret", "--resource-pattern-type", "match").items
    assert matching == denied.items
    assert [item["operation"] for item in store("acl", "list", "--principal", "etl", "--operation", "read").items] == [
        "READ"
    ]
    removed = store("acl", "remove", "--topic", "t", "-y")
    assert len(removed.items) == 2
    assert store("acl", "list").items == denied.items


def test_producer_and_consumer_stand_for_what_they_need(store):
    made = store("acl", "add", "--allow-principal", "a", "--producer", "--topic", "t", "--transactional-id", "x")
    assert [(item["resourceType"], item["operation"]) for item in made.items] == [
        ("TOPIC", "WRITE"),
        ("TOPIC", "DESCRIBE"),
        ("TOPIC", "CREATE"),
        ("TRANSACTIONAL_ID", "WRITE"),
        ("TRANSACTIONAL_ID", "DESCRIBE"),
    ]
    made = store("acl", "add", "--allow-principal", "a", "--consumer", "--topic", "u", "--group", "g")
    assert [(item["resourceType"], item["operation"]) for item in made.items] == [
        ("TOPIC", "READ"),
        ("TOPIC", "DESCRIBE"),
        ("GROUP", "READ"),
    ]


def test_settings_of_the_store_are_shown_and_changed(store):
    assert store("acl", "config", "get").items == []
    assert store("acl", "config", "set", "super.users=User:admin").items == [
        {"key": "super.users", "value": "User:admin"}
    ]
    assert store("acl", "config", "unset", "super.users").items == []
    assert store("acl", "config", "set", "super.user=x").items[0]["error"] == "REPLOG_UNKNOWN_OPTION"


def test_another_principal_is_refused_with_exit_code_1(store, monkeypatch):
    assert (
        store("acl", "config", "set", "super.users=User:admin", "allow.everyone.if.no.acl.found=false").exit_code == 0
    )
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:eve")
    for words in (
        ("acl", "add", "--allow-principal", "eve", "--operation", "all", "--cluster"),
        ("acl", "remove", "--principal", "admin", "-y"),
        ("acl", "list"),
        ("quota", "set", "--user", "eve", "producer_byte_rate=1"),
        ("quota", "describe"),
    ):
        answer = store(*words)
        assert (answer.exit_code, answer.items[0]["error"]) == (1, "CLUSTER_AUTHORIZATION_FAILED")


@pytest.mark.parametrize(
    "words",
    [
        ("group", "reset-offsets", "g", "--to-earliest", "--topic"),
        ("group", "delete-offsets", "g", "-y", "--topic"),
        ("topic", "describe"),
        ("consume",),
    ],
)
def test_who_may_not_describe_a_topic_does_not_learn_whether_it_exists(store, monkeypatch, words):
    assert store("topic", "create", "secret").exit_code == 0
    store("acl", "config", "set", "super.users=User:admin", "allow.everyone.if.no.acl.found=false")
    store("acl", "add", "--allow-principal", "eve", "--operation", "all", "--group", "g")
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:eve")
    there, nowhere = store(*words, "secret"), store(*words, "nothing")
    assert there.items[0]["error"] == nowhere.items[0]["error"] == "TOPIC_AUTHORIZATION_FAILED"
    assert (there.exit_code, there.out) == (nowhere.exit_code, nowhere.out.replace("nothing", "secret"))


@pytest.mark.parametrize(
    "words",
    [
        ("acl", "add", "--topic", "t", "--operation", "read"),
        ("acl", "add", "--allow-principal", "a", "--topic", "t"),
        ("acl", "add", "--allow-principal", "a", "--operation", "read"),
        ("acl", "remove", "-y"),
        ("acl", "remove", "--topic", "t"),
        ("acl", "config", "set", "super.users"),
        ("quota", "set", "--user", "a"),
        ("quota", "set", "--user", "a", "producer_byte_rate=fast"),
        ("quota", "set", "--user", "a", "producer_byte_rate"),
        ("quota", "set", "--user", "a", "--user-default", "producer_byte_rate=1"),
        ("quota", "set", "producer_byte_rate=1"),
        ("quota", "set", "--user", "a", "request_percentage=1"),
        ("quota", "set", "--user", "a", f"producer_byte_rate={2**63}"),
        ("quota", "set", "--user", "", "producer_byte_rate=1"),
        ("quota", "set", "--user", "Group:", "producer_byte_rate=1"),
        ("acl", "add", "--allow-principal", "User:", "--topic", "t", "--operation", "read", "-y"),
    ],
)
def test_wrong_words_are_usage_errors(store, words):
    assert store(*words).exit_code == 2


def test_quotas_are_set_described_and_taken_away(store):
    made = store(
        "quota", "set", "--user", "etl", "--client-id-default", "producer_byte_rate=1000", "consumer_byte_rate=5"
    )
    expected = {
        "user": "User:etl",
        "clientId": "<default>",
        "quotas": {"consumer_byte_rate": 5, "producer_byte_rate": 1000},
    }
    assert (made.exit_code, made.items) == (0, [expected])
    store("quota", "set", "--user-default", "consumer_byte_rate=7")
    assert [item["user"] for item in store("quota", "describe").items] == ["<default>", "User:etl"]
    assert store("quota", "describe", "--user", "etl", "--client-id-default").items == [expected]
    store("quota", "set", "--user", "etl", "--client-id-default", "producer_byte_rate=-", "consumer_byte_rate=-")
    assert [item["user"] for item in store("quota", "describe").items] == ["<default>"]


@pytest.mark.parametrize(
    "command",
    [("store", "info"), ("store", "verify"), ("store", "repair"), ("coordinator", "run", "--once"), ("doctor",)],
    ids=" ".join,
)
def test_commands_on_the_whole_store_ask_for_a_right_on_it(store, monkeypatch, command):
    settings = ("super.users=User:admin", "allow.everyone.if.no.acl.found=false")
    assert store("acl", "config", "set", *settings).exit_code == 0
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:guest")
    refused = store(*command)
    assert refused.exit_code != 0 and "CLUSTER_AUTHORIZATION_FAILED" in refused.out + refused.err
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:admin")
    assert "CLUSTER_AUTHORIZATION_FAILED" not in store(*command).out
