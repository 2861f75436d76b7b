"""What the opening of a queue has found is not kept beside what is made of it: a queue may stay open for years."""

from __future__ import annotations

import pytest

from node.ids import OriginId
from node.queues.backing_queue import Publication
from node.queues.local_replica import LocalReplica
from node.queues.origins import ORIGINS_MAX
from node.store.shared.config import StoreConfig
from tests.support.messages import make_message
from tests.support.sizes import reachable_sizes
from tests.support.stores import StoreHarness


def fill(queue: LocalReplica, origins: int) -> None:
    """Each message by a channel of its own, as of clients that come for one publish."""
    for number in range(origins):
        queue.publish([Publication(make_message(1, origin=OriginId(number.to_bytes(8, "big"))))])


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_a_queue_that_was_opened_again_knows_its_origins_once(is_clean: bool, version: int) -> None:
    harness = StoreHarness(StoreConfig(queue_version=version))
    fill(harness.open_queue(), 50)
    harness.sync()
    queue = harness.restart() if is_clean else harness.crash()
    assert len(queue.origins()) == 50
    sizes = reachable_sizes([queue], ("node",), lambda _name: True)
    assert {name for name, count in sizes.items() if count >= 50 and "rigins" in name} == {"Origins.last"}


def test_a_queue_of_more_origins_than_are_remembered_is_opened_with_as_many_as_are() -> None:
    harness = StoreHarness()
    fill(harness.open_queue(), ORIGINS_MAX + 10)
    harness.sync()
    queue = harness.crash()
    sizes = reachable_sizes([queue], ("node",), lambda _name: True)
    assert sizes["Origins.last"] == ORIGINS_MAX
    assert not sizes["QueueStorage.origins"]


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_index_is_given_up_when_the_queue_has_another(is_clean: bool) -> None:
    harness = StoreHarness(StoreConfig(queue_version=1))
    fill(harness.open_queue(), 3)
    harness.sync()
    queue = harness.restart() if is_clean else harness.crash()
    queue.set_index_version(2)
    while queue.engine.wants_maintenance:
        queue.engine.maintain()
        harness.sync()
    sizes = reachable_sizes([queue], ("node",), lambda _name: True)
    assert (sizes["QueueIndexV1"], sizes["QueueIndexV2"]) == (0, 1)
