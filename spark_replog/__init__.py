"""spark-replog: Kafka's log without Kafka's servers, for Spark 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    __version__: str


def register(spark: SparkSession) -> None:
    """Make ``format("replog")`` work in a session whose Spark did not find it by itself.

    Not needed where the package is installed. Needs pyspark, which nothing else here imports.
    """
    from spark_replog.spark.registration import register as register_source

    register_source(spark)


def __getattr__(name: str) -> str:
    """Return ``__version__``, read only when asked for: every Spark worker imports this module."""
    if name != "__version__":
        raise AttributeError(f"module 'spark_replog' has no attribute '{name}'")
    from importlib import metadata

    try:
        return metadata.version("spark-replog")
    except metadata.PackageNotFoundError:  # on a path without its metadata, such as --py-files
        return "0+unknown"


__all__ = ["__version__", "register"]
