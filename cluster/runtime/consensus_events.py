"""What the rest of a node makes of news from its metadata group, besides the changes themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from cluster.runtime.membership import Membership
from cluster.runtime.queue_set import QueueSet
from cluster.runtime.standing import Pause
from cluster.transport.admin_port import ExitCode, exit_code_of
from node.errors import ConfigError, StorageError
from node.ids import NodeName

log = logging.getLogger(__name__)


class ConsensusEvents:
    """Implements `cluster.runtime.raft_driver.RaftListener`.

    ``after_applied``: called in the turn after one in which something was applied.
    ``has_served``: clients were served in this life of the node, or would have been but for a pause.
    ``lacks``: members that this node has no link with.
    ``on_pause``: stop serving clients, or (``None``) serve them, and make up for what could not be decided meanwhile.
    A node that never ``pauses`` is only told the latter.
    ``on_fatal``: the node must stop, for this reason, with this exit code.
    """

    def __init__(
        self,
        queues: QueueSet,
        membership: Membership,
        *,
        pauses: bool,
        has_served: Callable[[], bool],
        lacks: Callable[[], Sequence[NodeName]],
        after_applied: Callable[[], None],
        on_pause: Callable[[Pause | None], None],
        on_fatal: Callable[[str, ExitCode], None],
    ) -> None:
        self._queues = queues
        self._membership = membership
        self._pauses = pauses
        self._has_served = has_served
        self._lacks = lacks
        self._has_said_what_it_waits_for = False
        self._after_applied = after_applied
        self._on_pause = on_pause
        self._on_fatal = on_fatal

    def on_applied(self, index: int) -> None:
        """What was applied was heard of by itself; masters that were ahead of it are heard now."""
        self._queues.log_applied()
        asyncio.get_running_loop().call_soon(self._after_applied)

    def on_leader_change(self, leader: NodeName | None) -> None:
        self._membership.leader_changed(leader)

    def on_pause(self, pause: Pause | None) -> None:
        if not self._pauses:
            if pause is None:
                self._on_pause(None)  # clients were served all the time, but some may have gone
            return
        if not self._has_served():
            self._wait(pause)
        elif pause is None:
            log.info("this node has what the cluster has decided: it serves clients again")
        else:
            log.error(
                "this node pauses (pause_minority): %s; client connections are closed, new ones find no listener",
                pause.reason,
            )
        self._on_pause(pause)

    def _wait(self, pause: Pause | None) -> None:
        """Nobody loses anything: a cluster is starting, or this node joins it again."""
        if pause is not None and not self._has_said_what_it_waits_for:
            self._has_said_what_it_waits_for = True
            names = ", ".join(self._lacks()) or "what the cluster has decided"
            log.info("clients are not served yet: %s; this node waits for %s", pause.reason, names)

    def on_storage_failed(self, error: StorageError | ConfigError) -> None:
        self._on_fatal(f"the metadata group failed here, this node stops: {error}", exit_code_of(error))
