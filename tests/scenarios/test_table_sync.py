"""``table sync`` into real Delta and Iceberg tables: what arrives, what a second writer changes, what is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import spark_replog
from spark_replog.cli.main import run
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.groups.group_admin import describe_group
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.health.readers import judge
from spark_replog.ids import new_id
from spark_replog.maintenance.compaction import Compactor
from spark_replog.tables import table_sync
from spark_replog.tables.delta_table import DeltaTable
from spark_replog.tables.iceberg_table import IcebergTable
from spark_replog.tables.table_sync import TableSync

DDL = (
    "id BIGINT, region STRING, small TINYINT, amount DECIMAL(12,2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE,"
    " tags ARRAY<STRING>, place STRUCT<x: DOUBLE, y: DOUBLE>, counts MAP<STRING, INT>, value BINARY, ok BOOLEAN"
)
PARTITIONS = 3
FORMATS = {"delta": DeltaTable, "iceberg": IcebergTable}


def row_of(number: int, keys: int = 1_000_000) -> dict:
    return {
        "id": number % keys,
        "region": f"r{number % keys % 2}",
        "small": number % 100,
        "amount": Decimal(number).scaleb(-2),
        "at": datetime(1960, 5, 1, second=number % 60, tzinfo=UTC),
        "local": datetime(9999, 12, 31),
        "day": date(1960, 1, 1),
        "tags": ["a", None][: number % 3],
        "place": {"x": 0.5, "y": None} if number % 2 else None,
        "counts": {"k": number},
        "value": bytes([number % 256]),
        "ok": None,
    }


class Target:
    """A table in a folder of a test: how the sync names it, and how it is read back by the format's own library."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.name = f"delta:{folder}/table" if kind == "delta" else "iceberg:local.sales.orders"
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        self.options = {} if kind == "delta" else catalog

    def catalog(self):
        return load_catalog("local", **self.options)

    def iceberg(self):
        return self.catalog().load_table(("sales", "orders"))

    def delta(self):
        return deltalake.DeltaTable(f"{self.folder}/table")

    def make(self, schema: pa.Schema) -> None:
        """Somebody makes a table beforehand."""
        if self.kind == "delta":
            deltalake.DeltaTable.create(f"{self.folder}/table", deltalake.Schema.from_arrow(schema))
        else:
            self.catalog().create_namespace("sales")
            self.catalog().create_table(("sales", "orders"), schema)

    def add(self, rows: pa.Table) -> None:
        """Another writer appends."""
        if self.kind == "delta":
            deltalake.write_deltalake(f"{self.folder}/table", rows, mode="append")
        else:
            self.iceberg().append(rows)

    def exists(self) -> bool:
        return any(self.folder.rglob("*.json")) or (self.folder / "warehouse").exists()

    def read(self) -> pa.Table:
        return self.delta().to_pyarrow_table() if self.kind == "delta" else self.iceberg().scan().to_arrow()


@pytest.fixture(params=["delta", "iceberg"])
def target(request, tmp_path):
    return Target(request.param, tmp_path)


@pytest.fixture
def delta(tmp_path):
    return Target("delta", tmp_path)


@pytest.fixture
def iceberg(tmp_path):
    return Target("iceberg", tmp_path)


@pytest.fixture
def store():
    made = spark_replog.init(f"memory://{new_id()}", 1, fsync=False)
    make_topic(made)
    return made


def make_topic(store, ddl=DDL, key=("region", "id")) -> None:
    store.admin().create_topic("orders", partitions=PARTITIONS, schema=ddl, key=key)


def send(store, rows) -> None:
    with store.producer() as producer:
        for row in rows:
            producer.send("orders", row)


def sync_of(store, target, **how) -> TableSync:
    return TableSync(store.cluster, "orders", target.name, table_options=target.options, **how)


def require_each_row_once(store, target) -> None:
    """Distinct offsets = rows = end offset, of each partition, counted by DuckDB; the values are those of the topic."""
    written = target.read().sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    query = "select _partition, count(*), count(distinct _offset), max(_offset) + 1 from written group by 1"
    counted = {row[0]: row[1:] for row in duckdb.sql(query).fetchall()}
    ends = store.admin().describe_topic("orders").partitions
    assert counted == {number: (part.high_watermark,) * 3 for number, part in enumerate(ends) if part.high_watermark}
    names = store.admin().describe_topic("orders").schema.names
    log = ["_replog_partition", "_replog_offset"]
    scanned = (
        store.topic("orders").scan(columns=[*names, *log]).to_arrow().sort_by([(name, "ascending") for name in log])
    )
    assert written.select(names).to_pylist() == scanned.select(names).to_pylist()


