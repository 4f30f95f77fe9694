"""Checkpoints of both sources, in both versions of the offset log, copied for the other one; a copy is never half."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import spark_replog
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.mirror.checkpoint_copy import INITIAL_MARK, CheckpointCopy, Position, kafka_position, kafka_text
from spark_replog.mirror.comparison import ROWS
from spark_replog.mirror.replog_side import ReplogSide
from spark_replog.monitor.offset_file import OffsetFile
from spark_replog.monitor.query_monitor import read_checkpoint
from spark_replog.storage.open_store import open_store

COUNT = 30
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class FakeKafka:
    """Rows by partition, from offset 0; what its connector writes is Kafka's."""

    name = "Kafka"

    def __init__(self, rows):
        self.by_key = rows

    def read(self, source):
        return kafka_position(source)

    def write(self, position):
        return kafka_text(position.ends)

    def initial(self, position):
        return None if position.origin is None else INITIAL_MARK + kafka_text(position.origin).encode()

    def bounds(self, keys):
        return {key: (0, len(self.by_key[key])) for key in keys if key in self.by_key}

    def batches(self, key, begin, end):
        """Some rows a batch, others than the store's."""
        rows = [row for row in self.by_key[key] if begin <= row["offset"] < end]
        for at in range(0, len(rows), 4):
            yield pa.RecordBatch.from_pylist(rows[at : at + 4], schema=ROWS)


@pytest.fixture
def store(tmp_path):
    store = spark_replog.init(str(tmp_path / "store"), brokers=1)
    store.admin().create_topic("orders", partitions=2)
    with store.producer() as producer:
        for number in range(COUNT):
            producer.send("orders", b"%d" % number, key=b"k", partition=number % 2, timestamp_ms=1_700_000_000_000)
    return store


@pytest.fixture
def here(store):
    return ReplogSide(spark_replog.cluster.cluster.Cluster.open(store.path))


