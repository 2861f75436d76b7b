"""Who is told what when peers come and go, and in which order. (What comes of it in the cluster: test_node_runtime.)"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from cluster.membership.detector import DetectorConfig, Verdict
from cluster.membership.messages import NodeAlarms
from cluster.metadata.commands import NodeDown, NodeUp
from cluster.metadata.errors import NoQuorumError
from cluster.metadata.events import MemberChanged
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.records import MemberRecord
from cluster.metadata.state import MetadataState
from cluster.runtime import membership as module
from cluster.runtime import queue_deletions
from cluster.runtime.background import Background
from cluster.runtime.housekeeping import TICK_S
from cluster.runtime.membership import Membership
from node.auth import UserDirectory
from node.config import build_config, parse_settings
from node.ids import Incarnation, NodeName, QueueId
from tests.support.runtime_bench import CONFIG, N1, N2, N3

LIFE_1, LIFE_2 = Incarnation(1), Incarnation(2)
#: What is said of a life that has yet to be linked with.
ARRIVED = ["consensus peers_changed", "alarms node_up", "consensus peer_begins_anew"]


class Part:
    """A part of the node: whatever it is told is written down, under its name."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name = name
        self.told = told
        #: Peers whose link is up, for the part that knows them.
        self.up: set[NodeName] = set()
        #: Peers with an alarm, for the part that knows those.
        self.alarmed_peers: list[NodeName] = []

    def __getattr__(self, method: str) -> Any:
        return lambda *_arguments, **_options: self.told.append(f"{self.name} {method}")

    def is_up(self, node: NodeName) -> bool:
        return node in self.up

    def is_failed(self, queue_id: QueueId) -> bool:
        return False

    def own_alarms(self) -> NodeAlarms:
        return NodeAlarms(())


class Metadata:
    """A metadata group that decides what the test says."""

    def __init__(self, consensus: Any) -> None:
        self.state = MetadataState(UserDirectory())
        self.consensus = consensus
        self.proposed: list[object] = []
        self.answer: Awaitable[None] | None = None
        #: What the next proposals meet.
        self.refusals: list[Exception] = []

    async def wait_visible(self) -> bool:
        return True

    async def change(self, command: object) -> None:
        self.proposed.append(command)
        if self.refusals:
            raise self.refusals.pop(0)
        if self.answer is not None:
            await self.answer


class Bench:
    def __init__(self) -> None:
        self.told: list[str] = []
        names = ("consensus", "links", "queues", "channels", "sessions", "alarms", "dropped")
        self.parts: dict[str, Any] = {name: Part(name, self.told) for name in names}
        self.parts["consensus"].leader = N1
        self.now_ms = 0
        self.metadata = Metadata(self.parts["consensus"])
        self.membership = Membership(
            build_config(parse_settings(CONFIG, "node.conf")),
            Incarnation(7),
            cast(Any, self.metadata),
            Background(asyncio.get_running_loop()),
            lambda: self.now_ms,
            NEWEST_PROTOCOL,
            **{name: part for name, part in self.parts.items() if name != "consensus"},
        )

    def since(self) -> list[str]:
        """What was told since the last time."""
        told = self.told.copy()
        self.told.clear()
        self.membership.check_invariants()
        return told

    def committed(self, node: NodeName, life: Incarnation, *, is_up: bool) -> None:
        self.membership.member_changed(MemberChanged(node, member(node, life, is_up=is_up)))


def member(node: NodeName, life: Incarnation, *, is_up: bool) -> MemberRecord:
    return MemberRecord(node, "h:1", "h:2", life, is_up)


async def test_a_link_begins_every_conversation_anew() -> None:
    bench = Bench()
    bench.membership.link_up(N2, LIFE_1)
    assert bench.since() == ["consensus link_up", "links send", "queues link_up", "channels link_up"]
    bench.membership.link_down(N2)
    assert bench.since() == [
        "consensus link_down",
        "queues link_down",
        "channels link_down",
        "alarms link_lost",
        "sessions node_lost",
    ]


async def test_another_life_than_that_of_the_link_begins_mirroring_anew() -> None:
    bench = Bench()
    bench.membership.link_up(N2, LIFE_1)
    bench.since()
    bench.committed(N2, LIFE_1, is_up=True)
    assert bench.since() == ["consensus peers_changed", "alarms node_up"]
    bench.committed(N2, LIFE_2, is_up=True)
    assert bench.since() == [*ARRIVED, "queues link_up"]
    bench.committed(N3, LIFE_2, is_up=True)
    assert bench.since() == ARRIVED, "there is no link that could be of the past"


async def test_a_peer_declared_down_is_lost_to_sessions_alarms_and_places() -> None:
    bench = Bench()
    bench.committed(N2, LIFE_1, is_up=False)
    assert bench.since() == ["consensus peers_changed", "alarms node_down", "sessions node_lost", "dropped node_down"]


