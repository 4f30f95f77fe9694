"""Cases 8.2 and 122 of Kafka's authorizer, on the set of ACLs that the fold keeps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from spark_replog.log.acl import (
    AclBinding,
    AclOperation,
    AclsAdd,
    AclSet,
    AclsRemove,
    Decision,
    PatternType,
    Permission,
    ResourceType,
    normal_principal,
)
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.model import ClusterConfigSet, Outcome
from tests.examples import examples

ALICE = "User:alice"
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def acl(name, operation, permission=ALLOW, *, pattern=LITERAL, principal=ALICE, kind=ResourceType.TOPIC):
    return AclBinding(kind, name, pattern, principal, operation, permission)


def decide(bindings, operation, name="foo", principal=ALICE, kind=ResourceType.TOPIC):
    acls = AclSet()
    acls.add(bindings)
    return acls.decide(principal, operation, kind, name)


@pytest.mark.case("kafka-122")
def test_a_literal_deny_wins_over_a_prefixed_allow_for_its_name_only():
    bindings = [acl("foo", READ, pattern=PREFIXED), acl("foo", READ, DENY)]
    assert decide(bindings, READ, "foo") is Decision.DENIED
    assert decide(bindings, READ, "foobar") is Decision.ALLOWED
    assert decide(bindings, READ, "fo") is Decision.NO_ACL


@pytest.mark.case("kafka-122b")
@pytest.mark.parametrize("operation", list(AclOperation))
def test_deny_all_beats_every_allow(operation):
    allows = [acl("foo", allowed_operation) for allowed_operation in AclOperation]
    allows += [acl("foo", allowed_operation, pattern=PREFIXED) for allowed_operation in AclOperation]
    allows += [acl("*", allowed_operation, principal="User:*") for allowed_operation in AclOperation]
    assert decide(allows, operation) is Decision.ALLOWED
    assert decide([*allows, acl("foo", ALL, DENY)], operation) is Decision.DENIED


@pytest.mark.case("server-8-2-2-3-any-deny-then-any-allow")
@pytest.mark.parametrize(
    "deny", [acl("foo", READ, DENY), acl("f", READ, DENY, pattern=PREFIXED), acl("*", READ, DENY, principal="User:*")]
)
def test_specificity_ranks_nothing(deny):
    assert decide([acl("foo", READ), deny], READ) is Decision.DENIED


@pytest.mark.case("kafka-122c")
def test_denying_describe_does_not_deny_read():
    bindings = [acl("foo", READ), acl("foo", DESCRIBE, DENY)]
    assert decide(bindings, READ) is Decision.ALLOWED
    assert decide(bindings, DESCRIBE) is Decision.DENIED


def test_denying_read_does_not_deny_describe():
    assert decide([acl("foo", WRITE), acl("foo", READ, DENY)], DESCRIBE) is Decision.ALLOWED


@pytest.mark.case("server-8-2-allow-implies-all")
@pytest.mark.parametrize("operation", list(AclOperation))
def test_allows_imply_describe_and_describe_configs(operation):
    implies_describe = {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, DESCRIBE, ALL}
    implies_configs = {AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS, ALL}
    decision = decide([acl("foo", operation)], DESCRIBE)
    assert (decision is Decision.ALLOWED) == (operation in implies_describe)
    decision = decide([acl("foo", operation)], AclOperation.DESCRIBE_CONFIGS)
    assert (decision is Decision.ALLOWED) == (operation in implies_configs)


@pytest.mark.case("server-8-2-allow-implies-all")
@pytest.mark.parametrize("operation", list(AclOperation))
def test_all_matches_every_operation_and_nothing_else_does(operation):
    assert decide([acl("foo", ALL)], operation) is Decision.ALLOWED
    assert (decide([acl("foo", WRITE)], operation) is Decision.ALLOWED) == (operation in {WRITE, DESCRIBE})


@pytest.mark.case("server-8-2-resource-type-literal")
def test_the_wildcard_covers_every_name_and_is_no_prefix():
    assert decide([acl("*", READ)], READ, "anything") is Decision.ALLOWED
    assert decide([acl("*", READ, pattern=PREFIXED)], READ, "anything") is Decision.NO_ACL
    assert decide([acl("*", READ, pattern=PREFIXED)], READ, "*a") is Decision.ALLOWED


def test_an_empty_prefix_covers_nothing():
    assert decide([acl("", READ, pattern=PREFIXED)], READ) is Decision.NO_ACL


@pytest.mark.case("server-8-2-resource-type-literal")
def test_names_of_another_resource_type_do_not_count():
    assert decide([acl("foo", READ, kind=ResourceType.GROUP)], READ) is Decision.NO_ACL


@pytest.mark.case("server-8-2-4-5-resource-without-acls-one")
def test_a_resource_with_somebody_elses_acl_is_closed_and_one_without_any_is_undecided():
    others = [acl("foo", READ, principal="User:bob")]
    assert decide(others, READ) is Decision.DENIED
    assert decide(others, READ, "bar") is Decision.NO_ACL


@pytest.mark.case("server-8-2-principal-exact-user")
def test_principals_match_exactly_or_by_their_types_wildcard():
    assert decide([acl("foo", READ, principal="User:*")], READ) is Decision.ALLOWED
    assert decide([acl("foo", READ, principal="Group:*")], READ, principal="Group:a") is Decision.ALLOWED
    allowed = acl("foo", READ, principal="Group:a")
    assert decide([allowed, acl("foo", READ, DENY, principal="User:*")], READ, principal="Group:a") is Decision.DENIED
    assert decide([acl("foo", READ, principal="Group:*")], READ) is Decision.DENIED
    assert decide([acl("foo", READ, principal="User:ali")], READ) is Decision.DENIED
    assert decide([acl("foo", READ, principal="User:*")], READ, principal="User:CN=a:b") is Decision.ALLOWED
    assert normal_principal("alice") == ALICE
    assert normal_principal("Group:a") == "Group:a"


def test_acls_are_folded_as_a_set():
    state = ClusterLedgerState()
    one, two = acl("foo", READ), acl("foo", WRITE)

    def apply(command):
        payload = encode_entry([encode_command(command)])
        return state.apply(state.applied_index + 1, payload)[0].outcome

    assert apply(AclsAdd((one, two))) is Outcome.APPLIED
    assert apply(AclsAdd((two,))) is Outcome.EXISTS
    assert set(state.acls) == {one, two}
    assert len(state.acls) == 2
    assert apply(AclsRemove((two, acl("bar", READ)))) is Outcome.APPLIED
    assert apply(AclsRemove((two,))) is Outcome.EXISTS
    assert list(state.acls) == [one]
    assert one in state.acls
    assert apply(AclsRemove((one,))) is Outcome.APPLIED
    assert state.acls.decide(ALICE, READ, ResourceType.TOPIC, "foo") is Decision.NO_ACL


def test_settings_of_the_store_are_set_and_unset():
    state = ClusterLedgerState()

    def apply(*changes):
        payload = encode_entry([encode_command(ClusterConfigSet(changes))])
        return state.apply(state.applied_index + 1, payload)[0].outcome

    assert apply(("super.users", "User:a")) is Outcome.APPLIED
    assert apply(("super.users", "User:a")) is Outcome.EXISTS
    assert state.config == {"super.users": "User:a"}
    assert apply(("super.users", None)) is Outcome.APPLIED
    assert state.config == {}


NAMES = ("a", "ab", "abc", "b", "*")
WHO = ("User:alice", "User:bob", "User:*", "Group:alice", "Group:*")
BINDINGS = some.builds(
    AclBinding,
    some.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    some.sampled_from(NAMES),
    some.sampled_from(PatternType),
    some.sampled_from(WHO),
    some.sampled_from((ALL, READ, WRITE, DESCRIBE)),
    some.sampled_from(Permission),
)


def slow_decide(bindings, principal, operation, kind, name):
    """Kafka's rule over a plain list of every ACL there is."""

    def covers(binding):
        if binding.pattern_type is PREFIXED:
            return name.startswith(binding.name)
        return binding.name in (name, "*")

    acls = [binding for binding in bindings if binding.resource_type is kind and covers(binding)]
    mine = [binding for binding in acls if binding.principal in (principal, principal.split(":")[0] + ":*", "User:*")]
    if any(binding.permission is DENY and binding.operation in (ALL, operation) for binding in mine):
        return Decision.DENIED
    implying = {READ, WRITE} if operation is DESCRIBE else set()
    if any(binding.permission is ALLOW and binding.operation in {ALL, operation, *implying} for binding in mine):
        return Decision.ALLOWED
    return Decision.DENIED if acls else Decision.NO_ACL


