from __future__ import annotations

import logging

import pytest
from moto.server import ThreadedMotoServer

from spark_replog.testing.http_fault_proxy import HttpFaultProxy


@pytest.fixture(scope="session")
def s3_proxy():
    """A moto server behind a proxy; moto alone checks, then stores, so the proxy lets one request in."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        with HttpFaultProxy(port) as proxy:
            yield proxy
    finally:
        server.stop()


@pytest.fixture
def s3_options(s3_proxy):
    s3_proxy.clear()
    return {"key": "user", "secret": "secret", "endpoint_url": f"http://127.0.0.1:{s3_proxy.port}"}
