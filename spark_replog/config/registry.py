"""Every key that a user can set: the one list that ``docs/configuration.md`` and ``conf/`` are held against."""

from __future__ import annotations

from spark_replog.config.client import CLIENT_KEYS
from spark_replog.config.consumer import CONSUMER_KEYS
from spark_replog.config.coordinator import COORDINATOR_KEYS
from spark_replog.config.key import ConfigGroup, ConfigKey
from spark_replog.config.producer import PRODUCER_KEYS
from spark_replog.config.spark import SINK_KEYS, SOURCE_KEYS
from spark_replog.config.store import CLUSTER_KEYS, STORAGE_KEYS
from spark_replog.config.topic import TOPIC_KEYS

CONFIG_KEYS: tuple[ConfigKey, ...] = (
    *PRODUCER_KEYS,
    *CLIENT_KEYS,
    *CONSUMER_KEYS,
    *COORDINATOR_KEYS,
    *TOPIC_KEYS,
    *STORAGE_KEYS,
    *SOURCE_KEYS,
    *SINK_KEYS,
    *CLUSTER_KEYS,
)
"""In the order in which the documents show them."""


def keys_of(*groups: ConfigGroup) -> tuple[ConfigKey, ...]:
    """Return the registry's keys of these groups, in its order."""
    return tuple(key for key in CONFIG_KEYS if key.group in groups)


__all__ = ["CONFIG_KEYS", "keys_of"]
