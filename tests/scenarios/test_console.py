"""The console in a real browser: `replog ui` as a process, Chromium at 1280 and 400 pixels, light, dark, by keyboard.

Screenshots stay in REPLOG_TEST_PICTURES where that names a folder, else in the test's own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_replog
from spark_replog import Consumer, Producer, TopicPartition
from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.controller import Controller
from tests.browser import Browser
from tests.servers.builds import CHROMIUM, NotBuilt
from tests.unit.client.consumer_setup import Store

EVIL = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
PAGES = {
    "overview": "#/",
    "topics": "#/topics",
    "topic": "#/topic?name=orders",
    "typed": "#/topic?name=sales",
    "typed-rows": "#/topic?name=sales&tab=rows",
    "settings": "#/topic?name=orders&tab=settings",
    "readers": "#/readers",
    "reader": "#/reader?kind=group&name=billing",
    "ledgers": "#/ledgers",
    "all-settings": "#/settings",
    "health": "#/health",
}
ENTER, TAB = 13, 9


def fill(store: Store) -> None:
    """Topics of several sizes, a group that is behind, a topic of hostile bytes, and a broker that is fenced."""
    for topic, partitions in (("orders", 6), ("clicks", 60), ("audit.log", 1)):
        store.create(topic, partitions)
    Controller(store.cluster).alter_config("orders", {"retention.ms": "86400000"})
    for partition in range(6):
        values = [{"id": partition * 1000 + n, "paid": n % 3 == 0, "items": [{"sku": f"A{n}"}]} for n in range(40)]
        keys = [b"customer-%d" % n for n in range(40)]
        store.write("orders", [json.dumps(value).encode() for value in values], partition=partition, keys=keys)
    hostile = [EVIL.encode(), "\u202etxt \x1b[31m".encode(), b"\xff\xfe", json.dumps({EVIL: EVIL}).encode(), None]
    headers = [[(EVIL, EVIL.encode())]] * 5
    store.write("audit.log", hostile, keys=[EVIL.encode(), None, b"\xff", b"k", b"k"], headers=headers)
    with Producer(store.path, client_id=EVIL) as producer:
        producer.send("audit.log", b"by a hostile client")
    for group in ("billing", EVIL):
        with Consumer(store.cluster, group=group, client_id=EVIL, enable_auto_commit=False) as reader:
            keys = [TopicPartition("orders", number) for number in range(6)]
            reader.assign(keys)
            reader.commit(dict.fromkeys(keys, 10))
    replog = spark_replog.open(store.path)
    replog.admin().create_topic(
        "sales", 2, schema="id BIGINT, item STRUCT<sku: STRING, note: STRING>, paid BOOLEAN", key="id"
    )
    with replog.producer() as producer:
        for number in range(6):
            item = {"sku": EVIL, "note": "a"} if number % 2 else None
            producer.send("sales", {"id": number, "item": item, "paid": number == 3})
    replog.admin().evolve_schema(
        "sales", f"id BIGINT, item STRUCT<sku: STRING, note: STRING>, paid BOOLEAN, `{EVIL}` INT"
    )
    BrokerAdmin(store.cluster).fence(2)


@pytest.fixture(scope="module", autouse=True)
def chromium():
    try:
        CHROMIUM.folder()
    except NotBuilt as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def link(chromium, tmp_path_factory):
    """The address of a running console, with its token."""
    path = str(tmp_path_factory.mktemp("console") / "store")
    fill(Store.init(path, 3))
    command = [sys.executable, "-m", "spark_replog", "-s", path, "ui", "--listen", "127.0.0.1:0", "--every", "0.5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as server:
        try:
            assert server.stderr is not None
            yield re.search(r"http://\S+", server.stderr.readline())[0]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def browser(link, tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("profile"))
    try:
        made.look_like(1280, 800, "light")
        made.open(link)
        made.until("document.querySelector('.tiles')")
        yield made
        assert made.problems == []
        address = link.split("/enter")[0]
        assert {url for url in made.requests if not url.startswith((address, "data:", "about:"))} == set()
        assert made.run("document.title") != "owned"
    finally:
        made.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return Path(os.environ.get("REPLOG_TEST_PICTURES") or tmp_path_factory.mktemp("pictures"))


def show(browser: Browser, place: str) -> None:
    browser.run(f"location.hash = {json.dumps(place)}")
    browser.until("document.querySelector('main .page .card, main form')")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_complains_of_nothing(browser, pictures, width, scheme):
    browser.look_like(width, 800, scheme)
    for name, place in PAGES.items():
        show(browser, place)
        assert browser.run("document.documentElement.scrollWidth") <= width, name
        browser.until("document.querySelector('nav .badge')")  # what is wrong is counted on every page
        assert browser.run("document.querySelector('nav .badge').getBoundingClientRect().right") <= width, name
        assert "undefined" not in browser.text() and "NaN" not in browser.text(), name
        browser.screenshot(pictures / f"{name}-{width}-{scheme}.png", whole=name != "all-settings")
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (scheme == "dark")
    assert browser.problems == []


def test_the_overview_shows_where_partitions_are_and_what_is_wrong(browser):
    browser.look_like(1280, 800, "light")
    show(browser, "#/")
    browser.until("document.querySelectorAll('.cell.l').length >= 67")
    text = browser.text()
    assert "WARN" in text and "broker unfence 2" in text and "billing" in text
    places = browser.run("[...document.querySelectorAll('.cell')].map((each) => each.title)")
    assert any(re.fullmatch(r"orders-0, broker \d: leader", place) for place in places)
    assert any(re.fullmatch(r"orders-\d, broker 2: out of sync", place) for place in places)
    assert browser.run("document.querySelectorAll('svg.plot rect.bar').length") == 16
    assert browser.run("document.querySelectorAll('svg.plot polyline').length") == 2


def test_a_page_is_live_without_losing_what_the_user_does(browser):
    show(browser, "#/topics")
    browser.run("document.querySelector('tbody a').focus(); window.kept = document.activeElement")
    browser.run("new Promise((done) => { const feed = new EventSource('/feed'); let n = 0; "
                "feed.addEventListener('look', (event) => { window.told = JSON.parse(event.data);"
                "if (++n === 3) { feed.close(); done(1); } }); })")  # fmt: skip
    assert browser.run("document.activeElement === window.kept && document.contains(window.kept)")
    assert browser.run("document.getElementById('live').textContent") == "live"
    assert browser.run("window.told.verdict") == "WARN"
    assert browser.run("document.querySelector('nav .badge').textContent == window.told.troubleCount")


def test_rows_are_found_by_keyboard_alone_and_their_cost_is_said_first(browser, pictures):
    show(browser, "#/topic?name=orders&tab=rows")
    browser.until("document.querySelector('button') && !document.querySelector('button').disabled")
    assert re.search(r"[\d.]+ (B|KiB) to read: \d+ sections of 6 partitions; budget 16.0 MiB", browser.text())
    browser.run("document.querySelector('input[name=partition]').focus()")
    browser.type("3")
    browser.press("Tab", TAB)
    assert browser.run("document.activeElement.name") == "key"
    browser.type("customer-7")
    browser.until("document.querySelector('.cost').textContent.includes('1 section of 1 partition') "
                  "&& !document.querySelector('button').disabled")  # fmt: skip
    assert browser.run("document.querySelectorAll('.row').length") == 0
    browser.press("Enter", ENTER, "\r")
    browser.until("document.querySelectorAll('.row').length === 1")
    browser.press("Tab", TAB)
    browser.press("Tab", TAB)
    assert browser.run("document.activeElement.tagName") == "SUMMARY"
    browser.press("Enter", ENTER, "\r")
    browser.until("document.querySelector('.row[open] pre')")
    assert '"id": 3007' in browser.text()
    browser.screenshot(pictures / "rows-1280-light.png")


def test_typed_rows_are_a_table_and_found_by_a_column(browser, pictures):
    show(browser, "#/topic?name=sales&tab=rows")
    browser.until("document.querySelector('select[name=column]').options.length === 5")
    assert browser.run("document.querySelector('input[name=key]').closest('label').hidden")
    browser.run("document.querySelector('select[name=column]').value = 'id'")
    browser.run("document.querySelector('input[name=value]').focus()")
    browser.type("3")
    browser.until("document.querySelector('.cost').textContent.includes('of 1 partition') "
                  "&& !document.querySelector('button').disabled")  # fmt: skip
    browser.press("Enter", ENTER, "\r")
    browser.until("document.querySelectorAll('main tbody tr').length === 1")
    heads = browser.run("[...document.querySelectorAll('main thead th')].map((each) => each.textContent)")
    assert heads == ["#", "Offset", "Time (UTC)", "id key", "item", "paid", EVIL]
    cells = browser.run("[...document.querySelectorAll('main tbody td')].slice(3).map((each) => each.innerText)")
    assert [cells[0], cells[2], cells[3]] == ["3", "true", "null"] and EVIL[:40] in cells[1]  # cut, to be opened
    assert browser.run("document.querySelectorAll('main tbody td .null').length") == 1
    browser.screenshot(pictures / "typed-found-1280-light.png")


def test_hostile_bytes_are_text_and_nothing_else(browser, pictures):
    for place in ("#/topic?name=audit.log&tab=rows&partition=0", "#/readers", "#/"):
        show(browser, place)
        if "rows" in place:
            browser.until("!document.querySelector('button').disabled")
            browser.run("document.querySelector('button').click()")
            browser.until("document.querySelectorAll('.row').length === 6")
            browser.run("document.querySelectorAll('.row').forEach((each) => each.open = true)")
            browser.screenshot(pictures / "hostile-1280-light.png")
        browser.until(f"document.body.innerText.includes({json.dumps(EVIL)})")
        assert browser.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
        assert "\u202e" not in browser.text() and browser.run("document.title") != "owned"
    show(browser, "#/ledgers")
    browser.until("document.querySelectorAll('tbody a').length >= 2")
    browser.run("[...document.querySelectorAll('tbody tr')].find((row) => row.innerText.includes('audit.log'))"
                ".querySelector('a').click()")  # fmt: skip
    browser.until("document.body.innerText.includes('creates topic audit.log')")
    assert EVIL in browser.text() and browser.run("document.querySelectorAll('main img, main script').length") == 0
    show(browser, "#/reader?" + "kind=group&name=" + "".join(f"%{byte:02x}" for byte in EVIL.encode()))
    browser.until("document.querySelectorAll('tbody tr').length === 6")
    show(browser, "#/topic?name=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    browser.until("document.body.innerText.includes('It is not there')")
    browser.problems[:] = [problem for problem in browser.problems if "404" not in problem]
    assert browser.problems == []


def test_a_page_of_another_name_or_origin_gets_nothing(link, browser, tmp_path):
    other = Browser(tmp_path / "profile")
    try:
        address = link.split("/enter")[0]
        other.open(link)
        other.until("document.body && document.body.innerText.includes('was used')")
        other.open(address)
        other.until("document.body && document.body.innerText.includes('opens by the link')")
        other.open("data:text/html,<p>another origin</p>")
        other.until("document.body && document.body.innerText.includes('another origin')")
        answer = other.run(
            f"fetch('{address}/api/overview', {{credentials: 'include'}}).then(() => 'read', () => 'refused')"
        )
        assert answer == "refused"
    finally:
        other.close()
