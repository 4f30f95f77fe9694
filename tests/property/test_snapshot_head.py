"""A fold that was frozen and restored answers as the one that never was."""

from __future__ import annotations

import random
from dataclasses import replace

import crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_replog.errors import CorruptDataError, UnsupportedFormatError
from spark_replog.ids import ObjectId
from spark_replog.log.acl import AclBinding, AclOperation, AclsAdd, PatternType, Permission, ResourceType
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.codec.group_records import (
    GroupMember,
    GroupMetadata,
    GroupPhase,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
)
from spark_replog.log.codec.snapshot import SnapshotPart, seal, unseal
from spark_replog.log.fold import frozen_topics, paged_table
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    BatchSequence,
    BrokerFence,
    BrokerRegister,
    ClusterConfigSet,
    ConfigSet,
    DataObject,
    GenerationAdvance,
    GroupRecords,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    LedgerRegister,
    LogClean,
    LogStartAdvance,
    LogStartReason,
    PartitionChange,
    PartitionsAdd,
    ProducerIdentity,
    ProducerInit,
    Replace,
    Section,
    SequencedAppend,
    TopicClose,
    TopicInit,
    TopicPublish,
    TopicUnpublish,
    Truncate,
    inputs_digest,
)
from spark_replog.log.quotas import QuotaAlter, QuotaEntity, QuotaScope
from tests.examples import examples

LEDGER = "12" * 16
TOPICS = ("a" * 32, "b" * 32)
REPLICAS = ((0, 1, 2), (1, 2, 0), (2, 1))


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(paged_table, "PAGE_ROWS", 4)
    monkeypatch.setattr(paged_table, "FLUSH_ROWS", 3)
    monkeypatch.setattr(frozen_topics, "FLUSH_ROWS", 3)


def no_page(name):
    raise AssertionError(f"page {name} is asked for")


def restored(state):
    """The state of another process that knows only the snapshot."""
    frozen = state.freeze()
    other = TopicLedgerState(LEDGER) if isinstance(state, TopicLedgerState) else ClusterLedgerState()
    other.restore(frozen.head, frozen.pages.__getitem__)
    other.snapshot = state.snapshot
    return other


