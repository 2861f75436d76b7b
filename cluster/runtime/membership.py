"""Who is up: what this node sees of its peers, what the cluster has decided, and that this node lives.

What is seen comes from the mesh (signs of life, links, refused connections) and from the clock; the failure detector
makes verdicts of it (`cluster.membership.detector`). A verdict is this node's opinion. What counts is the record of the
member, which a commit changes: the leader proposes `NodeDown` for a peer that is dead or silent, and a node proposes
its own `NodeUp`, at its start and whenever it finds itself declared down (`cluster.runtime.presence`).

Links and lives are two things. A link that comes up begins the conversations of mirroring and sessions anew, one that
breaks ends them. A life (incarnation) may end while its link is not missed yet: what was heard on that link is not true
of the next life, so a `NodeUp` under another incarnation than the link's begins mirroring with that peer anew, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from cluster.membership.detector import DetectorConfig, FailureDetector, Verdict, VerdictChange, proposes_node_down
from cluster.membership.messages import NodeAlarms
from cluster.metadata.commands import NodeDown, NodeUp
from cluster.metadata.errors import NoQuorumError
from cluster.metadata.events import MemberChanged
from cluster.runtime.background import Background
from cluster.runtime.metadata_group import MetadataGroup
from cluster.runtime.presence import Presence
from cluster.runtime.undecided import Undecided
from cluster.wire.convert import QueueFrameMessage
from node.config import NodeConfig
from node.errors import WarrenError
from node.ids import Incarnation, NodeName, QueueId

log = logging.getLogger(__name__)

#: An election takes two seconds at most; a cluster that has not noted a shutdown by then has other troubles.
GOODBYE_TIMEOUT_S = 5.0
#: And the others hear of it within milliseconds.
GOODBYE_HEARD_S = 1.0
#: A link that broke is there again within this, if it comes back at all.
LINK_PAUSE_S = 1.0
#: Whether a majority may still live is looked at this often while a goodbye waits for its answer.
GOODBYE_LOOK_S = 0.1


class Links(Protocol):
    """The way to the peers."""

    def send(self, node: NodeName, message: QueueFrameMessage) -> None: ...

    def is_up(self, node: NodeName) -> bool: ...


class LinkedQueues(Protocol):
    """The queues of this node: they talk with their mirrors and masters elsewhere."""

    def is_failed(self, queue_id: QueueId) -> bool:
        """The copy here is out of service."""

    def link_up(self, node: NodeName) -> None: ...

    def link_down(self, node: NodeName) -> None: ...


class LinkedChannels(Protocol):
    """The channels of this node: they talk with masters elsewhere."""

    def link_up(self, node: NodeName) -> None: ...

    def link_down(self, node: NodeName) -> None: ...


class LinkedSessions(Protocol):
    """What channels of other nodes have begun with queues here."""

    def node_lost(self, node: NodeName, *, is_linked: bool) -> None: ...


class PeerAlarms(Protocol):
    """The alarms of all nodes."""

    def own_alarms(self) -> NodeAlarms: ...

    @property
    def alarmed_peers(self) -> Sequence[NodeName]:
        """Those of whom an alarm is kept."""

    def node_up(self, node: NodeName) -> None: ...

    def node_down(self, node: NodeName, *, is_linked: bool) -> None: ...

    def link_lost(self, node: NodeName) -> None: ...


class DroppedMirrors(Protocol):
    """Mirrors that are to be offered their places again."""

    def node_down(self, node: NodeName) -> None: ...


class Membership:
    """See the top of this module. Implements `cluster.runtime.switchboard.LinkWatcher`."""

    def __init__(
        self,
        config: NodeConfig,
        incarnation: Incarnation,
        metadata: MetadataGroup,
        background: Background,
        now_ms: Callable[[], int],
        spoken: int,
        *,
        links: Links,
        queues: LinkedQueues,
        channels: LinkedChannels,
        sessions: LinkedSessions,
        alarms: PeerAlarms,
        dropped: DroppedMirrors,
    ) -> None:
        """``spoken``: the protocol of this node.

        Those named are told of peers that come and go, in an order of which parts depend on it.
        """
        self.node = config.node_name
        self.incarnation = incarnation
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._metadata = metadata
        self._now_ms = now_ms
        self._spoken = spoken
        self._links = links
        self._queues = queues
        self._channels = channels
        self._sessions = sessions
        self._alarms = alarms
        self._dropped = dropped
        #: Called now and then, as `repeat` is.
        self.on_repeat: Callable[[], None] = lambda: None
        #: The cluster has heard that this node lives.
        self._has_joined = False
        self._is_stopping = False
        #: Peers whose `NodeDown` is being proposed, as long as this node leads and holds them for down.
        self._proposed_down: Undecided[NodeName] = Undecided(background)
        #: Peers that said goodbye, and were not heard of as up since (a dict for its order).
        self._stopped: dict[NodeName, None] = {}
        #: Links that have come up so far, peers that were declared up, and that were heard again when they had been
        #: silent: each has yet to say what it has here. And how often this node stood still: it has yet to hear what
        #: was said meanwhile.
        self.arrivals = 0
        #: Incarnations of the peers that this node is linked with.
        self._linked_lives: dict[NodeName, Incarnation] = {}
        #: And of those that it was linked with last.
        self._met_lives: dict[NodeName, Incarnation] = {}
        self._presence = Presence(self.node, metadata.state, queues.is_failed, self.announce, background.spawn)
        self._peers = [member.name for member in config.members if member.name != self.node]
        detector_config = DetectorConfig(down_after_ms=config.cluster_silence_timeout_ms)
        self._detector = FailureDetector(detector_config, self._peers, now_ms())

    # --- this node ---

    async def join(self) -> None:
        """Tell the cluster that this node is up; returns when that is decided, and applied here.

        However long that takes: after a loss of power somebody has to start the other nodes first.
        """
        while not self._has_joined:
            try:
                await self.announce()
            except NoQuorumError as error:
                log.warning("still waiting for a majority of the cluster: %s", error)
            else:
                self._has_joined = True

    async def announce(self) -> None:
        """Commit that this node is up. Raises what `MetadataGroup.change` raises."""
        await self._metadata.change(
            NodeUp(
                self.node,
                self.incarnation,
                str(self._config.cluster_advertised_address),
                str(self._config.amqp_advertised_address),
                self._spoken,
            )
        )

    def queue_changed(self, queue_id: QueueId) -> None:
        """A record was applied, or the copy here can be opened: it may be that the queue waits for this node."""
        self._presence.queue_changed(queue_id)

    def begin_stop(self) -> None:
        """From now on this node does not contradict whoever says that it is down."""
        self._is_stopping = True
        self._presence.end()

    async def say_goodbye(self) -> None:
        """Have the cluster note the shutdown, unless too few are left to decide anything, or nobody speaks with this
        node: then nobody is waited for."""
        if not self._peers or not self._has_joined:
            return
        goodbye = self._loop.create_task(self._metadata.change(NodeDown(self.node, self.incarnation, "shutdown")))
        now_s = self._loop.time()
        end_s, alone_end_s = now_s + GOODBYE_TIMEOUT_S, now_s + LINK_PAUSE_S
        while not goodbye.done() and self._majority_may_live() and now_s < min(end_s, alone_end_s):
            await asyncio.wait({goodbye}, timeout=GOODBYE_LOOK_S)
            now_s = self._loop.time()
            if any(self._links.is_up(peer) for peer in self._peers):
                alone_end_s = now_s + LINK_PAUSE_S
        goodbye.cancel()
        try:
            await goodbye
            # What this node has committed as the leader the others do not know at once: they would take it for dead.
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_HEARD_S):
                    await self._metadata.wait_visible()
        except asyncio.CancelledError:
            log.warning("the cluster could not be told of the shutdown: no majority has answered")
        except WarrenError as error:
            log.warning("the cluster could not be told of the shutdown: %s", error)

    def _majority_may_live(self) -> bool:
        gone = sum(self.verdict(peer) is Verdict.DOWN for peer in self._peers)
        count = 1 + len(self._peers)
        return 2 * (count - gone) > count

    # --- what is seen of the peers ---

    def watch(self, peers: Sequence[NodeName]) -> None:
        """These are the peers from now on."""
        self._peers = list(peers)
        self._detector.watch(peers, self._now_ms())

    def verdict(self, peer: NodeName) -> Verdict:
        """What this node thinks of a peer."""
        return self._detector.verdict(peer)

    def is_at_work(self, peer: NodeName) -> bool:
        """It has been heard just now, as far as that is to be expected."""
        return self._detector.is_at_work(peer, self._now_ms())

    def heard(self, peer: NodeName) -> None:
        """Any sign of life."""
        self._act_on(self._detector.heard(peer, self._now_ms()))

    def link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        """Both directions work: every conversation begins anew."""
        self.heard(peer)
        self.arrivals += 1
        self._linked_lives[peer] = self._met_lives[peer] = incarnation
        self._metadata.consensus.link_up(peer)
        self._links.send(peer, self._alarms.own_alarms())
        self._queues.link_up(peer)
        self._channels.link_up(peer)

    def link_down(self, peer: NodeName) -> None:
        """The link is gone, with an unknown part of what was last said."""
        self._act_on(self._detector.link_reset(peer))
        self._linked_lives.pop(peer, None)
        self._metadata.consensus.link_down(peer)
        self._queues.link_down(peer)
        self._channels.link_down(peer)
        self._alarms.link_lost(peer)
        self._sessions.node_lost(peer, is_linked=False)

    def peer_refused(self, peer: NodeName) -> None:
        """Nobody listens at the peer's address: its process is gone."""
        self._act_on(self._detector.reconnect_refused(peer))

    def tick(self, now_ms: int, pause_ms: int) -> None:
        """Time passes; ``pause_ms``: so long this node stood still just now, and heard nobody."""
        if pause_ms:
            self.arrivals += 1
            self._detector.excuse(pause_ms, now_ms)
        self._act_on(self._detector.tick(now_ms))

    def repeat(self) -> None:
        """Now and then: what was proposed or said and did not come true is said again."""
        self.on_repeat()
        self._propose_all_down()
        if self._has_joined:
            self._presence.tick()

    def leader_changed(self, leader: NodeName | None) -> None:
        """A new leader proposes what the one before it could not."""
        if leader is not None:
            log.info("the metadata group is led by %s", leader)
        if leader != self.node:
            for peer in self._proposed_down:
                self._proposed_down.withdraw(peer)
        self._propose_all_down()

    def _act_on(self, changes: Sequence[VerdictChange]) -> None:
        for change in changes:
            if change.verdict is not Verdict.DOWN:
                self.arrivals += change.verdict is Verdict.UP
                self._proposed_down.withdraw(change.peer)  # it lives
                continue
            if change.peer not in self._stopped:
                log.warning("%s is %s", change.peer, "dead" if change.is_certain else "silent for too long")
            if change.is_certain:
                self._metadata.consensus.peer_down(change.peer)
            self._propose_down(change.peer)

    def _propose_all_down(self) -> None:
        """Every peer that is dead as far as this node can tell, and up for the cluster."""
        if self._metadata.consensus.leader == self.node:
            for peer in self._peers:
                if self.verdict(peer) is Verdict.DOWN:
                    self._propose_down(peer)

    def _propose_down(self, peer: NodeName) -> None:
        member = self._metadata.state.members.get(peer)
        if member is None or not member.is_up:
            return
        if not proposes_node_down(self.node, self._metadata.consensus.leader, peer):
            return
        if peer not in self._proposed_down:
            change = self._metadata.change(NodeDown(peer, member.incarnation))
            self._proposed_down.propose(peer, change, f"declaring {peer} down")

    # --- what the cluster has decided ---

    def member_changed(self, event: MemberChanged) -> None:
        """A committed `NodeUp` or `NodeDown`, of this node or of another."""
        self._metadata.consensus.peers_changed()
        is_up = event.new is not None and event.new.is_up
        if event.node == self.node:
            if not is_up and self._has_joined and not self._is_stopping:
                log.warning("the cluster declared this node down, but it is alive: announcing it again")
                self._presence.say()
        elif event.new is not None and is_up:
            self.arrivals += 1
            self._stopped.pop(event.node, None)
            self._alarms.node_up(event.node)
            if self._met_lives.get(event.node, Incarnation(0)) < event.new.incarnation:
                # What was seen of it was seen of a life before, and a `NodeDown` would mean this one.
                self._detector.begins_anew(event.node, self._now_ms())
                self._metadata.consensus.peer_begins_anew(event.node)
            if self._linked_lives.get(event.node, event.new.incarnation) != event.new.incarnation:
                # The link is to its earlier life. What was heard there is not true of this one.
                self._queues.link_up(event.node)
        else:
            if event.is_stopped:
                self._stopped[event.node] = None
                if self._has_joined:  # before, the log is read again: it stopped once, and runs by now perhaps
                    log.info("%s has stopped: it said goodbye", event.node)
            is_linked = self._links.is_up(event.node)
            self._alarms.node_down(event.node, is_linked=is_linked)
            self._sessions.node_lost(event.node, is_linked=is_linked)
            self._dropped.node_down(event.node)

    def members_restored(self) -> None:
        """The records are those of a snapshot: who came, went, or was forgotten in the entries that are in it was not
        told. So all are told as what they are.

        The peers are those of the log (`cluster.runtime.group_members`), which are without those that were forgotten
        before the snapshot is read to its end: who else is known here may be one of these.
        """
        members = self._metadata.state.members
        for peer in dict.fromkeys((*self._peers, *self._alarms.alarmed_peers, *self._stopped)):
            if peer not in members:
                self.member_changed(MemberChanged(peer, None))
        for member in members.values():
            self.member_changed(MemberChanged(member.node, member))

    def check_invariants(self) -> None:
        assert self.node not in self._linked_lives, "a node is not linked with itself"
