"""Kafka's own vectors (``UtilsTest.testMurmur2``, librdkafka's ``rdmurmur2.c``, kafka-python's table)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.write.partitioner import CHUNK_ROW_COUNT, murmur2_array, partitions_of

pytestmark = pytest.mark.case("kafka-1")

VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
    (b"", 275646681),
    (b"kafka", -798503068),
    (b"giberish123456789", -1890243828),
    (b"1234", -1614185708),
    (b"234", -406844982),
    (b"34", -2026295078),
    (b"4", 1514888353),
    (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 2017611548),
    (b"reAmbleWillBeRemoved,ThePrePartThatIs", 1247982455),
    (b"eAmbleWillBeRemoved,ThePrePartThatIs", -521871202),
    (b"AmbleWillBeRemoved,ThePrePartThatIs", 1656271935),
    (b"0", 971027396),
    (b"1", -1993445489),
    (b"a", -1563381124),
    (b"ab", 316155434),
    (b"abcd", -1323649548),
    (b"key", -1079937367),
    (b"123456789", -1822237082),
    (b"\x00\x20", 1121897742),
    (b"\xff\xfe\xfd\xfc\xfb", 524068735),
    ("\u00e9\u20ac\U0001d11e".encode(), 983480520),
    (bytes(range(256)), -1948347274),
]
PARTITIONS = [
    (b"21", 340),
    (b"foobar", 166),
    (b"abc", 107),
    (b"", 681),
    (b"kafka", 580),
    (b"a", 524),
    (b"ab", 434),
]


@pytest.mark.parametrize(("key", "expected"), VECTORS)
def test_one_key(key: bytes, expected: int) -> None:
    assert murmur2_array(pa.array([key], pa.binary())).astype(np.int32).tolist() == [expected]


def test_all_keys_at_once_and_as_a_slice() -> None:
    keys = pa.array([None, b"x" * 7, *[key for key, _ in VECTORS], None], pa.binary())
    expected = [value for _, value in VECTORS]
    assert murmur2_array(keys).astype(np.int32).tolist()[2:-1] == expected
    assert murmur2_array(keys.slice(2, len(VECTORS))).astype(np.int32).tolist() == expected
    assert murmur2_array(keys.slice(5, 3)).astype(np.int32).tolist() == expected[3:6]


def test_strings_hash_as_their_utf8_bytes() -> None:
    assert murmur2_array(pa.array(["foobar"])).astype(np.int32).tolist() == [-790332482]


def test_more_rows_than_a_chunk() -> None:
    count = 2 * CHUNK_ROW_COUNT + 5
    keys = pa.array([VECTORS[number % len(VECTORS)][0] for number in range(count)], pa.binary())
    expected = [VECTORS[number % len(VECTORS)][1] for number in range(count)]
    assert murmur2_array(keys).astype(np.int32).tolist() == expected


def test_no_rows_and_nulls_only() -> None:
    assert len(murmur2_array(pa.array([], pa.binary()))) == 0
    assert len(murmur2_array(pa.nulls(3, pa.binary()))) == 3


def test_sign_bit_is_cleared_before_the_modulo() -> None:
    hashes = murmur2_array(pa.array([key for key, _ in PARTITIONS], pa.binary()))
    assert partitions_of(hashes, 1000).tolist() == [partition for _, partition in PARTITIONS]
    # The absolute value of -2**31 does not fit; clearing the bit gives 0.
    assert partitions_of(np.array([0x80000000], dtype=np.uint32), 7).tolist() == [0]