@pytest.fixture
def kafka(here):
    batches = {key: list(here.batches(key, 0, COUNT // 2)) for key in (P0, P1)}
    return FakeKafka({key: [row for batch in batches[key] for row in batch.to_pylist()] for key in (P0, P1)})


def write(folder: Path, files: dict[str, str | bytes]) -> str:
    for key, text in files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder)


def of_kafka(ends_of_batches, *, version="v1", done=None, more=()):
    """Files of a checkpoint of Kafka's source, with the end of each batch."""
    begin = "left:" if version == "v2" else ""
    files = {"metadata": '{"id":"8d6ffc6b-5056-4aa3-ac15-a50bf5a3f39d"}', "state/0/0/1.delta": b"\x00state"}
    files["sources/left/0" if version == "v2" else "sources/0/0"] = INITIAL_MARK + b'{"orders":{"0":0,"1":0}}'
    for number, ends in enumerate(ends_of_batches):
        lines = [version, METADATA, begin + kafka_text({P0: ends[0], P1: ends[1]}), *more]
        files[f"offsets/{number}"] = "\n".join(lines)
        files[f"offsets/.{number}.crc"] = b"crc"
        if done is None or number < done:
            files[f"commits/{number}"] = 'v1\n{"nextBatchWatermarkMs":0}'
    return files


def copied(url, source, target, folder, **options):
    job = CheckpointCopy(open_store(url), source, target, **options)
    plan = job.plan()
    into = open_store(str(folder))
    into.make_folder("")
    job.write(plan, into, lambda done, total: None)
    return plan


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_copy_goes_on_here_and_back_again_with_state_and_commits_as_they_were(tmp_path, here, kafka, version):
    original = of_kafka([(4, 4), (10, 9)], version=version)
    url = write(tmp_path / "original", original)
    plan = copied(url, kafka, here, tmp_path / "here")
    made = files_in(tmp_path / "here")
    assert {key for key in made if made[key] == files_in(url).get(key)} == {
        key for key in original if not key.startswith("offsets/")
    }
    assert not [key for key in made if key.endswith(".crc")], "sums of other bytes"
    checkpoint = read_checkpoint(str(tmp_path / "here"), {})
    assert checkpoint.done[-1].ends == {P0: 10, P1: 9} and checkpoint.running is None
    assert checkpoint.done[0].starts == {P0: 0, P1: 0}, "from sources/0/0"
    assert checkpoint.done[-1].topic_ids == {"orders": here.write(Position({P0: 1})).split('"orders": "')[1][:32]}
    assert [(check.key, check.position, check.begin, check.end, check.row_count) for check in plan.partitions] == [
        (P0, 10, 0, 10, 10), (P1, 9, 0, 9, 9)
    ]  # fmt: skip
    copied(str(tmp_path / "here"), here, kafka, tmp_path / "back")
    back = files_in(tmp_path / "back")
    assert back == {key: data for key, data in files_in(url).items() if not key.endswith(".crc")}


def test_sources_of_other_kinds_and_sources_without_an_offset_stay_as_they_are(tmp_path, here, kafka):
    url = write(tmp_path / "original", of_kafka([(4, 4)], more=['{"logOffset":3}', "-", "7"]))
    plan = copied(url, kafka, here, tmp_path / "here")
    assert (plan.sources, plan.others) == (["0"], ["1", "2", "3"])
    lines = (tmp_path / "here" / "offsets" / "0").read_text().split("\n")
    assert lines[3:] == ['{"logOffset":3}', "-", "7"] and json.loads(lines[2])["@"]["from"]["orders"] == {
        "0": 0,
        "1": 0,
    }


def test_a_query_that_started_here_gets_the_file_of_initial_offsets_that_kafkas_source_needs(tmp_path, here, kafka):
    line = here.write(Position({P0: 3, P1: 2}, {P0: 1, P1: 0}))
    files = {"metadata": "{}", "offsets/0": f"v1\n{METADATA}\n{line}"}
    copied(write(tmp_path / "original", files), here, kafka, tmp_path / "kafka")
    made = files_in(tmp_path / "kafka")
    assert made["sources/0/0"] == b'\0v1\n{"orders":{"0":1,"1":0}}'
    assert made["offsets/0"].decode().split("\n")[2] == '{"orders":{"0":3,"1":2}}'


def test_the_rows_of_a_batch_that_runs_again_are_compared_and_what_is_not_is_said(tmp_path, here, kafka):
    url = write(tmp_path / "original", of_kafka([(4, 4), (10, 9)], done=1))
    job = CheckpointCopy(open_store(url), kafka, here, compared_count=1)
    plan = job.plan()
    assert [(check.begin, check.end, check.row_count, check.position) for check in plan.partitions] == [
        (3, 10, 7, 4), (3, 9, 6, 4)
    ]  # fmt: skip
    assert plan.unchecked == [f"orders-{number}: rows before offset 3 were not compared" for number in (0, 1)]


def changed(number, **words):
    def change(rows):
        rows[number] = rows[number] | words

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed(5, value=b"other"),
        changed(5, value=None),
        changed(5, key=b""),
        changed(5, timestamp_ms=0),
        changed(5, headers=[{"key": "name", "value": b"x"}]),
        lambda rows: rows.pop(5),
        lambda rows: rows.insert(5, rows[4] | {"value": b"more"}),
    ],
)
def test_rows_that_differ_are_named_and_nothing_is_written(tmp_path, here, kafka, change):
    change(kafka.by_key[P1])
    url = write(tmp_path / "original", of_kafka([(4, 4), (10, 9)]))
    with pytest.raises(ReplogError, match=r"different rows at offset [45] of orders-1") as raised:
        copied(url, kafka, here, tmp_path / "here")
    assert raised.value.code is ErrorCode.REPLOG_INPUT
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    "ends, code, words",
    [
        ((16, 9), ErrorCode.OFFSET_OUT_OF_RANGE, "has 0 to 15. Wait until"),
        ((10, 100), ErrorCode.OFFSET_OUT_OF_RANGE, "orders-1"),
    ],
)
def test_offsets_that_the_other_side_has_not_reached_are_refused(tmp_path, here, kafka, ends, code, words):
    url = write(tmp_path / "original", of_kafka([ends], done=0))
    with pytest.raises(ReplogError, match=words) as raised:
        CheckpointCopy(open_store(url), kafka, here).plan()
    assert raised.value.code is code


