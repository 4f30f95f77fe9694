"""``replog status``: one page, its exit code, and what it costs."""

from __future__ import annotations

import pytest

from spark_replog import Consumer, Producer, TopicPartition


@pytest.fixture
def store(tmp_path, replog):
    path = tmp_path / "store"
    assert replog("-s", path, "init", "--brokers", "3", "--no-fsync").exit_code == 0
    assert replog("-s", path, "topic", "create", "orders", "-p", 2).exit_code == 0
    with Producer(str(path)) as producer:
        for number in range(3):
            producer.send("orders", b"v%d" % number, partition=0).result(30)
    return path


def test_a_healthy_store_on_one_page(store, replog):
    with Consumer(str(store), group="billing", enable_auto_commit=False) as reader:
        reader.assign([TopicPartition("orders", 0)])
        reader.commit({TopicPartition("orders", 0): 1})
    answer = replog("-s", store, "status")
    assert answer.exit_code == 0
    assert answer.out.startswith("OK  ")
    assert "3 of 3 serve" in answer.out and "all in sync" in answer.out
    assert "worst billing: 2 rows behind" in answer.out
    (item,) = replog("-s", store, "status", "-f", "json").items
    assert item["ok"] and item["verdict"] == "OK" and item["partitions"] >= 2
    assert item["worstLag"]["group"] == "billing" and item["worstLag"]["rows"] == 2
    assert item["lastAppendMs"] > 0 and item["rowsPerSecond"]["15m"] > 0
    assert [broker["state"] for broker in item["brokers"]] == ["ok"] * 3
    listed = replog("-s", store, "topic", "list", "--size", "-f", "json").items
    assert item["bytes"] == sum(topic["bytes"] for topic in listed)


@pytest.mark.parametrize(
    ("fenced", "code", "counts"), [((1,), 3, (0, 0, 2)), ((1, 2), 4, (0, 2, 0)), ((0, 1, 2), 4, (2, 0, 0))]
)
def test_partitions_that_suffer_are_counted_and_named(store, replog, fenced, code, counts):
    for broker in fenced:
        assert replog("-s", store, "broker", "fence", broker, "-y").exit_code == 0
    answer = replog("-s", store, "status", "-f", "json")
    (item,) = answer.items
    assert answer.exit_code == code
    assert (item["offline"], item["underMinIsr"], item["underReplicated"]) == counts
    text = replog("-s", store, "status").out
    assert "orders-0" in text and "orders-1" in text and "unfence" in text
    assert text.count("; also orders-1") == 1, "partitions with one fault and remedy are one line"


def test_a_root_that_is_away_is_a_warning_and_named(store, replog):
    (store / "broker-2").rename(store / "gone")
    answer = replog("-s", store, "status")
    assert answer.exit_code == 3
    assert "2 of 3 serve" in answer.out and "REPLOG_ROOT_STALE" in answer.out


def test_store_info_and_topic_describe_say_what_is_held_and_how_it_grows(store, replog):
    (item,) = replog("-s", store, "store", "info", "-f", "json").items
    (orders,) = [topic for topic in item["sizes"] if topic["topic"] == "orders"]
    assert orders["rows"] == 3 and orders["assignedBytes"] == 3 * orders["bytes"] > 0
    assert orders["bytesByHour"][-1] + orders["bytesByHour"][-2] == orders["bytes"]  # an hour may begin meanwhile
    assert orders["bytesPerDay"] == 24 * orders["bytes"]  # a young topic, at its pace
    assert item["bytes"] >= orders["bytes"] and item["bytesPerDay"] >= orders["bytesPerDay"]
    assert [broker["daysUntilFull"] for broker in item["brokers"]] == [None] * 3  # retention.ms is the default
    text = replog("-s", store, "store", "info").out
    assert "more a day" in text and "FULL IN" in text and "LAST 24 HOURS" in text
    replog("-s", store, "topic", "config", "orders", "set", "retention.ms=-1")
    (item,) = replog("-s", store, "store", "info", "-f", "json").items
    assert all(broker["daysUntilFull"] > 0 for broker in item["brokers"])
    text = replog("-s", store, "topic", "describe", "orders", "--size").out
    assert "no end" in text and "BYTES A ROW" in text
    (described,) = replog("-s", store, "topic", "describe", "orders", "--size", "-f", "json").items
    assert described["bytesPerDay"] == orders["bytesPerDay"] and len(described["partitions"]) == 2


