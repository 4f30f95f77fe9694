"""Topic and partition commands that die, lose their answer, run twice, or meet another that was first."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from spark_replog.admin.admin import DECIDE_TRIES_MAX, Admin, BrokerAdmin, PartitionAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import NotFoundError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ledger.types import AppendOutcome
from spark_replog.log.model import OK, CommandResult, Outcome


def counts(store, *names):
    return {name: len(store.controller.describe_topic(name).partitions) for name in names}


def entry_count(store, name="orders"):
    ledger, _ = store.cluster.topic_state(store.cluster.lookup(name))
    return ledger.state.applied_index


@pytest.fixture
def other(store):
    """A controller in another process."""
    return Controller(Cluster.open(str(store.path), config=store.config))


@pytest.fixture
def losing(store, faults, monkeypatch):
    """Run a command whose step is decided, and whose answers to that step are lost."""

    def run(step, command):
        with faults(store) as roots, monkeypatch.context() as patch:
            # Its claims are made: it is the answer to the command's own entry that is lost.
            store.controller.create_topic("warm", ledger_name="shop")
            done = getattr(Controller, step)

            def lose(self, *given, **more):
                roots.lose_answers, self._timeout_ms = True, 400
                while True:
                    try:
                        return done(self, *given, **more)
                    except RetriableError:  # a busy machine stood still before anything was sent: nothing is decided
                        continue

            patch.setattr(Controller, step, lose)
            with pytest.raises(OutcomeUnknownError, match="REPLOG_COMMIT_OUTCOME_UNKNOWN"):
                command(store.controller)
        store.reopen()

    return run


# -- lost answers and repetition ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "ledger_name"), [("_register_ledger", "new"), ("_init_topic", "shop"), ("_publish", "shop")]
)
def test_a_creation_whose_answer_was_lost_is_found_or_finished_by_its_repetition(store, losing, step, ledger_name):
    losing(step, lambda controller: controller.create_topic("orders", 2, ledger_name=ledger_name))
    is_named = step == "_publish"
    assert [topic.name for topic in store.controller.list_topics()] == (["orders", "warm"] if is_named else ["warm"])
    store.controller.create_topic("orders", 2, ledger_name=ledger_name, if_not_exists=True)
    assert counts(store, "orders") == {"orders": 2}
    assert store.append("orders", {0: 1, 1: 1}, batch=0).error is None


def test_growth_whose_answer_was_lost_is_not_made_twice(store, losing):
    store.create("orders", 2, ledger_name="shop")
    store.append("orders", {0: 1}, batch=0)
    losing("_make_folders", lambda controller: controller.add_partitions("orders", 4))
    assert counts(store, "orders") == {"orders": 4}
    with pytest.raises(ReplogError, match=r"INVALID_PARTITIONS.*already has 4"):
        store.controller.add_partitions("orders", 4)
    assert store.append("orders", {3: 1}, batch=1).error is None


def test_a_deletion_whose_answer_was_lost_is_finished_by_its_repetition(store, losing):
    store.create("orders", ledger_name="shop")
    losing("_close", lambda controller: controller.delete_topic("orders"))
    with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        store.controller.describe_topic("orders")  # it is closed, and has its name still
    store.controller.delete_topic("orders")
    assert [topic.name for topic in store.controller.list_topics()] == ["warm"]
    with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        store.controller.delete_topic("orders")


def test_a_repeated_fence_or_election_writes_nothing(store):
    store.create("orders", 3)
    admin = BrokerAdmin(store.cluster)
    admin.fence(1)
    before = entry_count(store), store.cluster.cluster_ledger.state.applied_index
    admin.fence(1)
    BrokerAdmin(Cluster.open(str(store.path))).fence(1)
    assert {outcome.error.code.name for outcome in PartitionAdmin(store.cluster).elect_leaders("orders")} == {
        "ELECTION_NOT_NEEDED", "PREFERRED_LEADER_NOT_AVAILABLE",
    }  # fmt: skip
    assert (entry_count(store), store.cluster.cluster_ledger.state.applied_index) == before


# -- somebody else was first --------------------------------------------------------------------------


def meanwhile(monkeypatch, owner, step, act):
    """Let somebody else act between what a command has read and what it decides."""
    done = getattr(type(owner), step)
    acted = []

    def slow(self, *given, **more):
        if self is owner and not acted:
            acted.append(True)
            act()
        return done(self, *given, **more)

    monkeypatch.setattr(type(owner), step, slow)


@pytest.mark.case("server-7-4-7-8-illegal-move-refused")
@pytest.mark.parametrize(
    ("other_total", "code", "message"),
    [(5, "INVALID_PARTITIONS", "already has 5"), (3, "INVALID_REQUEST", "OnlinePartition cannot become NewPartition")],
)
def test_growth_that_another_overtook_is_refused(store, other, monkeypatch, other_total, code, message):
    store.create("orders", 2)
    meanwhile(monkeypatch, store.controller, "_make_folders", lambda: other.add_partitions("orders", other_total))
    with pytest.raises(ReplogError, match=rf"\[{code}\].*{message}"):
        store.controller.add_partitions("orders", 5)
    assert counts(store, "orders") == {"orders": other_total}
    assert len(store.controller.add_partitions("orders", 6).partitions) == 6


def test_names_that_collide_are_refused_though_both_were_free_when_it_was_looked(store, other, monkeypatch):
    meanwhile(monkeypatch, store.controller, "_init_topic", lambda: other.create_topic("shop_orders"))
    with pytest.raises(ReplogError, match="INVALID_TOPIC_EXCEPTION"):
        store.controller.create_topic("shop.orders", ledger_name="shop")
    assert [topic.name for topic in store.controller.list_topics()] == ["shop_orders"]
    ledger_id = store.cluster.cluster_ledger.state.ledgers["shop"]
    assert [topic.closed for topic in store.cluster.topic_ledger(ledger_id).state.topics.values()] == [True]


@pytest.mark.case("server-7-8-topic-being-deleted-unknown")
def test_nothing_is_changed_on_a_topic_that_another_deleted_meanwhile(store, other, monkeypatch):
    partitions = PartitionAdmin(store.cluster)
    store.create("shop", ledger_name="shop")
    for command in (
        lambda: store.controller.add_partitions("orders", 3),
        lambda: store.controller.alter_config("orders", {"retention.ms": "1"}),
        lambda: store.controller.delete_records("orders", {0: 0}),
        lambda: partitions.elect_leaders("orders"),
        lambda: partitions.reassign("orders", {0: (1, 0)}),
        lambda: partitions.cancel("orders"),
    ):
        store.create("orders", ledger_name="shop")
        before = entry_count(store, "shop")
        with monkeypatch.context() as patch:
            meanwhile(patch, store.controller, "_decide", lambda: other.delete_topic("orders"))
            meanwhile(patch, partitions, "_change", lambda: other.delete_topic("orders"))
            with pytest.raises(NotFoundError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*was deleted"):
                command()
        assert entry_count(store, "shop") == before + 1, "the deletion alone was written"


def test_a_deletion_does_not_free_the_name_of_the_topic_that_another_made_in_its_place(store, other, monkeypatch):
    store.create("orders")
    first = store.controller.describe_topic("orders").topic_id
    done = Controller._close

    def close_and_wait(self, *given):
        done(self, *given)
        if self is store.controller:
            other.create_topic("orders", 3)

    monkeypatch.setattr(Controller, "_close", close_and_wait)
    store.controller.delete_topic("orders")
    again = store.controller.describe_topic("orders")
    assert again.topic_id != first
    assert len(again.partitions) == 3


@pytest.mark.parametrize("is_first", [True, False])
def test_a_topic_that_is_deleted_right_after_its_creation(store, other, monkeypatch, is_first):
    store.create("parcels", ledger_name="shop")
    names, calls = store.cluster.cluster_ledger, []
    decide = names.append

    def overtaken(*given, **more):
        calls.append(given)
        if len(calls) == 1:  # the ledger's name; the next one publishes the topic
            return decide(*given, **more)
        if not is_first:
            other.create_topic("orders")
        outcome = decide(*given, **more)
        other.delete_topic("orders")
        names.refresh()
        return outcome

    monkeypatch.setattr(names, "append", overtaken)
    with pytest.raises(ReplogError, match="UNKNOWN_TOPIC_OR_PARTITION" if is_first else "TOPIC_ALREADY_EXISTS"):
        store.controller.create_topic("orders", ledger_name="shop")
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("parcels"))
    assert sorted((topic.name, topic.closed) for topic in ledger.state.topics.values()) == [
        ("orders", True), ("parcels", False)]  # fmt: skip


@pytest.mark.case("server-7-4-7-8-illegal-move-refused")
def test_the_name_of_a_topic_that_is_in_use_is_never_freed(store, monkeypatch):
    store.create("orders")
    monkeypatch.setattr(Controller, "_close", lambda *_: None)  # a step that was left out
    with pytest.raises(ReplogError, match=r"INVALID_REQUEST.*OnlinePartition cannot become NonExistentPartition"):
        store.controller.delete_topic("orders")
    assert store.append("orders", {0: 1}, batch=0).error is None


def test_threads_that_grow_one_topic_at_once_each_grow_it_or_are_told(store):
    store.create("orders", 1)
    start, codes = threading.Barrier(4), {}

    def grow(total):
        start.wait()
        try:
            topic = store.controller.add_partitions("orders", total)
            codes[total] = "ok" if len(topic.partitions) >= total else "lost"
        except ReplogError as error:
            codes[total] = error.code.name

    threads = [threading.Thread(target=grow, args=(total,)) for total in (3, 5, 7, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes.values()) <= {"ok", "INVALID_PARTITIONS", "INVALID_REQUEST"}
    largest = max([total for total, code in codes.items() if code == "ok"])
    assert counts(store, "orders") == {"orders": largest}


class Sharing:
    """A ledger in which another command of the same entry came first, a number of times."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def append(self, propose, *, timeout_ms):
        commands = propose(len(self.asked))
        self.asked.append(commands)
        if not commands:
            return AppendOutcome(-1, None)
        results = self.answers.pop(0)
        return AppendOutcome(1, results[-1], results)


