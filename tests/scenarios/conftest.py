"""A real store on local directories, and appends of made-up bytes to it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from spark_replog.admin.controller import Controller
from spark_replog.cluster import cluster
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest, ProduceResponse
from spark_replog.commit.purgatory import DelayedOperationPurgatory
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode, OutcomeUnknownError, RetriableError
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.fold.partition_state import SectionRef
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, ResetPolicy, Section
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.paths import data_key
from tests.power_cuts import PowerCuts

ROW_SIZE_BYTES = 10


@pytest.fixture
def without_snapshots(monkeypatch):
    """Ledgers keep every entry as a record, however many."""
    monkeypatch.setattr(
        cluster, "LedgerSettings", partial(cluster.LedgerSettings, snapshot_first_entry_count_min=1 << 30)
    )


@pytest.fixture
def short_tail_retry(monkeypatch):
    """A tail that a lost root leaves open is read again for a tenth of a second instead of one: then a writer claims.

    Not for tests that count calls: a busy machine may need longer for an answer.
    """
    monkeypatch.setattr(cluster, "LedgerSettings", partial(cluster.LedgerSettings, tail_retry_ms=100))


@pytest.fixture
def short_quorum_wait(monkeypatch):
    """Return a function: from its call on, a majority that is away is given up after half a second instead of three.

    To be called once no majority is there: a busy machine may stand still for longer than half a second.
    """
    short = partial(cluster.LedgerSettings, quorum_timeout_ms=500)
    return lambda: monkeypatch.setattr(cluster, "LedgerSettings", short)


@pytest.fixture
def power_cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerCuts]:
    """The disk of this process's stores; in the end stopped writers go on."""
    cuts = PowerCuts(monkeypatch)
    yield cuts
    cuts.go_on()


class LocalStore:
    """One opened store, as one process sees it."""

    def __init__(self, path: Path, config: CoordinatorConfig) -> None:
        self.path = path
        self.config = config
        self.reopen()

    def reopen(self) -> None:
        """Start as a new process would: nothing cached."""
        self.cluster = Cluster.open(str(self.path), config=self.config)
        self.controller = Controller(self.cluster)
        self.manager = ReplicaManager(self.cluster)

    @property
    def purgatory(self) -> DelayedOperationPurgatory:
        """Where this process's appends wait."""
        return self.manager._services.purgatory

    def create(self, name: str, partitions: int = 1, replicas: int = 3, **more: object) -> None:
        self.controller.create_topic(name, partitions, replicas, start_index=0, **more)  # type: ignore[arg-type]

    def away(self, broker_id: int) -> None:
        os.rename(self.path / f"broker-{broker_id}", self.path / f"broker-{broker_id}.away")

    def back(self, broker_id: int) -> None:
        os.rename(self.path / f"broker-{broker_id}.away", self.path / f"broker-{broker_id}")

    def put(
        self, topic: str, rows: Mapping[int, int], holders: frozenset[int] | set[int], *, generation: int = 0
    ) -> DataObject:
        """Write one data object of `rows` per partition to the holders."""
        handle = self.cluster.lookup(topic)
        sections, body = [], b""
        for partition, row_count in rows.items():
            piece = os.urandom(ROW_SIZE_BYTES * row_count)
            sections.append(
                Section(handle.topic_id, partition, row_count, len(body), len(piece), crc32c(piece), 1000, 2000)
            )
            body += piece
        name = f"q-0-0-{new_id()}.arrow"
        for broker_id in holders:
            key = data_key(handle.ledger_id, generation, name)
            self.cluster.brokers.store(broker_id).create(key, body, make_parent=True)
        after = self.cluster.topic_ledger(handle.ledger_id).state.applied_index
        fields = ObjectId(generation, name), len(body), False, frozenset(holders), tuple(sections)
        return DataObject(*fields, after_index=after)

    def append(
        self,
        topic: str,
        rows: Mapping[int, int],
        *,
        batch: int,
        holders: frozenset[int] | set[int] = frozenset({0, 1, 2}),
        acks: int = -1,
        query: str = "query-1",
        run: str = "run-1",
        incarnation: str | None = None,
        kind: IdentityKind = IdentityKind.STREAM,
        on_reset: ResetPolicy = ResetPolicy.FAIL,
        timeout_ms: int = 30_000,
        objects: tuple[DataObject, ...] | None = None,
        is_atomic: bool = True,
        evidence: bytes = b"",
    ) -> ProduceResponse:
        """Write and commit one micro-batch as one task would."""
        if objects is None:
            objects = (self.put(topic, rows, holders),)
        identity = ProducerIdentity(query, incarnation or query, batch, run, kind, on_reset, evidence)
        ledger_id = self.cluster.lookup(topic).ledger_id
        return self.commit({ledger_id: Append(identity, "User:test", "", 0, objects)}, acks, timeout_ms,
                           is_atomic)[ledger_id]  # fmt: skip

    def commit(
        self,
        entries: Mapping[str, Append],
        acks: int = -1,
        timeout_ms: int = 30_000,
        is_atomic: bool = True,
    ) -> Mapping[str, ProduceResponse]:
        answers = self.manager.append_records(
            {ledger_id: AppendRequest(append, timeout_ms, acks, is_atomic) for ledger_id, append in entries.items()}
        )
        assert self.manager.await_copies(30_000)
        return answers

    def high_watermarks(self, topic: str) -> list[int]:
        return list(self.controller.offsets(topic).values())

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        return self.controller.describe_topic(topic).partitions[partition].isr

    def sections(self, topic: str, partition: int = 0) -> list[SectionRef]:
        handle = self.cluster.lookup(topic)
        ledger, topic_state = self.cluster.topic_state(handle)
        with ledger.lock:
            end = topic_state.partitions[partition].high_watermark
            return ledger.state.sections(handle.topic_id, partition, 0, end)

    def held_by(self, topic: str, broker_id: int) -> set[str]:
        """The names of data objects that lie on a root."""
        return {file.name for file in (self.path / f"broker-{broker_id}").rglob("*.arrow")}


