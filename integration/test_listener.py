"""A listener of a running query, and the query's log, on the newest Spark; test_versions.py has the older ones."""

from __future__ import annotations

from listening import holds_of_a_listener


def test_a_listener_hears_what_docs_say_and_no_line_comes_with_each_batch(spark, make_store):
    assert spark.call("about")["spark"].startswith("4.3")
    holds_of_a_listener(spark, make_store())
