"""Checkpoints as Spark writes them, and the queries behind them against a real store."""

from __future__ import annotations

import json
import threading

import pytest

from spark_replog.admin.controller import Controller
from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError, UnsupportedFormatError
from spark_replog.health.readers import Verdict, judge
from spark_replog.monitor import store_monitor
from spark_replog.monitor.query_monitor import QueryMonitor, list_checkpoints, parse_batch, read_checkpoint
from spark_replog.monitor.store_monitor import StoreWatch
from tests.unit.client.consumer_setup import Store, rows

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{"spark.sql.shuffle.partitions":"1"}}'


class Query:
    """A checkpoint folder, written as Spark 4.3 does (recorded from a real run)."""

    def __init__(self, folder, topic_id, version=1):
        self.folder, self.topic_id, self.version = folder, topic_id, version
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        (folder / "metadata").write_text('{"id":"48672477-5abb-4c39-9b3b-e9a55a7f26ca"}')

    def plan(self, batch, time_ms, ends, origin=None):
        value = {"orders": {str(number): end for number, end in ends.items()}}
        value["@"] = {"v": 1, "ids": {"orders": self.topic_id}}
        if origin is not None:
            value["@"]["from"] = {"orders": {str(number): at for number, at in origin.items()}}
        lines = [json.dumps(value), "-", '{"kafka":{"0":1}}', "[1]"]
        if self.version == 2:
            lines = [f"{number}:{line}" for number, line in reversed(list(enumerate(lines)))]
        text = "\n".join([f"v{self.version}", METADATA % time_ms, *lines])
        (self.folder / "offsets" / str(batch)).write_text(text)
        (self.folder / "offsets" / f".{batch}.crc").write_text("x")

    def done(self, batch, time_ms, ends):
        self.plan(batch, time_ms, ends)
        (self.folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"))
    made.create("orders", 2)
    made.write("orders", rows(10))
    return made


@pytest.fixture(params=[1, 2])
def query(request, store, tmp_path):
    return Query(tmp_path / "ck" / "orders", store.cluster.lookup("orders").topic_id, request.param)


def look(store, query):
    return QueryMonitor(store.cluster).describe(read_checkpoint(str(query.folder), {}))


def test_the_position_is_the_end_of_the_newest_batch_that_is_done(store, query):
    now_ms = store.clock.now_ms()
    query.done(0, now_ms - 9_000, {0: 3, 1: 0})
    query.done(1, now_ms - 8_000, {0: 4, 1: 0})
    query.plan(2, now_ms - 7_000, {0: 10, 1: 0})
    reader = look(store, query)
    assert (reader.state, reader.batch_id, reader.state_since_ms) == ("IN_BATCH", 2, now_ms - 7_000)
    assert [(part.partition, part.position, part.lag.lag) for part in reader.partitions] == [(0, 4, 6), (1, 0, 0)]
    assert reader.partitions[0].since_ms == now_ms - 8_000


def test_a_query_in_its_first_batch_stands_where_it_began(store, query):
    query.plan(0, store.clock.now_ms(), {0: 10, 1: 0}, origin={0: 2, 1: 0})
    reader = look(store, query)
    assert (reader.state, reader.lag, reader.partitions[0].position) == ("IN_BATCH", 8, 2)


def test_a_query_that_never_ran_has_no_position(store, query):
    reader = look(store, query)
    assert (reader.state, reader.partitions, judge(reader, 0).verdict) == ("NEW", (), Verdict.OK)


def test_a_deleted_topic_and_one_made_again_under_its_name_are_gone(store, query):
    query.done(0, store.clock.now_ms(), {0: 3})
    for again in (False, True):
        Controller(store.cluster).delete_topic("orders") if not again else store.create("orders", 2)
        reader = look(store.another_process(), query)
        assert [partition.lag for partition in reader.partitions] == [None]
        assert judge(reader, store.clock.now_ms()).verdict is Verdict.LOSING


def test_partitions_added_later_are_read_from_their_first_row_and_assigned_ones_alone(store, query):
    now_ms = store.clock.now_ms()
    store.write("orders", rows(2), partition=1)
    query.done(0, now_ms + 60_000, {0: 10})  # partition 1 had rows then: the query is assigned partition 0 only
    assert [partition.partition for partition in look(store, query).partitions] == [0]
    store.clock.advance(120_000)
    Controller(store.cluster).add_partitions("orders", 3)
    store.write("orders", rows(4), partition=2)
    reader = look(store, query)
    assert [(part.partition, part.position, part.lag.lag) for part in reader.partitions] == [(0, 10, 0), (2, 0, 4)]


def test_old_batches_that_spark_deleted_are_not_missed(store, query):
    now_ms = store.clock.now_ms()
    for batch in range(40, 80):
        query.done(batch, now_ms - 100_000 + batch, {0: min(batch - 40, 10)})
    checkpoint = read_checkpoint(str(query.folder), {})
    assert [batch.batch_id for batch in checkpoint.done] == [64, 72, 76, 78, 79]
    assert checkpoint.query_id.startswith("48672477")


def test_what_is_no_checkpoint_is_refused(query, tmp_path):
    with pytest.raises(InvalidConfigError, match="REPLOG_INPUT"):
        read_checkpoint(str(tmp_path), {})
    assert list_checkpoints(str(tmp_path / "ck"), {}) == [str(query.folder)]
    assert list_checkpoints(str(query.folder), {}) == [str(query.folder)]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_query_that_only_writes_is_healthy(store, query, is_done):
    (query.folder / "offsets" / "0").write_text("v1\n" + METADATA % 1 + '\n{"kafka":{"0":1}}')
    if is_done:
        (query.folder / "commits" / "0").write_text("v1\n{}")
    reader = look(store, query)
    assert (reader.state, reader.partitions) == ("WRITES_ONLY", ())
    judged = judge(reader, store.clock.now_ms())
    assert (judged.verdict, judged.reason) == (Verdict.OK, "reads no replog topic")


@pytest.mark.parametrize(
    "text",
    [
        "", "v1", "v1\n[]", "v1\n{", 'v1\n{"batchTimestampMs":"x"}', 'v1\n{"batchTimestampMs":-1}', "\ud800",
        pytest.param('v1\n{"batchTimestampMs":1%s}' % ("0" * 400), id="a time that no float holds ends a scrape"),
    ],
)  # fmt: skip
def test_damaged_files_are_coded_errors(text):
    with pytest.raises((CorruptDataError, UnsupportedFormatError)):
        parse_batch(0, text.encode("utf-8", "surrogatepass"))


def test_a_newer_version_is_refused():
    with pytest.raises(UnsupportedFormatError):
        parse_batch(0, b"v3\n{}\n")
    with pytest.raises(UnsupportedFormatError):
        parse_batch(0, b'v1\n{"batchTimestampMs":1}\n{"orders":{"0":1},"@":{"v":9}}')


def test_the_commands(store, query, replog):
    now_ms = store.clock.now_ms()
    query.done(0, now_ms - 9_000, {0: 10, 1: 0})
    words = ("-s", store.path, "query")
    checked = replog(*words, "check", query.folder.parent, "-f", "json")
    assert (checked.exit_code, checked.items[0]["verdict"]) == (0, "OK")
    (listed,) = replog(*words, "list", query.folder.parent, "-f", "json").items
    assert (listed["batch"], listed["lag"], listed["checkpoint"]) == (0, 0, str(query.folder))
    described = replog(*words, "describe", query.folder)
    assert described.exit_code == 0 and "IDLE, 0 rows" in described.out
    query.done(0, now_ms - 9_000, {0: 4, 1: 0})
    late = replog(*words, "check", query.folder, "--after", "PT0S")
    assert late.exit_code == 4 and late.out.splitlines()[1].startswith("STOPPED")


@pytest.mark.parametrize("bad", ["none", "damaged"])
def test_a_checkpoint_that_cannot_be_read_hides_no_verdict(store, query, replog, tmp_path, bad):
    query.done(0, store.clock.now_ms(), {0: 10, 1: 0})
    damaged = Query(tmp_path / "damaged", query.topic_id)
    damaged.done(0, 1, {0: 3})
    (damaged.folder / "offsets" / "0").write_text("v1")
    for noun in ("check", "list", "describe"):
        result = replog("-s", store.path, "query", noun, tmp_path / bad, query.folder, "-f", "json")
        assert (result.exit_code, [row["ok"] for row in result.items]) == (1, [False, True])
    query.done(0, store.clock.now_ms() - 9_000, {0: 4, 1: 0})
    result = replog("-s", store.path, "query", "check", tmp_path / bad, query.folder, "--after", "0s")
    assert result.exit_code == 4 and "STOPPED" in result.out and bad in result.err


@pytest.mark.parametrize("read", [read_checkpoint, list_checkpoints])
def test_a_folder_that_does_not_exist_is_no_root_of_a_store(tmp_path, read):
    with pytest.raises(InvalidConfigError, match="none' does not exist") as refused:
        read(str(tmp_path / "none"), {})
    assert refused.value.code is ErrorCode.REPLOG_INPUT


def test_a_checkpoint_that_is_given_twice_is_one_reader(store, query):
    """Prometheus refuses two samples of one series."""
    query.done(0, store.clock.now_ms(), {0: 3, 1: 0})
    folder = str(query.folder)
    seen = StoreWatch(store.cluster, (str(query.folder.parent), folder, f"{folder}/", folder)).look()
    assert [reader.name for reader in seen.readers] == [folder]


def test_a_folder_of_checkpoints_is_listed_twice_a_minute_and_read_at_each_look(store, query, tmp_path, monkeypatch):
    listed = []
    whole = store_monitor.list_checkpoints
    monkeypatch.setattr(store_monitor, "list_checkpoints", lambda *words: listed.append(words) or whole(*words))
    watch = StoreWatch(store.cluster, (str(query.folder.parent),))

    def positions():
        return [part.position for reader in watch.look().readers for part in reader.partitions]

    query.done(0, 1, {0: 3})
    assert positions() == [3]
    query.done(1, 2, {0: 4})
    Query(tmp_path / "ck" / "new", query.topic_id).done(0, 1, {0: 5})
    assert positions() == [4] and len(listed) == 1
    store.clock.advance(store_monitor.CHECKPOINT_LIST_INTERVAL_MS)
    assert positions() == [5, 4] and len(listed) == 2


def test_a_checkpoint_whose_storage_hangs_holds_up_no_look(store, query, monkeypatch):
    query.done(0, store.clock.now_ms(), {0: 3, 1: 0})
    goes_on, asked = threading.Event(), []

    def read(url, options, read=store_monitor.read_checkpoint):
        asked.append(url)
        assert goes_on.wait(60)
        return read(url, options)

    monkeypatch.setattr(store_monitor, "ROOT_TIMEOUT_MS", 10)
    monkeypatch.setattr(store_monitor, "read_checkpoint", read)
    watch = StoreWatch(store.cluster, (str(query.folder),))
    looks = [watch.look() for _ in range(2)]
    assert [[error.code for _, error in seen.unread] for seen in looks] == [[ErrorCode.REQUEST_TIMED_OUT]] * 2
    assert len(asked) == 1
    goes_on.set()
    for _ in range(1_000):
        seen = watch.look()
        if not seen.unread:
            break
    assert [reader.kind for reader in seen.readers] == ["query"]


def test_a_damaged_checkpoint_in_a_folder_hides_no_other(store, query):
    damaged = Query(query.folder.parent / "damaged", query.topic_id)
    damaged.plan(0, 1, {0: 3})
    (damaged.folder / "offsets" / "0").write_text("v1")
    query.done(0, store.clock.now_ms(), {0: 3, 1: 0})
    seen = StoreWatch(store.cluster, (str(query.folder.parent),)).look()
    assert [reader.name for reader in seen.readers] == [str(query.folder)]
    assert [url for url, _ in seen.unread] == [str(damaged.folder)]
