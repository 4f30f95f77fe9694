"""Settings: frozen values, made once from the dotted names that a user gives.

Each setting is declared once, as a field of its settings class or as a ``ConfigKey``. Parsing, ``CONFIG_KEYS``,
``docs/configuration.md``, ``conf/`` and shell completion are derived from the declarations.
"""

from spark_replog.config.consumer import BY_DURATION, ConsumerConfig, duration_ms
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.key import KEY_PREFIX, STORAGE_PREFIX, ConfigGroup, ConfigKey, name_of_keyword, normalise_key
from spark_replog.config.producer import ClientConfig, ProducerConfig, TaskHooks
from spark_replog.config.registry import (
    CONFIG_KEYS,
    UNUSED_KAFKA_PREFIXES,
    UNUSED_KAFKA_SETTINGS,
    given_settings,
    is_kafka_setting,
    keys_of,
    read_consumer_config,
    read_coordinator_config,
    read_group,
    read_producer_config,
    read_topic_config,
    storage_options,
    storage_texts,
    stored_topic_config,
    unknown_option_error,
    unused_reason,
    without_prefix,
)
from spark_replog.config.spark import SESSION_SETTINGS, UNIX_SOCKETS, lost_ms, session_conf, value_for
from spark_replog.config.store import ALLOW_EVERYONE_KEY, SUPER_USERS_KEY, TopicConfig

__all__ = [
    "ALLOW_EVERYONE_KEY",
    "BY_DURATION",
    "CONFIG_KEYS",
    "KEY_PREFIX",
    "SESSION_SETTINGS",
    "STORAGE_PREFIX",
    "SUPER_USERS_KEY",
    "UNIX_SOCKETS",
    "UNUSED_KAFKA_PREFIXES",
    "UNUSED_KAFKA_SETTINGS",
    "ClientConfig",
    "ConfigGroup",
    "ConfigKey",
    "ConsumerConfig",
    "CoordinatorConfig",
    "ProducerConfig",
    "TaskHooks",
    "TopicConfig",
    "duration_ms",
    "given_settings",
    "is_kafka_setting",
    "keys_of",
    "lost_ms",
    "name_of_keyword",
    "normalise_key",
    "read_consumer_config",
    "read_coordinator_config",
    "read_group",
    "read_producer_config",
    "read_topic_config",
    "session_conf",
    "storage_options",
    "storage_texts",
    "stored_topic_config",
    "unknown_option_error",
    "unused_reason",
    "value_for",
    "without_prefix",
]
