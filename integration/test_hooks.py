"""Classes of the user in the sink: shipped as a file, named in options, run where the rows are written."""

from __future__ import annotations

import pytest
from remote import run_in
from spark_driver import JobFailed

MODULE = '''
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext


class Raising:
    def on_send_batch(self, topic, batch):
        raise RuntimeError("on purpose")


class Stamp:
    """Adds topic and task: only a task has a TaskContext."""

    def on_send_batch(self, topic, batch):
        place = batch.schema.get_field_index("value")
        stamp = f"-{topic}-task{TaskContext.get().partitionId()}"
        return batch.set_column(place, "value", pc.binary_join_element_wise(batch.column(place), stamp, ""))


class Bracketed:
    def serialize_array(self, topic, array):
        return pa.array([None if item is None else f"[{item}]".encode() for item in array.to_pylist()], pa.binary())


class Last:
    def partition_array(self, keys, count):
        return pa.array([count - 1] * len(keys), pa.int32())
'''
HOOKS = {
    "interceptor.classes": "hooks_of_user.Raising, hooks_of_user.Stamp",
    "key.serializer": "hooks_of_user.Bracketed",
    "value.serializer": "hooks_of_user.Bracketed",
    "partitioner.class": "hooks_of_user.Last",
}


@pytest.fixture(scope="module")
def hooks(spark, work_folder):
    """Options that name classes of a module which the session ships to its workers."""
    file = work_folder / "hooks_of_user.py"
    file.write_text(MODULE)
    run_in(spark, ship, file=str(file))
    return HOOKS


def ship(spark, file):
    spark.sparkContext.addPyFile(file)


def rows_of(spark, store, topic):
    return [[row[0], row[2], row[3]] for row in spark.call("read", path=str(store.path), topic=topic)]


def test_hooks_run_in_the_task_and_change_what_is_written(spark, store, hooks):
    topic = store.topic("hooked", 3, 1)
    query = "select concat('k', id) key, concat('v', id) value from range(0, 3, 1, 1)"
    spark.call("write_sql", path=str(store.path), query=query, options={"topic": topic, **hooks})
    assert rows_of(spark, store, topic) == [[2, f"[k{id}]", f"[v{id}-hooked-task0]"] for id in range(3)]
    assert "interceptor Raising raised in on_send_batch and is skipped" in spark.log_text()


def test_hooks_run_in_every_micro_batch_of_a_stream(spark, store, hooks):
    source, sink = store.topic("hooked-in", 1, 1), store.topic("hooked-out", 3, 1)
    spark.call("write", path=str(store.path), topic=source, start=0, end=2, tasks=1)
    batches = spark.call(
        "copy_stream", path=str(store.path), source=source, sink=sink, checkpoint=store.checkpoint("hooked"),
        select=["cast(key as string) key", "cast(value as string) value"], sink_options=hooks,
        source_options={"maxOffsetsPerTrigger": "1"},
    )  # fmt: skip
    assert [rows for rows in batches if rows] == [1, 1]
    assert rows_of(spark, store, sink) == [[2, f"[{id}]", f"[{id}-hooked-out-task0]"] for id in range(2)]


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("interceptor.classes", "hooks_of_user.Missing"),
        ("value.serializer", "no_such_module.Serializer"),
        ("partitioner.class", "no_such_module.Partitioner"),
    ],
)
def test_a_class_that_the_workers_do_not_have_is_named(spark, store, hooks, setting, name):
    topic = store.topic("unhooked", 1, 1) if setting == "interceptor.classes" else "unhooked"
    with pytest.raises(JobFailed) as refused:
        options = {"topic": topic, setting: name}
        spark.call("write_sql", path=str(store.path), query="select 'v' value", options=options)
    assert f"[REPLOG_INVALID_OPTION] {setting} '{name}' cannot be imported or made" in str(refused.value)
    assert "importable on the workers" in str(refused.value)
    assert rows_of(spark, store, topic) == []
