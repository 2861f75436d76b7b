"""Listening to calls inside the nodes while a run goes on, without a line in the product.

A tap goes round a method of a class: the method does what it does, then whoever listens hears of the object, what came
back and the arguments. Taps are laid for the time of a run and taken away after it (`laid`). They must change nothing.

What is heard is what a judge can learn nowhere else: when a queue was purged, what a length limit dropped, and in which
order the cluster has decided; and some states that are only worth knowing to have been reached.

*Moments* that a step can lie in wait for (`chaos.sim.steps`), each said of the node in whose turn it comes:
*voted*, a vote was given and is on its way to the disk; *committed*, an entry was applied by the first node;
*unsettled*, the master in service learns that a complete copy is none of its mirrors; *deleting*, a deletion under a
condition is about to be proposed; *filled*, a master is about to say that a mirror lacks nothing; *reclaiming*, a step
of compaction was taken; *carrying over*, a journal may be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from chaos.history import Kind
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.raft_watch import RaftWatch
from chaos.sim.record_watch import RecordWatch
from cluster.metadata.commands import ChangeTopology, Command, MirrorSynchronised, Request
from cluster.metadata.events import Applied, MastershipChanged
from cluster.metadata.mastership import is_settled
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.description import Description
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.messages import SegmentHoldings
from cluster.mirroring.mirror import MirrorReplica
from cluster.raft.core import RaftCore
from cluster.raft.messages import VoteRequest
from cluster.runtime.link_line import LinkLine
from cluster.runtime.metadata_group import MetadataGroup
from cluster.runtime.roles import Roles
from cluster.sessions.backlog import Backlog, Publishes
from cluster.sessions.routes import Route
from node.flow.credit import Hop
from node.ids import Epoch, QueueId, SeqId
from node.message import Message, decode_envelope
from node.queues.backing_queue import Delivery, Publication
from node.queues.queue_process import QueueProcess
from node.queues.vhost_store import VhostStore
from node.store.index.v1.journals import Journals
from node.topology.commands import DeleteQueue

Note = Callable[[str], None]


@contextmanager
def _replaced(owner: type, name: str, method: Callable[..., Any]) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def tapped(owner: type, name: str, hear: Callable[..., None]) -> Iterator[None]:
    """``hear(object, result, *arguments)`` after each call of a method."""
    original = owner.__dict__[name]

    def tap(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        hear(self, result, *arguments)
        return result

    with _replaced(owner, name, tap):
        yield


@contextmanager
def tapped_before(owner: type, name: str, hear: Callable[..., None]) -> Iterator[None]:
    """``hear(object, *arguments)`` before each call of a method."""
    original = owner.__dict__[name]

    def tap(self: Any, *arguments: Any, **keywords: Any) -> Any:
        hear(self, *arguments)
        return original(self, *arguments, **keywords)

    with _replaced(owner, name, tap):
        yield


@contextmanager
def tapped_while(owner: type, name: str, hear: Callable[[bool], None]) -> Iterator[None]:
    """``hear(True)`` before each call of a method, ``hear(False)`` after it, whatever comes of it."""
    original = owner.__dict__[name]

    def tap(self: Any, *arguments: Any, **keywords: Any) -> Any:
        hear(True)
        try:
            return original(self, *arguments, **keywords)
        finally:
            hear(False)

    with _replaced(owner, name, tap):
        yield


def is_unsettled(record: MastershipRecord) -> bool:
    """The master is in service, and may not confirm: a complete copy is none of its mirrors."""
    return record.in_service and not is_settled(record)


class Listener:
    """What is done with what is heard."""

    def __init__(
        self,
        records: RecordWatch,
        note: Note,
        *,
        loop: SimulatedLoop,
        dropped: Callable[[Kind, Sequence[Message], QueueId], None],
        handed_out: Callable[[Epoch, Sequence[Delivery], QueueId], None],
        look: Callable[[Process], object],
        is_something_wrong: Callable[[], bool],
        votes: RaftWatch,
        moment: Callable[..., None],
        cancelled: Callable[[QueueId], None],
    ) -> None:
        """``dropped`` hears which messages have left a queue legally, and how: dropped by a length limit, purged, or
        (`Kind.EXPIRE`) handed out without acknowledgement or held by a channel as the queue was deleted;
        ``handed_out``, what a master has taken out of its queue for somebody, and its epoch; ``look``, of whose
        metadata something has become; ``moment``, which one it is of which node, and about which other;
        ``cancelled``, of which queue copies were being filled, and are not any more."""
        self._records = records
        self._note = note
        self._loop = loop
        #: Process, queue and number of every session that a node has begun with a master -> when.
        self.sessions: dict[tuple[int, int, int], float] = {}
        self._dropped = dropped
        self._handed_out = handed_out
        self._look = look
        #: While a limit drops: envelopes by position.
        self._droppable: dict[SeqId, bytes] = {}
        self._is_getting = False
        self._is_something_wrong = is_something_wrong
        self._votes = votes
        self._moment = moment
        self._cancelled = cancelled

    @contextmanager
    def laid(self) -> Iterator[None]:
        """As long as this lasts."""
        with ExitStack() as stack:
            for owner, name, hear in (
                (MetadataGroup, "decided", self._applied),
                (QueueProcess, "purge", self._purged),
                (QueueProcess, "get", self._got),
                (QueueProcess, "seal_for_delete", self._sealed),
                (MirroredQueue, "confirm_when_safe", self._repeated),
                (MirrorReplica, "_mismatched", self._compared),
                (Description, "next_piece", self._described),
                (Hop, "change", self._credit_changed),
                (Route, "begin", self._session_begun),
                (VhostStore, "reclaim", self._reclaimed),
                (RaftCore, "compact", self._compacted),
                (Roles, "on_restored", self._restored),
                (RaftCore, "_on_vote_response", self._votes.counted),
                (RaftCore, "_on_vote_request", self._asked_to_vote),
                (MirroredQueue, "discard", self._discarded),
                (MirroredQueue, "fetch", self._fetched),
                (MirroredQueue, "publish_delivered", self._delivered_at_once),
                (Backlog, "add", self._publish_waits),
                (LinkLine, "wait", self._delivery_waits),
            ):
                stack.enter_context(tapped(owner, name, hear))
            stack.enter_context(tapped_before(QueueProcess, "purge", self._about_to_purge))
            stack.enter_context(tapped_while(QueueProcess, "get", self._getting))
            stack.enter_context(tapped_before(MirroredQueue, "drop", self._about_to_drop))
            stack.enter_context(tapped(MirroredQueue, "drop", self._dropped_by_limit))
            stack.enter_context(tapped_before(Journals, "delete_moved", self._carried_over))
            stack.enter_context(tapped_before(MetadataGroup, "change", self._proposed))
            stack.enter_context(tapped_before(MirroredQueue, "cancel_sync", self._sync_cancelled))
            yield

    @property
    def _process(self) -> Process:
        """Whose turn it is."""
        return self._loop.current or self._loop.harness

    def _session_begun(self, route: Route, _result: None, session: int) -> None:
        self.sessions[self._process.number, route.queue_id, session] = self._loop.now_s

    def _applied(self, group: MetadataGroup, _result: None, index: int, request: Request, outcome: Applied) -> None:
        name = self._process.name
        is_first = self._records.applied(name, group.state, index, request, outcome)
        self._look(self._process)
        if is_first:
            self._moment("committed", name)
        for event in outcome.events:
            if isinstance(event, MastershipChanged) and event.new.master == name and is_unsettled(event.new):
                self._moment("unsettled", name)

    def _publish_waits(self, _backlog: Backlog, _result: None, word: object) -> None:
        if isinstance(word, Publishes):
            self._note("publishes waited for a link")

    def _delivery_waits(self, _line: LinkLine, _result: None, *_: object) -> None:
        self._note("deliveries waited for a link")

    def _proposed(self, _group: MetadataGroup, command: Command, *_: object) -> None:
        change = command.command if isinstance(command, ChangeTopology) else None
        if isinstance(change, DeleteQueue) and change.epoch is not None and change.queue_id is not None:
            self._records.asked_to_delete(QueueId(change.queue_id), Epoch(change.epoch))
            self._moment("deleting", self._process.name)
        elif isinstance(command, MirrorSynchronised):
            self._moment("filled", self._process.name)

    def _asked_to_vote(self, core: RaftCore, _result: None, request: VoteRequest) -> None:
        if core.voted_for == request.sender:
            self._moment("voted", core.node, request.sender)

    def _about_to_purge(self, process: QueueProcess) -> None:
        """Whatever no channel holds. (It is gone in steps: what was taken over from dead channels comes last.)"""
        held = _held(process)
        self._dropped(Kind.PURGE, _messages(process, lambda at: at not in held), process.record.queue_id)

    def _purged(self, _process: QueueProcess, count: int) -> None:
        if count:
            self._note("a purge took something away")

    def _getting(self, is_getting: bool) -> None:
        self._is_getting = is_getting

    def _got(self, process: QueueProcess, delivery: Delivery | None, _channel: object, no_ack: bool) -> None:
        """What was fetched for it is excused only as far as it was handed out."""
        if delivery is not None and no_ack:
            self._note("a message was got without acknowledgement")
            self._dropped(Kind.EXPIRE, [delivery.message], process.record.queue_id)

    def _sealed(self, process: QueueProcess, _ready: int, if_unused: bool = False, if_empty: bool = False) -> None:
        """As empty, if that was asked for: what channels hold is no hindrance, and goes with the queue."""
        backing_queue: Any = process.backing_queue
        positions = _held(process) if if_empty else frozenset()
        held = _messages(process, lambda at: at in positions) if positions else []
        self._records.sealed(
            process.record.queue_id,
            backing_queue.record.epoch,
            (lambda: self._dropped(Kind.EXPIRE, held, process.record.queue_id)) if if_empty else None,
        )

    def _about_to_drop(self, queue: MirroredQueue, *_: object) -> None:
        """A drop tells positions only: what is at them is read before."""
        local = queue.local
        positions = [at for segment, _ in local.live_counts() for at in local.live_positions(segment)]
        self._droppable = dict(local.read(positions))

    def _dropped_by_limit(self, queue: MirroredQueue, dropped: Sequence[SeqId], *_: object) -> None:
        if dropped:
            self._note("a limit dropped the oldest")
            messages = [decode_envelope(self._droppable[seq_id])[0] for seq_id in dropped]
            self._dropped(Kind.DROP, messages, queue.record.queue_id)
        self._droppable = {}

    def _repeated(self, _queue: MirroredQueue, _result: None, *_: object) -> None:
        self._note("a repetition was recognised")

    def _compared(self, replica: MirrorReplica, mismatched: Sequence[int], digests: Sequence[object]) -> None:
        if digests and replica.local.live_counts() and not mismatched:
            self._note("a copy came back with nothing missing")

    def _described(self, description: Description, piece: Sequence[SegmentHoldings]) -> None:
        if any(segment.holdings for segment in piece):
            self._note("a copy was filled by its difference")
        if description:
            self._note("a long copy was described in pieces")

    def _discarded(self, queue: MirroredQueue, _result: None, publications: Sequence[Publication]) -> None:
        messages = [publication.message for publication in publications]
        handed_out = [Delivery(SeqId(0), message, redelivered=False) for message in messages]
        self._handed_out(queue.record.epoch, handed_out, queue.record.queue_id)
        self._dropped(Kind.EXPIRE, messages, queue.record.queue_id)

    def _fetched(
        self, queue: MirroredQueue, deliveries: Sequence[Delivery], _count_max: int, is_ack_required: bool, *_: int
    ) -> None:
        if deliveries:
            self._handed_out(queue.record.epoch, deliveries, queue.record.queue_id)
        if not is_ack_required and deliveries and not self._is_getting:
            self._dropped(Kind.EXPIRE, [delivery.message for delivery in deliveries], queue.record.queue_id)

    def _delivered_at_once(self, queue: MirroredQueue, deliveries: Sequence[Delivery], *_: object) -> None:
        self._handed_out(queue.record.epoch, deliveries, queue.record.queue_id)

    def _sync_cancelled(self, queue: MirroredQueue) -> None:
        if queue.sync_progress() is not None:
            self._note("a synchronisation was cancelled midway")
            self._cancelled(queue.record.queue_id)

    def _credit_changed(self, hop: Hop, has_turned: bool, _messages: int) -> None:
        if has_turned and hop.balance <= 0:
            self._note("a publisher was blocked by credit")

    def _reclaimed(self, _store: VhostStore, came_of_it: Any) -> None:
        if came_of_it.has_worked:
            self._moment("reclaiming", self._process.name)
            if self._is_something_wrong():
                self._note("garbage was reclaimed during a fault")

    def _carried_over(self, journals: Journals) -> None:
        if journals.moved:
            self._moment("carrying over", self._process.name)

    def _compacted(self, _core: RaftCore, _snapshot: object, *_: object) -> None:
        self._note("the log was cut off behind a snapshot")

    def _restored(self, _roles: Roles, _pieces: object) -> None:
        self._note("a snapshot was installed")


def _held(process: QueueProcess) -> frozenset[SeqId]:
    """Positions that some channel holds."""
    return frozenset(at for each in process._holdings.by_channel.values() for at in each.held)


def _messages(process: QueueProcess, is_meant: Callable[[SeqId], bool]) -> list[Message]:
    """Those of a master's copy that are live, at the positions that are meant."""
    local = cast(MirroredQueue, process.backing_queue).local
    positions = [at for segment, _ in local.live_counts() for at in local.live_positions(segment) if is_meant(at)]
    return [decode_envelope(envelope)[0] for _, envelope in local.read(positions)]
