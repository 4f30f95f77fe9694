"""What a process asks which root, and what each kind of read costs.

Calls per metadata root; over a network calls of one line that do not need each other's answer are one round trip.

| read | a root is asked for | calls |
| --- | --- | --- |
| refresh, nothing new | the record at the end of its journal | 1 get |
| the same, `marker_check_ms` after the last look at markers | that, then the next marker | 2 gets |
| refresh, n new records | records until one is missing, then the next marker | n + 2 gets |
| stale read, nothing new | its end; `marker_check_ms` after its last turn: the next marker instead | 1 get |
| append of an owner | to take the record, then the next marker | 1 create, 1 get |
| append while others write | as a refresh, then twice as an append (claim, entry) | 2 creates, 3 gets or more |
| first read, and after an error | ``replog.json`` and `out`, then as a refresh, and a listing of its end | 3 more |
| a root that lacks records that others name | the record before its end too | 1 get more |
| idle consumer (``cluster/journal_peek.py``) | its end; one root in turn for all | 1 get in all |

A stale read is for monitoring. An entry on a majority shows in one of its gets, unless a root that held it was cut or
emptied and the root in turn, which is asked for its marker, lacks it: then the next stale read shows it. If anything is
new, all roots are read. A single metadata root is asked for its marker after a stale read of its end that found
nothing, so an entry that comes then also shows one read later.

Gets that take long go over a network, where each one is a round trip. There a read gets many records at once: as many
as the last read found, or as a listing shows (``JournalForecast``). A journal ends at an empty position, whatever a
listing shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_replog.ledger.reader import DecidedPrefix
from spark_replog.ledger.root import Read, RootState, Standing
from spark_replog.ledger.types import LedgerSettings

READ_LIMIT = 512
READ_SIZE_BYTES_MAX = 8 * 1024 * 1024
"""A read ends with the record that reaches this size, so that large entries are folded before more are fetched;
concurrent gets together request about this size."""
WINDOW_MAX = 64
"""Gets of one root at once; the clients' connection pools are of this size."""
FIRST_WINDOW = 8
"""Records that a first read over a network, without a listing, gets at once."""
LAST_WINDOW = 24
"""Records that a first read gets at once while it is not known which of them it needs."""


class ReadPlan:
    """Which records and markers the goals of one core ask for.

    Attributes:
        marker_root: the root that is asked for its marker only; None for none.
    """

    def __init__(self, settings: LedgerSettings) -> None:
        self.marker_root: int | None = None
        self._settings = settings
        self._saves_markers = False
        self._learned_before = 0
        self._is_marker_turn = True

    def read_all(self) -> None:
        """Ask all roots for their ends, and for markers when they are due."""
        self._saves_markers, self.marker_root = False, None

    def save_calls(self, roots: Sequence[RootState], prefix: DecidedPrefix, now_ms: float) -> None:
        """Begin a stale read: while markers are due, ask the root for its own that was asked longest ago."""
        learned_before, self._learned_before = self._learned_before, prefix.learned_count
        times = [-1.0 if state.marker_at_ms is None else state.marker_at_ms for state in roots]
        is_read = all(root.standing is Standing.KNOWN and root.busy is None and root.error is None for root in roots)
        is_quiet = prefix.tail_index < prefix.length and is_read
        if not is_quiet or now_ms - min(times) < self._settings.marker_check_ms:
            return
        self._saves_markers, self.marker_root = True, times.index(min(times))
        if len(roots) == 1:
            self._is_marker_turn = not self._is_marker_turn and prefix.learned_count == learned_before
            self.marker_root = 0 if self._is_marker_turn else None

    def is_in_vain(self, roots: Sequence[RootState], prefix: DecidedPrefix, *, lacks_answer: bool) -> bool:
        """Return whether the root that was asked for its marker only must be read too: something is new or missing."""
        if self.marker_root is None:
            return False
        is_seen = all(state.standing in (Standing.KNOWN, Standing.FRESH) for state in roots)
        return lacks_answer or not is_seen or prefix.learned_count != self._learned_before

    def read(self, root: int, state: RootState, position: int, named: int, now_ms: float) -> Read:
        """Return what to read of a root.

        Args:
            position: where its journal ends, as far as it was read.
            named: the highest position that other roots' records name there.
        """
        if self.marker_root == root:
            return Read(root, position, 0, state.floor.marker_no, checks_marker=True)
        is_due = state.marker_at_ms is None or now_ms - state.marker_at_ms >= self._settings.marker_check_ms
        is_first = state.standing is Standing.UNREAD
        # Where a record was, the position is empty only after a cut or a loss. The next one may be cut too, in time.
        is_known_taken = position <= named or position < state.end_min()
        checks_marker = is_first or (is_due and not self._saves_markers) or is_known_taken
        return Read(root, position, READ_LIMIT, state.floor.marker_no, checks_marker, is_first)


class Listed:
    """The records that a listing shows in a journal; it only saves time: the journal ends at an empty position."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self._sizes = sizes

    def first_after(self, position: int) -> int | None:
        """Return the first position above this one that has a record, None for none."""
        return min((place for place in self._sizes if place > position), default=None)

    def last(self, first: int, count: int) -> range:
        """Return the positions of the last records, and the empty one after them; the records have a bounded size.

        Args:
            first: positions below this one are left out.
            count: of records, at most.
        """
        end = start = max(self._sizes, default=-1) + 1
        size_bytes = self._sizes.get(start - 1, 0)
        while start > max(first, end - count) and start - 1 in self._sizes and size_bytes <= READ_SIZE_BYTES_MAX:
            start -= 1
            size_bytes += self._sizes.get(start - 1, 0)
        return range(start, end + 1)

    def window(self, position: int) -> int:
        """Return how many gets from here on reach the first empty position, or a bound; 0 if no listed record is near.

        After the last listed record it is one: the listing is probably right. If not, it knows no more.
        """
        count = size_bytes = 0
        while count < WINDOW_MAX - 1 and position + count in self._sizes and size_bytes < READ_SIZE_BYTES_MAX:
            size_bytes += self._sizes[position + count]
            count += 1
        is_known = count > 0 or position - 1 in self._sizes
        return count + (is_known and position + count not in self._sizes)


class JournalForecast:
    """How many records of one root to get at once. It only saves time."""

    def __init__(self, *, is_far: bool) -> None:
        self.is_far = is_far
        self._news = 0  # how many records the last read found, but the first

    def note_read(self, record_count: int) -> None:
        """A read of the journal's tail has found this number of records: the next one may find as many."""
        self._news = min(record_count, FIRST_WINDOW - 1)

    def first(self, position: int, *, is_listed: bool, listed: Listed | None) -> int:
        """Return how many to get first.

        Args:
            is_listed: a listing has begun; listed: what it shows, None if it has not come, or failed.
        """
        if not self.is_far:
            return 1
        if not is_listed:
            return 1 + self._news
        return FIRST_WINDOW if listed is None else max(1, listed.window(position))

    def following(self, records: Sequence[bytes], window: int, position: int, listed: Listed | None) -> int:
        """Return how many to get after this number of slow gets of records.

        Args:
            window: how many were got last; position: the next one.
        """
        size_bytes_max = max(map(len, records[-window:]))
        grown = min(2 * window, WINDOW_MAX, max(1, READ_SIZE_BYTES_MAX // size_bytes_max))
        return (0 if listed is None else listed.window(position)) or grown
