"""What is left of vhosts that no longer exist: whole trees of directories, removed in steps."""

from __future__ import annotations

import pytest

from node.errors import DiskFullError, StorageError
from node.ids import QueueId, QueueName
from node.queues.vhost_removals import VhostRemovals
from node.queues.vhost_store import VhostStore, vhost_directory
from node.store.deletions import FILES_PER_STEP
from node.store.disk.group_commit import GroupCommit
from tests.support.messages import publications
from tests.support.stores import DATA_DIRECTORY, QUEUE_ID, StoreHarness, run_sync_round

VHOSTS = f"{DATA_DIRECTORY}/vhosts"


class Removing:
    """A node that learns, as it starts, that the vhost of a store is gone."""

    def __init__(self, store: StoreHarness) -> None:
        self.disk = store.disk
        self.group_commit = GroupCommit()
        self.removals = VhostRemovals(self.disk, DATA_DIRECTORY, self.group_commit)
        self.removals.take_unknown((), ())
        run_sync_round(self.group_commit)

    def finish(self) -> int:
        """How many steps it took."""
        steps = 0
        while len(self.removals):
            self.removals.step()
            self.removals.check_invariants()
            steps += 1
            assert steps < 1000, "it comes to an end"
        return steps


@pytest.fixture
def store() -> StoreHarness:
    harness = StoreHarness()
    harness.open_queue().publish(publications(1, 3))
    harness.sync()
    return harness


@pytest.mark.parametrize("files_per_step", [1, 2, FILES_PER_STEP])
def test_a_vhost_goes_with_everything_that_is_below_it(
    store: StoreHarness, monkeypatch: pytest.MonkeyPatch, files_per_step: int
) -> None:
    """Each step leaves what is true of the rest."""
    monkeypatch.setattr("node.store.deletions.FILES_PER_STEP", files_per_step)
    removing = Removing(store)
    removing.finish()
    assert removing.disk.list(VHOSTS) == []


def test_so_does_what_was_being_deleted_of_it(store: StoreHarness) -> None:
    """Its node ended before the files of a deleted queue were gone."""
    store.restart().delete()
    store.sync()
    assert store.disk.list(f"{store.store.directory}/deleting") == [f"{QUEUE_ID}.1"]
    removing = Removing(store)
    removing.finish()
    assert removing.disk.list(VHOSTS) == []


def test_what_an_earlier_life_has_moved_is_not_moved_again(store: StoreHarness) -> None:
    Removing(store)
    [moved] = store.disk.list(VHOSTS)
    again = Removing(store)
    assert store.disk.list(VHOSTS) == [moved]
    again.finish()
    assert store.disk.list(VHOSTS) == []


def test_a_step_asks_for_the_names_of_a_few_directories_however_many_queues_there_are(
    store: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100, 300):
        queue = store.store.open_queue(QueueId(number), QueueName("/", f"q{number}"), durable=True)
        queue.publish(publications(number, 1))
    store.sync()
    removing = Removing(store)
    listed: list[str] = []
    names_in = removing.disk.list

    def counted(path: str) -> list[str]:
        listed.append(path)
        return names_in(path)

    monkeypatch.setattr(removing.disk, "list", counted)
    most = 0
    while len(removing.removals):
        listed.clear()
        removing.removals.step()
        most = max(most, len(listed))
    assert 0 < most <= 2 * FILES_PER_STEP


def test_one_vhost_that_cannot_be_moved_keeps_no_other(store: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    VhostStore(store.disk, DATA_DIRECTORY, "other", GroupCommit(), store.config).close()
    stays, goes = sorted(vhost_directory(DATA_DIRECTORY, vhost) for vhost in ("/", "other"))
    removals = VhostRemovals(store.disk, DATA_DIRECTORY, GroupCommit())
    rename = store.disk.rename

    def refuse(old_path: str, new_path: str) -> None:
        if old_path == stays:
            raise StorageError(f"rename of {old_path} failed: Input/output error (errno 5)")
        rename(old_path, new_path)

    with monkeypatch.context() as patch:
        patch.setattr(store.disk, "rename", refuse)
        with pytest.raises(StorageError, match="rename"):
            removals.take_unknown((), ())
    assert store.disk.exists(stays)
    assert not store.disk.exists(goes)


def test_of_several_vhosts_that_cannot_be_moved_the_one_for_want_of_room_is_told(
    store: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hears of it looks again when there is room; not so for a broken disk."""
    VhostStore(store.disk, DATA_DIRECTORY, "other", GroupCommit(), store.config).close()
    first, _ = sorted(vhost_directory(DATA_DIRECTORY, vhost) for vhost in ("/", "other"))
    removals = VhostRemovals(store.disk, DATA_DIRECTORY, GroupCommit())

    def refuse(old_path: str, _new_path: str) -> None:
        raise DiskFullError("no room") if old_path == first else StorageError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(store.disk, "rename", refuse)
        with pytest.raises(DiskFullError):
            removals.take_unknown((), ())
