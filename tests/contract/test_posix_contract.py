from __future__ import annotations

import pytest

from spark_replog.storage.open_store import open_store
from tests.contract.store_contract import ObjectStoreContract


class TestPosixStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        root = tmp_path / "root with space"
        root.mkdir()
        return open_store(str(root))


class TestPosixStoreWithoutFsync(ObjectStoreContract):
    race_name_count = 10

    @pytest.fixture
    def store(self, tmp_path):
        return open_store(f"file://{tmp_path}", fsync=False)