FAST = CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=3_000)
"""A root that is away fails at once; one that only a busy machine keeps waiting is not to leave the ISR."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """Three brokers; a replica may come back into the ISR at once."""
    path = tmp_path / "store"
    init_cluster(str(path), 3, fsync=False)
    yield LocalStore(path, FAST)


class FaultyStore:
    """A store whose journal creates lose their answer or never arrive, and whose data creates stall.

    After a lost answer the journal cannot be read either: the reader would find what was created.

    ``answered_count`` counts the gets and creates that came back.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.url = store.url
        self.lose_answers = False
        self.has_lost = False
        self.drop_creates = False
        self.stall_seconds = 0.0
        self.hung = threading.Event()
        self.hung.set()
        self.data_gate = threading.Event()
        self.data_gate.set()
        self.answered_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get(self, key: str, **more: Any) -> Any:
        self.hung.wait(20)
        if self.has_lost and self.lose_answers and "/journal/" in key:
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer")
        answer = self.store.get(key, **more)
        self.answered_count += 1
        return answer

    def create(self, key: str, data: Any, *, make_parent: bool = False) -> Any:
        self.hung.wait(20)
        if "/journal/" not in key:
            time.sleep(self.stall_seconds)
            self.data_gate.wait(20)
        elif self.lose_answers or self.drop_creates:
            if not self.drop_creates:
                self.store.create(key, data, make_parent=make_parent)
            self.has_lost = True
            raise OutcomeUnknownError(ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "no answer")
        outcome = self.store.create(key, data, make_parent=make_parent)
        self.answered_count += 1
        return outcome


class Faults:
    """The faulty stores of one process; an attribute set here is set on all."""

    def __init__(self, stores: dict[int, FaultyStore]) -> None:
        self.__dict__["stores"] = stores

    def __setattr__(self, name: str, value: object) -> None:
        for faulty_store in self.stores.values():
            setattr(faulty_store, name, value)


@pytest.fixture
def faults() -> Any:
    """Open a store so that every root is faulty, with short timeouts."""

    @contextmanager
    def break_roots(store: LocalStore, config: CoordinatorConfig | None = None) -> Iterator[Faults]:
        kept, store.config = store.config, config or replace(store.config, delivery_timeout_ms=2_000)
        opened = BrokerSet.open(str(store.path))
        made = {broker_id: FaultyStore(opened.store(broker_id)) for broker_id in opened.broker_ids}
        opened.stores.update(made)  # type: ignore[arg-type]
        store.cluster = Cluster(opened, path=str(store.path), storage_options={}, config=store.config)
        store.controller, store.manager = Controller(store.cluster), ReplicaManager(store.cluster)
        yield Faults(made)
        for faulty_store in made.values():
            faulty_store.hung.set()
            faulty_store.data_gate.set()
        store.config = kept

    return break_roots
