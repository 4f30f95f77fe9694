"""Writes tests/golden/v<N>: bytes of this release's formats, and what they mean, as JSON.

Run it only for a NEW format version, into a new folder: files of a released version never change.

    python tests/golden/make_golden.py tests/golden/v1
"""

from __future__ import annotations

import enum
import json
import sys
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_replog.ids import ObjectId
from spark_replog.log import acl as a
from spark_replog.log import model
from spark_replog.log.codec import commands as c
from spark_replog.log.codec import group_records as g
from spark_replog.log.codec.commands import encode_entry
from spark_replog.log.codec.data_object import HEADERS_TYPE, data_schema, decode_section, encode_data_object
from spark_replog.log.model import inputs_digest
from spark_replog.log.quotas import DEFAULT_NAME, QuotaEntity
from spark_replog.log.row_schema import RowSchema

TOPIC, LEDGER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
QUERY, RUN = "6f9619ff-8b86-d011-b42d-00cf4fc964ff", "12345678-9abc-def0-1234-56789abcdef0"


def entries() -> dict[str, list[c.Command]]:
    """Return every command type at least once, and the corners of the append codec."""
    sections = tuple(
        c.Section(TOPIC, p, 10 + p, 304 + 1000 * p, 1000, 0x01020304 * p, 1_700_000_000_000 + p, 1_700_000_009_999)
        for p in range(14)
    )
    objects = (
        c.DataObject(ObjectId(0, f"6f9619ff-41-0-{LEDGER}.arrow"), 15_000, False, frozenset((0, 1, 2)), sections),
        c.DataObject(ObjectId(2, f"6f9619ff-41-130-{TOPIC}.arrow"), 2_000, True, frozenset((0, 2)), sections[3:4]),
        c.DataObject(ObjectId(2, "another name"), 300, False, frozenset((1,)), ()),
    )
    stream = model.ProducerIdentity(QUERY, QUERY, 41, RUN, model.IdentityKind.STREAM, evidence=bytes(range(0xF0, 0xF8)))
    txn = model.ProducerIdentity("loader", QUERY, -1, "", model.IdentityKind.TRANSACTIONAL, model.ResetPolicy.SKIP)
    return {
        "entry_append": [c.Append(stream, "User:zo\u00eb", "client", 1_700_000_010_000, objects)],
        "entry_append_empty": [c.Append(txn, "", "", -5, ())],
        "entry_topic": [
            model.TopicInit(TOPIC, "orders", ((0, 1, 2), (1, 2, 0)), (("retention.ms", "1000"),)),
            model.PartitionsAdd(TOPIC, 3, ((2, 0, 1),)),
            model.ConfigSet(TOPIC, (("retention.ms", None), ("compression.type", "zstd"))),
            model.IsrChange(None, 2, False, 1_700_000_000_000),
            model.IsrChange(TOPIC, 2, True, 1_700_000_000_001),
            model.HoldersAdd(300, 1, 0, (2, 200)),
            model.GenerationAdvance(5, 3, 70_000),
            model.TopicClose(TOPIC),
        ],
        "entry_log_start": [
            model.LogStartAdvance(TOPIC, model.LogStartReason.DELETE_RECORDS, ((0, 7), (3, 2**40))),
            model.LogStartAdvance(TOPIC, model.LogStartReason.RETENTION, ((200, 0),)),
        ],
        "entry_cluster": [
            model.BrokerRegister(0, "file:///data/broker-0", None, "{}"),
            model.BrokerRegister(1, "s3://bucket/broker-1", "rack-1", '{"ok": true}', TOPIC),
            model.LedgerRegister("money", LEDGER),
            model.TopicPublish("orders", TOPIC, LEDGER),
            model.TopicUnpublish("orders", TOPIC),
            model.FeatureSet(1),
        ],
        "entry_leadership": [
            model.PartitionChange(TOPIC, 3, 2, 7, 1, (1, 0), (1, 0, 2), (1,), (2,)),
            model.PartitionChange(TOPIC, 200, 0, 0, -1, (0,), (0,), is_unclean=True),
            model.BrokerFence(2, True),
            model.BrokerFence(300, False),
            model.Truncate(70_000),
        ],
        "entry_snapshot": [model.SnapshotCommit(3, 70_000, f"{70_000:020d}-{LEDGER}")],
        "entry_compaction": compaction_commands(),
        "entry_groups": group_commands(),
        "entry_producers": producer_commands(),
        "entry_access": access_commands(),
        "entry_inline": inline_commands(),
        "entry_typed": typed_commands(),
        "entry_mirror": mirror_commands(),
    }


