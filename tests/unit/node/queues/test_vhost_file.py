"""What a vhost says of itself, in `vhost.json`: of another format, and damaged."""

from __future__ import annotations

import pytest

from node.errors import StorageError
from node.queues.vhost_store import VHOST_FILE_NAME
from node.store.disk.disk import read_whole, write_durably
from tests.support.stores import StoreHarness


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{", b"\xff"),
        (b'"format"', b"format"),
        (b'"format": 2', b'"format": "2'),
        (b'"v1_segment_entries"', b'"v1_segment_entrieq"'),
        (b"4096", b"4097"),
        (b"4096", b'"4096"'),
        (b'"vhost": "/"', b'"vhost": "?"'),
        (None, b""),
        (None, b"[2]"),
    ],
)
def test_a_damaged_file_of_the_vhost_is_named_with_a_remedy_and_left_alone(old: bytes | None, new: bytes) -> None:
    harness = StoreHarness()
    harness.store.close()
    path = f"{harness.store.directory}/{VHOST_FILE_NAME}"
    content = read_whole(harness.disk, path)
    assert old is None or old in content
    damaged = new if old is None else content.replace(old, new)
    write_durably(harness.disk, path, damaged)
    with pytest.raises(StorageError, match=f"{path} is damaged .*: restore it .*, or move {harness.store.directory} "):
        harness.start()
    assert read_whole(harness.disk, path) == damaged
    write_durably(harness.disk, path, content)
    harness.start()


def test_files_of_another_format_are_refused_and_left_alone() -> None:
    harness = StoreHarness()
    harness.store.close()
    path = f"{harness.store.directory}/vhost.json"
    file = harness.disk.create(path)
    file.pwrite(b'{"vhost": "/"}', 0)
    before = harness.disk.snapshot()
    with pytest.raises(StorageError, match="has format 1, this Warren reads 2"):
        harness.start()
    assert harness.disk.snapshot() == before
