"""The storage of a node's queues: what an idle node still has to sync, and what the log says of damage."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.runtime.queue_files import DELETE_AGAIN_EVERY_MS, STEPS_PER_OTHER, NodeQueueFiles, recovery_text
from node.errors import DiskFullError, StorageError
from node.ids import QueueId
from node.pieces import at_once
from node.queues.vhost_store import VHOST_FILE_NAME, VhostStore, vhost_directory
from node.store.disk.disk import FREEING, DiskFile, RealDisk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.guarded import WRITE_EVERY_MS
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.index.index import RecoveryReport
from node.store.shared.compaction.compaction import Reclaimed
from node.store.shared.config import StoreConfig
from node.store.steps import run_through
from node.topology.records import QueueRecord
from tests.support.descriptors import open_descriptors
from tests.support.messages import publications
from tests.support.stores import DATA_DIRECTORY, open_at_once, run_sync_round

RECORD = QueueRecord(QueueId(7), "/", "orders", True, None, False, {})


class Files:
    """The storage of one node; the test plays its timer and the thread of the group commit."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.now_ms = 0
        self.start()

    def start(self) -> None:
        self.group_commit = GroupCommit()
        self.files = NodeQueueFiles(self.disk, DATA_DIRECTORY, self.group_commit, StoreConfig(), lambda: 0.0)
        self.queue = open_at_once(self.files, RECORD)

    def tick(self) -> bool:
        self.now_ms += WRITE_EVERY_MS
        return self.files.maintain(self.now_ms)

    def fill(self) -> None:
        self.queue.publish(publications(1, 10))
        self.queue.publish(publications(11, 2, body=bytes(5000)))
        run_sync_round(self.group_commit)
        while self.tick():
            run_sync_round(self.group_commit)

    def path(self, suffix: str) -> str:
        (path,) = (path for path in self.disk.snapshot() if path.endswith(suffix))
        return path


def test_an_idle_node_asks_for_the_sync_of_what_maintenance_wrote_and_then_for_nothing_more() -> None:
    node = Files()
    node.queue.publish(publications(1, 10))
    run_sync_round(node.group_commit)
    assert node.tick(), "lengths were noted"
    run_sync_round(node.group_commit)
    assert not node.tick()


@pytest.mark.parametrize(("suffix", "where"), [("0.qs", "orders"), ("0.rdq", "shared store of vhost /")])
def test_damage_is_an_error_in_the_log(suffix: str, where: str, caplog: pytest.LogCaptureFixture) -> None:
    node = Files()
    node.fill()
    node.disk.crash(CrashStyle.DROP, random.Random(0))
    node.start()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    file = node.disk.open(node.path(suffix))
    file.truncate(file.size - 10)
    file.sync()
    node.disk.crash(CrashStyle.DROP, random.Random(0))
    node.start()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(where in error and "10 durable bytes are missing" in error for error in errors), errors