class Writers:
    """Draws commands that are mostly right for what is known of a state, and now and then not."""

    def __init__(self, seed, state):
        self.random = random.Random(seed)
        self.state = state
        self.now_ms = 1_000
        self.count = 0

    def entry(self):
        kinds = [self.append] * 8 + [self.sequenced] * 3 + [self.holders] * 4 + [self.isr] * 2 + [self.replace] * 3
        kinds += [self.cut, self.fence, self.trim, self.change, self.grow, self.config, self.group, self.init]
        kinds += [self.advance] * (self.random.random() < 0.2) + [self.close] * (self.random.random() < 0.05)
        return [self.random.choice(kinds)() for _ in range(self.random.choice((1, 1, 1, 2, 3)))]

    def topic(self):
        return self.random.choice(TOPICS)

    def some_brokers(self):
        return frozenset(self.random.sample(range(3), self.random.randint(1, 3)))

    def objects(self):
        everyone = self.random.random() < 0.6
        objects = []
        for _ in range(self.random.randint(1, 2)):
            self.count += 1
            sections, start = [], 8
            for partition in sorted(self.random.sample(range(3), self.random.randint(1, 3))):
                rows, low = self.random.randint(1, 4), self.now_ms - self.random.randint(0, 500)
                crc = self.random.getrandbits(32)
                sections.append(Section(self.topic(), partition, rows, start, 8 * rows, crc, low, low + rows))
                start += 8 * rows
            name = ObjectId(self.state.generations.newest, f"q-{self.count}-{self.random.getrandbits(128):032x}.arrow")
            holders = frozenset(range(3)) if everyone else self.some_brokers()
            item = DataObject(name, start, self.random.random() < 0.3, holders, tuple(sections))
            if self.random.random() < 0.3:
                item = replace(item, holders=frozenset(), inline=self.random.randbytes(start))
            objects.append(item)
        return tuple(objects)

    def append(self):
        self.now_ms += self.random.randint(-200, 2_000)
        kind = self.random.choice(tuple(IdentityKind))
        incarnation = self.random.choice("vw") if kind is not IdentityKind.TXN_BATCH else "v"
        identity = ProducerIdentity(
            self.random.choice("xy") if kind is not IdentityKind.ONE_SHOT else f"o{self.count}",
            incarnation,
            self.random.choice((self.count, self.random.randint(0, 12))),
            self.random.choice("rst"),
            kind,
            evidence=self.random.choice((b"", b"one plan", b"two plan")),
        )
        return Append(identity, self.random.choice(("alice", "bob")), "c", self.now_ms, self.objects())

    def sequenced(self):
        producer = self.random.choice("pq")
        producer_state = self.state.producers.sequenced.producers.get(producer)
        objects, batches, rows = self.objects(), [], {}
        for item in objects:
            for span in item.sections:
                rows[span.topic_id, span.partition] = rows.get((span.topic_id, span.partition), 0) + span.row_count
        for (topic, partition), count in rows.items():
            sequences = None if producer_state is None else producer_state.partitions.get((topic, partition))
            first = 0 if sequences is None else sequences.next_sequence
            epoch = max(0, producer_state.epoch if producer_state else 0)
            batches.append(BatchSequence(topic, partition, epoch, first, count))
        identity = ProducerIdentity(producer, producer, 0, "", IdentityKind.ONE_SHOT)
        return SequencedAppend(identity, "alice", "c", self.now_ms, objects, tuple(batches))

    def init(self):
        producer_state = self.state.producers.sequenced.producers.get("p")
        return ProducerInit("p", self.random.choice("ij"), 0 if producer_state is None else producer_state.epoch + 1)

    def holders(self):
        missing = self.state.under_replicated(include_out_of_sync=True)
        if missing and self.random.random() < 0.8:
            copy = self.random.choice(missing)
            return HoldersAdd(*copy[:3], copy.missing)
        index = self.random.randint(1, max(1, self.state.applied_index))
        return HoldersAdd(index, 0, 0, tuple(self.some_brokers()))

    def isr(self):
        topic = self.random.choice((None, self.topic()))
        return IsrChange(topic, self.random.randrange(3), self.random.random() < 0.6, self.now_ms)

    def cut(self):
        return Truncate(max(self.state.stable_index, self.state.applied_index - self.random.randint(0, 3)))

    def fence(self):
        return BrokerFence(self.random.randrange(3), self.random.random() < 0.4)

    def trim(self):
        topic, number = self.topic(), self.random.randrange(3)
        mark = self.state.topics[topic].partitions[number].high_watermark
        if self.random.random() < 0.3:
            return LogClean(topic, number, self.random.randint(0, mark), self.random.randint(0, 99_999))
        return LogStartAdvance(
            topic, self.random.choice(tuple(LogStartReason)), ((number, self.random.randint(0, mark)),)
        )

    def change(self):
        topic, number = self.topic(), self.random.randrange(3)
        partition = self.state.topics[topic].partitions[number]
        replicas = tuple(self.random.sample(range(4), self.random.randint(2, 4)))
        if self.random.random() < 0.4:
            leader = self.random.choice(partition.replicas)
            return PartitionChange(
                topic, number, partition.leader_epoch, partition.partition_epoch, leader, (leader,), partition.replicas,
                partition.adding, partition.removing, True,
            )  # fmt: skip
        isr = tuple(broker for broker in replicas if broker in partition.isr) or replicas[:1]
        adding = tuple(broker for broker in replicas if broker not in partition.replicas)
        return PartitionChange(
            topic, number, partition.leader_epoch, partition.partition_epoch, isr[0], isr, replicas, adding, ()
        )

    def replace(self):
        topic, number = self.topic(), self.random.randrange(3)
        partition = self.state.topics[topic].partitions[number]
        live = self.state.sections(topic, number, partition.log_start_offset, partition.high_watermark)
        live = [section for section in live if section.end_offset <= partition.high_watermark]
        if not live:
            return self.append()
        low = self.random.randrange(len(live))
        taken = live[low : low + self.random.randint(1, 4)]
        first, end = taken[0].base_offset, taken[-1].end_offset
        base = self.random.choice([section.base_offset for section in taken])
        bases = sorted({first, base})
        self.count += 1
        sections, start = [], 8
        for at, after in zip(bases, (*bases[1:], end), strict=True):
            rows, crc = self.random.randint(1, after - at), self.random.getrandbits(32)
            sections.append(Section(topic, number, rows, start, 8 * rows, crc, self.now_ms - 900, self.now_ms - 300))
            start += 8 * rows
        name = ObjectId(self.state.generations.newest, f"c-{self.count}-{self.random.getrandbits(128):032x}.arrow")
        holders = (
            frozenset(partition.replicas)
            if self.random.random() < 0.5
            else frozenset(partition.isr).union(*(section.object.holders for section in taken))
        )
        output = DataObject(name, start, False, holders, tuple(sections), True)
        digest = inputs_digest((section.object.id, section.start_byte, section.base_offset) for section in taken)
        return Replace(topic, number, first, end, digest, (output,), tuple(bases))

    def grow(self):
        topic = self.topic()
        return PartitionsAdd(topic, len(self.state.topics[topic].partitions) + 1, ((1, 2),))

    def config(self):
        key, value = self.random.choice(
            (
                ("min.insync.replicas", "1"),
                ("message.timestamp.type", "LogAppendTime"),
                ("message.timestamp.type", None),
                ("unclean.leader.election.enable", "true"),
            )
        )
        return ConfigSet(self.topic(), ((key, value),))

    def group(self):
        name, record = self.random.choice("gh"), None
        if self.random.random() < 0.7:
            offset = OffsetAndMetadata(self.random.randint(0, 99), 3, "m", self.now_ms, None, TOPICS[0])
            record = OffsetRecord(name, "t", self.random.randrange(4), self.random.choice((offset, offset, None)))
        else:
            member = GroupMember(f"m{self.random.randrange(3)}", "", "c", 1, 2, True, (("range", b"x"),), b"y")
            group = self.state.groups.get(name)
            phase = self.random.choice((GroupPhase.EMPTY, GroupPhase.STABLE))
            metadata = GroupMetadata("consumer", 1, "range", "m0", phase, self.now_ms, (member,))
            record = GroupRecord(name, self.random.choice((metadata, metadata, None)))
            revision = 0 if group is None else group.revision
            return GroupRecords(TOPICS[0], name, "w", self.count, "", "", -1, revision, self.now_ms, (record,))
        writer = f"w{self.random.randrange(9)}"
        self.count += 1
        return GroupRecords(TOPICS[0], name, writer, self.count, "", "", -1, -1, self.now_ms, (record,))

    def advance(self):
        generation = self.state.generations.newest + self.random.randint(0, 1)
        return GenerationAdvance(generation, max(0, generation - self.random.randint(1, 2)))

    def close(self):
        return TopicClose(TOPICS[1])


