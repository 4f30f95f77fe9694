"""Set and show client quotas: the admin side of ``ClientQuotaManager``. Runs driver-side."""

from __future__ import annotations

from collections.abc import Mapping

from spark_replog.admin.admin import Admin
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.acl import CLUSTER_NAME, AclOperation, ResourceType, normal_principal
from spark_replog.log.codec.commands import QuotaAlter, encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.quota_set import (
    DEFAULT_NAME,
    QUOTA_KEYS,
    QuotaEntity,
)


class QuotaAdmin(Admin):
    """Sets and shows quotas, as entries of the cluster ledger. Thread safe.

    Args:
        cluster: the opened store.
        principal: who does it: ALTER_CONFIGS on the cluster sets, DESCRIBE_CONFIGS shows; None: see
            ``default_principal``.
        timeout_ms: for each change.
    """

    def alter(self, entity: QuotaEntity, changes: Mapping[str, int | None]) -> None:
        """Set (bytes per second) or remove (None) quotas of one entity.

        Raises:
            InvalidConfigError: INVALID_CONFIG: an unknown quota or a bound below 1; INVALID_REQUEST: no entity.
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
            RetriableError: REPLOG_NO_QUORUM.
        """
        if entity == QuotaEntity(None, None) or "" in entity:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, "a quota is somebody's. Give --user, --client-id or one of the defaults."
            )
        if entity.user not in (None, DEFAULT_NAME):
            entity = QuotaEntity(normal_principal(str(entity.user)), entity.client_id)
        for key, value in changes.items():
            if key not in QUOTA_KEYS:
                raise InvalidConfigError(
                    ErrorCode.INVALID_CONFIG, f"'{key}' is no quota. Set one of: {', '.join(QUOTA_KEYS)}."
                )
            if value is not None and value < 1:
                raise InvalidConfigError(
                    ErrorCode.INVALID_CONFIG, f"'{key}' is {value}. Give bytes per second, 1 or more."
                )

        def propose(state: ClusterLedgerState) -> bytes | None:
            self._require(state, AclOperation.ALTER_CONFIGS)
            limits = dict(dict(state.quotas).get(entity, {}))
            if all(limits.get(key) == value for key, value in changes.items()):
                return None
            return encode_command(QuotaAlter(entity, tuple(sorted(changes.items()))))

        self._cluster.cluster_ledger.append(propose, timeout_ms=self._timeout_ms)

    def describe(self) -> list[tuple[QuotaEntity, Mapping[str, int]]]:
        """Return every entity with its quotas, from the newest fold, sorted.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._cluster.refresh()
        with self._cluster.cluster_ledger.lock:
            self._require(self._cluster.cluster_ledger.state, AclOperation.DESCRIBE_CONFIGS)
            found = list(self._cluster.cluster_ledger.state.quotas)
        return sorted(found, key=lambda item: (item[0].user or "", item[0].client_id or ""))

    def _require(self, state: ClusterLedgerState, operation: AclOperation) -> None:
        if not self._authorizer.is_allowed_by(state, operation, ResourceType.CLUSTER, CLUSTER_NAME):
            raise self._authorizer.refusal(operation, ResourceType.CLUSTER, CLUSTER_NAME)