REFUSED = CommandResult(Outcome.REFUSED, "the partition is at leader epoch 2")


def test_a_command_that_another_of_its_entry_overtook_is_made_again_from_the_newest_fold(store):
    admin = Admin(store.cluster)
    for overtaken in (Outcome.REFUSED, Outcome.INVALID, Outcome.UNKNOWN_TOPIC, Outcome.TOPIC_CLOSED):
        ledger = Sharing((CommandResult(overtaken), OK), (OK,))
        admin._decide(ledger, lambda fold: (b"%d" % fold,))
        assert ledger.asked == [b"0", b"1"] or ledger.asked == [(b"0",), (b"1",)]
    ledger = Sharing((CommandResult(Outcome.EXISTS), OK))
    admin._decide(ledger, lambda fold: (b"0", b"1"))
    assert len(ledger.asked) == 1
    ledger = Sharing(*[(REFUSED,)] * DECIDE_TRIES_MAX)
    with pytest.raises(RetriableError, match=r"INVALID_REQUEST.*leader epoch 2"):
        admin._decide(ledger, lambda fold: (b"0",))
    assert len(ledger.asked) == DECIDE_TRIES_MAX


def test_only_the_partition_that_was_overtaken_is_changed_again(store, monkeypatch):
    store.create("orders", 2)
    admin = PartitionAdmin(store.cluster)
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    append, asked = ledger.append, []

    def first_refused(propose, *, timeout_ms):
        commands = propose(ledger.state)
        asked.append(len(commands or ()))
        if len(asked) > 1:
            return append(propose, timeout_ms=timeout_ms)
        append(lambda _: commands[1], timeout_ms=timeout_ms)
        return AppendOutcome(1, OK, (REFUSED, OK))

    monkeypatch.setattr(ledger, "append", first_refused)
    outcomes = admin.reassign("orders", {0: (1, 2, 0), 1: (2, 1, 0)})
    assert asked[:2] == [2, 1]
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [outcome.replicas for outcome in outcomes] == [(1, 2, 0), (2, 1, 0)]


