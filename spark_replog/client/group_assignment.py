"""Which partitions a member of a group reads, or a consumer that subscribes without one.

The assignors run in the leader. They are pure. Source: Kafka's ``RangeAssignor``, ``RoundRobinAssignor``,
``AbstractStickyAssignor``. Racks are ignored: a reader can use any in-sync replica.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from spark_replog.client.subscription_state import SubscriptionState, TopicDiscovery
from spark_replog.cluster.cluster import Cluster
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.groups.group_rebalance import (
    GroupSubscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.group_records import GroupMetadata
from spark_replog.write.serializers import load_class

Listener = Callable[[list[TopicPartition]], None]
Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Mapping[str, int], Mapping[str, GroupSubscription]], Assignment]
"""(topic to partition count, member to subscription, in the order of members) to member to partitions."""


def range_assignor(counts: Mapping[str, int], members: Mapping[str, GroupSubscription]) -> Assignment:
    """Cut each topic into even, contiguous ranges; the first members get one more if it does not divide evenly."""
    assignment: Assignment = {member: [] for member in members}
    for topic in sorted(counts):
        readers = [member for member, wants in members.items() if topic in wants.topics]
        if not readers:
            continue
        share, extra = divmod(counts[topic], len(readers))
        first = 0
        for number, member in enumerate(readers):
            size = share + (number < extra)
            assignment[member] += [TopicPartition(topic, first + step) for step in range(size)]
            first += size
    return assignment


def round_robin_assignor(counts: Mapping[str, int], members: Mapping[str, GroupSubscription]) -> Assignment:
    """Give each partition to the next member in turn that subscribes to its topic."""
    assignment: Assignment = {member: [] for member in members}
    names = list(members)
    topics = {member: set(wants.topics) for member, wants in members.items()}
    turn = 0
    for key in _partitions(counts, members):
        while key.topic not in topics[names[turn % len(names)]]:
            turn += 1
        assignment[names[turn % len(names)]].append(key)
        turn += 1
    return assignment


def sticky_assignor(counts: Mapping[str, int], members: Mapping[str, GroupSubscription]) -> Assignment:
    """Balance first; then let each member keep as many of its partitions as possible."""
    keys = _partitions(counts, members)
    kept = _still_owned(set(keys), members)
    if len({wants.topics for wants in members.values()}) == 1:
        return _sticky_equal(keys, members, kept)
    return _sticky_unequal(keys, members, kept)


def make_assignors(setting: str) -> dict[str, Assignor]:
    """Return the assignors of ``partition.assignment.strategy`` by name, in order of preference.

    A user's class has a ``name`` and ``assign(counts, members)``.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    assignors: dict[str, Assignor] = {}
    for word in (part.strip().removeprefix(_KAFKAS_PACKAGE) for part in setting.split(",")):
        word = _KAFKAS_CLASSES.get(word, word)
        if word in _BY_NAME:
            assignors[word] = _BY_NAME[word]
        elif "." in word:
            custom = load_class("partition.assignment.strategy", word)
            name, assign = getattr(custom, "name", None), getattr(custom, "assign", None)
            if not isinstance(name, str) or not callable(assign):
                raise _unknown(word)
            assignors[name] = assign
        elif word:
            raise _unknown(word)
    if not assignors:
        raise _unknown(setting)
    return assignors


_BY_NAME: Mapping[str, Assignor] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
}


_KAFKAS_PACKAGE = "org.apache.kafka.clients.consumer."
_KAFKAS_CLASSES = {"RangeAssignor": "range", "RoundRobinAssignor": "roundrobin", "StickyAssignor": "sticky"}


def _unknown(word: str) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION,
        f"partition.assignment.strategy names '{word}'. Give {', '.join(_BY_NAME)}, or the module.Class of a class"
        " with name and assign(counts, members).",
    )


def _partitions(counts: Mapping[str, int], members: Mapping[str, GroupSubscription]) -> list[TopicPartition]:
    """Return the partitions that at least one member subscribes to, sorted."""
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    return [TopicPartition(topic, number) for topic in sorted(wanted & set(counts)) for number in range(counts[topic])]


