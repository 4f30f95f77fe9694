"""The table of mounts: which file system holds a folder, and what its mount lacks."""

from __future__ import annotations

import pytest

from spark_replog.storage import mount_table
from spark_replog.storage.mount_table import MountedFileSystem, file_system_of


def test_mount_types(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        "30 22 0:50 / /mnt/a\\040b rw,relatime shared:3 - nfs4 host:/x rw\n"
        "31 22 0:51 / /mnt/fuse rw - fuse.sshfs x rw\n"
    )
    monkeypatch.setattr(mount_table, "MOUNT_TABLE", str(table))
    of = file_system_of
    assert of("/mnt/a b/c").type == "nfs4" and of("/mnt/ab").type == "ext4"
    assert of("/mnt/fuse/x").is_remote and not of("/srv").is_remote
    monkeypatch.setattr(mount_table, "MOUNT_TABLE", str(tmp_path / "absent"))
    assert of("/mnt/fuse/x") == ("", frozenset()) and not of("/mnt/fuse/x").is_remote


@pytest.mark.parametrize("name", ["gpfs", "virtiofs", "pvfs2", "wekafs", "panfs", "gfs2", "ocfs2", "smb3", "fuseblk"])
def test_a_file_system_of_other_machines_is_remote_by_the_name_that_it_registers(name):
    assert MountedFileSystem(name, frozenset()).is_remote


@pytest.mark.parametrize("name", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "bcachefs", "", "apfs"])
def test_a_file_system_of_this_machine_is_not_remote(name):
    assert not MountedFileSystem(name, frozenset()).is_remote


@pytest.mark.parametrize(
    "written, point",
    [
        ("/mnt/données", "/mnt/données"),
        ("/mnt/データ\\040b", "/mnt/データ b"),
        ("/mnt/a\\134040b", "/mnt/a\\040b"),
        ("/mnt/a\u2028b", "/mnt/a\u2028b"),
    ],
)
def test_a_mount_is_found_whatever_letters_its_folder_has(tmp_path, monkeypatch, written, point):
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda rw\n30 22 0:50 / {written} rw - nfs4 host:/x rw\n", "utf-8")
    monkeypatch.setattr(mount_table, "MOUNT_TABLE", str(table))
    assert file_system_of(f"{point}/root").is_remote


@pytest.mark.parametrize(
    "options, faults",
    [
        ("rw,vers=4.2,hard,lookupcache=pos", []),
        ("rw,vers=4.2,hard,noac", []),
        ("rw,vers=4.2,hard", ["lookupcache=positive"]),
        ("rw,vers=3,soft", ["'hard'", "lookupcache=positive"]),
        ("rw,softerr,lookupcache=none", ["'hard'"]),
    ],
)
def test_nfs_mounts_that_a_root_cannot_use_say_which_option_is_missing(tmp_path, monkeypatch, options, faults):
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda rw,soft\n30 22 0:50 / /mnt/a rw - nfs4 host:/x {options}\n")
    monkeypatch.setattr(mount_table, "MOUNT_TABLE", str(table))
    messages = file_system_of("/mnt/a/root").nfs_faults()
    assert [fault in text for fault, text in zip(faults, messages, strict=True)] == [True] * len(faults)
    assert file_system_of("/srv").nfs_faults() == []
