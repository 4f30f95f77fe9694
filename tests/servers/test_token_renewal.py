"""Short-lived credentials: what a profile renews is used by processes that run long, and what ran out is named."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import botocore.session
import pytest

import spark_replog
from spark_replog import TopicPartition
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from tests.http_fault_proxy import HttpFault, HttpFaultProxy, PlannedAnswer
from tests.servers.server import Minio, VersityGateway, statements_of
from tests.servers.stores import RealRoots

ALL = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket")
LIFE_SECONDS = 120
"""The client asks again from ten minutes before the end on: with each request here."""


class Rotation:
    """A profile ``short`` whose credential process hands out the user of the day."""

    def __init__(self, server: VersityGateway, bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._bucket = server, bucket
        self._given, self._users = folder / "given.json", []
        script = folder / "hand-out"
        script.write_text(f"#!/bin/sh\nexec cat {self._given}\n")
        script.chmod(0o700)
        (folder / "config").write_text(f"[profile short]\ncredential_process = {script}\nregion = us-east-1\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)

    def turn(self, name: str) -> dict[str, str]:
        """Hand out a new user; after that delete the one before, whose options are returned."""
        old = self._users[-1:]
        options = self._server.make_user(name, self._bucket, statements_of(self._bucket, ALL), *old)
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LIFE_SECONDS)
        text = json.dumps(
            {"Version": 1, "AccessKeyId": name, "SecretAccessKey": options["secret"], "Expiration": end.isoformat()}
        )
        part = self._given.with_suffix(".part")
        part.write_text(text)
        part.rename(self._given)
        for user in old:
            self._server.drop_user(user)
        self._users.append(name)
        return {**options, "key": old[0], "secret": f"{old[0]}-secret"} if old else {}


def test_a_long_query_goes_on_when_its_keys_are_replaced(servers, tmp_path, monkeypatch):
    """A producer and a consumer here, and a writer in a process of its own: none is told of it."""
    server = servers(VersityGateway)
    roots = RealRoots.of(server, 1)
    roots.make("orders", "numbers", replicas=1)
    rotation = Rotation(server, roots.path.split("/")[2], tmp_path, monkeypatch)
    rotation.turn("monday")
    orders = TopicPartition("orders", 0)
    options = {"profile": "short", "endpoint_url": server.options()["endpoint_url"]}
    opened = spark_replog.open(roots.path, options)
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.committing"],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with writer, opened.producer() as producer, opened.consumer("numbers", auto_offset_reset="earliest") as consumer:
        try:
            json.dump({"path": roots.path, "options": options, "first": 0}, writer.stdin)
            writer.stdin.close()
            got = []
            for number, day in enumerate(("tuesday", "wednesday")):
                assert producer.send("numbers", b"%d" % number).result(timeout=60).offset == number
                got += [record.value for record in consumer.poll(30_000)]
                over = rotation.turn(day)
                with pytest.raises(ReplogError) as raised:
                    open_store(f"{roots.path}/broker-0", over).get("replog.json")
                assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
                committed = consumer.end_offsets([orders])[orders]
                bounds = [0, 0]
                while bounds[0] <= committed:  # a batch that began after the keys were gone
                    said = json.loads(writer.stdout.readline())
                    assert "error" not in said, said
                    bounds = said.get("bounds", bounds)
            assert producer.send("numbers", b"2").result(timeout=60).offset == 2
            while len(got) < 3:
                got += [record.value for record in consumer.poll(30_000)]
            assert got == [b"0", b"1", b"2"]
        finally:
            writer.kill()
    assert roots.replog("store", "verify", "--deep")[0] == 0


def test_a_session_token_serves_and_a_false_one_is_refused(servers):
    server = servers(Minio)
    url = server.new_root()
    user = botocore.session.Session().create_client(
        "sts", "us-east-1", endpoint_url=f"http://127.0.0.1:{server.port}",
        aws_access_key_id=server.key, aws_secret_access_key=server.secret,
    )  # fmt: skip
    given = user.assume_role(RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="any", DurationSeconds=900)["Credentials"]
    keys = {"key": given["AccessKeyId"], "secret": given["SecretAccessKey"]}
    store = open_store(url, {**server.options(), **keys, "token": given["SessionToken"]})
    assert (store.create("a", b"1"), store.get("a")) == (CreateOutcome.CREATED, b"1")
    for more in ({}, {"token": given["SessionToken"][:-8] + "AAAAAAAA"}):
        with pytest.raises(ReplogError) as raised:
            open_store(url, {**server.options(), **keys, **more}).create("b", b"1")
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
        assert given["SessionToken"][:40] not in str(raised.value)


def test_a_token_that_ran_out_is_named(servers):
    server = servers(VersityGateway)
    answer = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
    with HttpFaultProxy(server.port, one_at_a_time=False) as proxy:
        store = open_store(server.new_root(), server.options(proxy.port))
        for method, call in (("PUT", lambda: store.create("a", b"1")), ("GET", lambda: store.get("a"))):
            proxy.plan(method, PlannedAnswer(HttpFault.BEFORE, 400, answer))
            with pytest.raises(ReplogError, match="token ran out") as raised:
                call()
            assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
