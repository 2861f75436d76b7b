"""Frames in and out: who gets which, what leaves together, and what a broken link costs the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.membership.messages import NodeAlarms
from cluster.mirroring.messages import OpsAck
from cluster.runtime.applier import SLICE_PIECES
from cluster.runtime.switchboard import UNSAID_BYTES_MAX, OutgoingFrames, Switchboard
from cluster.sessions.messages import SessionConfirm, SessionDeliver, SessionOpen
from cluster.wire.convert import QueueFrameMessage
from node.ids import Epoch, Incarnation, NodeName, QueueId, SeqId
from tests.support.runtime_bench import N2, N3, FakeMesh

ACK = OpsAck(QueueId(1), Epoch(1), 1, 1, 1, is_disk_full=False, is_describing=False)
CONFIRM = SessionConfirm(QueueId(1), 1, 1, [1])
OPEN = SessionOpen(QueueId(1), 1, Epoch(1), 800)
ALARMS = NodeAlarms(())
DELIVER = SessionDeliver(QueueId(1), 1, 1, "tag", [SeqId(1)], [False], b"envelope")


class Part:
    """Any part of the node, which writes down what it is told."""

    def __init__(self, name: str, told: list[tuple[Any, ...]]) -> None:
        self.name = name
        self.told = told

    def receive(self, *words: Any) -> None:
        self.told.append((self.name, *words))

    def heard(self, peer: NodeName) -> None:
        self.told.append(("heard", peer))

    def link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        self.told.append(("up", peer, incarnation))

    def link_down(self, peer: NodeName) -> None:
        self.told.append(("down", peer))

    def peer_refused(self, peer: NodeName) -> None:
        self.told.append(("refused", peer))

    def link_free(self, peer: NodeName) -> None:
        self.told.append((self.name, "free", peer))


def switchboard() -> tuple[Switchboard, list[tuple[Any, ...]]]:
    told: list[tuple[Any, ...]] = []
    parts = {name: Part(name, told) for name in ("membership", "consensus", "mirroring", "entry", "sessions", "alarms")}
    board = Switchboard(
        parts["membership"],
        consensus=parts["consensus"].receive,
        mirroring=parts["mirroring"],
        entry=parts["entry"],
        sessions=parts["sessions"],
        alarms=parts["alarms"],
        room_came=lambda peer: told.append(("room", peer)),
    )
    return board, told


@pytest.mark.parametrize(
    ("message", "part"), [(ACK, "mirroring"), (CONFIRM, "entry"), (OPEN, "sessions"), (ALARMS, "alarms")]
)
def test_a_frame_goes_to_the_part_it_is_for(message: QueueFrameMessage, part: str) -> None:
    board, told = switchboard()
    board.on_queue_frames(N2, [message])
    assert told == [("heard", N2), (part, N2, message)]


def test_an_empty_frame_is_a_sign_of_life() -> None:
    board, told = switchboard()
    board.on_consensus(N2, [])
    board.on_queue_frames(N3, [])
    assert told == [("heard", N2), ("consensus", []), ("heard", N3)]


def test_links_are_for_the_membership_and_room_on_them_for_the_channels() -> None:
    board, told = switchboard()
    board.on_link_up(N2, Incarnation(3))
    board.on_link_uncongested(N2)
    board.on_link_room(N2)
    board.on_link_down(N2, "reset")
    board.on_peer_refused(N2)
    told_of_end = [("down", N2), ("room", N2)]
    assert told == [("up", N2, 3), ("entry", "free", N2), ("room", N2), *told_of_end, ("refused", N2)]


class CountingMesh(FakeMesh):
    """Notes calls, not only messages."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[NodeName, int]] = []

    def send_queue_frames(self, peer: NodeName, messages: Any) -> None:
        self.calls.append((peer, len(messages)))
        super().send_queue_frames(peer, messages)


