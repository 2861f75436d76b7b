"""The master knows which of its mirrors cannot write, for confirms wait for them."""

from __future__ import annotations

import pytest

from cluster.mirroring.progress import MirrorState
from cluster.mirroring.settings import MirroringSettings
from cluster.mirroring.sync import SYNC_BATCHES_IN_FLIGHT
from tests.support.messages import publications
from tests.support.mirror_pair import N2, Pair


def test_the_master_knows_which_mirrors_wait_for_space() -> None:
    pair = Pair().up().quiet()
    assert pair.master.disk_full_mirrors() == []
    pair.fill_mirror_disk(1)
    pair.to_master()
    assert pair.master.disk_full_mirrors() == [N2], "said without having been asked anything"
    assert pair.to_master() == [], "and once"
    pair.sync()
    pair.exchange()
    assert pair.master.drain_confirmed() == [], "what the mirror could not write is not confirmed"
    pair.free_mirror_disk()
    pair.to_master()
    assert pair.master.disk_full_mirrors() == [], "and that it waits no longer"
    pair.quiet()
    assert pair.master.drain_confirmed() == [1]


def test_a_mirror_that_begins_anew_waits_for_space_only_if_it_says_so_again() -> None:
    pair = Pair().up().quiet()
    pair.fill_mirror_disk(1)
    pair.to_master()
    assert pair.master.disk_full_mirrors() == [N2]
    pair.mirror.link_lost()
    pair.master.mirror_link_down(N2)
    assert pair.master.disk_full_mirrors() == [], "nobody knows"
    pair.up().exchange()
    assert pair.master.disk_full_mirrors() == [N2], "it still waits"
    pair.mirror.link_lost()
    pair.master.mirror_link_down(N2)
    pair.free_mirror_disk()
    pair.up().exchange()
    assert pair.master.disk_full_mirrors() == []


def test_what_it_said_in_an_earlier_conversation_says_nothing_of_its_disk_now() -> None:
    pair = Pair().up().quiet()
    pair.fill_mirror_disk(1)
    late = pair.mirror.take_messages()
    pair.mirror.link_lost()
    pair.master.mirror_link_down(N2)
    for _ in range(2):
        for _, message in late:
            pair.master.receive(N2, message)
        assert pair.master.disk_full_mirrors() == []
        pair.up().master.take_messages()


@pytest.mark.parametrize("is_required", [False, True])
def test_a_mirror_that_waits_for_space_is_not_filled_until_it_has_some(is_required: bool) -> None:
    """What it cannot write it has to keep in memory, and the queue may be larger than that."""
    pair = Pair(synchronised=is_required, settings=MirroringSettings(sync_automatically=True, sync_batch_messages=10))
    pair.master.publish(publications(1, 500))
    pair.sync()
    pair.mirror_disk.disk.full_for = pair.mirror_disk.queue_directory
    pair.up()
    for _ in range(30):
        pair.to_mirror()
        pair.mirror_disk.store.flush_writes()
        pair.to_master()
    assert pair.mirror_local.is_disk_full
    assert pair.mirror_local.ready <= 2 * 10 * SYNC_BATCHES_IN_FLIGHT, "what was on its way when it said so"
    assert pair.state() is MirrorState.FILLING
    pair.free_mirror_disk()
    pair.exchange(rounds=30)
    pair.quiet()
    assert pair.mirror_local.ready == 500
    assert pair.state() is MirrorState.SYNCHRONISED
