"""Many queues that fill their mirrors at once share a link, and what may wait for that is bounded."""

from __future__ import annotations

import asyncio

import pytest

from chaos.sim.client import Channel
from cluster.mirroring import conversations, sync
from tests.support.sim_lab import Lab
from tests.unit.chaos.sim.conftest import SMALLER

pytestmark = pytest.mark.slow

#: As everything, it is smaller than it is.
BATCH_BYTES = sync.SYNC_BATCH_BYTES // SMALLER
QUEUES = 200
#: In each queue, of half a batch each.
MESSAGES = 4


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "SYNC_BATCH_BYTES", BATCH_BYTES)


def found(lab: Lab) -> None:
    lab.found()
    lab.declare("n1", *(f"q{number}" for number in range(QUEUES)))


async def publish_to_all(channel: Channel) -> None:
    """Not faster than the links carry it."""
    for number in range(QUEUES):
        for _ in range(MESSAGES):
            channel.publish(f"q{number}", bytes(BATCH_BYTES // 2))
        await asyncio.sleep(0.005)


def test_the_link_that_mirrors_are_filled_over_is_not_reset_because_there_are_many(lab: Lab, resets: list[str]) -> None:
    found(lab)

    async def publish(channel: Channel) -> None:
        await channel.confirm_select()
        all_confirmed = asyncio.Event()
        confirmed: dict[int, None] = {}

        def note(number: int, is_multiple: bool, _is_ack: bool) -> None:
            confirmed.update(dict.fromkeys(range(1, number + 1) if is_multiple else (number,)))
            if len(confirmed) == MESSAGES * QUEUES:
                all_confirmed.set()

        channel.on_confirm = note
        await publish_to_all(channel)
        await all_confirmed.wait()

    lab.use_channel("n1", publish)
    for other in ("n2", "n3"):
        lab.cluster.slow_link("n1", other, 100)
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    lab.until_converged()
    assert resets == []
    assert {lab.ready("n2", f"q{number}") for number in range(0, QUEUES, 10)} == {MESSAGES}


def test_nor_because_confirms_wait_for_all_of_them(lab: Lab, resets: list[str]) -> None:
    """The link was broken for a moment in which clients went on that ask for no confirms: whoever was synchronised
    still counts as that, and is filled whatever waits."""
    found(lab)
    lab.set_policy("n1", {"ha-mode": "all"})
    lab.until_converged()
    lab.cluster.reset("n1", "n2", "both", 0)
    while "n2" in lab.cluster.nodes["n1"].mesh.up_peers:
        lab.pass_time(0.0001)
    for one, other in (("n1", "n2"), ("n2", "n1")):
        lab.cluster.cut(one, other)

    lab.use_channel("n1", publish_to_all)
    lab.pass_time(0.5)
    for number in range(QUEUES):
        record = lab.record("n1", f"q{number}")
        assert record is not None
        assert (record.master, sorted(record.synchronised)) == ("n1", ["n2", "n3"]), "n2 is waited for"
    lab.cluster.slow_link("n1", "n2", 100)
    for one, other in (("n1", "n2"), ("n2", "n1")):
        lab.cluster.cut_end(one, other)
    lab.until_converged()
    assert resets == []
    assert {lab.ready("n2", f"q{number}") for number in range(0, QUEUES, 10)} == {MESSAGES}
