"""Client quotas: whose they are and which one holds. Pure.

Source: Kafka's ``ClientQuotaEntity`` and ``ClientQuotaManager`` (levels of precedence).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
QUOTA_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
DEFAULT_NAME = "<default>"
"""As Kafka's tools print an entity that stands for all without one of their own."""


class QuotaEntity(NamedTuple):
    """Whose quota: by user, by client id, or by both.

    Attributes:
        user: a principal (``User:alice``), DEFAULT_NAME for every user, None where the user does not matter.
        client_id: a client id, DEFAULT_NAME for every client id, None where it does not matter.
    """

    user: str | None
    client_id: str | None


class QuotaScope(Enum):
    """What is measured together under a quota."""

    USER_CLIENT = "user-client"
    USER = "user"
    CLIENT = "client"


class Quota(NamedTuple):
    """The quota that holds for one (user, client id).

    Attributes:
        entity: where it was set.
        limit_per_second: its bound.
        scope: whether one user's clients, one client id's users, or only the pair share it.
    """

    entity: QuotaEntity
    limit_per_second: int
    scope: QuotaScope


RateKey = tuple[QuotaScope, str, str]
"""Scope, user, client id; '' for the one that the scope leaves out."""


@dataclass(frozen=True, slots=True)
class FetchQuota:
    """What one reader must keep to, per process. Plain, so that tasks carry it.

    Attributes:
        limit_per_second: bytes.
        key: whose reads are measured together.
    """

    limit_per_second: int
    key: RateKey


@dataclass(frozen=True, slots=True)
class QuotaAlter:
    """Sets or removes (None) quotas of one entity."""

    entity: QuotaEntity
    changes: tuple[tuple[str, int | None], ...]


class QuotaSet:
    """The quotas of a store. Folded by the cluster ledger; read it under its lock."""

    def __init__(self) -> None:
        self._limits: dict[QuotaEntity, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Mapping[str, int]]]:
        for entity, limits in self._limits.items():
            yield entity, dict(limits)

    def alter(self, command: QuotaAlter) -> bool:
        """Apply the changes; return whether one changed anything."""
        limits = dict(self._limits.get(command.entity, {}))
        for key, value in command.changes:
            if value is None:
                limits.pop(key, None)
            else:
                limits[key] = value
        if limits == self._limits.get(command.entity, {}):
            return False
        if limits:
            self._limits[command.entity] = limits
        else:
            del self._limits[command.entity]
        return True

    def find(self, key: str, user: str, client_id: str) -> Quota | None:
        """Return the most specific quota of the eight levels, None where none is set."""
        if not self._limits:
            return None
        pair, one_user, one_client = QuotaScope.USER_CLIENT, QuotaScope.USER, QuotaScope.CLIENT
        levels = (
            (QuotaEntity(user, client_id), pair),
            (QuotaEntity(user, DEFAULT_NAME), pair),
            (QuotaEntity(user, None), one_user),
            (QuotaEntity(DEFAULT_NAME, client_id), pair),
            (QuotaEntity(DEFAULT_NAME, DEFAULT_NAME), pair),
            (QuotaEntity(DEFAULT_NAME, None), one_user),
            (QuotaEntity(None, client_id), one_client),
            (QuotaEntity(None, DEFAULT_NAME), one_client),
        )
        for entity, scope in levels:
            limit = self._limits.get(entity, {}).get(key)
            if limit is not None:
                return Quota(entity, limit, scope)
        return None
