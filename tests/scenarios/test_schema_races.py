"""Changes of a topic's schema that die, lose their answer, run twice, or meet another that was first."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

import spark_replog
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit import schema_changes
from spark_replog.commit.schema_changes import merge_schema
from spark_replog.errors import InvalidConfigError, NotFoundError, OutcomeUnknownError, ReplogError
from spark_replog.fault_point import VARIABLE
from tests.scenarios.conftest import FAST, LocalStore

FIRST = "id BIGINT NOT NULL, amount INT"
WITH_NOTE = f"{FIRST}, note STRING"
WITH_PAID = f"{FIRST}, paid BOOLEAN"


@pytest.fixture(params=[1, 3], ids=["one root", "three roots"])
def shop(request, tmp_path):
    """A store with a typed topic."""
    path = tmp_path / "store"
    init_cluster(str(path), request.param, fsync=False)
    store = LocalStore(path, FAST)
    store.controller.create_topic("orders", schema=FIRST, key=["id"])
    return store


@pytest.fixture
def other(shop):
    """A controller in another process."""
    return Controller(Cluster.open(str(shop.path), config=shop.config))


def ddls(controller):
    return [version.ddl for version in controller.schema_history("orders")]


def entry_count(store):
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    return ledger.state.applied_index


def meanwhile(monkeypatch, act):
    """Let somebody else act once, between what a change was computed from and its decision."""
    done, acted = schema_changes.decide_schema, []

    def slow(*given):
        if not acted:
            acted.append(True)
            act()
        return done(*given)

    for module in (schema_changes, sys.modules[Controller.__module__]):
        monkeypatch.setattr(module, "decide_schema", slow)


# -- repetition ---------------------------------------------------------------------------------------


def test_the_same_change_twice_is_success_and_writes_once(shop, other):
    assert shop.controller.evolve_schema("orders", WITH_NOTE, validate_only=True).schema.version == 2
    made = shop.controller.evolve_schema("orders", WITH_NOTE)
    before = entry_count(shop)
    assert shop.controller.evolve_schema("orders", WITH_NOTE) == made
    assert other.evolve_schema("orders", WITH_NOTE, from_version=1) == made
    assert shop.controller.evolve_schema("orders", WITH_NOTE, validate_only=True) == made
    assert (made.schema.version, entry_count(shop)) == (2, before)


def test_a_late_repetition_is_success_by_the_version_that_it_was_made_from(shop, other):
    shop.controller.evolve_schema("orders", WITH_NOTE)
    other.evolve_schema("orders", f"{WITH_NOTE}, paid BOOLEAN")
    assert shop.controller.evolve_schema("orders", WITH_NOTE, from_version=1).schema.version == 3
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*'paid'.*missing"):
        shop.controller.evolve_schema("orders", WITH_NOTE)
    with pytest.raises(ReplogError, match=r"INVALID_UPDATE_VERSION.*version 1.*version 3"):
        shop.controller.evolve_schema("orders", WITH_PAID, from_version=1)
    with pytest.raises(ReplogError, match=r"INVALID_UPDATE_VERSION.*no version 4"):
        shop.controller.evolve_schema("orders", WITH_NOTE, from_version=4)
    assert len(ddls(other)) == 3


def test_a_change_whose_answer_was_lost_is_found_by_its_repetition(store, faults):
    store.controller.create_topic("orders", schema=FIRST, key=["id"])
    with faults(store, replace(store.config, delivery_timeout_ms=2_000)) as roots:
        store.controller.alter_config("orders", {"retention.ms": "1000"})  # its claims are made
        slow = Controller(store.cluster, timeout_ms=400)
        slow.describe_topic("orders")
        roots.lose_answers = True
        with pytest.raises(OutcomeUnknownError, match="REPLOG_COMMIT_OUTCOME_UNKNOWN"):
            slow.evolve_schema("orders", WITH_NOTE)
    store.reopen()
    assert ddls(store.controller)[-1] == WITH_NOTE
    assert store.controller.evolve_schema("orders", WITH_NOTE).schema.version == 2


@pytest.mark.parametrize(("step", "version_count"), [("journal.create", 1), ("journal.created", 2)])
def test_a_process_killed_before_or_after_the_decision_is_finished_by_its_repetition(shop, step, version_count):
    program = (
        "import sys; from tests.scenarios.committing import pass_fault_points_at_journals as points\n"
        "from spark_replog.admin.controller import Controller; from spark_replog.cluster.cluster import Cluster\n"
        "cluster = Cluster.open(sys.argv[1]); Controller(cluster).describe_topic('orders'); points()\n"
        "Controller(cluster).evolve_schema('orders', sys.argv[2])\n"
    )
    is_alone = len(shop.cluster.brokers.broker_ids) == 1
    # Each root gets a claim before the entry, if there are more of them.
    killed = subprocess.run(
        [sys.executable, "-c", program, str(shop.path), WITH_NOTE],
        env={**os.environ, VARIABLE: f"{step}:{1 if is_alone else 6}"},
        check=False,
    )
    assert killed.returncode == -9
    if is_alone:
        assert len(ddls(Controller(Cluster.open(str(shop.path))))) == version_count
    late = Controller(Cluster.open(str(shop.path)))
    assert late.evolve_schema("orders", WITH_NOTE).schema.version == 2
    assert ddls(late)[1:] == [WITH_NOTE]


# -- somebody else was first --------------------------------------------------------------------------


def test_of_two_conflicting_changes_one_wins_and_the_other_is_told(shop, other, monkeypatch):
    meanwhile(monkeypatch, lambda: Controller(other._cluster).evolve_schema("orders", WITH_PAID))
    with pytest.raises(ReplogError, match=r"\[INVALID_UPDATE_VERSION\].*version 1.*version 2.*paid BOOLEAN") as raised:
        shop.controller.evolve_schema("orders", WITH_NOTE)
    assert "topic schema show orders" in str(raised.value)
    assert ddls(shop.controller) == [FIRST, WITH_PAID]


def test_a_change_that_another_makes_meanwhile_is_success(shop, other, monkeypatch):
    meanwhile(monkeypatch, lambda: other.evolve_schema("orders", WITH_NOTE))
    assert shop.controller.evolve_schema("orders", WITH_NOTE).schema.version == 2
    assert ddls(shop.controller) == [FIRST, WITH_NOTE]


def test_a_change_that_another_makes_and_goes_beyond_is_success(shop, other, monkeypatch):
    def beyond():
        other.evolve_schema("orders", WITH_NOTE)
        other.evolve_schema("orders", f"{WITH_NOTE}, paid BOOLEAN")

    meanwhile(monkeypatch, beyond)
    assert shop.controller.evolve_schema("orders", WITH_NOTE).schema.version == 3


def test_a_topic_that_is_deleted_meanwhile_gets_no_version(shop, other, monkeypatch):
    meanwhile(monkeypatch, lambda: other.delete_topic("orders"))
    with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        shop.controller.evolve_schema("orders", WITH_NOTE)


def test_threads_that_change_one_schema_at_once_each_change_it_or_are_told(shop):
    start, codes = threading.Barrier(4), {}

    def change(column):
        start.wait()
        try:
            shop.controller.evolve_schema("orders", f"{FIRST}, {column} STRING", from_version=1)
            codes[column] = "ok"
        except ReplogError as error:
            codes[column] = error.code.name

    threads = [threading.Thread(target=change, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes.values()) == ["INVALID_UPDATE_VERSION"] * 3 + ["ok"]
    won = next(name for name, code in codes.items() if code == "ok")
    assert ddls(shop.controller) == [FIRST, f"{FIRST}, {won} STRING"]


# -- what an input needs ------------------------------------------------------------------------------


def test_inputs_that_add_columns_at_once_all_get_theirs(shop):
    start, kept = threading.Barrier(4), {}

    def merge(column):
        start.wait()
        given = pa.schema([("id", pa.int64()), (column, pa.string())])
        kept[column] = merge_schema(shop.cluster, "orders", given)

    threads = [threading.Thread(target=merge, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(name in schema.names for name, schema in kept.items())
    newest = shop.controller.schema_history("orders")[-1]
    assert sorted(newest.names) == ["a", "amount", "b", "c", "d", "id"]


@pytest.mark.parametrize("shop", [1], indirect=True, ids=["one root"])
@pytest.mark.parametrize(
    ("step", "version_count", "row_count"),
    [("journal.create:1", 1, 0), ("journal.created:1", 2, 0), ("journal.create:2", 2, 0), ("journal.created:2", 2, 1)],
)
def test_a_producer_killed_while_it_adds_a_column_is_finished_by_another(shop, step, version_count, row_count):
    """Before and after the entry of the schema, and before and after that of the rows: no row lacks the column."""
    program = (
        "import sys; import pyarrow as pa; import spark_replog\n"
        "from tests.scenarios.committing import pass_fault_points_at_journals as points\n"
        "producer = spark_replog.open(sys.argv[1]).producer(); producer.schema_for('orders'); points()\n"
        "table = pa.table({'id': [1], 'note': ['x']})\n"
        "producer.send_arrow('orders', table, merge_schema=True).result(60)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, str(shop.path)], env={**os.environ, VARIABLE: step}, check=False
    )
    assert killed.returncode == -9
    store = spark_replog.open(str(shop.path))
    assert len(ddls(store.admin())) == version_count
    assert store.topic("orders").scan().to_arrow().num_rows == row_count
    with store.producer() as producer:
        table = pa.table({"id": [2], "note": ["y"]})
        producer.send_arrow("orders", table, merge_schema=True).result(60)
    assert ddls(store.admin()) == [FIRST, WITH_NOTE]
    rows = store.topic("orders").scan(columns=["id", "note"]).to_arrow().to_pylist()
    assert rows == [{"id": 1, "note": "x"}] * row_count + [{"id": 2, "note": "y"}]


def test_producers_that_add_different_columns_at_once_lose_none(shop):
    start = threading.Barrier(2)

    def send(name):
        with spark_replog.open(str(shop.path)).producer() as producer:
            for number in range(3):
                start.wait()
                table = pa.table({"id": [number], f"{name}{number}": [f"{name}{number}"]})
                producer.send_arrow("orders", table, merge_schema=True).result(60)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(send, name) for name in "ab"]:
            done.result(timeout=120)
    rows = spark_replog.open(str(shop.path)).topic("orders").scan().to_arrow().to_pylist()
    added = [f"{name}{number}" for name in "ab" for number in range(3)]
    assert sorted(name for row in rows for name in added if row[name] is not None) == added
    assert all(row[name] in (None, name) and row["amount"] is None for row in rows for name in added)
    assert len(rows) == 6


def test_an_input_that_lost_its_race_is_merged_into_the_version_that_won(shop, other, monkeypatch):
    meanwhile(monkeypatch, lambda: other.evolve_schema("orders", WITH_PAID))
    given = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
    merged = merge_schema(shop.cluster, "orders", given)
    assert (merged.version, merged.ddl) == (3, "id BIGINT NOT NULL, amount BIGINT, paid BOOLEAN")


def test_an_input_that_conflicts_with_the_version_that_won_is_refused(shop, other, monkeypatch):
    meanwhile(monkeypatch, lambda: other.evolve_schema("orders", f"{FIRST}, note BINARY"))
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*'note'.*BINARY.*STRING"):
        merge_schema(shop.cluster, "orders", pa.schema([("id", pa.int64()), ("note", pa.string())]))
    assert len(ddls(other)) == 2


def test_an_input_that_the_topic_holds_writes_nothing(shop):
    before = entry_count(shop)
    assert merge_schema(shop.cluster, "orders", pa.schema([("id", pa.int32())])).version == 1
    assert entry_count(shop) == before


def test_a_topic_of_bytes_has_no_schema_to_change(shop):
    shop.controller.create_topic("clicks")
    for change in (
        lambda: shop.controller.evolve_schema("clicks", WITH_NOTE),
        lambda: shop.controller.schema_history("clicks"),
        lambda: merge_schema(shop.cluster, "clicks", pa.schema([("id", pa.int64())])),
    ):
        with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*bytes"):
            change()


REFUSED = {
    "amount INT": "'id'",
    "id BIGINT, total INT": "'amount'",
    "id BIGINT, amount SMALLINT": "SMALLINT",
    "id BIGINT, amount STRING": "STRING",
    "id BIGINT, amount INT NOT NULL": "NOT NULL",
    "id BIGINT, amount INT, note STRING NOT NULL": "'note'",
    "id DECIMAL(20,0), amount INT": "key column",
    "id BIGINT, amount INT, AMOUNT INT": "AMOUNT",
    "id BIGINT amount": "is expected",
}


def test_incompatible_changes_are_refused_and_nothing_is_decided(shop):
    for newer, words in REFUSED.items():
        with pytest.raises(InvalidConfigError, match=rf"REPLOG_INVALID_SCHEMA.*({words})"):
            shop.controller.evolve_schema("orders", newer)
    assert ddls(shop.controller) == [FIRST]


def test_another_key_is_refused(shop):
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*key"):
        shop.controller.evolve_schema("orders", FIRST, key=["id", "amount"])
