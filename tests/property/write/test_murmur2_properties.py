"""The vectorised hash against the plain one, over any mix of lengths."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.write.partitioner import murmur2_array
from tests.examples import examples


def murmur2(data: bytes) -> int:
    """Kafka's ``Utils.murmur2``, word by word."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


keys_strategy = st.one_of(
    st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=60),
    st.lists(st.binary(min_size=10, max_size=10), min_size=1, max_size=30),
    st.lists(st.binary(max_size=3), min_size=1, max_size=10),
    st.lists(st.binary(max_size=3000), min_size=1, max_size=8),
)


@settings(max_examples=examples(60), deadline=None)
@given(keys_strategy, st.data())
def test_agrees_with_the_plain_hash(keys: list[bytes | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(keys) - 1))
    array = pa.array(keys, pa.binary()).slice(start)
    for key, hash_value in zip(keys[start:], murmur2_array(array).tolist(), strict=True):
        assert key is None or hash_value == murmur2(key)


def test_one_very_long_key_among_short_ones() -> None:
    keys = [b"k%d" % number for number in range(100)] + [bytes(range(256)) * 4000]
    assert murmur2_array(pa.array(keys, pa.binary())).tolist() == [murmur2(key) for key in keys]
    lone = [keys[-1]]
    assert murmur2_array(pa.array(lone, pa.binary())).tolist() == [murmur2(lone[0])]