def typed_schema() -> RowSchema:
    """Return columns of every type."""
    flat = (
        "id BIGINT NOT NULL, region STRING, `odd ``name` BOOLEAN, t TINYINT, s SMALLINT, i INT, f FLOAT, d DOUBLE, "
        "amount DECIMAL(38,6), raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, took INTERVAL DAY TO SECOND"
    )
    nested = "tags ARRAY<STRING>, m MAP<STRING, ARRAY<INT>>, place STRUCT<x: DOUBLE, in: STRUCT<y: DATE>>, e STRUCT<>"
    return RowSchema(f"{flat}, {nested}", ("region", "id"))


def typed_commands() -> list[c.Command]:
    """Return a typed topic, its second version, and an append of its rows."""
    schema = typed_schema()
    sections = (c.Section(TOPIC, 1, 3, 8, 320, 7, 1_000, 1_002),)
    name = ObjectId(2, f"12345678-0-0-{LEDGER}.arrow")
    item = c.DataObject(name, 700, False, frozenset({0, 2}), sections, schema_version=2)
    random = model.ProducerIdentity(LEDGER, LEDGER, 0, "", model.IdentityKind.ONE_SHOT)
    return [
        model.TopicInit(TOPIC, "orders", ((0, 1, 2),), (), schema),
        model.SchemaEvolve(TOPIC, 2, RowSchema(f"{schema.ddl}, more INT", schema.key)),
        c.Append(random, "User:a", "", 1_700_000_000_000, (item,)),
    ]


def typed_rows() -> pa.RecordBatch:
    """Return rows with values at the ends of their ranges, and nulls."""
    when = datetime(9999, 12, 31, 23, 59, 59, 999_999)
    full = {
        "id": -(2**63), "region": "z\u00fcrich", "odd `name": True, "t": -128, "s": 2**15 - 1, "i": -1, "f": 0.5,
        "d": -1e300, "amount": Decimal("-99999999999999999999999999999999.000001"), "raw": b"\0\xff",
        "day": date(1, 1, 1), "at": when.replace(tzinfo=UTC), "local": datetime(1960, 2, 29), "took": timedelta(-1),
        "tags": ["", None], "m": [("k", [1, None]), ("l", None)],
        "place": {"x": None, "in": {"y": date(2000, 1, 1)}}, "e": {},
    }  # fmt: skip
    least = {"id": 2**63 - 1, "region": ""}
    made = [row | {"_replog_timestamp": 1_700_000_000_000_000 + at} for at, row in enumerate((full, least, full))]
    return pa.RecordBatch.from_pylist(made, data_schema(False, rows=typed_schema()))


