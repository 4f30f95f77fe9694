"""A typed topic that is filled from a topic of bytes: each record once, as a row or as a bad one, whatever happens."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import fastavro
import pytest

import spark_replog
from spark_replog.admin.controller import Controller
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.client import derivation
from spark_replog.client.bad_records import CODE, CONNECTOR, OFFSET, PARTITION, REASON, STAGE, TIMESTAMP, TOPIC
from spark_replog.client.derivation import Derivation, Recipe
from spark_replog.client.derivations import DerivationRounds, Derivations
from spark_replog.commit.append_request import ProduceResponse
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.errors import (
    DataLossError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    OutcomeUnknownError,
    ReplogError,
    UnsupportedFormatError,
)
from spark_replog.log.derived_position import DerivedPosition

DDL = "at INT, number BIGINT, note STRING"


def value(partition: int, number: int, **more) -> bytes:
    return json.dumps({"at": partition, "number": number, **more}).encode()


def fill(store, *, partitions: int = 2, count: int = 12, first: int = 0) -> None:
    """Records that say where they are; each fifth does not fit."""
    for partition in range(partitions):
        numbers = range(first, first + count)
        store.write(
            "raw",
            [b"{broken" if number % 5 == 4 else value(partition, number) for number in numbers],
            partition=partition,
            keys=[b"k%d" % number if number % 2 else None for number in numbers],
            times_ms=[1000 * number for number in numbers],
            headers=[[("h", b"%d" % number)] if number % 3 == 0 else None for number in numbers],
        )


@pytest.fixture
def raw(store):
    store.create("raw", 2)
    fill(store)
    return store


def controller(store) -> Controller:
    return Controller(store.cluster)


def set_up(store, target="sales", **how) -> Recipe:
    how = {"schema": DDL, "errors_topic": "bad", **how}
    return Derivations(store.cluster, controller(store)).set_up("raw", target, **how)


def job_of(store, recipe, target="sales", chunk_rows=5) -> Derivation:
    return Derivation(store.another_process().cluster, target, recipe, chunk_rows=chunk_rows)


def status_of(store):
    (status,) = Derivations(store.cluster, controller(store)).statuses(["sales"])
    return status


def rows_of(store, topic="sales") -> list[dict]:
    columns = ["at", "number", "_replog_partition", "_replog_offset", "_replog_timestamp", "_replog_headers"]
    scan = spark_replog.open(store.path).topic(topic).scan(columns=columns)
    return sorted(scan.to_arrow().to_pylist(), key=lambda row: (row["at"], row["number"]))


def bad_of(store, topic="bad") -> list[dict]:
    records = spark_replog.open(store.path).topic(topic).scan().to_arrow().to_pylist()
    return [{**record, "headers": {pair["key"]: pair["value"] for pair in record["headers"]}} for record in records]


def origins(records) -> list[tuple[int, int]]:
    return sorted((int(record["headers"][PARTITION]), int(record["headers"][OFFSET])) for record in records)


def check_once(store, count=12, partitions=2) -> None:
    """Each offset of the source is in one row, or in one bad record."""
    places = [(row["at"], row["number"]) for row in rows_of(store)]
    every = [(partition, number) for partition in range(partitions) for number in range(count)]
    assert sorted(places + origins(bad_of(store))) == every
    assert all(number % 5 == 4 for _, number in origins(bad_of(store)))


def test_each_record_becomes_a_row_or_a_whole_bad_record_and_keeps_its_place_time_and_headers(raw):
    job = job_of(raw, set_up(raw))
    job.run()
    assert (job.row_count, job.bad_count, job.left_count) == (20, 4, 0)
    check_once(raw)
    for row in rows_of(raw):
        assert row["_replog_partition"] == row["at"], "without a key a row keeps its partition"
        assert row["_replog_timestamp"].timestamp() == row["number"]
        assert row["_replog_headers"] == (
            [{"key": "h", "value": b"%d" % row["number"]}] if row["number"] % 3 == 0 else None
        )
    for partition in range(2):
        mine = sorted((row["_replog_offset"], row["number"]) for row in rows_of(raw) if row["at"] == partition)
        assert [number for _, number in mine] == [number for number in range(12) if number % 5 != 4], "in order"
    for record in bad_of(raw):
        number = int(record["headers"][OFFSET])
        assert record["value"] == b"{broken" and record["key"] == (b"k%d" % number if number % 2 else None)
        assert record["timestamp"].timestamp() == number
        assert record["headers"].pop("h", None) == (b"%d" % number if number % 3 == 0 else None)
        assert b"JSON" in record["headers"].pop(REASON)
        del record["headers"][PARTITION], record["headers"][OFFSET]
        assert record["headers"] == {
            TOPIC: b"raw", CONNECTOR: b"sales", STAGE: b"VALUE_CONVERTER", CODE: b"REPLOG_DESERIALIZATION",
            TIMESTAMP: b"%d" % (1000 * number),
        }  # fmt: skip
    status = status_of(raw)
    assert (status.positions, status.lag, status.bad_count, status.unreplayed_count) == ((12, 12), 0, 4, 4)


def test_rows_and_bad_records_of_a_chunk_are_one_entry(raw):
    job = job_of(raw, set_up(raw), chunk_rows=24)
    ledger = raw.cluster.topic_ledger(raw.cluster.lookup("sales").ledger_id)
    before = ledger.refresh().applied_index
    job.run()
    assert ledger.refresh().applied_index == before + 1


def test_the_key_of_the_target_chooses_the_partition(raw):
    recipe = set_up(raw, key=["number"], partitions=4)
    job_of(raw, recipe).run()
    with spark_replog.open(raw.path).producer() as producer:
        for row in rows_of(raw):
            sent = producer.send("sales", {"at": None, "number": row["number"]}).result(timeout=30)
            assert sent.partition == row["_replog_partition"]


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("at", [0, 2])
def test_an_append_that_fails_or_whose_answer_is_lost_repeats_and_loses_nothing(raw, monkeypatch, at, is_decided):
    job, count, append = job_of(raw, set_up(raw)), 0, ReplicaManager.append_records

    def fail(self, requests):
        nonlocal count
        count += 1
        if count != at + 1:
            return append(self, requests)
        if is_decided:
            append(self, requests)
        error = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer")
        return {ledger_id: ProduceResponse(error, None) for ledger_id in requests}

    monkeypatch.setattr(ReplicaManager, "append_records", fail)
    with pytest.raises(OutcomeUnknownError):
        job.run()
    job.run()
    check_once(raw)
    assert status_of(raw).bad_count == 4


@pytest.mark.parametrize("chunk_rows", [3, 5, 100])
def test_two_at_once_derive_each_record_once(raw, monkeypatch, chunk_rows):
    recipe = set_up(raw)
    first, second = job_of(raw, recipe), job_of(raw, recipe, chunk_rows=chunk_rows)
    append, seen = ReplicaManager.append_records, []

    def interrupted(self, requests):
        if len(seen) < 2:  # the other one has read the same position, and is first
            seen.append(self)
            if len(seen) == 1:
                second.run()
        return append(self, requests)

    monkeypatch.setattr(ReplicaManager, "append_records", interrupted)
    first.run()
    assert len(seen) == 2
    check_once(raw)
    assert status_of(raw).bad_count == 4 and status_of(raw).lag == 0


def test_without_an_errors_topic_the_first_bad_record_stops_it_and_one_takes_it_later(raw):
    job = job_of(raw, set_up(raw, errors_topic=None), chunk_rows=100)
    for _ in range(2):
        with pytest.raises(ReplogError) as stopped:
            job.run()
        assert stopped.value.code is ErrorCode.REPLOG_DESERIALIZATION
        text = str(stopped.value)
        assert "offset 4 of raw-" in text and "--errors-topic sales-errors" in text and "evolve" in text
    assert 4 <= len(rows_of(raw)) < 20 and job.row_count == len(rows_of(raw))
    job_of(raw, set_up(raw)).run()
    check_once(raw)


def test_records_that_retention_took_are_named_and_passed_over_only_on_request(raw):
    recipe = set_up(raw)
    job = job_of(raw, recipe)
    job.run()
    fill(raw, first=12)
    controller(raw).delete_records("raw", {0: 15})
    for _ in range(2):
        with pytest.raises(DataLossError) as told:
            job.run()
        assert "offsets 12 to 14 of raw-0" in str(told.value) and "--skip-lost" in str(told.value)
    assert isinstance(status_of(raw).problem, DataLossError)
    check_once(raw)
    job.run(accepts_loss=True)
    assert len(job.lost) == 1
    job.run()
    assert status_of(raw).positions == (24, 24) and status_of(raw).problem is None
    numbers = {(row["at"], row["number"]) for row in rows_of(raw)} | set(origins(bad_of(raw)))
    assert numbers == {(at, number) for at in range(2) for number in range(24)} - {(0, 12), (0, 13), (0, 14)}


def test_a_loss_with_nothing_after_it_is_told_once_there_is(raw):
    job = job_of(raw, set_up(raw))
    job.run()
    fill(raw, first=12)
    controller(raw).delete_records("raw", {0: -1, 1: 12})
    job.run()
    assert status_of(raw).positions == (12, 24) and status_of(raw).lag == 0
    fill(raw, partitions=1, first=24)
    with pytest.raises(DataLossError, match="offsets 12 to 23 of raw-0"):
        job.run()


def test_it_begins_at_the_oldest_record_and_takes_added_partitions_and_columns(raw):
    controller(raw).delete_records("raw", {1: 3})
    job = job_of(raw, set_up(raw), chunk_rows=7)
    job.run()
    assert min(row["number"] for row in rows_of(raw) if row["at"] == 1) == 3
    controller(raw).add_partitions("raw", 3)
    controller(raw).evolve_schema("sales", f"{DDL}, more STRING")
    raw.cluster.refresh()
    raw.write("raw", [value(2, 0, more="x")], partition=2)
    job.run()
    table = spark_replog.open(raw.path).topic("sales").scan().to_arrow()
    assert [row["number"] for row in table.to_pylist() if row["more"] == "x"] == [0]
    assert status_of(raw).positions == (12, 12, 1)


def test_a_source_that_was_made_again_is_another_one(raw):
    job = job_of(raw, set_up(raw))
    job.run()
    controller(raw).delete_topic("raw")
    with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        job.run()
    raw.create("raw", 1)
    raw.write("raw", [value(7, 0)])
    for _ in range(2):
        with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_ID") as told:
            job.run()
        assert "--skip-lost" in str(told.value)
    job.run(accepts_loss=True)
    job.run()
    assert len(rows_of(raw)) == 21 and rows_of(raw)[-1]["at"] == 7


def test_a_target_that_was_made_again_is_filled_from_the_beginning(raw):
    recipe = set_up(raw)
    job_of(raw, recipe).run()
    controller(raw).delete_topic("sales")
    controller(raw).delete_topic("bad")
    raw.cluster.refresh()
    job_of(raw, set_up(raw)).run()
    check_once(raw)


def test_a_target_that_is_made_again_while_a_chunk_is_decoded_gets_no_row_of_the_old_position(raw, monkeypatch):
    job, plan, made = job_of(raw, set_up(raw)), derivation.make_write_plan, []

    def plan_later(*given):
        if not made:
            made.append(controller(raw).delete_topic("sales"))
            controller(raw).delete_topic("bad")
            set_up(raw)
            job._cluster.refresh()
        return plan(*given)

    monkeypatch.setattr(derivation, "make_write_plan", plan_later)
    with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_ID"):
        job.run()
    assert rows_of(raw) == []
    job.run()
    check_once(raw)


def test_a_replay_tries_each_bad_record_once_after_the_columns_were_changed(raw):
    recipe = set_up(raw, schema="at INT, number INT")
    raw.write("raw", [value(0, 2**40 + n) for n in range(3)], partition=0)
    job_of(raw, recipe).run()
    assert len(bad_of(raw)) == 7
    controller(raw).evolve_schema("sales", "at INT, number BIGINT")
    raw.cluster.refresh()
    (pair,) = Derivations(raw.cluster, controller(raw)).of_errors("bad")
    replay = job_of(raw, pair[1], chunk_rows=2)
    replay.run()
    assert (replay.row_count, replay.bad_count) == (3, 4), "the broken ones are still bad"
    assert [row["number"] for row in rows_of(raw)][10:13] == [2**40, 2**40 + 1, 2**40 + 2]
    records = bad_of(raw)
    assert origins(records[7:]) == origins(r for r in records[:7] if r["value"] == b"{broken")
    assert {record["headers"][TOPIC] for record in records} == {b"raw"}, "they keep where they are from"
    assert all(row["_replog_headers"] is None for row in rows_of(raw) if row["number"] >= 2**40)
    job_of(raw, pair[1]).run()
    assert len(rows_of(raw)) == 23
    assert status_of(raw).lag == 0, "a replay does not move the derivation"


def test_a_replay_leaves_the_records_of_other_targets(raw):
    recipe = set_up(raw)
    ledgers = raw.cluster.cluster_ledger.ask(lambda state: {at: name for name, at in state.ledgers.items()})
    ledger_name = ledgers[raw.cluster.lookup("sales").ledger_id]
    controller(raw).create_topic("visits", schema="wrong INT NOT NULL", ledger_name=ledger_name)
    raw.cluster.refresh()
    visits = set_up(raw, "visits", schema=None)
    for target, made in (("sales", recipe), ("visits", visits)):
        job_of(raw, made, target).run()
    assert len(bad_of(raw)) == 4 + 24
    pairs = Derivations(raw.cluster, controller(raw)).of_errors("bad")
    assert [name for name, _ in pairs] == ["sales", "visits"]
    job = job_of(raw, pairs[0][1])
    job.run()
    assert (job.row_count, job.bad_count) == (0, 4)


def test_an_errors_topic_in_another_ledger_or_with_columns_is_refused(raw):
    raw.create("elsewhere")
    controller(raw).create_topic("typed", schema="id INT")
    for name, code in (("elsewhere", ErrorCode.INVALID_REQUEST), ("typed", ErrorCode.REPLOG_INVALID_SCHEMA),
                       ("raw", ErrorCode.INVALID_REQUEST)):  # fmt: skip
        with pytest.raises(InvalidConfigError) as refused:
            set_up(raw, errors_topic=name)
        assert refused.value.code is code
    set_up(raw)
    controller(raw).alter_config("sales", {"errors.topic": "elsewhere"})
    with pytest.raises(InvalidConfigError, match="INVALID_REQUEST"):
        job_of(raw, Recipe("raw", errors_topic="elsewhere")).run()
    assert rows_of(raw) == []


def test_what_does_not_fit_is_refused_when_it_is_set_up(raw):
    set_up(raw)
    assert set_up(raw) == set_up(raw, schema=None, errors_topic=None)
    raw.create("other")
    job = Derivations(raw.cluster, controller(raw))
    for source, target, how in (
        ("other", "sales", {}), ("raw", "sales", {"schema": "id INT"}), ("raw", "other", {}), ("sales", "new", {}),
    ):  # fmt: skip
        with pytest.raises(InvalidConfigError):
            job.set_up(source, target, **how)
    with pytest.raises(NotFoundError):
        job.set_up("raw", "new")


AVRO = """{"type": "record", "name": "Visit", "fields": [
    {"name": "at", "type": "int"}, {"name": "number", "type": ["null", "long"]}]}"""


def avro_values(prefix: bytes = b"") -> list[bytes]:
    """Three records of topic number 5, and bytes that are none."""
    schema = fastavro.parse_schema(json.loads(AVRO))
    values = [prefix + b"\x01"]
    for number in range(3):
        fastavro.schemaless_writer(stream := io.BytesIO(), schema, {"at": 5, "number": number})
        values.append(prefix + stream.getvalue())
    return values


@pytest.mark.parametrize("is_registered", [False, True])
def test_values_in_avro_bring_their_columns_or_name_their_schema(raw, tmp_path, is_registered):
    controller(raw).delete_records("raw", {0: -1, 1: -1})
    raw.write("raw", avro_values(b"\x00\x00\x00\x00\x07" if is_registered else b""))
    (tmp_path / "7.avsc").write_text(AVRO)
    for wrong in ({}, {"value_schema": "{"}, {"value_schema": AVRO, "schema": "id WRONG"}, {"registry": "http://a@b/"}):
        with pytest.raises(ReplogError):
            set_up(raw, **{"schema": None, "value_format": "avro", **wrong})
    assert [topic.name for topic in controller(raw).list_topics()] == ["raw"], "nothing was made"
    how = {"registry": str(tmp_path), "schema": DDL} if is_registered else {"value_schema": AVRO, "schema": None}
    recipe = set_up(raw, value_format="avro", key=["at"], **how)
    kept = "at INT NOT NULL, number BIGINT, note STRING" if is_registered else "at INT NOT NULL, number BIGINT"
    assert controller(raw).describe_topic("sales").schema.ddl == kept
    assert Recipe.of(raw.cluster.topic_state(raw.cluster.lookup("sales"))[1]) == recipe
    job_of(raw, recipe).run()
    assert [(row["at"], row["number"]) for row in rows_of(raw)] == [(5, 0), (5, 1), (5, 2)]
    assert origins(bad_of(raw)) == [(0, 12)]


def test_rounds_derive_what_is_set_on_topics_and_one_failure_stops_no_other(raw, caplog):
    set_up(raw, "alone", errors_topic=None)
    set_up(raw)
    cluster = raw.another_process().cluster
    coordinator = CoordinatorLoop(cluster, [DerivationRounds(cluster).run_once])
    assert coordinator.run_once().failed_count == 0
    check_once(raw)
    assert "alone" in caplog.text and "REPLOG_DESERIALIZATION" in caplog.text
    derivations = Derivations(raw.cluster, controller(raw))
    derivations.stop("sales")
    fill(raw, first=12)
    coordinator.run_once()
    check_once(raw)
    assert derivations.statuses(["sales"]) == []
    assert [name for name, _ in derivations.of_errors("bad")] == ["sales"]
    set_up(raw)
    coordinator.run_once()
    check_once(raw, count=24)


def test_a_position_is_read_as_it_was_written_and_what_a_newer_release_wrote_is_refused():
    position = DerivedPosition("a1", ((5, 0), (0, 3)), 7, 12)
    assert DerivedPosition.parse(position.text, 12) == position
    assert position.text == "a1 7 5@0,0@3"
    with pytest.raises(UnsupportedFormatError, match="UNSUPPORTED_VERSION"):
        DerivedPosition.parse("a1 7 5@0 x", 12)
    topic = SimpleNamespace(name="sales", config={"derive.source": "raw", "derive.format": "protobuf"})
    with pytest.raises(UnsupportedFormatError, match=r"derive\.format=protobuf"):
        Recipe.of(topic)


def test_records_that_an_unclean_election_replaced_are_noticed(raw):
    job = job_of(raw, set_up(raw))
    job.run()
    cluster = job._cluster
    _, topic = cluster.folded_topic(cluster.lookup("raw"))
    topic.partitions[0].leader_epochs.assign(1, 9)
    topic.partitions[0].leader_epoch = 1
    with pytest.raises(DataLossError, match="raw-0 was cut back to offset 9 and was derived up to 12"):
        job.look_at_logs()
    job.look_at_logs(accepts_loss=True)
    assert job.starts[0] == (9, 1) and job.left_count == 3
