"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics and of brokers.

A topic's settings are those of its ledger. A broker's are those of this gateway, which only its start sets, and those
of the store's ACLs, which are the same at every broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
)
from kafka.protocol.api_key import ApiKey

from spark_replog.admin.access_admin import AclAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.config.key import ConfigKey
from spark_replog.config.registry import keys_of
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.gateway.errors import error_code, error_text
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.log.acl import CLUSTER_NAME, AclOperation, ResourceType
from spark_replog.quorum import majority_of


class ConfigResource(IntEnum):
    """What has settings. Source: ``ConfigResource.Type``."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from. Source: ``DescribeConfigsResponse.ConfigSource``."""

    TOPIC = 1
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigOperation(IntEnum):
    """How IncrementalAlterConfigs changes a value. Source: ``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_BOOLEAN, _STRING, _LONG, _DOUBLE, _LIST = 1, 2, 5, 6, 7
_TYPES = {"bool": _BOOLEAN, "ms": _LONG, "bytes": _LONG, "count": _LONG, "ratio": _DOUBLE}
LIST_SETTINGS = frozenset({"cleanup.policy"})
_ALTER = AclOperation.ALTER_CONFIGS


class ConfigEntry(NamedTuple):
    """One setting of a resource, as clients see it; value None: not set, and without a default."""

    key: ConfigKey
    value: str | None
    source: ConfigSource
    is_read_only: bool = False

    @property
    def name(self) -> str:
        """Return its name."""
        return self.key.name


def topic_entries(config: Mapping[str, str], replication_factor: int) -> list[ConfigEntry]:
    """Return all settings of a topic: its own, and the defaults of the others."""
    derived = {"min.insync.replicas": str(majority_of(replication_factor)), "compression.type": "producer"}
    return [
        ConfigEntry(key, config[key.name], ConfigSource.TOPIC)
        if key.name in config
        else ConfigEntry(key, key.default_text or derived.get(key.name), ConfigSource.DEFAULT)
        for key in keys_of("topic")
    ]


def broker_entries(gateway: Gateway, config: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the settings of a gateway, and those of the store's ACLs."""
    entries = []
    for key in keys_of("gateway"):
        value = getattr(gateway.config, key.field)
        text = None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        source = ConfigSource.DEFAULT if value == key.default else ConfigSource.STATIC_BROKER
        entries.append(ConfigEntry(key, text, source, is_read_only=True))
    for key in keys_of("cluster"):
        is_set = key.name in config
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER if is_set else ConfigSource.DEFAULT
        entries.append(ConfigEntry(key, config[key.name] if is_set else key.default_text, source))
    return entries