def compaction_commands() -> list[c.Command]:
    """Return what compaction writes: a segment without gaps, two with gaps, and how far a log is clean."""
    sections = tuple(
        c.Section(TOPIC, 3, 100 - n, 304 + 9000 * n, 8000, 0x01020304 * n, 1_700_000_000_000 + n, 1_700_000_009_999)
        for n in range(3)
    )
    names = [f"compact-{offset}-3-{LEDGER}.arrow" for offset in (1000, 5000, 5100)]
    dense = c.DataObject(ObjectId(4, names[0]), 40_000, False, frozenset((0, 1, 2)), sections[:1])
    gaps = tuple(
        c.DataObject(ObjectId(4, name), 40_000, True, frozenset((0, 2)), (section,), has_offsets=True)
        for name, section in zip(names[1:], sections[1:], strict=True)
    )
    inputs = inputs_digest([(ObjectId(2, f"12345678-0-0-{LEDGER}.arrow"), 304, 5000)])
    return [
        c.Replace(TOPIC, 3, 1000, 1100, inputs_digest([]), (dense,), (1000,)),
        c.Replace(TOPIC, 3, 5000, 2**40, inputs, gaps, (5000, 7000)),
        model.LogClean(TOPIC, 3, 2**40, 1_700_000_000_000),
    ]


def mirror_commands() -> list[c.Command]:
    """Return what a mirror writes: a topic's beginning, rows at offsets, ends without rows, and its end."""
    places = [(number % 2, 8 + 400 * number) for number in range(3)]
    sections = tuple(c.Section(TOPIC, partition, 3, start, 320, 7, 1_000, 1_002) for partition, start in places)
    name = ObjectId(2, f"12345678-0-0-{LEDGER}.arrow")
    item = c.DataObject(name, 1400, False, frozenset({0, 2}), sections, has_offsets=True)
    mirror = model.ProducerIdentity("mirror", "mirror", 0, LEDGER, model.IdentityKind.ONE_SHOT)
    head = mirror, "User:a", "replog mirror", 1_700_000_000_000, (item,)
    compacted = compaction_commands()[1]
    assert isinstance(compacted, c.Replace)
    extended = [getattr(compacted, field.name) for field in fields(compacted)]
    return [
        model.MirrorSet(TOPIC, f"kafka:{LEDGER}/orders/{TOPIC}", (100, 2**40)),
        model.MirrorAppend(*head, (100, 2**40), (110, 2**40 + 3, 70_000), True),
        model.MirrorAdvance(TOPIC, ((3, 0, 2**40),)),
        model.LogExtend(*extended, 2**40 + 9),
        model.MirrorSet(TOPIC, ""),
    ]


def producer_commands() -> list[c.Command]:
    """Return what plain producers write."""
    sections = (c.Section(TOPIC, 1, 3, 8, 320, 7, 1_000, 1_002), c.Section(TOPIC, 4, 2, 328, 160, 9, 1_001, 1_001))
    item = c.DataObject(ObjectId(2, f"12345678-0-0-{LEDGER}.arrow"), 700, False, frozenset({0, 2}), sections)
    kinds = model.IdentityKind
    named = model.ProducerIdentity("till-1", "till-1", 4, "", kinds.TRANSACTIONAL)
    random = model.ProducerIdentity(LEDGER, LEDGER, 0, "", kinds.ONE_SHOT)

    def batches(epoch: int, first: int, other: int) -> tuple[c.BatchSequence, ...]:
        return (
            c.BatchSequence(TOPIC, 1, epoch, first, 2),
            c.BatchSequence(TOPIC, 1, epoch, (first + 2) % 2**31, 1),
            c.BatchSequence(TOPIC, 4, epoch, other, 2),
        )

    return [
        model.ProducerInit("till-1", TOPIC, 3),
        c.SequencedAppend(named, "User:a", "producer-1", 1_700_000_000_000, (item,), batches(3, 2**31 - 1, 0)),
        c.SequencedAppend(random, "User:a", "", 1_700_000_000_000, (item,), batches(0, 17, 17)),
    ]


