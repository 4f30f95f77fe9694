"""The fold of the cluster ledger: brokers, ledger and topic names, ACLs, quotas. Deterministic, no clock."""

from __future__ import annotations

import json
from dataclasses import dataclass

from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.log.acl import AclsAdd, AclSet, AclsRemove
from spark_replog.log.codec.commands import ACL_BINDINGS, QUOTA_ENTITY
from spark_replog.log.codec.snapshot import SnapshotPart
from spark_replog.log.codec.wire import (
    BROKER_ID,
    ID,
    TEXT,
    UINT,
    Reader,
    Writer,
    fields,
    map_of,
    optional,
    record,
    set_of,
)
from spark_replog.log.fold.entry_fold import EntryFold
from spark_replog.log.model import (
    OK,
    BrokerFence,
    BrokerRegister,
    ClusterConfigSet,
    CommandResult,
    LedgerRegister,
    Outcome,
    TopicPublish,
    TopicUnpublish,
)
from spark_replog.log.quotas import QuotaAlter, QuotaSet


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A registered broker; see `BrokerRegister`."""

    broker_id: BrokerId
    url: str
    rack: str | None
    probe: str
    root_id: str | None

    @property
    def file_system(self) -> str:
        """Kind of file system that the root was on when it was registered, "" if unknown."""
        try:
            name = json.loads(self.probe).get("fileSystem")
        except (ValueError, AttributeError, RecursionError):  # it came from storage
            return ""
        return name if isinstance(name, str) else ""


class ClusterLedgerState(EntryFold):
    """State of the cluster ledger. Read it under the ledger's lock.

    Attributes:
        topics: name -> (topic id, ledger id).
        ledgers: ledger name -> ledger id.
        brokers: by id.
        fenced: brokers that an admin took out of service.
        acls: who may do what.
        quotas: how fast clients may write and read.
        config: settings of the whole store, as given.
    """

    _part = SnapshotPart.CLUSTER_HEAD

    def __init__(self, name: str = "of the cluster") -> None:
        super().__init__(name)
        self.topics: dict[str, tuple[TopicId, LedgerId]] = {}
        self.ledgers: dict[str, LedgerId] = {}
        self.brokers: dict[BrokerId, BrokerState] = {}
        self.fenced: set[BrokerId] = set()
        self.acls = AclSet()
        self.quotas = QuotaSet()
        self.config: dict[str, str] = {}
        self._bind()

    def _bind(self) -> None:
        self._applies = {
            BrokerRegister: self._apply_broker_register,
            LedgerRegister: self._apply_ledger_register,
            BrokerFence: self._apply_broker_fence,
            TopicPublish: self._apply_topic_publish,
            TopicUnpublish: self._apply_topic_unpublish,
            AclsAdd: lambda command, *_: _done(self.acls.add(command.bindings), "all of these ACLs exist"),
            AclsRemove: lambda command, *_: _done(self.acls.remove(command.bindings), "none of these ACLs exists"),
            QuotaAlter: lambda command, *_: _done(self.quotas.alter(command), "the quotas are already set"),
            ClusterConfigSet: self._apply_config_set,
        }

    def _write(self, writer: Writer) -> None:
        _TABLES.write(writer, (self.topics, self.ledgers, self.brokers, self.fenced, self.config))
        ACL_BINDINGS.write(writer, list(self.acls))
        _QUOTAS.write(writer, dict(self.quotas))

    def _read(self, reader: Reader) -> None:
        self.topics, self.ledgers, self.brokers, self.fenced, self.config = _TABLES.read(reader)
        self.acls, self.quotas = AclSet(), QuotaSet()
        self.acls.add(ACL_BINDINGS.read(reader))
        for entity, limits in _QUOTAS.read(reader).items():
            self.quotas.alter(QuotaAlter(entity, tuple(limits.items())))

    def ledger_ids(self) -> set[LedgerId]:
        """Return every topic ledger that may still be appended to; a named one without topics may get some again."""
        return {ledger_id for _, ledger_id in self.topics.values()} | set(self.ledgers.values())

    def _apply_broker_register(self, command: BrokerRegister, *_: int) -> CommandResult:
        broker = BrokerState(command.broker_id, command.url, command.rack, command.probe, command.root_id)
        if self.brokers.get(command.broker_id) == broker:
            return CommandResult(Outcome.EXISTS, {}, f"broker {command.broker_id} is registered")
        self.brokers[command.broker_id] = broker
        return OK

    def _apply_broker_fence(self, command: BrokerFence, *_: int) -> CommandResult:
        if command.broker_id not in self.brokers:
            return CommandResult(Outcome.INVALID, {}, f"broker {command.broker_id} is not registered")
        if (command.broker_id in self.fenced) == command.is_fenced:
            return CommandResult(
                Outcome.EXISTS,
                {},
                f"broker {command.broker_id} is already {'fenced' if command.is_fenced else 'in service'}",
            )
        self.fenced ^= {command.broker_id}
        return OK

    def _apply_ledger_register(self, command: LedgerRegister, *_: int) -> CommandResult:
        if command.name in self.ledgers:
            detail = f"ledger '{command.name}' is {self.ledgers[command.name]}"
            return CommandResult(Outcome.EXISTS, {}, detail)
        self.ledgers[command.name] = command.ledger_id
        return OK

    def _apply_topic_publish(self, command: TopicPublish, *_: int) -> CommandResult:
        if command.name in self.topics:
            detail = f"topic '{command.name}' is {self.topics[command.name][0]}"
            return CommandResult(Outcome.EXISTS, {}, detail)
        self.topics[command.name] = (command.topic_id, command.ledger_id)
        return OK

    def _apply_topic_unpublish(self, command: TopicUnpublish, *_: int) -> CommandResult:
        published = self.topics.get(command.name)
        if published is None or published[0] != command.topic_id:
            return CommandResult(Outcome.EXISTS, {}, f"'{command.name}' is not topic {command.topic_id}")
        del self.topics[command.name]
        return OK

    def _apply_config_set(self, command: ClusterConfigSet, *_: int) -> CommandResult:
        before = dict(self.config)
        for key, value in command.changes:
            if value is None:
                self.config.pop(key, None)
            else:
                self.config[key] = value
        return OK if self.config != before else CommandResult(Outcome.EXISTS, {}, "the settings are already set")


_BROKER = record(BrokerState, broker_id=BROKER_ID, url=TEXT, rack=optional(TEXT), probe=TEXT, root_id=optional(ID))
_TABLES = fields(
    map_of(TEXT, fields(TEXT, TEXT)),
    map_of(TEXT, TEXT),
    map_of(BROKER_ID, _BROKER),
    set_of(BROKER_ID),
    map_of(TEXT, TEXT),
)
_QUOTAS = map_of(QUOTA_ENTITY, map_of(TEXT, UINT))


def _done(changed: int, otherwise: str) -> CommandResult:
    return OK if changed else CommandResult(Outcome.EXISTS, {}, otherwise)