def test_store_info_tells_requests_and_the_price_of_a_month(store, replog, tmp_path):
    (item,) = replog("-s", store, "store", "info", "--cost", "-f", "json").items
    (orders,) = [topic for topic in item["cost"]["topics"] if topic["topic"] == "orders"]
    assert orders["createsPerDay"] > 0 and orders["getsPerDay"] > 86_400
    assert item["cost"]["month"] == 0 and item["cost"]["currency"] == "USD"  # disks
    ours = tmp_path / "ours.toml"
    ours.write_text('currency = "EUR"\nas_of = "today"\n[file]\nget = 1.0\n')
    words = ("-s", store, "store", "info", "--prices", ours, "--readers", "2", "--look", "PT1M")
    (item,) = replog(*words, "-f", "json").items
    assert item["cost"]["month"] >= 30 * 2 * 1440 * 3 / 1000
    text = replog(*words).out
    assert "EUR a month at this pace" in text and "check yours" in text and "CREATES A DAY" in text
    ours.write_text("[file]\nget = -1\n")
    assert replog(*words).exit_code == 2
    assert replog("-s", store, "store", "info", "--cost", "--look", "PT0S").exit_code == 2


def test_a_group_that_has_stopped_or_loses_rows_is_in_the_status_and_its_exit_code(store, replog):
    def status(*words):
        answer = replog("-s", store, "status", "-f", "json", *words)
        (item,) = answer.items
        return answer.exit_code, item["verdict"], {row["reader"]: row["verdict"] for row in item["readers"]}

    first = TopicPartition("orders", 0)
    for group, at in (("done", 3), ("dead", 1)):
        with Consumer(str(store), group=group, enable_auto_commit=False) as reader:
            reader.assign([first])
            reader.commit({first: at})
    assert status() == (0, "OK", {}), "behind for a moment only"
    assert status("--after", "PT0.001S") == (4, "CRITICAL", {"dead": "STOPPED"}), "one that is not behind is no fault"
    assert status("--max-lag", "PT0.001S")[:2] == (3, "WARN")
    text = replog("-s", store, "status", "--after", "PT0.001S").out
    assert "STOPPED  dead" in text and "is not being read" in text
    assert f"-> start it; or, if it is no longer needed: replog -s {store} group delete dead" in text
    assert replog("-s", store, "topic", "trim", "orders", "--partition", 0, "--to", 2, "-y").exit_code == 0
    assert status() == (4, "CRITICAL", {"dead": "LOSING"})
    text = replog("-s", store, "status").out
    assert "topic config orders set retention.ms=-1" in text
    remedy = f"replog -s {store} group reset-offsets dead --topic orders:0 --to-earliest --execute"
    assert remedy in text
    assert replog(*remedy.split()[1:]).exit_code == 0
    assert status() == (0, "OK", {}), "a remedy helps when it is typed"
    assert replog("-s", store, "group", "delete", "dead", "-y").exit_code == 0
    assert status() == (0, "OK", {})


def test_a_folder_without_a_checkpoint_is_a_warning_and_not_nothing(store, replog, tmp_path):
    answer = replog("-s", store, "status", "--checkpoint", tmp_path / "typo")
    assert answer.exit_code == 3 and answer.out.startswith("WARN  ")
    assert f"checkpoint {tmp_path / 'typo'} cannot be read: " in answer.out
