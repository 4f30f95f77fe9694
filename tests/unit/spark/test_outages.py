"""``failOnDataLoss=false`` passes over rows that are proved lost, and never over rows that are only out of reach."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace

import pytest

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import DataLossError, ErrorCode, ReplogError, RetriableError
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.log_offset import LogOffset
from spark_replog.spark.options import StoreOptions
from spark_replog.storage.posix_store import PosixStore

pytestmark = pytest.mark.usefixtures("short_retries")
ROWS = {"t-0": list(range(6))}


@pytest.fixture
def planned(source, start_query):
    """A query with one planned micro-batch of three objects; its tasks as an executor gets them."""
    source.topic("t")
    for _ in range(3):
        source.write("t", {0: 2})
    query = start_query(subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    start = query.reader.initialOffset()
    tasks = query.reader.partitions(start, query.reader.latestOffset(start, query.limit))
    return query, pickle.loads(pickle.dumps(tasks))


def fails(source, planned):
    """Read the planned rows: the task must end with an error that does not claim a loss."""
    query, tasks = planned
    with pytest.raises(ReplogError) as caught:
        source.rows(query.reader, tasks)
    assert not isinstance(caught.value, DataLossError)
    assert caught.value.code not in (ErrorCode.REPLOG_DATA_LOSS, ErrorCode.CORRUPT_MESSAGE)
    return caught.value


def roots(source):
    return sorted(source.path.glob("broker-*"))


def copies(source, number):
    """The copies of the numbered object, in the order in which they were written."""
    files = [
        sorted(root.glob("ledgers/*/data/*/*.arrow"), key=lambda file: file.stat().st_mtime) for root in roots(source)
    ]
    return [root_files[number] for root_files in files]


def read_only(self, key, data, **more):
    raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "the root is read-only.", url=self.url)


def no_answer(monkeypatch, part, code):
    """Make every get of a key with this part fail."""
    get = PosixStore.get

    def answer(self, key, **range_):
        if part in key:
            raise RetriableError(code, "the token has expired. Renew it.", url=self.url)
        return get(self, key, **range_)

    monkeypatch.setattr(PosixStore, "get", answer)


def damage(file):
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 32] = bytes(32)
    file.write_bytes(data)


def test_a_task_whose_roots_are_all_away_fails_and_names_them(source, planned, monkeypatch):
    monkeypatch.setattr(StoreOptions, "cluster", lambda self: Cluster.open(self.path))  # as in a new worker
    named = roots(source)
    for root in named:
        root.rename(root.with_suffix(".away"))
    error = fails(source, planned)
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [root for root in named if str(root) not in str(error)] == []
    for root in source.path.glob("*.away"):
        root.rename(root.with_suffix(""))
    assert source.rows(planned[0].reader, planned[1]) == ROWS


def test_a_task_on_a_worker_without_the_mount_fails(source, planned):
    """The mount point is there and empty, so every object looks absent."""
    for root in roots(source):
        root.rename(root.with_suffix(".away"))
        root.mkdir()
    fails(source, planned)


def test_an_object_absent_from_one_root_and_out_of_reach_on_the_others_is_not_lost(source, planned):
    copies(source, 1)[0].unlink()
    for root in roots(source)[1:]:
        shutil.rmtree(root / "ledgers")
        (root / "replog.json").unlink()
    fails(source, planned)


@pytest.mark.parametrize("code", [ErrorCode.REPLOG_STORE_REFUSED, ErrorCode.REPLOG_STORE_UNAVAILABLE])
def test_a_task_with_expired_credentials_or_a_timeout_fails(source, planned, monkeypatch, code):
    no_answer(monkeypatch, ".arrow", code)
    fails(source, planned)


def test_a_task_that_cannot_ask_the_ledger_whether_rows_moved_fails(source, planned, monkeypatch):
    """Every copy is damaged, and no root answers to look for a repaired one."""
    for file in copies(source, 1):
        damage(file)
    no_answer(monkeypatch, "/journal/", ErrorCode.REPLOG_STORE_UNAVAILABLE)
    fails(source, planned)


def test_rows_whose_copies_are_all_damaged_are_passed_over(source, planned, caplog):
    for file in copies(source, 1):
        damage(file)
    assert source.rows(planned[0].reader, planned[1]) == {"t-0": [0, 1, 4, 5]}
    assert "[REPLOG_DATA_LOSS]" in caplog.text
    assert "2 to 4" in caplog.text


def test_rows_whose_object_is_gone_from_every_root_are_passed_over(source, planned, caplog):
    for file in copies(source, 2):
        file.unlink()
    assert source.rows(planned[0].reader, planned[1]) == {"t-0": [0, 1, 2, 3]}
    assert "4 to 6" in caplog.text


@pytest.mark.parametrize("how", ["trimmed", "deleted"])
def test_rows_that_were_trimmed_or_deleted_are_passed_over(source, planned, how):
    if how == "trimmed":
        source.controller.delete_records("t", {0: 4})
    else:
        source.controller.delete_topic("t")
    for file in (*copies(source, 0), *copies(source, 1)):
        file.unlink()
    assert source.rows(planned[0].reader, planned[1]) == {"t-0": [4, 5]}


def test_rows_of_a_deleted_topic_come_once_where_a_task_has_two_ranges_of_a_partition(source, start_query):
    source.topic("t", 2)
    for _ in range(2):
        source.write("t", {0: 5, 1: 15})
    query = start_query(
        subscribe="t", startingOffsets="earliest", failOnDataLoss="false", minPartitions="6", maxPartitions="6"
    )
    start = query.reader.initialOffset()
    tasks = query.reader.partitions(start, query.reader.latestOffset(start, query.limit))
    (task,) = [candidate for candidate in tasks if len(candidate.ranges) == 2]
    assert [(span.partition, span.start_offset, span.end_offset) for span in task.ranges] == [(0, 0, 5), (0, 5, 10)]
    source.controller.delete_topic("t")
    for file in copies(source, 0):
        file.unlink()
    assert source.rows(query.reader, [task]) == {"t-0": [5, 6, 7, 8, 9]}


def test_a_batch_whose_end_too_few_roots_confirm_is_not_cut(source, start_query, monkeypatch):
    """Root 2 misses the newest entry and root 0 is away: a reader without write access cannot know if it is decided."""
    first, _, last = roots(source)
    source.topic("t", **{"min.insync.replicas": "2"})
    source.write("t", {0: 2})
    query = start_query(subscribe="t", startingOffsets="earliest")
    start = query.reader.initialOffset()
    last.rename(last.with_suffix(".away"))
    source.write("t", {0: 2})
    end = query.reader.latestOffset(start, query.limit)
    last.with_suffix(".away").rename(last)
    first.rename(first.with_suffix(".away"))
    monkeypatch.setattr(PosixStore, "create", read_only)
    restarted = source.stream(path=f"{source.path}/", subscribe="t", failOnDataLoss="false")  # folds for itself
    with pytest.raises(ReplogError) as caught:
        restarted.partitions(start, end)
    assert caught.value.code is ErrorCode.REPLOG_TAIL_UNDECIDED
    monkeypatch.undo()
    first.with_suffix(".away").rename(first)
    assert source.rows(restarted, restarted.partitions(start, end)) == {"t-0": [0, 1, 2, 3]}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_position_past_an_unclear_end_is_not_a_loss(source, start_query, monkeypatch, fail):
    source.topic("t")
    source.write("t", {0: 4})
    query = start_query(subscribe="t", startingOffsets="earliest", failOnDataLoss=fail)
    end = LogOffset.from_json(query.reader.latestOffset(query.reader.initialOffset(), query.limit))
    later = LogOffset({key: end_offset + 2 for key, end_offset in end.ends.items()}, end.topic_ids)
    monkeypatch.setattr(Ledger, "is_tail_unclear", property(lambda self: True))
    with pytest.raises(ReplogError) as caught:
        query.reader.partitions(end.to_json(), later.to_json())
    assert caught.value.code is ErrorCode.REPLOG_TAIL_UNDECIDED


def test_a_task_does_not_skip_offsets_past_an_unclear_end(source, planned, monkeypatch):
    for file in copies(source, 1):
        file.unlink()
    query, (task,) = planned
    ahead = replace(task, ranges=tuple(span._replace(end_offset=span.end_offset + 2) for span in task.ranges))
    monkeypatch.setattr(Ledger, "is_tail_unclear", property(lambda self: True))
    fails(source, (query, [ahead]))


@pytest.mark.parametrize("how", [{"subscribe": "t,u"}, {"subscribePattern": "t|u"}])
def test_a_topic_that_an_unclear_cluster_ledger_does_not_name_is_not_deleted(source, start_query, monkeypatch, how):
    for name in ("t", "u"):
        source.topic(name)
        source.write(name, {0: 2})
    query = start_query(startingOffsets="earliest", failOnDataLoss="false", **how)
    query.next()
    position = query.committed
    source.controller.delete_topic("u")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "is_tail_unclear", property(lambda self: True))
        with pytest.raises(ReplogError) as caught:
            query.next()
    assert caught.value.code is ErrorCode.REPLOG_TAIL_UNDECIDED
    assert query.committed == position
    query.restart()
    source.write("t", {0: 1})
    assert query.next() == {"t-0": [2]}