@settings(max_examples=examples(60), deadline=None)
@given(some.lists(some.tuples(some.booleans(), BINDINGS), max_size=25))
def test_an_index_of_acls_decides_as_a_plain_list_does(changes):
    acls, plain = AclSet(), {}
    for is_added, binding in changes:
        changed = acls.add([binding]) if is_added else acls.remove([binding])
        assert changed == ((binding in plain) != is_added)
        if is_added:
            plain[binding] = None
        else:
            plain.pop(binding, None)
    assert (set(acls), len(acls)) == (set(plain), len(plain))
    for kind in (ResourceType.TOPIC, ResourceType.GROUP):
        for name in ("a", "abc", "abcd", "b", "*", "c"):
            assert set(acls.of_resource(kind, name)) <= set(plain)
            for principal in ("User:alice", "Group:bob", "User:*"):
                for operation in (READ, DESCRIBE):
                    expected = slow_decide(plain, principal, operation, kind, name)
                    assert acls.decide(principal, operation, kind, name) is expected


def test_a_decision_looks_at_no_acl_of_other_people(monkeypatch):
    acls = AclSet()
    acls.add(acl("foo", READ, DENY, principal=f"User:other-{number}", pattern=PREFIXED) for number in range(1000))
    acls.add([acl("*", READ)])

    class Counted:
        count = 0

        def __get__(self, binding, kind):
            Counted.count += 1
            return ALLOW

    monkeypatch.setattr(AclBinding, "permission", Counted())
    assert acls.decide(ALICE, READ, ResourceType.TOPIC, "foobar") is Decision.ALLOWED
    assert Counted.count == 2
