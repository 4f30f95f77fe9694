"""How far a derivation has come: text in the identity of its last append, so that rows and position are one. Pure.

A derivation fills a typed topic from a topic of bytes. Each of its appends says which source offsets all of its rows up
to now came from. So the target's ledger alone knows the position, and every process finds the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from spark_replog.errors import ErrorCode, UnsupportedFormatError
from spark_replog.ids import TopicId
from spark_replog.log.model import IdentityKind, ProducerIdentity


@dataclass(frozen=True, slots=True)
class DerivedPosition:
    """The position of one derivation after its last append.

    Attributes:
        source_id: of the topic that was read: another topic may have its name by now.
        places: per partition the next source offset, and the leader epoch under which the rows before it were read.
        bad_count: records that went to the errors topic, in all appends.
        sequence: of the last append; -1 without one. It grows with each append, by the records read.
    """

    source_id: TopicId = ""
    places: tuple[tuple[int, int], ...] = ()
    bad_count: int = 0
    sequence: int = -1

    @property
    def has_begun(self) -> bool:
        """Return whether there was an append."""
        return self.sequence >= 0

    @property
    def text(self) -> str:
        """Return the text that an append carries as its incarnation."""
        places = ",".join(f"{offset}@{epoch}" for offset, epoch in self.places)
        return f"{self.source_id} {self.bad_count} {places}"

    @classmethod
    def parse(cls, text: str, sequence: int) -> Self:
        """Return the position from the incarnation and the sequence of the last append.

        Raises:
            UnsupportedFormatError: UNSUPPORTED_VERSION: a newer release wrote it.
        """
        try:
            source_id, bad_count, places = text.split(" ")
            pairs = (place.split("@") for place in places.split(",") if place)
            return cls(source_id, tuple((int(offset), int(epoch)) for offset, epoch in pairs), int(bad_count), sequence)
        except ValueError as error:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the position of a derivation is {text!r:.100}, which this release cannot read. Upgrade spark-replog.",
            ) from error

    def moved(self, source_id: TopicId, places: Iterable[tuple[int, int]], records: int, bad_count: int) -> Self:
        """Return the position after an append of ``records`` that brings the partitions to these places."""
        return type(self)(source_id, tuple(places), self.bad_count + bad_count, self.sequence + records)


def derivation_identity(
    cluster_id: str, source: str, target_id: TopicId, position: DerivedPosition, run_id: str = ""
) -> ProducerIdentity:
    """Return the identity of an append that brings a derivation to a position.

    Args:
        source: name of the source topic, so that one made again under the name is noticed.
        run_id: of the process that appends.
    """
    words = f"{cluster_id}/{source}/{target_id}"
    producer_id = f"derive-{blake2b(words.encode(), digest_size=16).hexdigest()}"
    return ProducerIdentity(producer_id, position.text, position.sequence, run_id, IdentityKind.TXN_BATCH)
