"""Members of groups that come through this gateway: their joins, heartbeats and silence, on the real group coordinator.

All that must survive is in the log of groups: the members, their generation and their assignment. This gateway only
remembers when it heard of whom. So a client may go on at any other gateway, whose first heartbeat of it is written at
once. A gateway reads the log of groups once a look for all its groups, and writes the heartbeats of all its members in
one entry, once per third of a session timeout: what idle members cost does not grow with their number (ADR 46).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.journal_peek import JournalPeek
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.gateway.gateway import Gateway
from spark_replog.groups import group_rebalance
from spark_replog.groups.consumer_protocol import is_kafkas
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import MemberIdentity
from spark_replog.groups.group_notes import Note, NoteKind, awaited_members, gatherer
from spark_replog.groups.group_rebalance import CONSUMER, SilenceWatch, group_error
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, GroupRecord
from spark_replog.log.fold.group_state import GroupState, judge_member
from spark_replog.logs import Once

_LOG = logging.getLogger(__name__)
LOOK_INTERVAL_MS = 1_000
"""How often a gateway with members looks at the log of groups: one get."""
LOOK_AGE_MS_MAX = 5_000
"""A member is not told that all is well by an older look: below Kafka's shortest session timeout."""
WAIT_LOOK_MS_MIN, WAIT_LOOK_MS_MAX, WAIT_SHARE = 20, 500, 8
"""While a client waits, it looks again after the time since the last change, divided by this, within these bounds."""
NOTES_INTERVAL_MS = 3_000
"""How often it lists the notes of members that are no clients of a gateway, if one of its members gathers them."""
GATHER_MS = 20
"""How long the first join or leave of a group waits for others, to be written with them."""
STRIPE_COUNT = 16
"""Writers per principal: commits of one member are written in their order, those of others beside them."""
PROMISES_MAX = 10_000
SETTLED = (GroupPhase.COMPLETING_REBALANCE, GroupPhase.STABLE)


@dataclass(slots=True)
class _Hosted:
    """What this gateway remembers of a member: the times are of its monotonic clock.

    Attributes:
        heard_ms: when it sent a request last.
        written_ms: of the newest heartbeat that the log shows of this gateway.
        waiting_count: its requests that wait for the group: a member that waits lives.
        address: of its client; '': no request of it has told it.
    """

    session_timeout_ms: int
    heard_ms: float
    written_ms: float = -math.inf
    waiting_count: int = 0
    address: str = ""

    def is_alive(self, now_ms: float) -> bool:
        return self.waiting_count > 0 or now_ms - self.heard_ms < self.session_timeout_ms

    def has_news(self) -> bool:
        return self.waiting_count > 0 or self.heard_ms > self.written_ms


class Joined(NamedTuple):
    """A group after a member's join; `replaced`: the member id whose place a static member took, '' for none."""

    metadata: GroupMetadata
    replaced: str


_Wish = tuple[NoteKind, MemberIdentity, tuple[GroupRecord, ...]]


@dataclass(slots=True)
class _Batch:
    """Joins and leaves of one group that are written together."""

    wishes: list[_Wish] = field(default_factory=list)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Stripe:
    """A coordinator for some members of one principal, and the lock that keeps their commits in their order."""

    def __init__(self, cluster: Cluster, principal: str) -> None:
        self.coordinator = GroupCoordinator(cluster, principal=principal)
        self.lock = asyncio.Lock()


