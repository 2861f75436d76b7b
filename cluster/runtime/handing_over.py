"""A leader of the metadata group that stops in order hands over first, so that nobody waits for an election timeout.

The others would notice by themselves: at once if the process is gone and its host is not, else after an election
timeout; and while a node with many queues closes them it sends no heartbeats. So the most caught-up voter is asked to
take over (`RaftCore.transfer_leadership`: Raft thesis, 3.10). What is proposed meanwhile is refused for as long as that
takes, a round trip as a rule, and repeated by its proposers. It is for comfort only: who does not take over in time is
not waited for, and the others elect somebody as after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from cluster.raft.config import ProposalRefusedError
from cluster.raft.core import RaftCore
from node.ids import NodeName

log = logging.getLogger(__name__)

#: An heir that takes over does so in a few round trips; a second one is tried after that.
HEIR_TIMEOUT_S = 0.5
HEIRS_MAX = 2
_LOOK_S = 0.005


class Leading(Protocol):
    """The group as its leader leaves it (`cluster.runtime.raft_driver.RaftDriver`)."""

    @property
    def core(self) -> RaftCore:
        """To be looked at."""

    def transfer(self, target: NodeName) -> None:
        """Ask ``target`` to take over. Raises `ProposalRefusedError`."""


async def hand_over(group: Leading, now_ms: Callable[[], int], may_lead: Callable[[NodeName], bool]) -> NodeName | None:
    """Have another node lead, if this one does; returns which, or ``None``. Takes about a second at most.

    ``may_lead``: nodes that are about to stop themselves are no heirs.
    """
    loop = asyncio.get_running_loop()
    for heir in [node for node in group.core.heirs(now_ms()) if may_lead(node)][:HEIRS_MAX]:
        with suppress(ProposalRefusedError):
            group.transfer(heir)
        deadline_s = loop.time() + HEIR_TIMEOUT_S
        while (group.core.is_leader or group.core.leader is None) and loop.time() < deadline_s:  # noqa: ASYNC110 - bounded
            await asyncio.sleep(_LOOK_S)
        if not group.core.is_leader:
            log.info("the metadata group is led by %s from now on", group.core.leader or "whom it elects")
            return group.core.leader
    return None
