"""The policies of conf/policies, each as all that a user of a real S3 server may do."""

from __future__ import annotations

import re

import pytest

import spark_replog
from spark_replog.client.store import Store
from spark_replog.errors import ErrorCode, FencedError, ReplogError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from tests.scenarios.committing import SMALL
from tests.servers import policy_page
from tests.servers.server import Minio, Statement, VersityGateway
from tests.servers.stores import Prefixed, RealRoots, send, values

LATER = {"out"}
"""What a healthy store never gets."""


def refused_command(roots: RealRoots, *arguments: str) -> None:
    code, items = roots.replog(*arguments)
    assert (code, items[0]["error"]) == (1, "REPLOG_STORE_REFUSED"), items


def refused_transaction(opened: Store, topic: str) -> None:
    with opened.producer(transactional_id="refused") as producer:
        producer.begin_transaction()
        error = producer.send(topic, b"refused").exception(timeout=0)
        assert isinstance(error, ReplogError) and error.code is ErrorCode.REPLOG_STORE_REFUSED, error
        producer.abort_transaction()


@pytest.fixture(
    params=(Minio, pytest.param(VersityGateway, marks=pytest.mark.wide)), ids=lambda kind: kind.name, scope="module"
)
def store(request, servers):
    return Prefixed(servers(request.param))


@pytest.fixture(autouse=True)
def nothing_is_lost(store):
    """Whatever a test was refused, each row that was there is still there, once."""
    before = {topic: values(store.roots, topic) for topic in ("orders", "payments")}
    yield
    for topic, rows in before.items():
        assert values(store.roots, topic)[: len(rows)] == rows
    assert store.roots.replog("store", "verify", "--deep")[0] == 0


def test_a_reader_of_one_topic_reads_that_topic(store):
    roots = store.as_user("topic-reader", store.statements("Reader"))
    assert values(roots) == values(store.roots)
    assert roots.replog("topic", "describe", "orders")[0] == 0
    store.check_nothing_was_refused("topic-reader")
    store.check(
        roots,
        may=("get replog.json", "list ledgers/TOPIC/journal/", "get ledgers/CLUSTER/journal/00000000000000000000"),
        may_not=(
            "get ledgers/OTHER/journal/00000000000000000000", "list ledgers/OTHER/journal/", "list ledgers/",
            "create ledgers/TOPIC/data/000000/x", "create ledgers/CLUSTER/out", "delete replog.json",
            "delete ledgers/TOPIC/journal/00000000000000000000",
        ),
    )  # fmt: skip
    with pytest.raises(ReplogError) as raised:
        values(roots, "payments")
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED


def test_a_producer_of_one_topic_creates_in_its_ledger_only(store, monkeypatch, caplog):
    for patch in SMALL:  # each commit snapshots and truncates
        monkeypatch.setattr(*patch)
    statements = store.statements("Producer, streaming sink")
    roots = store.as_user("topic-producer", statements)
    before = len(values(store.roots))
    for number in range(6):
        assert send(roots, b"%d" % number, inline_bytes=4096 * (number % 2)) == before + number
    store.check_nothing_was_refused("topic-producer")
    store.check(
        roots,
        may_not=(
            "create ledgers/TOPIC/notes/x", "create ledgers/OTHER/data/000000/x", "create ledgers/OTHER/out",
            "create ledgers/CLUSTER/journal/x", "create ledgers/GROUPS/journal/x", "create replog.json",
            "delete ledgers/TOPIC/journal/00000000000000000000", "get ledgers/OTHER/journal/00000000000000000000",
        ),
    )  # fmt: skip
    refused_command(roots, "topic", "create", "another", "-p", "1", "--replicas", "3")
    assert len(values(store.roots)) == before + 6
    assert store.key("ledger TOPIC: no snapshot now") not in caplog.text
    check_used(store, "topic-producer", statements, "TOPIC")


@pytest.mark.parametrize("role", ["Producer, streaming sink", "Coordinator", "Admin"])
def test_who_creates_data_objects_may_send_them_in_parts_and_abort_that(store, role):
    name = role.split(",")[0].lower()
    roots = store.as_user(f"parts-{name}", store.statements(role))
    in_parts = open_store(f"{roots.path}/broker-1", roots.options).in_parts()
    key = store.key(f"ledgers/TOPIC/data/999999/{name}")
    assert in_parts.create(key, b"x") is CreateOutcome.CREATED
    assert in_parts.create(key, b"y") is CreateOutcome.EXISTS
    answer = store.server.file_system(store.bucket).call_s3("list_multipart_uploads", Bucket=store.bucket)
    assert answer.get("Uploads", []) == []
    if role.startswith("Producer"):
        with pytest.raises(ReplogError, match="REPLOG_STORE_REFUSED"):
            in_parts.create(store.key("ledgers/OTHER/data/999999/x"), b"x")


def test_a_consumer_of_a_group_creates_in_the_groups_ledger_only(store, monkeypatch):
    for patch in SMALL:
        monkeypatch.setattr(*patch)
    statements = store.statements("Consumer of a group")
    roots = store.as_user("topic-consumer", statements)
    opened = spark_replog.open(roots.path, roots.options)
    first, second = (opened.consumer("orders", group="billing", auto_offset_reset="earliest") for _ in range(2))
    with first, second:
        read = 0
        for _ in range(5):
            read += len(first.poll(200)) + len(second.poll(200))
            first.commit()
    assert read == len(values(store.roots))
    code, groups = roots.replog("group", "describe", "billing")
    assert code == 0 and groups[0]["group"] == "billing"
    store.check_nothing_was_refused("topic-consumer")
    store.check(
        roots,
        may_not=(
            "create ledgers/GROUPS/data/000000/x", "create ledgers/TOPIC/journal/x",
            "create ledgers/TOPIC/data/000000/x", "create ledgers/CLUSTER/journal/x",
            "delete ledgers/GROUPS/journal/00000000000000000000",
            "delete ledgers/TOPIC/journal/00000000000000000000", "get ledgers/OTHER/journal/00000000000000000000",
        ),
    )  # fmt: skip
    raw = open_store(f"{roots.path}/broker-1", roots.options)
    assert list(raw.list_keys(store.key("ledgers/GROUPS/notes/"))) == []
    check_used(store, "topic-consumer", statements, "GROUPS")