def missing(state, **which):
    """Missing copies, with the sections that are live: a state may name those that it knew before they were trimmed."""
    live = {
        (key[0], key[1], row.object.id, row.start_byte)
        for topic in state.topics.values()
        for number in range(len(topic.partitions))
        for key in [(topic.topic_id, number)]
        for row in state.sections(*key, 0, 2**62)
    }
    return [
        copy._replace(
            sections=tuple(s for s in copy.sections if (s.topic_id, s.partition, copy.object.id, s.start_byte) in live)
        )
        for copy in state.under_replicated(**which)
    ]


def answers(state):
    """All that a topic ledger's state tells anyone."""
    facts = {
        "applied": state.applied_index,
        "stable": state.stable_index,
        "inline": (state.inline_room_bytes, state.inline_spans()),
        "generation": (
            state.generations.newest,
            state.generations.floor,
            state.generations.began_ms,
            state.append_time_ms,
        ),
        "fenced": state.fenced,
        "shrunk": state.leadership.last_shrink_ms,
        "missing": missing(state),
        "missing anywhere": missing(state, include_out_of_sync=True),
        "has missing": any(state.objects.missing.values()),
        "lost": [state.objects.lost_after(frozenset(gone)) for gone in ({0}, {1}, {0, 1}, {1, 2})],
        "groups": dict(state.groups.groups),
        "traffic": state.traffic,
        "rates": [
            state.produce_rates.measure((scope, user, "c"), state.append_time_ms)
            for scope in QuotaScope
            for user in ("User:alice", "User:bob", "")
        ],
    }
    for topic in state.topics.values():
        facts[topic.topic_id] = (topic.name, topic.config, topic.closed)
        for number, partition in enumerate(topic.partitions):
            key = (topic.topic_id, number)
            fields = (
                "replicas", "isr", "leader", "leader_epoch", "partition_epoch", "adding", "removing", "min_insync",
                "log_append_time", "retired", "log_start_offset", "log_start_reason", "log_end_offset",
                "high_watermark", "clean_points",
            )  # fmt: skip
            facts[key] = [getattr(partition, name) for name in fields], partition.leader_epochs.entries
            end = partition.log_end_offset
            facts[key, "sections"] = state.sections(*key, partition.log_start_offset, end)
            facts[key, "some"] = [state.sections(*key, at, at + 3) for at in range(partition.log_start_offset, end, 5)]
            facts[key, "times"] = [state.offset_for_time(*key, at) for at in range(0, 60_000, 4_999)]
            facts[key, "bytes"] = [
                partition.end_within_bytes(partition.log_start_offset, end, size) for size in range(0, 200, 41)
            ]
            facts[key, "live bytes"] = partition.live_bytes
    return facts


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 40))
def test_a_restored_fold_answers_and_goes_on_as_the_one_it_was_made_of(seed, length):
    kept, other = TopicLedgerState(LEDGER), TopicLedgerState(LEDGER)
    writers = Writers(seed, kept)
    begin = [TopicInit(topic, topic[0], REPLICAS, (("unclean.leader.election.enable", "true"),)) for topic in TOPICS]
    for index in range(length):
        commands = begin if index == 0 else writers.entry()
        payload = encode_entry([encode_command(command) for command in commands])
        assert kept.apply(index, payload) == other.apply(index, payload)
        if writers.random.random() < 0.3:
            other = restored(other)
            assert answers(other) == answers(kept)
            assert restored(kept).freeze().head == kept.freeze().head
    assert answers(other) == answers(kept)


