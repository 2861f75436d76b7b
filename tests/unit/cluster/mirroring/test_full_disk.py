"""The master knows which of its mirrors cannot write, for confirms wait for them."""

from __future__ import annotations

from tests.support.mirror_pair import N2, Pair


def test_the_master_knows_which_mirrors_wait_for_space() -> None:
    pair = Pair().up().quiet()
    assert pair.master.disk_full_mirrors() == []
    pair.mirror_local.is_disk_full = True
    pair.to_master()
    assert pair.master.disk_full_mirrors() == [N2], "said without having been asked anything"
    assert pair.to_master() == [], "and once"
    pair.mirror_local.is_disk_full = False
    pair.to_master()
    assert pair.master.disk_full_mirrors() == []


def test_a_mirror_that_begins_anew_waits_for_space_only_if_it_says_so_again() -> None:
    pair = Pair().up().quiet()
    pair.mirror_local.is_disk_full = True
    pair.to_master()
    pair.mirror_local.is_disk_full = False
    pair.mirror.link_lost()
    pair.master.mirror_link_down(N2)
    assert pair.master.disk_full_mirrors() == [], "nobody knows"
    pair.mirror_local.is_disk_full = True
    pair.up().exchange()
    assert pair.master.disk_full_mirrors() == [N2]
