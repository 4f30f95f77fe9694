"""For sessions and threads in which Spark's own look-up does not find the format.

An installed package is found by Spark (``pyspark_replog``). A wheel from ``--py-files`` must be registered: Spark puts
zips on its workers' path, but not wheels. A thread that Python starts needs a session for its writes.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import zipimport
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_shipped: set[tuple[int, str]] = set()


def register(spark: SparkSession) -> None:
    """Make ``format("replog")`` work in this session, classic or Connect. May be called repeatedly."""
    from spark_replog.spark.data_source import ReplogDataSource

    _ship_wheel(spark)
    try:
        spark.dataSource.register(ReplogDataSource)
    except Exception as error:  # 4.0 refuses a name that its own look-up has found; it is this class
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def use_session(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread, so that its writes find the format.

    A write looks the format up in the active session of its JVM thread (``DataSource.lookupDataSource``), and Spark
    sets one only in the thread that made the session. Takes some milliseconds. No effect on Spark Connect.
    """
    spark.createDataFrame([], "unused int")  # the public call that activates its session; runs no job


def _ship_wheel(spark: SparkSession) -> None:
    """Give workers the package under a name that Spark puts on their path."""
    loader = globals().get("__loader__")
    if not isinstance(loader, zipimport.zipimporter) or not loader.archive.endswith(".whl"):
        return
    context = _spark_context(spark)
    if context is None or (id(context), loader.archive) in _shipped:
        return
    folder = Path(tempfile.mkdtemp(prefix="replog-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / f"{Path(loader.archive).stem}.zip"
    shutil.copyfile(loader.archive, copy)
    context.addPyFile(str(copy))
    _shipped.add((id(context), loader.archive))


def _spark_context(spark: SparkSession) -> Any:
    """Return the context; None on Connect, where only the server needs the package."""
    try:
        return spark.sparkContext
    except Exception:  # Connect's session raises its own error here, whose class may not be importable
        _LOG.debug("no SparkContext: the package must be installed where the Connect server runs")
        return None