async def test_a_process_that_is_gone_is_dead_for_certain() -> None:
    bench = Bench()
    bench.membership.link_up(N2, LIFE_1)
    bench.membership.link_down(N2)
    bench.since()
    bench.membership.peer_refused(N2)
    assert bench.since() == ["consensus peer_down"]
    assert bench.membership.verdict(N2) is Verdict.DOWN
    bench.membership.heard(N2)
    assert bench.membership.verdict(N2) is Verdict.UP


@pytest.mark.parametrize("end", ["heard", "another leads", "nobody leads"])
async def test_a_verdict_that_does_not_hold_any_more_is_not_proposed_any_more(end: str) -> None:
    """A proposal that is not decided is made again under every new leader: a peer that lives again, and serves clients,
    would lose its queues by what a leader of before thought of it."""
    bench = Bench()
    bench.metadata.state.members[N2] = member(N2, LIFE_1, is_up=True)
    bench.metadata.answer = undecided = asyncio.get_running_loop().create_future()
    bench.membership.link_up(N2, LIFE_1)
    bench.membership.link_down(N2)
    bench.membership.peer_refused(N2)
    await asyncio.sleep(0)
    assert bench.metadata.proposed == [NodeDown(N2, LIFE_1)]
    if end == "heard":
        bench.membership.heard(N2)
    else:
        bench.parts["consensus"].leader = N3 if end == "another leads" else None
        bench.membership.leader_changed(bench.parts["consensus"].leader)
    await asyncio.sleep(0)
    assert undecided.cancelled()
    bench.metadata.answer = None
    bench.parts["consensus"].leader = N1
    bench.membership.leader_changed(N1)
    await asyncio.sleep(0)
    assert len(bench.metadata.proposed) == (1 if end == "heard" else 2), "whoever leads proposes what it sees itself"


async def test_that_a_peer_was_dead_is_not_said_of_its_next_life() -> None:
    """It has started again, as another leader has heard; its link to this node, which leads now, is yet to come."""
    bench = Bench()
    bench.parts["consensus"].leader = N3
    bench.metadata.state.members[N2] = member(N2, LIFE_1, is_up=False)
    bench.membership.link_up(N2, LIFE_1)
    bench.membership.link_down(N2)
    bench.membership.peer_refused(N2)
    bench.metadata.state.members[N2] = member(N2, LIFE_2, is_up=True)
    bench.committed(N2, LIFE_2, is_up=True)
    bench.parts["consensus"].leader = N1
    bench.membership.leader_changed(N1)
    await asyncio.sleep(0)
    assert bench.metadata.proposed == []
    bench.now_ms += 5000
    bench.membership.tick(bench.now_ms, 0)
    await asyncio.sleep(0)
    assert bench.metadata.proposed == [NodeDown(N2, LIFE_2)], "it has had its time"


def test_a_look_for_consumers_waits_for_longer_than_a_node_is_silent_unnoticed() -> None:
    assert DetectorConfig().suspect_after_ms / 1000 + TICK_S < queue_deletions.REATTACH_S


async def test_a_peer_that_was_silent_and_is_heard_again_has_yet_to_say_what_it_has() -> None:
    bench = Bench()
    bench.membership.link_up(N2, LIFE_1)
    arrivals = bench.membership.arrivals
    bench.now_ms += 900
    bench.membership.heard(N2)
    assert (bench.membership.arrivals, bench.membership.is_at_work(N2)) == (arrivals, True)
    bench.now_ms += 1000
    assert not bench.membership.is_at_work(N2), "whatever the last verdict was"
    bench.membership.tick(bench.now_ms, 0)
    bench.membership.heard(N2)
    assert (bench.membership.arrivals, bench.membership.is_at_work(N2)) == (arrivals + 1, True)


async def test_the_verdict_about_this_life_of_a_peer_stands_when_its_arrival_is_decided_late() -> None:
    bench = Bench()
    bench.membership.link_up(N2, LIFE_1)
    bench.membership.link_down(N2)
    bench.membership.peer_refused(N2)
    bench.metadata.state.members[N2] = member(N2, LIFE_1, is_up=True)
    bench.committed(N2, LIFE_1, is_up=True)
    bench.membership.repeat()
    await asyncio.sleep(0)
    assert bench.metadata.proposed == [NodeDown(N2, LIFE_1)]


async def test_a_peer_is_proposed_once_at_a_time() -> None:
    bench = Bench()
    bench.metadata.state.members[N2] = member(N2, LIFE_1, is_up=True)
    bench.metadata.answer = decided = asyncio.get_running_loop().create_future()
    bench.membership.link_up(N2, LIFE_1)
    bench.membership.link_down(N2)
    bench.membership.peer_refused(N2)
    await asyncio.sleep(0)
    bench.membership.repeat()
    await asyncio.sleep(0)
    assert len(bench.metadata.proposed) == 1
    decided.set_result(None)
    for _ in range(3):
        await asyncio.sleep(0)
    bench.metadata.answer = None
    bench.membership.repeat()
    await asyncio.sleep(0)
    assert len(bench.metadata.proposed) == 2, "it did not come true"


