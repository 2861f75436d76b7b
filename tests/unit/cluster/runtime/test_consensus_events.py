"""What a node says when it pauses: an error if clients lose something by it, otherwise what it waits for, once."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from cluster.runtime.consensus_events import ConsensusEvents
from cluster.runtime.membership import Membership
from cluster.runtime.queue_set import QueueSet
from cluster.runtime.standing import Hindrance, Pause
from node.ids import NodeName

PAUSE = Pause(Hindrance.NO_QUORUM, "it has no quorum: it reaches no majority of the members", 0)


class Bench:
    def __init__(self, *, pauses: bool = True) -> None:
        self.has_served = False
        self.told: list[Pause | None] = []
        self.events = ConsensusEvents(
            cast(QueueSet, None),
            cast(Membership, None),
            pauses=pauses,
            has_served=lambda: self.has_served,
            lacks=lambda: [NodeName("n2"), NodeName("n3")],
            after_applied=lambda: None,
            on_pause=self.told.append,
            on_fatal=lambda _reason, _exit_code: None,
        )


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_node_that_has_served_nobody_yet_says_once_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    for pause in (PAUSE, None, PAUSE):
        bench.events.on_pause(pause)
    assert said(caplog) == [
        (
            "INFO",
            "clients are not served yet: it has no quorum: it reaches no majority of the members; "
            "this node waits for n2, n3",
        )
    ]
    assert bench.told == [PAUSE, None, PAUSE]


def test_a_node_that_served_clients_says_that_they_lose_their_connections(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.has_served = True
    bench.events.on_pause(PAUSE)
    bench.events.on_pause(None)
    assert [level for level, _ in said(caplog)] == ["ERROR", "INFO"]
    assert "client connections are closed" in said(caplog)[0][1]
    assert "serves clients again" in said(caplog)[1][1]


def test_who_never_pauses_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(pauses=False)
    bench.events.on_pause(PAUSE)
    assert (said(caplog), bench.told) == ([], [])


def test_who_never_pauses_makes_up_for_what_could_not_be_decided_meanwhile() -> None:
    """Exclusive queues of connections that have ended would be locked for ever."""
    bench = Bench(pauses=False)
    bench.events.on_pause(PAUSE)
    bench.events.on_pause(None)
    assert bench.told == [None]
