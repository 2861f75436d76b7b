"""What is flagged as delivered before in a cluster that was only ever stopped in order, and who can know better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from chaos.analysis.reference import AttemptKey
from chaos.history import Kind, ProcKind
from chaos.sim.ablation.catalogue import SAFEGUARDS
from chaos.sim.judge import HandOut
from chaos.sim.loop import simulated_loop
from chaos.sim.orderly import flagged_for_nothing, is_orderly
from chaos.sim.run import run_schedule
from chaos.sim.scenarios.catalogue import draw
from chaos.sim.service_watch import Service, Services
from chaos.sim.workload import MemoryHistory
from cluster.metadata.events import MastershipChanged, MemberChanged
from cluster.metadata.records import MastershipRecord, MemberRecord
from node.ids import Epoch, Incarnation, NodeName, QueueId
from tests.support.simulated import publish, schedule

N1, N2 = NodeName("n1"), NodeName("n2")
KEY: AttemptKey = (0, 0, 1, 1)
QUEUE = QueueId(7)
#: A message is published after one second, confirmed after two, and handed out after ten.
BEFORE, BETWEEN, AFTER = 500_000, 1_500_000, 5_000_000
HANDED_OUT = HandOut(10_000_000, 2, is_flagged=True, position=3, queue_id=QUEUE)
FIRST = Service(BEFORE, 1, N1, {N2: BEFORE})
#: What publishers do and hear, of which of their messages.
Told = tuple[Kind, int]
CONFIRMED: Sequence[Told] = ((Kind.PUB_INVOKE, 1), (Kind.CONFIRM, 1))


def judged(
    *hand_outs: HandOut,
    services: Sequence[Service],
    unrest: Sequence[int] = (),
    events: Sequence[Told] = CONFIRMED,
    orders: Mapping[str, Sequence[tuple[int, bool]]] | None = None,
) -> list[str]:
    """``events``: one a second."""
    loop = simulated_loop()
    history = MemoryHistory(loop)
    log = history.process(ProcKind.PUBLISHER)
    for kind, seq in events:
        loop.run_until(loop.now_s + 1)
        log.record(kind, queue_id=0, pub_id=0, seq=seq, attempt=1, channel_id=1)
    known = Services()
    known.of_queues[QUEUE] = list(services)
    known.unrest += unrest
    found = flagged_for_nothing(history.events, {KEY: hand_outs}, known, orders or {})
    return [violation.kind for violation in found]


@pytest.mark.parametrize("successor", [N1, N2])
def test_who_stopped_in_order_and_who_mirrored_it_to_the_end_know_what_was_handed_out(successor: str) -> None:
    services = [FIRST, Service(AFTER, 2, successor)]
    assert judged(HANDED_OUT, services=services) == ["flagged"]
    assert judged(HANDED_OUT._replace(is_flagged=False), services=services) == []


def test_what_somebody_was_handed_out_before_is_flagged_rightly() -> None:
    earlier = HandOut(4_000_000, 1, position=1, queue_id=QUEUE)
    assert judged(HANDED_OUT, earlier, services=[FIRST, Service(AFTER, 2, N1)]) == []


def test_who_was_no_mirror_in_the_end_cannot_know() -> None:
    alone = FIRST._replace(heirs={})
    assert judged(HANDED_OUT, services=[alone, Service(AFTER, 2, N2)]) == []
    # Nor can anybody after that one; what came after it is known again.
    late = [alone._replace(at_us=100_000), Service(BEFORE, 2, N2, {N1: BEFORE}), Service(AFTER, 3, N1)]
    assert judged(HANDED_OUT, services=late) == ["flagged"]
    assert judged(HANDED_OUT, services=[alone, Service(AFTER, 2, N2, {N1: AFTER}), Service(AFTER + 1, 3, N1)]) == []


@pytest.mark.parametrize(
    ("mirrors", "found"),
    [
        ([], ["flagged"]),  # it goes on
        ([(4_000_000, False)], ["flagged"]),
        ([(3_700_000, False)], ["flagged"]),  # a little before its master, for whose word it waits
        ([(3_000_000, False), (3_100_000, False)], []),
        ([(2_000_000, False), (2_500_000, True)], ["flagged"]),
        ([(2_000_000, False), (4_500_000, True)], []),
        ([(4_500_000, False)], ["flagged"]),
    ],
)
def test_who_was_told_to_stop_long_before_its_master_cannot_know(
    mirrors: Sequence[tuple[int, bool]], found: list[str]
) -> None:
    """The record may not say so: too few were left to hear the goodbye."""
    orders: dict[str, Sequence[tuple[int, bool]]] = {N1: [(0, True), (4_000_000, False)], N2: [(0, True), *mirrors]}
    assert judged(HANDED_OUT, services=[FIRST, Service(AFTER, 2, N2)], orders=orders) == found
    assert judged(HANDED_OUT, services=[FIRST, Service(AFTER, 2, N1)], orders=orders) == ["flagged"]


@pytest.mark.parametrize(("filled_us", "found"), [(3_999_999, ["flagged"]), (4_000_001, [])])
def test_who_was_filled_when_its_master_had_been_told_to_stop_goes_by_the_promise(
    filled_us: int, found: list[str]
) -> None:
    orders: dict[str, Sequence[tuple[int, bool]]] = {N1: [(0, True), (4_000_000, False)], N2: [(0, True)]}
    services = [FIRST._replace(heirs={N2: filled_us}), Service(AFTER, 2, N2)]
    assert judged(HANDED_OUT, services=services, orders=orders) == found


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (CONFIRMED[:1], []),
        ((*CONFIRMED, (Kind.PUB_INVOKE, 2)), []),
        ((*CONFIRMED, (Kind.PUB_INVOKE, 2), (Kind.CONFIRM, 2)), ["flagged"]),
        ((*CONFIRMED, (Kind.PUB_INVOKE, 2), (Kind.NACK, 2)), ["flagged"]),
        ((*CONFIRMED, (Kind.PUB_INVOKE, 2), (Kind.PUB_UNKNOWN, 2)), []),  # a node may still be asking
    ],
)
def test_what_is_sent_again_to_a_new_master_is_flagged_and_all_that_is_there(
    events: Sequence[Told], found: list[str]
) -> None:
    assert judged(HANDED_OUT, services=[FIRST, Service(AFTER, 2, N1)], events=events) == found


def test_what_is_published_long_after_a_change_of_masters_has_nothing_to_do_with_it() -> None:
    late = [(Kind.PUB_INVOKE, 2), (Kind.PUB_INVOKE, 3)]
    assert judged(HANDED_OUT, services=[FIRST, Service(2_500_000, 2, N1)], events=(*CONFIRMED, *late)) == []
    late = [(Kind.CONFIRM, 1), (Kind.PUB_INVOKE, 3)]
    assert judged(HANDED_OUT, services=[FIRST, Service(2_500_000, 2, N1)], events=(*CONFIRMED, *late)) == ["flagged"]


def test_what_was_on_its_way_when_the_master_changed_is_not_judged() -> None:
    assert judged(HANDED_OUT, services=[FIRST, Service(BETWEEN, 2, N1)]) == []


@pytest.mark.parametrize(("at_us", "found"), [(BEFORE, ["flagged"]), (BETWEEN, []), (AFTER, [])])
def test_nothing_is_known_if_somebody_was_taken_for_dead_since(at_us: int, found: list[str]) -> None:
    assert judged(HANDED_OUT, services=[FIRST, Service(AFTER, 2, N1)], unrest=[at_us]) == found


# --- what the cluster decides


def test_the_last_record_of_a_service_names_its_heirs() -> None:
    services = Services()
    serving = MastershipRecord(
        QUEUE, Epoch(1), N1, (N2,), synchronised=(N2,), complete=(N1, N2), following=(N2,), served_epoch=Epoch(0)
    )
    unfilled = replace(serving, synchronised=())
    waiting = replace(serving, epoch=Epoch(2), master=N2, mirrors=(), synchronised=(), in_service=False)
    services.decided(MastershipChanged(QUEUE, unfilled, serving, "mirrors"), 1)
    services.decided(MastershipChanged(QUEUE, serving, unfilled, "mirrors"), 2)
    services.decided(MastershipChanged(QUEUE, unfilled, serving, "mirrors"), 3)
    services.decided(MastershipChanged(QUEUE, serving, waiting, "elected"), 4)
    assert services.of_queues == {QUEUE: [Service(1, 1, N1, {N2: 3})]}
    served = replace(waiting, in_service=True)
    services.decided(MastershipChanged(QUEUE, waiting, served, "in_service"), 5)
    assert services.of_queues[QUEUE] == [Service(1, 1, N1, {N2: 3}), Service(5, 2, N2)]
    assert services.unrest == []
    services.decided(MastershipChanged(QUEUE, waiting, replace(served, lossy_promotions=1), "in_service_lossy"), 6)
    assert services.unrest == [6]


def test_who_says_goodbye_is_not_missed() -> None:
    services = Services()
    up = MemberRecord(N1, "n1:1", "n1:2", Incarnation(1), is_up=True)
    services.decided(MemberChanged(N1, up), 1)
    services.decided(MemberChanged(N1, replace(up, is_up=False), is_stopped=True), 2)
    assert services.unrest == []
    services.decided(MemberChanged(N1, replace(up, is_up=False)), 3)
    services.decided(MemberChanged(N1, None), 4)
    assert services.unrest == [3, 4]


# --- whole runs


def test_only_what_is_done_in_order_is_judged() -> None:
    stopped = schedule(publish(100), (500, "stop", "n1"), (900, "start", "n1"))
    assert is_orderly(stopped)
    assert is_orderly(draw(1, scenario="clean_stops"))
    assert not is_orderly(schedule(publish(100), (500, "kill", "n1"), (900, "start", "n1")))
    assert not is_orderly(replace(stopped, personality=replace(stopped.personality, earlier=("n1",))))


ALL_STOP = schedule(
    publish(100),
    *((1_000, "stop", name) for name in ("n1", "n2", "n3")),
    *((3_000, "start", name) for name in ("n1", "n2", "n3")),
    lasts_ms=4_000,
    consumers=0,
)


def test_what_nobody_was_given_comes_without_the_flag_after_all_have_stopped() -> None:
    assert run_schedule(ALL_STOP).violations == []


#: One of them is the master; then the next one is a mirror that has heard of it.
ONE_STOPS = [replace(ALL_STOP, steps=(ALL_STOP.steps[0], stop)) for stop in ALL_STOP.steps[1:4]]


def test_what_nobody_was_given_comes_without_the_flag_when_the_mirrors_take_over() -> None:
    assert [run_schedule(stops).violations for stops in ONE_STOPS] == [[], [], []]


def test_a_start_that_knows_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    SAFEGUARDS["clean_stops_say_nothing"].take_away(monkeypatch)
    assert {violation.kind for violation in run_schedule(ALL_STOP).violations} == {"flagged"}


def test_a_mirror_that_knows_no_more_than_the_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    SAFEGUARDS["ends_are_not_heard"].take_away(monkeypatch)
    assert {violation.kind for stops in ONE_STOPS for violation in run_schedule(stops).violations} == {"flagged"}