def test_each_row_arrives_once_in_pieces_and_the_table_knows_where_to_go_on(store, target):
    send(store, [row_of(number) for number in range(50)])
    job = sync_of(store, target, provenance=True, rows_max=20)
    report = job.run_once()
    assert (report.row_count, report.commit_count, report.mode) == (50, 3, "append")
    assert report.positions == report.ends
    assert sum(report.positions.values()) == 50
    assert job.run_once().commit_count == sync_of(store, target).run_once().commit_count == 0
    send(store, [row_of(number) for number in range(50, 60)])
    assert sync_of(store, target).run_once().row_count == 10
    require_each_row_once(store, target)


def test_an_upsert_keeps_the_newest_row_of_each_key(store, target):
    send(store, [row_of(number, keys=7) for number in range(20)])
    assert sync_of(store, target, mode="upsert", rows_max=9).run_once().row_count == 20
    send(store, [row_of(number, keys=9) for number in range(20, 29)])
    report = sync_of(store, target).run_once()
    assert (report.row_count, report.mode) == (9, "upsert")
    newest = {
        row["id"]: row for row in [row_of(n, keys=7) for n in range(20)] + [row_of(n, keys=9) for n in range(20, 29)]
    }
    rows = target.read().sort_by("id").to_pylist(maps_as_pydicts="strict")
    assert rows == [newest[number] for number in sorted(newest)]


def test_a_row_that_deletes_its_key_deletes_it_in_an_upserted_table(store, target):
    config = {"cleanup.policy": "compact", "delete.column": "Gone"}
    schema = "id BIGINT, note STRING, Gone BOOLEAN"
    store.admin().create_topic("customers", partitions=1, schema=schema, key=["id"], config=config)
    job = TableSync(store.cluster, "customers", target.name, mode="upsert", table_options=target.options)
    for rows in (
        [{"id": 1, "note": "a"}, {"id": 2, "note": "a", "Gone": False}, {"id": 3, "Gone": True}],
        [{"id": 1, "Gone": True}, {"id": 2, "note": "b"}, {"id": 4, "note": "b"}, {"id": 4, "Gone": True}],
        [{"id": 2, "Gone": True}, {"id": 2, "note": "c"}, {"id": 9, "Gone": True}],
    ):
        with store.producer() as producer:
            for row in rows:
                producer.send("customers", row)
        assert job.run_once().row_count == len(rows)
    assert target.read().to_pylist() == [{"id": 2, "note": "c", "Gone": None}]


def test_offsets_without_rows_are_passed(store, delta):
    config = {"cleanup.policy": "compact"}
    store.admin().create_topic("customers", partitions=1, schema="id BIGINT", key=["id"], config=config)
    with store.producer(inline_max_bytes=0) as producer:
        for ids in ([1, 2], [2, 1, 3], [3]):
            producer.send_arrow("customers", pa.table({"id": ids}))
            producer.flush()
    Compactor(store.cluster).compact(store.cluster.lookup("customers"), is_eager=True)
    kept = store.topic("customers").scan(columns=["_replog_offset"]).to_arrow().column(0).to_pylist()
    assert len(kept) < 6, "compaction removed a row"
    job = TableSync(store.cluster, "customers", delta.name, provenance=True, rows_max=1)
    report = job.run_once()
    assert (report.row_count, report.positions) == (len(kept), {0: 6})
    assert sorted(delta.read().column("_offset").to_pylist()) == kept
    assert TableSync(store.cluster, "customers", delta.name).run_once().commit_count == 0


def test_an_upsert_finds_keys_of_each_type(target, tmp_path):
    store = spark_replog.init(f"memory://{new_id()}", 1, fsync=False)
    kinds = {
        "STRING": "it's", "BINARY": b"\x00\xff", "DATE": date(1960, 1, 1), "BOOLEAN": True, "SMALLINT": -3,
        "DECIMAL(12,2)": Decimal("-1.50"), "TIMESTAMP": datetime(1960, 1, 1, 0, 0, 1, 7, tzinfo=UTC),
        "TIMESTAMP_NTZ": datetime(9999, 12, 31, 23, 59, 59, 999999),
    }  # fmt: skip
    names = {f"Key {number}" if target.kind == "iceberg" else f"Key{number}": kind for number, kind in enumerate(kinds)}
    make_topic(store, ", ".join(f"`{name}` {kind}" for name, kind in names.items()) + ", v INT", tuple(names))
    row = {name: kinds[kind] for name, kind in names.items()}
    for number in range(3):
        send(store, [row | {"v": number}, row | {next(iter(names)): "other", "v": number}])
        assert sync_of(store, target, mode="upsert").run_once().row_count == 2
    assert sorted(target.read().column("v").to_pylist()) == [2, 2]