class Disk:
    """Where the pages of one ledger lie; those that the newest snapshot does not name are deleted at once."""

    def __init__(self):
        self.pages, self.loads = {}, 0

    def load(self, name):
        self.loads += 1
        return self.pages[name]

    def store(self, frozen):
        assert all(self.pages.setdefault(name, data) == data for name, data in frozen.pages.items())

    def clean(self, state):
        named = set(state.page_names())
        assert named <= self.pages.keys()
        self.pages = {name: self.pages[name] for name in named}


def named_by(state):
    """The objects with rows."""
    return {ObjectId(at, name) for at in range(state.generations.newest + 1) for name in state.objects.referenced(at)}


def same_results(command, one, two):
    """A copy of an object without rows may be named or not: pages forget such objects when they are merged."""
    return one == two or isinstance(command, HoldersAdd)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(5, 80))
def test_a_fold_whose_rows_are_in_pages_answers_as_one_that_keeps_all(small_pages, seed, length):
    """Pages of four rows, written every few entries, while entries go on; memory for some pages only."""
    kept, paged, disk = TopicLedgerState(LEDGER), TopicLedgerState(LEDGER), Disk()
    paged.load_page, paged.page_cache.limit_bytes = disk.load, 3000
    writers, frozen, entries = Writers(seed, kept), None, {}
    options = (("unclean.leader.election.enable", "true"),)
    begin = [TopicInit(topic, topic[0], REPLICAS, options) for topic in TOPICS]
    for index in range(length):
        commands = begin if index == 0 else writers.entry()
        payload = encode_entry([encode_command(command) for command in commands])
        for command, one, two in zip(commands, kept.apply(index, payload), paged.apply(index, payload), strict=True):
            assert same_results(command, one, two), command
        entries[index] = payload
        dice = writers.random.random()
        if frozen is None and dice < 0.5:
            frozen = paged.freeze()
        elif frozen is not None and dice < 0.1:
            frozen = None  # it could not be stored
        elif frozen is not None and dice < 0.8:
            disk.store(frozen)
            if dice < 0.2:  # a process that begins with the snapshot
                paged = TopicLedgerState(LEDGER)
                paged.restore(frozen.head, disk.load)
                paged.page_cache.limit_bytes = 3000
                for at in range(frozen.applied_index + 1, index + 1):
                    paged.apply(at, entries[at])
            else:
                paged.adopted(frozen)
            disk.clean(paged)
            frozen = None
        if dice < 0.9 and index + 1 < length:
            continue
        assert answers(paged) == answers(kept)
        for generation in range(kept.generations.newest + 1):
            assert paged.referenced_objects(generation) >= kept.referenced_objects(generation)
        assert named_by(kept).isdisjoint(paged.dropped_objects())
    for _ in range(2):  # rows that went while the first one was stored are found by the second
        frozen = paged.freeze()
        disk.store(frozen)
        paged.adopted(frozen)
    assert named_by(paged) == named_by(kept)
    assert paged.dropped_objects().keys() >= kept.dropped_objects().keys()


