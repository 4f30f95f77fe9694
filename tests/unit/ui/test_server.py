"""The console's answers: what each page holds, who gets it, that it pages, and that it only reads."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from spark_replog import Consumer
from spark_replog.admin.access_admin import AclAdmin
from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cli.settings import Settings
from spark_replog.cluster.authorizer import default_principal
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger.record import (
    HASH_SIZE_BYTES,
    NONCE_SIZE_BYTES,
    ZERO_EPOCH,
    JournalRecord,
    RecordKind,
    encode_record,
)
from spark_replog.log.acl import CLUSTER_NAME, AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.monitor.file_words import _vouched, decided_entries
from spark_replog.monitor.store_monitor import StoreWatch
from spark_replog.ui import live
from spark_replog.ui.access import SECURITY_HEADERS
from spark_replog.ui.live import SAMPLE_MS, Feed, LagSample
from spark_replog.ui.server import Console
from spark_replog.ui.views import overview
from tests.at_rest import wait_at_rest
from tests.unit.client.consumer_setup import P0, Store, rows, with_a_group
from tests.unit.monitor.test_queries import Query
from tests.unit.ui.console_client import ConsoleClient
from tests.waiting import wait_until

DOWN = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "the root does not answer.")
PAGES = (
    "overview",
    "placement",
    "topics",
    "topic?name=orders",
    "readers",
    "reader?kind=group&name=billing",
    "health",
    "ledgers",
    "settings",
    "rows/plan?topic=orders",
    "rows?topic=orders",
)


@pytest.fixture
def store(tmp_path):
    return with_a_group(tmp_path / "store")


@pytest.fixture
def console(store):
    return ConsoleClient(store).enter()


def test_nothing_is_shown_without_a_session(store):
    console = ConsoleClient(store)
    for path in ("/", "/console.js", "/feed", "/nowhere", *(f"/api/{page}" for page in PAGES)):
        answer = console.http.get(path)
        assert answer.status_code == 401 and "replog ui" in answer.text, path
    assert console.http.get("/enter", params={"token": "x"}).status_code == 401
    assert console.http.cookies == {}


def test_a_link_gives_a_cookie_that_scripts_and_other_sites_do_not_get(store):
    console = ConsoleClient(store)
    token = console.tokens[-1]
    answer = console.http.get("/enter", params={"token": token}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
    assert console.http.get("/").status_code == 200
    console.http.cookies.clear()
    assert console.http.get("/enter", params={"token": token}).status_code == 401


def test_two_consoles_of_one_host_do_not_sign_each_other_out(store):
    first, second = ConsoleClient(store), ConsoleClient(store)
    second.http.cookies = first.http.cookies  # a browser has one jar for all ports of a host
    for console, port in (first, 8501), (second, 8502):
        console.http.base_url = f"http://localhost:{port}"
        console.enter()
    assert [console.http.get("/").status_code for console in (first, second)] == [200, 200]
    first.http.base_url = "http://localhost:8502"
    assert first.http.get("/").status_code == 401, "a session is of one console"


def test_every_answer_carries_the_security_headers(console):
    for path in ("/", "/console.css", "/nowhere", "/enter", "/api/overview", "/api/topic"):
        answer = console.http.get(path)
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS, path
    assert console.http.get("/", headers={"host": "evil.test"}).status_code == 421
    assert console.http.get("/", headers={"origin": "http://evil.test"}).status_code == 403
    assert console.http.post("/api/overview").status_code == 405
    policy = SECURITY_HEADERS["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy


def test_the_page_has_no_inline_script_or_style_and_no_foreign_address(console):
    page = console.http.get("/").text
    assert (
        "<script src=" in page
        and "<style" not in page
        and " style=" not in page
        and " on" not in page.split("<body>")[0]
    )
    script = console.http.get("/console.js").text
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert word not in script
    assert "https://" not in page + script


def test_the_overview_says_what_status_says(console, store):
    answer = console.get("overview")
    assert (answer["verdict"], answer["partitions"], answer["topics"], answer["findingCount"]) == ("OK", 3, 2, 0)
    assert [broker["state"] for broker in answer["brokers"]] == ["ok"] * 3
    assert len(answer["minutes"]) == 16 and sum(rows for _, rows, _ in answer["minutes"]) == 10
    assert answer["verdicts"] == {"OK": 1}
    assert answer["readers"][0]["reader"] == "billing" and answer["readers"][0]["lag"] == 6
    assert answer["lags"][0]["name"] == "billing" and answer["lags"][0]["points"][0][1] == 6
    BrokerAdmin(store.cluster).fence(0)
    assert console.get("overview")["verdict"] == "WARN"


def test_lags_are_sampled_over_time_and_a_reader_that_has_caught_up_is_at_zero(console, store):
    console.get("overview")
    store.clock.advance(SAMPLE_MS)
    with Consumer(store.cluster, group="billing", enable_auto_commit=False) as reader:
        reader.assign([P0])
        reader.commit({P0: 10})
    (line,) = console.get("overview")["lags"]
    assert [rows for _, rows, _ in line["points"]] == [6, 0]


def test_the_link_of_a_group_with_an_odd_name_leads_to_it(console, store):
    with Consumer(store.cluster, group="odd\x1bname", enable_auto_commit=False) as reader:
        reader.assign([P0])
        reader.commit({P0: 1})
    store.clock.advance(SAMPLE_MS)
    (name,) = [line["reader"] for line in console.get("readers")["readers"] if "odd" in line["reader"]]
    assert name == "odd\\x1bname"
    assert console.get("reader", kind="group", name=name)["reader"] == name


def test_odd_names_are_shown_by_their_codes_on_every_page(console, store):
    with Consumer(store.cluster, group="\u202eodd\x1bname", enable_auto_commit=False) as reader:
        reader.assign([P0])
        reader.commit({P0: 0})
    store.clock.advance(SAMPLE_MS)
    assert console.get("overview")["worstLag"]["group"] == "\\u202eodd\\x1bname"
    for page in PAGES:
        answer = console.http.get(f"/api/{page}")
        assert "\\u001b" not in answer.text and "\\u202e" not in answer.text.replace("\\\\u202e", ""), page


def test_of_readers_that_have_caught_up_those_once_furthest_behind_are_drawn_first(store):
    def sample(time_ms, **lags_ms):
        return LagSample(time_ms, {("group", name): (1, lag_ms) for name, lag_ms in lags_ms.items()})

    samples = [sample(0, slow=9_000, other=5_000), sample(1, slow=100, other=4_000), sample(2, behind=1)]
    answer = overview(StoreWatch(store.cluster).look(), samples, Settings(store=store.path))
    assert [lag["name"] for lag in answer["lags"]] == ["behind", "slow", "other"]


def test_partitions_are_placed_with_leader_and_isr(console, store):
    placement = console.get("placement")
    cells = {topic["topic"]: topic["partitions"] for topic in placement["topics"]}
    assert placement["brokers"] == [0, 1, 2] and len(cells["orders"]) == 2
    number, leader, replicas, in_sync = cells["orders"][0]
    assert (number, leader, sorted(replicas), sorted(in_sync)) == (0, 0, [0, 1, 2], [0, 1, 2])
    BrokerAdmin(store.cluster).fence(0)
    number, leader, replicas, in_sync = console.get("placement", first=1, count=1)["topics"][0]["partitions"][0]
    assert leader != 0 and 0 in replicas and 0 not in in_sync


def test_topics_are_found_sorted_and_paged(console, store):
    for number in range(5):
        store.create(f"t{number}", number + 1)
    page = console.get("topics", q="t", sort="partitions", first=0, count=3)
    assert [topic["topic"] for topic in page["topics"]] == ["t4", "t3", "t2"] and page["total"] == 6
    assert console.get("topics", sort="rows")["topics"][0]["topic"] == "orders"
    assert console.get("topics", sort="no such", first=3, count=1)["topics"][0]["topic"] == "t1"


def test_a_topic_has_partitions_settings_with_source_and_readers(console, store):
    Controller(store.cluster).alter_config("orders", {"retention.ms": "1000"})
    topic = console.get("topic", name="orders", first=1, count=1)
    assert [(partition["partition"], partition["state"]) for partition in topic["partitionItems"]] == [(1, "ok")]
    assert topic["total"] == 2
    (setting,) = [config for config in topic["settings"] if config["key"] == "retention.ms"]
    assert (setting["value"], setting["default"], setting["source"]) == ("1000", "604800000", "topic")
    assert {config["source"] for config in topic["settings"] if config["key"] != "retention.ms"} == {"default"}
    assert [reader["reader"] for reader in topic["readers"]] == ["billing"]
    assert console.refused("topic", name="nowhere") == (404, "NOT_FOUND")


def test_readers_have_verdicts_and_pages_of_partitions(console):
    (line,) = console.get("readers")["readers"]
    assert (line["reader"], line["verdict"], line["lag"]) == ("billing", "OK", 6)
    reader = console.get("reader", kind="group", name="billing")
    assert [(part["partition"], part["committed"], part["lag"]) for part in reader["partitionItems"]] == [
        (0, 4, 6),
        (1, None, None),
    ]
    assert console.refused("reader", kind="query", name="billing")[0] == 404


def test_a_checkpoint_that_cannot_be_read_is_named(store, tmp_path):
    (tmp_path / "bad" / "offsets").mkdir(parents=True)
    (tmp_path / "bad" / "metadata").write_text("{")
    folders = [str(tmp_path / "none"), str(tmp_path / "bad")]
    answer = ConsoleClient(store, checkpoints=folders).enter().get("readers")
    assert [problem["checkpoint"] for problem in answer["unread"]] == folders and answer["total"] == 1
    assert [problem["error"] for problem in answer["unread"]] == ["REPLOG_INPUT", "CORRUPT_MESSAGE"]


def test_health_names_the_command_that_helps(console, store):
    assert console.get("health")["findings"] == []
    BrokerAdmin(store.cluster).fence(0)
    findings = console.get("health")["findings"]
    assert findings[-1]["remedy"] == f"replog -s {store.path} broker unfence 0"


def test_a_partition_whose_root_is_away_is_offline_as_in_status(store, tmp_path, short_retries):
    Controller(store.cluster).create_topic("alone", assignment=[[2], [1]])
    (tmp_path / "store" / "broker-2").rename(tmp_path / "gone")
    console = ConsoleClient(store).enter()
    assert console.get("overview")["offline"] == 1
    (line,) = console.get("topics", q="alone")["topics"]
    assert (line["offline"], line["underMinIsr"], line["underReplicated"]) == (1, 0, 0)
    assert [part["state"] for part in console.get("topic", name="alone")["partitionItems"]] == ["offline", "ok"]


def test_findings_with_one_remedy_are_one_thing_to_do(console, store):
    store.create("wide", 40)
    BrokerAdmin(store.cluster).fence(1)
    answer = console.get("overview")
    fenced, spread = answer["findings"]
    assert (fenced["fault"], fenced["others"]) == ("fenced", 0) and answer["findingCount"] == 44
    assert (spread["fault"], spread["others"], len(spread["otherDetails"])) == ("under-replicated", 42, 20)


def test_a_query_is_judged_by_its_checkpoint(store, tmp_path):
    query = Query(tmp_path / "checkpoints" / "orders", store.cluster.lookup("orders").topic_id)
    query.done(0, store.clock.now_ms() - 600_000, {0: 3, 1: 0})
    store.clock.advance(3_600_000)
    console = ConsoleClient(store, checkpoints=[str(tmp_path / "checkpoints")]).enter()
    (line,) = [reader for reader in console.get("readers")["readers"] if reader["kind"] == "query"]
    assert (line["lag"], line["verdict"], line["batch"]) == (7, "STOPPED", 0)
    assert console.get("reader", kind="query", name=line["reader"])["partitionItems"][0]["committed"] == 3
    remedies = {reader["reader"]: reader["remedy"] for reader in console.get("health")["readers"]}
    assert "query describe" in remedies[line["reader"]] and "group delete" in remedies["billing"]
    overview = console.get("overview")
    assert overview["verdict"] == "CRITICAL" and overview["troubleCount"] == overview["findingCount"] + len(remedies)


def test_a_thousand_partitions_come_in_pages_and_one_look_is_a_get_per_root_and_ledger(tmp_path):
    store = Store.init(str(tmp_path / "store"), 3)
    for number in range(4):
        store.create(f"topic-{number}", 250)
    again = store.another_process()
    again.count_calls()
    console = ConsoleClient(again, age_ms=20_000).enter()
    again.forget_calls()
    answer = console.http.get("/api/overview")
    assert answer.json()["partitions"] == 1000 and len(answer.content) < 10_000
    again.clock.advance(20_000)  # no check of the roots is due
    again.forget_calls()
    console.get("overview")
    ledgers = len(console.get("ledgers")["ledgers"])
    assert again.calls().get("get", 0) <= 3 * ledgers and set(again.calls()) <= {"get"}
    place = console.http.get("/api/placement", params={"first": 900, "count": 1000})
    assert place.json()["count"] == 200 and len(place.content) < 20_000
    assert [len(topic["partitions"]) for topic in place.json()["topics"]] == [100]
    assert len(console.get("topic", name="topic-1", count=1000)["partitionItems"]) == 200


def test_a_hostile_topic_config_is_escaped_everywhere(console, store):
    """A ledger may hold what no release of this project writes."""
    seen = console.live.seen()
    evil = "\x1b[2J\u202e<script>"
    topics = [replace(topic, config={evil: evil, "retention.ms": evil}) for topic in seen.topics]
    console.live._seen = (2**62, replace(seen, topics=tuple(topics)))
    answer = console.http.get("/api/topic", params={"name": "orders"})
    assert answer.json()["settings"][-1]["key"] == "\\x1b[2J\\u202e<script>"
    assert "\\u001b" not in answer.text and "\x1b" not in answer.text


def test_entries_of_a_ledger_are_told_in_words(console, store):
    cluster, ledger, *_ = console.get("ledgers")["ledgers"]
    assert cluster["isCluster"] and not ledger["isCluster"]
    answer = console.get("entries", ledger=ledger["ledger"])
    words = [word for entry in answer["entries"] for word in entry["words"]]
    assert any("appends 10 rows to orders-0" in word for word in words)
    assert any(
        "names topic orders" in word
        for e in console.get("entries", ledger=cluster["ledger"])["entries"]
        for word in e["words"]
    )
    assert console.refused("entries", ledger="f" * 32)[0] == 404
    assert len(console.get("entries", ledger=ledger["ledger"], count=1)["entries"]) == 1


def test_entries_that_a_snapshot_holds_are_read_from_a_journal_once(store):
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    for _ in range(5):
        store.write("orders", rows(1))

    def begin_at_a_snapshot():
        """A process that reads a root before the newest record is there begins at the start of the journal."""
        store.write("orders", rows(1))
        ledger.snapshot(timeout_ms=10_000)
        again = store.another_process()
        calls = again.count_calls()
        console = ConsoleClient(again, age_ms=60_000).enter()
        line = next(candidate for candidate in console.get("ledgers")["ledgers"] if candidate["topics"] == ["orders"])
        is_short = len(console.get("entries", ledger=line["ledger"])["entries"]) < line["entries"]
        return (again, calls, console, line) if is_short else None

    again, calls, console, summary = wait_until(begin_at_a_snapshot)
    entries = console.get("entries", ledger=summary["ledger"], earlier=1)["entries"]
    assert [entry["index"] for entry in entries] == list(range(summary["entries"] - 1, -1, -1))
    assert any("creates topic orders" in word for word in entries[-1]["words"])
    again.forget_calls()
    assert console.get("entries", ledger=summary["ledger"], earlier=1)["entries"] == entries and again.calls() == {}
    assert len(console.get("entries", ledger=summary["ledger"], earlier=1, count=3)["entries"]) == 3
    # A root that is away, or lost a record: the next one tells.
    for broker_id in (0, 1):
        calls[broker_id].get = lambda *_, **__: (_ for _ in ()).throw(DOWN)
    assert [index for index, _ in decided_entries(again.cluster, again.cluster.topic_ledger(summary["ledger"]), 50)][
        -1
    ] == 0


def test_right_after_a_restore_entries_are_read_from_a_journal(console, store, monkeypatch):
    (ledger_id,) = [ledger["ledger"] for ledger in console.get("ledgers")["ledgers"] if ledger["topics"] == ["orders"]]
    every = console.get("entries", ledger=ledger_id)
    monkeypatch.setattr(store.cluster.topic_ledger(ledger_id), "recent", lambda _: [])
    assert console.get("entries", ledger=ledger_id)["entries"] == []
    entries = console.get("entries", ledger=ledger_id, earlier=1)["entries"]
    assert entries and entries == every["entries"][-len(entries) :]


def test_an_entry_that_no_later_record_vouches_for_is_not_shown(store):
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    newest = ledger.recent(1)[0]
    told = decided_entries(store.cluster, ledger, 50)
    assert told[0][0] <= newest[0] and told == ledger.recent(100)[-len(told) :]
    records = [
        (
            position,
            encode_record(
                JournalRecord(
                    RecordKind.ENTRY,
                    ZERO_EPOCH,
                    bytes(NONCE_SIZE_BYTES),
                    index,
                    commit,
                    bytes(HASH_SIZE_BYTES),
                    (),
                    b"t" * 16,
                )
            ),
        )
        for position, index, commit in ((3, 2, 0), (2, 1, 0), (1, 0, -1))
    ]
    assert [index for index, _ in _vouched(records, "root")] == [0]
    assert _vouched([records[0], (2, None), records[2]], "root") == []


def test_settings_have_default_and_source_and_hide_secrets(store):
    store.cluster.storage_options["secret"] = "hunter2"
    settings = ConsoleClient(store).enter().get("settings")["settings"]
    assert "hunter2" not in json.dumps(settings)
    assert {"storage.secret"} == {setting["key"] for setting in settings if setting["source"] == "command"}
    (linger,) = [setting for setting in settings if setting["key"] == "linger.ms" and setting["group"] == "producer"]
    assert linger["source"] == "default" and linger["value"] == linger["default"]


def test_settings_of_the_store_are_shown_to_whom_they_may_be_described(console, store):
    admin = AclAdmin(store.cluster, "User:admin")
    who, literal = default_principal(), PatternType.LITERAL
    for principal, operation in (("User:admin", AclOperation.ALL), (who, AclOperation.DESCRIBE)):
        admin.add([AclBinding(ResourceType.CLUSTER, CLUSTER_NAME, literal, principal, operation, Permission.ALLOW)])
    assert console.get("overview")["topics"] == 2
    assert console.refused("settings") == (403, "CLUSTER_AUTHORIZATION_FAILED")
    operation = AclOperation.DESCRIBE_CONFIGS
    admin.add([AclBinding(ResourceType.CLUSTER, CLUSTER_NAME, literal, who, operation, Permission.ALLOW)])
    assert console.get("settings")["settings"]


def test_bad_numbers_are_refused_with_a_code(console):
    for page, params in (
        ("topics", {"first": "-1"}),
        ("topics", {"count": "x"}),
        ("rows", {"topic": "orders", "partition": "9" * 30}),
        ("rows", {"topic": "orders", "begin": "middle"}),
        ("rows", {"topic": "orders", "count": "100000"}),
    ):
        assert console.refused(page, **params) == (400, "INVALID_REQUEST"), params
    assert console.refused("rows", topic="nowhere") == (404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert console.refused("rows", topic="orders", partition=7) == (404, "UNKNOWN_TOPIC_OR_PARTITION")


def test_a_store_that_does_not_answer_is_an_error_with_its_code(console, store, monkeypatch):
    def fail() -> None:
        raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "no majority \x1b[31m answers.")

    monkeypatch.setattr(console.live._watch, "look", fail)
    answer = console.http.get("/api/overview")
    assert (
        answer.status_code == 503
        and answer.json()["error"] == "REPLOG_NO_QUORUM"
        and "\\x1b" in answer.json()["message"]
    )


def test_no_page_writes_and_one_look_serves_many(store):
    wait_at_rest(store.cluster.brokers)  # else a look may find a root that lacks the last entry, and ask it again
    again = store.another_process()
    calls = again.count_calls()
    console = ConsoleClient(again, age_ms=60_000).enter()
    console.get("overview")
    looked = sum(again.calls().values())
    seen = {root: len(counter.calls) for root, counter in calls.items()}
    for page in PAGES:
        if "rows" not in page:
            console.http.get(f"/api/{page}")
    more = {root: list(counter.calls)[seen[root] :] for root, counter in calls.items()}
    assert sum(again.calls().values()) == looked, more
    console.get("rows", topic="orders")
    console.get("entries", ledger=console.get("ledgers")["ledgers"][1]["ledger"])
    verbs = {verb for counter in calls.values() for verb, _ in counter.calls}
    assert not verbs & {"create", "put", "delete", "append", "write"}, verbs


def test_a_connection_without_a_new_look_is_kept_alive_by_a_line_that_asks_for_nothing(store, monkeypatch):
    answered = threading.Event()

    class Looks:
        age_ms = 60_000
        asked = 0

        def seen(self):
            answered.wait(60)

        @property
        def newest(self):
            self.asked += 1

    async def scenario() -> None:
        looks = Looks()
        events = Console(store.cluster, looks, None, None, 0)._events()
        assert [await anext(events) for _ in range(2)] == [": still here\n\n"] * 2
        assert looks.asked == 0
        answered.set()
        lines = [await anext(events)]
        while lines[-1].startswith(":"):
            lines.append(await anext(events))
        assert lines[-1] == "id: 1\nevent: look\ndata: {}\n\n"
        await events.aclose()

    monkeypatch.setattr(live, "KEEP_ALIVE_S", 0.001)
    asyncio.run(scenario())


@pytest.mark.parametrize("error", [DOWN, OSError("too many open files")])
def test_a_look_that_fails_does_not_end_the_feed(error):
    errors = [error, error]

    class Looks:
        age_ms = 1

        def seen(self):
            if errors:
                raise errors.pop()

    async def scenario() -> None:
        feed = Feed(Looks())
        viewer = feed.follow()
        number = await anext(viewer)
        assert not feed.is_answered
        while errors or number < 3:  # the feed's keep-alive would be None
            number = await anext(viewer)
            assert number is not None
        assert feed.is_answered
        await viewer.aclose()

    asyncio.run(scenario())


def test_viewers_are_told_that_the_store_no_longer_answers(store, monkeypatch):
    """The newest look that they have may have said that all is well."""
    client = ConsoleClient(store, age_ms=0)

    def fail() -> None:
        raise DOWN

    async def scenario() -> list[dict]:
        events, looks = client.console._events(), []
        while not looks or "isAway" not in looks[-1]:
            looks.append(json.loads((await anext(events)).split("data: ")[1]))
            monkeypatch.setattr(client.live._watch, "look", fail)
        await events.aclose()
        return looks

    answers = asyncio.run(scenario())
    assert answers[0]["verdict"] == answers[-1]["verdict"] == "OK" and answers[-1]["isAway"]


def test_one_poller_feeds_all_viewers_and_ends_with_the_last():
    class Looks:
        age_ms = 1
        count = 0

        def seen(self):
            self.count += 1

    async def scenario() -> None:
        looks = Looks()
        feed = Feed(looks)
        first, second = feed.follow(), feed.follow()
        numbers = await asyncio.gather(anext(first), anext(second))
        assert numbers[0] is not None and feed.viewer_count == 2
        poller = feed._poller
        later = await anext(first)
        assert later > numbers[0] and feed._poller is poller and looks.count <= later + 1
        await first.aclose()
        assert not poller.done()
        await second.aclose()
        assert feed.viewer_count == 0 and feed._poller is None
        await asyncio.wait([poller], timeout=120)
        assert poller.done()
        count = looks.count
        await asyncio.sleep(0.01)
        assert looks.count == count

    asyncio.run(scenario())
