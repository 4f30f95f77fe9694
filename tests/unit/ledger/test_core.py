"""The core step by step, with the answers that a root would give."""

from __future__ import annotations

import errno
import random

import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.goal import GoalKind, Phase
from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.root import Check, Completion, Create, Read, RootState
from spark_replog.ledger.snapshot_files import Marker
from spark_replog.ledger.types import LedgerSettings


class OneRoot:
    """A core over one root whose journal is a list."""

    def __init__(self):
        self.core = LedgerCore(["root 0"], genesis_hash("l"), b"i" * 16, LedgerSettings(), random.Random(1))
        self.records = []

    def reach_ready(self):
        """Begin a write and answer what the core asks until it wants a value."""
        self.core.begin(GoalKind.APPEND, 0.0)
        while True:
            operations = self.core.poll(0.0)
            if self.core.phase is Phase.READY:
                return
            (operation,) = operations
            records = tuple(self.records[operation.position :]) if isinstance(operation, Read) else ()
            assert isinstance(operation, Read | Check)
            self.core.complete(Completion(operation, records, ended=True), 0.0)


@pytest.fixture
def one_root():
    return OneRoot()


def test_a_value_is_open_from_its_first_create_to_its_decision(one_root):
    core = one_root.core
    for index in range(2):
        one_root.reach_ready()
        core.propose(b"value %d" % index)
        assert not core.is_user_open()  # nothing was sent: its caller may be told so
        (create,) = core.poll(0.0)
        assert isinstance(create, Create)
        assert core.is_user_open()
        one_root.records.append(create.data)
        core.complete(Completion(create), 0.0)
        core.advance(0.0)
        assert core.settled == (index, True)
        assert not core.is_user_open()
        core.finish()


def test_an_answer_to_an_operation_that_is_not_out_changes_nothing(one_root):
    core = one_root.core
    one_root.reach_ready()
    core.propose(b"x")
    (create,) = core.poll(0.0)
    twin = Create(create.root, create.position, create.data, create.marker_no)
    core.complete(Completion(twin), 0.0)
    assert core.prefix.length == 0
    assert core.poll(0.0) == []  # still out
    core.complete(Completion(create), 0.0)
    core.complete(Completion(create), 0.0)
    assert core.prefix.length == 1
    assert core.prefix.views[0].next_position == 1


def test_an_answer_that_was_not_taken_for_hours_is_no_look_for_a_marker_of_now(one_root):
    """The call timed out, so nothing takes its late answer before the next call. The journal may be cut by then."""
    core, hours_ms = one_root.core, 3 * 3_600_000.0
    core.begin(GoalKind.READ, 0.0)
    (check,) = core.poll(0.0)
    core.complete(Completion(check), 0.0)
    (read,) = core.poll(0.0)
    assert read.checks_marker
    core.finish()
    core.begin(GoalKind.READ, hours_ms)
    assert core.poll(hours_ms) == []
    core.complete(Completion(read, ended=True), hours_ms)
    (again,) = core.poll(hours_ms)
    assert again.checks_marker


def test_a_root_that_fails_is_tried_less_and_less_often_up_to_a_bound():
    settings = LedgerSettings(root_retry_ms=20, root_retry_max_ms=250)
    core = LedgerCore(["root 0"], genesis_hash("l"), b"i" * 16, settings, random.Random(1))
    core.begin(GoalKind.READ, 0.0)
    now_ms, waits_ms = 0.0, []
    for _ in range(1000):
        (operation,) = core.poll(now_ms)
        core.complete(Completion(operation, error=OSError("gone")), now_ms)
        assert core.poll(now_ms) == []
        waits_ms.append(core.progress.wake_at_ms - now_ms)
        now_ms = core.progress.wake_at_ms
    for wait_ms, bound_ms in zip(waits_ms, [20, 40, 80, 160, *[250] * 996], strict=True):
        assert bound_ms / 2 <= wait_ms <= bound_ms
    assert len(set(waits_ms[4:])) > 900  # two processes that failed together part


def test_a_root_that_was_asked_just_now_is_not_reported_as_missing():
    core = LedgerCore(["root 0"], genesis_hash("l"), b"i" * 16, LedgerSettings(), random.Random(1))
    core.begin(GoalKind.READ, 0.0)
    (check,) = core.poll(0.0)
    core.complete(Completion(check), 1.0)
    assert core.poll(1.0) != []
    assert core.missing_roots(100.0) == []
    assert core.missing_roots(60_000.0) == [0]


def refused(number):
    """Return a refusal as a local root raises it."""
    error = ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "the file system refused the write.")
    error.__cause__ = OSError(number, "the reason")
    return error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ENOENT])
def test_a_full_disk_and_a_missing_folder_are_waited_for(number):
    state = RootState()
    for _ in range(3):
        state.note_refusal(CREATE, refused(number), 0.0)
    assert state.refusal is None
    for lasting in (errno.EACCES, errno.EPERM, errno.EROFS):
        state.note_refusal(CREATE, refused(lasting), 0.0)
    assert state.refusal is not None and state.refusal.count == 3
    state.note_refusal(CREATE, refused(number), 0.0)
    assert state.refusal is None


REFUSAL = ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "read-only.")
CHECK, READ, CREATE = Check(0, False), Read(0, 0, 1, 0), Create(0, 0, b"", 0)


