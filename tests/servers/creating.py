"""A process that creates one object in parts on a remote root, until it is ended.

``python -m tests.servers.creating``, with ``{"url", "options", "key", "size_bytes", "part_size_bytes"}`` as JSON on
standard input.
"""

from __future__ import annotations

import json
import signal
import sys

from spark_replog.storage.fsspec_store import FsspecStore
from spark_replog.storage.open_store import open_store

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    given = json.load(sys.stdin)
    FsspecStore.one_request_bytes_max, FsspecStore.part_size_bytes = 0, given["part_size_bytes"]
    open_store(given["url"], given["options"]).create(given["key"], b"x" * given["size_bytes"])
