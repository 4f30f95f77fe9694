"""Spark's own settings that shorten replog's micro-batches, with what each is worth.

Declared once: ``spark_replog.session_conf``, ``conf/spark-replog.conf``, ``docs/performance.md``, and what ``replog
doctor`` and a query's first log line say come from here. Pure; needs no Spark.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from spark_replog.errors import ErrorCode, InvalidConfigError

SPARK_VERSION_MIN = (4, 0)
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@dataclass(frozen=True, slots=True)
class SessionSetting:
    """One of Spark's settings.

    Attributes:
        since: first Spark version that has it.
        is_local_only: whether it is set only where checkpoints are on a ``file:`` path.
        saved_ms: what a micro-batch loses without it (docs/performance.md); 0: throughput or a guard.
        effect: what it does.
        risk: what else changes.
    """

    name: str
    value: str
    effect: str
    risk: str
    since: tuple[int, int] = SPARK_VERSION_MIN
    is_local_only: bool = False
    saved_ms: int = 0
    is_default: bool = False
    """Whether it is Spark's default too, so that only a changed value loses anything."""


SESSION_SETTINGS = (
    SessionSetting(
        CHECKPOINT_MANAGER,
        _MANAGER,
        "Checkpoint files are renamed in 2 to 5 ms. On a local path the default manager takes 16 to 30 ms for each.",
        "None that the default has not: a power failure may leave an empty newest file with either (below).",
        is_local_only=True,
        saved_ms=46,
    ),
    SessionSetting(
        UNIX_SOCKETS,
        "true",
        "Spark and its Python workers talk over Unix sockets. Over TCP a task waits some 40 ms for a delayed "
        "acknowledgement.",
        "The sockets are files in the temporary folder, whose path must be short (about 70 characters).",
        since=(4, 1),
        saved_ms=36,
    ),
    SessionSetting(
        "spark.python.worker.reuse",
        "true",
        "A Python worker serves many tasks. Else each task starts one and imports everything again.",
        "None.",
        saved_ms=1350,
        is_default=True,
    ),
    SessionSetting(
        "spark.python.use.daemon",
        "true",
        "Workers are forked from a process that has imported pyspark.",
        "None.",
        saved_ms=3900,
        is_default=True,
    ),
    SessionSetting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "10000",
        "Rows in one Arrow batch from Spark to the sink. 0 (no limit) makes one batch of a task.",
        "A task holds two such batches at a time, beside buffer.memory.",
        is_default=True,
    ),
)


def session_conf(spark_version: str | None = None, checkpoint: str = "file") -> dict[str, str]:
    """Return the settings that a session is to be started with, by name.

    Args:
        spark_version: such as "4.3.0"; None: of the pyspark that is installed, else the newest known.
        checkpoint: a checkpoint's path or its scheme: ``file``, ``/data/checkpoints``, ``hdfs``, ``s3a://bucket/x``.
            Only ``file`` changes Spark's checkpoint file manager.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: no version of Spark from 4.0 on.
    """
    version = _version(spark_version)
    is_local = _scheme(checkpoint) == "file"
    return {
        each.name: value_for(each, version)
        for each in SESSION_SETTINGS
        if version >= each.since and (is_local or not each.is_local_only)
    }


def lost_ms(conf: Mapping[str, str], spark_version: str | None = None, checkpoint: str = "file") -> dict[str, int]:
    """Return what a micro-batch loses by each setting that ``conf`` lacks: milliseconds by name.

    Args:
        conf: of a session; absent names have Spark's defaults.
        spark_version: as ``session_conf``.
        checkpoint: as ``session_conf``.
    """
    wanted = session_conf(spark_version, checkpoint)
    return {
        each.name: each.saved_ms
        for each in SESSION_SETTINGS
        if each.saved_ms
        and each.name in wanted
        and conf.get(each.name, wanted[each.name] if each.is_default else "").strip().lower()
        != wanted[each.name].lower()
    }


def value_for(setting: SessionSetting, version: tuple[int, int]) -> str:
    """Return a setting's value for a Spark version: 4.0 has the checkpoint managers in another package."""
    return setting.value.replace(".checkpointing.", ".") if version < (4, 1) else setting.value


def _version(text: str | None) -> tuple[int, int]:
    text = text or installed_spark() or "4.3"
    parts = text.strip().split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()) or int(parts[0]) < SPARK_VERSION_MIN[0]:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION, f"'{text}' is no version of Spark from 4.0 on. Give one such as '4.3.0'."
        )
    return int(parts[0]), int(parts[1])


def installed_spark() -> str | None:
    """Return the version of the pyspark that an import would find, without importing it; None without one."""
    found = sys.modules.get("pyspark")
    if found is not None:
        return str(found.__version__)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    source: bytes = spec.loader.get_data(os.path.join(os.path.dirname(spec.origin), "version.py"))  # type: ignore
    match = re.search(r'__version__\b.*["\']([0-9][^"\']*)', source.decode())
    return None if match is None else match[1]


def _scheme(checkpoint: str) -> str:
    scheme, found, _ = checkpoint.partition(":")
    if not found:
        return checkpoint if checkpoint.isalnum() else "file"
    return scheme