def test_a_second_sync_in_the_middle_of_a_commit_and_a_lost_answer_make_no_double(store, target, monkeypatch):
    send(store, [row_of(number) for number in range(30)])
    first, second = (sync_of(store, target, provenance=True, rows_max=10) for _ in range(2))
    steps = iter([second.run_once, lambda: None])
    commit, lost = FORMATS[target.kind].commit, [True]

    def interrupted(step):
        if step == "table.read":
            next(steps, lambda: None)()

    def commit_without_answer(table, change):
        commit(table, change)
        if lost and lost.pop():
            raise table_sync.TableCommitError(ErrorCode.REPLOG_TABLE_FAILED, "no answer")

    monkeypatch.setattr(table_sync, "fault_point", interrupted)
    first.run_once()
    require_each_row_once(store, target)
    send(store, [row_of(number) for number in range(30, 45)])
    monkeypatch.setattr(FORMATS[target.kind], "commit", commit_without_answer)
    assert first.run_once().row_count == 5, "the first ten have no answer, and are in the table"
    require_each_row_once(store, target)


def test_a_sync_that_is_overtaken_all_the_time_ends_where_the_topic_ends(store, delta, monkeypatch):
    send(store, [row_of(number) for number in range(26)])
    first, second = (sync_of(store, delta, provenance=True, rows_max=2) for _ in range(2))
    is_inside = []

    def overtaken(step):
        if step == "table.read" and not is_inside:
            is_inside.append(True)
            second.run_once(lambda: True)  # one piece
            is_inside.clear()

    monkeypatch.setattr(table_sync, "fault_point", overtaken)
    report = first.run_once()
    assert (report.row_count, report.positions) == (0, report.ends)
    require_each_row_once(store, delta)


def test_a_commit_that_always_fails_is_an_error(store, delta, monkeypatch):
    send(store, [row_of(1)])
    failures = []

    def commit(table, change):
        failures.append(change)
        raise table_sync.TableCommitError(ErrorCode.REPLOG_TABLE_FAILED, "no room")

    monkeypatch.setattr(DeltaTable, "commit", commit)
    assert code_of(sync_of(store, delta).run_once) is ErrorCode.REPLOG_TABLE_FAILED
    assert len(failures) == table_sync.FAILURES_MAX


def test_a_table_that_another_sync_makes_first_is_used(store, target, monkeypatch):
    send(store, [row_of(number) for number in range(5)])
    first, second = (sync_of(store, target, provenance=True) for _ in range(2))
    create, rivals = FORMATS[target.kind].create, [second]

    def create_second(table, *how):
        if rivals:
            assert rivals.pop().run_once().row_count == 5
        create(table, *how)

    monkeypatch.setattr(FORMATS[target.kind], "create", create_second)
    assert first.run_once().row_count == 0
    require_each_row_once(store, target)


def test_a_newer_version_of_the_schema_passes_on(store, target):
    send(store, [row_of(number) for number in range(5)])
    sync_of(store, target, provenance=True).run_once()
    wider = DDL.replace("y: DOUBLE>", "y: DOUBLE, z: STRING>") + ", note STRING"
    store.admin().evolve_schema("orders", wider)
    send(store, [row_of(number) | {"note": "new", "place": {"z": "in"}} for number in range(5, 9)])
    assert sync_of(store, target).run_once().schema_version == 2
    require_each_row_once(store, target)
    assert Counter(target.read().column("note").to_pylist()) == {None: 5, "new": 4}


@pytest.mark.parametrize(
    ("column", "wider", "is_taken_by_iceberg"),
    [("small TINYINT", "small SMALLINT", True), ("amount DECIMAL(12,2)", "amount DECIMAL(14,2)", True),
     ("amount DECIMAL(12,2)", "amount DECIMAL(14,4)", False)],
)  # fmt: skip
def test_a_wider_type_passes_on_where_the_format_can_and_is_an_error_that_names_it_elsewhere(
    store, target, column, wider, is_taken_by_iceberg
):
    send(store, [row_of(1)])
    sync_of(store, target, provenance=True).run_once()
    store.admin().evolve_schema("orders", DDL.replace(column, wider))
    send(store, [row_of(2)])
    if target.kind == "iceberg" and is_taken_by_iceberg:
        sync_of(store, target).run_once()
        require_each_row_once(store, target)
        return
    with pytest.raises(InvalidConfigError) as refused:
        sync_of(store, target).run_once()
    assert refused.value.code is ErrorCode.REPLOG_TABLE_MISMATCH
    assert refused.value.context["column"] == column.split()[0]
    assert target.read().num_rows == 1