def test_a_partition_is_not_moved_to_a_broker_whose_root_is_away(store):
    store.create("orders", 1, 2)
    store.away(2)
    with pytest.raises(ReplogError, match="REPLOG_"):
        PartitionAdmin(store.cluster).reassign("orders", {0: (1, 2)})
    assert store.controller.describe_topic("orders").partitions[0].adding == ()


# -- brokers that are away or fenced ------------------------------------------------------------------


def test_partitions_that_are_added_while_a_root_is_away_start_without_it(store):
    store.config = replace(store.config, replica_rejoin_wait_ms=60_000)
    store.reopen()
    store.create("orders", 1)
    assert store.append("orders", {0: 1}, batch=0).error is None
    store.away(1)
    grown = store.controller.add_partitions("orders", 4)
    assert set(grown.partitions[0].isr) == {0, 1, 2}, "one with rows is left to the next commit"
    assert [(1 in partition.isr, partition.leader != 1) for partition in grown.partitions[1:]] == [(False, True)] * 3
    assert store.append("orders", {1: 1, 2: 1, 3: 1}, batch=1, holders={0, 2}).error is None
    assert store.high_watermarks("orders") == [1, 1, 1, 1]


@pytest.mark.case("server-7-3-placer-kraft-fenced-brokers")
def test_new_partitions_are_placed_where_somebody_in_service_can_lead(store, tmp_path):
    path = tmp_path / "five"
    init_cluster(str(path), 5, fsync=False)
    five = type(store)(path, store.config)
    BrokerAdmin(five.cluster).fence(1)
    BrokerAdmin(five.cluster).fence(3)
    five.controller.create_topic("one", 5, 1)
    five.controller.create_topic("four", 3, 4)
    five.controller.add_partitions("one", 10)
    one, four = five.controller.describe_topic("one"), five.controller.describe_topic("four")
    assert {partition.replicas for partition in one.partitions} == {(0,), (2,), (4,)}
    assert all({0, 2, 4} < set(log.replicas) and log.isr == log.replicas[:3] for log in four.partitions)
    for wrong in ([[1]], [[3]]):
        with pytest.raises(ReplogError, match="INVALID_REPLICA_ASSIGNMENT"):
            five.controller.add_partitions("one", 11, wrong)
    for broker_id in (0, 2, 4):
        BrokerAdmin(five.cluster).fence(broker_id)
    with pytest.raises(ReplogError, match="INVALID_REPLICATION_FACTOR"):
        five.controller.add_partitions("one", 11)
