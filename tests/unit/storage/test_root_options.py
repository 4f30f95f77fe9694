"""Options for all roots, for roots of one scheme, for one root."""

from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.storage.open_store import open_store, options_of_root

SCHEMES = ("s3", "gs")
ALIASES = {"s3a": "s3"}
GIVEN = {
    "key": "all",
    "s3.key": "of s3",
    "s3.secret": "s",
    "s3://bucket.key": "of the bucket",
    "S3A://Bucket/Log/.key": "of the folder",
    "s3://bucket.with.dots.key": "dots",
    "gs.token": "t",
}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://other/log", {"key": "of s3", "secret": "s"}),
        ("s3://bucket", {"key": "of the bucket", "secret": "s"}),
        ("s3://bucket/other", {"key": "of the bucket", "secret": "s"}),
        ("s3://bucket/log", {"key": "of the folder", "secret": "s"}),
        ("s3://bucket/log/broker-1", {"key": "of the folder", "secret": "s"}),
        ("s3://bucket-2/log", {"key": "of s3", "secret": "s"}),
        ("s3://bucket.with.dots", {"key": "dots", "secret": "s"}),
        ("gs://bucket/log", {"key": "all", "token": "t"}),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_narrowest_scope_wins_whatever_the_order(url, expected, order):
    assert options_of_root(url, dict(list(GIVEN.items())[::order]), SCHEMES, ALIASES) == expected


@pytest.mark.parametrize("name", ["s4.key", "s3://.key", "s3.", "bucket.s3.key", "file.key", "s3:/b.key"])
@pytest.mark.parametrize("root", ["s3://b", "/tmp/log", "memory://log"])
def test_a_scope_that_can_never_match_is_refused_at_any_root(name, root):
    with pytest.raises(InvalidConfigError) as raised:
        open_store(root, {name: "x"})
    assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION
