"""Messages that go to several queues at once, and what is recorded and judged of them."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.history import Kind
from chaos.sim.client import Channel
from chaos.sim.run import Outcome, run_schedule
from tests.support.simulated import schedule


def run(*steps: tuple[Any, ...], **changes: Any) -> Outcome:
    return run_schedule(
        schedule((200, "fan_out", 0, [0, 2], 3, 5_000, 1), *steps, **({"queues": 3, "consumers": 0} | changes))
    )


def of_kind(outcome: Outcome, kind: Kind) -> list[tuple[int | None, int | None]]:
    """Queue and number of each message that such an event of the publisher is about."""
    return sorted((event.queue_id, event.seq) for event in outcome.events if event.kind == kind and event.pub_id == 0)


ALL = [(queue, seq) for queue in (0, 2) for seq in (1, 2, 3)]


def test_each_queue_has_each_message() -> None:
    outcome = run()
    assert outcome.violations == []
    assert of_kind(outcome, Kind.PUB_INVOKE) == of_kind(outcome, Kind.CONFIRM) == of_kind(outcome, Kind.DELIVER) == ALL


def test_what_leaves_one_queue_legally_is_still_in_the_other() -> None:
    outcome = run((800, "purge", 2))
    assert outcome.violations == []
    assert of_kind(outcome, Kind.DELIVER) == ALL[:3]
    assert of_kind(outcome, Kind.PURGE) == ALL[3:]


def test_what_one_of_the_queues_never_had_is_lost_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = Channel.bind

    async def bind_all_but_one(self: Channel, queue: str, *args: Any) -> None:
        if queue != "q2":
            await bind(self, queue, *args)

    monkeypatch.setattr(Channel, "bind", bind_all_but_one)
    outcome = run()
    assert {(violation.kind, violation.key and violation.key[0]) for violation in outcome.violations} == {("lost", 2)}
