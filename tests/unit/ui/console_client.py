"""A console of a store, asked through Starlette's test client."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from spark_replog.cli.settings import Settings
from spark_replog.monitor.store_monitor import StoreWatch
from spark_replog.ui.access import Access
from spark_replog.ui.live import LiveStore
from spark_replog.ui.server import Console

ADDRESS = "http://127.0.0.1:9411"


class ConsoleClient:
    def __init__(self, store, *, checkpoints=(), budget_bytes=1 << 20, age_ms=0) -> None:
        self.tokens: list[str] = []
        self.access = Access(self.tokens.append)
        self.access.renew()
        self.live = LiveStore(StoreWatch(store.cluster, checkpoints), store.clock, age_ms)
        self.console = Console(store.cluster, self.live, self.access, Settings(store=store.path), budget_bytes)
        self.http = TestClient(self.console.app(), base_url=ADDRESS, raise_server_exceptions=True)

    def enter(self) -> ConsoleClient:
        answer = self.http.get("/enter", params={"token": self.tokens[-1]})
        assert answer.status_code == 200, answer.text
        return self

    def get(self, page: str, **params: object) -> Any:
        answer = self.http.get(f"/api/{page}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, page: str, **params: object) -> tuple[int, str]:
        answer = self.http.get(f"/api/{page}", params=params)
        return answer.status_code, answer.json()["error"]
