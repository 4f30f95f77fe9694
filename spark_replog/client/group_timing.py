"""When a member of a group reads it, shows that it lives, and acts in the place of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from spark_replog.clock import SYSTEM_RANDOM
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.daemon_thread import DaemonThread
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import MemberIdentity
from spark_replog.groups.group_notes import Note, NoteKind, NoteName, gatherer
from spark_replog.log.codec.group_records import GroupMetadata
from spark_replog.log.fold.group_state import GroupState
from spark_replog.log.model import GroupRecords

RANK_STEP_MS = 250
"""A member waits this much longer for each note with a lower name before it writes the notes itself."""
RANK_LOOKS = 4
"""Or, if longer, this many times as long as a read of the group takes: on slow storage, others' writes are slow too."""
WAIT_MS_MAX = 1_000
WAIT_SHARE = 8
"""A member that waits for others reads the group again after the time since its last change, divided by this."""
LOOK_STEP_MS = 10
"""Or, if longer, after this much per member: up to 100 members together read the group about 100 times a second."""


class Pace:
    """When a member reads its group again, and how long it waits for others. Only its ``poll`` uses it.

    Attributes:
        looked_ms: when it read the group last; None: it is to read it at the next poll.
        look_at_ms: when it reads it next while it waits; kept across short polls.
        took_ms: how long the last read took.
        changed_ms: when it last saw a change of the group.
        crowd_count: how many members and notes there were.
    """

    def __init__(self, retry_backoff_ms: int) -> None:
        self._retry_backoff_ms = retry_backoff_ms
        self.looked_ms: int | None = None
        self.look_at_ms = 0.0
        self.took_ms = 0
        self.changed_ms = 0
        self.crowd_count = 0
        self._revision = 0
        self._rebalance: tuple[int, int] | None = None
        """The running rebalance: its generation, and when this member saw it first."""

    def is_younger(self, age_ms: int, now_ms: int) -> bool:
        """Return whether the last read of the group is younger than this."""
        return self.looked_ms is not None and now_ms - self.looked_ms < age_ms

    def note(self, group: GroupState | None, now_ms: int) -> None:
        """Note what a read of the group found."""
        self.crowd_count = 0 if group is None else len(group.metadata.members)
        if group is not None and group.revision != self._revision:
            self._revision, self.changed_ms = group.revision, now_ms

    def rebalance_ms(self, generation: int, now_ms: int) -> int:
        """Return how long this member has seen the rebalance of a generation."""
        if self._rebalance is None or self._rebalance[0] != generation:
            self._rebalance = (generation, now_ms)
        return now_ms - self._rebalance[1]

    def rank_ms(self, rank: int) -> int:
        """Return how long a member waits for others, given the number of notes before its own."""
        return rank * max(RANK_STEP_MS, RANK_LOOKS * self.took_ms)

    def pause_ms(self, waited_ms: int, *, is_gatherer: bool) -> float:
        """Return how long to wait before the next read of the group, given how long it has not changed."""
        pause_ms: float = self._retry_backoff_ms
        if not is_gatherer:
            pause_ms = max(pause_ms, waited_ms // WAIT_SHARE, self.crowd_count * LOOK_STEP_MS)
        return min(pause_ms, WAIT_MS_MAX) * SYSTEM_RANDOM.uniform(0.8, 1.2)


class Heartbeats:
    """The thread that shows that a member lives while its application is busy."""

    def __init__(self, beat: Callable[[], None], config: ConsumerConfig) -> None:
        self._beat = beat
        self._interval_ms = min(config.heartbeat_interval_ms, config.session_timeout_ms // 6)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._thread is None:
            self._thread = DaemonThread(self._run, name="replog-heartbeat", stop=self.stop)
            self._thread.start()

    def stop(self) -> None:
        """Begin no further one."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the end of the last one."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_ms * SYSTEM_RANDOM.uniform(0.8, 1.0) / 1000.0):
            self._beat()


class SignsOfLife:
    """The heartbeats in the fold, and when this member's next one is due. Guarded by the membership's lock.

    The gatherer writes one entry per third of the session timeout: its own heartbeat and those in the notes. The others
    write a note per quarter, and write all notes themselves if theirs was not written for half of the timeout, one
    after the other within an eighth. So the fold shows every member at least once in 7/8 of the session timeout,
    whichever member died.
    """

    def __init__(self, coordinator: GroupCoordinator, config: ConsumerConfig) -> None:
        self._coordinator = coordinator
        self._session_ms = config.session_timeout_ms
        self.is_gatherer = False
        self.polled_ms = 0
        """When the application polled last."""
        self._generation = -1
        self._own_beats = -1
        self._shown_ms = 0
        self._turn_ms = 0
        self._asked_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """Begin as a new member."""
        self.is_gatherer, self._generation, self._own_beats = False, -1, -1
        self.shown(now_ms)

    def shown(self, now_ms: int) -> None:
        """Note that this member's heartbeat was decided."""
        self._shown_ms, self._asked_ms = now_ms, None

    def look(self, state: GroupState | None, identity: MemberIdentity) -> None:
        """Read the newest fold."""
        if state is None or state.metadata.member(identity.member_id) is None:
            return
        self.is_gatherer = gatherer(state.metadata) == identity.member_id
        self._generation = state.metadata.generation
        order = [member.member_id for member in state.metadata.members]
        self._turn_ms = self._session_ms // 8 * order.index(identity.member_id) // len(order)
        beats = state.beats.get(identity.member_id, 0)
        if beats != self._own_beats:
            self._own_beats, self._asked_ms = beats, None

    def show(self, group: str, identity: MemberIdentity, now_ms: int, commit: GroupRecords | None) -> None:
        """Send a heartbeat if one is due.

        Args:
            commit: of this member, made before and not written yet: it would be refused after the heartbeat.

        Raises:
            ReplogError: what ``GroupRelay`` raises.
        """
        relay, silent_ms = self._coordinator.relay, now_ms - self._shown_ms
        if self._generation < 0 or silent_ms < self._session_ms // 4:
            return
        if self.is_gatherer and silent_ms < self._session_ms // 3:
            return
        if self._asked_ms is not None:
            if now_ms - self._asked_ms < self._session_ms // 2 + self._turn_ms:
                return
            beats = self._own_beats
            self.look(self._coordinator.group(group), identity)  # an earlier member may have written all notes by now
            if self._own_beats != beats:
                return
        who = MemberIdentity(identity.member_id, identity.instance_id, self._generation)
        note = Note(NoteKind.BEAT, self._coordinator.command(group, who))
        if self.is_gatherer or self._asked_ms is not None:
            self.shown(now_ms)
            relay.write(group, [*([] if commit is None else [Note(NoteKind.COMMIT, commit)]), note])
        else:
            self._shown_ms = self._asked_ms = now_ms
            if relay.send(group, note) is None:
                relay.write(group, [note], ())


def rank_of(names: Sequence[NoteName], note: NoteName) -> int:
    """Return the number of urgent notes with a lower name: their members write first."""
    return sum(name.kind.is_urgent and (name.member, name.number) < (note.member, note.number) for name in names)


def turn_ms(metadata: GroupMetadata, member_id: str) -> int:
    """Return how much later than the gatherer this member acts."""
    if gatherer(metadata) == member_id:
        return 0
    order = [member.member_id for member in metadata.members]
    return (1 + order.index(member_id)) * RANK_STEP_MS if member_id in order else 0
