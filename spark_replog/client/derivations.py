"""The derivations of a store: sets them up, lists them, and runs them in the rounds of ``replog coordinator run``.

A derivation is settings of its target topic, so any coordinator finds it, and no process has to remember it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_replog.admin.controller import Controller
from spark_replog.client.derivation import Derivation, Recipe, check_errors_topic, require_bytes, require_typed
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.errors import (
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
    command_line,
    shortened,
)
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.progress_publisher import PUBLISH_INTERVAL_MS, ProgressPublisher
from spark_replog.ids import LedgerId, TopicPartition
from spark_replog.log.avro_columns import columns_of_avro
from spark_replog.log.row_schema import RowSchema

if TYPE_CHECKING:
    from spark_replog.health.store import TopicDescription

_log = logging.getLogger(__name__)
SOURCE_KEY, ERRORS_KEY = "derive.source", "errors.topic"
ROUND_MS = 5_000
"""How long one round gives a derivation that is behind; the next one goes on."""
RETRY_PAUSE_MS = 30_000
"""After a derivation stopped with an error, which is logged each time."""
NOTE = "position of a derivation"
_STOP_CHECK_MS = 100
_KEPT_SETTINGS = ("retention.ms", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
"""Of the source: a new target keeps rows as long, and takes rows of the same times."""


def group_of(target: str) -> str:
    """Return the group under whose name a derivation's position and lag are shown."""
    return f"derive:{target}"


class ShownPosition:
    """Shows a derivation as the offsets of its group; best effort."""

    def __init__(self, cluster: Cluster, target: str) -> None:
        self._clock = cluster.clock
        self._publisher = ProgressPublisher(cluster, group_of(target))
        self._next_ms = 0

    def show(self, job: Derivation, note: str = NOTE, *, at_once: bool = False) -> None:
        """Show how far it is, every few seconds.

        Args:
            note: what it says of itself, such as an error.
        """
        if not job.position.has_begun or not (at_once or self._clock.monotonic_ms() >= self._next_ms):
            return
        source = job.recipe.source
        places = {TopicPartition(source, number): offset for number, (offset, _) in enumerate(job.position.places)}
        self._publisher.remember(places, {source: job.position.source_id}, note)
        self._publisher.flush()
        self._next_ms = self._clock.monotonic_ms() + PUBLISH_INTERVAL_MS


@dataclass(frozen=True, slots=True)
class DerivationStatus:
    """One derivation as its ledgers show it.

    Attributes:
        lag: source offsets that are not derived yet; None: see `problem`.
        bad_count: records that went to the errors topic.
        unreplayed_count: records in the errors topic that were not replayed into this target; None without one.
        problem: why it cannot go on, as far as the ledgers show it.
    """

    target: str
    recipe: Recipe
    positions: tuple[int, ...] = ()
    lag: int | None = None
    bad_count: int = 0
    unreplayed_count: int | None = None
    problem: ReplogError | None = None


