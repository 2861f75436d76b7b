"""The shared store: written once, counted, rolled, merged, scanned."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from node.errors import StorageError
from node.ids import MsgId
from node.store.group_commit import GroupCommit
from node.store.msg_store import MessageStore
from node.store.simulated_disk import CrashStyle, SimulatedCrashError, SimulatedDisk
from node.store.store_config import StoreConfig
from tests.support.messages import make_message, msg_id_of
from tests.support.stores import run_sync_round

DIRECTORY = "/vhost/msg_store_persistent"
#: One record of the messages below.
RECORD_BYTES = 153
#: A file holds three of them.
CONFIG = StoreConfig(file_size_limit_bytes=64 + 3 * RECORD_BYTES)


class Node:
    """A store through restarts; ``references`` plays the queue indexes."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.references: Counter[MsgId] = Counter()
        self.start()

    def start(self) -> None:
        self.group_commit = GroupCommit()
        self.store = MessageStore(self.disk, DIRECTORY, self.group_commit, CONFIG, +self.references)

    def write(self, *counters: int) -> None:
        self.store.write_batch([(msg_id_of(counter), envelope_of(counter)) for counter in counters])
        self.references.update(msg_id_of(counter) for counter in counters)

    def release(self, *counters: int) -> None:
        for counter in counters:
            self.references[msg_id_of(counter)] -= 1
            self.store.release(msg_id_of(counter))

    def sync(self) -> None:
        run_sync_round(self.group_commit)

    def files(self) -> list[str]:
        return self.disk.list(DIRECTORY)

    def check(self) -> None:
        self.store.check_invariants()
        for msg_id, count in self.references.items():
            assert self.store.contains(msg_id) == (count > 0)
            if count:
                assert self.store.read(msg_id) == envelope_of(int.from_bytes(msg_id[8:], "big"))


def envelope_of(counter: int) -> bytes:
    return make_message(counter, body=counter.to_bytes(4, "big") * 25).envelope()


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_message_of_many_queues_is_written_once(node: Node) -> None:
    node.write(1)
    size = node.disk.used_bytes
    node.write(1, 1)
    assert node.disk.used_bytes == size
    node.release(1, 1)
    node.check()
    node.release(1)
    assert not node.store.contains(msg_id_of(1))
    node.check()


def test_files_roll_and_empty_ones_are_deleted(node: Node) -> None:
    for counter in range(1, 8):
        node.write(counter)
    assert node.files() == ["0.rdq", "1.rdq", "2.rdq"]
    node.release(1, 2, 3, 4)
    assert node.store.maintain()
    assert node.files() == ["1.rdq", "2.rdq"]
    node.check()


def test_a_restart_keeps_what_is_referenced(node: Node) -> None:
    node.write(1, 2, 3, 4)
    node.write(2)
    node.release(3)
    node.store.close()
    node.start()
    node.check()
    assert (node.store.recovery.messages, node.store.recovery.torn, node.store.recovery.corrupt) == (3, 0, [])
    node.write(5)
    node.check()


def test_an_unfinished_write_is_cut_and_counted(node: Node) -> None:
    node.write(1)
    node.sync()
    torn = 0
    for seed in range(20):
        node.write(2)
        node.disk.crash(CrashStyle.TEAR, random.Random(seed))
        node.start()
        del node.references[msg_id_of(2)]
        if node.store.contains(msg_id_of(2)):
            node.store.release(msg_id_of(2))
        torn += node.store.recovery.torn
        assert node.store.recovery.corrupt == []
        node.check()
    assert torn > 3


def test_damage_in_the_middle_is_reported_and_never_served(node: Node) -> None:
    node.write(1, 2, 3)
    node.store.close()
    node.disk.flip_bit(f"{DIRECTORY}/0.rdq", 64 + RECORD_BYTES + 80)
    node.start()
    assert len(node.store.recovery.corrupt) == 1
    assert [node.store.contains(msg_id_of(counter)) for counter in (1, 2, 3)] == [True, False, True]
    assert len(node.disk.list(f"{DIRECTORY}/quarantine")) == 1


def test_damage_found_by_a_read_is_an_error(node: Node) -> None:
    node.write(1)
    node.disk.flip_bit(f"{DIRECTORY}/0.rdq", 64 + 80)
    with pytest.raises(StorageError, match="damaged"):
        node.store.read(msg_id_of(1))


def _make_garbage(node: Node) -> None:
    """Five files; in the first four one message each is alive."""
    for counter in range(1, 16):
        node.write(counter)
    node.release(2, 3, 5, 6, 7, 8, 11, 12)
    node.sync()


def test_two_files_are_merged_when_most_is_garbage(node: Node) -> None:
    _make_garbage(node)
    before = node.disk.used_bytes
    for _ in range(4):
        node.store.maintain()
        node.check()
        node.sync()
    assert "1.rdq" not in node.files()
    assert node.disk.used_bytes < before
    node.check()
    node.store.close()
    node.start()
    assert node.store.recovery.corrupt == []
    node.check()


def test_merging_waits_for_the_disk(node: Node) -> None:
    _make_garbage(node)
    node.store.maintain()
    for _ in range(3):
        node.store.maintain()
    assert "0.rdq.tmp" in node.files()
    assert "1.rdq" in node.files()


def test_a_message_settled_or_rewritten_during_a_merge(node: Node) -> None:
    _make_garbage(node)
    node.store.maintain()
    node.release(1, 4)
    node.write(4)
    for _ in range(6):
        node.sync()
        node.store.maintain()
        node.check()


@pytest.mark.parametrize("style", CrashStyle)
@pytest.mark.parametrize("after", range(1, 14))
def test_a_crash_during_a_merge_loses_nothing(node: Node, style: CrashStyle, after: int) -> None:
    _make_garbage(node)
    node.disk.crash_after = after
    try:
        for _ in range(4):
            node.store.maintain()
            node.sync()
    except SimulatedCrashError:
        pass
    node.disk.crash(style, random.Random(after))
    node.start()
    node.check()
    assert node.store.recovery.corrupt == []
    assert not any(name.endswith(".tmp") for name in node.files())


def test_a_failed_write_takes_the_store_out_of_service(node: Node) -> None:
    node.write(1)
    node.disk.fail_writes = ".rdq"
    with pytest.raises(StorageError, match="injected"):
        node.write(2)
    node.disk.fail_writes = None
    with pytest.raises(StorageError, match="out of service"):
        node.write(3)
    assert node.store.read(msg_id_of(1)) == envelope_of(1)
