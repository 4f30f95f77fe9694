"""Real servers of object storage on this machine's loopback, each process ended by its id."""

from __future__ import annotations

import io
import itertools
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
import uuid
import zipfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from azure.storage.blob import generate_container_sas
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from spark_replog.storage.open_store import open_store
from tests.servers.builds import AZURITE, FAKE_GCS, MINIO, S3RVER, VERSITYGW, Build
from tests.waiting import wait_until


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server(ABC):
    """One server process over a folder. It can be killed and started again on the same port and folder.

    Args:
        folder: its data and log.

    Attributes:
        port: where it listens; the same after a restart.
    """

    name: ClassVar[str]
    scheme: ClassVar[str]
    put: ClassVar[str] = "PUT"
    """The method of a create."""
    create_parts: ClassVar[Sequence[str]] = ("",)
    """What the requests of a create have in their paths, one a step."""
    end: ClassVar[signal.Signals] = signal.SIGKILL
    build: ClassVar[Build]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @abstractmethod
    def command(self, data: Path) -> Sequence[str]:
        """Return what is run."""

    @abstractmethod
    def options(self, port: int | None = None) -> dict[str, str]:
        """Return the storage options of a client, without ``storage.``.

        Args:
            port: of a proxy before the server.
        """

    @abstractmethod
    def hasty_options(self, port: int) -> dict[str, str]:
        """Return options whose client waits a second for an answer."""

    def make_bucket(self, bucket: str) -> None:
        """Make a bucket or container."""
        self.file_system(bucket).mkdir(bucket)

    def file_system(self, bucket: str) -> Any:
        """Return the client's file system, past the proxy."""
        return open_store(f"{self.scheme}://{bucket}/x", self.options()).file_system()  # type: ignore[attr-defined]

    def new_root(self, folder: str = "some/root") -> str:
        """Return the URL of a root in a new bucket."""
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"  # short, as a policy names it often
        self.make_bucket(bucket)
        return f"{self.scheme}://{bucket}/{folder}"

    def scoped_options(self, url: str, port: int | None = None) -> dict[str, str]:
        """Return the options of the root at this URL only, for a store of roots on several servers."""
        bucket = "/".join(url.split("/")[:3])
        return {f"{bucket}.{name}": value for name, value in self.options(port).items()}

    def start(self) -> None:
        """Start the process and wait until it answers."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                list(self.command(data)), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**self.environment(), "HOME": str(self.folder)},
            )  # fmt: skip
        process = self._process

        def has_started() -> bool:
            return self.is_answering() or process.poll() is not None

        try:
            wait_until(has_started, f"{self.name} answers", pause_seconds=0.05)
            assert process.poll() is None, f"{self.name} has ended"
        except AssertionError as error:
            self.kill()
            raise RuntimeError((self.folder / "server.log").read_text(errors="replace")[-2000:]) from error

    def environment(self) -> dict[str, str]:
        """Return the variables of the process."""
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

    def is_answering(self) -> bool:
        """Return whether an HTTP request is answered, whatever the answer."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End the process, at once where it has on disk what it acknowledged."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(self.end)
            process.wait()

    def close(self) -> None:
        """End all that belongs to it."""
        self.kill()


Statement = dict[str, Any]
"""Of a policy of S3."""


def statements_of(bucket: str, actions: Sequence[str]) -> list[Statement]:
    """Return what allows actions of a bucket (``s3:List...``) and of the objects below ``log/``."""
    arn, of_bucket = f"arn:aws:s3:::{bucket}", [action for action in actions if action.startswith("s3:List")]
    of_objects = [action for action in actions if action not in of_bucket]
    return [
        {"Effect": "Allow", "Action": some, "Resource": [resource]}
        for some, resource in ((of_bucket, arn), (of_objects, f"{arn}/log/*"))
        if some
    ]


def policy_text(statements: Sequence[Statement]) -> str:
    """Return a policy as JSON, as short as it can be: servers bound it."""
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, separators=(",", ":"))


