"""Counting what a mirror has still to do, turn by turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.mirroring import published as published_module
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.published import PublishedTurns
from node.queues.backing_queue import MirrorInFlight, Publication
from tests.support.messages import publications
from tests.support.mirror_pair import N2, Pair


def test_what_follows_a_turn_is_what_a_mirror_there_has_to_do() -> None:
    published = PublishedTurns()
    published.publish(3, 10, 4)
    published.publish(3, 1, 1)
    published.publish(5, 7, 7)
    assert [published.after(turn) for turn in (-1, 2, 3, 4, 5, 9)] == [18, 18, 7, 7, 0, 0]
    assert published.persistent_between(-1, 4) == 5
    assert published.persistent_between(3, 5) == 7
    assert published.persistent_between(5, 3) == 0, "a mirror whose disk is ahead of its memory owes nothing"
    published.check_invariants()


def test_what_everybody_has_is_forgotten() -> None:
    published = PublishedTurns()
    for turn in range(3 * published_module._PASSED_TURNS_MAX):
        published.publish(turn, 1, 1)
        published.forget(turn - 5)
        assert published.after(turn - 5) == min(5, turn + 1)
    assert len(published) < published_module._PASSED_TURNS_MAX + 10
    published.forget(turn)
    assert (len(published), published.after(turn)) == (1, 0)
    published.check_invariants()


@pytest.mark.parametrize(
    ("take", "written"),
    [(MirroredQueue.publish, 2), (MirroredQueue.publish_delivered, 2), (MirroredQueue.discard, 0)],
    ids=["stored", "delivered at once", "discarded"],
)
def test_whatever_is_taken_is_to_be_applied_and_what_is_stored_to_be_written(
    take: Callable[[MirroredQueue, list[Publication]], object], written: int
) -> None:
    pair = Pair().up().quiet()
    take(pair.master, publications(1, 2))
    [owed] = pair.master.mirrors_in_flight()
    assert (owed.unapplied, owed.undurable) == (2, 0)
    pair.exchange()
    [owed] = pair.master.mirrors_in_flight()
    assert (owed.unapplied, owed.undurable) == (0, written)
    pair.quiet()
    assert pair.master.mirrors_in_flight() == [MirrorInFlight(N2, 0, 0, 0)]