def test_a_transactional_producer_needs_the_policy_of_a_producer_alone(store, monkeypatch):
    for patch in SMALL:
        monkeypatch.setattr(*patch)
    statements = store.statements("Producer, streaming sink")
    roots = store.as_user("topic-transactions", statements)
    opened = spark_replog.open(roots.path, roots.options)
    expected = values(store.roots)
    with opened.producer(transactional_id="till") as older, opened.producer(transactional_id="till") as newer:
        for number in range(3):
            with older.transaction():
                sent = [older.send("orders", b"%d.%d" % (number, part)) for part in range(2)]
            assert [future.result(timeout=60).offset for future in sent] == [len(expected), len(expected) + 1]
            expected += [b"%d.0" % number, b"%d.1" % number]
            older.begin_transaction()
            older.send("orders", b"aborted")
            older.abort_transaction()
        older.begin_transaction()
        older.send("orders", b"fenced")
        with newer.transaction():
            newer.send("orders", b"newer")
        with pytest.raises(FencedError):
            older.commit_transaction()
    store.check_nothing_was_refused("topic-transactions")
    refused_transaction(opened, "payments")
    assert values(store.roots) == [*expected, b"newer"]
    assert len(values(store.roots, "payments")) == 1
    check_used(store, "topic-transactions", statements, "TOPIC")


def test_a_program_that_consumes_and_produces_needs_the_two_policies(store, monkeypatch):
    for patch in SMALL:
        monkeypatch.setattr(*patch)
    statements = [*store.statements("Consumer of a group"), *store.statements("Producer, streaming sink", "payments")]
    roots = store.as_user("topic-through", statements)
    opened = spark_replog.open(roots.path, roots.options)
    before, rows = values(store.roots, "payments"), values(store.roots)
    for group_has_read in (0, len(rows)):
        with (
            opened.consumer(
                "orders", group="through", auto_offset_reset="earliest", enable_auto_commit=False
            ) as source,
            opened.producer(transactional_id="through") as sink,
        ):
            read = group_has_read
            while read < len(rows):
                with sink.transaction():
                    for record in source.poll(20_000):
                        sink.send("payments", record.value)
                        read += 1
                source.commit()
            assert not source.poll(1_000)
    assert values(store.roots, "payments") == before + rows
    store.check_nothing_was_refused("topic-through")
    refused_transaction(opened, "orders")  # it only reads there


def test_a_coordinator_deletes_in_ledgers_only(store):
    roots = store.as_user("ledger-coordinator", store.statements("Coordinator"))
    for arguments in (
        ("topic", "create", "brief", "-p", "1", "--replicas", "3"),
        ("topic", "delete", "brief", "-y"),
        ("store", "gc", "--now", "--older-than", "0s"),
        ("store", "verify"),
        ("store", "repair", "--dry-run"),
    ):
        assert roots.replog(*arguments)[0] == 0, arguments
    store.check_nothing_was_refused("ledger-coordinator")
    store.check(
        roots,
        may=("create ledgers/TOPIC/data/000000/x", "delete ledgers/TOPIC/data/000000/x"),
        may_not=("create replog.json", "delete replog.json", "create x"),
    )


def test_an_admin_makes_a_store_below_the_folder_only(store):
    server = store.server
    roots = RealRoots([server.new_root("log")], {})
    bucket = roots.path.split("/")[2]
    roots.options = server.make_user(
        "folder-admin", bucket, policy_page.policy("Admin", {"BUCKET": bucket, "FOLDER": "log"})
    )
    made = roots.make("orders", replicas=1)
    with made.producer() as producer:
        assert producer.send("orders", b"0").result(timeout=60).offset == 0
    checks = {item["check"]: item["verdict"] for item in roots.replog("doctor", "--probe")[1]}
    assert (checks["store"], checks["root 0"]) == ("ok", "ok")
    beside = open_store(f"s3://{bucket}/elsewhere", roots.options)
    for call in (lambda: beside.create("x", b"x"), lambda: beside.get("x"), lambda: list(beside.list_keys(""))):
        with pytest.raises(ReplogError) as raised:
            call()
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED


def check_used(store: Prefixed, user: str, statements: list[Statement], ledger: str) -> None:
    """Check by the server's log, if any, that a user needed each right to create and delete that the policy gives."""
    if not isinstance(store.server, VersityGateway):
        return
    for action in ("s3:PutObject", "s3:DeleteObject"):
        resources = [statement["Resource"] for statement in statements if statement["Action"] == action]
        allowed = {resource for some in resources for resource in ([some] if isinstance(some, str) else some)}
        used = {
            f"arn:aws:s3:::{store.bucket}/{re.sub('broker-.', 'broker-*', key)}"
            for done, key in store.server.requests_of(user)
            if done == action
        }
        before = store.key(f"arn:aws:s3:::BUCKET/FOLDER/broker-*/ledgers/{ledger}/")
        kinds = {key.removeprefix(before).partition("/")[0] for key in used}
        assert kinds == {resource.removeprefix(before).removesuffix("/*") for resource in allowed} - LATER, action
