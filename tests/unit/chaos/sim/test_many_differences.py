"""Many queues that fill their mirrors at once share a link, and what may wait for that is bounded."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from chaos.sim.client import Channel
from cluster.mirroring import conversations, sync
from cluster.transport import mesh
from cluster.transport.link import Link
from cluster.transport.outbox import OutboxLimits
from tests.support.sim_lab import Lab

#: Everything is so much smaller than it is: what may wait for a link, a batch of a difference, and what is missing.
SMALLER = 64
QUEUES = 150


def test_the_link_that_mirrors_are_filled_over_is_not_reset_because_there_are_many(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = OutboxLimits()
    small = partial(OutboxLimits, limits.congested_bytes // SMALLER, limits.overflow_bytes // SMALLER)
    monkeypatch.setattr(mesh, "OutboxLimits", small)
    batch_bytes = sync.SYNC_BATCH_BYTES // SMALLER
    monkeypatch.setattr(conversations, "SYNC_BATCH_BYTES", batch_bytes)
    resets: list[str] = []
    close = Link.close

    def note_reset(link: Link, reason: str) -> None:
        if reason.startswith("reset"):
            resets.append(reason)
        close(link, reason)

    monkeypatch.setattr(Link, "close", note_reset)
    lab.found()
    lab.declare("n1", *(f"q{number}" for number in range(QUEUES)))

    async def publish(channel: Channel) -> None:
        await channel.confirm_select()
        all_confirmed = asyncio.Event()
        confirmed: dict[int, None] = {}

        def note(number: int, is_multiple: bool, _is_ack: bool) -> None:
            confirmed.update(dict.fromkeys(range(1, number + 1) if is_multiple else (number,)))
            if len(confirmed) == 4 * QUEUES:
                all_confirmed.set()

        channel.on_confirm = note
        for number in range(QUEUES):
            for _ in range(4):
                channel.publish(f"q{number}", bytes(batch_bytes // 2))
        await all_confirmed.wait()

    lab.use_channel("n1", publish)
    for other in ("n2", "n3"):
        lab.cluster.slow_link("n1", other, 100)
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    lab.until_converged()
    assert resets == []
