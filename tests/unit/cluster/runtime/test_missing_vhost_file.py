"""A vhost that has queues and no `vhost.json`: it starts, and not in silence."""

from __future__ import annotations

import logging
import re

import pytest

from cluster.runtime.queue_files import NodeQueueFiles
from node.ids import QueueId
from node.queues.vhost_store import VHOST_FILE_NAME, vhost_directory
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import SimulatedDisk
from node.store.shared.config import StoreConfig
from node.topology.records import QueueRecord
from tests.support.messages import publications
from tests.support.stores import DATA_DIRECTORY, open_at_once, run_sync_round

RECORD = QueueRecord(QueueId(7), "/", "orders", True, None, False, {})
PATH = f"{vhost_directory(DATA_DIRECTORY, '/')}/{VHOST_FILE_NAME}"


def start_and_stop(disk: SimulatedDisk, *, publishes: bool = False) -> int:
    """Returns the messages that the queue had at the end."""
    group_commit = GroupCommit()
    files = NodeQueueFiles(disk, DATA_DIRECTORY, group_commit, StoreConfig(), lambda: 0.0)
    queue = open_at_once(files, RECORD)
    if publishes:
        queue.publish(publications(1, 10))
        run_sync_round(group_commit)
    ready = queue.ready
    files.close()
    return ready


def test_a_vhost_that_lost_its_file_is_a_warning_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It goes by what is configured now, which may be something else than before."""
    disk = SimulatedDisk()
    assert start_and_stop(disk, publishes=True) == 10
    disk.unlink(PATH)
    assert start_and_stop(disk) == 10
    assert disk.exists(PATH)
    assert start_and_stop(disk) == 10
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "not at the first start, nor when it is there again"
    assert re.match(r"vhost /: .*/vhost.json is missing, though there are queues: it is made anew", warnings[0])
