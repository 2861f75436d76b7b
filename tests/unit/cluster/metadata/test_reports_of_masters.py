"""What the master of a queue reports of its mirrors, and asks for: each as a short history and the record it leaves.

Records as in `test_mastership`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.metadata.commands import (
    AddMirror,
    ChangeTopology,
    DropMirror,
    MirrorFollows,
    MirrorSynchronised,
    MoveMaster,
)
from cluster.metadata.errors import StaleMastershipError
from cluster.metadata.events import MastershipChanged
from cluster.metadata.state import MetadataState
from node.ids import Epoch, NodeName
from node.topology.commands import DeleteQueue
from tests.support.metadata_state import (
    N1,
    N2,
    N3,
    N4,
    StateUnderTest,
    mirrored,
    show,
    synchronised,
    unsynchronised,
)


def test_a_synchronised_mirror_is_noted_in_the_order_of_mirrors() -> None:
    cluster = unsynchronised()
    synchronised(cluster, N3)
    assert show(cluster.record()) == "n1 | n2+ n3* | epoch 1"
    synchronised(cluster, N2)
    assert show(cluster.record()) == "n1 | n2* n3* | epoch 1"
    assert cluster.record().synchronised == (N2, N3)


@pytest.mark.parametrize("command", [DropMirror, AddMirror, MoveMaster])
def test_reports_of_another_epoch_are_refused(command: Any) -> None:
    cluster = mirrored()
    record = cluster.record()
    for epoch in (record.epoch - 1, record.epoch + 1):
        assert isinstance(cluster.apply(command(record.queue_id, Epoch(epoch), N2)).error, StaleMastershipError)
    assert cluster.record() == record


@pytest.mark.parametrize("command", [DropMirror, MoveMaster, MirrorFollows, MirrorSynchronised])
@pytest.mark.parametrize("node", [N1, N4], ids=["the master", "a stranger"])
def test_reports_of_a_node_that_is_no_mirror_are_refused(command: Any, node: NodeName) -> None:
    cluster = mirrored({"ha-mode": "exactly", "ha-params": 3}, "n1", "n2", "n3", "n4")
    record = cluster.record()
    as_of_index = (cluster.index,) if command in (MirrorFollows, MirrorSynchronised) else ()
    applied = cluster.apply(command(record.queue_id, record.epoch, node, *as_of_index))
    assert isinstance(applied.error, StaleMastershipError)
    assert cluster.record() == record


@pytest.mark.parametrize("command", [DropMirror, AddMirror, MoveMaster])
def test_reports_of_a_queue_that_is_deleted_are_refused(command: Any) -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(ChangeTopology(DeleteQueue("/", "q"), N1))
    assert isinstance(cluster.apply(command(record.queue_id, record.epoch, N2)).error, StaleMastershipError)


def test_a_sync_of_another_epoch_is_refused() -> None:
    cluster = unsynchronised()
    record = cluster.record()
    applied = cluster.apply(MirrorSynchronised(record.queue_id, Epoch(record.epoch - 1), N2, cluster.index))
    assert isinstance(applied.error, StaleMastershipError)
    assert show(cluster.record()) == "n1 | n2+ n3+ | epoch 1"


def test_a_sync_from_before_the_mirror_left_and_came_back_does_not_count() -> None:
    """The dangerous one: the report is late, and meanwhile the mirror missed what was confirmed without it."""
    cluster = unsynchronised()
    record, as_of_index = cluster.record(), cluster.index
    cluster.down("n2")
    cluster.up("n2", 1)
    late = cluster.apply(MirrorSynchronised(record.queue_id, record.epoch, N2, as_of_index))
    assert isinstance(late.error, StaleMastershipError)
    assert show(cluster.record()) == "n1 | n3+ n2 | epoch 1"
    synchronised(cluster, N2)
    assert show(cluster.record()) == "n1 | n3+ n2* | epoch 1"


def test_a_dropped_mirror_comes_back_as_the_youngest() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(DropMirror(record.queue_id, record.epoch, N2))
    cluster.serve()
    assert show(cluster.record()) == "n1 | n3* | epoch 1"
    cluster.apply(AddMirror(record.queue_id, record.epoch, N2))
    assert show(cluster.record()) == "n1 | n3* n2 | epoch 1"


EXACTLY_TWO = {"ha-mode": "exactly", "ha-params": 2}


def drop(cluster: StateUnderTest, node: NodeName) -> None:
    record = cluster.record()
    assert cluster.apply(DropMirror(record.queue_id, record.epoch, node)).error is None


def test_exactly_replaces_a_mirror_that_left_by_itself() -> None:
    """What it holds still counts until the master has gone on without it."""
    cluster = mirrored(EXACTLY_TWO)
    drop(cluster, N2)
    assert show(cluster.record()) == "n1 | n3 | epoch 1 | complete n1 n2"
    assert not any(event.discarded for event in cluster.last.events if isinstance(event, MastershipChanged))
    cluster.serve()
    assert show(cluster.record()) == "n1 | n3 | epoch 1"


def test_nobody_is_replaced_by_a_node_that_left_the_queue_itself() -> None:
    """Two nodes whose disks fail would replace each other for ever."""
    cluster = mirrored(EXACTLY_TWO)
    drop(cluster, N2)
    drop(cluster, N3)
    cluster.serve()
    assert show(cluster.record()) == "n1 | - | epoch 1"
    restored = MetadataState()
    restored.restore(cluster.state.snapshot())
    assert restored.snapshot() == cluster.state.snapshot()
    cluster.up("n3", 2)
    assert show(cluster.record()) == "n1 | n3 | epoch 1", "in a new life it may be able to"
    drop(cluster, N3)
    assert show(cluster.record()) == "n1 | - | epoch 1"


def test_who_has_left_is_taken_back_where_there_is_room() -> None:
    cluster = mirrored(EXACTLY_TWO)
    drop(cluster, N2)
    drop(cluster, N3)
    record = cluster.record()
    cluster.apply(AddMirror(record.queue_id, record.epoch, N3))
    assert show(cluster.record()) == "n1 | n3 | epoch 1 | complete n1 n2"
    drop(cluster, N3)
    assert show(cluster.record()) == "n1 | - | epoch 1 | complete n1 n2"
    record = cluster.record()
    cluster.apply(AddMirror(record.queue_id, record.epoch, N2))
    cluster.apply(AddMirror(record.queue_id, record.epoch, N3))
    assert isinstance(cluster.last.error, StaleMastershipError), "two copies are there"


def test_other_modes_wait_for_a_mirror_that_left_by_itself() -> None:
    """They name their nodes: nobody else is wanted."""
    cluster = mirrored()
    drop(cluster, N2)
    assert show(cluster.record()) == "n1 | n3* | epoch 1 | complete n1 n2 n3"


def test_a_mirror_that_no_policy_wants_is_not_added() -> None:
    cluster = StateUnderTest("n1", "n2")
    record = cluster.declare()
    assert isinstance(cluster.apply(AddMirror(record.queue_id, record.epoch, N2)).error, StaleMastershipError)


def test_a_move_keeps_the_old_master_as_a_synchronised_mirror() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(MoveMaster(record.queue_id, record.epoch, N3))
    cluster.serve()
    assert show(cluster.record()) == "n3 | n2* n1* | epoch 2"


def test_the_copy_of_a_master_whose_disk_failed_counts_no_longer() -> None:
    cluster = mirrored()
    record = cluster.record()
    cluster.apply(MoveMaster(record.queue_id, record.epoch, N3, is_old_lost=True))
    assert show(cluster.record()) == "n3 | n2* n1 | epoch 2 | elected"
    cluster.down("n3")
    cluster.down("n2")
    assert show(cluster.record()) == "n2 | n1 | epoch 3 | down | complete n2 n3"


def test_a_move_to_an_unsynchronised_mirror_is_refused() -> None:
    cluster = unsynchronised()
    record = cluster.record()
    applied = cluster.apply(MoveMaster(record.queue_id, record.epoch, N2))
    assert isinstance(applied.error, StaleMastershipError)
    assert cluster.record() == record