def inline_commands() -> list[c.Command]:
    """Return appends that carry the bytes of objects: one beside an object that is a file."""
    sections = (c.Section(TOPIC, 1, 3, 0, 20, 7, 1_000, 1_002), c.Section(TOPIC, 4, 2, 20, 12, 9, 1_001, 1_001))
    carried = c.DataObject(
        ObjectId(2, f"12345678-0-0-{LEDGER}.arrow"), 32, True, frozenset({0, 1, 2}), sections, inline=bytes(range(32))
    )
    stored = c.DataObject(ObjectId(2, f"12345678-0-1-{LEDGER}.arrow"), 700, False, frozenset({0, 2}), sections[:1])
    random = model.ProducerIdentity(LEDGER, LEDGER, 0, "", model.IdentityKind.ONE_SHOT)
    batches = (c.BatchSequence(TOPIC, 1, 0, 17, 3), c.BatchSequence(TOPIC, 4, 0, 17, 2))
    return [
        c.Append(random, "User:a", "", 1_700_000_000_000, (carried, stored)),
        c.SequencedAppend(random, "User:a", "", 1_700_000_000_000, (carried,), batches),
    ]


def access_commands() -> list[c.Command]:
    """Return ACLs, quotas and settings of the store."""
    allow = a.AclBinding(
        a.ResourceType.TOPIC, "orders", a.PatternType.PREFIXED, "User:*", a.AclOperation.READ, a.Permission.ALLOW
    )
    deny = a.AclBinding(
        a.ResourceType.CLUSTER,
        a.CLUSTER_NAME,
        a.PatternType.LITERAL,
        "User:zo\u00eb",
        a.AclOperation.ALL,
        a.Permission.DENY,
    )
    return [
        c.AclsAdd((allow, deny)),
        c.AclsRemove((deny,)),
        c.QuotaAlter(
            QuotaEntity("User:zo\u00eb", DEFAULT_NAME), (("producer_byte_rate", 0), ("consumer_byte_rate", None))
        ),
        c.QuotaAlter(QuotaEntity(None, "etl"), (("consumer_byte_rate", 1 << 40),)),
        model.ClusterConfigSet((("super.users", "User:admin;User:ops"), ("allow.everyone.if.no.acl.found", None))),
    ]


def group_commands() -> list[c.Command]:
    """Return every kind of record of `__consumer_offsets`."""
    member = g.GroupMember("app-1", "till-1", "app", 45_000, 300_000, True, (("range", b"{}"),), b"\x00a")
    metadata = g.GroupMetadata("consumer", 3, "range", "app-1", g.GroupPhase.STABLE, 1_700_000_000_000, (member,))
    offset = g.OffsetAndMetadata(42, 7, "no\u00ebl", 1_700_000_000_001, None, TOPIC)
    records = (
        g.OffsetRecord("billing", "orders", 3, offset),
        g.OffsetRecord("billing", "orders", 4, g.OffsetAndMetadata(0)),
        g.OffsetRecord("billing", "orders", 5, None),
    )
    return [
        model.GroupRecords(TOPIC, "billing", LEDGER, 9, "app-1", "till-1", 3, -1, 1_700_000_000_001, records),
        model.GroupRecords(TOPIC, "billing", LEDGER, 10, "", "", -1, 2, -1, (g.GroupRecord("billing", metadata),)),
        model.GroupRecords(TOPIC, "billing", "w", 0, "", "", -1, 3, 0, (g.GroupRecord("billing", None),)),
    ]


