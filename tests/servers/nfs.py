"""NFS: Debian's server in user space over a folder, and its export mounted by our own client."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.servers.builds import MOUNTS
from tests.servers.mount import Mount, library, need_mounts
from tests.servers.server import Server

_SETTINGS = """
NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; Plugins_Dir = {plugins};
  Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Graceless = true; Lease_Lifetime = 120; RecoveryRoot = {folder}/recovery; Only_Numeric_Owners = true;
  IdmapConf = {folder}/idmap.conf; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{ Export_Id = 1; Path = {data}; Pseudo = /log; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
  Protocols = 4; Attr_Expiration_Time = 0; FSAL {{ Name = VFS; }} }}
"""


class Nfs(Server):
    """A root is a folder of the mounted export; a client waits for a server that is away (``hard``)."""

    name, scheme, build = "nfs", "", MOUNTS

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._mounts = contextlib.ExitStack()

    def command(self, data: Path) -> Sequence[str]:
        """As ``Server.command``."""
        need_mounts()
        (self.folder / "recovery").mkdir(exist_ok=True)
        (self.folder / "idmap.conf").write_text("[General]\nDomain = localdomain\n[Translation]\nMethod = nsswitch\n")
        plugins = os.path.dirname(library("libfsalvfs"))
        settings = self.folder / "ganesha.conf"
        settings.write_text(_SETTINGS.format(port=self.port, plugins=plugins, folder=self.folder, data=data))
        return (
            str(self.build.folder() / "usr/bin/ganesha.nfsd"), "-F", "-f", str(settings),
            "-p", str(self.folder / "ganesha.pid"), "-L", "/dev/stderr",
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """As ``Server.environment``: where the unpacked libraries are."""
        return {**self.build.environment(), **super().environment()}

    def start(self) -> None:
        """As ``Server.start``; the first time the export is mounted."""
        super().start()
        if not hasattr(self, "mounted"):
            self.mounted = self._mounts.enter_context(self.mount())

    def mount(self, user: int = 0, groups: Sequence[int] = (0,)) -> Mount:
        """Return what mounts the export: a client of its own, which is this user and in these groups to the server."""
        point = self.folder / f"mounted-{uuid.uuid4().hex}"
        who = map(str, (user, *groups))
        return Mount(point, "tests.servers.nfs_client", str(self.port), library("libnfs"), *who)

    def is_answering(self) -> bool:
        """As ``Server.is_answering``: whether its port is open."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        """End the clients, then the server."""
        self._mounts.close()
        self.kill()

    def options(self, port: int | None = None) -> dict[str, str]:
        """As ``Server.options``: a folder has none."""
        return {}

    def hasty_options(self, port: int) -> dict[str, str]:
        """As ``Server.hasty_options``: a folder has none."""
        return {}

    def new_root(self, folder: str = "some/root") -> str:
        """As ``Server.new_root``: the folder is there."""
        made = self.mounted.point / uuid.uuid4().hex / folder
        made.mkdir(parents=True)
        return str(made)

    def scoped_options(self, url: str, port: int | None = None) -> dict[str, str]:
        """As ``Server.scoped_options``: a folder has none."""
        return {}