class Derivations:
    """Thread-safe, as the controller.

    Args:
        controller: of the store; checks the caller's rights.
    """

    def __init__(self, cluster: Cluster, controller: Controller) -> None:
        self._cluster, self._controller = cluster, controller

    def set_up(
        self,
        source: str,
        target: str,
        *,
        value_format: str = "json",
        value_schema: str = "",
        registry: str = "",
        schema: RowSchema | str | None = None,
        key: Sequence[str] = (),
        partitions: int | None = None,
        errors_topic: str | None = None,
    ) -> Recipe:
        """Make the target and the errors topic where they do not exist, and the derivation. Repeatable.

        Args:
            value_format, value_schema, registry: of the source's values: see `Recipe`.
            schema: of a new target; an existing one must have had these columns. None: those of ``value_schema``.
            partitions: of a new target; None: as many as the source has.
            errors_topic: None: as it is set.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA, INVALID_REQUEST; REPLOG_CONFLICTING_OPTIONS: the target is
                derived from another topic. As ``create_topic``.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the source, or the target if it has no columns.
        """
        read_topic = self._controller.describe_topic(source)
        require_bytes(source, read_topic.schema, "a derivation reads")
        if source in (target, errors_topic) or target == errors_topic:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, "source, target and errors topic are three topics. Name another one."
            )
        kept = {name: read_topic.config[name] for name in _KEPT_SETTINGS if name in read_topic.config}
        recipe = Recipe(source, value_format, value_schema, registry)
        made = self._target(target, recipe, schema, key, partitions or len(read_topic.partitions), kept)
        recipe.decoder(require_typed(target, made.schema), self._cluster.storage_options)
        earlier = made.config.get(SOURCE_KEY)
        if earlier not in (None, source):
            raise InvalidConfigError(
                ErrorCode.REPLOG_CONFLICTING_OPTIONS,
                f"topic '{target}' is derived from '{earlier}'. End that first: "
                f"{command_line(self._cluster.path, 'topic', 'derive', '--stop', target)}",
                topic=target,
            )
        changes: dict[str, str | None] = {SOURCE_KEY: source, "derive.format": value_format}
        changes["derive.value.schema"] = json.dumps(json.loads(value_schema)) if value_schema else None  # one line
        changes["derive.value.registry"] = registry or None
        if errors_topic is not None:
            self._make_errors_topic(errors_topic, made.ledger_id, kept)
            changes[ERRORS_KEY] = errors_topic
        config = self._controller.alter_config(target, changes).config
        return replace(recipe, value_schema=config.get("derive.value.schema", ""), errors_topic=config.get(ERRORS_KEY))

    def _target(
        self,
        name: str,
        recipe: Recipe,
        schema: RowSchema | str | None,
        key: Sequence[str],
        partitions: int,
        kept: dict[str, str],
    ) -> TopicDescription:
        """Return the target, made if it does not exist."""
        try:
            existing = self._controller.describe_topic(name)
        except NotFoundError:
            if schema is None and recipe.value_schema:
                schema = RowSchema.of(columns_of_avro(recipe.value_schema), key)
            if schema is None:
                raise
            recipe.decoder(RowSchema.of(schema, key), self._cluster.storage_options)  # raises before a topic is made
            return self._controller.create_topic(
                name, partitions, config=kept, if_not_exists=True, schema=schema, key=key
            )
        if schema is not None and existing.schema is not None:
            wanted = RowSchema.of(schema, key)
            versions = self._controller.schema_history(name)
            if all((version.ddl, version.key) != (wanted.ddl, wanted.key) for version in versions):
                raise InvalidConfigError(
                    ErrorCode.REPLOG_INVALID_SCHEMA,
                    f"topic '{name}' exists with other columns: {existing.schema.ddl}. Leave --schema and --key out, or"
                    " change its columns with topic schema evolve.",
                    topic=name,
                )
        return existing

    def _make_errors_topic(self, name: str, ledger_id: LedgerId, kept: dict[str, str]) -> None:
        names = self._cluster.cluster_ledger.ask(lambda state: {at: word for word, at in state.ledgers.items()})
        made = self._controller.create_topic(name, config=kept, ledger_name=names[ledger_id], if_not_exists=True)
        check_errors_topic(name, made.schema, made.ledger_id, ledger_id)

    def stop(self, target: str) -> None:
        """End a derivation. Its position and its errors topic stay: set up again, it goes on from there."""
        self._controller.alter_config(target, {SOURCE_KEY: None})
        try:  # else it would show as a reader that lags
            GroupCoordinator(self._cluster).delete_group(group_of(target))
        except ReplogError as error:
            _log.info("group %s stays until its offsets expire: %s", group_of(target), error)

    def statuses(self, targets: Sequence[str] | None = None) -> list[DerivationStatus]:
        """Return the derivations of these topics, or of all that the caller may describe, by target."""
        names = [handle.name for handle in self._controller.name_topics()] if targets is None else targets
        recipes = {name: recipe_of(self._cluster, self._cluster.lookup(name)) for name in names}
        return [self._status(name, recipe) for name, recipe in recipes.items() if recipe is not None]

    def _status(self, target: str, recipe: Recipe) -> DerivationStatus:
        job = Derivation(self._cluster, target, recipe)
        try:
            job.look_at_logs()
        except ReplogError as error:
            status = DerivationStatus(target, recipe, problem=error)
        else:
            status = DerivationStatus(target, recipe, lag=job.left_count)
        places = tuple(offset for offset, _ in job.position.places)
        status = replace(status, positions=places, bad_count=job.position.bad_count)
        if recipe.errors_topic is None:
            return status
        replay = Derivation(self._cluster, target, recipe.replay())
        try:
            replay.look_at_logs(accepts_loss=True)
        except ReplogError as error:
            return replace(status, problem=status.problem or error)
        return replace(status, unreplayed_count=replay.left_count)

    def of_errors(self, errors_topic: str) -> list[tuple[str, Recipe]]:
        """Return the topics whose bad records an errors topic has, also of derivations that were ended."""
        handles = self._controller.name_topics()
        recipes = {handle.name: recipe_of(self._cluster, handle, is_replay=True) for handle in handles}
        return [
            (name, recipe) for name, recipe in recipes.items() if recipe is not None and recipe.source == errors_topic
        ]


