"""Access control lists: what a binding says and which of them decide. Pure.

Source of numbers and rules: Kafka's ``ResourceType``, ``PatternType``, ``AclOperation``,
``AclPermissionType`` and ``StandardAuthorizerData``. Hosts are left out: nobody on passive storage
sees where a writer is (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
"""The one name of a resource of type CLUSTER."""
USER_TYPE = "User"


class ResourceType(IntEnum):
    """What an ACL is about."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternType(IntEnum):
    """How an ACL's name is compared."""

    LITERAL = 3
    """The very name, or any with ``*``."""
    PREFIXED = 4
    """Every name that starts with it."""


class AclOperation(IntEnum):
    """What a principal wants to do. Delegation tokens' operations have no caller here."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Deny wins over allow, however specific either is."""

    DENY = 2
    ALLOW = 3


class Decision(Enum):
    """What a set of ACLs says of one request."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NO_ACL = "no_acl"
    """No ACL names the resource at all: the store's default decides."""


_IMPLIED_BY: dict[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
"""Allowing one of the set allows the key too. Denying implies nothing."""


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL: it is its own identity, as in Kafka."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    """``User:alice``; ``User:*`` is every user."""
    operation: AclOperation
    permission: Permission


@dataclass(frozen=True, slots=True)
class AclsAdd:
    """Adds bindings to the cluster's set; those that are there already stay."""

    bindings: tuple[AclBinding, ...]


@dataclass(frozen=True, slots=True)
class AclsRemove:
    """Takes bindings out of the cluster's set; those that are gone already do not matter."""

    bindings: tuple[AclBinding, ...]


def normal_principal(principal: str) -> str:
    """Return the principal with a type: ``alice`` means ``User:alice``."""
    return principal if ":" in principal else f"{USER_TYPE}:{principal}"


def is_principal_match(pattern: str, principal: str) -> bool:
    """Return whether an ACL's principal covers this one."""
    if pattern == principal:
        return True
    kind, _, name = pattern.partition(":")
    return name == WILDCARD and principal.startswith(f"{kind}:")


class AclSet:
    """The ACLs of a store, by resource. Folded by the cluster ledger; read it under its lock."""

    def __init__(self) -> None:
        self._by_pattern: dict[tuple[ResourceType, PatternType, str], dict[AclBinding, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AclBinding]:
        for bindings in self._by_pattern.values():
            yield from bindings

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._by_pattern.get(_key(binding), ())

    def add(self, bindings: Iterable[AclBinding]) -> int:
        """Add bindings; return how many are new."""
        before = self._count
        for binding in bindings:
            held = self._by_pattern.setdefault(_key(binding), {})
            self._count += binding not in held
            held[binding] = None
        return self._count - before

    def remove(self, bindings: Iterable[AclBinding]) -> int:
        """Take bindings out; return how many were there."""
        before = self._count
        for binding in bindings:
            held = self._by_pattern.get(_key(binding), {})
            if binding not in held:
                continue
            del held[binding]
            self._count -= 1
            if not held:
                del self._by_pattern[_key(binding)]
        return before - self._count

    def of_resource(self, resource_type: ResourceType, name: str) -> list[AclBinding]:
        """Return the ACLs whose pattern covers the resource; costs O(length of the name)."""
        keys = [(resource_type, PatternType.LITERAL, name)]
        if name != WILDCARD:
            keys.append((resource_type, PatternType.LITERAL, WILDCARD))
        keys += [(resource_type, PatternType.PREFIXED, name[:end]) for end in range(1, len(name) + 1)]
        return [binding for key in keys for binding in self._by_pattern.get(key, ())]

    def decide(self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str) -> Decision:
        """Return what the ACLs say; super users and the default are the authorizer's matter.

        Source: ``StandardAuthorizerData.authorize``: any matching DENY, then any matching ALLOW, then
        whether the resource has an ACL at all.
        """
        found = self.of_resource(resource_type, name)
        mine = [each for each in found if is_principal_match(each.principal, principal)]
        denying = {AclOperation.ALL, operation}
        if any(each.permission is Permission.DENY and each.operation in denying for each in mine):
            return Decision.DENIED
        allowing = denying | _IMPLIED_BY.get(operation, frozenset())
        if any(each.permission is Permission.ALLOW and each.operation in allowing for each in mine):
            return Decision.ALLOWED
        return Decision.DENIED if found else Decision.NO_ACL


def _key(binding: AclBinding) -> tuple[ResourceType, PatternType, str]:
    return binding.resource_type, binding.pattern_type, binding.name