def test_a_topic_that_the_other_side_lacks_and_rows_that_are_gone_are_refused(tmp_path, store, here, kafka):
    store.admin().delete_records("orders", {0: 12})
    url = write(tmp_path / "original", of_kafka([(10, 9)]))
    with pytest.raises(ReplogError, match="Its older rows are gone"):
        CheckpointCopy(open_store(url), kafka, here).plan()
    store.admin().delete_topic("orders")
    with pytest.raises(ReplogError, match="orders") as raised:
        CheckpointCopy(open_store(url), kafka, here).plan()
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "files, code, words",
    [
        ({}, ErrorCode.REPLOG_INPUT, "is not a checkpoint"),
        ({"metadata": "{}"}, ErrorCode.REPLOG_INPUT, "is not a checkpoint of a query that ran"),
        ({"metadata": "{}", "offsets/0": ""}, ErrorCode.CORRUPT_MESSAGE, "offsets/0 of the checkpoint"),
        ({"metadata": "{}", "offsets/0": "v1"}, ErrorCode.CORRUPT_MESSAGE, "offsets/0 of the checkpoint"),
        ({"metadata": "{}", "offsets/0": "v9\n{}\n7"}, ErrorCode.UNSUPPORTED_VERSION, "v9"),
        ({"metadata": "{}", "offsets/0": 'v1\n{}\n{"orders":{"0"'}, ErrorCode.REPLOG_INPUT, "no source .* is of Kafka"),
        ({"metadata": "{}", "offsets/0": "v1\n{}\n7"}, ErrorCode.REPLOG_INPUT, "no source .* is of Kafka"),
        ({"metadata": "{}", "offsets/0": 'v1\n{}\n{"o":{"0":1},"@":{"v":1,"ids":{}}}'}, ErrorCode.REPLOG_INPUT,
         "It may be converted already"),
    ],
)  # fmt: skip
def test_what_is_no_checkpoint_of_the_other_source_is_refused(tmp_path, here, kafka, files, code, words):
    url = write(tmp_path / "original", files or {"other/file": "x"})
    with pytest.raises(ReplogError, match=words) as raised:
        CheckpointCopy(open_store(url), kafka, here).plan()
    assert raised.value.code is code


def test_a_checkpoint_in_use_gives_a_copy_that_no_query_takes_for_one(tmp_path, here, kafka):
    url = write(tmp_path / "original", of_kafka([(4, 4)]))
    job, target = CheckpointCopy(open_store(url), kafka, here), open_store(str(tmp_path / "here"))
    plan = job.plan()
    target.make_folder("")

    def go_on(done, total):
        if done == 2:
            write(tmp_path / "original", {"commits/1": "v1\n{}"})

    with pytest.raises(ReplogError, match=r"its query runs\. Stop the query"):
        job.write(plan, target, go_on)
    assert not (tmp_path / "here" / "metadata").exists()
    with pytest.raises(ReplogError, match="is not empty"):
        job.write(plan, target, lambda done, total: None)


def test_a_copy_that_is_interrupted_anywhere_has_no_metadata(tmp_path, here, kafka):
    url = write(tmp_path / "original", of_kafka([(4, 4), (10, 9)]))
    job = CheckpointCopy(open_store(url), kafka, here)
    plan, before = job.plan(), files_in(url)
    total = len(plan.changed) + len(plan.copied) + 1
    for last in range(total):
        target = open_store(str(tmp_path / f"here-{last}"))
        target.make_folder("")

        def die(done, total, last=last):
            if done == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            job.write(plan, target, die)
        assert not (tmp_path / f"here-{last}" / "metadata").exists()
    assert files_in(url) == before, "the original is only read"


def test_a_file_that_spark_wrote_is_read_and_written_again_byte_for_byte():
    text = 'v2\n{"batchTimestampMs":1}\nrates:0\nleft_one:{"orders": {"0": 30}, "@": {"v": 1, "ids": {}}}'
    file = OffsetFile.parse(text.encode(), "offsets/0")
    assert file.render() == text.encode()
    assert [(source.name, source.text[:4]) for source in file.sources] == [("rates", "0"), ("left_one", '{"or')]