def a_cluster():
    state = ClusterLedgerState()
    binding = AclBinding(ResourceType.TOPIC, "t", PatternType.PREFIXED, "User:a", AclOperation.READ, Permission.ALLOW)
    commands = [
        BrokerRegister(0, "file:///r0", None, "{}"),
        BrokerRegister(1, "file:///r1", "rack", "{}", "1" * 32),
        LedgerRegister("main", LEDGER),
        TopicPublish("t", TOPICS[0], LEDGER),
        TopicPublish("u", TOPICS[1], LEDGER),
        TopicUnpublish("u", TOPICS[1]),
        AclsAdd((binding,)),
        QuotaAlter(QuotaEntity("a", None), (("producer_byte_rate", 5),)),
        ClusterConfigSet((("x", "1"),)),
        BrokerFence(1, True),
    ]
    state.apply(0, encode_entry([encode_command(command) for command in commands]))
    return state


def test_a_restored_cluster_ledger_is_the_same():
    kept = a_cluster()
    other = restored(kept)
    for name in ("topics", "ledgers", "brokers", "fenced", "config"):
        assert getattr(other, name) == getattr(kept, name) and getattr(kept, name), name
    assert (list(other.acls), list(other.quotas)) == (list(kept.acls), list(kept.quotas))
    assert other.acls.decide("User:a", AclOperation.READ, ResourceType.TOPIC, "tx") == kept.acls.decide(
        "User:a", AclOperation.READ, ResourceType.TOPIC, "tx"
    )
    command = encode_entry([encode_command(TopicPublish("v", TOPICS[1], LEDGER))])
    assert other.apply(1, command) == kept.apply(1, command)
    assert other.topics == kept.topics and "v" in other.topics


def a_topic_ledger():
    state = TopicLedgerState(LEDGER)
    writers = Writers(7, state)
    begin = [TopicInit(topic, topic[0], REPLICAS, ()) for topic in TOPICS]
    for index in range(40):
        commands = begin if index == 0 else writers.entry()
        state.apply(index, encode_entry([encode_command(command) for command in commands]))
    return state


@pytest.mark.parametrize("make", [a_topic_ledger, a_cluster])
def test_no_damage_is_taken_for_a_state(make):
    """Every cut, and flips over the whole head: a coded error, and the state is the old one."""
    state = make()
    head = state.freeze().head
    places = range(0, len(head), max(1, len(head) // 300))
    for broken in [head[:at] for at in places] + [
        head[:at] + bytes([head[at] ^ 1 << at % 8]) + head[at + 1 :] for at in places
    ]:
        with pytest.raises(CorruptDataError):
            state.restore(broken, no_page)
    assert state.freeze().head == head


@pytest.mark.parametrize("make", [a_topic_ledger, a_cluster])
def test_bytes_that_no_release_wrote_are_refused_although_their_checksum_fits(make):
    state = make()
    head = state.freeze().head
    part = SnapshotPart(head[5])
    body = unseal(part, head).rest()
    dice = random.Random(3)
    for _ in range(150):
        broken = bytearray(body)
        for _ in range(dice.randint(1, 4)):
            broken[dice.randrange(len(broken))] = dice.choice((0, 0x7F, 0xFF, dice.randrange(256)))
        if dice.random() < 0.3:
            broken = broken[: dice.randrange(len(broken))]
        try:
            make().restore(seal(part, bytes(broken)), no_page)
        except (CorruptDataError, UnsupportedFormatError):  # one byte more is a higher feature level
            continue


def test_a_head_of_another_ledger_of_a_newer_release_or_of_another_kind_is_refused():
    state, cluster = a_topic_ledger(), a_cluster()
    head = bytearray(state.freeze().head)
    with pytest.raises(CorruptDataError, match="ledger " + LEDGER):
        TopicLedgerState("34" * 16).restore(bytes(head), no_page)
    with pytest.raises(CorruptDataError, match="part 2"):
        state.restore(cluster.freeze().head, no_page)
    newer = seal(SnapshotPart.TOPIC_HEAD, b"")
    newer = newer[:4] + b"\x02" + newer[5:-4]
    newer += crc32c.crc32c(newer).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormatError, match="Upgrade"):
        state.restore(newer, no_page)
