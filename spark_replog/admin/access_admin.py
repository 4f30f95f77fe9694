"""ACLs, client quotas and the settings of the whole store, as entries of the cluster ledger. Runs driver-side.

Each change is checked and decided on the newest fold: a revoked administrator's late command is refused, and a
repeated command changes nothing. Source: Kafka's ``AclControlManager`` and ``ClientQuotaControlManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_replog.admin.admin import Admin
from spark_replog.cluster.authorizer import is_allowed, is_open_without_acls
from spark_replog.config.key import INT64_MAX
from spark_replog.config.registry import keys_of, unknown_option_error
from spark_replog.errors import ErrorCode, InvalidConfigError, command_line
from spark_replog.log.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    AclsAdd,
    AclSet,
    AclsRemove,
    PatternType,
    Permission,
    ResourceType,
    normal_principal,
)
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.model import ClusterConfigSet
from spark_replog.log.quotas import DEFAULT_NAME, QUOTA_KEYS, QuotaAlter, QuotaEntity


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs; None matches any.

    Attributes:
        name: the ACL's exact name, of either pattern type if `pattern_type` is None; with `covers`, the resource
            that the ACL's pattern must cover (Kafka's pattern type MATCH).
    """

    resource_type: ResourceType | None = None
    name: str | None = None
    pattern_type: PatternType | None = None
    principal: str | None = None
    operation: AclOperation | None = None
    permission: Permission | None = None
    covers: bool = False

    def select(self, acls: AclSet) -> list[AclBinding]:
        """Return the matching ACLs, sorted."""
        bindings: Iterable[AclBinding] = acls
        if self.covers and self.name is not None:
            kinds = ResourceType if self.resource_type is None else (self.resource_type,)
            bindings = (acl for kind in kinds for acl in acls.of_resource(kind, self.name or ""))
        wanted = {
            "resource_type": self.resource_type,
            "name": None if self.covers else self.name,
            "pattern_type": self.pattern_type,
            "principal": None if self.principal is None else normal_principal(self.principal),
            "operation": self.operation,
            "permission": self.permission,
        }
        given = {field: value for field, value in wanted.items() if value is not None}
        return sorted(acl for acl in bindings if all(getattr(acl, field) == value for field, value in given.items()))