def test_a_recovery_is_told_in_sentences(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = Files()
    node.fill()
    node.disk.crash(CrashStyle.DROP, random.Random(0))
    node.start()
    queue, store = sorted(record.getMessage() for record in caplog.records if "recovered" in record.getMessage())
    assert re.sub(r"[\d.]+ s ", "N s ", queue) == (
        "queue 'orders' in vhost '/': recovered after a crash in N s with 12 messages (10091 bytes), 12 of which "
        "may have been delivered before"
    )
    assert re.sub(r"[\d.]+ s ", "N s ", store) == (
        "shared store of vhost /: recovered by a scan (a clean start was not allowed) in N s with 2 messages"
    )


def test_the_sentence_on_a_recovery_counts_what_was_dropped() -> None:
    report = RecoveryReport(
        clean=False, messages=1, body_bytes=3, transient=1, torn=2, torn_acks=1, corrupt=3, seconds=0.5
    )
    assert recovery_text(report) == (
        "recovered after a crash in 0.500 s with 1 message (3 bytes); dropped: 1 transient, 2 that were not wholly "
        "written, 3 damaged; counted 1 unfinished ack"
    )
    clean = RecoveryReport(clean=True, messages=2, body_bytes=3, redelivered=1)
    assert recovery_text(clean) == (
        "recovered after a clean stop in 0.000 s with 2 messages (3 bytes), 1 of which may have been delivered before"
    )


def test_vhosts_take_turns_in_reclaiming_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step a turn, whatever the number of vhosts; where garbage piles up it goes on, elsewhere it can wait."""
    node = Files()
    for number, vhost in enumerate(("a", "b", "c"), 1):
        open_at_once(node.files, QueueRecord(QueueId(number), vhost, "q", True, None, False, {}))
    steps: list[str] = []
    urgent = {"b"}

    def reclaim(store: VhostStore) -> Reclaimed:
        vhost = next(name for name in ("/", "a", "b", "c") if store.directory == vhost_directory(DATA_DIRECTORY, name))
        steps.append(vhost)
        return Reclaimed(has_worked=True, is_urgent=vhost in urgent)

    monkeypatch.setattr(VhostStore, "reclaim", reclaim)
    said = [node.files.reclaim().is_urgent for _ in range(STEPS_PER_OTHER)]
    assert steps == ["/", "a", *["b"] * (STEPS_PER_OTHER - 3), "c"]
    assert said == [False, False, *[True] * (STEPS_PER_OTHER - 2)]
    urgent.clear()
    assert [node.files.reclaim().is_urgent for _ in range(5)] == [False] * 5
    assert steps[STEPS_PER_OTHER:] == ["b", "/", "a", "c", "b"]


def test_a_vhost_without_garbage_takes_no_time_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Files()
    for number in range(1, 6):
        open_at_once(node.files, QueueRecord(QueueId(number), f"v{number}", "q", True, None, False, {}))
    steps: list[str] = []

    def reclaim(store: VhostStore) -> Reclaimed:
        steps.append(store.directory)
        return Reclaimed(has_worked=store.directory == vhost_directory(DATA_DIRECTORY, "v4"), is_urgent=False)

    monkeypatch.setattr(VhostStore, "reclaim", reclaim)
    assert [node.files.reclaim() for _ in range(3)] == [Reclaimed(has_worked=True, is_urgent=False)] * 3
    assert steps.count(vhost_directory(DATA_DIRECTORY, "v4")) == 3


def test_a_vhost_that_waits_for_the_disk_is_asked_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Files()
    for number in range(1, 6):
        open_at_once(node.files, QueueRecord(QueueId(number), f"v{number}", "q", True, None, False, {}))
    waits = vhost_directory(DATA_DIRECTORY, "v4")
    steps: list[str] = []

    def reclaim(store: VhostStore) -> Reclaimed:
        steps.append(store.directory)
        return Reclaimed(has_worked=False, is_urgent=store.directory == waits)

    monkeypatch.setattr(VhostStore, "reclaim", reclaim)
    assert node.files.reclaim() == Reclaimed(has_worked=False, is_urgent=True)
    assert len(set(steps)) == len(steps) == 6
    assert node.files.reclaim() == Reclaimed(has_worked=False, is_urgent=True)
    assert steps[6:] == [waits]


def test_garbage_that_piles_up_in_one_vhost_does_not_hide_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Files()
    vhosts = [f"v{number}" for number in range(20)]
    for number, vhost in enumerate(vhosts, 1):
        open_at_once(node.files, QueueRecord(QueueId(number), vhost, "q", True, None, False, {}))
    steps: set[str] = set()

    def reclaim(store: VhostStore) -> Reclaimed:
        steps.add(store.directory)
        return Reclaimed(has_worked=True, is_urgent=True)

    monkeypatch.setattr(VhostStore, "reclaim", reclaim)
    for _ in range(21 * STEPS_PER_OTHER):
        assert node.files.reclaim().is_urgent
    assert len(steps) == 21


# --- vhosts that no longer exist


def paths_of(node: Files, vhost: str) -> list[str]:
    """Those of its directory, also when that was moved aside."""
    directory = vhost_directory(DATA_DIRECTORY, vhost)
    return [path for path in node.disk.snapshot() if path.startswith(directory)]


def work_on(node: Files) -> None:
    for _ in range(20):
        node.tick()
        run_sync_round(node.group_commit)


def test_nothing_is_left_of_a_vhost_that_was_deleted_while_its_queues_were_open() -> None:
    node = Files()
    node.fill()
    other = QueueRecord(QueueId(8), "of another", "orders", True, None, False, {})
    kept = open_at_once(node.files, other)
    kept.publish(publications(1, 3))
    node.queue.delete()
    node.files.vhosts_are(["of another"])
    work_on(node)
    assert paths_of(node, "/") == []
    assert not node.files.has_unsynced
    node.files.check_invariants()
    assert kept.ready == 3
    node.files.close()
    assert paths_of(node, "of another")


def test_what_a_queue_of_a_deleted_vhost_still_has_to_give_back_is_waited_for() -> None:
    node = Files()
    node.fill()
    node.files.vhosts_are([])
    work_on(node)
    assert paths_of(node, "/"), "it is open"
    node.queue.delete()
    work_on(node)
    assert paths_of(node, "/") == []


def test_a_vhost_of_the_same_name_has_nothing_of_the_one_before() -> None:
    node = Files()
    node.fill()
    node.queue.delete()
    node.files.vhosts_are([])
    node.tick()
    again = open_at_once(node.files, replace(RECORD, queue_id=QueueId(9)))
    again.publish(publications(1, 3))
    node.files.vhosts_are(["/"])
    work_on(node)
    assert again.ready == 3
    node.files.close()
    node.start()
    assert open_at_once(node.files, replace(RECORD, queue_id=QueueId(9))).ready == 3


@pytest.mark.parametrize("is_moved", [False, True], ids=["found whole", "found moved aside"])
def test_a_vhost_that_was_deleted_while_this_node_was_away_is_removed_in_steps(is_moved: bool) -> None:
    node = Files()
    node.fill()
    for number in range(40):
        open_at_once(node.files, replace(RECORD, queue_id=QueueId(100 + number)))
    node.files.close()
    node.group_commit = GroupCommit()
    node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)
    if is_moved:
        node.files.vhosts_are([])
        node.disk.lose_handles()
        node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)
    count = len(paths_of(node, "/"))
    node.files.vhosts_are([])
    node.tick()
    assert len(paths_of(node, "/")) == count, "its new name is not durable yet"
    run_sync_round(node.group_commit)
    for _ in range(2):
        node.tick()
    assert count > len(paths_of(node, "/")) > 0
    work_on(node)
    assert paths_of(node, "/") == []


@pytest.mark.parametrize("is_open", [False, True])
def test_a_vhost_that_cannot_be_removed_is_told_of_and_stays(
    is_open: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Files()
    node.fill()
    if is_open:
        node.queue.delete()
        work_on(node)
    else:
        node.files.close()
        node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)

    def refuse(_old_path: str, _new_path: str) -> None:
        raise StorageError("read-only file system")

    monkeypatch.setattr(node.disk, "rename", refuse)
    node.files.vhosts_are([])
    work_on(node)
    assert re.search(r"files of vhosts? .*no longer exists?.* on the disk: read-only file system", caplog.text)
    assert paths_of(node, "/")
    monkeypatch.undo()
    node.files.vhosts_are([])
    work_on(node)
    assert paths_of(node, "/") == []


def start_without_queues(node: Files, on_vhost_wanted: Callable[[str], None] | None = None) -> None:
    """A clean restart; the cluster has the vhost "/", and no queue of it has a copy here."""
    node.files.close()
    node.group_commit = GroupCommit()
    node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)

    def open_vhost(vhost: str) -> None:
        steps = node.files.vhost_opening(vhost)
        if steps is not None:
            run_through(steps)

    node.files.on_vhost_wanted = on_vhost_wanted or open_vhost
    at_once(node.files.delete_unknown(["/"], []))


@pytest.mark.parametrize("is_crowded", [False, True], ids=["one queue", "queues that take several steps"])
def test_what_is_left_of_deleted_queues_goes_though_no_queue_comes_to_the_vhost(is_crowded: bool) -> None:
    node = Files()
    node.fill()
    node.queue.publish(publications(20, 50, body=bytes(100_000)))
    run_sync_round(node.group_commit)
    others = [replace(RECORD, queue_id=QueueId(100 + number)) for number in range(20 if is_crowded else 0)]
    for queue in [open_at_once(node.files, record) for record in others]:
        queue.terminate()
    node.queue.terminate()
    for record in (RECORD, *others):
        node.files.delete_queue(record)
    start_without_queues(node)
    for _ in range(40):
        node.tick()
        node.files.reclaim()
        run_sync_round(node.group_commit)
    left = {path: len(content) for path, content in node.disk.snapshot().items()}
    assert not [path for path in left if "/deleting/" in path]
    assert not [path for path in left if path.endswith(".rdq")]
    wanted: list[str] = []
    start_without_queues(node, wanted.append)
    assert wanted == [], "nothing is left to be done"


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_deleted_vhost_that_nobody_opens_goes_unless_it_is_awaited(is_awaited: bool) -> None:
    node = Files()
    node.fill()
    node.queue.delete()
    work_on(node)
    node.files.close()
    node.group_commit = GroupCommit()
    node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)
    handles = node.disk.open_handles
    at_once(node.files.delete_unknown(["/"], []))
    node.files.is_vhost_awaited = lambda _vhost: is_awaited
    node.files.vhosts_are([])
    work_on(node)
    assert bool(paths_of(node, "/")) == is_awaited
    assert is_awaited or node.disk.open_handles == handles


def test_a_deleted_vhost_goes_whose_opening_fails() -> None:
    node = Files()
    node.fill()
    node.files.close()
    node.group_commit = GroupCommit()
    node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)
    assert node.files.vhost_opening("/") is not None
    node.files.vhosts_are([])
    node.files.vhost_failed("/")
    work_on(node)
    assert paths_of(node, "/") == []


def test_no_vhost_is_opened_to_delete_a_queue_of_it_when_it_is_deleted_itself() -> None:
    node = Files()
    node.fill()
    node.files.close()
    node.group_commit = GroupCommit()
    node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)
    wanted: list[str] = []
    node.files.on_vhost_wanted = wanted.append
    at_once(node.files.delete_unknown(["/"], [RECORD.queue_id]))
    wanted.clear()
    node.files.vhosts_are([])
    node.files.delete_queue(RECORD)
    work_on(node)
    assert wanted == []
    assert paths_of(node, "/") == []


def test_damage_of_one_vhost_keeps_no_deleted_queue_of_another(caplog: pytest.LogCaptureFixture) -> None:
    node = Files()
    other = QueueRecord(QueueId(8), "of another", "orders", True, None, False, {})
    open_at_once(node.files, other)
    node.files.close()
    file = node.disk.open(f"{vhost_directory(DATA_DIRECTORY, '/')}/{VHOST_FILE_NAME}")
    file.truncate(10)
    file.close()
    node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, node.group_commit, StoreConfig(), lambda: 0.0)
    wanted: list[str] = []
    node.files.on_vhost_wanted = wanted.append
    at_once(node.files.delete_unknown(["/", "of another"], []))
    assert wanted == ["of another"]
    assert re.search(r"vhost /: .*stay on the disk: .*vhost.json is damaged", caplog.text)


@pytest.mark.parametrize("opened_before", range(6))
def test_an_opening_of_a_vhost_that_fails_leaves_no_file_open(
    opened_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again with every queue that comes to it."""
    filled = NodeQueueFiles(RealDisk(), str(tmp_path), GroupCommit(), StoreConfig(), lambda: 0.0)
    open_at_once(filled, RECORD).publish(publications(1, 3, body=bytes(5000)))
    filled.close()
    FREEING.wait()  # what was unlinked is let go beside us
    before = open_descriptors(tmp_path)  # of files that wait for their sync
    files = NodeQueueFiles(RealDisk(), str(tmp_path), GroupCommit(), StoreConfig(), lambda: 0.0)
    really_open = RealDisk.open
    opened = 0

    def refuse(disk: RealDisk, path: str) -> DiskFile:
        nonlocal opened
        opened += 1
        if opened > opened_before:
            raise StorageError("input/output error")
        return really_open(disk, path)

    monkeypatch.setattr(RealDisk, "open", refuse)
    with pytest.raises(StorageError):
        open_at_once(files, RECORD)
    files.vhost_failed("/")
    FREEING.wait()
    assert open_descriptors(tmp_path) == before


@contextmanager
def undeleted(node: Files) -> Iterator[None]:
    """The disk has refused to delete the queue, and still refuses to rename."""
    node.fill()
    node.queue.terminate()

    def refuse(_old_path: str, _new_path: str) -> None:
        raise DiskFullError("rename failed: No space left on device (errno 28)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.disk, "rename", refuse)
        with pytest.raises(DiskFullError):
            node.files.delete_queue(RECORD)
        yield


def test_a_queue_that_could_not_be_deleted_is_deleted_later() -> None:
    node = Files()
    with undeleted(node):
        node.tick()
    node.now_ms += DELETE_AGAIN_EVERY_MS
    work_on(node)
    assert not [path for path in node.disk.snapshot() if f"/{RECORD.queue_id}/" in path or "/deleting/" in path]


@pytest.mark.parametrize("is_vhost_deleted", [False, True])
def test_a_vhost_that_could_not_be_opened_to_delete_a_queue_of_it_is_opened_later(is_vhost_deleted: bool) -> None:
    node = Files()
    node.fill()
    node.queue.terminate()
    wanted: list[str] = []

    def open_vhost(vhost: str) -> None:
        wanted.append(vhost)
        try:
            steps = node.files.vhost_opening(vhost)
            assert steps is not None
            run_through(steps)
        except StorageError:
            node.files.vhost_failed(vhost)

    start_without_queues(node, lambda _vhost: None)
    node.files.vhost_failed("/")
    node.files.on_vhost_wanted = open_vhost
    node.disk.open_limit = node.disk.open_handles
    node.files.delete_queue(RECORD)
    assert wanted == ["/"]
    node.disk.open_limit = None
    if is_vhost_deleted:
        node.files.vhosts_are([])
    node.now_ms += DELETE_AGAIN_EVERY_MS
    work_on(node)
    assert wanted == (["/"] if is_vhost_deleted else ["/", "/"])
    assert not [path for path in node.disk.snapshot() if f"/{RECORD.queue_id}/" in path or "/deleting/" in path]


def test_a_vhost_that_could_not_be_opened_for_what_is_left_in_it_is_opened_later() -> None:
    """No queue of it has a copy here: nobody else asks for it."""
    node = Files()
    node.fill()
    node.queue.delete()
    run_sync_round(node.group_commit)
    wanted: list[str] = []

    def open_the_second_time(vhost: str) -> None:
        wanted.append(vhost)
        steps = node.files.vhost_opening(vhost)
        assert steps is not None
        if len(wanted) == 1:
            node.files.vhost_failed(vhost)
        else:
            run_through(steps)

    start_without_queues(node, open_the_second_time)
    assert wanted == ["/"]
    node.now_ms += DELETE_AGAIN_EVERY_MS
    work_on(node)
    assert wanted == ["/", "/"]
    assert not [path for path in node.disk.snapshot() if "/deleting/" in path]


def test_a_queue_that_could_not_be_deleted_and_is_wanted_again_stays() -> None:
    node = Files()
    with undeleted(node):
        pass
    depth = open_at_once(node.files, RECORD).ready
    node.now_ms += DELETE_AGAIN_EVERY_MS
    work_on(node)
    assert depth
    assert [path for path in node.disk.snapshot() if f"/queues/{RECORD.queue_id}/" in path]


@pytest.mark.parametrize("refused", ["rename", "open"], ids=["cannot be moved", "has a name that cannot be read"])
def test_one_unknown_queue_that_cannot_be_deleted_keeps_no_other(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Files()
    node.fill()
    others = [replace(RECORD, queue_id=QueueId(number)) for number in (8, 9)]
    for queue in (node.queue, *[open_at_once(node.files, other) for other in others]):
        queue.terminate()
    wanted = getattr(node.disk, refused)

    def refuse(path: str, *others: str) -> object:
        if f"/queues/{RECORD.queue_id}" in path:
            raise StorageError(f"{refused} of {path} failed: Input/output error (errno 5)")
        return wanted(path, *others)

    with monkeypatch.context() as patch:
        patch.setattr(node.disk, refused, refuse)
        at_once(node.files.delete_unknown(["/"], []))
    assert not [path for path in node.disk.snapshot() if "/queues/8/" in path or "/queues/9/" in path]
    node.now_ms += DELETE_AGAIN_EVERY_MS
    work_on(node)
    assert not [path for path in node.disk.snapshot() if "/queues/" in path or "/deleting/" in path]


def test_a_queue_that_could_not_be_deleted_is_forgotten_with_its_vhost(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Files()
    node.fill()
    node.queue.terminate()
    rename = node.disk.rename

    def refuse(old_path: str, new_path: str) -> None:
        if "/queues/" in old_path:
            raise DiskFullError("rename failed: No space left on device (errno 28)")
        rename(old_path, new_path)

    monkeypatch.setattr(node.disk, "rename", refuse)
    with pytest.raises(DiskFullError):
        node.files.delete_queue(RECORD)
    node.files.vhosts_are([])
    work_on(node)
    assert paths_of(node, "/") == []
    assert node.files._undeleted == {}


def test_a_vhost_that_finds_no_room_to_be_closed_in_order_keeps_no_other_from_that() -> None:
    """Nor what the node closes after its queues: its log, its lock, the mark of a process that runs."""
    node = Files()
    other = replace(RECORD, queue_id=QueueId(8), vhost="other")
    for queue in (node.queue, open_at_once(node.files, other)):
        queue.publish(publications(1, 2, body=bytes(5000)))
        run_sync_round(node.group_commit)
        queue.terminate()
    node.disk.full_for = vhost_directory(DATA_DIRECTORY, "/")
    node.files.close()
    assert node.disk.open_handles == 0
    node.disk.full_for = None
    node.start()
    queues = [node.queue, open_at_once(node.files, other)]
    assert [queue.ready for queue in queues] == [2, 2]
    stores = [node.files._vhosts[vhost] for vhost in ("/", "other")]
    assert [store.store_recovery.clean for store in stores] == [False, True]


def test_a_vhost_that_is_still_being_opened_when_the_node_stops_keeps_no_file_open() -> None:
    node = Files()
    node.fill()
    node.disk.lose_handles()
    node.files = NodeQueueFiles(node.disk, DATA_DIRECTORY, GroupCommit(), StoreConfig(), lambda: 0.0)
    opening = node.files.vhost_opening(RECORD.vhost)
    assert opening is not None
    next(opening)
    assert node.disk.open_handles > 0
    node.files.close()
    assert node.disk.open_handles == 0
