"""Spark looks into every installed module named ``pyspark_*`` for a ``DefaultSource``.

An import that fails here would hide ALL data sources of that kind, other packages' too, so it may not.
"""

from __future__ import annotations

try:
    from spark_replog.spark.data_source import ReplogDataSource as DefaultSource  # noqa: F401
except Exception as error:
    import logging

    logging.getLogger(__name__).warning("format('replog') is not available: %s", error)
