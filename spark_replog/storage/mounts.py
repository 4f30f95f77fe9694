"""What kind of file system a path is on, from the kernel's mount table."""

from __future__ import annotations

import os

_MOUNT_TABLE = "/proc/self/mountinfo"
_REMOTE_TYPES = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "glusterfs", "lustre", "afs", "vboxsf", "beegfs")


def file_system_type(path: str) -> str:
    """Return the type of the mount that holds the path (``ext4``, ``nfs4``, ...), "" where unknown.

    Source: proc(5), /proc/pid/mountinfo: field 5 is the mount point, the type follows the lone dash.
    """
    real = os.path.realpath(path)
    best, best_type = "", ""
    try:
        with open(_MOUNT_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(" ")
        if "-" not in fields:
            continue
        point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, best_type = point, fields[fields.index("-") + 1]
    return best_type


def is_remote_file_system(path: str) -> bool:
    """Return whether a network or user-space file system holds the path."""
    return file_system_type(path).startswith(_REMOTE_TYPES)


__all__ = ["file_system_type", "is_remote_file_system"]
