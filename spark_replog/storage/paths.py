"""Every name on storage, in one place (docs/format.md describes the contents)."""

from __future__ import annotations

from spark_replog.ids import LedgerId

ROOT_FILE_KEY = "replog.json"
"""The identity of a root; write-once, made before anything else."""
REBUILD_KEY = "rebuild.json"
"""Which root a repair makes here; it is removed once ``replog.json`` is there."""
LEDGERS_PREFIX = "ledgers/"


def journal_folder(ledger_id: LedgerId) -> str:
    """Return the folder of a ledger's journal records, with its trailing slash."""
    return f"ledgers/{ledger_id}/journal/"


def journal_key(ledger_id: LedgerId, position: int) -> str:
    """Return the key of the journal record at a position, counted from 0."""
    return f"ledgers/{ledger_id}/journal/{position:020d}"


def record_position(key: str) -> int | None:
    """Return the position of a journal record's key, which has 20 digits; None for a file that is none."""
    return _number(key, 20)


def marker_folder(ledger_id: LedgerId) -> str:
    """Return the folder of a ledger's truncation markers, with its trailing slash."""
    return f"ledgers/{ledger_id}/markers/"


def marker_key(ledger_id: LedgerId, number: int) -> str:
    """Return the key of a truncation marker, counted from 0."""
    return f"ledgers/{ledger_id}/markers/{number:012d}"


def marker_number(key: str) -> int | None:
    """Return the number of a marker's key, which has 12 digits; None for a file that is none."""
    return _number(key, 12)


def _number(key: str, digit_count: int) -> int | None:
    name = key.rpartition("/")[2]
    return int(name) if len(name) == digit_count and name.isascii() and name.isdecimal() else None


def snapshot_folder(ledger_id: LedgerId) -> str:
    """Return the folder of the heads of a ledger's snapshots, with its trailing slash."""
    return f"ledgers/{ledger_id}/snapshots/"


def snapshot_key(ledger_id: LedgerId, name: str) -> str:
    """Return the key of a snapshot's head."""
    return f"ledgers/{ledger_id}/snapshots/{name}"


def page_folder(ledger_id: LedgerId) -> str:
    """Return the folder that holds the folders of a ledger's pages, with its trailing slash."""
    return f"ledgers/{ledger_id}/pages/"


def page_key(ledger_id: LedgerId, name: str) -> str:
    """Return the key of a page: 256 folders, by the first digits of its nonce."""
    return f"ledgers/{ledger_id}/pages/{name[13:15]}/{name}"


def out_key(ledger_id: LedgerId) -> str:
    """Return the key of the file that marks this root's journal of the ledger as having lost records."""
    return f"{LEDGERS_PREFIX}{ledger_id}/out"


def note_key(ledger_id: LedgerId, name: str) -> str:
    """Return the key of a note from one process to another, or the prefix of several."""
    return f"{LEDGERS_PREFIX}{ledger_id}/notes/{name}"


def all_data_folder(ledger_id: LedgerId) -> str:
    """Return the folder of all generations of a ledger, with its trailing slash."""
    return f"ledgers/{ledger_id}/data/"


def data_folder(ledger_id: LedgerId, generation: int) -> str:
    """Return the folder of the data objects of one generation, with its trailing slash."""
    return f"ledgers/{ledger_id}/data/{generation:06d}/"


def data_key(ledger_id: LedgerId, generation: int, name: str) -> str:
    """Return the key of a data object."""
    return f"ledgers/{ledger_id}/data/{generation:06d}/{name}"


def is_data_key(key: str) -> bool:
    """Return whether a key is that of a data object, by its folder."""
    folders = key.split("/")[:-1]
    return folders[:1] == ["ledgers"] and folders[2:3] == ["data"]


def object_name(query: str, batch_id: int, task_id: int, unique: str) -> str:
    """Return a data object's name. It tells people the writer; only ``unique``, random hex digits, makes it distinct.

    Args:
        query: short form of the query or producer id (8 characters are enough).
        batch_id: micro-batch, or sequence of the producer.
        task_id: Spark partition id of the task.
    """
    return f"{query}-{batch_id}-{task_id}-{unique}.arrow"


def ledger_folders(ledger_id: LedgerId, *, metadata: bool = True) -> tuple[str, ...]:
    """Return the folders that a new ledger gets on a root, one for journals only where the root holds them.

    Later writes never make the ledger's own folder.
    """
    data = (all_data_folder(ledger_id),)
    if not metadata:
        return data
    return (journal_folder(ledger_id), *data)
