"""What the broker says to clients, and what explains it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.history import Event, Kind, ProcKind
from chaos.sim.answers import LEAVES_AFTER_US, Answers
from chaos.sim.client import ClosedError
from chaos.sim.loop import simulated_loop
from chaos.sim.record_watch import Ignorance
from chaos.sim.schedule import EXCLUSIVE
from chaos.sim.workload import MemoryHistory
from tests.support.simulated import personality

AT_US = 3_000_000
MISSING = ClosedError(404, "NOT_FOUND - no queue 'q0' in vhost '/'")
REFUSED = {"overflow": "reject-publish", "length_max": 5}


class Bench:
    """Clients of one world, and what is found."""

    def __init__(self, **changes: Any) -> None:
        self.found: list[str] = []
        self.answers = Answers(
            replace(personality(), **changes), lambda kind, text: self.found.append(f"{kind}: {text}")
        )

    def hear(self, code: int, text: str) -> list[str]:
        self.answers.ended("c0", "n1", ClosedError(code, text), AT_US)
        return self.found

    def judge(self, *ignorance: Ignorance, events: list[Event] | None = None) -> list[str]:
        self.answers.judge(events or [], {1: "n1"}, {0: ignorance})
        return self.found


@pytest.mark.parametrize(
    ("code", "text", "changes"),
    [
        (0, "connection lost", {}),
        (200, "closed by us", {}),
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", {}),
        (320, "CONNECTION_FORCED - the node has lost contact with the majority of the cluster (pause_minority)", {}),
        (403, "ACCESS_REFUSED - queue 'q0' in vhost '/' in exclusive use", {"consumer_kinds": (EXCLUSIVE, "")}),
        (404, "NOT_FOUND - home node 'n1' of durable queue 'q0' in vhost '/' is down or inaccessible", {}),
        (404, "NOT_FOUND - the queue has been deleted", {}),
        (404, "NOT_FOUND - no queue 'g0.1' in vhost '/'", {}),
        (404, "NOT_FOUND - no exchange 'middle 0' in vhost '/'", {}),
        (406, "PRECONDITION_FAILED - queue 'q0' in vhost '/' in use", {}),
        (406, "PRECONDITION_FAILED - queue 'q0' in vhost '/' is not empty", {}),
        (406, "PRECONDITION_FAILED - partial tx completion", REFUSED),
        (541, "INTERNAL_ERROR - no majority of the cluster is reachable", {}),
    ],
)
def test_what_has_a_reason(code: int, text: str, changes: dict[str, Any]) -> None:
    bench = Bench(**changes)
    assert bench.hear(code, text) == []
    assert bench.judge() == []
    bench.answers.is_calm = True
    assert bool(bench.hear(code, text)) == (code not in (0, 200)), "in a sound cluster nothing has"


@pytest.mark.parametrize(
    ("code", "text", "changes"),
    [
        (320, "CONNECTION_FORCED - user 'guest' is deleted", {}),
        (403, "ACCESS_REFUSED - queue 'q0' in vhost '/' in exclusive use", {"consumer_kinds": ("",)}),
        (404, "NOT_FOUND - no exchange 'fan 0 1' in vhost '/'", {}),
        (404, "NOT_FOUND - no previously declared queue", {}),
        (405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue", {}),
        (406, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q0'", {}),
        (406, "PRECONDITION_FAILED - unknown delivery tag 5", {}),
        (406, "PRECONDITION_FAILED - partial tx completion", {}),
        (504, "CHANNEL_ERROR - expected 'channel.open'", {}),
        (530, "NOT_ALLOWED - vhost / not found", {}),
        (540, "NOT_IMPLEMENTED - active=false", {}),
        (541, "INTERNAL_ERROR - internal error", {}),
    ],
)
def test_what_has_none(code: int, text: str, changes: dict[str, Any]) -> None:
    (found,) = Bench(**changes).hear(code, text)
    assert found == f"error: c0 hears from n1: {code} {text}"


def test_what_was_given_back_in_one_word_may_be_settled_once_more() -> None:
    bench = Bench()
    bench.answers.gives_back.add("c0")
    assert bench.hear(406, "PRECONDITION_FAILED - unknown delivery tag 5") == []
    bench.answers.gives_back = {"c1"}
    assert bench.hear(406, "PRECONDITION_FAILED - unknown delivery tag 5"), "by another client"


def test_what_is_not_done_is_said_to_who_has_asked_for_it() -> None:
    bench = Bench()
    bench.answers.stops_flow.add("c0")
    assert bench.hear(540, "NOT_IMPLEMENTED - active=false") == []
    bench.answers.stops_flow = {"c1"}
    assert bench.hear(540, "NOT_IMPLEMENTED - active=false"), "and to nobody else"


@pytest.mark.parametrize(
    ("code", "text"),
    [(530, "NOT_ALLOWED - vhost {} not found"), (320, "CONNECTION_FORCED - vhost '{}' is deleted")],
)
def test_who_enters_a_vhost_may_find_it_gone(code: int, text: str) -> None:
    bench = Bench()
    bench.answers.has_tenants = True
    assert bench.hear(code, text.format("tenant 1")) == []
    assert bench.hear(code, text.format("/")), "which is there for ever"


@pytest.mark.parametrize(
    ("lacked", "is_explained"),
    [
        (Ignorance(AT_US - 5, AT_US, "n1"), True),
        (Ignorance(AT_US, AT_US + 5, "n1"), True),
        (Ignorance(AT_US - 5, AT_US + 5, "n2"), False),
        (Ignorance(AT_US - LEAVES_AFTER_US, AT_US - LEAVES_AFTER_US, "n1"), True),
        (Ignorance(AT_US - 99_000, AT_US - LEAVES_AFTER_US - 1, "n1"), False),
        (Ignorance(AT_US + 1, AT_US + 5, "n1"), False),
    ],
)
def test_a_queue_is_missing_where_it_is_not_known(lacked: Ignorance, is_explained: bool) -> None:
    bench = Bench()
    bench.answers.ended("c0", "n1", MISSING, AT_US)
    bench.answers.cancelled("c1", "n1", 0, AT_US)
    assert bench.found == []
    assert len(bench.judge(lacked)) == (0 if is_explained else 2)


def test_a_consumer_is_not_cancelled_when_all_is_well() -> None:
    bench = Bench()
    bench.answers.is_calm = True
    bench.answers.cancelled("c1", "n1", 0, AT_US)
    assert bench.found == ["cancelled: n1 has ended the consumer of c1, when all is well"]


def test_a_consumer_may_be_refused_by_another_master_where_somebody_wants_to_be_alone() -> None:
    """Of two nodes that attach consumers to it, the one with the exclusive consumer may be first."""
    bench = Bench(consumer_kinds=(EXCLUSIVE, ""))
    bench.answers.cancelled("w0", "n1", 0, AT_US)
    assert bench.judge() == []
    bench.answers.is_calm = True
    bench.answers.cancelled("w0", "n1", 0, AT_US)
    assert bench.found == ["cancelled: n1 has ended the consumer of w0, when all is well"]


def told(*kinds: Kind) -> list[Event]:
    """Of one message, an event a second."""
    loop = simulated_loop()
    history = MemoryHistory(loop)
    log = history.process(ProcKind.PUBLISHER)
    for kind in kinds:
        loop.run_until(loop.now_s + 1)
        log.record(kind, queue_id=0, pub_id=0, seq=1, attempt=1, channel_id=1)
    return history.events


def test_a_queue_without_a_limit_refuses_nothing() -> None:
    events = told(Kind.PUB_INVOKE, Kind.NACK)
    assert Bench(**REFUSED).judge(events=events) == []
    assert Bench().judge(events=events) == ["refused: message 0:1 attempt 1 of q0 was refused, and no queue refuses"]


def test_a_message_is_returned_by_who_lacks_the_queue_meanwhile() -> None:
    events = told(Kind.PUB_INVOKE, Kind.RETURN)
    assert Bench().judge(Ignorance(1_500_000, 1_600_000, "n1"), events=events) == []
    for elsewhere in (Ignorance(1_500_000, 1_600_000, "n2"), Ignorance(500_000, 900_000, "n1")):
        (found,) = Bench().judge(elsewhere, events=events)
        assert found == "returned: message 0:1 attempt 1 of q0 was returned by n1, which had the queue"
