"""Access control lists: bindings, and how they decide a request. Pure.

Source of numbers and rules: Kafka's ``ResourceType``, ``PatternType``, ``AclOperation``,
``AclPermissionType`` and ``StandardAuthorizerData``. Hosts are left out: passive
storage does not show where a writer is (docs/security.md).
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
    """The kind of resource of an ACL."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternType(IntEnum):
    """How an ACL's name is compared."""

    LITERAL = 3
    """Exactly the name; ``*`` matches every name."""
    PREFIXED = 4
    """Every name that starts with the ACL's name."""


class AclOperation(IntEnum):
    """What a principal asks to do; without the operations on delegation tokens."""

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
    """How a set of ACLs decides one request."""

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
    """One ACL, identified by all of its fields, as in Kafka."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    """``User:alice``; ``User:*`` is everybody."""
    operation: AclOperation
    permission: Permission


@dataclass(frozen=True, slots=True)
class AclsAdd:
    """Adds bindings to the cluster's set; existing ones stay."""

    bindings: tuple[AclBinding, ...]


@dataclass(frozen=True, slots=True)
class AclsRemove:
    """Removes bindings from the cluster's set; unknown ones are ignored."""

    bindings: tuple[AclBinding, ...]


def normal_principal(principal: str) -> str:
    """Return the principal with a type: ``alice`` means ``User:alice``."""
    return principal if ":" in principal else f"{USER_TYPE}:{principal}"


EVERYBODY = f"{USER_TYPE}:{WILDCARD}"
"""The ACL principal that covers all principals, of other types too (source: ``StandardAuthorizerConstants``)."""


_Pattern = dict[str, dict[AclBinding, None]]
"""The ACLs of one resource pattern, by principal: a decision never reads those of other principals."""


class AclSet:
    """The ACLs of a store, indexed so that a decision costs a few look-ups. Read it under the cluster ledger's lock."""

    def __init__(self) -> None:
        self._bindings: dict[AclBinding, None] = {}
        self._patterns: dict[tuple[ResourceType, PatternType], dict[str, _Pattern]] = {
            (kind, pattern): {} for kind in ResourceType for pattern in PatternType
        }
        # Every length that a prefix ever had; an outdated length finds nothing.
        self._prefix_lengths: dict[ResourceType, set[int]] = {kind: set() for kind in ResourceType}

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self._bindings)

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._bindings

    def add(self, bindings: Iterable[AclBinding]) -> int:
        """Add bindings; return how many are new."""
        before = len(self._bindings)
        for binding in bindings:
            self._bindings[binding] = None
            patterns = self._patterns[binding.resource_type, binding.pattern_type]
            if binding.pattern_type is PatternType.PREFIXED:
                self._prefix_lengths[binding.resource_type].add(len(binding.name))
            patterns.setdefault(binding.name, {}).setdefault(binding.principal, {})[binding] = None
        return len(self._bindings) - before

    def remove(self, bindings: Iterable[AclBinding]) -> int:
        """Remove bindings; return how many existed."""
        before = len(self._bindings)
        for binding in bindings:
            if binding not in self._bindings:
                continue
            del self._bindings[binding]
            patterns = self._patterns[binding.resource_type, binding.pattern_type]
            pattern = patterns[binding.name]
            del pattern[binding.principal][binding]
            if not pattern[binding.principal]:
                del pattern[binding.principal]
            if not pattern:
                del patterns[binding.name]
        return before - len(self._bindings)

    def of_resource(self, resource_type: ResourceType, name: str) -> list[AclBinding]:
        """Return the ACLs whose pattern covers the resource."""
        patterns = self._covering(resource_type, name)
        return [binding for pattern in patterns for bindings in pattern.values() for binding in bindings]

    def decide(self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str) -> Decision:
        """Return the decision of the ACLs; the authorizer adds super users and the default.

        Costs one look-up per prefix length in use, and a read of the principal's own ACLs there. Source:
        ``StandardAuthorizerData.authorize``: a matching DENY wins, then a matching ALLOW; without a match
        the answer is DENIED if the resource has any ACL, else NO_ACL.
        """
        if not self._bindings:
            return Decision.NO_ACL
        patterns = self._covering(resource_type, name)
        every_of_type = f"{principal.partition(':')[0]}:{WILDCARD}"  # Group:* for Group:etl
        who = {principal, every_of_type, EVERYBODY}
        bindings = [binding for pattern in patterns for subject in who for binding in pattern.get(subject, ())]
        denying = {AclOperation.ALL, operation}
        if any(binding.permission is Permission.DENY and binding.operation in denying for binding in bindings):
            return Decision.DENIED
        allowing = denying | _IMPLIED_BY.get(operation, frozenset())
        if any(binding.permission is Permission.ALLOW and binding.operation in allowing for binding in bindings):
            return Decision.ALLOWED
        return Decision.DENIED if patterns else Decision.NO_ACL

    def _covering(self, resource_type: ResourceType, name: str) -> list[_Pattern]:
        literal = self._patterns[resource_type, PatternType.LITERAL]
        prefixed = self._patterns[resource_type, PatternType.PREFIXED]
        patterns = [literal[resource] for resource in dict.fromkeys((name, WILDCARD)) if resource in literal]
        starts = {name[:length] for length in self._prefix_lengths[resource_type] if 0 < length <= len(name)}
        return patterns + [prefixed[start] for start in starts if start in prefixed]