async def turns(count: int) -> None:
    """Of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def links_over(mesh: FakeMesh) -> OutgoingFrames:
    links = OutgoingFrames(asyncio.get_running_loop(), lambda: 0.0, SLICE_PIECES)
    links.connect(mesh)
    return links


async def test_what_is_said_in_one_turn_leaves_together_and_in_order() -> None:
    mesh = CountingMesh()
    links = links_over(mesh)
    links.send(N2, OPEN)
    links.send(N3, ACK)
    links.send_to_all(ALARMS)
    assert mesh.calls == []
    await asyncio.sleep(0)
    assert mesh.calls == [(N2, 2), (N3, 2)]
    assert mesh.sent == [(N2, OPEN), (N2, ALARMS), (N3, ACK), (N3, ALARMS)]
    links.send(N2, CONFIRM)
    await asyncio.sleep(0)
    assert mesh.calls[2:] == [(N2, 1)]


async def test_what_cannot_be_sent_to_one_resets_that_link_only() -> None:
    mesh = CountingMesh()
    links = links_over(mesh)
    mesh.broken = {N2}
    links.send(N2, OPEN)
    links.send(N3, OPEN)
    await turns(2)
    assert (mesh.reset, mesh.sent) == ([N2], [(N3, OPEN)])
    assert links.is_up(N2) is (N2 in links.linked_nodes())


async def test_a_link_is_reset_in_a_turn_of_its_own_and_carries_nothing_behind_what_was_lost() -> None:
    """Whoever asks for room is in the midst of something, and would hear that the link is gone. And a later publish of
    a channel must not come before one that is sent again."""
    mesh = CountingMesh()
    links = links_over(mesh)
    mesh.broken = {N2}
    links.send(N2, OPEN)
    assert not links.is_congested_now(N2)
    assert mesh.reset == []
    mesh.broken = set()
    links.send(N2, ACK)
    assert not links.is_congested_now(N2)
    links.send(N2, CONFIRM)
    await turns(3)
    assert (mesh.reset, mesh.sent) == ([N2], [])
    links.send(N2, OPEN)
    await turns(2)
    assert (mesh.reset, mesh.sent) == ([N2], [(N2, OPEN)])


async def test_a_link_is_full_by_messages_to_consumers_there() -> None:
    mesh = CountingMesh()
    links = links_over(mesh)
    mesh.congested = {N2}
    links.send(N2, ACK)
    await turns(1)
    assert not links.is_full_now(N2), "others congest it"
    links.deliver(N2, DELIVER, 1)
    await turns(1)
    assert links.is_full_now(N2)
    assert not links.is_full_now(N3)
    mesh.congested = set()
    assert not links.is_full_now(N2)
    links.check_invariants()


async def test_what_was_said_in_this_turn_counts_if_it_is_much_and_is_not_handed_over_for_less() -> None:
    mesh = CountingMesh()
    links = links_over(mesh)
    mesh.congested = {N2}
    links.deliver(N2, DELIVER, UNSAID_BYTES_MAX)
    assert not links.is_full_now(N2)
    assert mesh.calls == []
    links.deliver(N2, DELIVER, 1)
    links.check_invariants()
    assert links.is_full_now(N2)
    assert mesh.calls == [(N2, 2)]
    await turns(1)
    assert mesh.calls[1:] in ([], [(N2, 0)])


async def test_who_finds_a_link_full_goes_on_before_whoever_comes_later() -> None:
    mesh = CountingMesh()
    links = links_over(mesh)
    mesh.congested = {N2}
    links.deliver(N2, DELIVER, 1)
    await turns(1)
    found: list[bool] = []
    links.when_room(N2, "first", lambda: found.append(links.is_full_now(N2)))
    links.check_invariants()
    mesh.congested = set()
    links.room_came(N2)
    assert links.is_full_now(N2), "for others"
    links.check_invariants()
    await turns(1)
    assert found == [False]
    assert not links.is_full_now(N2)


async def test_what_was_lost_with_a_broken_link_fills_it_no_longer() -> None:
    mesh = CountingMesh()
    links = links_over(mesh)
    mesh.broken = {N2}
    links.deliver(N2, DELIVER, 1)
    await turns(2)
    links.check_invariants()
    mesh.broken, mesh.congested = set(), {N2}
    links.send(N2, ACK)
    await turns(1)
    assert not links.is_full_now(N2)
