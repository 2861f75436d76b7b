"""What one client was told to exist is there for every other one, whichever node it is connected to."""

from __future__ import annotations

import pytest

from tests.support.sim_lab import NAMES, Lab

#: How many times longer what the others say to one node takes: it lags, and is not so old that it pauses.
SLOWNESS = 300


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    return founded_lab


def make_one_late(lab: Lab) -> tuple[str, str]:
    """One that hears late what is decided, and one that does not; the leader is neither."""
    late, entry = (name for name in NAMES if name != lab.leader())
    for name in NAMES:
        if name != late:
            lab.cluster.slow_link(name, late, SLOWNESS)
    return late, entry


@pytest.mark.parametrize("passive", [False, True])
def test_a_queue_that_another_client_declares_just_now_is_known_to_all_when_the_second_is_answered(
    lab: Lab, passive: bool
) -> None:
    late, entry = make_one_late(lab)
    topology = lab.cluster.nodes[entry].runtime.metadata.state.topology
    first = lab.begin_to_use(lab.leader(), lambda channel: channel.declare("q"))
    while topology.queue("/", "q") is None:
        lab.pass_time(0.001)
    assert not first.done()
    lab.use_channel(entry, lambda channel: channel.declare("q", passive=passive))
    lab.publish(late, "q", 1)
    lab.until_converged()
    assert lab.ready(entry, "q") == 1


@pytest.mark.parametrize("passive", [False, True])
def test_an_exchange_likewise(lab: Lab, passive: bool) -> None:
    late, entry = make_one_late(lab)
    topology = lab.cluster.nodes[entry].runtime.metadata.state.topology
    lab.begin_to_use(lab.leader(), lambda channel: channel.declare_exchange("x"))
    while topology.exchange("/", "x") is None:
        lab.pass_time(0.001)
    lab.use_channel(entry, lambda channel: channel.declare_exchange("x", passive=passive))
    lab.use_channel(late, lambda channel: channel.declare_exchange("x", passive=True))
