"""Any sequence of calls gives the same answers on a directory as on a dict."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.storage.posix_store import PosixStore
from tests.examples import examples
from tests.memory_store import new_memory_store

# Folder and file names never meet, and sort around each other: '.' < '/' < '0'.
FOLDERS = ["", "a/", "a./", "a0/", "a/b/", "a/b-/"]
FILES = ["f", "f.x", "f0", "f-"]
keys = st.builds(str.__add__, st.sampled_from(FOLDERS), st.sampled_from(FILES))
prefixes = st.one_of(keys, st.sampled_from(FOLDERS), st.sampled_from(["a", "a/b", "f", "z", "a/f"]))
bodies = st.integers(1, 200_000).map(lambda size: bytes([size % 251]) * size)
calls = st.one_of(
    st.tuples(st.just("create"), keys, bodies),
    st.tuples(st.just("get"), keys, st.integers(0, 70_000), st.none() | st.integers(0, 140_000)),
    st.tuples(st.just("list"), prefixes),
    st.tuples(st.just("delete"), keys),
)


def answer(store, call):
    verb, key, *rest = call
    if verb == "create":
        store.make_folder(key.rpartition("/")[0])
        return store.create(key, rest[0])
    if verb == "get":
        body = store.get(key, start=rest[0], size_bytes=rest[1])
        return None if body is None else bytes(body)
    if verb == "list":
        return list(store.list_keys(key))
    return store.delete(key)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(calls, max_size=30))
def test_directory_and_dict_agree(sequence):
    with tempfile.TemporaryDirectory() as root:
        directory, memory = PosixStore(root, fsync=False), new_memory_store()
        for call in [*sequence, ("list", "")]:
            assert answer(directory, call) == answer(memory, call), call
