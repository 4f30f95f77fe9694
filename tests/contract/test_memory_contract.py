from __future__ import annotations

import pytest

from tests.contract.store_contract import ObjectStoreContract
from tests.memory_store import new_memory_store


class TestMemoryStore(ObjectStoreContract):
    is_shared_between_processes = False
    race_in_processes = False
    has_folders = False

    @pytest.fixture
    def store(self):
        return new_memory_store()