def test_a_topic_that_was_made_again_is_an_error_not_doubles(store, target):
    send(store, [row_of(number) for number in range(5)])
    job = sync_of(store, target)
    job.run_once()
    store.admin().delete_topic("orders")
    make_topic(store)
    send(store, [row_of(number) for number in range(9)])
    for again in (job, sync_of(store, target)):
        with pytest.raises(ReplogError, match="another table") as refused:
            again.run_once()
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert target.read().num_rows == 5


def code_of(call) -> ErrorCode:
    with pytest.raises(ReplogError) as refused:
        call()
    return refused.value.code


def test_a_table_of_others_is_refused_and_an_empty_one_that_fits_is_taken(store, target):
    send(store, [row_of(number) for number in range(3)])
    target.make(pa.schema([("id", pa.int64()), ("mine", pa.string())]))
    assert sync_of(store, target).run_once().row_count == 3
    assert {row["mine"] for row in target.read().to_pylist()} == {None}
    assert code_of(sync_of(store, target, mode="upsert").run_once) is ErrorCode.REPLOG_TABLE_MISMATCH
    assert code_of(sync_of(store, target, provenance=True).run_once) is ErrorCode.REPLOG_TABLE_MISMATCH
    store.admin().create_topic("others", partitions=1, schema="id BIGINT")
    other = TableSync(store.cluster, "others", target.name, table_options=target.options)
    assert code_of(other.run_once) is ErrorCode.REPLOG_TABLE_MISMATCH
    assert target.read().num_rows == 3


def test_a_table_with_rows_of_others_or_with_other_columns_is_refused(store, target):
    target.make(pa.schema([("id", pa.int64())]))
    target.add(pa.table({"id": [1]}))
    assert code_of(sync_of(store, target).run_once) is ErrorCode.REPLOG_TABLE_MISMATCH
    assert target.read().num_rows == 1