class S3Server(Server):
    """What speaks S3 here."""

    scheme: ClassVar[str] = "s3"
    key, secret = "replog-user", "replog-secret-word"

    def options(self, port: int | None = None) -> dict[str, str]:
        """As ``Server.options``."""
        end = f"http://127.0.0.1:{port or self.port}"
        return {"key": self.key, "secret": self.secret, "endpoint_url": end}

    def hasty_options(self, port: int) -> dict[str, str]:
        """As ``Server.hasty_options``."""
        return {**self.options(port), "config_kwargs": '{"read_timeout": 1}'}

    def new_guarded_root(self, *, is_locked: bool) -> str:
        """Return the URL of a root in a new bucket that keeps versions.

        Args:
            is_locked: keep each version for a day, whoever wants to delete it.
        """
        bucket = f"bucket-{uuid.uuid4().hex}"
        client = self.file_system(bucket)
        client.call_s3("create_bucket", Bucket=bucket, ObjectLockEnabledForBucket=is_locked)
        client.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        if is_locked:
            rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
            lock = {"ObjectLockEnabled": "Enabled", "Rule": rule}
            client.call_s3("put_object_lock_configuration", Bucket=bucket, ObjectLockConfiguration=lock)
        return f"{self.scheme}://{bucket}/log"

    def versions(self, url: str, key: str) -> list[str]:
        """Return the ids of an object's versions, without the markers of its deletions."""
        bucket, _, folder = url.partition("://")[2].partition("/")
        answer = self.file_system(bucket).call_s3("list_object_versions", Bucket=bucket, Prefix=f"{folder}/{key}")
        return [version["VersionId"] for version in answer.get("Versions", [])]


class VersityGateway(S3Server):
    """S3 over a folder; its 412 names the condition. Users are made by its own command."""

    name, build = "versitygw", VERSITYGW

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._given: defaultdict[str, dict[str, list[Statement]]] = defaultdict(dict)
        """What users may, by bucket and user."""

    def command(self, data: Path) -> Sequence[str]:
        """As ``Server.command``."""
        users, versions = self.folder / "users", self.folder / "versions"
        for path in (users, versions):
            path.mkdir(exist_ok=True)
        return (
            str(self.build.folder() / "versitygw"), "--access", self.key, "--secret", self.secret,
            "--port", f"127.0.0.1:{self.port}", "--iam-dir", str(users), "--quiet",
            "--access-log", str(self.folder / "access.log"), "posix",
            "--versioning-dir", str(versions), str(data),
        )  # fmt: skip

    def make_user(self, name: str, bucket: str, statements: Sequence[Statement], *beside: str) -> dict[str, str]:
        """Make a user that may do what statements of a policy allow; return the options that make a client this user.

        Args:
            bucket: what the statements are about: they become its policy. It has room for some 4,000 bytes.
            beside: users who may go on to do what they may; all others may nothing from now on.
        """
        self._admin("create-user", "-a", name, "-s", f"{name}-secret", "-r", "user")
        kept = {user: self._given[bucket][user] for user in beside}
        self._given[bucket] = {**kept, name: [{**statement, "Principal": {"AWS": [name]}} for statement in statements]}
        given = list(itertools.chain(*self._given[bucket].values()))
        self.file_system(bucket).call_s3("put_bucket_policy", Bucket=bucket, Policy=policy_text(given))
        return {**self.options(), "key": name, "secret": f"{name}-secret"}

    def requests_of(self, name: str, *, are_refused: bool = False) -> set[tuple[str, str]]:
        """Return the operations that a user was not refused, or those it was, each as an action of S3 and a key."""
        operations = set()
        for line in (self.folder / "access.log").read_text().splitlines():
            words = line.split(" ")
            is_users = len(words) > 10 and words[5] == name and words[7].startswith("s3_")
            if is_users and (words[10] == "403") is are_refused:
                operations.add((words[7].replace("_", ":"), words[8]))
        return operations

    def drop_user(self, name: str) -> None:
        """Delete a user: its keys are refused from now on."""
        self._admin("delete-user", "-a", name)

    def _admin(self, *command: str) -> None:
        endpoint = f"http://127.0.0.1:{self.port}"
        admin = [str(self.build.folder() / "versitygw"), "admin", "-a", self.key, "-s", self.secret, "--er", endpoint]
        subprocess.run([*admin, *command], check=True, capture_output=True)