async def test_who_was_never_a_member_says_no_goodbye() -> None:
    bench = Bench()
    await bench.membership.say_goodbye()
    assert bench.metadata.proposed == []
    await bench.membership.join()
    await bench.membership.say_goodbye()
    kinds = [type(command) for command in bench.metadata.proposed]
    assert kinds == [NodeUp, NodeDown]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_who_stops_does_not_go_on_to_announce_itself(has_begun: bool) -> None:
    """It was declared down, and nobody has decided yet that it lives: behind its goodbye that would be wrong."""
    bench = Bench()
    await bench.membership.join()
    bench.metadata.answer = asyncio.get_running_loop().create_future()
    bench.committed(N1, Incarnation(7), is_up=False)
    if has_begun:
        await asyncio.sleep(0)
    bench.membership.begin_stop()
    for _ in range(3):
        await asyncio.sleep(0)
    assert bench.metadata.answer.cancelled() == has_begun
    assert [type(command) for command in bench.metadata.proposed] == [NodeUp] * (1 + has_begun)


async def test_who_joins_waits_for_a_majority_however_long_it_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """After a loss of power somebody has to start the other nodes first."""
    bench = Bench()
    bench.metadata.refusals = [NoQuorumError("nobody answers")] * 3
    await bench.membership.join()
    assert len(bench.metadata.proposed) == 4
    assert caplog.text.count("still waiting for a majority") == 3


@pytest.mark.parametrize("refusal", [None, NoQuorumError("nobody answers")])
async def test_a_goodbye_that_nobody_hears_is_given_up(
    refusal: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "GOODBYE_TIMEOUT_S", 0.0)
    bench = Bench()
    await bench.membership.join()
    answer = asyncio.get_running_loop().create_future()
    if refusal is not None:
        answer.set_exception(refusal)
    bench.metadata.answer = answer
    await bench.membership.say_goodbye()
    assert "the cluster could not be told of the shutdown" in caplog.text
    if refusal is not None:
        answer.exception()  # nobody else has looked


async def test_only_who_has_joined_and_stays_contradicts_its_own_death() -> None:
    bench = Bench()
    bench.committed(N1, LIFE_1, is_up=False)
    await asyncio.sleep(0)
    assert bench.metadata.proposed == []
    await bench.membership.join()
    bench.committed(N1, LIFE_1, is_up=False)
    await asyncio.sleep(0)
    assert len(bench.metadata.proposed) == 2
    bench.membership.begin_stop()
    bench.committed(N1, LIFE_1, is_up=False)
    await asyncio.sleep(0)
    assert len(bench.metadata.proposed) == 2


async def test_a_peer_that_said_goodbye_has_stopped_and_is_not_called_dead(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    await bench.membership.join()
    bench.membership.link_up(N2, LIFE_1)
    bench.membership.member_changed(MemberChanged(N2, member(N2, LIFE_1, is_up=False), is_stopped=True))
    bench.membership.link_down(N2)
    bench.membership.peer_refused(N2)
    assert "n2 has stopped" in caplog.text
    assert "n2 is dead" not in caplog.text
    bench.committed(N2, LIFE_2, is_up=True)
    bench.membership.link_up(N2, LIFE_2)
    bench.membership.link_down(N2)
    bench.membership.peer_refused(N2)
    assert "n2 is dead" in caplog.text, "its next life has said nothing"


async def test_goodbyes_in_a_log_that_is_read_again_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.membership.member_changed(MemberChanged(N2, member(N2, LIFE_1, is_up=False), is_stopped=True))
    await bench.membership.join()
    assert "has stopped" not in caplog.text
    bench.membership.peer_refused(N2)
    assert "n2 is dead" not in caplog.text, "it is known all the same"


async def test_a_node_that_was_forgotten_has_not_said_goodbye(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Bench().membership.member_changed(MemberChanged(N2, None))
    assert "has stopped" not in caplog.text


@pytest.mark.parametrize("known_as", ["peer", "alarmed", "stopped"])
async def test_who_is_missing_in_a_snapshot_was_forgotten_however_it_is_known_here(known_as: str) -> None:
    """The links follow the log, which may have taken it from the peers before the snapshot was read to its end."""
    bench = Bench()
    bench.membership.watch([N2] if known_as == "peer" else [])
    if known_as == "alarmed":
        bench.parts["alarms"].alarmed_peers = [N2]
    elif known_as == "stopped":
        bench.membership.member_changed(MemberChanged(N2, member(N2, LIFE_1, is_up=False), is_stopped=True))
    bench.since()
    forgotten = ["consensus peers_changed", "alarms node_down", "sessions node_lost", "dropped node_down"]
    bench.membership.members_restored()
    assert bench.since() == forgotten
    bench.metadata.state.members[N2] = member(N2, LIFE_1, is_up=True)
    bench.membership.members_restored()
    assert bench.since() == ARRIVED


async def test_that_nobody_leads_is_no_leader_to_announce(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.membership.leader_changed(None)
    assert "None" not in caplog.text
    bench.membership.leader_changed(N2)
    assert "led by n2" in caplog.text
