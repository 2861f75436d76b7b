"""What queues have the cluster decide: a mirror that is to have its place again is offered it until that is decided."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.metadata.commands import (
    AddMirror,
    Command,
    DropMirror,
    MirrorFollows,
    MirrorSynchronised,
    MoveMaster,
    TakeService,
)
from cluster.metadata.errors import NoQuorumError, StaleMastershipError, UnwantedMirrorError
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.reports import ReportFollows, ReportMirrorStalled, ReportSynchronised, ReportTakesService
from cluster.runtime.background import Background
from cluster.runtime.housekeeping import RoomWatch
from cluster.runtime.queue_proposals import OFFERS_PER_TURN, QueueProposals
from cluster.runtime.stalled_mirrors import QUIET_LOOKS, StalledMirrors
from node.errors import WarrenError
from node.ids import Epoch, NodeName, QueueId

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
Q = QueueId(7)
DROP, ADD = DropMirror(Q, Epoch(1), N2), AddMirror(Q, Epoch(1), N2)
#: Copies that are opened in one turn of the loop.
PER_TURN = 3
UNDECIDED = NoQuorumError("no decision within 30000 ms")


class Bench:
    """A queue that n1 masters, as ``node`` sees it. The test says what is decided, and what the record is then."""

    def __init__(self, node: NodeName = N1) -> None:
        self.proposed: list[Command] = []
        self.withdrawn: list[Command] = []
        self.answer: WarrenError | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.has_quorum = True
        self.applied_index = 0
        self.record: MastershipRecord | None = None
        self.mirrors(N2)
        self.starved: set[QueueId] = set()
        metadata = SimpleNamespace(change=self.change, consensus=self)
        links = SimpleNamespace(is_up=lambda _node: True)
        self.background = Background(asyncio.get_running_loop())
        self.proposals = QueueProposals(node, cast(Any, metadata), cast(Any, self), cast(Any, links), self.background)
        alarms = SimpleNamespace(has_room=lambda *_: True)
        queues = SimpleNamespace(starved=lambda: sorted(self.starved), forgive=self.starved.discard)
        self.opened: list[QueueId] = []
        none, roles = cast(Any, None), cast(Any, SimpleNamespace(take_up=self.opened.append))
        self.room = RoomWatch(
            node,
            cast(Any, self),
            cast(Any, queues),
            cast(Any, alarms),
            roles,
            none,
            self.proposals,
            call_soon=asyncio.get_running_loop().call_soon,
            clock=lambda: 0.0,
            per_turn=PER_TURN,
        )
        self.is_changing = False

    def mastership(self, _queue_id: QueueId) -> MastershipRecord | None:
        return self.record

    def applied_index_of(self, _queue_id: QueueId) -> int:
        self.applied_index += 1
        return self.applied_index

    def describe(self, queue_id: QueueId) -> str:
        return f"queue 'q{queue_id}' in vhost '/'"

    def mirrors(self, *mirrors: NodeName) -> None:
        self.record = MastershipRecord(Q, Epoch(1), N1, mirrors, (), (N1,), in_service=True)

    async def change(self, command: Command) -> None:
        self.proposed.append(command)
        answer = self.answer
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.withdrawn.append(command)
            raise
        if answer is not None:
            raise answer

    def stalled(self) -> None:
        assert self.record is not None
        self.proposals.report(self.record, ReportMirrorStalled(N2))

    async def readmit(self) -> list[Command]:
        """What is proposed by that."""
        before = len(self.proposed)
        self.proposals.readmit()
        await self.turn()
        return self.proposed[before:]

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self.proposals.check_invariants()

    async def dropped(self) -> None:
        self.stalled()
        await self.turn()
        self.mirrors()
        assert self.proposed == [DROP]


async def test_a_dropped_mirror_is_offered_its_place_until_that_is_decided() -> None:
    bench = Bench()
    await bench.dropped()
    bench.answer = UNDECIDED
    assert await bench.readmit() == [ADD]
    bench.answer = None
    assert await bench.readmit() == [ADD]
    assert await bench.readmit() == [], "it was taken back: who puts it out now has another reason"


async def test_a_mirror_that_was_taken_back_without_an_answer_is_offered_nothing() -> None:
    bench = Bench()
    await bench.dropped()
    bench.answer = UNDECIDED
    assert await bench.readmit() == [ADD]
    bench.mirrors(N2)
    assert await bench.readmit() == []
    bench.mirrors()
    assert await bench.readmit() == []


async def test_one_offer_is_under_way_at_a_time() -> None:
    bench = Bench()
    await bench.dropped()
    bench.may_answer.clear()
    bench.answer = UNDECIDED
    assert await bench.readmit() == [ADD]
    assert await bench.readmit() == []
    bench.may_answer.set()
    await bench.turn()
    assert await bench.readmit() == [ADD]


async def test_many_offers_are_made_in_many_turns() -> None:
    """A link that was cut for long has one of each queue."""
    bench = Bench()
    many = 2 * OFFERS_PER_TURN + 1
    assert bench.record is not None
    for number in range(many):
        bench.proposals.report(replace(bench.record, queue_id=QueueId(number)), ReportMirrorStalled(N2))
    await bench.turn()
    bench.mirrors()
    made: list[int] = []
    bench.proposals.readmit()
    while len(bench.proposed) < 2 * many:
        before = len(bench.proposed)
        await asyncio.sleep(0)
        bench.proposals.readmit()
        made.append(len(bench.proposed) - before)
    assert max(made) == OFFERS_PER_TURN
    await bench.turn()
    assert len(bench.proposed) == 2 * many, "each is made once"


async def test_many_copies_are_opened_in_many_turns_when_there_is_room_again() -> None:
    bench = Bench()
    bench.mirrors()
    bench.starved.update(QueueId(number) for number in range(2 * PER_TURN + 1))
    for opened in (PER_TURN, 2 * PER_TURN, 2 * PER_TURN + 1):
        bench.room.look(0)
        assert len(bench.opened) == opened
        await asyncio.sleep(0)
    assert bench.opened == sorted(set(bench.opened)), "each is opened once"


async def test_what_is_still_to_be_opened_waits_for_another_look_if_all_records_change() -> None:
    bench = Bench()
    bench.mirrors()
    bench.starved.update(QueueId(number) for number in range(2 * PER_TURN))
    bench.room.look(0)
    bench.is_changing = True
    await bench.turn()
    assert len(bench.opened) == PER_TURN
    bench.is_changing = False
    bench.room.look(0)
    await bench.turn()
    assert len(bench.opened) == 2 * PER_TURN
    bench.starved.update(QueueId(number) for number in range(2 * PER_TURN))
    bench.room.look(0)
    bench.room.stop()
    await bench.turn()
    assert len(bench.opened) == 3 * PER_TURN, "the node stops"


async def test_a_mirror_that_no_policy_wants_is_offered_its_place_once() -> None:
    bench = Bench()
    await bench.dropped()
    bench.answer = UnwantedMirrorError(Q, N2)
    assert await bench.readmit() == [ADD]
    assert await bench.readmit() == []


async def test_an_offer_that_meant_the_epoch_before_is_made_again() -> None:
    bench = Bench()
    await bench.dropped()
    bench.answer = StaleMastershipError("queue 7 is in epoch 2, the command means 1")
    assert await bench.readmit() == [ADD]
    assert bench.record is not None
    bench.record = replace(bench.record, epoch=Epoch(2))
    assert await bench.readmit() == [AddMirror(Q, Epoch(2), N2)]


async def test_nothing_is_offered_of_a_queue_that_is_not_in_service() -> None:
    bench = Bench()
    await bench.dropped()
    record = bench.record
    assert record is not None
    bench.record = replace(record, in_service=False)
    assert await bench.readmit() == []
    bench.record = record
    assert await bench.readmit() == [ADD]


async def test_a_mirror_that_a_late_drop_has_put_out_again_is_offered_its_place() -> None:
    """The drop was lost with a leader, nobody waits for it any more, and the new leader has it in its log."""
    bench = Bench()
    bench.answer = UNDECIDED
    bench.stalled()
    await bench.turn()
    assert await bench.readmit() == [], "the record names it still"
    bench.mirrors()
    bench.answer = None
    assert await bench.readmit() == [ADD]
    bench.mirrors(N2)
    assert await bench.readmit() == []


async def test_a_mirror_whose_drop_is_decided_behind_its_return_is_offered_its_place() -> None:
    """It was declared down meanwhile, and has come back with its place."""
    bench = Bench()
    bench.may_answer.clear()
    bench.stalled()
    await bench.turn()
    bench.proposals.node_down(N2)
    bench.may_answer.set()
    await bench.turn()
    bench.mirrors()
    assert await bench.readmit() == [ADD]


async def test_no_place_is_offered_while_another_drop_of_the_mirror_is_under_way() -> None:
    """It names no time, so it would be carried out behind the offer."""
    bench = Bench()
    bench.stalled()
    await bench.turn()
    bench.may_answer.clear()
    bench.stalled()
    await bench.turn()
    bench.mirrors()
    assert await bench.readmit() == []
    bench.may_answer.set()
    await bench.turn()
    assert await bench.readmit() == [ADD]


async def test_nothing_is_kept_of_a_queue_that_is_gone_or_has_another_master() -> None:
    bench = Bench()
    for end in (None, MastershipRecord(Q, Epoch(2), N2, (N1,), (), (N2,), in_service=True)):
        bench.mirrors(N2)
        bench.stalled()
        await bench.turn()
        bench.record = end
        assert await bench.readmit() == []
        bench.mirrors()
        assert await bench.readmit() == []


async def test_a_copy_that_has_room_again_asks_for_its_place_until_that_is_decided() -> None:
    bench = Bench(N2)
    bench.starved.add(Q)
    bench.mirrors()
    bench.answer = UNDECIDED
    bench.room.look(0)
    await bench.turn()
    assert bench.proposed == [ADD]
    bench.room.look(1000)
    await bench.turn()
    assert bench.proposed == [ADD]
    bench.answer = None
    assert await bench.readmit() == [ADD]
    bench.mirrors(N2)
    assert await bench.readmit() == []
    bench.mirrors()
    assert await bench.readmit() == []


async def test_a_copy_asks_for_no_place_while_it_is_out_of_service_once_more() -> None:
    bench = Bench(N2)
    bench.starved.add(Q)
    bench.mirrors()
    bench.room.look(0)
    await bench.turn()
    bench.mirrors(N2)
    assert bench.record is not None
    bench.proposals.storage_failed(bench.record, is_damaged=True)
    await bench.turn()
    assert bench.proposed == [ADD, DROP]
    bench.mirrors()
    assert await bench.readmit() == []


async def test_a_copy_asks_for_its_place_when_every_drop_of_it_is_decided() -> None:
    """It had asked twice to be dropped, as its record had changed in between: the second drop, decided behind its
    return, would put it out again, for good."""
    bench = Bench(N2)
    bench.may_answer.clear()
    assert bench.record is not None
    for _ in range(2):
        bench.proposals.storage_failed(bench.record, is_damaged=True)
    await bench.turn()
    assert bench.proposed == [DROP, DROP]
    bench.mirrors()
    bench.starved.add(Q)
    bench.room.look(0)
    await bench.turn()
    assert bench.proposed == [DROP, DROP]
    bench.may_answer.set()
    await bench.turn()
    assert await bench.readmit() == [ADD]
    bench.mirrors(N2)
    assert await bench.readmit() == []


async def test_a_master_whose_copy_has_failed_takes_no_service_and_the_others_do() -> None:
    """What nobody decides is proposed again for half a minute, and ends the completeness of copies that are down."""
    bench = Bench()
    bench.may_answer.clear()
    bench.mirrors()
    assert bench.record is not None
    other, waiting = replace(bench.record, queue_id=QueueId(8)), replace(bench.record, queue_id=QueueId(9))
    for record in (bench.record, other):
        bench.proposals.report(record, ReportTakesService())
    await bench.turn()
    both = ((Q, Epoch(1)), (QueueId(8), Epoch(1)))
    assert bench.proposed == [TakeService(N1, both)]
    bench.proposals.report(waiting, ReportTakesService())
    bench.proposals.storage_failed(bench.record, is_damaged=True)
    bench.proposals.storage_failed(waiting, is_damaged=True)
    await bench.turn()
    assert bench.proposed == [TakeService(N1, both), TakeService(N1, both[1:])]
    bench.may_answer.set()
    await bench.turn()
    bench.proposals.report(bench.record, ReportTakesService())
    await bench.turn()
    assert bench.proposed[2:] == [TakeService(N1, both[:1])], "its copy was opened again"


async def test_a_request_for_service_ends_with_the_node() -> None:
    bench = Bench()
    bench.may_answer.clear()
    assert bench.record is not None
    for record in (bench.record, replace(bench.record, queue_id=QueueId(8))):
        bench.proposals.report(record, ReportTakesService())
    await bench.turn()
    bench.mirrors()
    bench.proposals.storage_failed(bench.record, is_damaged=True)
    bench.may_answer.set()
    await bench.background.stop()
    assert len(bench.proposed) == 1, "nothing is asked once more"


async def test_a_master_whose_copy_has_room_again_does_not_go_on_to_ask_for_another() -> None:
    """Nobody has decided yet; meanwhile it would serve, and its copy would be called lost."""
    bench = Bench()
    bench.may_answer.clear()
    assert bench.record is not None
    bench.record = replace(bench.record, mirrors=(N2, N3), complete=(N1, N2))
    first, second = (MoveMaster(Q, Epoch(1), node, is_old_lost=True) for node in (N2, N3))
    bench.proposals.storage_failed(bench.record, is_damaged=True)
    await bench.turn()
    bench.record = replace(bench.record, complete=(N1, N3))
    bench.proposals.storage_failed(bench.record, is_damaged=True)
    await bench.turn()
    assert (bench.proposed, bench.withdrawn) == ([first, second], [first])
    bench.starved.add(Q)
    bench.room.look(0)
    await bench.turn()
    assert bench.withdrawn == [first, second]
    bench.may_answer.set()
    bench.proposals.storage_failed(bench.record, is_damaged=True)
    await bench.turn()
    bench.proposals.goes_on(Q)
    assert bench.withdrawn == [first, second], "that one is decided"


# --- what the log says of it ---


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    caplog.clear()
    return found


async def test_a_silent_mirror_is_told_of_once_until_it_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.may_answer.clear()
    for _ in range(3):
        bench.stalled()
        await bench.readmit()
    assert told(caplog) == [
        "n2 does not answer as a mirror of queue 'q7' in vhost '/': the cluster is asked to go on without it"
    ]
    bench.may_answer.set()
    await bench.turn()
    bench.stalled()  # it was taken back
    await bench.readmit()
    assert len(told(caplog)) == 1


async def test_a_node_without_a_majority_does_not_say_what_it_cannot_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.answer = UNDECIDED
    bench.stalled()
    bench.has_quorum = False
    for _ in range(3):
        await bench.readmit()
        bench.stalled()
    assert told(caplog) == []
    bench.has_quorum = True
    bench.stalled()
    await bench.readmit()
    assert len(told(caplog)) == 1, "it is silent still"


async def test_thousands_of_silent_mirrors_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    assert bench.record is not None
    for number in range(10_000):
        bench.proposals.report(replace(bench.record, queue_id=QueueId(number)), ReportMirrorStalled(N2))
    await bench.readmit()
    assert told(caplog) == [
        "n2 does not answer as a mirror of queue 'q0' in vhost '/', queue 'q1' in vhost '/', queue 'q2' in vhost '/' "
        "and 9997 more: the cluster is asked to go on without it"
    ]


def test_a_mirror_that_has_answered_since_is_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    mirrors = StalledMirrors(str)
    mirrors.stalled(Q, N2)
    for _ in range(QUIET_LOOKS):
        mirrors.look(has_quorum=True)
    mirrors.stalled(Q, N2)
    mirrors.look(has_quorum=True)
    assert len(told(caplog)) == 1
    for _ in range(QUIET_LOOKS):
        mirrors.look(has_quorum=True)
    mirrors.stalled(Q, N2)
    mirrors.look(has_quorum=True)
    assert len(told(caplog)) == 1


async def test_what_is_said_of_a_mirror_is_not_proposed_again_while_it_is_being_decided() -> None:
    """It is said again every second, and a group that is slow would have all the more to do."""
    bench = Bench()
    bench.mirrors(N2, N3)
    assert bench.record is not None
    bench.may_answer.clear()
    for _ in range(3):
        for report in (ReportFollows(N2), ReportSynchronised(N2), ReportSynchronised(N3)):
            bench.proposals.report(bench.record, report)
        await bench.turn()
    proposed = [MirrorFollows(Q, Epoch(1), N2, 1), MirrorSynchronised(Q, Epoch(1), N2, 2)]
    proposed.append(MirrorSynchronised(Q, Epoch(1), N3, 3))
    assert bench.proposed == proposed
    bench.proposals.report(replace(bench.record, epoch=Epoch(2)), ReportFollows(N2))
    await bench.turn()
    assert bench.proposed[3:] == [MirrorFollows(Q, Epoch(2), N2, 10)], "as the master of another epoch"


@pytest.mark.parametrize("answer", [None, UNDECIDED, StaleMastershipError("n2 became a mirror after that")])
async def test_what_was_decided_or_given_up_may_be_said_again(answer: WarrenError | None) -> None:
    bench = Bench()
    assert bench.record is not None
    bench.answer = answer
    for _ in range(2):
        bench.proposals.report(bench.record, ReportSynchronised(N2))
        await bench.turn()
    assert len(bench.proposed) == 2
