"""``replog explain``: codes and settings, from what the package carries."""

from __future__ import annotations

import pytest

from spark_replog.cli.explain import status_words
from spark_replog.config.registry import CONFIG_KEYS
from spark_replog.errors import ErrorCode
from spark_replog.health.readers import Verdict
from spark_replog.health.store import Fault
from spark_replog.maintenance import scrub
from spark_replog.maintenance.journal_scrub import JournalFault
from spark_replog.maintenance.repair import RootCondition


@pytest.mark.parametrize("word", ["NOT_ENOUGH_REPLICAS", "not_enough_replicas", "[NOT_ENOUGH_REPLICAS]", "19"])
def test_a_code_is_found_by_name_and_number(replog, word):
    answer = replog("explain", word, "-f", "json")
    (item,) = answer.items
    assert answer.exit_code == 0
    assert (item["code"], item["number"], item["kafkaNumber"]) == ("NOT_ENOUGH_REPLICAS", 19, 19)
    assert "min.insync.replicas" in item["meaning"]
    text = replog("explain", word).out
    assert all(word in text for word in item["remedy"].split())


def test_a_number_below_zero_is_a_code_too_and_an_unknown_option_is_none(replog):
    (item,) = replog("explain", "-1", "-f", "json").items
    assert (item["code"], item["number"]) == ("UNKNOWN_SERVER_ERROR", -1)
    answer = replog("explain", "--setings")
    assert answer.exit_code == 2 and "No such option" in answer.err and "--settings" in answer.err
    assert replog("explain", "-x").exit_code == 2


def test_an_own_code_has_no_kafka_number(replog):
    (item,) = replog("explain", "REPLOG_NO_QUORUM", "-f", "json").items
    assert (item["number"], item["kafkaNumber"]) == (1013, None)


def test_each_use_of_a_setting_is_shown(replog):
    (item,) = replog("explain", "kafka.request.timeout.ms", "-f", "json").items
    assert item["setting"] == "request.timeout.ms"
    assert {"producer", "coordinator"} <= {use["usedBy"] for use in item["uses"]}
    (acks,) = replog("explain", "acks", "-f", "json").items
    assert acks["uses"][0]["default"] == "all"
    assert "default: all" in replog("explain", "acks").out.lower()


def test_an_unknown_name_gets_the_nearest_one(replog):
    answer = replog("explain", "lingerms", "linger.ms", "-f", "json")
    assert answer.exit_code == 1
    assert [item["ok"] for item in answer.items] == [False, True]
    assert (answer.items[0]["error"], "linger.ms" in answer.items[0]["message"]) == ("INVALID_REQUEST", True)


def test_without_a_name_all_are_listed(replog):
    codes = replog("explain", "-f", "json").items
    assert {item["code"] for item in codes} == set(ErrorCode.__members__)
    settings = replog("explain", "--settings", "-f", "json").items
    assert len(settings) == len(CONFIG_KEYS)
    assert replog("explain", "--settings", "acks").exit_code == 2


WORDS = {
    *(member.value for kind in (Fault, Verdict, scrub.Fault, JournalFault, RootCondition) for member in kind),
    *("active", "away", "behind"),
}


@pytest.mark.parametrize("word", sorted(WORDS))
def test_each_word_that_commands_print_for_a_state_is_explained(replog, word):
    (item,) = replog("explain", word, "-f", "json").items
    assert item["word"].replace("-", " ") == word.lower().replace("-", " ") and item["meaning"] and item["remedy"]
    shown = " ".join(replog("explain", word).out.split())
    assert item["meaning"] in shown and item["remedy"] in shown


def test_no_word_is_explained_that_nothing_prints():
    assert set(status_words()) == {word.lower().replace(" ", "-") for word in WORDS}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ROOT_STALE"], "REPLOG_ROOT_STALE"),
        (["root_full"], "root-full"),
        (["journal behind"], "behind"),
        (["rootful"], "Did you mean root-full?"),
    ],
)
def test_a_word_is_found_as_it_is_typed(replog, words, expected):
    answer = replog("explain", *words)
    assert expected in answer.out + answer.err
