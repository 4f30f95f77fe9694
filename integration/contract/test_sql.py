"""What docs/sql.md says of tables and views, statement by statement."""

from __future__ import annotations

import pytest
from remote import run_in
from spark_driver import JobFailed

pytestmark = pytest.mark.case("connector-sql-views-tables-refused")


@pytest.fixture(scope="module")
def table(spark, store):
    """A catalog table over a topic of three rows; its own options never reach a read or a write."""
    store.topic("listed", 1)
    path = str(store.path)
    spark.call("write_sql", path=path, query="select 'a' value from range(3)", options={"topic": "listed"})
    spark.call(
        "sql",
        statements=[
            "drop table if exists listed_table",
            f"create table listed_table using replog options (path '{path}', subscribe 'listed')",
        ],
    )
    yield "listed_table"
    spark.call("sql", statements=["drop table listed_table"])


COLUMNS = "null, binary('b'), cast(null as string), cast(null as int), 0L, current_timestamp(), 0"


def test_options_of_the_statement_arrive(spark, store, table):
    path = str(store.path)
    read = f"select count(*) from {table} with (path '{path}', subscribe 'listed')"
    assert spark.call("sql", statements=[read]) == [[3]]
    insert = f"insert into {table} with (path '{path}', topic 'listed') select {COLUMNS}"
    assert spark.call("sql", statements=[insert, read]) == [[4]]


def test_a_dataframe_makes_a_table_of_a_topic_and_appends_to_it(spark, store):
    topic, path = store.topic("made", 1), str(store.path)

    def make(spark, path, topic):
        rows = spark.sql("select 'a' value")
        rows.write.format("replog").mode("append").option("topic", topic).option("path", path).saveAsTable("made_one")
        options = {"topic": topic, "path": path}
        rows.writeTo("made_two").using("replog").options(**options).create()
        rows.writeTo("made_two").options(**options).append()
        for name in ("made_one", "made_two"):
            spark.sql(f"drop table {name}")

    run_in(spark, make, path=path, topic=topic)
    assert [row[3] for row in spark.call("read", path=path, topic=topic)] == ["a", "a", "a"]


def test_a_view_reads_one_snapshot_until_it_is_made_again(spark, store, table):
    path = str(store.path)
    view = f"create or replace temporary view seen using replog options (path '{path}', subscribe 'listed')"
    (before,) = spark.call("sql", statements=[view, "select count(*) from seen"])
    spark.call("write_sql", path=path, query="select 'c' value", options={"topic": "listed"})
    assert spark.call("sql", statements=["select count(*) from seen"]) == [before]
    assert spark.call("sql", statements=[view, "select count(*) from seen"]) == [[before[0] + 1]]


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("select * from {table}", "use CREATE TEMPORARY VIEW ... USING replog OPTIONS"),
        ("insert into {table} select {columns}", "[REPLOG_MISSING_OPTION] no store is given"),
        ("insert overwrite inserted select {columns}", "[REPLOG_INVALID_OPTION] save mode Overwrite not allowed"),
        (
            "create table listed_copy using replog options (path '{path}', topic 'listed') as select 'a' value",
            "[REPLOG_MISSING_OPTION] no store is given",
        ),
        ("delete from {table} where true", "does not support"),
        ("select * from replog.`{path}`", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
    ],
)
def test_refused_statements(spark, store, table, statement, text):
    view = f"create or replace temporary view inserted using replog options (path '{store.path}', topic 'listed')"
    statement = statement.format(table=table, columns=COLUMNS, path=store.path)
    with pytest.raises(JobFailed) as caught:
        spark.call("sql", statements=[view, statement])
    assert text in str(caught.value)
