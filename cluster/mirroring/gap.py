"""What a mirror holds behind a gap, and must give up to keep the order of what one channel has published.

A mirror that lacks something hears of what is published meanwhile, so it may hold the end of what a channel has
published without the middle. If it becomes the master then, the publisher's node sends the middle again, and it would
come behind the end. So the end is dropped when the mirror is promoted: it is sent again, too, in its order.

**Nothing confirmed is dropped.** A mirror whose copy the record calls complete holds back every confirm as long as it
lacks something (`cluster.mirroring.promotion`, 1 and 2): the master stood still at the attach of this mirror, so
nothing of what came since is confirmed. Of any other copy it may be, and may be all that is left of it: nothing is
dropped. Who is named by an operator's word has lacked something, whatever the record says of it then
(`forget_cluster_node`).

**Only what clients await confirms of.** The master says of which origins, and from which counter on, while some mirror
lacks something. Their publishes come again as long as the publisher's node lives and the channel is open; a client
whose connection ended knows what was confirmed, and that was all. Who asks for no confirms would not know: what he sent
may come again as well, but if his node was the master's, or he has closed the channel, the mirror has the last of it.
His messages stay, and their order may suffer.

What is remembered is bounded, and gone with the process. Of an origin that is forgotten nothing is dropped, nor of what
is far from the end of the queue: it keeps what it has, and its order may suffer as described.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.promotion import last_holdings
from cluster.mirroring.ranges import compress
from node.ids import NodeName, OriginId, SeqId, split_msg_id
from node.queues.origins import ORIGINS_MAX
from node.queues.replica import ReplicaQueue, SeqRange


def is_unconfirmed(node: NodeName, followed: MastershipRecord | None, elected: MastershipRecord) -> bool:
    """Of a mirror about to be promoted by ``elected``: nothing that came to it while it lacked something is confirmed.

    ``followed``: the record that this node knew before. A promotion that is counted as a loss calls the copy complete
    only because there is no other, and a record that is in service at once is one of an earlier release's rules.
    """
    return (
        followed is not None
        and node in followed.complete
        and node in elected.complete
        and followed.lossy_promotions == elected.lossy_promotions
        and not elected.in_service
    )


class Gap:
    """Of one mirror. See the module text."""

    __slots__ = ("_awaited", "_since")

    def __init__(self) -> None:
        #: The lowest position at which something has come since something was missing; ``None``: nothing is missing.
        self._since: SeqId | None = None
        #: Origins of which confirms are awaited, from which counter on; the first heard of first.
        self._awaited: dict[OriginId, int] = {}

    def __bool__(self) -> bool:
        return self._since is not None

    def begin(self, next_seq_id: SeqId) -> None:
        """Something is missing below ``next_seq_id``, from which on the master's stream is heard."""
        self._since = next_seq_id if self._since is None else min(self._since, next_seq_id)

    def close(self) -> None:
        """Nothing is missing any more."""
        self._since = None
        self._awaited.clear()

    def published(self, awaited: Mapping[OriginId, int]) -> None:
        """Something was streamed; of these origins confirms are awaited."""
        if self._since is None:
            return
        for origin, counter in awaited.items():
            self._awaited[origin] = min(counter, self._awaited.get(origin, counter))
        while len(self._awaited) > ORIGINS_MAX:
            del self._awaited[next(iter(self._awaited))]

    def behind(self, local: ReplicaQueue) -> tuple[SeqRange, ...]:
        """Positions of what is to be given up."""
        since, awaited = self._since, self._awaited
        if since is None or not awaited:
            return ()
        behind: list[SeqId] = []
        for seq_id, msg_id in last_holdings(local):
            if seq_id >= since:
                origin, counter = split_msg_id(msg_id)
                if origin in awaited and counter >= awaited[origin]:
                    behind.append(seq_id)
        return compress(behind)

    def check_invariants(self) -> None:
        assert self._since is not None or not self._awaited, "without a gap nothing is behind it"
        assert len(self._awaited) <= ORIGINS_MAX, "what is remembered is bounded"
