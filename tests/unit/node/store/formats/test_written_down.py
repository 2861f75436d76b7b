"""What is on disk, written down: a node of this release finds the files of the one before, and reads them.

If a checksum differs here, either a format has changed: then let both be read, with another version of the format,
before the new one is written down. Or something is written at another time than before (how much of a journal a flush
moves, how far positions are reserved): then write down the new one.
"""

from __future__ import annotations

from zlib import crc32

import pytest

from node.ids import SeqId
from node.queues.vhost_store import vhost_directory
from node.store.disk.length_file import LENGTHS_FORMAT
from node.store.formats import record
from node.store.index.conversion import CURSOR_FORMAT
from node.store.shared.config import StoreConfig
from tests.support.messages import publications
from tests.support.stores import StoreHarness

FORMATS = [
    *(record.JOURNAL_FORMAT, record.SEGMENT_FORMAT, record.INDEX_FORMAT, record.QUEUE_STORE_FORMAT),
    *(record.SHARED_STORE_FORMAT, record.HOLES_FORMAT, record.TABLES_FORMAT, record.TERMS_FORMAT),
    *(record.BOUNDS_FORMAT, CURSOR_FORMAT, LENGTHS_FORMAT),
]


def test_every_kind_of_file_says_what_it_is_and_of_which_version() -> None:
    assert [f"{each.suffix} {each.magic.decode()} {each.version}" for each in FORMATS] == [
        *(".jif WRIJ 1", ".idx WRIS 1", ".qi WRQI 2", ".qs WRQS 1"),
        *(".rdq WRDQ 2", ".holes WRHL 1", ".tables WRCT 1", ".terms WRTM 2"),
        *(".bounds WRSB 1", ".cursor WRCC 1", ".lengths WRDL 1"),
    ]


def test_the_directory_of_a_vhost_has_the_name_it_always_had() -> None:
    assert vhost_directory("/data", "/") == "/data/vhosts/8a5edab282632443219e051e"
    assert vhost_directory("/data", "orders/eu") == "/data/vhosts/df09ed5999ef8fa2603c1d3e"


def checksums(harness: StoreHarness) -> dict[str, str]:
    """Of every file, below the vhost's directory."""
    prefix = harness.store.directory + "/"
    return {path.removeprefix(prefix): f"{crc32(data):08x}" for path, data in harness.disk.snapshot().items()}


WRITTEN: dict[int, tuple[dict[str, str], dict[str, str]]] = {
    1: (
        {
            "durable.lengths": "bc882ef3",
            "vhost.json": "1d8d5637",
            "msg_store_persistent/0.rdq": "a39411e9",
            "queues/7/queue.json": "f470a2cd",
            "queues/7/seq.bounds": "cabef035",
            "queues/7/0.idx": "9542d695",
            "queues/7/1.idx": "783eb93f",
            "queues/7/2.idx": "675145a2",
            "queues/7/1.jif": "b7d137e9",
        },
        {
            "durable.lengths": "1c0a48bd",
            "vhost.json": "1d8d5637",
            "msg_store_persistent/0.rdq": "a39411e9",
            "msg_store_persistent/clean.tables": "8f6fae38",
            "queues/7/queue.json": "f470a2cd",
            "queues/7/seq.bounds": "cabef035",
            "queues/7/0.idx": "2a10ff63",
            "queues/7/1.idx": "783eb93f",
            "queues/7/2.idx": "5ad18c75",
            "queues/7/3.idx": "8ce75273",
            "queues/7/clean.terms": "19760686",
        },
    ),
    2: (
        {
            "durable.lengths": "2b0db818",
            "vhost.json": "1d8d5637",
            "msg_store_persistent/0.rdq": "a39411e9",
            "queues/7/queue.json": "f470a2cd",
            "queues/7/seq.bounds": "cabef035",
            "queues/7/0.qs": "4e3e88ee",
            "queues/7/0.qi": "917215a3",
            "queues/7/1.qs": "21a64158",
            "queues/7/1.qi": "526b74de",
            "queues/7/2.qs": "7165f059",
            "queues/7/2.qi": "6e896a85",
            "queues/7/3.qs": "4d4e614c",
            "queues/7/3.qi": "aae10a80",
        },
        {
            "durable.lengths": "2b0db818",
            "vhost.json": "1d8d5637",
            "msg_store_persistent/0.rdq": "a39411e9",
            "msg_store_persistent/clean.tables": "8f6fae38",
            "queues/7/queue.json": "f470a2cd",
            "queues/7/seq.bounds": "cabef035",
            "queues/7/0.qs": "4e3e88ee",
            "queues/7/0.qi": "917215a3",
            "queues/7/1.qs": "21a64158",
            "queues/7/1.qi": "526b74de",
            "queues/7/2.qs": "7165f059",
            "queues/7/2.qi": "6e896a85",
            "queues/7/3.qs": "4d4e614c",
            "queues/7/3.qi": "aae10a80",
            "queues/7/clean.terms": "16db4faf",
        },
    ),
}


@pytest.mark.parametrize("version", [1, 2])
def test_the_files_of_a_queue_are_byte_for_byte_what_was_written_down(version: int) -> None:
    """Of a queue at work, and after a clean stop."""
    harness = StoreHarness(
        StoreConfig(
            queue_version=version,
            embed_below_bytes=60,
            v1_segment_entries=8,
            v1_journal_entries_max=12,
            v2_segment_entries=8,
        )
    )
    queue = harness.open_queue()
    queue.publish(publications(1, 18))
    queue.publish(publications(19, 3, body=b"big" * 50))
    harness.sync()
    queue.publish(publications(22, 4))
    queue.ack([each.seq_id for each in queue.fetch(5, ack_required=True) if each.seq_id != SeqId(2)])
    harness.sync()
    harness.store.maintain(1000)
    harness.sync()
    at_work = checksums(harness)
    harness.store.close()
    assert (at_work, checksums(harness)) == WRITTEN[version]