async def describe_configs(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeConfigs."""
    result, results = DescribeConfigsResponse.DescribeConfigsResult, []
    for item in call.request.resources:
        named = {"resource_type": item.resource_type, "resource_name": item.resource_name}
        try:
            entries = await gateway.run(_entries, gateway, call, item)
        except ReplogError as error:
            text = error_text(error)
            results.append(result(error_code=error_code(error), error_message=text, configs=[], **named))
            continue
        wanted = None if item.configuration_keys is None else set(item.configuration_keys)
        configs = [_entry(call, item, entry) for entry in entries if wanted is None or entry.name in wanted]
        results.append(result(error_code=0, configs=configs, **named))
    return DescribeConfigsResponse(results=results)


def _entries(gateway: Gateway, call: Call, item: Any) -> list[ConfigEntry]:
    gateway.cluster.refresh_if_stale()
    authorizer = Authorizer(gateway.cluster, call.principal)
    if item.resource_type == ConfigResource.TOPIC:
        authorizer.require(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, item.resource_name)
        handle = gateway.cluster.newest_topics([item.resource_name])[item.resource_name]
        ledger, _ = gateway.cluster.folded_topic(handle)
        with ledger.lock:
            topic = ledger.state.topics[handle.topic_id]
            return topic_entries(dict(topic.config), len(topic.partitions[0].replicas))
    _require_broker(gateway, item)
    return broker_entries(gateway, AclAdmin(gateway.cluster, call.principal).config())


def _require_broker(gateway: Gateway, item: Any) -> None:
    if item.resource_type != ConfigResource.BROKER:
        text = f"Resources of type {item.resource_type} have no settings here. Name a topic or a broker."
        raise InvalidConfigError(ErrorCode.INVALID_REQUEST, text)
    if item.resource_name not in ("", str(gateway.node.node_id)):
        text = f"This is broker {gateway.node.node_id}, not '{item.resource_name}'. Ask that one."
        raise InvalidConfigError(ErrorCode.INVALID_REQUEST, text)


def _entry(call: Call, item: Any, entry: ConfigEntry) -> Any:
    made = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    is_named = entry.source is not ConfigSource.DEFAULT
    synonyms = []
    if call.version >= 1 and call.request.include_synonyms:
        synonyms = [made.DescribeConfigsSynonym(name=entry.name, value=entry.value, source=int(entry.source))]
        if is_named:
            default = made.DescribeConfigsSynonym(
                name=entry.name, value=entry.key.default_text or None, source=int(ConfigSource.DEFAULT)
            )
            synonyms.append(default)
    return made(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=int(entry.source),
        is_default=not is_named,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=_LIST if entry.name in LIST_SETTINGS else _TYPES.get(entry.key.unit, _STRING),
        documentation=entry.key.doc if call.version >= 3 and call.request.include_documentation else None,
    )


async def list_config_resources(gateway: Gateway, call: Call) -> Any:
    """Answer ListConfigResources: topics and brokers. Nothing else has settings here; version 0 asks for others."""
    types = set(call.request.resource_types) or set(ConfigResource) if call.version >= 1 else set()
    if not types <= set(ConfigResource):
        return ListConfigResourcesResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), config_resources=[])
    try:
        names = await gateway.run(_config_resources, gateway, call, types)
    except ReplogError as error:
        return ListConfigResourcesResponse(error_code=error_code(error), config_resources=[])
    made = ListConfigResourcesResponse.ConfigResource
    return ListConfigResourcesResponse(
        error_code=0, config_resources=[made(resource_name=name, resource_type=int(kind)) for kind, name in names]
    )


def _config_resources(gateway: Gateway, call: Call, types: Collection[int]) -> list[tuple[ConfigResource, str]]:
    cluster = gateway.cluster
    cluster.refresh_if_stale()
    Authorizer(cluster, call.principal).require(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    names: list[tuple[ConfigResource, str]] = []
    if ConfigResource.TOPIC in types:
        names += [(ConfigResource.TOPIC, name) for name in cluster.topic_names()]
    if ConfigResource.BROKER in types:
        names += [(ConfigResource.BROKER, str(node.node_id)) for node in gateway.nodes()]
    return names


Changes = dict[str, str | None]
"""Setting to its new value; None: its default."""


async def alter_configs(gateway: Gateway, call: Call) -> Any:
    """Answer AlterConfigs: what is not given gets its default."""
    return AlterConfigsResponse(
        responses=await _altered(gateway, call, AlterConfigsResponse.AlterConfigsResourceResponse, _replacing)
    )


async def incremental_alter_configs(gateway: Gateway, call: Call) -> Any:
    """Answer IncrementalAlterConfigs."""
    made = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(responses=await _altered(gateway, call, made, incremental_changes))


async def _altered(
    gateway: Gateway, call: Call, made: Any, changes: Callable[[Iterable[Any], Mapping[str, str]], Changes]
) -> list[Any]:
    responses = []
    for item in call.request.resources:
        code, text = 0, None
        try:
            await gateway.run(_alter, gateway, call, item, changes)
        except ReplogError as error:
            code, text = error_code(error), error_text(error)
        responses.append(
            made(
                error_code=code, error_message=text, resource_type=item.resource_type, resource_name=item.resource_name
            )
        )
    return responses


def _alter(
    gateway: Gateway, call: Call, item: Any, changes: Callable[[Iterable[Any], Mapping[str, str]], Changes]
) -> None:
    validate_only = call.request.validate_only
    cluster = gateway.cluster
    if item.resource_type == ConfigResource.TOPIC:
        cluster.refresh_if_stale()
        Authorizer(cluster, call.principal).require(_ALTER, ResourceType.TOPIC, item.resource_name)
        handle = cluster.newest_topics([item.resource_name])[item.resource_name]
        ledger, _ = cluster.folded_topic(handle)
        with ledger.lock:
            now = dict(ledger.state.topics[handle.topic_id].config)
        wanted = changes(item.configs, now)
        Controller(cluster, call.principal).alter_config(item.resource_name, wanted, validate_only=validate_only)
        return
    _require_broker(gateway, item)
    admin = AclAdmin(cluster, call.principal)
    wanted = changes(item.configs, admin.config())
    fixed = sorted(wanted.keys() & {key.name for key in keys_of("gateway")})
    if fixed:
        text = f"{', '.join(fixed)}: set when the gateway starts, in its settings. Restart it with another value."
        raise InvalidConfigError(ErrorCode.INVALID_REQUEST, text)
    admin.configure(wanted, validate_only=validate_only)


def _replacing(configs: Iterable[Any], now: Mapping[str, str]) -> Changes:
    given: Changes = {item.name: item.value for item in configs}
    return {**dict.fromkeys(now), **given}


def incremental_changes(configs: Iterable[Any], now: Mapping[str, str]) -> Changes:
    """Return what operations change, given the values that are set now.

    Raises:
        InvalidConfigError: INVALID_REQUEST, INVALID_CONFIG.
    """
    changes: Changes = {}
    defaults = {key.name: key.default_text for key in keys_of("topic")}
    for item in configs:
        name, operation = item.name, item.config_operation
        if name in changes:
            raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"'{name}' is changed twice. Change it once.")
        if operation == ConfigOperation.SET:
            changes[name] = item.value
        elif operation == ConfigOperation.DELETE:
            changes[name] = None
        elif operation not in list(ConfigOperation):
            raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"{operation} is no operation. Use 0 to 3.")
        elif name not in LIST_SETTINGS:
            text = f"'{name}' is not a list: nothing can be appended to it or taken from it. Set it."
            raise InvalidConfigError(ErrorCode.INVALID_CONFIG, text)
        else:
            before = [word for word in now.get(name, defaults[name]).split(",") if word]
            given = [word for word in (item.value or "").split(",") if word]
            if operation == ConfigOperation.APPEND:
                after = [*before, *(word for word in given if word not in before)]
            else:
                after = [word for word in before if word not in given]
            changes[name] = ",".join(after)
    return changes


APIS = {
    ApiKey.DescribeConfigs: Api(1, 4, describe_configs),
    ApiKey.AlterConfigs: Api(0, 2, alter_configs),
    ApiKey.IncrementalAlterConfigs: Api(0, 1, incremental_alter_configs),
    ApiKey.ListConfigResources: Api(0, 1, list_config_resources),
}
