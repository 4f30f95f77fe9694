"""Determines the principal, and checks its rights by the ACLs of the cluster ledger. Never runs in a task.

Principals are advisory: only its storage credentials really limit a process (docs/security.md). Source: Kafka's
``StandardAuthorizerData`` and the operations that ``KafkaApis`` requires.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Collection, Iterable, Mapping
from functools import cache

from spark_replog.cluster.cluster import Cluster
from spark_replog.config.store import ALLOW_EVERYONE_KEY, SUPER_USERS_KEY
from spark_replog.errors import AuthorizationError, ErrorCode, ReplogError, command_line
from spark_replog.ids import PartitionKey
from spark_replog.log.acl import CLUSTER_NAME, AclOperation, AclSet, Decision, ResourceType, normal_principal
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, IdentityKind

PRINCIPAL_VARIABLE = "REPLOG_PRINCIPAL"


def default_principal() -> str:
    """Return the default principal: ``REPLOG_PRINCIPAL``, else ``User:<os user>``."""
    named = os.environ.get(PRINCIPAL_VARIABLE)
    return normal_principal(named) if named else _os_user()


@cache
def _os_user() -> str:
    try:
        return f"User:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"User:{os.getuid()}"


_CODES: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def is_open_without_acls(config: Mapping[str, str]) -> bool:
    """Return ``allow.everyone.if.no.acl.found``: whether everybody may use a resource that no ACL covers."""
    return config.get(ALLOW_EVERYONE_KEY, "true").lower() == "true"


def is_allowed(
    acls: AclSet,
    config: Mapping[str, str],
    principal: str,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
) -> bool:
    """Return the decision: super users, then deny, then allow, then the default of a resource without ACLs."""
    super_users = [user.strip() for user in config.get(SUPER_USERS_KEY, "").split(";")]
    if principal in [normal_principal(user) for user in super_users if user]:
        return True
    decision = acls.decide(principal, operation, resource_type, name)
    if decision is Decision.NO_ACL:
        return is_open_without_acls(config)
    return decision is Decision.ALLOWED


class Authorizer:
    """Checks the rights of one principal, such as ``User:alice``. Cheap to create.

    ACLs are at most a second old if the caller folds the cluster ledger first, as every entry point does
    (``Cluster.refresh_if_stale``). A change made by this process applies at once, and ``require`` folds the newest
    entries before it refuses.
    """

    def __init__(self, cluster: Cluster, principal: str | None = None) -> None:
        self._cluster = cluster
        self.principal = default_principal() if principal is None else normal_principal(principal)

    def is_allowed(self, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return whether the principal has the right, in the cluster ledger as folded so far."""
        with self._cluster.cluster_ledger.lock:
            state = self._cluster.cluster_ledger.state
            return is_allowed(state.acls, state.config, self.principal, operation, resource_type, name)

    def allowed_topics(self, operation: AclOperation, names: Iterable[str]) -> list[str]:
        """Return the topics that the principal may act on, in the given order."""
        return [name for name in names if self.is_allowed(operation, ResourceType.TOPIC, name)]

    def require(self, operation: AclOperation, resource_type: ResourceType, *names: str) -> None:
        """Check the right to each resource. Call it before checking that topics exist: a refusal must not reveal it.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED, or the code of the other type.
        """
        for name in names:
            if self.is_allowed(operation, resource_type, name):
                continue
            self._cluster.refresh()  # the right may have been given a moment ago
            if not self.is_allowed(operation, resource_type, name):
                raise self.refusal(operation, resource_type, name)

    def require_create(self, topic: str) -> None:
        """Check that the principal may create this topic, or any topic. Raises TOPIC_AUTHORIZATION_FAILED."""
        if not self.is_allowed(AclOperation.CREATE, ResourceType.CLUSTER):
            self.require(AclOperation.CREATE, ResourceType.TOPIC, topic)

    def refused_partitions(
        self, state: TopicLedgerState, append: Append, partitions: Collection[PartitionKey]
    ) -> dict[PartitionKey, ReplogError]:
        """Return the partitions of an append whose topic the principal may not write, with their errors.

        Reads nothing: it is asked under the lock of a topic ledger. As in ``KafkaApis.handleProduceRequest`` a refused
        transactional.id refuses the whole request, a refused topic only its partitions.

        Raises:
            AuthorizationError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
        """
        identity, write, transactional = append.identity, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID
        is_named = identity.kind is IdentityKind.TRANSACTIONAL
        if is_named and not self.is_allowed(write, transactional, identity.producer_id):
            raise self.refusal(write, transactional, identity.producer_id)
        errors: dict[str, ReplogError] = {}
        for topic_id in {key[0] for key in partitions}:
            topic = state.topics.get(topic_id)
            if topic is not None and not self.is_allowed(write, ResourceType.TOPIC, topic.name):
                errors[topic_id] = self.refusal(write, ResourceType.TOPIC, topic.name)
        return {key: errors[key[0]] for key in partitions if key[0] in errors}

    def refusal(self, operation: AclOperation, resource_type: ResourceType, name: str) -> AuthorizationError:
        """Return the error of a refused request."""
        words = ["acl", "add", "--allow-principal", self.principal, "--operation", _word(operation)]
        words += ["--cluster"] if resource_type is ResourceType.CLUSTER else [f"--{_word(resource_type)}", name]
        what = "this store" if resource_type is ResourceType.CLUSTER else f"{_word(resource_type)} '{name}'"
        return AuthorizationError(
            _CODES[resource_type],
            f"{self.principal} may not {operation.name.lower().replace('_', ' ')} {what}. "
            f"Ask for: {command_line(self._cluster.path, *words)}.",
        )


def require_of_readable(cluster: Cluster, operation: AclOperation) -> None:
    """Check a right on the whole store, for commands that repair it: if no cluster ledger is readable, all may run.

    Raises:
        AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
    """
    try:
        cluster.refresh()
    except ReplogError:
        return
    Authorizer(cluster).require(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _word(value: ResourceType | AclOperation) -> str:
    return value.name.lower().replace("_", "-")
