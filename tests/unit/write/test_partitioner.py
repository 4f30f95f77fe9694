from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.write_plan import TopicPlan
from spark_replog.write.partitioner import BuiltInPartitioner, TopicPartitioner, UserPartitioner, make_partitioner


class Draws(random.Random):
    """Counts draws and gives 1, 2, 3, 1, 2, 3 and so on, as in Kafka's test."""

    def __init__(self) -> None:
        super().__init__(0)
        self.count = 0

    def choice(self, seq: Any) -> Any:
        self.count += 1
        return seq[(self.count - 1) % 3]


class EvenOdd:
    """A partitioner of a user."""

    def partition_array(self, keys: pa.Array, count: int) -> Any:
        return np.arange(len(keys)) % count


class PerRecordOnly:
    def partition(self, key: bytes, count: int) -> int:
        return 0


def sizes(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def later(*values: int) -> Callable[[], np.ndarray[Any, np.dtype[np.int64]]]:
    return lambda: sizes(*values)


def make(count: int = 4, *, ignore_keys: bool = False, custom: Any = None) -> TopicPartitioner:
    sets = ((0,),) * count
    topic = TopicPlan("orders", "t" * 32, "l" * 32, 0, sets, sets, 1, "none", 1 << 20, False)
    config = ProducerConfig(batch_size_bytes=1024, partitioner_ignore_keys=ignore_keys)
    return TopicPartitioner(topic, config, random.Random(7), None if custom is None else UserPartitioner(custom))


def keys(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


class TestSticky:
    def test_switches_after_batch_size_bytes(self) -> None:
        # Kafka testUniformBuiltInPartitioner, without the half-full rule that passive storage does not need.
        draws = Draws()
        sticky = BuiltInPartitioner(1024, (1, 2, 3), draws)
        assert sticky.assign(sizes(100)).tolist() == [1]
        assert draws.count == 1
        assert sticky.assign(sizes(1024)).tolist() == [1]
        assert sticky.assign(sizes(1024)).tolist() == [2]
        assert sticky.assign(sizes(1024)).tolist() == [3]
        assert sticky.assign(sizes(1024)).tolist() == [1]
        assert draws.count == 5

    def test_a_slice_is_cut_where_the_bytes_say(self) -> None:
        sticky = BuiltInPartitioner(300, (1, 2, 3), Draws())
        assert sticky.assign(sizes(*[100] * 8)).tolist() == [1, 1, 1, 2, 2, 2, 3, 3]
        assert sticky.assign(sizes(*[100] * 2)).tolist() == [3, 1]

    def test_agrees_with_row_by_row(self) -> None:
        source = random.Random(3)
        values = [source.randrange(1, 400) for _ in range(500)]
        whole = BuiltInPartitioner(1000, range(5), random.Random(1)).assign(sizes(*values))
        single = BuiltInPartitioner(1000, range(5), random.Random(1))
        assert whole.tolist() == [int(single.assign(sizes(value))[0]) for value in values]

    def test_same_seed_same_choice(self) -> None:
        first, second = (BuiltInPartitioner(10, range(64), random.Random("q/1/2")) for _ in range(2))
        assert first.assign(sizes(*[10] * 50)).tolist() == second.assign(sizes(*[10] * 50)).tolist()

    def test_only_partitions_with_a_leader(self) -> None:
        sticky = BuiltInPartitioner(1, (2, 5), random.Random(0))
        assert set(sticky.assign(sizes(*[1] * 50)).tolist()) == {2, 5}

    def test_uniform(self) -> None:
        counts = np.bincount(BuiltInPartitioner(1, range(4), random.Random(0)).assign(sizes(*[1] * 4000)))
        assert counts.min() > 850


class TestPrecedence:
    def test_explicit_wins_over_key_and_custom(self) -> None:
        chosen = make(custom=EvenOdd()).partitions(
            keys(b"a", b"b", None), pa.array([3, None, 2], pa.int32()), later(1, 1, 1)
        )
        assert chosen.tolist() == [3, 0, 2]

    def test_custom_wins_over_key(self) -> None:
        assert make(custom=EvenOdd()).partitions(keys(*[b"k"] * 5), None, later(*[1] * 5)).tolist() == [
            0,
            1,
            2,
            3,
            0,
        ]

    def test_empty_key_is_a_key_and_null_is_not(self) -> None:
        chosen = make(1000).partitions(keys(b"", None, b""), None, later(1, 1, 1)).tolist()
        assert chosen[0] == chosen[2] == 681
        assert chosen[1] != 681

    def test_ignore_keys(self) -> None:
        chosen = make(ignore_keys=True).partitions(keys(*[b"%d" % n for n in range(9)]), None, later(*[1] * 9))
        assert len(set(chosen.tolist())) == 1

    def test_one_null_partition_among_others_is_chosen_by_its_key(self) -> None:
        explicit = pa.array([3, None, 2], pa.int32())
        partition = int(make(1000).partitions(keys(b"21"), None, later(1))[0])
        chosen = make(1000).partitions(keys(b"21", b"21", b"21"), explicit, later(1, 1, 1))
        assert partition > 3
        assert chosen.tolist() == [3, partition, 2]

    def test_all_null_partition_column_is_as_none(self) -> None:
        chosen = make(1000).partitions(keys(b"21"), pa.nulls(1, pa.int32()), later(1))
        assert chosen.tolist() == [340]

    def test_one_partition(self) -> None:
        assert make(1).partitions(keys(b"a", None), None, later(1, 1)).tolist() == [0, 0]


class TestRefusals:
    def test_negative(self) -> None:
        with pytest.raises(InvalidConfigError, match="partition -1 of topic 'orders'") as caught:
            make().partitions(keys(b"a"), pa.array([-1], pa.int32()), later(1))
        assert caught.value.code is ErrorCode.INVALID_PARTITIONS

    def test_out_of_range_names_topic_partition_and_count(self) -> None:
        with pytest.raises(InvalidConfigError, match="but topic 'orders' has partitions 0 to 3") as caught:
            make().partitions(keys(b"a", b"b"), pa.array([0, 4], pa.int32()), later(1, 1))
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert caught.value.context == {"topic": "orders", "partition": 4, "count": 4}

    @pytest.mark.parametrize("answer", [np.zeros(2, dtype=np.int64), np.zeros(1), np.array(["a"])])
    def test_custom_of_wrong_shape_or_type(self, answer: Any) -> None:
        class Wrong:
            def partition_array(self, keys: pa.Array, count: int) -> Any:
                return answer

        with pytest.raises(InvalidConfigError, match="one integer per key"):
            make(custom=Wrong()).partitions(keys(b"a"), None, later(1))

    def test_custom_out_of_range(self) -> None:
        class TooHigh:
            def partition_array(self, keys: pa.Array, count: int) -> Any:
                return pa.array([count] * len(keys))

        with pytest.raises(InvalidConfigError, match="TooHigh names partition 4"):
            make(custom=TooHigh()).partitions(keys(b"a"), None, later(1))


def loaded(path: str) -> UserPartitioner:
    partitioner = make_partitioner(path)
    assert partitioner is not None
    return partitioner


class TestLoading:
    def test_absent(self) -> None:
        with pytest.raises(InvalidConfigError, match="cannot be imported"):
            make_partitioner("no.such.Thing")
        with pytest.raises(InvalidConfigError, match="cannot be imported"):
            make_partitioner("Thing")

    def test_per_record_only_is_refused_naming_the_method(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spark_replog.ids.PerRecordOnly", PerRecordOnly, raising=False)
        with pytest.raises(InvalidConfigError, match=r"no method partition_array\(keys, count\)"):
            loaded("spark_replog.ids.PerRecordOnly").check_arrow_form()

    def test_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spark_replog.ids.EvenOdd", EvenOdd, raising=False)
        assert loaded("spark_replog.ids.EvenOdd").name == "EvenOdd"
