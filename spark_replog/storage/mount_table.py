"""Finds the file system of a folder in this machine's mount table, and whether it suits a root."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

MOUNT_TABLE = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")
"""How the table writes a space, a tab, a newline, a backslash and a hash. All other bytes are the name's own."""
_REMOTE_TYPES = (
    "nfs", "cifs", "smb", "fuse", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "ceph", "lustre", "beegfs", "gpfs",
    "pvfs2", "afs", "coda", "wekafs", "panfs", "cvfs", "glusterfs", "acfs", "gfs2", "ocfs2", "ncp",
)  # fmt: skip
"""Beginnings of the names under which Linux file systems register: OrangeFS as pvfs2, Spectrum Scale as gpfs, StorNext
as cvfs. Those on a disk that several machines share are here too: none is told of what another one makes."""


class MountedFileSystem(NamedTuple):
    """The file system of a path: type (``ext4``, ``nfs4``, ...) and mount options; "" and none if unknown."""

    type: str
    options: frozenset[str]

    @property
    def is_remote(self) -> bool:
        """Return whether it is a network, shared-disk or user-space file system."""
        return self.type.startswith(_REMOTE_TYPES)

    def nfs_faults(self) -> list[str]:
        """Return the mount options of an NFS mount that a root must not have, or lacks. Source: nfs(5)."""
        if not self.type.startswith("nfs"):
            return []
        faults = [f"it is mounted '{mode}': mount it 'hard'" for mode in ("soft", "softerr") if mode in self.options]
        if not self.options & {"lookupcache=pos", "lookupcache=positive", "lookupcache=none", "noac"}:
            faults.append(
                "this machine remembers for up to a minute that a file was missing: mount it 'lookupcache=positive'"
            )
        return faults


def file_system_of(url: str) -> MountedFileSystem:
    """Return the mount that contains a path or a ``file://`` URL.

    Source: proc(5), /proc/pid/mountinfo: field 5 is the mount point, field 6 its options; type, source and options of
    the file system follow a lone dash.
    """
    real = os.path.realpath(url.removeprefix("file://"))
    best, mount = "", MountedFileSystem("", frozenset())
    try:
        with open(MOUNT_TABLE, encoding="utf-8", errors="surrogateescape", newline="\n") as table:
            lines = table.read().split("\n")  # a name may have one of the line ends that ``splitlines`` knows
    except OSError:
        return mount
    for line in lines:
        fields = line.split(" ")
        if "-" not in fields:
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            kind, *more = fields[fields.index("-") + 1 :]
            options = frozenset(option for field in (fields[5], *more[1:]) for option in field.split(","))
            best, mount = point, MountedFileSystem(kind, options)
    return mount
