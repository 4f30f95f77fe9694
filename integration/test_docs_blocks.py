"""What the documentation shows runs: every Python and SQL block of README.md and docs/."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from doc_blocks import Page, read_page
from remote import run_in
from spark_driver import SparkDriver

import spark_replog

ROOT = Path(__file__).resolve().parents[1]
PAGES = [read_page(path) for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]]
WITHOUT_SPARK = {
    "docs/consumer.md": "tests/unit/client/test_consumer_docs.py",
    "docs/producer.md": "tests/unit/client/test_producer_page.py",
}
"""Pages of plain Python: their blocks run in the unit tests."""


def name_of(page: Page) -> str:
    return page.path.relative_to(ROOT).as_posix()


JAR_PAGES = [page for page in PAGES if page.jars]
SPARK_PAGES = [page for page in PAGES if page.blocks and name_of(page) not in WITHOUT_SPARK]


def test_every_block_is_found_and_runs():
    for page in PAGES:
        fences = re.findall(r"^\s*```(?:python|py|python3|pycon|sql)\b", page.path.read_text(), re.M)
        assert len(fences) == len(page.blocks) + page.jars_count + len(page.elsewhere), name_of(page)
        for where, _ in page.elsewhere:
            file, _, test = where.partition("::")
            text = (ROOT / file).read_text()
            assert f"def {test}(" in text and name_of(page) in text, where
    assert sum(len(page.blocks) for page in PAGES) >= 26
    assert {name_of(page): page.jars_count for page in JAR_PAGES} == {"docs/recipes.md": 2}
    for name, test in WITHOUT_SPARK.items():
        assert name in (ROOT / test).read_text(), f"{test} runs the blocks of {name}"


@pytest.mark.parametrize("page", SPARK_PAGES, ids=name_of)
def test_blocks_run(page, spark, make_store):
    store = make_store(brokers=3, name="store")
    run_blocks(spark, store, page, page.blocks)
    check = CHECKS.get(name_of(page))
    if check is not None:
        check(spark, store)


@pytest.mark.wide
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=name_of(page), marks=pytest.mark.older_spark(page.spark)) for page in JAR_PAGES]
)
def test_blocks_that_need_jars_run(page, older_environment, make_store, work_folder, cache_folder):
    """Spark itself fetches the jars, by the coordinates of the page; a registry out of reach fails the test."""
    settings = {"spark.jars.packages": ",".join(page.jars), "spark.jars.ivy": str(cache_folder / "ivy"), **page.confs}
    settings["spark.databricks.delta.snapshotPartitions"] = "2"  # of a table of four rows Delta makes 50 tasks
    store = make_store(brokers=3, name="store")
    environment = older_environment(page.spark).quick_to_start()
    driver = SparkDriver(environment, work_folder / "driver-jars.log", "serve", json.dumps(settings))
    try:
        assert driver.call("about", timeout_s=300)["spark"].startswith(page.spark)
        run_blocks(driver, store, page, page.with_jars)
        check_delta(driver, store)
    finally:
        driver.close()


def run_blocks(spark, store, page, blocks):
    for topic, partitions in page.topics.items():
        store.topic(topic, partitions)
    for topic, rows in page.rows.items():
        spark.call("write_orders", path=str(store.path), topic=topic, rows=rows)
    blocks = [block.replace("/data/", f"{store.folder}/") for block in blocks]
    spark.call("run_blocks", page=name_of(page), blocks=blocks, timeout_s=300)


def check_recipes(spark, store):
    """The recipes did what they say, and a second run of a batch changed nothing."""
    large = spark_replog.open(str(store.path)).topic("large-sales").scan().to_arrow()
    assert sorted(large["amount"].to_pylist()) == [150, 160, 170, 180, 190]
    query = f"select count(*), count(distinct id) from parquet.`{store.folder}/customers`"
    rows = spark.call("sql", statements=[query])
    assert rows == [[4, 4]]


def check_delta(spark, store):
    """One row a customer, by one MERGE: the repeated batch made none."""

    def look(spark, path):
        rows = spark.sql(f"select id, amount from delta.`{path}` order by id").collect()
        history = spark.sql(f"describe history delta.`{path}`").collect()
        return [list(row) for row in rows], [entry.operation for entry in history]

    rows, operations = run_in(spark, look, path=f"{store.folder}/customers-delta")
    assert rows == [[customer, 160 + 10 * customer] for customer in range(4)]
    assert operations == ["MERGE", "CREATE TABLE"]


CHECKS = {"docs/recipes.md": check_recipes}