class AclAdmin(Admin):
    """Adds, removes and lists ACLs; changes the store's settings. Thread-safe.

    Each method may raise CLUSTER_AUTHORIZATION_FAILED and REPLOG_NO_QUORUM.

    Args:
        principal: needs ALTER on the cluster to change, DESCRIBE to list; None: see ``default_principal``.
    """

    def add(self, bindings: Iterable[AclBinding]) -> list[AclBinding]:
        """Add ACLs; return those that are new.

        Raises:
            InvalidConfigError: INVALID_REQUEST: an empty name, a wrong cluster name, or a change after which the
                caller could no longer change ACLs.
        """
        wanted = [_checked(binding) for binding in dict.fromkeys(bindings)]
        return self._change(AclsAdd, lambda acls: [binding for binding in wanted if binding not in acls])

    def first_of(self, bindings: Iterable[AclBinding]) -> list[tuple[ResourceType, str]]:
        """Return the resources that have no ACL, so that all may use them, and that these ACLs would restrict."""
        named = {(binding.resource_type, binding.name) for binding in map(_checked, bindings)}

        def find(state: ClusterLedgerState) -> list[tuple[ResourceType, str]]:
            is_open = is_open_without_acls(state.config)
            return sorted(resource for resource in named if is_open and not state.acls.of_resource(*resource))

        return self._ask(AclOperation.ALTER, find)

    def remove(self, wanted: AclFilter) -> list[AclBinding]:
        """Remove every matching ACL; return them. Raises INVALID_REQUEST, see `add`."""
        return self._change(AclsRemove, wanted.select)

    def _change(
        self, kind: type[AclsAdd] | type[AclsRemove], pick: Callable[[AclSet], list[AclBinding]]
    ) -> list[AclBinding]:
        """Add or remove what a function picks of the newest fold; return it."""
        changed: list[AclBinding] = []

        def propose(state: ClusterLedgerState) -> bytes | None:
            self._require_by(state, AclOperation.ALTER)
            changed[:] = pick(state.acls)
            after = AclSet()
            after.add(state.acls)
            (after.add if kind is AclsAdd else after.remove)(changed)
            self._refuse_lock_out(after, state.config)
            return encode_command(kind(tuple(changed))) if changed else None

        self._cluster.cluster_ledger.append(propose, timeout_ms=self._timeout_ms)
        return changed

    def list(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the matching ACLs, sorted, from the newest fold."""
        return self._ask(AclOperation.DESCRIBE, lambda state: wanted.select(state.acls))

    def config(self) -> dict[str, str]:
        """Return the store's settings that are set."""
        return self._ask(AclOperation.DESCRIBE_CONFIGS, lambda state: dict(state.config))

    def configure(self, changes: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Set (value) or unset (None) settings of the store.

        Args:
            validate_only: check everything and change nothing.

        Raises:
            InvalidConfigError: REPLOG_UNKNOWN_OPTION, INVALID_CONFIG; INVALID_REQUEST: see `add`.
        """
        keys = {key.name: key for key in keys_of("cluster")}
        for name, value in changes.items():
            if name not in keys:
                raise unknown_option_error(name, keys)
            if value is not None:
                keys[name].parse(value, code=ErrorCode.INVALID_CONFIG)

        def propose(state: ClusterLedgerState) -> bytes | None:
            self._require_by(state, AclOperation.ALTER_CONFIGS)
            after = {**state.config, **changes}
            config = {name: value for name, value in after.items() if value is not None}
            if config == state.config:
                return None
            self._refuse_lock_out(state.acls, config)
            return encode_command(ClusterConfigSet(tuple(sorted(changes.items()))))

        self._decide_unless(validate_only, propose)

    def _refuse_lock_out(self, acls: AclSet, config: Mapping[str, str]) -> None:
        who = self._authorizer.principal
        for operation in (AclOperation.ALTER, AclOperation.ALTER_CONFIGS):
            if not is_allowed(acls, config, who, operation, ResourceType.CLUSTER, CLUSTER_NAME):
                raise InvalidConfigError(
                    ErrorCode.INVALID_REQUEST,
                    f"after this change {who} could no longer change ACLs. Nothing was changed. Name a principal that "
                    f"can first: {command_line(self._cluster.path, 'acl', 'config', 'set', f'super.users={who}')}.",
                )


def _has_name(principal: str) -> bool:
    return bool(normal_principal(principal).partition(":")[2])


def _checked(binding: AclBinding) -> AclBinding:
    if not binding.name or not _has_name(binding.principal):
        raise InvalidConfigError(
            ErrorCode.INVALID_REQUEST, "an ACL needs a resource name and a principal. Give 'User:*' for everybody."
        )
    is_cluster = binding.resource_type is ResourceType.CLUSTER
    if is_cluster and (binding.name, binding.pattern_type) != (CLUSTER_NAME, PatternType.LITERAL):
        raise InvalidConfigError(
            ErrorCode.INVALID_REQUEST, f"an ACL of the cluster has the literal name {CLUSTER_NAME}. Leave the name out."
        )
    return replace(binding, principal=normal_principal(binding.principal))


class QuotaAdmin(Admin):
    """Sets and lists quotas, as entries of the cluster ledger. Thread-safe.

    Each method may raise CLUSTER_AUTHORIZATION_FAILED and REPLOG_NO_QUORUM.

    Args:
        principal: needs ALTER_CONFIGS on the cluster to set, DESCRIBE_CONFIGS to list; None: see
            ``default_principal``.
    """

    def alter(self, entity: QuotaEntity, changes: Mapping[str, int | None], *, validate_only: bool = False) -> None:
        """Set (bytes per second) or remove (None) quotas of one entity.

        Args:
            validate_only: check everything and change nothing.

        Raises:
            InvalidConfigError: INVALID_CONFIG: an unknown quota or a limit below 1; INVALID_REQUEST: no entity.
        """
        is_nameless = entity.user not in (None, DEFAULT_NAME) and not _has_name(str(entity.user))
        if entity == QuotaEntity(None, None) or "" in entity or is_nameless:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, "a quota needs --user, --client-id or one of the defaults."
            )
        if entity.user not in (None, DEFAULT_NAME):
            entity = QuotaEntity(normal_principal(str(entity.user)), entity.client_id)
        for key, value in changes.items():
            if key not in QUOTA_KEYS:
                raise InvalidConfigError(
                    ErrorCode.INVALID_CONFIG, f"'{key}' is not a quota. Set one of: {', '.join(QUOTA_KEYS)}."
                )
            if value is not None and not 1 <= value <= INT64_MAX:
                raise InvalidConfigError(
                    ErrorCode.INVALID_CONFIG, f"'{key}' is {value}. Give bytes per second, from 1 to {INT64_MAX}."
                )

        def propose(state: ClusterLedgerState) -> bytes | None:
            self._require_by(state, AclOperation.ALTER_CONFIGS)
            limits = dict(dict(state.quotas).get(entity, {}))
            if all(limits.get(key) == value for key, value in changes.items()):
                return None
            return encode_command(QuotaAlter(entity, tuple(sorted(changes.items()))))

        self._decide_unless(validate_only, propose)

    def describe(self) -> list[tuple[QuotaEntity, Mapping[str, int]]]:
        """Return every entity with its quotas, from the newest fold, sorted."""
        quotas = self._ask(AclOperation.DESCRIBE_CONFIGS, lambda state: list(state.quotas))
        return sorted(quotas, key=lambda item: (item[0].user or "", item[0].client_id or ""))
