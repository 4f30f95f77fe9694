"""A function of a test, run in the driver: its source travels, its result comes back as JSON."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from spark_driver import SparkDriver


def run_in(driver: SparkDriver, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call ``function(spark, **arguments)`` in the driver's process; the jobs of ``jobs.py`` are in reach there.

    Raises:
        JobFailed: it raised.
    """
    source = textwrap.dedent(inspect.getsource(function))
    return driver.call("run_source", source=source, name=function.__name__, given=arguments)
