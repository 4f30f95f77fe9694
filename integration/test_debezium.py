"""Debezium, from a real PostgreSQL into a topic behind a gateway, which Python and Spark read beside it."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack

import pytest
from remote import run_in

import spark_replog
from tests.gateway_process import free_port, gateway_process
from tests.servers.builds import DEBEZIUM, NotBuilt
from tests.servers.connect_worker import ConnectWorker
from tests.servers.gateway_page import block_of
from tests.servers.postgresql import PostgreSql
from tests.waiting import wait_until

pytestmark = pytest.mark.wide
TOPIC = "shop.public.orders"
COUNT = 60


class Orders:
    """A table of a database, and all that its rows have ever been.

    Attributes:
        states: id and amount; an amount only grows.
    """

    def __init__(self, database: PostgreSql) -> None:
        self._database = database
        self._database.run("create table orders (id int primary key, amount int not null)")
        self.states: set[tuple[int, ...]] = set()
        self._ids = 0

    def insert(self) -> None:
        """Add rows."""
        first, self._ids = self._ids + 1, self._ids + COUNT
        added = f"select id, 0 from generate_series({first}, {self._ids}) id"
        self.states.update(self._database.run(f"insert into orders {added} returning id, amount"))

    def change(self) -> None:
        """Add rows, change some of all, and delete some, in transactions of their own."""
        self.insert()
        for divisor in (2, 3):
            changed = f"update orders set amount = amount + 1 where id % {divisor} = 0 returning id, amount"
            self.states.update(self._database.run(changed))
        self._database.run(f"delete from orders where id % 7 = 0 and id > {self._ids - 2 * COUNT}")

    def rows(self) -> dict[int, int]:
        """Return the amount of each id."""
        return {row[0]: row[1] for row in self._database.run("select id, amount from orders")}


def read_events(store):
    """Return the last amount of each id that was not deleted, and all states, from the topic's change events."""
    last, states = {}, set()
    if TOPIC in {topic.name for topic in store.admin().list_topics()}:
        table = store.topic(TOPIC).scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
        for key, value in zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True):
            after = None if value is None else json.loads(value)["payload"]["after"]
            last[json.loads(key)["payload"]["id"]] = None if after is None else after["amount"]
            states |= set() if after is None else {(after["id"], after["amount"])}
    return {id: amount for id, amount in last.items() if amount is not None}, states


def last_states(spark, path, topic):
    """Return id and last amount of the rows that were not deleted, by Spark."""
    from pyspark.sql.functions import expr

    events = spark.read.format("replog").option("subscribe", topic).load(path)
    id = "int(get_json_object(string(key), '$.payload.id')) id"
    amount = "int(get_json_object(string(value), '$.payload.after.amount')) amount"
    last = events.selectExpr(id, amount, "offset").groupBy("id").agg(expr("max_by(amount, offset) amount"))
    return [list(row) for row in last.filter("amount is not null").collect()]


@pytest.fixture
def plugins(tmp_path):
    """A folder with the connector, unpacked as for any worker."""
    try:
        jars = DEBEZIUM.folder().glob("*.jar")
    except NotBuilt as why:
        pytest.skip(str(why))
    folder = tmp_path / "plugins" / "debezium"
    folder.mkdir(parents=True)
    for jar in jars:
        shutil.copy(jar, folder)
    return folder.parent


def started(stack, make):
    """Start what the stack ends; skip the test where there is no program."""
    try:
        return stack.enter_context(make())
    except NotBuilt as why:
        pytest.skip(str(why))


def test_debezium(spark, make_store, plugins, tmp_path):
    store, port = spark_replog.open(str(make_store().path)), free_port()
    config = json.loads(block_of("test_debezium", f"127.0.0.1:{port}"))
    with ExitStack() as stack:
        names = config["database.user"], config["database.password"], config["database.dbname"]
        database = started(stack, lambda: PostgreSql(tmp_path, *names))
        orders = Orders(database)
        orders.insert()
        gateway = stack.enter_context(gateway_process(store, port))
        worker = started(stack, lambda: ConnectWorker(tmp_path, f"127.0.0.1:{port}", plugins))
        worker.make("shop", config | {"database.port": str(database.port)})

        def has_all() -> bool:
            rows, states = read_events(store)
            return rows == orders.rows() and states == orders.states

        def spark_has_all() -> bool:
            return dict(run_in(spark, last_states, path=store.path, topic=TOPIC)) == orders.rows()

        def caught_up() -> None:
            for look in (has_all, spark_has_all):
                wait_until(look, worker.describe, pause_seconds=0.5)

        caught_up()  # by the snapshot
        orders.change()
        caught_up()
        orders.change()
        gateway.kill()
        gateway.wait()
        orders.change()  # nobody can take these yet
        stack.enter_context(gateway_process(store, port))
        orders.change()
        caught_up()