class MemberHost:
    """The members of one gateway. Belongs to its event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._coordinator = GroupCoordinator(gateway.cluster)
        self._peek = JournalPeek(gateway.cluster.brokers)
        self._watch = SilenceWatch()
        self._stripes: dict[tuple[str, int], Stripe] = {}
        self._hosted: dict[str, dict[str, _Hosted]] = {}
        self._watched: dict[str, float] = {}
        self._views: dict[str, GroupState | None] = {}
        self._waiters: dict[str, asyncio.Event] = {}
        self._batches: dict[str, _Batch] = {}
        self._writing: dict[str, asyncio.Lock] = {}
        self._promised: dict[str, float] = {}
        self._rebalances: dict[str, tuple[int, float]] = {}
        self._listed_ms: dict[str, float] = {}
        self._looked_ms = self._changed_ms = -math.inf
        self._looking = asyncio.Lock()
        self._asked: set[str] = set()
        self._next_look: asyncio.Task[dict[str, GroupState | None]] | None = None
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = self._is_released = False
        self._failed = Once()
        gateway.on_drain(self.release)

    def stripe(self, principal: str, *names: str) -> Stripe:
        """Return the coordinator that acts for a principal; the same one for the same names."""
        key = principal, crc32("\0".join(names).encode(errors="surrogatepass")) % STRIPE_COUNT
        if key not in self._stripes:
            self._stripes[key] = Stripe(self._gateway.cluster, principal)
        return self._stripes[key]

    # ----------------------------------------------------------------------------------------- requests

    def promise(self, member_id: str, session_timeout_ms: int) -> None:
        """Remember that a client was given this member id and has not joined with it yet."""
        now_ms = self._now_ms()
        for name in [name for name, until_ms in self._promised.items() if until_ms <= now_ms]:
            del self._promised[name]
        while len(self._promised) >= PROMISES_MAX:
            del self._promised[next(iter(self._promised))]
        self._promised[member_id] = now_ms + session_timeout_ms

    async def join(
        self, group: str, member: GroupMember, protocol_type: str, principal: str, *, is_new: bool
    ) -> Joined:
        """Join a group, and wait until its rebalance has ended.

        Args:
            is_new: the client gave no member id.

        Raises:
            FencedError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
            ReplogError: as ``group_rebalance.join``.
        """
        with self._waiting(group, member.member_id, member.session_timeout_ms) as hosted:
            metadata = _metadata(await self.newest(group))
            static = metadata.instance(member.instance_id)
            is_known = metadata.member(member.member_id) is not None or member.member_id in self._promised
            if not is_new and static is None and (member.instance_id or not is_known):
                raise group_error(ErrorCode.UNKNOWN_MEMBER_ID)
            if not is_new and not is_known:
                raise group_error(ErrorCode.FENCED_INSTANCE_ID)
            replaced = static.member_id if static is not None and is_new else ""
            if replaced:
                stripe = self.stripe(principal, group)
                async with stripe.lock:
                    await self._gateway.run(stripe.coordinator.join_group, group, member, protocol_type)
                await self.newest(group)
            metadata = await self._joined(group, member, protocol_type, -1 if replaced else None)
            hosted.written_ms = self._now_ms()
        self._promised.pop(member.member_id, None)
        return Joined(metadata, replaced)

    async def _joined(
        self, group: str, member: GroupMember, protocol_type: str, asked_generation: int | None
    ) -> GroupMetadata:
        """Return the group in whose newest generation a member is.

        Args:
            asked_generation: the group's when the member asked to join; None: it is to ask.
        """
        while True:
            metadata = _metadata(self._views.get(group))
            here, static = metadata.member(member.member_id), metadata.instance(member.instance_id)
            if static is not None and static.member_id != member.member_id:
                raise group_error(ErrorCode.FENCED_INSTANCE_ID)
            is_in = here is not None and here.is_joined
            is_asked = asked_generation is not None and metadata.generation > asked_generation
            if is_in and metadata.phase in SETTLED and is_asked:
                return metadata
            after = group_rebalance.join(metadata, member, 0, protocol_type)
            if metadata.phase in SETTLED and after == metadata:
                return metadata
            if is_in and metadata.phase is GroupPhase.PREPARING_REBALANCE:
                await self._change(group)
                continue
            asked_generation = metadata.generation
            record = GroupRecord(group, GroupMetadata(protocol_type, members=(member,)))
            identity = MemberIdentity(member.member_id, member.instance_id, metadata.generation)
            await self._ask(group, NoteKind.JOIN, identity, (record,))

    async def sync(
        self,
        group: str,
        identity: MemberIdentity,
        check: Callable[[GroupMetadata], None],
        assignments: Mapping[str, bytes],
    ) -> bytes:
        """Give the assignments as the leader, or wait for one's own, and return it.

        Args:
            check: raises if the group is of another type or assignor than the client believes.

        Raises:
            FencedError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID.
            RetriableError: REBALANCE_IN_PROGRESS.
        """
        metadata = await self.judged(group, identity)
        check(metadata)
        member = metadata.member(identity.member_id)
        assert member is not None
        with self._waiting(group, identity.member_id, member.session_timeout_ms):
            while metadata.phase is not GroupPhase.STABLE:
                if metadata.phase is GroupPhase.PREPARING_REBALANCE:
                    raise group_error(ErrorCode.REBALANCE_IN_PROGRESS)
                if metadata.leader == identity.member_id:
                    await self._gateway.run(self._writer(group).sync_group, group, identity, assignments)
                    self._publish(await self._gateway.run(self._read, [group]))
                else:
                    await self._change(group)
                metadata = await self.judged(group, identity, is_settled=False)
        member = metadata.member(identity.member_id)
        assert member is not None
        return member.assignment

    async def beat(self, group: str, identity: MemberIdentity) -> None:
        """Note that a member lives.

        Raises:
            FencedError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID.
            RetriableError: REBALANCE_IN_PROGRESS: it is to join again.
        """
        metadata = await self.judged(group, identity)
        await self.hear(group, identity.member_id)
        if metadata.phase is GroupPhase.PREPARING_REBALANCE:
            raise group_error(ErrorCode.REBALANCE_IN_PROGRESS)

    async def hear(self, group: str, member_id: str, *, is_written: bool = False) -> None:
        """Note that a member has sent a request; `is_written`: with an entry, which counts as its heartbeat."""
        state = self._views.get(group) or await self.newest(group)
        member = _metadata(state).member(member_id)
        if member is not None:
            hosted = self._host(group, member_id, member.session_timeout_ms)
            hosted.heard_ms = self._now_ms()
            if is_written:
                hosted.written_ms = hosted.heard_ms

    def note_address(self, group: str, member_id: str, address: str) -> None:
        """Remember where a member's requests come from, if this gateway hosts it."""
        hosted = self._hosted.get(group, {}).get(member_id)
        if hosted is not None:
            hosted.address = address

    def address(self, group: str, member_id: str) -> str:
        """Return where a member's requests come from; '' if they do not come here. Any thread."""
        hosted = self._hosted.get(group, {}).get(member_id)
        return "" if hosted is None else hosted.address

    async def leave(self, group: str, member_ids: Iterable[str]) -> None:
        """Take members out of a group that it contains."""
        wishes = [self._ask(group, NoteKind.LEAVE, MemberIdentity(member_id)) for member_id in member_ids]
        await asyncio.gather(*wishes)

    def watch(self, group: str, session_timeout_ms: int) -> None:
        """Look for a while whether the members of a group are silent, and take those out that are."""
        self._watched[group] = self._now_ms() + session_timeout_ms + 2 * LOOK_INTERVAL_MS
        self._start()

    def release(self) -> None:
        """Let all clients go that wait for a group: this gateway ends."""
        self._is_released = True
        for waiters in self._waiters.values():
            waiters.set()

    async def judged(self, group: str, identity: MemberIdentity, *, is_settled: bool = True) -> GroupMetadata:
        """Return the group of a member of this generation; a refusal is of its newest fold.

        Args:
            is_settled: look again if this gateway has not read the log of groups for long.

        Raises:
            FencedError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID.
        """
        state = self._views.get(group)
        is_old = is_settled and self._now_ms() - self._looked_ms > LOOK_AGE_MS_MAX
        if is_old or self._judge(state, identity) is not None:
            state = await self.newest(group)
        code = self._judge(state, identity)
        if code is not None:
            raise group_error(code, f"group '{group}'")
        return _metadata(state)

    async def newest(self, group: str) -> GroupState | None:
        """Return a group on the newest fold, without its offsets; None: there is none.

        Calls that come while the ledger is read share the next read.
        """
        self._asked.add(group)
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().create_task(self._look_again())
        return (await asyncio.shield(self._next_look)).get(group)

    # ----------------------------------------------------------------------------------------- internal

    def _now_ms(self) -> float:
        return float(self._gateway.clock.monotonic_ms())

    def _judge(self, state: GroupState | None, identity: MemberIdentity) -> ErrorCode | None:
        if state is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return judge_member(
            state.metadata, identity.member_id, identity.instance_id, max(identity.generation, 0), is_beat=True
        )

    def _host(self, group: str, member_id: str, session_timeout_ms: int) -> _Hosted:
        members = self._hosted.setdefault(group, {})
        if member_id not in members:
            members[member_id] = _Hosted(session_timeout_ms, self._now_ms())
            self._start()
        return members[member_id]

    @contextmanager
    def _waiting(self, group: str, member_id: str, session_timeout_ms: int) -> Iterator[_Hosted]:
        hosted = self._host(group, member_id, session_timeout_ms)
        hosted.waiting_count += 1
        try:
            yield hosted
        finally:
            hosted.waiting_count -= 1
            hosted.heard_ms = self._now_ms()

    async def _change(self, group: str) -> None:
        """Wait for a change of a group."""
        if group not in self._waiters:
            self._waiters[group] = asyncio.Event()
            self._changed_ms = self._now_ms()
            self._wake.set()
            self._start()
        if not self._is_released:
            await self._waiters[group].wait()
        if self._is_released:
            text = "this gateway ends. Ask for the coordinator again: any other gateway goes on."
            raise RetriableError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)

    async def _ask(
        self, group: str, kind: NoteKind, identity: MemberIdentity, records: tuple[GroupRecord, ...] = ()
    ) -> None:
        """Have a join or a leave written with those of other clients; return once that is folded."""
        batch = self._batches.get(group)
        if batch is None:
            batch = self._batches[group] = _Batch()
            self._spawn(self._write(group))
        batch.wishes.append((kind, identity, records))
        await asyncio.shield(batch.done)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, group: str) -> None:
        async with self._writing.setdefault(group, asyncio.Lock()):
            await asyncio.sleep(GATHER_MS / 1000.0)
            batch = self._batches.pop(group)
            try:
                coordinator = self._writer(group)
                self._publish(await self._gateway.run(self._write_wishes, coordinator, group, batch.wishes))
                batch.done.set_result(None)
            except BaseException as error:
                batch.done.set_exception(error)
                batch.done.exception()  # whoever asked may be gone
        if group not in self._batches:
            self._writing.pop(group, None)

    def _write_wishes(
        self, coordinator: GroupCoordinator, group: str, wishes: Iterable[_Wish]
    ) -> dict[str, GroupState | None]:
        notes = [Note(kind, coordinator.command(group, who, records)) for kind, who, records in wishes]
        names = None if _has_others(_metadata(coordinator.folded_members(group))) else ()
        coordinator.relay.write(group, notes, names)
        return self._read([group])

    def _writer(self, group: str) -> GroupCoordinator:
        """Return the coordinator that writes what this gateway decides for a group; no right is checked."""
        return self.stripe(self._gateway.principal, group).coordinator

    def _read(self, groups: Iterable[str]) -> dict[str, GroupState | None]:
        """Return groups as they are folded; reads nothing."""
        return {group: self._coordinator.folded_members(group) for group in groups}

    def _look(self, groups: Iterable[str], peek: JournalPeek | None = None) -> dict[str, GroupState | None]:
        self._coordinator.fold(peek)
        self._looked_ms = self._now_ms()
        return self._read(groups)

    async def _look_again(self) -> dict[str, GroupState | None]:
        async with self._looking:
            self._next_look = None  # who asks from now on needs another one
            groups, self._asked = {*self._asked, *self._kept()}, set()
            views = await self._gateway.run(self._look, groups)
            self._publish(views)
            return views

    def _publish(self, views: Mapping[str, GroupState | None]) -> None:
        """Take over newer views of this gateway's groups, and wake those that wait for a change."""
        for group in views.keys() & self._kept():
            state, before = views[group], self._views.get(group)
            if state is not None and before is not None and state.revision < before.revision:
                continue  # of a slower thread
            self._views[group] = state
            if (0 if state is None else state.revision) != (0 if before is None else before.revision):
                self._changed_ms = self._now_ms()
                waiters = self._waiters.pop(group, None)
                if waiters is not None:
                    waiters.set()

    def _kept(self) -> set[str]:
        return {*self._hosted, *self._watched, *self._waiters}

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        """Look at the groups of this gateway's members, and do what is due, as long as there is one."""
        try:
            while not self._is_released and (groups := self._kept()):
                try:
                    self._publish(await self._gateway.run(self._look, groups, self._peek))
                    await self._tend(groups)
                    self._failed = Once()
                except ReplogError as error:  # nobody can show that it lives while the roots do not answer
                    self._watch.forget()
                    if self._failed.is_first(error.code):
                        _LOG.warning("groups of this gateway wait for the store: %s", error)
                except Exception:
                    _LOG.exception("a look at the groups failed; the next one follows")
                self._forget_others()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_ms() / 1000.0):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            self._forget_others()
            self._is_running = False

    def _forget_others(self) -> None:
        kept = self._kept()
        for memory in (self._views, self._rebalances, self._listed_ms):
            for group in memory.keys() - kept:
                del memory[group]

    def _pause_ms(self) -> float:
        if not self._waiters:
            return LOOK_INTERVAL_MS
        return min(max((self._now_ms() - self._changed_ms) / WAIT_SHARE, WAIT_LOOK_MS_MIN), WAIT_LOOK_MS_MAX)

    async def _tend(self, groups: Iterable[str]) -> None:
        """Write the heartbeats that are due, and take out of their groups who is silent or did not join in time."""
        now_ms = self._now_ms()
        acts: list[Callable[[], object]] = []
        news: dict[tuple[str, str], tuple[_Hosted, int, MemberIdentity]] = {}
        for group in groups:
            hosted, state = self._still_hosted(group, now_ms), self._views.get(group)
            if self._watched.get(group, math.inf) <= now_ms:
                del self._watched[group]
            if state is None:
                continue
            metadata, writer = state.metadata, self._writer(group)
            for member, beats, silent_ms in self._watch.look(state, int(now_ms)):
                if member.member_id not in hosted and silent_ms >= member.session_timeout_ms:
                    acts.append(partial(writer.remove_silent, group, member.member_id, beats))
            if self._is_overdue(group, metadata, now_ms):
                acts.append(partial(writer.drop_absent, group, metadata.generation))
            if hosted and self._is_to_gather(group, metadata, now_ms):
                acts.append(partial(_gather, writer, group, metadata))
            for member_id, at in hosted.items():
                member_now = metadata.member(member_id)
                if member_now is not None and at.has_news():
                    who = MemberIdentity(member_id, member_now.instance_id, metadata.generation)
                    news[group, member_id] = at, state.beats.get(member_id, 0), who
        if any(now_ms - at.written_ms >= at.session_timeout_ms / 3 for at, _, _ in news.values()):
            beats_due = [(group, who) for (group, _), (_, _, who) in news.items()]
            acts.append(partial(self._coordinator.write_beats, beats_due))
        else:
            news = {}
        if not acts:
            return
        results = await asyncio.gather(*map(self._gateway.run, acts), return_exceptions=True)
        self._publish(await self._gateway.run(self._read, groups))
        for (group, member_id), (at, beats, _) in news.items():
            state = self._views.get(group)
            if state is not None and state.beats.get(member_id, 0) > beats:
                at.written_ms = now_ms
        for error in results:
            if isinstance(error, BaseException):
                raise error

    def _still_hosted(self, group: str, now_ms: float) -> Mapping[str, _Hosted]:
        """Return this gateway's members of a group; forget those that are silent or not in it."""
        hosted, metadata = self._hosted.get(group, {}), _metadata(self._views.get(group))
        for member_id, at in list(hosted.items()):
            if not at.is_alive(now_ms) or (at.waiting_count == 0 and metadata.member(member_id) is None):
                del hosted[member_id]
        if not hosted:
            self._hosted.pop(group, None)
        return hosted

    def _is_overdue(self, group: str, metadata: GroupMetadata, now_ms: float) -> bool:
        """Return whether the group's rebalance timed out by this gateway's clock."""
        if metadata.phase is not GroupPhase.PREPARING_REBALANCE:
            self._rebalances.pop(group, None)
            return False
        generation, since_ms = self._rebalances.get(group, (-1, now_ms))
        if generation != metadata.generation:
            self._rebalances[group], since_ms = (metadata.generation, now_ms), now_ms
        return now_ms - since_ms >= max(member.rebalance_timeout_ms for member in metadata.members)

    def _is_to_gather(self, group: str, metadata: GroupMetadata, now_ms: float) -> bool:
        """Return whether to look for notes, which members that are no clients of a gateway leave for the leader."""
        if not _has_others(metadata):
            return False
        is_waited_for = metadata.phase is GroupPhase.PREPARING_REBALANCE and group in self._waiters
        is_due = now_ms - self._listed_ms.get(group, -math.inf) >= NOTES_INTERVAL_MS
        if not is_waited_for and not (is_due and gatherer(metadata) in self._hosted.get(group, {})):
            return False
        self._listed_ms[group] = now_ms
        return True


def _metadata(state: GroupState | None) -> GroupMetadata:
    return GroupMetadata() if state is None else state.metadata


def _has_others(metadata: GroupMetadata) -> bool:
    """Return whether a group has members that are no clients of a gateway."""
    if metadata.protocol_type != CONSUMER:
        return False
    return any(not is_kafkas(data) for member in metadata.members for _, data in member.protocols[:1])


def _gather(coordinator: GroupCoordinator, group: str, metadata: GroupMetadata) -> None:
    """Write the notes that wait; in a rebalance only once all whom it waits for have left theirs."""
    names = coordinator.relay.waiting(group)
    asking = {name.member for name in names if name.kind.is_urgent}
    if names and awaited_members(metadata) <= asking:
        coordinator.relay.write(group, (), names)
