from __future__ import annotations

import dataclasses
import json

import crc32c
import pytest

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.storage.root_file import (
    Broker,
    RootFile,
    decode_root_file,
    encode_root_file,
    metadata_broker_ids,
)

ROOT = RootFile(
    cluster_id="0123456789abcdef0123456789abcdef",
    broker_id=1,
    format_version=1,
    brokers=(Broker(0, "broker-0", "a"), Broker(1, "s3://x/y", None)),
    metadata_broker_ids=(0, 1),
    fsync=False,
)


def decode(data):
    return decode_root_file(data, url="file:///r")


def test_round_trip():
    assert decode(encode_root_file(ROOT)) == ROOT
    assert decode(memoryview(encode_root_file(ROOT))) == ROOT


def test_layout_is_stable():
    fields = json.loads(encode_root_file(ROOT))
    assert list(fields)[-1] == "crc32c" and int(fields.pop("crc32c"), 16) >= 0
    assert fields == {
        "format": "replog-root",
        "version": 1,
        "clusterId": "0123456789abcdef0123456789abcdef",
        "brokerId": 1,
        "rootId": None,
        "brokers": [{"id": 0, "url": "broker-0", "rack": "a"}, {"id": 1, "url": "s3://x/y", "rack": None}],
        "metadataBrokers": [0, 1],
        "fsync": False,
    }


def test_unknown_fields_of_the_same_version_are_ignored():
    fields = json.loads(encode_root_file(ROOT))
    del fields["crc32c"]
    body = json.dumps({**fields, "note": "added later"}, indent=2).encode()[: -len("\n}")]
    later = body + b',\n  "crc32c": "%08x"\n}\n' % crc32c.crc32c(body)
    assert decode(later) == ROOT


def test_a_future_version_is_named():
    data = encode_root_file(dataclasses.replace(ROOT, format_version=2))
    with pytest.raises(UnsupportedFormatError, match=r"UNSUPPORTED_VERSION.*version 2.*Upgrade") as raised:
        decode(data)
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"format": "other", "version": 1}',
        encode_root_file(ROOT)[:-20],
        encode_root_file(dataclasses.replace(ROOT, broker_id=9)),
        encode_root_file(dataclasses.replace(ROOT, metadata_broker_ids=())),
        encode_root_file(dataclasses.replace(ROOT, metadata_broker_ids=(0, 5))),
    ],
)
def test_damage_is_told(data):
    with pytest.raises(CorruptDataError, match="CORRUPT_MESSAGE") as raised:
        decode(data)
    assert "file:///r" in str(raised.value)


def test_metadata_roots():
    counts = [len(metadata_broker_ids(n)) for n in range(1, 9)]
    assert counts == [1, 2, 3, 3, 5, 5, 5, 5]
    assert metadata_broker_ids(7) == (0, 1, 2, 3, 4)
