"""The partitions of one member of a group, or of a consumer that subscribes without one."""

from __future__ import annotations

from collections.abc import Callable

from spark_replog.client.assignors import make_assignors
from spark_replog.client.subscription_state import SubscriptionState, TopicDiscovery
from spark_replog.cluster.cluster import Cluster
from spark_replog.config import ConsumerConfig
from spark_replog.groups.group_rebalance import (
    GroupSubscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.group_records import GroupMetadata

Listener = Callable[[list[TopicPartition]], None]


class GroupAssignment:
    """Keeps the assignment of a subscription, and tells the application of its changes. Only ``poll`` uses it.

    Args:
        on_gets: called with the number of gets that a waiting consumer makes here.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        on_gets: Callable[[float], None],
    ) -> None:
        self._subscription = subscription
        self._discovery = TopicDiscovery(cluster, subscription, config, on_gets)
        self._assignors = make_assignors(config.partition_assignment_strategy)
        self._listeners: tuple[Listener | None, Listener | None, Listener | None] = (None, None, None)
        self._revoked: list[TopicPartition] = []
        self._counts: dict[str, int] = {}
        self._joined_topics: tuple[str, ...] = ()

    @property
    def is_subscribed(self) -> bool:
        """Return whether there is a subscription."""
        return self._subscription.is_subscribed

    @property
    def owned(self) -> list[TopicPartition]:
        """Return the partitions that this member has."""
        return list(self._subscription.positions)

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
        before = set(self._subscription.positions)
        self._subscription.set_assignment(keys)
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
        members = sorted(metadata.members, key=lambda each: (not each.instance_id, each.instance_id or each.member_id))
        wants = {each.member_id: decode_subscription(dict(each.protocols)[metadata.protocol]) for each in members}
        topics = {topic for each in wants.values() for topic in each.topics}
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
        self._subscription.set_assignment(keys)
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
        self._subscription.set_assignment(())

    def _call_listener(self, number: int, keys: list[TopicPartition]) -> None:
        listener = self._listeners[number]
        if listener is not None and keys:
            listener(keys)
