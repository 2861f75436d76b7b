"""Snapshots of the metadata: begun at an entry, taken piece by piece, in force when their file is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random

import pytest

from cluster.metadata.kinds import FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.raft.core import RaftConfig, RaftCore
from cluster.raft.storage import RaftStorage
from cluster.runtime import snapshot_taker
from cluster.runtime.snapshot_taker import SnapshotTaker
from node.errors import StorageError
from node.ids import NodeName
from node.store.disk.simulated import CrashStyle, SimulatedDisk

N1 = NodeName("n1")
DIRECTORY = "/data/raft"
EVERY = 10


class SlowWorker:
    """Keeps its jobs until it is told to carry them out."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], asyncio.Future[None]]] = []

    def run(self, job: Callable[[], None]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.jobs.append((job, future))
        return future

    def work(self) -> None:
        job, future = self.jobs.pop(0)
        error: StorageError | None = None
        try:
            job()
        except StorageError as raised:
            error = raised
        if future.cancelled():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def close(self) -> None: ...


class Count:
    """State machine: how many entries there were, said in three pieces."""

    def __init__(self) -> None:
        self.protocol = NEWEST_PROTOCOL
        self.count = 0
        self.taken: list[tuple[int, bytes]] = []
        self.pieces_said = 0
        self.wants_snapshot = False

    def snapshot_pieces(self) -> Iterator[bytes]:
        text = b"%06d" % self.count
        return self._pieces(text)

    def _pieces(self, text: bytes) -> Iterator[bytes]:
        for at in (0, 2, 4):
            self.pieces_said += 1
            yield text[at : at + 2]

    def snapshot_taken(self, index: int, data: bytes) -> None:
        self.taken.append((index, data))


class Node:
    """A group of one, without a driver: entries are committed, written and applied by hand."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.storage, restored = RaftStorage.open(self.disk, DIRECTORY, [N1])
        self.core = RaftCore(RaftConfig(N1), restored, Random(1), now_ms=0)
        self.state = Count()
        self.worker = SlowWorker()
        self.failures: list[StorageError] = []
        self.taker = SnapshotTaker(
            self.core,
            self.storage,
            self.state,
            self.worker,
            entries=EVERY,
            log_bytes=1 << 30,
            on_failed=self.failures.append,
        )
        self.core.tick(5000)
        self.carry_out()
        assert self.core.is_leader
        self.taker.installed()  # the entries of the founding do not count

    def carry_out(self) -> None:
        while self.core.has_work:
            ready = self.core.take_ready()
            self.storage.append(ready)
            self.storage.sync()
            self.core.appended(ready)
            self.state.count += len(ready.committed)
            if ready.committed:
                self.taker.applied(len(ready.committed), ready.committed[-1].index)

    def say(self, times: int) -> None:
        """So many entries more, each applied by itself."""
        for _ in range(times):
            self.core.propose(5000, [b"word"])
            self.carry_out()

    def stored(self) -> tuple[int, bytes, int]:
        """Index and content of the snapshot, and the last entry, that a start after a loss of power would find."""
        image = deepcopy(self.disk)
        image.crash(CrashStyle.DROP, Random(1))
        state = RaftStorage.open(image, DIRECTORY, [N1])[1]
        return state.snapshot.index, state.snapshot.data, state.snapshot.index + len(state.entries)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until_written(node: Node) -> None:
    await turns()
    node.worker.work()
    await turns()


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_a_snapshot_is_of_the_entry_at_which_it_was_begun(node: Node) -> None:
    """What is applied while it is encoded and written is not in it, and not lost."""
    node.say(EVERY)
    begun, count = node.core.log.applied, node.state.count
    node.say(3)
    await turns()
    node.say(3)
    assert node.state.taken == []
    assert node.stored()[0] == 0
    node.worker.work()
    node.say(1)
    await turns()
    assert node.state.taken == [(begun, b"%06d" % count)]
    assert node.stored() == (begun, b"%06d" % count, node.core.log.last_index)
    node.core.check_invariants()


@pytest.mark.parametrize(("protocol", "says"), [(FIRST_PROTOCOL, False), (NEWEST_PROTOCOL, True)])
async def test_it_says_what_made_the_configuration_only_where_nobody_speaks_less_than_protocol_3(
    node: Node, protocol: int, says: bool
) -> None:
    """As of the entry at which it was begun: a release of protocol 2 must be able to go on with it."""
    node.state.protocol = protocol
    node.say(EVERY)
    node.state.protocol = NEWEST_PROTOCOL
    await until_written(node)
    made_by = (node.core.log.configuration_index, node.core.log.configuration_term)
    snapshot = node.core.log.snapshot
    assert (snapshot.configuration_index, snapshot.configuration_term) == (made_by if says else (0, 0))
    assert RaftStorage.open(node.disk, DIRECTORY)[1].snapshot == snapshot


async def test_one_piece_is_encoded_per_turn(node: Node) -> None:
    node.say(EVERY)
    said = []
    for _ in range(5):
        said.append(node.state.pieces_said)
        await asyncio.sleep(0)
    assert said == [0, 1, 2, 3, 3]


async def test_there_is_one_snapshot_at_a_time_and_the_next_is_not_forgotten(node: Node) -> None:
    node.say(3 * EVERY)
    await turns()
    assert len(node.worker.jobs) == 1
    node.worker.work()
    await turns()
    first = node.core.log.snapshot.index
    node.say(1)
    await until_written(node)
    assert node.core.log.snapshot.index > first + EVERY
    assert len(node.state.taken) == 2


async def test_a_loss_of_power_before_it_is_in_force_costs_nothing(node: Node) -> None:
    node.say(EVERY)
    await turns()
    node.worker.jobs[0][0]()  # the file is written, and the loop has not heard of it
    assert node.stored() == (0, b"", node.core.log.last_index)


async def test_it_is_known_while_one_is_being_written(node: Node) -> None:
    for full in ("snapshot", None):
        node.disk.full_for = full
        seen = [node.taker.writing_since_ms]
        node.say(2000)
        await turns()
        seen.append(node.taker.writing_since_ms)
        node.worker.work()
        await turns()
        seen.append(node.taker.writing_since_ms)
        assert [since_ms is not None for since_ms in seen] == [False, True, False]
    assert len(node.state.taken) == 1


async def test_a_newer_snapshot_of_the_leader_wins(node: Node) -> None:
    node.say(EVERY)
    await turns()
    node.say(1)
    newer = node.core.snapshot_of(node.core.log.applied, b"from the leader")
    node.core.compact(newer)
    node.storage.save_snapshot(newer)
    node.taker.installed()
    node.worker.work()
    await turns()
    assert node.state.taken == []
    assert node.stored()[:2] == (newer.index, b"from the leader")


async def test_a_full_disk_is_tried_again_some_entries_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshot_taker, "SNAPSHOT_RETRY_ENTRIES", 5)
    node.say(EVERY)
    node.disk.full_for = "snapshot"
    await until_written(node)
    assert "no space for a snapshot, the log grows on" in caplog.text
    assert (node.failures, node.state.taken) == ([], [])
    node.disk.full_for = None
    node.say(EVERY + 4)
    await turns()
    assert node.worker.jobs == []
    node.say(1)
    await until_written(node)
    assert len(node.state.taken) == 1


async def test_a_disk_that_fails_stops_the_node(node: Node) -> None:
    node.say(EVERY)
    node.disk.fail_syncs = "snapshot"
    await until_written(node)
    assert [type(failure) for failure in node.failures] == [StorageError]


async def test_a_mistake_in_encoding_stops_the_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise KeyError("mistake")

    monkeypatch.setattr(node.state, "snapshot_pieces", broken)
    node.say(EVERY)
    await turns()
    assert "no snapshot can be taken: KeyError" in str(node.failures[0])


async def test_stopping_gives_up_the_one_under_way(node: Node) -> None:
    node.say(EVERY)
    await turns(2)
    await node.taker.stop()
    assert node.worker.jobs == []
    node.say(EVERY)
    await turns()
    await node.taker.stop()
    node.worker.work()
    await turns()
    assert node.state.taken == []


async def test_a_snapshot_is_taken_early_for_who_wants_to_know_how_large_it_is() -> None:
    node = Node()
    node.say(1)
    assert node.state.pieces_said == 0
    node.state.wants_snapshot = True
    node.say(1)
    await until_written(node)
    assert len(node.state.taken) == 1


async def test_one_that_somebody_waits_for_is_tried_again_after_some_time_also_without_entries(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is refused for what the metadata take proposes nothing, so the entries do not come."""
    monkeypatch.setattr(snapshot_taker, "SNAPSHOT_WANTED_RETRY_S", 1e9)
    node.state.wants_snapshot = True
    node.disk.full_for = "snapshot"
    node.say(1)
    await until_written(node)
    node.disk.full_for = None
    node.say(EVERY)
    node.taker.look(node.core.log.applied)
    await turns()
    assert node.worker.jobs == []
    monkeypatch.setattr(snapshot_taker, "SNAPSHOT_WANTED_RETRY_S", 0)
    node.taker.look(node.core.log.applied)
    await until_written(node)
    assert len(node.state.taken) == 1
    node.taker.look(node.core.log.applied)
    await turns()
    assert node.worker.jobs == [], "nothing was applied since"


async def test_time_alone_calls_for_no_snapshot(node: Node) -> None:
    node.say(1)
    node.taker.look(node.core.log.applied)
    await turns()
    assert node.state.pieces_said == 0
