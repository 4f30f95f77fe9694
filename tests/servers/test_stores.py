"""The contract of a store over each real server, and the probe."""

from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.open_store import open_store
from spark_replog.storage.probe import probe_root
from spark_replog.storage.retrying_store import RetryingStore
from tests.contract.store_contract import ObjectStoreContract
from tests.servers.conftest import on_buckets
from tests.servers.hdfs import Hdfs
from tests.servers.server import S3rver


@on_buckets
class TestRealStore(ObjectStoreContract):
    has_folders = False
    # Eight clients in processes would each import their packages for seconds: threads race.
    race_in_processes = False
    race_name_count = 20

    @pytest.fixture
    def store(self, real):
        return open_store(real.new_root(), real.options())


class TestRealHdfs(ObjectStoreContract):
    race_in_processes = False
    race_name_count, race_racer_count = 5, 4

    @pytest.fixture
    def store(self, servers):
        server = servers(Hdfs)
        return open_store(server.new_root(), server.options())


def test_probe_passes(real):
    store = RetryingStore(open_store(real.new_root(), real.options()), deadline_ms=5_000)
    assert probe_root(store).file_system == real.scheme
    assert list(store.list_keys("")) == []


def test_a_server_without_conditional_writes_is_refused(servers):
    server = servers(S3rver)
    with pytest.raises(ReplogError) as raised:
        probe_root(RetryingStore(open_store(server.new_root(), server.options()), deadline_ms=5_000))
    assert raised.value.code is ErrorCode.REPLOG_STORE_LIES