@pytest.mark.parametrize(
    ("answers", "count"),
    [
        ([(CHECK, REFUSAL), (CHECK, REFUSAL)], 2),
        ([(CHECK, REFUSAL), (CHECK, None)], 0),
        ([(READ, REFUSAL), (CHECK, None), (READ, REFUSAL)], 2),
        ([(READ, REFUSAL), (CHECK, None), (READ, None)], 0),
        ([(CREATE, REFUSAL), (CHECK, None), (READ, None), (CREATE, REFUSAL)], 2),
        ([(CREATE, REFUSAL), (CREATE, None)], 0),
        ([(CREATE, REFUSAL), (CHECK, OSError("gone"))], 0),
        ([(CREATE, REFUSAL), (CHECK, ReplogError(ErrorCode.REPLOG_ROOT_STALE, "gone."))], 0),
        ([(CREATE, REFUSAL), (READ, REFUSAL), (READ, None)], 0),
    ],
)
def test_a_root_refuses_until_it_does_what_it_refused_or_fails_in_another_way(answers, count):
    state = RootState()
    for now_ms, (operation, error) in enumerate(answers):
        state.note_refusal(operation, error, now_ms)
    assert (0 if state.refusal is None else state.refusal.count) == count
    assert state.refusal is None or state.refusal.since_ms == 0


def test_refusals_of_an_earlier_goal_do_not_end_the_next_one():
    core = LedgerCore(["root 0"], genesis_hash("l"), b"i" * 16, LedgerSettings(quorum_timeout_ms=100), random.Random(1))
    core.begin(GoalKind.APPEND, 0.0)
    now_ms = 0.0
    while not core.is_refused(now_ms):
        for operation in core.poll(now_ms):
            core.complete(Completion(operation, error=REFUSAL), now_ms)
        assert core.is_refused()
        now_ms += 1
    assert now_ms >= 100
    core.finish()
    now_ms += 1000
    core.begin(GoalKind.APPEND, now_ms)
    assert not core.is_refused()
    (operation,) = core.poll(now_ms)
    core.complete(Completion(operation, error=REFUSAL), now_ms)
    assert not core.is_refused(now_ms + 1000)  # one refusal, and then the process stood still


class Journals:
    """The journals of three roots, and what each core has asked of them and not been told."""

    def __init__(self):
        self.records = [[], [], []]
        self.markers = [[], [], []]
        self.now_ms = 0.0

    def core(self, name):
        names = ["root 0", "root 1", "root 2"]
        return LedgerCore(names, genesis_hash("l"), name * 16, LedgerSettings(), random.Random(name[0]))

    def answer(self, core, root):
        """Answer what the core asks of a root, as the root is now; return what that was."""
        core.poll(self.now_ms)
        operation = core.roots[root].busy
        read_records, marker, before = (), None, None
        records, markers = self.records[root], self.markers[root]
        exists = False
        if isinstance(operation, Create):
            exists = operation.position < len(records)
            if not exists:
                records.append(operation.data)
        if isinstance(operation, Read):
            read_records = tuple(records[operation.position :])
            before = records[operation.position - 1] if operation.position else None
        is_look = isinstance(operation, Create) or read_records or getattr(operation, "checks_marker", False)
        if is_look and len(markers) > getattr(operation, "marker_no", 9):
            marker = markers[-1], len(markers)
        answer = Completion(operation, read_records, isinstance(operation, Read), marker, before=before, exists=exists)
        core.complete(answer, self.now_ms)
        core.advance(self.now_ms)
        return operation


def test_a_claim_does_not_count_on_a_root_whose_journal_must_be_read_again():
    """Else an owner that meets a cut in the middle of its claim gives an index that was decided another value."""
    journals = Journals()
    writer, late = journals.core(b"w"), journals.core(b"l")
    late.begin(GoalKind.APPEND, 0.0)
    for root in (0, 1, 1):  # root 1 is empty then; root 0 answers much later, and root 2 not at all
        journals.answer(late, root)
    writer.begin(GoalKind.APPEND, 0.0)
    for root in (0, 1, 2) * 2:
        journals.answer(writer, root)
    assert writer.phase is Phase.READY
    writer.propose(b"zero")
    for root in (0, 1, 2):
        journals.answer(writer, root)
    assert writer.phase is Phase.READY, "claimed on all roots"
    for index in range(3):
        writer.propose(b"value %d" % index)
        for root in (0, 1):  # root 2 gets none of them
            journals.answer(writer, root)
        assert writer.prefix.length == index + 1
        writer.advance(1e6)  # waits for root 2 no longer
        assert writer.phase is Phase.DONE
        writer.begin(GoalKind.APPEND, 0.0)
        while writer.phase is not Phase.READY:
            for root in (0, 1):
                journals.answer(writer, root)
    journals.answer(late, 0)
    assert (late.phase, late.prefix.length) == (Phase.SYNC, 2), "it does not know that value 2 was decided"
    journals.now_ms = 10_000.0  # so it no longer waits for root 2
    asked = [journals.answer(late, root) for root in (0, 1, 0, 2, 2, 0)]
    assert [type(operation) for operation in asked] == [Check, Check, Create, Check, Read, Check]
    assert late.phase is Phase.CLAIM
    journals.markers[0].append(Marker(3, writer.prefix.base_at(1), "snapshot"))
    assert isinstance(journals.answer(late, 0), Read)
    assert [type(journals.answer(late, 2)) for _ in range(3)] == [Check, Read, Create]
    assert late.phase is Phase.CLAIM, "on root 2 only, as far as it knows now"
    assert isinstance(journals.answer(late, 0), Read)
    late.advance(20_000.0)  # waits for root 1 no longer
    assert late.phase is Phase.LEAD
    assert late.proposer.proposal.index == 2
    assert late.proposer.proposal.payload == b"value 2"
