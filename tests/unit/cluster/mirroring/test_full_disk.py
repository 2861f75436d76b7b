"""The master knows which of its mirrors cannot write, for confirms wait for them."""

from __future__ import annotations

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
