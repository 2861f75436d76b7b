"""What nodes tell each other of how far they are, and whether they serve clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cluster.raft.messages import AppliedUpTo, Message
from cluster.runtime.applied_reports import AppliedReports
from cluster.runtime.applied_watch import AppliedWatch
from cluster.runtime.pause_notice import PauseNotice
from node.ids import NodeName

N1, N2, N3 = map(NodeName, ("n1", "n2", "n3"))
INDEX = 7


class Bench:
    """What n1 says to n2 and n3."""

    def __init__(self) -> None:
        self.notice = PauseNotice(1000)
        self.said: list[Message] = []
        watch = AppliedWatch(5.0, asyncio.get_running_loop().time())
        self.reports = AppliedReports(N1, watch, self.notice, self._send, lambda: INDEX)
        for peer in (N2, N3):
            self.reports.link_up(peer)

    def _send(self, peer: NodeName, messages: Sequence[Message]) -> None:
        assert [message.receiver for message in messages] == [peer]
        self.said += messages

    def heard(self) -> list[Message]:
        said, self.said = self.said, []
        return said


def report(peer: NodeName, standing: int, heard_standing: int = 0) -> AppliedUpTo:
    return AppliedUpTo(N1, peer, INDEX, standing=standing, heard_standing=heard_standing)


async def test_a_standing_is_told_to_all_once() -> None:
    bench = Bench()
    assert bench.heard() == [report(N2, 0), report(N3, 0)]
    bench.reports.tell_standing()
    assert bench.heard() == []
    bench.notice.give()
    bench.reports.tell_standing()
    bench.reports.tell_standing()
    assert bench.heard() == [report(N2, 1), report(N3, 1)]
    bench.reports.check_invariants()


async def test_that_a_standing_was_heard_is_answered_to_who_has_it() -> None:
    bench = Bench()
    bench.heard()
    for standing in (0, 1, 1, 2):
        bench.reports.receive(AppliedUpTo(N2, N1, 3, standing=standing, heard_standing=0))
    assert bench.heard() == [report(N2, 0, 1), report(N2, 0, 2)]


async def test_what_was_heard_on_a_link_before_is_not_said_on_the_next() -> None:
    bench = Bench()
    bench.reports.receive(AppliedUpTo(N2, N1, 3, standing=1, heard_standing=0))
    bench.heard()
    bench.reports.link_down(N2, 0)
    bench.reports.link_up(N2)
    assert bench.heard() == [report(N2, 0)]
    bench.reports.check_invariants()


async def test_what_a_peer_has_heard_is_remembered() -> None:
    bench = Bench()
    bench.notice.give()
    bench.notice.take_back()
    bench.reports.receive(AppliedUpTo(N2, N1, 3, heard_standing=2))
    bench.reports.receive(AppliedUpTo(N3, N1, 3))
    assert bench.notice.over_for_all_ms(0) == 0