class Minio(S3Server):
    """S3 over a folder; its 412 does not name the condition."""

    name, build = "minio", MINIO

    def command(self, data: Path) -> Sequence[str]:
        """As ``Server.command``."""
        address = f"127.0.0.1:{self.port}"
        return str(self.build.folder() / "minio"), "server", "--address", address, str(data)

    def environment(self) -> dict[str, str]:
        """As ``Server.environment``."""
        user = {"MINIO_ROOT_USER": self.key, "MINIO_ROOT_PASSWORD": self.secret}
        return {**super().environment(), **user, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}

    def make_user(self, name: str, bucket: str, statements: Sequence[Statement], *beside: str) -> dict[str, str]:
        """Make a user that may do what statements of a policy allow; return the options that make a client this user.

        The call that adds one user has an encrypted body. The one that takes over those of another server has none.

        Args:
            bucket: what the statements are about.
            beside: as all users, they may go on to do what they may.
        """
        given = json.loads(policy_text(statements).replace("StringLikeIfExists", "StringLike"))
        keys = {"key": name, "secret": f"{name}-secret"}
        files = {
            "policies": {name: given},
            "users": {name: {"secretKey": keys["secret"], "status": "enabled"}},
            "user_mappings": {name: {"version": 1, "policy": name}},
        }
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as packed:
            for file, content in files.items():
                packed.writestr(f"iam-assets/{file}.json", json.dumps(content))
        url = f"http://127.0.0.1:{self.port}/minio/admin/v3/import-iam-v2"
        request = AWSRequest("PUT", url, data=body.getvalue())
        S3SigV4Auth(Credentials(self.key, self.secret), "s3", "us-east-1").add_auth(request)
        signed = urllib.request.Request(url, request.data, dict(request.headers), method="PUT")
        with urllib.request.urlopen(signed, timeout=10) as answer:
            failed = json.load(answer)["failed"]
        assert not any(failed.values()), failed
        return {**self.options(), **keys}

    def is_answering(self) -> bool:
        """As ``Server.is_answering``, and after that until its users are loaded: it refuses them before."""
        if not super().is_answering():
            return False
        try:
            self.file_system("any").ls("", refresh=True)
        except OSError:
            return False
        return True


class S3rver(S3Server):
    """S3 that ignores If-None-Match: what the probe must refuse."""

    name, build = "s3rver", S3RVER
    key, secret = "S3RVER", "S3RVER"

    def command(self, data: Path) -> Sequence[str]:
        """As ``Server.command``."""
        program = str(self.build.folder() / "node_modules/.bin/s3rver")
        return program, "-d", str(data), "-a", "127.0.0.1", "-p", str(self.port), "--silent"


class FakeGcs(Server):
    """Google Cloud Storage over a folder; it asks for no credentials."""

    name, scheme, put, build = "fake-gcs-server", "gs", "POST", FAKE_GCS

    def command(self, data: Path) -> Sequence[str]:
        """As ``Server.command``."""
        return (
            str(self.build.folder() / "fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1",
            "-port", str(self.port), "-backend", "filesystem", "-filesystem-root", str(data),
            "-external-url", f"http://127.0.0.1:{self.port}",
        )  # fmt: skip

    def options(self, port: int | None = None) -> dict[str, str]:
        """As ``Server.options``."""
        end = f"http://127.0.0.1:{port or self.port}"
        return {"project": "project", "token": "anon", "endpoint_url": end}

    def hasty_options(self, port: int) -> dict[str, str]:
        """As ``Server.hasty_options``."""
        return {**self.options(port), "requests_timeout": "1"}


class Azurite(Server):
    """Azure Blob Storage over a folder, with its account that every copy of it has.

    It keeps names in memory, and saves them when it is asked to end.
    """

    name, scheme, end, build = "azurite", "abfs", signal.SIGTERM, AZURITE
    account = "devstoreaccount1"
    secret = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def command(self, data: Path) -> Sequence[str]:
        """As ``Server.command``."""
        return (
            str(self.build.folder() / "node_modules/.bin/azurite-blob"), "--silent", "--disableTelemetry",
            "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(data), "--skipApiVersionCheck",
        )  # fmt: skip

    def options(self, port: int | None = None) -> dict[str, str]:
        """As ``Server.options``."""
        end = f"http://127.0.0.1:{port or self.port}/{self.account}"
        text = f"DefaultEndpointsProtocol=http;AccountName={self.account};AccountKey={self.secret};BlobEndpoint={end};"
        return {"connection_string": text}

    def hasty_options(self, port: int) -> dict[str, str]:
        """As ``Server.hasty_options``."""
        return {**self.options(port), "read_timeout": "1"}

    def token_options(self, container: str, permissions: str, expiry: datetime) -> dict[str, str]:
        """Return the options of a client with a shared access signature only.

        Args:
            permissions: letters of Azure's, in its order: r, a, c, w, d, l.
        """
        token = generate_container_sas(
            self.account, container, account_key=self.secret, permission=permissions, expiry=expiry
        )
        end = f"http://127.0.0.1:{self.port}/{self.account}"
        return {"connection_string": f"BlobEndpoint={end};SharedAccessSignature={token}"}