def _still_owned(existing: set[TopicPartition], members: Mapping[str, GroupSubscription]) -> Assignment:
    """Return the partitions that each member owned and may keep; of two owners, the newer generation keeps it."""
    owner: dict[TopicPartition, str] = {}
    disputed: set[TopicPartition] = set()
    for member, wants in members.items():
        for key in wants.owned:
            if key not in existing or key.topic not in wants.topics:
                continue
            rival = owner.get(key)
            if rival is None or members[rival].generation < wants.generation:
                owner[key] = member
                disputed.discard(key)
            elif members[rival].generation == wants.generation:
                disputed.add(key)  # one of the two is wrong; which one is unknown
    return {
        member: [key for key in wants.owned if owner.get(key) == member and key not in disputed]
        for member, wants in members.items()
    }


def _sticky_equal(
    keys: Sequence[TopicPartition], members: Mapping[str, GroupSubscription], kept: Assignment
) -> Assignment:
    """All members subscribe to the same topics: quotas. Source: ``ConstrainedAssignmentBuilder``."""
    least, over = divmod(len(keys), len(members))
    assignment: Assignment = {}
    over_count = 0
    for member in members:
        quota = least
        if over and len(kept[member]) > least and over_count < over:
            quota, over_count = least + 1, over_count + 1
        assignment[member] = kept[member][:quota]
    taken = {key for owned in assignment.values() for key in owned}
    free = deque(key for key in keys if key not in taken)
    below = [member for member in members if len(assignment[member]) < least]
    while free and below:
        for member in below[: len(free)]:
            assignment[member].append(free.popleft())
        below = [member for member in below if len(assignment[member]) < least]
    for member in [candidate for candidate in members if len(assignment[candidate]) == least]:
        if free:
            assignment[member].append(free.popleft())
    return assignment


def _sticky_unequal(
    keys: Sequence[TopicPartition], members: Mapping[str, GroupSubscription], kept: Assignment
) -> Assignment:
    """Subscriptions differ: fill the least loaded member, then move partitions while that improves the balance."""
    assignment = {member: list(kept[member]) for member in members}
    sizes = {member: len(owned) for member, owned in assignment.items()}
    readers: dict[str, list[str]] = {}
    for member, wants in members.items():
        for topic in wants.topics:
            readers.setdefault(topic, []).append(member)
    taken = {key for owned in assignment.values() for key in owned}
    for key in sorted((key for key in keys if key not in taken), key=lambda key: (len(readers[key.topic]), key)):
        target = min(readers[key.topic], key=sizes.__getitem__)
        assignment[target].append(key)
        sizes[target] += 1
    is_moving = True
    while is_moving:  # each move lowers the sum of squares, so it ends
        is_moving = False
        for member in sorted(assignment, key=lambda candidate: -sizes[candidate]):
            is_moving |= _move_one(member, assignment, sizes, readers)
    return assignment


def _move_one(member: str, assignment: Assignment, sizes: dict[str, int], readers: Mapping[str, Sequence[str]]) -> bool:
    """Move one partition to its least loaded subscriber if that improves the balance; return whether one moved."""
    seen: set[str] = set()
    for key in reversed(assignment[member]):
        if key.topic in seen:
            continue
        seen.add(key.topic)
        target = min(readers[key.topic], key=sizes.__getitem__)
        if sizes[target] + 1 < sizes[member]:
            assignment[member].remove(key)
            assignment[target].append(key)
            sizes[member] -= 1
            sizes[target] += 1
            return True
    return False