def rows(first: int, has_headers: bool) -> pa.RecordBatch:
    """Return three rows with nulls, an empty value and negative time."""
    columns = [
        pa.array([None, b"key", b""], pa.binary()),
        pa.array([b"value %d" % first, None, b"\x00\xff" * 50], pa.binary()),
        pa.array([-1, 1_700_000_000_123_456, 1_700_000_000_000_000]).cast(pa.timestamp("us", tz="UTC")),
    ]
    if has_headers:
        columns.append(pa.array([None, [{"key": "h", "value": b"1"}, {"key": "n", "value": None}], []], HEADERS_TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=data_schema(has_headers))


def plain(value: Any) -> Any:
    """Return the value as JSON can hold it; sets sorted, enums by name."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, c.Section | c.BatchSequence):
        return {type(value).__name__: value._asdict()}
    if isinstance(value, c.DataObject):
        rest = {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.compare and f.name != "id"}
        return {"DataObject": {**value.id._asdict(), **rest}}
    if isinstance(value, RowSchema):
        return {"RowSchema": {"ddl": value.ddl, "key": list(value.key)}}
    if is_dataclass(value):
        return {type(value).__name__: {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.init}}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, frozenset):
        return sorted(value)
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def plain_rows(
    body: bytes, sections: list[c.Section], has_headers: bool, has_offsets: bool = False
) -> list[dict[str, Any]]:
    """Return what the sections hold."""
    json_rows = []
    for section in sections:
        part = body[section.start_byte : section.start_byte + section.size_bytes]
        batches = decode_section(part, section.crc32c, section.row_count, has_headers, has_offsets)
        for row in pa.Table.from_batches(batches).cast(_readable(has_headers, has_offsets)).to_pylist():
            json_rows.append(json.loads(json.dumps(row, default=lambda raw: raw.hex())))
    return json_rows


def _readable(has_headers: bool, has_offsets: bool) -> pa.Schema:
    schema = data_schema(has_headers, has_offsets)
    return schema.set(2, pa.field("timestamp", pa.int64()))


def plain_typed_rows(body: bytes, sections: list[c.Section]) -> list[dict[str, Any]]:
    """Return what the sections of typed rows hold; values that JSON lacks as text."""
    json_rows = []
    for section in sections:
        part = body[section.start_byte : section.start_byte + section.size_bytes]
        batches = decode_section(part, section.crc32c, section.row_count, False, rows=typed_schema())
        json_rows += json.loads(json.dumps(pa.Table.from_batches(batches).to_pylist(), default=str))
    return json_rows


def main(folder: Path) -> None:
    """Write the files; refuses to replace any."""
    if any(folder.glob("*")):
        raise SystemExit(f"{folder} is not empty: released golden files never change")
    folder.mkdir(parents=True, exist_ok=True)
    expected: dict[str, Any] = {"entries": {}, "objects": {}}
    for name, commands in entries().items():
        (folder / f"{name}.bin").write_bytes(encode_entry([c.encode_command(command) for command in commands]))
        expected["entries"][name] = plain(commands)
    for compression in ("none", "lz4", "zstd"):
        for has_headers in (False, True):
            inputs = [("orders", TOPIC, p, rows(p, has_headers), QUERY) for p in (0, 5)]
            made = encode_data_object(inputs, compression=compression, has_headers=has_headers)
            name = f"data_{compression}{'_headers' if has_headers else ''}"
            body = b"".join(made.buffers)
            (folder / f"{name}.arrow").write_bytes(body)
            sections = list(made.sections)
            expected["objects"][name] = {
                "has_headers": has_headers,
                "sections": [section._asdict() for section in sections],
                "rows": plain_rows(body, sections, has_headers),
            }
    gaps = {"compression": "lz4", "has_headers": True, "has_offsets": True}
    made_rows = rows(5, True)
    offsets = pa.array([1000 + 7 * number for number in range(made_rows.num_rows)], pa.int64())
    inputs = [("orders", TOPIC, 5, made_rows.append_column("offset", offsets), "compaction")]
    made = encode_data_object(inputs, **gaps)
    body, sections = b"".join(made.buffers), list(made.sections)
    (folder / "data_gaps.arrow").write_bytes(body)
    expected["objects"]["data_gaps"] = {
        "has_headers": True,
        "has_offsets": True,
        "sections": [section._asdict() for section in sections],
        "rows": plain_rows(body, sections, True, True),
    }
    made = encode_data_object(
        [("orders", TOPIC, 5, typed_rows(), QUERY)], compression="zstd", has_headers=False, rows=typed_schema()
    )
    body, sections = b"".join(made.buffers), list(made.sections)
    (folder / "data_typed.arrow").write_bytes(body)
    expected["typed"] = {
        "sections": [section._asdict() for section in sections],
        "rows": plain_typed_rows(body, sections),
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
