"""The console's server: pages, their values as JSON, and the feed. Needs the extra ``ui``; only reads the store."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib import resources
from itertools import takewhile
from typing import Any, Literal, cast

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_replog.cli.settings import Settings
from spark_replog.cli.tables import escaped
from spark_replog.cli.view import Item
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import AuthorizationError, ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.log.acl import CLUSTER_NAME, AclOperation, ResourceType
from spark_replog.log.entry_words import entry_words
from spark_replog.monitor.file_words import decided_entries
from spark_replog.ui import views
from spark_replog.ui.access import SECURITY_HEADERS, Access, cookie_name, refusal
from spark_replog.ui.live import Feed, LiveStore
from spark_replog.ui.row_search import RowFinder, RowSearch

_LOG = logging.getLogger(__name__)
VIEWERS_MAX = 32
ENTRIES_MAX = 200
ENTRY_BYTES_MAX = 1 << 20
LEDGERS_TOLD_MAX = 8
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.js": ("console.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class ConsoleServer(uvicorn.Server):
    """Calls ``on_ready`` once it answers and handles signals: one that came before would stop it half-way."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer on these sockets."""
        await super().startup(sockets)
        self._on_ready()


class Guard:
    """Refuses requests with a wrong method, host or origin, and those without a session; adds the security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                names = {name for name, _ in extra}
                message["headers"] = [*(header for header in message["headers"] if header[0] not in names), *extra]
            await send(message)

        refused = refusal(scope["method"], Headers(scope=scope).items())
        app: ASGIApp = self._app
        if refused is not None:
            app = PlainTextResponse(f"{refused[1]}\n", refused[0])
        elif scope["path"] != "/enter" and not self._access.is_known(_session_of(Request(scope))):
            text = "This console opens by the link that `replog ui` prints. A link works once: take the newest one.\n"
            app = PlainTextResponse(text, 401)
        await app(scope, receive, send_guarded)


class Console:
    """The handlers. Handlers without ``async`` run in threads, because they read the store.

    ``settings`` are the command's, so that remedies can be typed as shown; a search reads at most ``budget_bytes``.
    """

    def __init__(
        self, cluster: Cluster, live: LiveStore, access: Access, settings: Settings, budget_bytes: int
    ) -> None:
        self._cluster, self._live, self._access = cluster, live, access
        self._settings, self._budget_bytes = settings, budget_bytes
        self._authorizer = Authorizer(cluster)
        self._finder = RowFinder(cluster)
        self._feed = Feed(live)
        self._lock = threading.Lock()
        self._told: dict[str, dict[int, Sequence[str]]] = {}
        """Descriptions of entries read from journals: by ledger, then by index."""

    def app(self) -> ASGIApp:
        """Return the application."""
        folder = resources.files("spark_replog.ui") / "static"
        files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

        def file(request: Request) -> Response:
            data, kind = files[request.url.path]
            return Response(data, media_type=kind)

        pages: Mapping[str, Callable[[Request], Any]] = {
            "overview": lambda _: views.overview(self._live.shown(), self._live.samples(), self._settings),
            "placement": lambda request: views.placement(self._live.shown(), *_page(request)),
            "topics": self._topics,
            "topic": self._topic,
            "readers": lambda request: views.readers(self._live.shown(), *_page(request)),
            "reader": self._reader,
            "health": lambda _: views.health(self._live.shown(), self._settings),
            "ledgers": lambda _: views.ledgers(self._live.shown()),
            "entries": self._entries,
            "settings": lambda _: self._settings_page(),
            "rows/plan": lambda request: self._search(request, is_read=False),
            "rows": lambda request: self._search(request, is_read=True),
        }
        routes = [
            Route("/enter", self._enter),
            Route("/feed", self._follow),
            *(Route(path, file) for path in files),
            *(Route(f"/api/{name}", _answering(page)) for name, page in pages.items()),
        ]
        return Guard(Starlette(routes=routes), self._access)

    def _enter(self, request: Request) -> Response:
        session = self._access.redeem(request.query_params.get("token", ""))
        if session is None:
            return PlainTextResponse("This link was used, or is not the newest one.\n", 401)
        answer = RedirectResponse("/", 303)
        name = cookie_name(request.headers["host"])
        answer.set_cookie(name, session, httponly=True, samesite="strict", path="/")
        return answer

    async def _follow(self, _: Request) -> Response:
        if self._feed.viewer_count >= VIEWERS_MAX:
            return PlainTextResponse(f"more than {VIEWERS_MAX} viewers\n", 503)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        async for number in self._feed.follow():
            if number is None:
                yield ": still here\n\n"
                continue
            newest = self._live.newest
            badge = views.badge(newest) if newest is not None else {}
            if not self._feed.is_answered:
                badge["isAway"] = True
            yield f"id: {number}\nevent: look\ndata: {json.dumps(_escaped(badge))}\n\n"

    def _topics(self, request: Request) -> Item:
        query = request.query_params
        return views.topics(self._live.shown(), query.get("q", ""), query.get("sort", "name"), *_page(request))

    def _topic(self, request: Request) -> Item | None:
        return views.topic(self._live.shown(), request.query_params.get("name", ""), *_page(request))

    def _reader(self, request: Request) -> Item | None:
        query = request.query_params
        return views.reader(self._live.shown(), query.get("kind", ""), query.get("name", ""), *_page(request))

    def _entries(self, request: Request) -> Item | None:
        wanted, names = request.query_params.get("ledger", ""), {}
        view = self._live.shown()
        if wanted not in {health.ledger_id for health in view.ledgers}:
            return None
        is_cluster = wanted == view.cluster_id
        ledger: Any = self._cluster.cluster_ledger if is_cluster else self._cluster.topic_ledger(wanted)
        if not is_cluster:
            names = ledger.ask(lambda state: {topic.topic_id: topic.name for topic in state.topics.values()})
        count = max(1, min(_number(request, "count", 50), ENTRIES_MAX))
        lines: list[tuple[int, Sequence[str]]] = [(index, _words(body, names)) for index, body in ledger.recent(count)]
        if request.query_params.get("earlier"):
            with self._lock:
                # Without one in memory, the newest is left out: no later record shows that it is decided.
                before = lines[-1][0] if lines else ledger.state.applied_index
                lines += self._earlier(ledger, names, before, count - len(lines))
        entries = [{"index": index, "words": list(words)} for index, words in lines]
        return {"ledger": wanted, "entryCount": ledger.state.applied_index + 1, "entries": entries}

    def _earlier(
        self, ledger: Any, names: Mapping[str, str], before: int, count: int
    ) -> list[tuple[int, Sequence[str]]]:
        """Return descriptions of entries below an index; a journal is read only for entries that no page showed yet."""
        descriptions = self._told.setdefault(ledger.ledger_id, {})
        if before - 1 not in descriptions and before > 0 and count > 0:
            entries = decided_entries(self._cluster, ledger, ENTRIES_MAX)
            descriptions.update({index: _words(payload, names) for index, payload in entries})
            for oldest in sorted(descriptions)[:-ENTRIES_MAX]:
                del descriptions[oldest]
            for other in list(self._told)[:-LEDGERS_TOLD_MAX]:
                self._told.pop(other, None)
        held = takewhile(descriptions.__contains__, range(before - 1, max(-1, before - 1 - count), -1))
        return [(index, descriptions[index]) for index in held]

    def _settings_page(self) -> Item:
        self._cluster.refresh_if_stale()
        self._authorizer.require(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        store = self._cluster.cluster_ledger.ask(lambda state: dict(state.config))
        return views.settings_page(store, self._cluster.storage_options)

    def _search(self, request: Request, *, is_read: bool) -> Item:
        query = request.query_params
        begin = query.get("begin", "newest")
        if begin not in ("offset", "time", "newest"):
            raise _invalid("begin is offset, time or newest")
        search = RowSearch(
            query.get("topic", ""),
            _number(request, "partition") if query.get("partition") else None,
            cast(Literal["offset", "time", "newest"], begin),
            _number(request, "at", 0),
            query["key"].encode() if query.get("key") else None,
            query.get("column") or None,
            query.get("value") or None,
            _number(request, "count", 50),
            self._budget_bytes,
        )
        if is_read:
            return views.found_rows(search, self._finder.read(search))
        return views.search_plan(search, self._finder.plan(search))


def _words(payload: bytes, names: Mapping[str, str]) -> list[str]:
    if len(payload) > ENTRY_BYTES_MAX:
        return [f"an entry of {len(payload):,} bytes"]
    return entry_words(payload, names)


def _answering(page: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        try:
            content = page(request)
        except ReplogError as error:
            kinds: list[tuple[type[ReplogError], int]] = [
                (NotFoundError, 404),
                (AuthorizationError, 403),
                (InvalidConfigError, 400),
            ]
            status = next((status for kind, status in kinds if isinstance(error, kind)), 503)
            return _json({"error": error.code.name, "message": str(error.args[0])}, status)
        if content is None:
            return _json({"error": "NOT_FOUND", "message": "It is not there (any more)."}, 404)
        return _json(content)

    return answer


def _json(value: object, status: int = 200) -> Response:
    return Response(json.dumps(_escaped(value), separators=(",", ":")), status, media_type="application/json")


def _escaped(value: Any) -> Any:
    """Return JSON values with every text escaped: characters that a browser acts on are shown by their codes."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {key: _escaped(member) for key, member in value.items()}
    return [_escaped(member) for member in value] if isinstance(value, list) else value


def _session_of(request: Request) -> str:
    return request.cookies.get(cookie_name(request.headers["host"]), "")


def _page(request: Request) -> tuple[int, int]:
    return _number(request, "first", 0), _number(request, "count", 50)


def _number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise _invalid(f"{name} is a number from 0 on")
    return int(text)


def _invalid(what: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.INVALID_REQUEST, f"{what}. Correct it.")