def recipe_of(cluster: Cluster, handle: TopicHandle, *, is_replay: bool = False) -> Recipe | None:
    """Return how a topic is derived, or its errors topic replayed, as this process has folded it; None: it is not."""
    try:
        _, topic = cluster.folded_topic(handle)
    except NotFoundError:
        return None  # it is being deleted
    return Recipe.of(topic, is_replay=is_replay)


def follow(
    cluster: Cluster,
    target: str,
    job: Derivation,
    *,
    is_stopped: Callable[[], bool],
    interval_ms: int,
    on_progress: Callable[[], object],
) -> None:
    """Derive what comes until stopped, or until the topic's settings say something else.

    Outages are logged and waited for.

    Raises:
        ReplogError: as ``Derivation.run``, but for errors that may pass.
    """
    clock, shown = cluster.clock, ShownPosition(cluster, target)
    while not is_stopped():
        note = NOTE
        try:
            if recipe_of(cluster, cluster.lookup(target)) != job.recipe:
                return
            job.run(is_stopped=is_stopped, on_progress=on_progress)
        except (RetriableError, OutcomeUnknownError) as error:
            _log.warning("topic %s is not derived for now: %s", target, error)
            note = shortened(str(error))
        shown.show(job, note)
        end_ms = clock.monotonic_ms() + interval_ms
        while not is_stopped() and clock.monotonic_ms() < end_ms:
            clock.sleep_ms(min(_STOP_CHECK_MS, interval_ms))
    shown.show(job, at_once=True)


@dataclass(slots=True)
class _Running:
    job: Derivation
    shown: ShownPosition
    next_ms: int = 0


class DerivationRounds:
    """What ``replog coordinator run`` derives between other things: a bounded part of each derivation. One thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._running: dict[str, _Running] = {}

    def run_once(self) -> None:
        """Derive a part of what is new, of the topics as the round has folded them.

        A derivation that fails is logged and does not stop the others.
        """
        topics = self._cluster.cluster_ledger.ask(lambda state: dict(state.topics))
        self._running = {name: running for name, running in self._running.items() if name in topics}
        for name, (topic_id, ledger_id) in sorted(topics.items()):
            try:
                recipe = recipe_of(self._cluster, TopicHandle(name, topic_id, ledger_id))
            except ReplogError as error:
                _log.debug("topic %s is left to the next round: %s", name, error)
                continue
            if recipe is None:
                self._running.pop(name, None)
            else:
                self._derive(name, recipe)

    def _derive(self, target: str, recipe: Recipe) -> None:
        clock = self._cluster.clock
        running = self._running.get(target)
        if running is None or running.job.recipe != recipe:
            job = Derivation(self._cluster, target, recipe)
            running = self._running[target] = _Running(job, ShownPosition(self._cluster, target))
        begin_ms = clock.monotonic_ms()
        if begin_ms < running.next_ms:
            return
        note = NOTE
        try:
            running.job.run(is_stopped=lambda: clock.monotonic_ms() >= begin_ms + ROUND_MS)
        except ReplogError as error:
            running.next_ms = clock.monotonic_ms() + RETRY_PAUSE_MS
            _log.warning("topic %s is not derived from %s for now: %s", target, recipe.source, error)
            note = shortened(str(error))
        running.shown.show(running.job, note)
