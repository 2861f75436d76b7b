"""Crash everywhere: before every single disk operation of a workload, in every style, and with every fsync failing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from node.errors import StorageError
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.shared.config import StoreConfig
from tests.support.amounts import slow
from tests.support.shared_store import STORE_DIRECTORY, SharedStoreNode

#: Turns of the workload.
TURNS = 105
#: Messages alive at a time, some four files.
LIVE = 40
OPERATIONS_MIN = 500


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are cut in pieces of a message or two, and every look at another file closes the one before."""
    monkeypatch.setattr("node.store.shared.compaction.hole_filling.CUT_BYTES", 200)
    monkeypatch.setattr("node.store.shared.store_files.OPEN_FILES_MAX", 1)


def config_of(kind: str) -> StoreConfig:
    """Files of some twelve messages."""
    return StoreConfig(file_size_limit_bytes=1500, compaction=kind)


class Workload:
    """Writes, shared writes, releases in random order, syncs, compaction and clean restarts; always the same."""

    def __init__(self, node: SharedStoreNode) -> None:
        self.node = node
        self.rng = random.Random(20)
        self.next_counter = 1
        self.live: list[int] = []
        self.compactions = 0

    def run(self, turns: int) -> None:
        for turn in range(turns):
            self.write()
            self.release()
            if self.rng.random() < 0.7:
                self.node.sync()
            for _ in range(self.rng.randint(0, 6)):
                self.node.store.maintain()
            if turn % 29 == 28:
                self.compactions += self.node.store.status().compactions
                self.node.stop()
                self.node.start(may_open_clean=turn % 2 == 0)

    def write(self) -> None:
        counters = list(range(self.next_counter, self.next_counter + self.rng.randint(1, 5)))
        self.next_counter = counters[-1] + 1
        self.node.write(*counters, body_bytes=self.rng.choice((30, 30, 60, 200)))
        self.live += counters
        if self.rng.random() < 0.3:
            shared = self.rng.choice(self.live)
            self.node.write(shared)
            self.live.append(shared)

    def release(self) -> None:
        count = max(0, len(self.live) - LIVE) + self.rng.randint(0, 2)
        for _ in range(min(count, len(self.live))):
            self.node.release(self.live.pop(self.rng.randrange(len(self.live))))


@pytest.mark.parametrize("step", [7, slow(1)])
@pytest.mark.parametrize("kind", ["holes", "merge"])
def test_a_crash_before_an_operation_loses_nothing_that_was_durable(kind: str, step: int) -> None:
    node = SharedStoreNode(config_of(kind))
    workload = Workload(node)

    def crash_here() -> None:
        if node.disk.operations % step == 0:
            node.check_every_crash(seed=node.disk.operations)

    node.disk.on_operation = crash_here
    workload.run(TURNS)
    node.check()
    assert node.disk.operations > OPERATIONS_MIN
    assert workload.compactions > 10, "compaction was under way in many of the crashes"


class FsyncFails(SimulatedDisk):
    """The fsync with this number fails, and only that one."""

    #: Fsyncs until then; 0 or less: none fails.
    syncs_left = 0

    def before_sync(self, path: str, lose: Callable[[], None]) -> None:
        self.syncs_left -= 1
        self.fail_syncs = path if not self.syncs_left else None
        super().before_sync(path, lose)


@pytest.mark.parametrize("kind", ["holes", "merge"])
def test_whichever_fsync_fails_nothing_that_was_durable_is_lost(kind: str) -> None:
    """The node goes on for a while as nodes do that have not noticed; then it stops, or loses power."""
    number = failures = 0
    while failures == number:
        number += 1
        disk = FsyncFails()
        node = SharedStoreNode(config_of(kind), disk)
        disk.syncs_left = number
        workload = Workload(node)
        try:
            workload.run(TURNS // 2)
        except StorageError:
            failures += 1
            if node.group_commit.failure is not None:
                for _ in range(8):
                    workload.write()
                    workload.release()
                    node.store.maintain()
        disk.syncs_left = 0
        node.crash(list(CrashStyle)[number % 3], seed=number)
    assert failures > OPERATIONS_MIN // 10


def damaged_twins(node: SharedStoreNode) -> Iterator[tuple[str, SharedStoreNode]]:
    """Copies of a stopped node: one bit flipped in each byte of its store files, or a file cut at each byte."""
    for path, content in node.disk.snapshot().items():
        if not path.endswith(".rdq"):
            continue
        for offset in range(len(content)):
            for what in ("flip", "cut"):
                twin = node.twin()
                if what == "flip":
                    twin.disk.flip_bit(path, offset, offset % 8)
                else:
                    file = twin.disk.open(path)
                    file.truncate(offset)
                    file.sync()
                twin.start(may_open_clean=False)
                yield what, twin


@pytest.mark.parametrize("kind", ["holes", "merge"])
def test_no_damaged_byte_is_served_or_passed_over_in_silence(kind: str) -> None:
    """Live records, garbage, a hole that was filled, and one in the making."""
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=600, compaction=kind))
    node.write(*range(1, 9), body_bytes=20)
    node.sync()
    node.release(1, 2, 4, 5, 7)
    node.compact()
    node.write(9, 10, body_bytes=20)
    node.stop()
    lost = {"flip": 0, "cut": 0}
    for what, twin in damaged_twins(node):
        twin.store.check_invariants()
        live = list(twin.live())
        kept = [msg_id for msg_id in live if twin.store.contains(msg_id)]
        assert twin.store.read_many(kept) == [twin.envelopes[msg_id] for msg_id in kept]
        assert twin.store.status().messages == len(kept)
        if len(kept) < len(live):
            lost[what] += 1
            # A file cut between two records is whole; that one is missing, only its index knows.
            assert what == "cut" or twin.store.recovery.corrupt
    assert lost["flip"] > 300
    assert lost["cut"] > 300


def test_a_flip_while_holes_are_being_filled_is_reported() -> None:
    """The note excuses what is in the holes, and nothing else."""
    node = SharedStoreNode(StoreConfig(file_size_limit_bytes=600))
    node.write(*range(1, 9), body_bytes=20)
    node.sync()
    node.release(1, 2, 4, 5, 7)
    # Choose it, have the system fetch it, walk through it, write the note.
    for _ in range(4):
        node.store.maintain()
    assert "0.holes" in node.files()
    node.sync()
    node.store.maintain()
    assert node.store.status().moved_bytes, "copies stand in the holes, and no fsync has seen them"
    path = f"{STORE_DIRECTORY}/0.rdq"
    reported = silent = 0
    for offset in range(64, len(node.disk.snapshot()[path])):
        twin = node.twin()
        twin.disk.flip_bit(path, offset, offset % 8)
        twin.disk.crash(CrashStyle.TEAR, random.Random(offset))
        twin.start()
        live = list(twin.live())
        kept = [msg_id for msg_id in live if twin.store.contains(msg_id)]
        assert twin.store.read_many(kept) == [twin.envelopes[msg_id] for msg_id in kept]
        assert (len(kept) < len(live)) == bool(twin.store.recovery.corrupt)
        reported += bool(twin.store.recovery.corrupt)
        silent += not twin.store.recovery.corrupt
    assert reported
    assert silent
