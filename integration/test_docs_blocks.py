"""What the documentation shows runs: every Python and SQL block of README.md and docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import Page, read_page

ROOT = Path(__file__).resolve().parents[1]
PAGES = [read_page(path) for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]]
NOT_RUN = {"docs/recipes.md": 2, "docs/spark-submit.md": 1}
"""Blocks that say why they do not run here; any other number is a mistake."""
WITHOUT_SPARK = {
    "docs/consumer.md": "tests/unit/consumer/test_consumer_docs.py",
    "docs/producer.md": "tests/unit/producer/test_producer_page.py",
}
"""Pages of plain Python: their blocks run in the unit tests."""


def name_of(page: Page) -> str:
    return page.path.relative_to(ROOT).as_posix()


SPARK_PAGES = [page for page in PAGES if page.blocks and name_of(page) not in WITHOUT_SPARK]


def test_every_block_is_found_and_runs_or_says_why_not():
    for page in PAGES:
        fences = re.findall(r"^\s*```(?:python|py|python3|pycon|sql)\b", page.path.read_text(), re.M)
        assert len(fences) == len(page.blocks) + len(page.reasons), name_of(page)
    assert {name_of(page): len(page.reasons) for page in PAGES if page.reasons} == NOT_RUN
    assert sum(len(page.blocks) for page in PAGES) >= 27
    for name, test in WITHOUT_SPARK.items():
        assert name in (ROOT / test).read_text(), f"{test} runs the blocks of {name}"


@pytest.mark.parametrize("page", SPARK_PAGES, ids=name_of)
def test_blocks_run(page, spark, make_store):
    store = make_store(brokers=3, name="store")
    for topic, partitions in page.topics.items():
        store.topic(topic, partitions)
    for topic, rows in page.rows.items():
        spark.call("write_orders", path=str(store.path), topic=topic, rows=rows)
    blocks = [block.replace("/data/", f"{store.folder}/") for block in page.blocks]
    spark.call("run_blocks", page=name_of(page), blocks=blocks, timeout_s=300)
    check = CHECKS.get(name_of(page))
    if check is not None:
        check(spark, store)


def check_recipes(spark, store):
    """The recipes did what they say, and a second run of a batch changed nothing."""
    assert len(spark.call("read", path=str(store.path), topic="large-orders")) == 5
    query = f"select count(*), count(distinct id) from parquet.`{store.folder}/customers`"
    found = spark.call("sql", statements=[query])
    assert found == [[4, 4]]


CHECKS = {"docs/recipes.md": check_recipes}
