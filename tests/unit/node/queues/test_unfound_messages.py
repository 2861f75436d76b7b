"""A loss of power takes a message out of the shared store and leaves it in the index of a queue: that has no reference.

Another queue may write the same message again before the first one is opened, or deleted: what is there then is its.
"""

from __future__ import annotations

import random

import pytest

from node.errors import OpenFilesError
from node.queues.local_replica import LocalReplica
from node.store.disk.simulated import CrashStyle
from tests.support.given_up import (
    BODY_BYTES,
    FIRST,
    SECOND,
    care,
    fan_out,
    no_descriptors,
    open_queue,
    persistent_messages,
    settle_all,
)
from tests.support.messages import publications
from tests.support.stores import StoreHarness

VERSIONS = pytest.mark.parametrize("version", [1, 2])


def lose_one(harness: StoreHarness, version: int) -> LocalReplica:
    """Of four messages both queues name, the index of the first alone is on disk when the power goes, but for its last
    message; the second is sent that again. Returns the second."""
    queues = fan_out(harness, 3, version)
    last = publications(10, 1, body=bytes(BODY_BYTES))
    for queue in queues:
        queue.publish(last)
    harness.store.flush_writes()
    index = harness.disk.open(f"{harness.store.directory}/queues/{FIRST}/{'0.jif' if version == 1 else '0.qi'}")
    index.sync()
    index.close()
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    harness.start()
    second = open_queue(harness, SECOND, version)
    assert second.ready == 3
    second.publish(last)
    harness.sync()
    return second


def bodies_after_a_stop(harness: StoreHarness, second: LocalReplica, version: int) -> list[int]:
    """What the second queue has, read from the disk."""
    second.terminate()
    second = open_queue(harness, SECOND, version)
    bodies = [len(delivery.message.body) for delivery in second.fetch(9, True)]
    second.requeue_all()
    settle_all(second)
    care(harness)
    assert persistent_messages(harness) == 0
    return bodies


@VERSIONS
@pytest.mark.parametrize("fails_first", [False, True])
def test_who_is_opened_later_takes_nothing_from_who_was_sent_the_message_again(version: int, fails_first: bool) -> None:
    harness = StoreHarness()
    second = lose_one(harness, version)
    if fails_first:
        with no_descriptors(harness, "seq.bounds"), pytest.raises(OpenFilesError):
            open_queue(harness, FIRST, version)
    first = open_queue(harness, FIRST, version)
    assert first.ready == 3
    settle_all(first)
    care(harness)
    assert bodies_after_a_stop(harness, second, version) == [BODY_BYTES] * 4


@VERSIONS
def test_what_it_is_sent_again_itself_is_its_own(version: int) -> None:
    """Also for an opening that scans its files a second time."""
    harness = StoreHarness()
    second = lose_one(harness, version)
    first = open_queue(harness, FIRST, version)
    first.publish(publications(10, 1, body=bytes(BODY_BYTES)))
    harness.sync()
    first.terminate()
    harness.disk.unlink(f"{harness.store.directory}/queues/{FIRST}/clean.terms")
    first = open_queue(harness, FIRST, version)
    assert first.ready == 4
    settle_all(first)
    care(harness)
    assert bodies_after_a_stop(harness, second, version) == [BODY_BYTES] * 4


@VERSIONS
def test_a_deletion_gives_nothing_back_that_was_not_counted(version: int) -> None:
    harness = StoreHarness()
    second = lose_one(harness, version)
    harness.store.delete_queue_directory(FIRST)
    care(harness)
    assert bodies_after_a_stop(harness, second, version) == [BODY_BYTES] * 4
