"""A disk that becomes full in the middle of a flush, and what is settled before the flush is tried again.

Whatever the refused write left: nothing that was acked comes back, a start reports no damage, and what is still there
is whole.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from node.errors import DiskFullError, StorageError
from node.ids import QueueId, QueueName
from node.queues.backing_queue import Publication
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import VhostStore
from node.store.disk.disk import RealDisk, read_whole, write_durably
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.formats.record import HEADER_BYTES
from node.store.index.terms import RESERVE_STEP, SeqBounds
from node.store.shared.config import StoreConfig
from tests.support.amounts import few_fast
from tests.support.full_disk import Refusal
from tests.support.index_driver import DIRECTORY, V1, IndexDriver
from tests.support.messages import make_message, publications
from tests.support.shared_store import SharedStoreNode
from tests.support.stores import StoreHarness, run_sync_round

#: Which share of the longest prefix a refused write puts down.
SHARES = (0.0, 0.4, 1.0)
BODY = b"b" * 90


def harness_of(version: int, *, shared: bool) -> StoreHarness:
    embed_below_bytes = 60 if shared else 4096
    return StoreHarness(
        StoreConfig(
            queue_version=version,
            embed_below_bytes=embed_below_bytes,
            v1_segment_entries=8,
            v1_journal_entries_max=4,
            v2_segment_entries=8,
        )
    )


def publish_with_a_gap(queue: LocalReplica) -> None:
    """Ten messages in two segments, and one between them that touches no file: the slots are not neighbours."""
    queue.publish(publications(1, 4, body=BODY))
    queue.publish(publications(5, 1, persistent=False, body=BODY))
    queue.publish(publications(6, 6, body=BODY))


def settle_all(queue: LocalReplica, how: str) -> None:
    if how == "ack":
        queue.ack([delivery.seq_id for delivery in queue.fetch(20, ack_required=True)])
    elif how == "purge":
        queue.purge()
    else:
        queue.requeue([delivery.seq_id for delivery in queue.fetch(20, ack_required=True)])
        queue.ack([delivery.seq_id for delivery in queue.fetch(20, ack_required=True)])


def go_on(harness: StoreHarness, queue: LocalReplica) -> None:
    queue.publish(publications(20, 1, body=b"other" * 3))
    for _ in range(3):
        harness.store.maintain(1 << 40)
        harness.store.flush_writes()
        harness.sync()
    assert not queue.is_disk_full
    assert queue.ready == 1


FAULTS = [(2, ".qi"), (2, ".qs"), (2, ".rdq"), (1, ".jif"), (1, ".idx"), (1, ".rdq")]


@pytest.mark.parametrize(
    ("version", "suffix", "share", "how"),
    few_fast(((*fault, share, how) for how in ("ack", "purge", "requeue") for share in SHARES for fault in FAULTS), 7),
)
def test_what_is_settled_before_it_could_be_written_stays_settled(
    version: int, suffix: str, share: float, how: str
) -> None:
    """Whichever write of the flush was the last one."""
    has_come = 0
    for shared in (False, True):
        for number in range(1, 8):
            for style in (None, *CrashStyle):
                harness = harness_of(version, shared=shared)
                queue = harness.open_queue()
                publish_with_a_gap(queue)
                with Refusal(harness.disk, suffix, number, share) as refusal:
                    harness.store.flush_writes()
                    queue.check_invariants()
                    settle_all(queue, how)
                    harness.store.flush_writes()
                    harness.sync()
                    queue.check_invariants()
                has_come += refusal.has_come
                go_on(harness, queue)
                harness.store.check_invariants()
                queue = restart(harness, style, seed=number)
                report = queue.recovery_report
                assert report is not None
                assert (report.corrupt, harness.store.store_recovery.corrupt) == (0, [])
                assert [d.message.body for d in queue.fetch(20, ack_required=True)] == [b"other" * 3]
            if not refusal.has_come:
                break  # the flush has fewer writes than that
    assert has_come


def restart(harness: StoreHarness, style: CrashStyle | None, seed: int) -> LocalReplica:
    """After a loss of power, or only a kill."""
    if style is not None:
        return harness.crash(style, seed)
    harness.start()
    return harness.open_queue()


@pytest.mark.parametrize(
    ("version", "suffix", "share"), few_fast(((*fault, share) for share in SHARES for fault in FAULTS), 7)
)
def test_what_is_not_settled_is_confirmed_and_there(version: int, suffix: str, share: float) -> None:
    for shared in (False, True):
        for number in range(1, 8):
            for style in (None, *CrashStyle):
                harness = harness_of(version, shared=shared)
                queue = harness.open_queue()
                queue.publish([Publication(make_message(n, body=BODY + bytes([n])), n) for n in range(1, 11)])
                with Refusal(harness.disk, suffix, number, share):
                    for _ in range(2):
                        harness.store.flush_writes()
                        harness.store.maintain(0)
                    half = [delivery.seq_id for delivery in queue.fetch(10, ack_required=True)][::2]
                    queue.ack(half)
                    harness.store.flush_writes()
                    harness.sync()
                for _ in range(3):
                    harness.store.maintain(1 << 40)
                    harness.sync()
                confirmed = [token for token in queue.drain_confirmed() if isinstance(token, int)]
                assert sorted(confirmed) == list(range(1, 11))
                queue.check_invariants()
                queue = restart(harness, style, seed=number)
                report = queue.recovery_report
                assert report is not None
                assert (report.corrupt, harness.store.store_recovery.corrupt) == (0, [])
                found = [delivery.message.body[-1] for delivery in queue.fetch(20, ack_required=True)]
                assert [n for n in found if n % 2 == 0] == [2, 4, 6, 8, 10]
                # Acks are not synced: only a loss of power may undo them.
                assert style is not None or found == [2, 4, 6, 8, 10]


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("share", SHARES)
def test_a_refused_copy_does_not_bring_back_what_is_acked_meanwhile(old: int, new: int, share: float) -> None:
    """With a hole among the copies, so that they are written in two pieces."""
    has_come = 0
    for suffix in (".qi", ".qs", ".jif"):
        for number in range(1, 8):
            harness = harness_of(old, shared=False)
            queue = harness.open_queue()
            queue.publish(publications(1, 8, body=BODY))
            harness.sync()
            deliveries = queue.fetch(5, ack_required=True)
            queue.ack([deliveries[4].seq_id])
            queue.requeue([delivery.seq_id for delivery in deliveries[:4]])
            harness.sync()
            with Refusal(harness.disk, suffix, number, share) as refusal:
                queue.set_index_version(new)
                for _ in range(6):
                    harness.store.maintain(1 << 40)
                    harness.sync()
                queue.check_invariants()
            has_come += refusal.has_come
            queue.ack([delivery.seq_id for delivery in queue.fetch(20, ack_required=True)])
            go_on(harness, queue)
            queue = restart(harness, (None, CrashStyle.DROP)[number % 2], seed=number)
            report = queue.recovery_report
            assert report is not None
            assert report.corrupt == 0, report.problems
            assert [d.message.body for d in queue.fetch(20, ack_required=True)] == [b"other" * 3]
    assert has_come


@pytest.mark.parametrize("version", [1, 2])
def test_a_clean_stop_on_a_full_disk_is_not_clean_and_loses_nothing(version: int) -> None:
    harness = harness_of(version, shared=False)
    queue = harness.open_queue()
    queue.publish(publications(1, 3))
    harness.sync()
    queue.publish(publications(4, 3))
    with Refusal(harness.disk, (".jif", ".qi")[version - 1], 1, 0.6):
        harness.store.flush_writes()
        queue.ack([delivery.seq_id for delivery in queue.fetch(6, ack_required=True)[3:]])
        queue.publish(publications(7, 1))
        # Whether it can stop cleanly or not.
        with suppress(StorageError):
            harness.store.close()
    harness.start()
    queue = harness.open_queue()
    report = queue.recovery_report
    assert report is not None
    assert report.corrupt == 0
    found = [int(delivery.seq_id) for delivery in queue.fetch(9, ack_required=True)]
    assert found in ([0, 1, 2], [0, 1, 2, 6])


# -- other files


def test_a_journal_that_was_carried_over_makes_room_for_the_next() -> None:
    driver = IndexDriver(V1)
    driver.publish(13)
    driver.sync()
    assert driver.disk.exists(f"{DIRECTORY}/0.jif")
    driver.publish(1)
    assert driver.flush_without_room(0, lambda longest: longest)
    driver.check()


@pytest.mark.parametrize("version", [1, 2])
def test_consuming_makes_room_for_what_was_refused(version: int) -> None:
    """Acks of version 1 take a little space, too: they do not wait for the publish beside them."""
    harness = harness_of(version, shared=False)
    queue = harness.open_queue()
    for first in range(1, 81, 8):
        queue.publish(publications(first, 8, body=bytes(50)))
        harness.sync()
        harness.store.maintain(first)
    # Bigger than a journal that is soon deleted.
    harness.disk.capacity_bytes = harness.disk.used_bytes + 400
    queue.publish(publications(81, 1, body=bytes(2000)))
    harness.store.flush_writes()
    assert queue.is_disk_full
    queue.ack([delivery.seq_id for delivery in queue.fetch(80, ack_required=True)])
    for tick in range(100, 130):
        harness.store.maintain(tick)
        harness.store.flush_writes()
        harness.sync()
    assert not harness.store.has_unflushed
    assert harness.restart().ready == 1


def test_a_segment_of_version_1_that_could_not_be_begun_is_not_there() -> None:
    driver = IndexDriver(V1)
    with Refusal(driver.disk, ".idx", 1, 0.5) as refusal:
        driver.publish(6)
        driver.flush()
        driver.publish(7)
        driver.flush()
    assert refusal.has_come
    assert not [name for name in driver.disk.list(DIRECTORY) if name.endswith(".idx")]
    driver.settle_range(0, 13)
    driver.flush()
    driver.restart()


def test_the_bound_of_the_positions_is_due_until_it_is_written() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/q")
    bounds = SeqBounds(disk, "/q/seq.bounds", 7, GroupCommit())
    for room_bytes in (0, 30, HEADER_BYTES, HEADER_BYTES + 5):
        disk.capacity_bytes = disk.used_bytes + room_bytes
        with pytest.raises(DiskFullError):
            bounds.renew(0)
        assert (bounds.renew_at, bounds.reserved) == (0, 0)
        if room_bytes >= HEADER_BYTES:
            break
    disk.capacity_bytes = 1 << 20
    group_commit = GroupCommit()
    bounds = SeqBounds(disk, "/q/seq.bounds", 7, group_commit)
    bounds.renew(0)
    run_sync_round(group_commit)
    disk.crash(CrashStyle.DROP, random.Random(0))
    assert read_whole(disk, "/q/seq.bounds").startswith(b"WRSB")
    assert SeqBounds(disk, "/q/seq.bounds", 7, GroupCommit()).reserved == RESERVE_STEP


def test_a_shared_store_leaves_no_files_of_attempts() -> None:
    node = SharedStoreNode(StoreConfig())
    before = node.files()
    for room_bytes in (0, 10, HEADER_BYTES - 1):
        node.disk.capacity_bytes = node.disk.used_bytes + room_bytes
        with pytest.raises(DiskFullError):
            node.write(1)
    assert node.files() == before


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_could_not_be_begun_are_not_there(version: int) -> None:
    harness = harness_of(version, shared=False)
    queue = harness.open_queue()
    harness.sync()
    before = harness.disk.list(harness.queue_directory)
    for room_bytes in (0, 10, HEADER_BYTES + 10):
        harness.disk.capacity_bytes = harness.disk.used_bytes + room_bytes
        queue.publish(publications(1, 1))
        harness.store.flush_writes()
        queue.purge()
        if version == 2 or room_bytes < HEADER_BYTES:
            assert set(harness.disk.list(harness.queue_directory)) - {"seq.bounds"} <= set(before)
        harness.store.flush_writes()
    harness.disk.capacity_bytes = 1 << 40
    queue = harness.restart()
    assert queue.recovery_report is not None
    assert queue.recovery_report.clean


def test_a_queue_that_could_not_be_declared_leaves_no_name_and_can_be_declared_later() -> None:
    harness = StoreHarness(StoreConfig())
    for room_bytes in (0, 10):
        harness.disk.capacity_bytes = harness.disk.used_bytes + room_bytes
        with pytest.raises(DiskFullError):
            harness.open_queue()
        assert harness.disk.list(harness.queue_directory) == []
    harness.disk.capacity_bytes = 1 << 40
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    assert harness.restart().ready == 1


def test_what_could_not_be_written_durably_takes_no_space() -> None:
    disk = SimulatedDisk(capacity_bytes=100)
    disk.mkdir("/d")
    write_durably(disk, "/d/small", b"old")
    with pytest.raises(DiskFullError):
        write_durably(disk, "/d/small", bytes(200))
    assert disk.list("/d") == ["small"]
    assert read_whole(disk, "/d/small") == b"old"


# -- the real disk


@contextmanager
def room_on_the_real_disk(monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> Iterator[None]:
    """The system writes so many bytes more, and then refuses."""
    real_pwrite: Callable[..., int] = os.pwrite
    left = [room_bytes]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real_pwrite(fd, data[: left[0]], offset)
        left[0] -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        yield


@pytest.mark.parametrize("room_bytes", [0, 1, 3, 9])
def test_a_refused_append_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    path = tmp_path / "file"
    file = RealDisk().create(str(path))
    file.append(b"old")
    file.sync()
    with room_on_the_real_disk(monkeypatch, room_bytes), pytest.raises(DiskFullError):
        file.append(bytes(10))
    assert (path.read_bytes(), file.size, file.has_unsynced) == (b"old", 3, bool(room_bytes))
    assert file.append(b"new") == 3
    assert path.read_bytes() == b"oldnew"


def test_inside_the_length_of_a_file_a_part_of_what_was_refused_may_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    file = RealDisk().create(str(path))
    file.truncate(6)
    with room_on_the_real_disk(monkeypatch, 4), pytest.raises(DiskFullError):
        file.pwrite(b"abcdefgh", 3)
    assert path.read_bytes() == b"\0\0\0abc"
    disk = SimulatedDisk()
    disk.mkdir("/d")
    twin = disk.create("/d/file")
    twin.truncate(6)
    disk.capacity_bytes = disk.used_bytes + 4
    with pytest.raises(DiskFullError):
        twin.pwrite(b"abcdefgh", 3)
    assert read_whole(disk, "/d/file") == path.read_bytes()
    assert twin.size == file.size == 6


@pytest.mark.parametrize("size", [5, 333, 700])
def test_a_shorter_message_behind_a_refused_batch_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def start() -> tuple[GroupCommit, VhostStore, LocalReplica]:
        group_commit = GroupCommit()
        store = VhostStore(RealDisk(), str(tmp_path), "/", group_commit, StoreConfig(embed_below_bytes=1))
        return group_commit, store, store.open_queue(QueueId(7), QueueName("/", "orders"), durable=True)

    group_commit, store, queue = start()
    queue.publish(publications(1, 1, body=bytes(10)))
    run_sync_round(group_commit)
    queue.publish(publications(2, 20, body=bytes(1000)))
    with room_on_the_real_disk(monkeypatch, 5000):
        store.flush_writes()
    assert queue.is_disk_full
    queue.purge()
    queue.publish(publications(30, 1, body=bytes(size)))
    run_sync_round(group_commit)
    # As after a kill.
    _, store, queue = start()
    assert (queue.ready, store.store_recovery.corrupt, store.store_recovery.torn) == (1, [], 0)
