"""A secret of a store is in nothing that is shown, logged or written."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ReplogError
from spark_replog.storage.open_store import open_store
from tests.servers.stores import RealRoots


def test_a_secret_is_in_no_text_and_in_no_object(real, caplog):
    secret = real.options().get("secret") or getattr(real, "secret", "")
    if not secret:
        pytest.skip(f"{real.name} asks for no credentials")
    caplog.set_level(logging.DEBUG, "spark_replog")
    roots = RealRoots.of(real, 1)
    opened = roots.make("orders", replicas=1)
    with opened.producer() as producer:
        producer.send("orders", b"0").result(timeout=60)
    cluster = Cluster.open(roots.path, roots.options)
    texts = [repr(item) + str(item) for item in (opened, cluster, cluster.brokers, cluster.brokers.store(0), producer)]
    settings = [text for name, value in roots.options.items() for text in ("-X", f"storage.{name}={value}")]
    for command in (
        ["store", "info"],
        ["doctor"],
        ["topic", "describe", "orders"],
        ["-v", "store", "verify", "--deep"],
    ):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run(["-s", roots.path, *settings, *command])
        texts += [out.getvalue(), err.getvalue()]
    for path, options in (
        (f"{real.scheme}://no-such-bucket/log", real.options()),
        (roots.path, {name: value[:-3] + "AAA" for name, value in real.options().items()}),
    ):
        with pytest.raises(ReplogError) as raised:
            spark_replog.open(path, options).topic("orders").scan()
        texts += [str(raised.value), repr(raised.value), "".join(traceback.format_exception_only(raised.value))]
    texts.append(caplog.text)
    for text in texts:
        assert secret not in text and secret[:-3] not in text
    root = open_store(f"{roots.path}/broker-0", roots.options)
    bodies = [bytes(root.get(info.key) or b"") for info in root.list_keys("")]
    assert len(bodies) > 5
    assert not any(secret.encode() in body for body in bodies)