def test_what_cannot_be_synced_makes_no_table(store, target):
    admin = store.admin()
    admin.create_topic("bytes", partitions=1)
    admin.create_topic("intervals", partitions=1, schema="id BIGINT, took INTERVAL DAY TO SECOND")
    admin.create_topic("keyless", partitions=1, schema="id BIGINT")
    codes = {
        topic: code_of(
            TableSync(store.cluster, topic, target.name, mode="upsert", table_options=target.options).run_once
        )
        for topic in ("bytes", "intervals", "keyless", "nowhere")
    }
    assert codes == {
        "bytes": ErrorCode.REPLOG_INVALID_SCHEMA,
        "intervals": ErrorCode.REPLOG_INVALID_SCHEMA,
        "keyless": ErrorCode.REPLOG_INVALID_OPTION,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert not target.exists()


@pytest.mark.parametrize("name", ["orders", "delta:", "csv:x", "iceberg:orders", "iceberg:a..b"])
def test_a_target_that_is_no_table_is_refused(store, name):
    assert code_of(lambda: TableSync(store.cluster, "orders", name)) is ErrorCode.REPLOG_INVALID_OPTION


def test_rows_that_were_deleted_before_they_were_synced_are_an_error_until_they_are_given_up(store, delta):
    send(store, [row_of(number) for number in range(30)])
    sync_of(store, delta, provenance=True).run_once()
    before = sync_of(store, delta).run_once().positions
    send(store, [row_of(number) for number in range(30, 60)])
    ends = {
        number: part.high_watermark for number, part in enumerate(store.admin().describe_topic("orders").partitions)
    }
    store.admin().delete_records("orders", {0: before[0] + 2})
    assert code_of(sync_of(store, delta).run_once) is ErrorCode.REPLOG_DATA_LOSS
    report = sync_of(store, delta, fail_on_data_loss=False).run_once()
    assert report.lost == {0: (before[0], before[0] + 2)}
    assert (report.row_count, report.positions) == (28, ends)
    assert sync_of(store, delta).run_once().row_count == 0


def test_position_lag_and_error_are_shown_as_a_readers(store, delta):
    send(store, [row_of(number) for number in range(10)])
    job = sync_of(store, delta, group="tables")
    job.run_once()
    send(store, [row_of(number) for number in range(10, 13)])
    reader = describe_group(store.cluster, GroupCoordinator(store.cluster), "tables")
    assert sum(part.lag.lag for part in reader.partitions) == 3
    assert {part.note for part in reader.partitions} == {table_sync.NOTE}
    store.admin().evolve_schema("orders", DDL.replace("small TINYINT", "small INT"))
    assert code_of(job.run_once) is ErrorCode.REPLOG_TABLE_MISMATCH
    reader = describe_group(store.cluster, GroupCoordinator(store.cluster), "tables")
    assert all(part.note.startswith("[REPLOG_TABLE_MISMATCH] column 'small'") for part in reader.partitions)
    assert (
        "Its last error: [REPLOG_TABLE_MISMATCH] column 'small'" in judge(reader, store.cluster.clock.now_ms()).reason
    )
    assert sum(part.lag.lag for part in reader.partitions) == 3


def test_a_round_goes_on_after_an_error_that_passes(store, delta, caplog):
    send(store, [row_of(number) for number in range(4)])
    job = sync_of(store, delta)
    file = delta.folder / "table"
    file.write_text("no folder")
    reports = []

    def is_stopped():
        if "tried again" in caplog.text and file.is_file():
            file.unlink()
        return bool(reports)

    job.run(1, is_stopped, reports.append)
    assert reports[0].row_count == 4
    assert "REPLOG_TABLE_FAILED" in caplog.text


def test_snapshots_of_others_are_passed_over_and_lost_ones_are_an_error(store, iceberg):
    send(store, [row_of(number) for number in range(4)])
    sync_of(store, iceberg, provenance=True).run_once()
    with iceberg.iceberg().transaction() as other:
        other.set_properties({"commit.retry.num-retries": "4"})
        other.append(iceberg.read().slice(0, 0))
    send(store, [row_of(number) for number in range(4, 6)])
    assert sync_of(store, iceberg).run_once().row_count == 2
    assert iceberg.iceberg().properties["commit.retry.num-retries"] == "0"
    require_each_row_once(store, iceberg)
    iceberg.add(iceberg.read().slice(0, 0))
    table = iceberg.iceberg()
    current = table.current_snapshot().snapshot_id
    table.maintenance.expire_snapshots().by_ids(
        [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != current]
    ).commit()
    send(store, [row_of(9)])
    assert code_of(sync_of(store, iceberg).run_once) is ErrorCode.REPLOG_TABLE_MISMATCH


def test_an_iceberg_table_that_is_rolled_back_is_filled_again_from_there(store, iceberg):
    send(store, [row_of(number) for number in range(20)])
    sync_of(store, iceberg, provenance=True, rows_max=5).run_once()
    table = iceberg.iceberg()
    table.manage_snapshots().rollback_to_snapshot(table.history()[1].snapshot_id).commit()
    assert sync_of(store, iceberg).run_once().row_count == 10
    require_each_row_once(store, iceberg)


def test_upkeep_of_a_delta_table_doubles_and_loses_nothing(store, delta):
    send(store, [row_of(number) for number in range(20)])
    sync_of(store, delta, provenance=True, rows_max=5).run_once()
    table = delta.delta()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    assert len(list(delta.folder.glob("table/_delta_log/*.json"))) == 1, "the commits of the sync are gone"
    send(store, [row_of(number) for number in range(20, 25)])
    assert sync_of(store, delta).run_once().row_count == 5
    require_each_row_once(store, delta)


def test_a_delta_table_that_may_forget_offsets_is_refused(store, delta):
    send(store, [row_of(1)])
    sync_of(store, delta).run_once()
    delta.delta().alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    send(store, [row_of(2)])
    assert code_of(sync_of(store, delta).run_once) is ErrorCode.REPLOG_TABLE_MISMATCH


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs/tables.md"
    python, sql = re.findall(r"```(?:python|sql)\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(python, page.name, "exec"), {})
    orders = deltalake.DeltaTable("data/tables/orders").to_pyarrow_table()
    assert duckdb.sql(sql).fetchall() == [(len(orders) == 1,)]


def test_the_command_says_what_it_did(store, target, capsys):
    send(store, [row_of(number) for number in range(4)])
    options = [word for key, value in target.options.items() for word in ("--table-option", f"{key}={value}")]
    words = ("-s", store.path, "table", "sync", "orders", target.name, "--once", *options)
    assert run([*words, "-f", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["rows"], item["commits"], item["mode"], item["schemaVersion"]) == (4, 1, "append", 1)
    assert [part["position"] for part in item["partitions"]] == [part["end"] for part in item["partitions"]]
    assert run([*words]) == 0
    assert "0 rows of orders in 0 commits" in capsys.readouterr().out
    assert run([*words, "--every", "1s"]) == 2
