"""A sync fails outside of the group commit, and the kernel shows what the disk has not (`node.store.disk.distrust`).

It fails once. The node ends; until it has, it confirms nothing, whatever later syncs of the same files say.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from node.errors import StorageError
from node.message import Message
from node.queues.options import QueueOptions
from node.store.queue_storage import TERMS_NAME
from node.topology.records import QueueRecord
from tests.support.messages import make_message
from tests.support.queue_sets import CLIENT, N1, OTHER, Q, QueueSetNode, alone, mastership

#: Too large for the files of a queue.
IN_SHARED_STORE_BYTES = 8000
SHARED_FILES = "msg_store_persistent/"


def publish(node: QueueSetNode, queue: QueueRecord, message: Message, *, is_resent: bool = False) -> None:
    node.process(queue).publish(CLIENT, [message], [1], is_resent=is_resent)
    node.queues.touch(queue.queue_id)
    node.turn()


def write(node: QueueSetNode) -> None:
    """Let a flush come before the sync that is due."""
    for vhost in node.vhosts():
        vhost.flush_writes()
    assert node.group_commit.has_dirty


def publish_again_if_served(node: QueueSetNode, queue: QueueRecord, message: Message) -> None:
    """The publisher's node has heard nothing of it."""
    if node.role(queue) == "master":
        with suppress(StorageError):  # who is out of service takes nothing more
            publish(node, queue, message, is_resent=True)
    node.sync()
    node.turn()
    assert node.confirmed() == []


@pytest.mark.parametrize(("size_bytes", "failing"), [(10, ".qs"), (IN_SHARED_STORE_BYTES, SHARED_FILES)])
def test_a_copy_that_could_not_be_closed_confirms_nothing_when_it_is_opened_again(
    size_bytes: int, failing: str
) -> None:
    """The cluster declared this node down, wrongly, and takes it back."""
    node = alone()
    node.turn()
    node.sync()
    message = make_message(1, body=bytes(size_bytes))
    publish(node, Q, message)
    node.disk.fail_syncs, node.disk.fails_one_sync = failing, True
    node.queues.follow(Q, mastership(Q, N1, is_down=True))
    node.turn()
    assert not node.disk.fails_syncs
    node.queues.follow(Q, mastership(Q, N1, epoch=2))
    node.turn()
    publish_again_if_served(node, Q, message)


def test_a_shared_store_that_could_not_be_recovered_confirms_nothing_when_it_is_opened_again() -> None:
    node = alone(OTHER)
    node.turn()
    node.queues.follow(Q, mastership(Q, N1))
    node.sync()
    message = make_message(1, body=bytes(IN_SHARED_STORE_BYTES))
    publish(node, OTHER, message)
    write(node)
    node.effects.clear()
    # Killed, and started again.
    node.start()
    node.disk.fail_syncs, node.disk.fails_one_sync = SHARED_FILES, True
    node.queues.follow(Q, mastership(Q, N1))
    node.turn()
    assert [record.queue_id for record in node.failed] == [Q.queue_id]
    node.queues.follow(OTHER, mastership(OTHER, N1, epoch=2))
    node.turn()
    publish_again_if_served(node, OTHER, message)


def test_of_a_shared_file_that_was_not_synced_for_one_queue_nothing_of_another_is_confirmed() -> None:
    node = alone()
    node.queues.follow(OTHER, mastership(OTHER, N1))
    node.turn()
    node.sync()
    message = make_message(1, body=bytes(IN_SHARED_STORE_BYTES))
    publish(node, OTHER, message)
    write(node)
    node.disk.fail_syncs, node.disk.fails_one_sync = SHARED_FILES, True
    node.queues.follow(Q, mastership(Q, N1, is_down=True))
    node.turn()
    publish_again_if_served(node, OTHER, message)


@pytest.mark.parametrize("version", [1, 2])
def test_a_copy_is_not_called_closed_in_order_if_a_round_fails_meanwhile(version: int) -> None:
    """The round's sync of a file fails on its thread; that of the stop, of the same file, succeeds after it."""
    node = alone()
    node.options = QueueOptions(index_version=version)
    node.turn()
    node.sync()
    publish(node, Q, make_message(1))
    write(node)
    sync_round = node.group_commit.begin()
    assert sync_round is not None

    def fail_round() -> None:
        node.disk.on_operation = None
        node.disk.fail_syncs, node.disk.fails_one_sync = f"queues/{Q.queue_id}/0.", True
        with pytest.raises(StorageError):
            sync_round.run()

    node.disk.on_operation = fail_round
    node.queues.follow(Q, mastership(Q, N1, is_down=True))
    assert node.group_commit.failure is not None
    assert not any(path.endswith(TERMS_NAME) for path in node.disk.snapshot())
