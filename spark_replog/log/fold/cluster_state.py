"""The fold of the cluster ledger: brokers, ledger and topic names, ACLs, quotas. Deterministic, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.log import model
from spark_replog.log.acl import AclsAdd, AclSet, AclsRemove
from spark_replog.log.codec.commands import ACL_BINDINGS, QUOTA_ENTITY
from spark_replog.log.codec.snapshot import SnapshotPart
from spark_replog.log.fold.entry_fold import Apply, EntryFold, change
from spark_replog.log.model import OK, CommandResult, Outcome
from spark_replog.log.quotas import QuotaAlter, QuotaSet
from spark_replog.wire import BROKER_ID, ID, TEXT, UINT, Reader, Writer, fields, map_of, optional, record, set_of


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
        self.brokers: dict[BrokerId, model.BrokerRegister] = {}
        self.fenced: set[BrokerId] = set()
        self.acls = AclSet()
        self.quotas = QuotaSet()
        self.config: dict[str, str] = {}

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

    def _apply_broker_register(self, command: model.BrokerRegister, *_: int) -> CommandResult:
        if self.brokers.get(command.broker_id) == command:
            return CommandResult(Outcome.EXISTS, f"broker {command.broker_id} is registered")
        self.brokers[command.broker_id] = command
        return OK

    def _apply_broker_fence(self, command: model.BrokerFence, *_: int) -> CommandResult:
        if command.broker_id not in self.brokers:
            return CommandResult(Outcome.INVALID, f"broker {command.broker_id} is not registered")
        if (command.broker_id in self.fenced) == command.is_fenced:
            place = "fenced" if command.is_fenced else "in service"
            return CommandResult(Outcome.EXISTS, f"broker {command.broker_id} is already {place}")
        self.fenced ^= {command.broker_id}
        return OK

    def _apply_ledger_register(self, command: model.LedgerRegister, *_: int) -> CommandResult:
        if command.name in self.ledgers:
            detail = f"ledger '{command.name}' is {self.ledgers[command.name]}"
            return CommandResult(Outcome.EXISTS, detail)
        self.ledgers[command.name] = command.ledger_id
        return OK

    def _apply_topic_publish(self, command: model.TopicPublish, *_: int) -> CommandResult:
        if command.name in self.topics:
            detail = f"topic '{command.name}' is {self.topics[command.name][0]}"
            return CommandResult(Outcome.EXISTS, detail)
        self.topics[command.name] = (command.topic_id, command.ledger_id)
        return OK

    def _apply_topic_unpublish(self, command: model.TopicUnpublish, *_: int) -> CommandResult:
        published = self.topics.get(command.name)
        if published is None or published[0] != command.topic_id:
            return CommandResult(Outcome.EXISTS, f"'{command.name}' is not topic {command.topic_id}")
        del self.topics[command.name]
        return OK

    def _apply_config_set(self, command: model.ClusterConfigSet, *_: int) -> CommandResult:
        before = dict(self.config)
        change(self.config, command.changes)
        return OK if self.config != before else CommandResult(Outcome.EXISTS, "the settings are already set")

    def _apply_acls_add(self, command: AclsAdd, *_: int) -> CommandResult:
        is_new = self.acls.add(command.bindings)
        return OK if is_new else CommandResult(Outcome.EXISTS, "all of these ACLs exist")

    def _apply_acls_remove(self, command: AclsRemove, *_: int) -> CommandResult:
        is_gone = self.acls.remove(command.bindings)
        return OK if is_gone else CommandResult(Outcome.EXISTS, "none of these ACLs exists")

    def _apply_quota_alter(self, command: QuotaAlter, *_: int) -> CommandResult:
        is_changed = self.quotas.alter(command)
        return OK if is_changed else CommandResult(Outcome.EXISTS, "the quotas are already set")

    _applies: ClassVar[Mapping[type, Apply]] = {
        model.BrokerRegister: _apply_broker_register,
        model.LedgerRegister: _apply_ledger_register,
        model.BrokerFence: _apply_broker_fence,
        model.TopicPublish: _apply_topic_publish,
        model.TopicUnpublish: _apply_topic_unpublish,
        AclsAdd: _apply_acls_add,
        AclsRemove: _apply_acls_remove,
        QuotaAlter: _apply_quota_alter,
        model.ClusterConfigSet: _apply_config_set,
    }


_BROKER = record(
    model.BrokerRegister, broker_id=BROKER_ID, url=TEXT, rack=optional(TEXT), probe=TEXT, root_id=optional(ID)
)
_TABLES = fields(
    map_of(TEXT, fields(TEXT, TEXT)),
    map_of(TEXT, TEXT),
    map_of(BROKER_ID, _BROKER),
    set_of(BROKER_ID),
    map_of(TEXT, TEXT),
)
_QUOTAS = map_of(QUOTA_ENTITY, map_of(TEXT, UINT))
