"""Every API that the gateway offers: the one place that joins the handlers, and tells clients which there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata.api_versions import ApiVersionsResponse

from spark_replog.errors import ErrorCode
from spark_replog.gateway import (
    access,
    access_control,
    configs,
    fetch,
    group_administration,
    groups,
    list_offsets,
    metadata,
    produce,
    topic_administration,
    topic_pages,
)
from spark_replog.gateway.gateway import Api, Call, Gateway


async def api_versions(gateway: Gateway, call: Call) -> Any:
    """Answer ApiVersions: what this gateway offers."""
    return versions_offered()


def versions_offered(error: ErrorCode | None = None) -> Any:
    """Return the answer of ApiVersions; with an error it is read in version 0, whatever was asked for."""
    version = ApiVersionsResponse.ApiVersion
    keys = [version(api_key=key, min_version=api.min_version, max_version=api.max_version) for key, api in API_LIST]
    return ApiVersionsResponse(error_code=0 if error is None else int(error), api_keys=keys)


def _join(*tables: Mapping[ApiKey, Api]) -> dict[int, Api]:
    apis: dict[int, Api] = {}
    for table in tables:
        by_number = {int(key): api for key, api in table.items()}
        twice = apis.keys() & by_number
        assert not twice, f"two modules answer one API: {twice}"
        apis |= by_number
    return apis


API_TABLE: Mapping[int, Api] = _join(
    {ApiKey.ApiVersions: Api(0, 4, api_versions)},
    access.APIS,
    access_control.APIS,
    configs.APIS,
    fetch.APIS,
    group_administration.APIS,
    groups.APIS,
    list_offsets.APIS,
    metadata.APIS,
    produce.APIS,
    topic_administration.APIS,
    topic_pages.APIS,
)
API_LIST: Iterable[tuple[int, Api]] = sorted(API_TABLE.items())
