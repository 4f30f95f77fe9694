"""Settings: frozen values of ours, made once from the dotted names that a user gives.

One registry, ``CONFIG_KEYS``, names every key with its default, Kafka's default and unit.
``docs/configuration.md`` and ``conf/`` are held against it by tests, so that it is the only
list of keys. One file a reader: ``producer``, ``client``, ``consumer``, ``coordinator``,
``topic``, ``store``, ``spark``.
"""

from spark_replog.config.client import ClientConfig, TaskHooks
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.key import KEY_PREFIX, STORAGE_PREFIX, ConfigGroup, ConfigKey, name_of_keyword, normalise_key
from spark_replog.config.producer import ProducerConfig
from spark_replog.config.reading import (
    given_settings,
    parse_value,
    read_consumer_config,
    read_coordinator_config,
    read_group,
    read_producer_config,
    read_topic_config,
    storage_options,
    storage_texts,
    unknown_option_error,
)
from spark_replog.config.registry import CONFIG_KEYS, keys_of
from spark_replog.config.store import ALLOW_EVERYONE_KEY, SUPER_USERS_KEY
from spark_replog.config.topic import TopicConfig

__all__ = [
    "ALLOW_EVERYONE_KEY",
    "CONFIG_KEYS",
    "KEY_PREFIX",
    "STORAGE_PREFIX",
    "SUPER_USERS_KEY",
    "ClientConfig",
    "ConfigGroup",
    "ConfigKey",
    "ConsumerConfig",
    "CoordinatorConfig",
    "ProducerConfig",
    "TaskHooks",
    "TopicConfig",
    "given_settings",
    "read_consumer_config",
    "read_coordinator_config",
    "keys_of",
    "name_of_keyword",
    "normalise_key",
    "parse_value",
    "read_producer_config",
    "read_group",
    "storage_options",
    "storage_texts",
    "read_topic_config",
    "unknown_option_error",
]