class GroupAssignment:
    """Keeps the assignment of a subscription, and tells the application of its changes. Only ``poll`` uses it."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        on_gets: Callable[[float], None],
    ) -> None:
        self.subscription = subscription
        self._discovery = TopicDiscovery(cluster, subscription, config, on_gets)
        self._assignors = make_assignors(config.partition_assignment_strategy)
        self._listeners: tuple[Listener | None, Listener | None, Listener | None] = (None, None, None)
        self._revoked: list[TopicPartition] = []
        self._counts: dict[str, int] = {}
        self._joined_topics: tuple[str, ...] = ()

    @property
    def owned(self) -> list[TopicPartition]:
        """Return the partitions that this member has."""
        return list(self.subscription.positions)

    def listen(self, assigned: Listener | None, revoked: Listener | None, lost: Listener | None) -> None:
        """Call these from ``poll`` when partitions are assigned, revoked or lost."""
        self._listeners = (assigned, revoked, lost)
        self.look_again()

    def look_again(self) -> None:
        """Search for the topics and their partitions again."""
        self._discovery.forget()

    def take_revoked(self) -> list[TopicPartition]:
        """Return, once, the partitions that were revoked since the last call."""
        revoked, self._revoked = self._revoked, []
        return revoked

    def assign_all(self) -> None:
        """Without a group: assign all partitions of the topics; refreshed after ``metadata.max.age.ms``."""
        counts = self._discovery.counts()
        if counts == self._counts:
            return
        keys = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        before = set(self.subscription.positions)
        self.subscription.set_assignment(keys)
        self._counts = counts
        self._revoked += sorted(before - set(keys))
        self._call_listener(1, sorted(before - set(keys)))
        self._call_listener(0, sorted(set(keys) - before))

    def protocols(self, owned: tuple[TopicPartition, ...], generation: int) -> tuple[tuple[str, bytes], ...]:
        """Return what a member that joins says of its subscription, for each assignor."""
        self._joined_topics = tuple(sorted(self._discovery.counts()))
        subscription = encode_subscription(GroupSubscription(self._joined_topics, owned, generation))
        return tuple((name, subscription) for name in self._assignors)

    def of_members(self, metadata: GroupMetadata) -> dict[str, bytes]:
        """Return the leader's assignment; members in Kafka's order: static ones by instance, first."""
        members = sorted(metadata.members, key=lambda peer: (not peer.instance_id, peer.instance_id or peer.member_id))
        wants = {member.member_id: decode_subscription(dict(member.protocols)[metadata.protocol]) for member in members}
        topics = {topic for subscription in wants.values() for topic in subscription.topics}
        self._counts = self._discovery.counts_of(topics)
        assigned = self._assignors[metadata.protocol](self._counts, wants)
        return {member: encode_assignment(keys) for member, keys in assigned.items()}

    def wants_others(self) -> bool:
        """Return whether the subscription now matches other topics; checked once per ``metadata.max.age.ms``."""
        return tuple(sorted(self._discovery.counts())) != self._joined_topics

    def has_grown(self) -> bool:
        """Return whether the topics' partition counts, as folded, have changed since the assignment."""
        return bool(self._counts) and self._discovery.counts_of(set(self._counts)) != self._counts

    def forget_counts(self) -> None:
        """Let the next poll assign the partitions again."""
        self._counts = {}

    def adopt(self, keys: tuple[TopicPartition, ...]) -> None:
        """Take the partitions that the leader gave to this member."""
        self.subscription.set_assignment(keys)
        self._call_listener(0, list(keys))

    def tell_revoked(self) -> None:
        """Tell the application that it loses its partitions; it may still commit."""
        self._call_listener(1, self.owned)

    def lose(self, *, is_told: bool = True) -> None:
        """Give up the partitions, which others may have by now: their rows are not returned, and not committed.

        Args:
            is_told: tell the application that they are lost; else that they are revoked.
        """
        keys = self.owned
        self._call_listener(2 if is_told and self._listeners[2] is not None else 1, keys)
        self.give_up(keys)

    def give_up(self, keys: list[TopicPartition]) -> None:
        """Give up partitions of which the application was told."""
        self._revoked += keys
        self.subscription.set_assignment(())

    def _call_listener(self, number: int, keys: list[TopicPartition]) -> None:
        listener = self._listeners[number]
        if listener is not None and keys:
            listener(keys)
