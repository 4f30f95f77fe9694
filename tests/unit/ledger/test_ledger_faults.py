"""The real shell on local roots: lost answers, roots away, zombie owners, damaged records."""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
    UnsupportedFormatError,
)
from spark_replog.ledger import ledger, shell_io
from spark_replog.ledger.record import (
    RECORD_GET_BYTES,
    Epoch,
    LastKnown,
    RecordKind,
    decode_record,
    encode_record,
)
from spark_replog.ledger.types import LedgerSettings
from spark_replog.storage.paths import journal_folder, out_key
from tests.faulty_store import Fault
from tests.manual_clock import ManualClock
from tests.unit.ledger.conftest import FAST, HASTY, LEDGER_ID, UNHURRIED, Store
from tests.unit.ledger.test_record import with_crc
from tests.waiting import wait_until


@pytest.mark.parametrize("root_count", [1, 3, 5])
def test_two_owners_fight_and_every_command_is_applied_once(make_store, root_count):
    store = make_store(root_count)
    processes = [store.process(), store.process()]
    failures = []

    def write(process, name):
        try:
            for number in range(15):
                outcome = process.append(b"%s %d" % (name, number), timeout_ms=30_000)
                assert outcome.result == "applied"
        except BaseException as error:  # shown by the assertion below
            failures.append(error)

    threads = [
        threading.Thread(target=write, args=(process, b"p%d t%d" % (number, thread)))
        for number, process in enumerate(processes)
        for thread in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    commands = processes[0].commands()
    assert len(commands) == len(set(commands)) == 60
    assert processes[1].commands() == commands == store.process().commands()


def test_group_commit_shares_entries(make_store):
    process = make_store(3).process()
    process.append(b"warm")
    for faulty in process.faulty:
        faulty.fail_next("create", Fault.STALL, times=1)
    threads = [threading.Thread(target=process.append, args=(b"command %d" % n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(process.commands()) == 21
    assert process.ledger.state.applied_index + 1 < 15


def test_callers_that_wait_for_each_other_in_the_queue_share_one_entry(make_store):
    process, count = make_store(3).process(), 20
    process.append(b"warm")
    together = threading.Barrier(count)
    before = process.ledger.state.applied_index

    def append(number: int) -> int:
        command = b"command %d" % number
        outcome = process.ledger.append(lambda _: command, timeout_ms=60_000, when_queued=lambda: together.wait(60))
        return outcome.index

    with ThreadPoolExecutor(count) as pool:
        assert set(pool.map(append, range(count))) == {before + 1}
    assert len(process.commands()) == 1 + count


@pytest.mark.parametrize("root_count", [1, 3])
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.FAIL_BEFORE])
def test_lost_answer_of_every_create_applies_once(make_store, root_count, fault):
    store = make_store(root_count)
    process = store.process()
    for number in range(6):
        for faulty in process.faulty:
            # More often than the retrying store repeats within its deadline.
            faulty.fail_next("create", fault, times=3)
        assert process.append(b"command %d" % number).result == "applied"
    assert store.process().commands() == [b"command %d" % number for number in range(6)]


@pytest.mark.parametrize("root_count", [3, 5])
def test_minority_away_and_back_is_backfilled(make_store, root_count):
    store = make_store(root_count)
    process = store.process()
    process.append(b"before")
    store.take_away(1)
    for number in range(5):
        assert process.append(b"while away %d" % number).result == "applied"
    assert len(store.process().commands()) == 6
    store.bring_back(1)
    for number in range(12):
        process.append(b"after %d" % number)
    survivor = store.process()
    store.take_away(0)  # the returned root must now carry what it missed
    assert len(survivor.commands()) == 18
    assert len(survivor.append(b"last").result) > 0


def test_root_that_was_away_when_the_ledger_was_made_gets_its_folder(make_store):
    store = make_store(3)
    (store.root_path(2) / journal_folder(LEDGER_ID)).rmdir()
    process = store.process()
    folder = store.root_path(2) / journal_folder(LEDGER_ID)
    for number in range(500):
        process.append(b"command %d" % number)
        if folder.exists() and store.journal(2):
            return
    pytest.fail("the root was never used again")


@pytest.mark.guarantee("G4")
def test_emptied_root_is_out(make_store):
    store = make_store(3)
    process = store.process()
    process.append(b"before")
    store.empty(0)
    for number in range(3):
        process.append(b"after %d" % number)
    assert list(store.root_path(0).iterdir()) == []  # never again an acceptor
    assert len(store.process().commands()) == 4
    store.take_away(1)
    with pytest.raises(RetriableError) as caught:
        store.process(HASTY).ledger.refresh()
    assert caught.value.code is ErrorCode.REPLOG_NO_QUORUM
    with pytest.raises(OutcomeUnknownError, match="broker 0"):
        process.append(b"on root 2 alone", timeout_ms=200)
    with pytest.raises(RetriableError, match="REPLOG_NO_QUORUM"):
        store.process(HASTY).append(b"never sent", timeout_ms=200)


def test_with_one_root_out_a_slow_one_makes_the_outcome_unknown_and_a_repeated_call_finds_it(make_store):
    store = make_store(3)
    process = store.process()
    process.append(b"before")
    store.empty(0)
    process.append(b"after")
    slow, released = process.faulty[1], threading.Event()
    create = slow.create
    slow.create = lambda *arguments, **more: released.wait(60) and create(*arguments, **more)
    with pytest.raises(OutcomeUnknownError):
        process.append(b"slow", timeout_ms=200)
    released.set()
    process.append(b"slow")
    assert store.process().commands() == [b"before", b"after", b"slow"]


def test_no_quorum_names_the_roots(make_store):
    store = make_store(3)
    process = store.process(HASTY)
    process.append(b"before")
    store.take_away(0)
    store.take_away(2)
    with pytest.raises(RetriableError, match="REPLOG_NO_QUORUM") as caught:
        process.ledger.refresh()
    assert "broker 0" in str(caught.value)
    assert "broker 2" in str(caught.value)
    assert "broker 1 " not in str(caught.value)
    store.bring_back(0)
    assert process.commands() == [b"before"]
    assert process.append(b"after").result == "applied"


class Refusing:
    """Lets a verb of a root refuse keys of journals, `REFUSALS_MAX` times at most, so that no test waits for ever.

    `after` is called with the number of refusals so far.
    """

    def __init__(self, faulty, verb, kind=ReplogError, after=lambda count: None):
        self.count, self._call = 0, getattr(faulty, verb)
        self._kind, self._after = kind, after
        setattr(faulty, verb, self)

    def __call__(self, key, *arguments, **more):
        if self._kind is None or "/journal/" not in key or self.count == REFUSALS_MAX:
            return self._call(key, *arguments, **more)
        self.count += 1
        self._after(self.count)
        raise self._kind(ErrorCode.REPLOG_STORE_REFUSED, f"refusal {self.count}.", key=key)

    def allow(self):
        self._kind = None


REFUSED = replace(FAST, quorum_timeout_ms=300)
LONG_MS, REFUSALS_MAX = 600_000, 1_000


@pytest.mark.parametrize("refusing", [(0, 2), (0, 1, 2)])
def test_a_write_that_a_majority_refuses_ends_before_its_timeout(make_store, refusing):
    store = make_store(3)
    store.process().append(b"before")
    process = store.process(REFUSED)
    roots = [Refusing(process.faulty[number], "create") for number in refusing]
    with pytest.raises(ReplogError, match="REPLOG_STORE_REFUSED") as caught:
        process.append(b"refused", timeout_ms=LONG_MS)
    assert type(caught.value) is ReplogError  # no caller repeats it
    assert [number for number in refusing if f"broker {number} (" not in str(caught.value)] == []
    assert str(caught.value).count("refusal ") == len(refusing)
    assert min(root.count for root in roots) > 1
    for root in roots:
        root.allow()
    assert process.append(b"after").result == "applied"
    assert store.process().commands() == [b"before", b"after"]


@pytest.mark.parametrize("verb", ["create", "get"])
def test_writes_that_waited_together_are_refused_together(make_store, verb):
    """Not one after the other, each after a wait of its own: the text of each names the refusals of one moment."""
    store = make_store(3)
    process = store.process(REFUSED)
    for number in range(4):  # now it appends without reading or claiming first
        process.append(b"%d" % number)
    roots = [Refusing(faulty, verb, ReplogError if verb == "create" else RetriableError) for faulty in process.faulty]
    if verb == "get":  # nothing is sent: the next write begins with a look
        with pytest.raises(RetriableError, match="REPLOG_STORE_REFUSED"):
            process.ledger.refresh()
    start = threading.Barrier(12)

    def write(number):
        start.wait(60)
        return process.append(b"x%d" % number, timeout_ms=LONG_MS)

    with ThreadPoolExecutor(12) as pool:
        errors = [future.exception(60) for future in [pool.submit(write, number) for number in range(12)]]
    assert all("REPLOG_STORE_REFUSED" in str(error) for error in errors), errors
    assert len(set(map(str, errors))) <= 4
    assert {type(error) for error in errors} == ({ReplogError} if verb == "get" else {ReplogError, OutcomeUnknownError})
    for root in roots:
        root.allow()
    assert process.append(b"after").result == "applied"
    assert set(store.process().commands()) >= {b"0", b"1", b"2", b"3", b"after"}


def test_a_write_waits_for_a_root_that_is_away_while_another_refuses(make_store):
    store = make_store(3)
    store.process().append(b"before")
    process, began = store.process(REFUSED), []
    store.take_away(1)

    def come_back(count):
        began.append(time.monotonic())
        if len(began) > 10 and began[-1] - began[0] > 1.0 and not store.root_path(1).exists():
            store.bring_back(1)

    root = Refusing(process.faulty[0], "create", after=come_back)
    assert process.append(b"waited", timeout_ms=LONG_MS).result == "applied"
    assert root.count > 10
    assert store.process().commands() == [b"before", b"waited"]


@pytest.mark.parametrize("root_count", [1, 3])
def test_an_entry_that_was_sent_and_that_a_majority_refuses_may_still_be_decided(make_store, root_count):
    store = make_store(root_count)
    process = store.process(REFUSED)
    for number in range(4):  # now it appends without reading or claiming first
        process.append(b"%d" % number)
    roots = [Refusing(faulty, "create") for faulty in process.faulty[: root_count // 2 + 1]]
    with pytest.raises(OutcomeUnknownError, match=r"REPLOG_STORE_REFUSED.*refusal"):
        process.append(b"sent", timeout_ms=LONG_MS)
    for root in roots:
        root.allow()
    process.append(b"sent")
    assert store.process().commands()[4:] == [b"sent"]


def test_a_read_that_a_majority_refuses_names_the_refusals_and_may_be_repeated(make_store):
    store = make_store(3)
    store.process().append(b"before")
    process = store.process(HASTY)
    roots = [Refusing(faulty, "get", RetriableError) for faulty in process.faulty[:2]]
    with pytest.raises(RetriableError, match=r"REPLOG_STORE_REFUSED.*refusal"):
        process.ledger.refresh()
    with pytest.raises(ReplogError, match=r"REPLOG_STORE_REFUSED.*refusal"):
        process.append(b"refused", timeout_ms=LONG_MS)
    for root in roots:
        root.allow()
    assert process.commands() == [b"before"]


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_command_that_was_never_sent_is_not_sent_by_a_later_call(make_store, root_count):
    """Its caller was told that nothing was decided."""
    store = make_store(root_count)
    process = store.process(replace(REFUSED, tail_retry_ms=0))
    for number in range(4):  # now it appends without reading or claiming first
        process.append(b"%d" % number)
    roots = [Refusing(faulty, "get", RetriableError) for faulty in process.faulty]
    with pytest.raises(RetriableError, match="REPLOG_STORE_REFUSED"):
        process.ledger.refresh()
    with pytest.raises(ReplogError, match=r"REPLOG_STORE_REFUSED.*nothing was decided"):
        process.append(b"never sent", timeout_ms=LONG_MS)
    for root in roots:
        root.allow()
    assert process.append(b"later").result == "applied"
    assert store.process().commands() == [b"0", b"1", b"2", b"3", b"later"]


def test_a_root_without_a_new_thread_is_asked_again(make_store, monkeypatch):
    store = make_store(3)
    writer = store.process()
    writer.append(b"before")
    process, failed, post_to = store.process(), [], shell_io.IO_POOL.post_to

    def post(lane, function, operation):
        if operation.root == 1 and not failed:
            failed.append(operation)
            raise RuntimeError("can't start new thread")
        post_to(lane, function, operation)

    monkeypatch.setattr(shell_io.IO_POOL, "post_to", post)
    store.take_away(2)  # so the other two are needed
    assert process.commands() == [b"before"] and failed
    assert process.append(b"after").result == "applied"


def test_a_process_that_stood_still_gives_its_roots_the_time_to_answer(make_store):
    store = make_store(3)
    wanted = fill(store)
    clock = ManualClock()
    stopped = store.process(replace(FAST, quorum_timeout_ms=400), clock=clock)
    all_asked = threading.Barrier(3, action=lambda: clock.sleep_ms(60_000))
    stood_still, listed = set(), threading.Barrier(6)

    def stand_still(counting):
        get, list_keys = counting.get, counting.list_keys

        def wrapped(key, **how):
            if "/journal/" in key and counting not in stood_still:
                stood_still.add(counting)
                listed.wait(60)  # else a listing that begins later counts as an answer
                all_asked.wait(60)
                time.sleep(0.6)  # whoever waits for an answer wakes up before there is one
            return get(key, **how)

        counting.get = wrapped
        counting.list_keys = lambda *args, **how: (list(list_keys(*args, **how)), listed.wait(60))[0]

    for counting in stopped.counting:
        stand_still(counting)
    assert stopped.commands() == wanted
    assert clock.time_ms == 60_000


def test_a_write_that_never_gets_a_turn_reports_the_other_writers(make_store):
    store = make_store(3)
    process, rival = store.process(), store.process()
    process.append(b"before")
    rivals = []

    def claim_after_the_rival(create):
        def wrapped(key, data, **how):
            rivals.append(b"rival %d" % len(rivals))
            rival.append(rivals[-1])
            return create(key, data, **how)

        return wrapped

    rival.append(b"takes the ledger over")
    for counting in process.counting:
        counting.create = claim_after_the_rival(counting.create)
    with pytest.raises(RetriableError) as caught:
        process.append(b"starves", timeout_ms=1_000)
    assert caught.value.code is ErrorCode.REPLOG_LEDGER_BUSY
    assert re.search(r"other writers took the ledger over \d+ times", str(caught.value))
    assert "1000 ms" in str(caught.value)
    assert "Not answering" not in str(caught.value)
    assert b"starves" not in store.process().commands()


def test_a_write_that_waits_for_a_majority_says_once_for_whom(make_store, monkeypatch, caplog):
    store = make_store(3)
    process = store.process()
    process.append(b"before")
    monkeypatch.setattr(ledger, "SILENT_WAIT_MS", 50)
    assert caplog.messages == []
    for root in (0, 1):
        process.faulty[root].is_down = True
    with pytest.raises(ReplogError):
        process.append(b"waits", timeout_ms=500)
    (said,) = caplog.messages
    assert "broker 0 (" in said
    assert "broker 1 (" in said
    assert "broker 2 (" not in said


def test_append_without_majority_is_unknown_and_its_replay_is_found(make_store):
    store = make_store(3)
    process = store.process()
    for number in range(3):
        process.append(b"before %d" % number)
    for root in (0, 1):
        process.faulty[root].is_down = True
    with pytest.raises(OutcomeUnknownError, match="REPLOG_COMMIT_OUTCOME_UNKNOWN"):
        process.append(b"unknown", timeout_ms=200)  # it lies on root 2 by now
    for root in (0, 1):
        process.faulty[root].is_down = False
    # The owner finishes what it began, so the replay has nothing to do.
    assert process.append(b"unknown").index == -1
    assert process.commands().count(b"unknown") == 1
    assert store.process().commands() == process.commands()


def test_successor_finds_the_tail_of_a_dead_owner(make_store):
    store = make_store(3)
    dead = store.process()
    for number in range(3):
        dead.append(b"before %d" % number)
    for root in (0, 1):
        dead.faulty[root].is_down = True
    with pytest.raises(OutcomeUnknownError):
        dead.append(b"tail", timeout_ms=100)
    successor = store.process()
    outcome = successor.append(b"tail")
    assert successor.commands().count(b"tail") == 1
    assert outcome.index in (-1, 3)


@pytest.mark.guarantee("G5")
def test_zombie_owner_is_fenced_and_folds_its_successor(make_store):
    store = make_store(3)
    zombie, owner = store.process(), store.process()
    for number in range(3):
        zombie.append(b"zombie %d" % number)  # skips the look before its next one
    owner.append(b"owner")
    outcome = zombie.append(b"late")
    assert outcome.result == "applied"
    assert zombie.ledger.state.commands == [b"zombie 0", b"zombie 1", b"zombie 2", b"owner", b"late"]
    assert zombie.ledger.stats.claims == 2


def test_tail_that_cannot_be_judged_is_decided_by_a_writer(make_store):
    store = make_store(3)
    owner = store.process()
    for number in range(3):
        owner.append(b"before %d" % number)
    owner.faulty[2].is_down = True
    owner.append(b"on 0 and 1")
    store.take_away(0)  # root 1 alone shows it: one of two
    reader = store.process()
    assert reader.commands()[-1] == b"on 0 and 1"
    assert reader.ledger.stats.claims == 1


def test_read_only_process_answers_its_floor_and_says_so(make_store, caplog):
    store = make_store(3)
    owner = store.process()
    for number in range(3):
        owner.append(b"before %d" % number)
    owner.faulty[2].is_down = True
    reader = store.process(replace(FAST, read_only=True))
    assert len(reader.commands()) == 3
    owner.append(b"on 0 and 1")
    store.take_away(0)
    with caplog.at_level(logging.WARNING):
        assert len(reader.commands()) == 3
    assert "REPLOG_TAIL_UNDECIDED" in caplog.text
    assert reader.creates() == 0
    store.bring_back(0)
    assert len(reader.commands()) == 4


def test_a_process_without_the_right_to_write_answers_its_floor_and_says_so(make_store, caplog):
    store = make_store(3)
    owner = store.process()
    for number in range(3):
        owner.append(b"before %d" % number)
    owner.faulty[2].is_down = True
    reader = store.process(replace(FAST, quorum_timeout_ms=LONG_MS))
    refusing = [Refusing(root, "create") for root in reader.faulty]
    owner.append(b"on 0 and 1")
    store.take_away(0)
    with caplog.at_level(logging.WARNING):
        assert len(reader.commands()) == 3
        assert len(reader.commands()) == 3
    assert caplog.text.count("REPLOG_TAIL_UNDECIDED") == 2 and reader.ledger.is_tail_unclear
    assert 0 < max(root.count for root in refusing) <= 6
    with pytest.raises(ReplogError, match=r"REPLOG_STORE_REFUSED|REPLOG_NO_QUORUM"):
        reader.append(b"refused", timeout_ms=1000)
    store.bring_back(0)
    assert len(reader.commands()) == 4 and not reader.ledger.is_tail_unclear


def test_given_floor_is_waited_for(make_store, caplog):
    store = make_store(3)
    writer, reader = store.process(), store.process(replace(FAST, tail_retry_ms=60_000))
    writer.append(b"a")
    timer = threading.Timer(0.05, lambda: writer.append(b"b"))
    timer.start()
    state = reader.ledger.refresh_until(lambda state: len(state.commands) == 2)
    timer.join()
    assert len(state.commands) == 2
    with caplog.at_level(logging.WARNING):
        store.process().ledger.refresh_until(lambda state: len(state.commands) == 3)
    assert "REPLOG_TAIL_UNDECIDED" in caplog.text


def test_damaged_record_is_read_from_the_majority(make_store):
    store = make_store(3)
    writer = store.process()
    for number in range(4):
        writer.append(b"command %d" % number)
    path = store.journal(1)[2]
    body = bytearray(path.read_bytes())
    body[40] ^= 1
    path.write_bytes(body)
    reader = store.process()
    assert len(reader.commands()) == 4
    store.journal(0)[2].write_bytes(b"cut")
    with pytest.raises(CorruptDataError) as caught:
        store.process().ledger.refresh()
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    for root in (0, 1):
        assert f"position 2 of broker {root} " in str(caught.value)


def test_one_root_with_a_damaged_record_says_so(make_store):
    store = make_store(1)
    store.process().append(b"a")
    path = store.journal(0)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptDataError, match="position 0"):
        store.process().ledger.refresh()


def test_record_of_a_newer_release_is_refused(make_store):
    store = make_store(3)
    store.process().append(b"a")
    path = store.journal(0)[1]
    record = decode_record(path.read_bytes(), root="r", position=1)
    other = store.journal(1)[1]
    import spark_replog.ledger.record as module

    version, module.VERSION = module.VERSION, 2
    try:
        body = encode_record(record)
    finally:
        module.VERSION = version
    path.write_bytes(body)
    assert store.process().commands() == [b"a"]  # as if that root were away
    other.write_bytes(body)
    with pytest.raises(UnsupportedFormatError, match="UNSUPPORTED_VERSION"):
        store.process().ledger.refresh()


def test_journal_of_another_ledger_breaks_the_chain(make_store):
    store = make_store(1)
    store.process().append(b"a")
    ledgers = store.root_path(0) / "ledgers"
    other = ledgers / ("f" * 32)
    process = store.process()
    process.ledger.ledger_id = "f" * 32
    next(ledgers.iterdir()).rename(other)
    process.ledger._start_process()
    with pytest.raises(CorruptDataError, match="chain"):
        process.ledger.refresh()


def fill(store, count=8):
    """Append by two owners in turn, so that journals hold claims and entries."""
    processes = [store.process(), store.process()]
    for number in range(count):
        processes[number // 2 % 2].append(b"command %d" % number)
    return [b"command %d" % number for number in range(count)]


def test_one_root_with_another_ledgers_journal_stops_nothing_and_is_named(make_store, tmp_path, caplog):
    store = make_store(3)
    commands = fill(store)
    (tmp_path / "other").mkdir()
    other = Store(tmp_path / "other", 3, ledger_id="f" * 32)
    fill(other, 20)
    for path in store.journal(1):
        path.unlink()
    for path in other.journal(1):
        path.rename(store.root_path(1) / journal_folder(LEDGER_ID) / path.name)
    process = store.process()
    assert process.commands() == commands
    assert process.append(b"next").result == "applied"
    assert store.process().commands() == [*commands, b"next"]
    for number in range(200):  # the first error may be a transfer's
        if logged := [message for message in caplog.messages if "chain" in message]:
            break
        process.append(b"more %d" % number)
    assert "broker 1 (" in logged[0]
    for root in (0, 2):
        assert not (store.root_path(root) / out_key(LEDGER_ID)).exists()


def mutated(data, rng):
    """Change one field of a record at random and make its CRC32C right."""
    record = decode_record(data, root="r", position=0)
    field = rng.choice(
        ["epoch", "index", "commit_index", "entry_hash", "last_known", "payload", "kind", "bytes", "cut"]
    )
    if field == "bytes":
        body = bytearray(data[:-4])
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        return with_crc(bytes(body))
    if field == "cut":
        return data[: rng.randrange(len(data))]
    value = {
        "epoch": Epoch(rng.choice([0, record.epoch.round + 1, 1 << 50, (1 << 64) - 1]), rng.randbytes(16)),
        "index": rng.choice([0, record.index + 1, 1 << 40, (1 << 63)]),
        "commit_index": rng.choice([-1, record.index + 1, 1 << 40]),
        "entry_hash": rng.randbytes(16),
        "last_known": tuple(
            LastKnown(rng.choice([-1, 5, 1 << 40, (1 << 63)]), 7) for _ in range(rng.choice([0, 1, 3, 200]))
        ),
        "payload": rng.randbytes(rng.choice([0, 3, 60])),
        "kind": RecordKind(3 - record.kind),
    }[field]
    return encode_record(replace(record, **{field: value}))


def test_damage_with_a_right_crc_on_one_root_stops_nothing(make_store):
    """What a damaged record still says by the rules may count; an error or a lost entry may not come of it."""
    store = make_store(3)
    commands = fill(store)
    rng = random.Random(7)
    for number in range(150):
        path = rng.choice(store.journal(number % 3)[:-2])
        data = path.read_bytes()
        path.write_bytes(mutated(data, rng))
        try:
            process = store.process()
            assert process.commands() == commands
            for root in range(3):
                assert not (store.root_path(root) / out_key(LEDGER_ID)).exists()
        finally:
            path.write_bytes(data)


def test_a_journal_file_of_three_gigabytes_is_not_read_whole(make_store):
    store = make_store(3)
    commands = fill(store)
    with store.journal(0)[3].open("r+b") as file:
        file.truncate(3 << 30)
    process = store.process(LedgerSettings(quorum_timeout_ms=20_000))
    sizes = []
    get = process.counting[0].get
    process.counting[0].get = lambda key, **how: sizes.append((key, how.get("size_bytes"))) or get(key, **how)
    assert process.commands() == commands
    asked = [size_bytes for key, size_bytes in sizes if "/journal/" in key]
    assert asked and all(size_bytes is not None and size_bytes <= RECORD_GET_BYTES for size_bytes in asked)


@pytest.mark.parametrize("root_count", [1, 3])
@pytest.mark.parametrize("missing", [range(5), range(6, 8)], ids=["oldest", "middle"])
def test_missing_journal_files_on_all_roots_are_an_error_not_fewer_entries(make_store, root_count, missing):
    store = make_store(root_count)
    commands = fill(store, 12)
    kept = {path: path.read_bytes() for root in range(root_count) for path in store.journal(root)}
    for root in range(root_count):
        for path in [store.journal(root)[number] for number in missing]:
            path.unlink()
    process = store.process()

    def names_all_roots(call) -> bool:
        """Return whether the error names all roots: one that answers late is named next time."""
        with pytest.raises(CorruptDataError) as caught:
            call()
        assert caught.value.code is ErrorCode.REPLOG_JOURNAL_HOLE
        assert f"position {missing[0]}," in str(caught.value)
        return all(f"broker {root} (" in str(caught.value) for root in range(root_count))

    wait_until(lambda: names_all_roots(process.ledger.refresh), "a read that names all roots")
    wait_until(lambda: names_all_roots(lambda: process.append(b"another one")), "an append that names all roots")
    for path, data in kept.items():
        path.write_bytes(data)
    assert process.commands() == commands
    assert process.append(b"another one").result == "applied"


def test_files_missing_on_one_root_of_three_stop_nothing(make_store):
    store = make_store(3)
    commands = fill(store, 12)
    for path in store.journal(2)[2:4]:
        path.unlink()
    process = store.process()
    assert process.commands() == commands
    assert process.append(b"next").result == "applied"


def test_callers_error_in_propose_reaches_the_caller_alone(make_store):
    process = make_store(3).process()

    def refuse(state):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        process.ledger.append(refuse, timeout_ms=1000)
    assert process.append(b"next").result == "applied"


def test_an_interrupt_of_the_caller_that_drives_leaves_the_others_their_commands(make_store):
    """As Ctrl-C does, which only the main thread gets: a producer's thread in the same process goes on."""
    ledger = make_store(3).process().ledger
    is_asked, asked, outcomes = threading.Event(), [], []

    def append_other():
        is_asked.wait(60)
        outcomes.append(ledger.append(lambda _: b"other", timeout_ms=60_000))

    def interrupted(_):
        asked.append(True)
        is_asked.set()
        if len(asked) > 1:  # again after the claim, together with the other one
            raise KeyboardInterrupt
        other.join(0.2)
        return b"never"

    other = threading.Thread(target=append_other)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        ledger.append(interrupted, timeout_ms=60_000)
    other.join(60)
    assert [outcome.result for outcome in outcomes] == ["applied"]
    assert ledger.state.commands == [b"other"]


def test_a_command_that_goes_first_is_before_those_that_waited_longer(make_store):
    """Else the cut of an election would come after an append of its own ENTRY, and be refused."""
    ledger, is_shared = make_store(3).process().ledger, False
    for number in range(1_000):
        if is_shared:
            break
        may_go_on, order = threading.Event(), [b"%d %s" % (number, role) for role in (b"waits", b"goes first")]
        outcomes = {}

        def drive(_, number=number, may_go_on=may_go_on):
            may_go_on.wait(60)
            return b"%d drives" % number

        def append(command, outcomes=outcomes):
            is_first = command.endswith(b"first")
            outcomes[command] = ledger.append(lambda _: command, timeout_ms=60_000, is_first=is_first)

        threads = [threading.Thread(target=lambda: ledger.append(drive, timeout_ms=60_000))]
        threads += [threading.Thread(target=append, args=(command,)) for command in order]
        for thread in threads:
            thread.start()
            time.sleep(0.005)
        may_go_on.set()
        for thread in threads:
            thread.join()
        is_shared = len({outcome.index for outcome in outcomes.values()}) == 1
    assert is_shared
    assert [command for command in ledger.state.commands if command in order] == order[::-1]
    assert all(outcome.result == "applied" for outcome in outcomes.values())


def test_several_commands_of_one_caller_share_its_entry(make_store):
    process = make_store(3).process()
    outcome = process.ledger.append(lambda state: (b"one", b"two", b"one"), timeout_ms=1000)
    assert outcome.result == "duplicate"  # the last command's
    assert outcome.index == 0
    assert process.commands() == [b"one", b"two"]


def test_root_that_went_back_in_time_is_noticed(make_store):
    store = make_store(3)
    process = store.process()
    for number in range(5):
        process.append(b"command %d" % number)
    for path in store.journal(1)[-3:]:
        path.unlink()
    reader = store.process(HASTY)
    assert len(reader.commands()) == 5
    store.take_away(0)
    with pytest.raises(RetriableError, match="REPLOG_NO_QUORUM") as caught:
        reader.ledger.refresh()
    assert "REPLOG_ROOT_STALE" in str(caught.value)
    assert "position" in str(caught.value)


def test_values_that_every_root_holds_are_not_kept(make_store):
    store = make_store(3)
    process = store.process(UNHURRIED)
    for number in range(50):
        process.append(b"command %d" % number)
    assert len(process.ledger.core.prefix.payloads) <= 2
    reader = store.process(UNHURRIED)
    reader.ledger.refresh()
    assert len(reader.ledger.core.prefix.payloads) <= 2
    store.take_away(2)
    for number in range(5):
        process.append(b"away %d" % number)
    assert len(process.ledger.core.prefix.payloads) >= 5


def take_back_in_time(store, root, record_count):
    """Leave only the first records of a root's journal, as a restored backup would."""
    for path in store.journal(root)[record_count:]:
        path.unlink()


def test_a_root_that_went_back_in_time_is_out_for_everybody(make_store, caplog):
    store = make_store(3)
    process = store.process()
    for number in range(4):
        process.append(b"before %d" % number)
    take_back_in_time(store, 0, 2)
    noticing = store.process()
    out = store.root_path(0) / out_key(LEDGER_ID)
    number = 0
    while not out.exists() and number < 1000:  # a commit waits for no root that is in doubt
        noticing.append(b"after %d" % number)
        number += 1
    said = json.loads(out.read_bytes())
    assert (said["format"], said["version"], said["ledgerId"], said["brokerId"]) == ("replog-out", 1, LEDGER_ID, 0)
    assert said["missingPosition"] >= 2
    # The thread that wrote it says so after it did.
    wait_until(lambda: "REPLOG_ROOT_STALE" in caplog.text, "a warning")
    assert len(store.journal(0)) == 2  # nothing was written behind the gap
    # One that never saw what the root had would count it, were it not told.
    store.take_away(1)
    with pytest.raises(RetriableError, match="went back in time"):
        store.process(HASTY).ledger.refresh()
    store.bring_back(1)
    assert len(store.process().commands()) == 4 + number


def test_an_emptied_root_and_one_that_only_lags_are_not_put_out(make_store):
    store = make_store(3)
    process = store.process()
    process.append(b"before")
    store.take_away(2)
    for number in range(3):
        process.append(b"meanwhile %d" % number)
    store.bring_back(2)
    store.empty(0)
    assert store.process().append(b"after").result == "applied"
    assert list(store.root_path(0).iterdir()) == []
    assert not (store.root_path(2) / out_key(LEDGER_ID)).exists()
    assert len(store.process().commands()) == 5


def test_a_read_only_process_leaves_the_root_as_it_is(make_store):
    store = make_store(3)
    process = store.process()
    for number in range(4):
        process.append(b"before %d" % number)
    take_back_in_time(store, 0, 2)
    reader = store.process(LedgerSettings(quorum_timeout_ms=5000, read_only=True))
    assert len(reader.commands()) == 4
    assert not (store.root_path(0) / out_key(LEDGER_ID)).exists()


def test_a_call_whose_time_ends_while_its_entry_is_made_may_be_decided(make_store):
    """It waits for another caller, who is proposing its command just now."""
    process = make_store(3).process(FAST)
    process.append(b"before")
    process.append(b"owner")
    process.ledger.core.proposer.depose()  # the commands are asked for once more after a claim
    asked, errors, is_over = [], [], threading.Event()

    def wait_for_other() -> None:
        with pytest.raises(OutcomeUnknownError) as error:
            process.ledger.append(lambda _: b"other", timeout_ms=500, is_first=True)
        errors.append(error.value.code)
        is_over.set()

    other = threading.Thread(target=wait_for_other)

    def propose(_: object) -> bytes:
        asked.append(1)
        if len(asked) == 1:
            other.start()
            wait_until(lambda: len(process.ledger._requests.open()) == 2)
        else:
            assert is_over.wait(60)
        return b"mine"

    assert process.ledger.append(propose, timeout_ms=60_000).result == "applied"
    other.join(60)
    assert errors == [ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN] and len(asked) == 2
    assert process.commands() == [b"before", b"owner", b"other", b"mine"]


def test_an_entry_far_above_the_group_commit_size_is_one_record_and_above_the_bound_it_is_refused(
    make_store, monkeypatch
):
    monkeypatch.setattr("spark_replog.ledger.ledger.COMMAND_SIZE_BYTES_MAX", 3_000_000)
    store = make_store(3)
    process = store.process(LedgerSettings())
    process.append(b"x" * 3_000_000)
    records = len(store.journal(1))
    with pytest.raises(ReplogError) as refused:
        process.append(b"y" * 3_000_001)
    assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert len(store.journal(1)) == records
    process.append(b"z")
    assert [len(command) for command in store.process().commands()] == [3_000_000, 1]


def test_large_entries_are_read_and_folded_a_few_at_a_time(make_store):
    store = make_store(1)
    process = store.process()
    for number in range(5):
        process.append(b"%d" % number * 3_000_000)
    reader = store.process()
    sizes = []
    (journal,) = reader.ledger._run.io.readers
    execute = journal.read

    def counted(*arguments):
        completion = execute(*arguments)
        sizes.append(len(completion.records))
        return completion

    journal.read = counted
    journal._clock = ManualClock()  # no get is slow: else they go two at a time
    assert len(reader.commands()) == 5
    assert sizes == [3, 2]
