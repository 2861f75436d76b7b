"""The metadata group as the rest of a node uses it: read the local replica, submit commands, hear of changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from cluster.metadata.codec import CodecError, NewerKindError, decode_request, encode, encode_request
from cluster.metadata.commands import ChangeTopology, Command, Request, RequestId, SetPermissions, SetPolicy
from cluster.metadata.errors import (
    ChangeFailedError,
    MalformedCommandError,
    NewerReleaseError,
    NoQuorumError,
    RefusedChangeError,
)
from cluster.metadata.events import Applied as Decided
from cluster.metadata.events import Event, MastershipChanged, QueueCreated, QueueDeleted
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.state import MetadataState
from cluster.metadata.wellformed import check_proposal
from cluster.raft.config import ProposalRefusedError
from cluster.raft.messages import Message
from cluster.raft.storage import passes_for_batch
from cluster.runtime.applier import Applied
from cluster.runtime.followed import Followed
from cluster.runtime.metadata_size import MetadataSize
from cluster.runtime.standing import Pause
from node.auth import UserDirectory
from node.errors import AmqpError, ConnectionFailure, QueueMovedError, StorageError
from node.ids import Incarnation, NodeName, QueueId
from node.pieces import Pieces, at_once
from node.throttled_log import ThrottledLog
from node.topology.commands import Bind, TopologyCommand
from node.topology.topology import Topology

log = logging.getLogger(__name__)


class Consensus(Protocol):
    """How the members agree (`cluster.runtime.raft_driver.RaftDriver`)."""

    @property
    def leader(self) -> NodeName | None:
        """The leader as far as this node knows."""

    @property
    def voters(self) -> Collection[NodeName]:
        """Who decides."""

    @property
    def has_quorum(self) -> bool:
        """False while this node pauses."""

    @property
    def pause(self) -> Pause | None:
        """Why this node is not current enough to serve clients; ``None`` if it is."""

    async def propose(self, payload: bytes, request_id: RequestId) -> Any:
        """Result of applying the command on this node. Raises what applying it raised, or `TimeoutError`."""

    async def wait_visible(self, index: int, peers: Callable[[], Collection[NodeName]]) -> bool:
        """Until all of ``peers()`` have applied the entry at ``index``, or too much time has passed."""

    async def hand_over(self, may_lead: Callable[[NodeName], bool]) -> NodeName | None:
        """This node stops: have another one lead, if it leads; returns which. Bounded."""

    def receive(self, messages: Sequence[Message]) -> None:
        """What peers say."""

    def link_up(self, peer: NodeName) -> None:
        """A link that was down has lost what was said."""

    def link_down(self, peer: NodeName) -> None:
        """The link is gone."""

    def peers_changed(self) -> None:
        """A peer was declared up or down."""

    def peer_down(self, peer: NodeName) -> None:
        """The process of ``peer`` is known to be gone."""

    def peer_begins_anew(self, peer: NodeName) -> None:
        """It is known, from others, to have started again: what is known of it here is of its life before."""


class MetadataListener(Protocol):
    """Who follows the changes, in order, each once. What is done in pieces is gone on with until it ends."""

    def on_committed(self, events: Sequence[Event]) -> Pieces[None]:
        """Of one queue, or of none. Those of one queue are followed in one piece."""

    def on_restored(self) -> Iterator[QueueId | None]:
        """The whole state was replaced by a snapshot: look at everything again. Names each queue that has followed."""


class MetadataGroup:
    """Local replica of the cluster's metadata. Implements `Catalogue` and the driver's `StateMachine`."""

    def __init__(
        self,
        node: NodeName,
        incarnation: Incarnation,
        users: UserDirectory,
        spoken: int = NEWEST_PROTOCOL,
    ) -> None:
        #: The protocol of this node.
        self.spoken = spoken
        self._node = node
        self._incarnation = incarnation
        self._last_request = 0
        #: Of the last entry that may have added to the topology.
        self._topology_index = 0
        self.state = MetadataState(users, spoken)
        self.size = MetadataSize()
        #: How far those who follow have come.
        self.followed = Followed()
        self._listener: MetadataListener | None = None
        self._consensus: Consensus | None = None
        self._refusals = ThrottledLog(log)
        #: What keeps the protocol of the cluster below that of this node, in words.
        self.held_back_by: Callable[[], Sequence[str]] = lambda: ()

    def follow(self, listener: MetadataListener) -> None:
        """Who hears of the changes from now on; whoever follows them also reads and makes some."""
        self._listener = listener

    def join(self, consensus: Consensus) -> None:
        """What decides on changes; it applies them here, so it comes last."""
        self._consensus = consensus

    @property
    def consensus(self) -> Consensus:
        assert self._consensus is not None, "the group is joined before anybody asks or changes anything"
        return self._consensus

    # --- Catalogue ---

    @property
    def topology(self) -> Topology:
        return self.state.topology

    async def submit(self, command: TopologyCommand) -> Any:
        try:
            return await self.change_everywhere(ChangeTopology(command, self._node))
        except QueueMovedError:
            raise
        except (NoQuorumError, ProposalRefusedError, StorageError, RefusedChangeError, CodecError) as error:
            raise ConnectionFailure(541, str(error)) from None

    async def submit_all(self, commands: Sequence[TopologyCommand]) -> list[AmqpError | None]:
        return await refusals_of(self.submit, commands)

    async def wait_known(self) -> None:
        await self.consensus.wait_visible(self._topology_index, self._live_peers)

    async def change(self, command: Command) -> Any:
        """Commit a command; returns after this node has applied it.

        Raises what the state machine refused it with, `NoQuorumError`, `TooNewCommandError` if a member may not know
        it, `CodecError` if it cannot be written down, `ChannelError` 406 if there is too much already, or
        `ProposalRefusedError` if too many changes of this node wait. What would be refused for what it says alone,
        whatever the state (`check_proposal`), is not proposed.
        """
        self.state.versions.check_kind(command, self.held_back_by)
        if self.size.is_large and not self._adds_nothing(command):
            self.size.check(command)
        consensus = self.consensus
        request_id = RequestId(self._node, self._incarnation, self._last_request + 1)
        payload = encode_request(Request(request_id, command))
        check_proposal(decode_request(payload).command)
        if passes_for_batch(payload):
            raise CodecError("it holds bytes that pass for a part of the log of the cluster's metadata")
        self._last_request += 1  # a number is used up only by what is proposed
        try:
            return await consensus.propose(payload, request_id)
        except ProposalRefusedError:
            if self._last_request == request_id.counter:
                self._last_request -= 1  # at once, as too many wait; or this node stops, and proposes nothing more
            raise
        except TimeoutError as error:
            raise NoQuorumError(f"the cluster has not decided: {error}") from None

    def _adds_nothing(self, command: Command) -> bool:
        """Clients bind again what they have bound before, and operators make smaller what there is."""
        replaced: Command | None = None
        match command:
            case ChangeTopology(command=Bind() as bind):
                return self.topology.has_binding(bind)
            case SetPolicy(policy=policy):
                before = self.state.policies.get((policy.vhost, policy.name))
                replaced = None if before is None else SetPolicy(before)
            case SetPermissions(vhost=vhost, user=user):
                for each in self.state.users.permissions():
                    if (each.vhost, each.user) == (vhost, user):
                        replaced = SetPermissions(vhost, user, each.configure, each.write, each.read)
            case _:
                pass
        return replaced is not None and len(encode(command)) <= len(encode(replaced))

    async def change_everywhere(self, command: Command) -> Any:
        """As `change`, and all peers have applied it, too: clients see the change wherever they are connected.

        A peer that has not in time serves no clients meanwhile, see `cluster.runtime.standing`.
        """
        result = await self.change(command)
        if not await self.wait_visible():
            self._refusals.write("behind", f"a peer is behind, or cannot be asked: it may not know yet of {command}")
        return result

    async def wait_visible(self) -> bool:
        """Until all peers that are up have applied what is applied here; false if one has not in time."""
        return await self.consensus.wait_visible(self.state.applied_index, self._live_peers)

    async def is_visible(self, index: int) -> bool:
        """All peers that are up have said that they have applied this entry, or serve no clients. Waits for nobody."""
        try:
            async with asyncio.timeout(0):
                return await self.consensus.wait_visible(index, self._live_peers)
        except TimeoutError:
            return False

    async def hand_over(self) -> None:
        """This node stops: have another that is up lead, if it leads."""
        await self.consensus.hand_over(self._live_peers().__contains__)

    def _live_peers(self) -> Collection[NodeName]:
        return [member.node for member in self.state.members.values() if member.is_up and member.node != self._node]

    # --- StateMachine ---

    def apply(self, index: int, payload: bytes) -> Applied:
        """As `apply_in_pieces`, all at once."""
        return at_once(self.apply_in_pieces(index, payload))

    def apply_in_pieces(self, index: int, payload: bytes) -> Pieces[Applied]:
        """First the state changes, then everybody follows; both in pieces, and only then it counts as applied."""
        try:
            request = decode_request(payload)
        except NewerKindError as error:
            raise NewerReleaseError(f"entry {index} of the metadata log ({error})", "a protocol", self.spoken) from None
        except CodecError as error:
            log.error("entry %d of the metadata log is no command and is passed over: %s", index, error)
            self.state.pass_over(index)
            self.followed.reach(index)
            return Applied(None, None, error)  # nobody waits under such an id
        if isinstance(request.command, ChangeTopology):
            self._topology_index = index
        self.size.applied(payload, request.command)
        applied = yield from self.state.apply_in_pieces(index, request, payload)
        self.decided(index, request, applied)
        if applied.events and self._listener is not None:
            yield from self._follow(self._listener, index, applied.events)
        self.followed.reach(index)
        return Applied(request.request_id, applied.result, applied.error)

    def decided(self, index: int, request: Request, applied: Decided) -> None:
        """What has become of a request, before anybody follows it."""
        if isinstance(applied.error, MalformedCommandError | ChangeFailedError):
            kind = type(request.command).__name__
            mistake = applied.error if isinstance(applied.error, ChangeFailedError) else None
            log.error("entry %d (%s) is refused: %s", index, kind, applied.error, exc_info=mistake)

    def _follow(self, listener: MetadataListener, index: int, events: Sequence[Event]) -> Pieces[None]:
        by_queue = events_by_queue(events)
        self.followed.begin(index, [queue_id for queue_id, _ in by_queue if queue_id is not None])
        for queue_id, its_events in by_queue:
            if queue_id is not None:
                self.followed.begin_queues()
            yield from listener.on_committed(its_events)
            if queue_id is not None:
                self.followed.caught_up(queue_id)
            yield

    @property
    def protocol(self) -> int:
        return self.state.protocol

    @property
    def is_declared_down(self) -> bool:
        own = self.state.members.get(self._node)
        return own is not None and not own.is_up

    @property
    def wants_snapshot(self) -> bool:
        return self.size.is_doubtful

    def snapshot_pieces(self) -> Iterator[bytes]:
        self.size.begin()
        return self.state.snapshot_pieces()

    def snapshot_taken(self, index: int, data: bytes) -> None:
        self.size.taken(data)
        self.state.begin_history(data, index)

    def restore(self, data: bytes) -> None:
        """As `restore_in_pieces`, all at once."""
        at_once(self.restore_in_pieces(data))

    def restore_in_pieces(self, data: bytes) -> Pieces[None]:
        try:
            leftovers = yield from self.state.restore_in_pieces(data)
        except NewerKindError as error:
            raise NewerReleaseError(f"a snapshot of the metadata ({error})", "a protocol", self.spoken) from None
        self.size.restored(data)
        index = self._topology_index = self.state.applied_index
        if self._listener is not None:
            self.followed.begin(index, self.state.masterships)
            self.followed.begin_queues()
            for queue_id in self._listener.on_restored():
                if queue_id is not None:
                    self.followed.caught_up(queue_id)
                yield
        self.followed.reach(index)
        yield from leftovers


async def refusals_of(
    submit: Callable[[TopologyCommand], Awaitable[object]], commands: Sequence[TopologyCommand]
) -> list[AmqpError | None]:
    """Submit changes side by side; of each what it was refused with."""

    async def refusal_of(command: TopologyCommand) -> AmqpError | None:
        try:
            await submit(command)
        except AmqpError as error:
            return error
        return None

    return list(await asyncio.gather(*map(refusal_of, commands)))


def events_by_queue(events: Sequence[Event]) -> list[tuple[QueueId | None, list[Event]]]:
    """Those of one queue together, where its first one stands; others, of which the id is ``None``, where they stand.

    What a command says of a queue in two steps (a master is elected, then mirrors are added) no other queue depends on.
    """
    grouped: list[tuple[QueueId | None, list[Event]]] = []
    places: dict[QueueId, list[Event]] = {}
    for event in events:
        if isinstance(event, MastershipChanged):
            queue_id = event.queue_id
        elif isinstance(event, QueueCreated | QueueDeleted):
            queue_id = event.queue.queue_id
        else:
            grouped.append((None, [event]))
            continue
        its_events = places.get(queue_id)
        if its_events is None:
            its_events = places[queue_id] = []
            grouped.append((queue_id, its_events))
        its_events.append(event)
    return grouped
