"""What the cluster has committed about its queues while it ran, as a reader of the whole log would tell it.

Two sources. `RecordWatch.applied` hears of every request that any node applies; the first node to apply an index tells
what the cluster has decided, in the order of the log, with the policies that held at that point. `RecordWatch.look` is
called after every turn of a node and sees what that node knows.

Checked: one index carries one request on every node; a queue's epochs only grow, on each node alone, and one epoch has
one master for ever, whoever looks; and **a copy that lacks something takes over only where it may**. This last is an
independent reading of the promise: an operator's force apart, only under ``ha-promote-on-failure = always`` (and
``-on-shutdown``, if the master announced its end), and only a mirror that was following it; under ``when-synced``,
never. Whoever hands over because its disk has failed is complete no longer. And what is deleted under a condition is
deleted in the epoch in which the condition was looked at.

Noted, for the judge:

- *losses*: when a copy that lacked something took service;
- *holders*: which copies have everything, what lives in memory included: the master and its synchronised mirrors. A
  queue that is down has none, and a master that begins a new epoch alone begins anew: such an *interruption* closes the
  copies that nobody else could take over, and what lives in memory only goes with them, though no process has died (as
  with RabbitMQ's pause_minority, whose nodes stop their queues);
- *removals*: when the cluster decided to delete a queue, and what stood at the condition that it was empty;
- *ignorance*: from such a decision until a node has learned it. A node that does not know yet of a queue's successor of
  the same name confirms what nobody will ever get, as it must: it was published to nowhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from chaos.history import Kind, ProcessLog
from chaos.sim.release_watch import ReleaseWatch
from chaos.sim.service_watch import Services
from cluster.composition import Node
from cluster.metadata.commands import (
    AdmitNode,
    ChangeTopology,
    ForcePromote,
    ForgetNode,
    MirrorSynchronised,
    MoveMaster,
    NodeDown,
    Request,
)
from cluster.metadata.events import Applied, Event, MastershipChanged, MemberChanged, QueueCreated, QueueDeleted
from cluster.metadata.kinds import FIRST_PROTOCOL
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from node.ids import Epoch, NodeName, QueueId
from node.topology.commands import DeleteQueue

#: What the policy keys mean if a policy does not have them.
PROMOTE_BY_DEFAULT = {"failure": "always", "shutdown": "when-synced"}
#: A time that does not come.
NEVER_US = 2**62


class Holders(NamedTuple):
    """From a moment on, these copies of a queue have everything."""

    at_us: int
    master: str
    #: The master and the synchronised mirrors; none if the queue is interrupted.
    nodes: tuple[str, ...]
    #: What lived in memory before is gone.
    is_interruption: bool


class Ignorance(NamedTuple):
    """A node did not have a queue, or not the one that there was: whatever was published through it went nowhere."""

    #: When it learned that the queue is gone; or when the first that it had not heard of was decided.
    from_us: int
    until_us: int
    node: str


def _epoch_of_condition(request: Request) -> Epoch | None:
    """In which the condition of a deletion was looked at; ``None`` if it is none, or has no condition."""
    change = request.command
    deletion = change.command if isinstance(change, ChangeTopology) else None
    epoch = deletion.epoch if isinstance(deletion, DeleteQueue) else None
    return None if epoch is None else Epoch(epoch)


class RecordWatch:
    """See the module text. ``queue_number`` tells which queue of the workload one is, if it is one."""

    def __init__(
        self,
        log: ProcessLog,
        queue_number: Callable[[str], int | None],
        violate: Callable[[str, str], None],
        note: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """``note`` hears of rare states that were reached, see `chaos.sim.sometimes`."""
        self._log = log
        self._queue_number = queue_number
        self._violate = violate
        self._note = note
        self._releases = ReleaseWatch(violate, note)
        self.services = Services()
        #: Node that the cluster has declared down, or forgotten -> when it counted as up again, in microseconds.
        self._up_again: dict[str, int] = {}
        #: Nodes that were forgotten, or let in.
        self._new: dict[str, None] = {}
        #: Hears which node is no member any more.
        self.on_forgotten: Callable[[str], None] = lambda _node: None
        #: And which one of those, or of others that were let in, has come up as a new one.
        self.on_joined: Callable[[str], None] = lambda _node: None
        #: Whether what a node says is of another cluster, and who hears that such a one is let in.
        self.is_alone: Callable[[str], bool] = lambda _node: False
        self.on_let_in: Callable[[str], None] = lambda _node: None
        #: Hears, with the master's name, what the cluster has decided of a mastership.
        self.told: Callable[[str, str], None] = lambda _text, _master: None
        #: Node and life -> how far it had applied the log when it was looked at, and whether it served clients.
        self._looked_at: dict[tuple[str, int], tuple[int, bool]] = {}
        #: The same, while it carries out a command in pieces -> since when: what that takes away is gone from then on.
        self._changing_since: dict[tuple[str, int], int] = {}
        #: The same -> how far it had applied the log when its queues were looked at.
        self._queues_looked_at: dict[tuple[str, int], int] = {}
        #: The same -> the epochs it had reached.
        self._epochs_of_lives: dict[tuple[str, int], dict[QueueId, Epoch]] = {}
        #: The same -> when it was looked at for the first time.
        self._began: dict[tuple[str, int], int] = {}
        #: The same, and a queue that it does not have -> since when.
        self._absent_since: dict[tuple[tuple[str, int], int], int] = {}
        #: The same -> queues of the workload that it knew when it served clients.
        self._known: dict[tuple[str, int], dict[int, QueueId]] = {}
        self._masters: dict[tuple[QueueId, Epoch], NodeName] = {}
        #: Of every index, which request it carried; and the last that was told.
        self._requests: dict[int, object] = {}
        self._last_index = 0
        #: Identity of every queue of the workload -> its number.
        self.numbers: dict[QueueId, int] = {}
        #: Queue of the workload -> its identity, and the epoch that each queue is in.
        self.ids: dict[int, QueueId] = {}
        self.epochs: dict[QueueId, Epoch] = {}
        #: Queue of the workload -> when the cluster has said that something of it is lost, in microseconds.
        self.lossy: dict[int, list[int]] = {}
        #: Queue of the workload -> who held it, from when on.
        self.holders: dict[int, list[Holders]] = {}
        #: Queue of the workload -> when it was deleted, with everything that was published to it before.
        self.removals: dict[int, list[int]] = {}
        #: The same -> when it was deleted on condition that it was empty, so that nothing confirmed was in it.
        self.empty_removals: dict[int, list[int]] = {}
        self.ignorance: dict[int, list[Ignorance]] = {}
        #: Queue of the workload -> index and time of each decision that it is, or is not, there.
        self._decisions: dict[int, list[tuple[int, int]]] = {}
        #: Queue and epoch -> what its master said goes with it, when it sealed it as empty.
        self._sealed_empty: dict[tuple[QueueId, Epoch], Callable[[], None]] = {}
        #: Queue and epoch -> when somebody first proposed to delete it under a condition: it was sealed then.
        self._asked: dict[tuple[QueueId, Epoch], int] = {}
        #: Queue of the workload -> when its deletion under a condition was first proposed, and when it came about.
        self.conditional: dict[int, list[tuple[int, int]]] = {}

    def master_of(self, number: int) -> str | None:
        """By the newest record; ``None`` if there is none, or nobody serves the queue."""
        holders = self.holders.get(number)
        return holders[-1].master if holders and holders[-1].nodes else None

    def was_down(self, node: str, from_us: int) -> bool:
        """The cluster took it for dead then, or has since: not everybody has heard of a decision when it is made."""
        return self._up_again.get(node, -1) >= from_us

    def sealed(self, queue_id: QueueId, epoch: Epoch, tell_of_unsettled: Callable[[], None] | None) -> None:
        """The master of this epoch has sealed a queue for a deletion; if as empty, ``tell_of_unsettled`` is called if
        it comes about: it records what channels held then, which goes with the queue."""
        self._sealed_empty.pop((queue_id, epoch), None)
        if tell_of_unsettled is not None:
            self._sealed_empty[queue_id, epoch] = tell_of_unsettled

    # --- what the cluster decides ---

    def applied(self, node: str, state: MetadataState, index: int, request: Request, outcome: Applied) -> bool:
        """A node has applied a request. True if it is the first to do so."""
        if self.is_alone(node):
            return False
        self._releases.applied(node, state, index, request, outcome)
        known = self._requests.setdefault(index, request.request_id)
        if known != request.request_id:
            self._violate("log", f"{node} has applied {request.request_id} at {index}, others {known}")
        if index <= self._last_index:
            return False
        self._last_index = index
        if isinstance(request.command, AdmitNode) and outcome.error is None:
            self._new[request.command.node] = None
            self.on_let_in(request.command.node)
        for event in outcome.events:
            self.services.decided(event, self._log.now_us())
            self._decided(state, request, event)
        return True

    def _decided(self, state: MetadataState, request: Request, event: Event) -> None:
        if isinstance(event, QueueCreated):
            number = self._queue_number(event.queue.name)
            if number is not None:
                self.numbers[event.queue.queue_id] = number
                self.ids[number] = event.queue.queue_id
                self._decisions.setdefault(number, []).append((self._last_index, self._log.now_us()))
                self.epochs[event.queue.queue_id] = event.mastership.epoch
                self._hold(number, event.mastership, is_interruption=True)
        elif isinstance(event, QueueDeleted):
            self._check_epoch(event.queue.queue_id, request)
            number = self.numbers.pop(event.queue.queue_id, None)
            if number is not None:
                self._deleted(number, event.queue.queue_id, request)
        elif isinstance(event, MemberChanged):
            if event.new is None or not event.new.is_up:
                self._up_again[event.node] = NEVER_US
            elif self._up_again.get(event.node) == NEVER_US:
                self._up_again[event.node] = self._log.now_us()
            if event.new is None:
                self._note("a node was forgotten")
                self._new[event.node] = None
                self.on_forgotten(event.node)
            elif event.node in self._new:
                self._note("a new node joined")
                self.on_joined(event.node)
        elif isinstance(event, MastershipChanged):
            self._changed(state, request, event)

    def _check_epoch(self, queue_id: QueueId, request: Request) -> None:
        """What was deleted under a condition is deleted in the epoch in which its master looked."""
        seen = _epoch_of_condition(request)
        epoch = self.epochs.get(queue_id, seen)
        if seen is not None and seen != epoch:
            self._violate("deletion", f"queue {queue_id} is deleted in epoch {epoch} by what was true in epoch {seen}")

    def _deleted(self, number: int, queue_id: QueueId, request: Request) -> None:
        now_us = self._log.now_us()
        self._decisions.setdefault(number, []).append((self._last_index, now_us))
        epoch = _epoch_of_condition(request)
        asked_us = None if epoch is None else self._asked.get((queue_id, epoch))
        if asked_us is not None:
            self.conditional.setdefault(number, []).append((asked_us, now_us))
        tell_of_unsettled = None if epoch is None else self._sealed_empty.get((queue_id, epoch))
        if tell_of_unsettled is None:
            self.removals.setdefault(number, []).append(now_us)
            return
        self._note("an empty queue was deleted on that condition")
        tell_of_unsettled()
        self.empty_removals.setdefault(number, []).append(now_us)

    def asked_to_delete(self, queue_id: QueueId, epoch: Epoch) -> None:
        """A deletion is being proposed, under a condition that held in this epoch."""
        self._asked.setdefault((queue_id, epoch), self._log.now_us())

    def _changed(self, state: MetadataState, request: Request, event: MastershipChanged) -> None:
        old, new = event.old, event.new
        is_new_epoch = new.epoch > old.epoch
        self.epochs[event.queue_id] = new.epoch
        command = request.command
        if isinstance(command, MoveMaster) and command.is_old_lost and old.master in new.complete:
            text = f"queue {new.queue_id}: {old.master} hands over because its disk has failed, and counts as complete"
            self._violate("promotion", text)
        if is_new_epoch and not new.is_down:
            self._elected(state, request, old, new)
        self._note_change(old, new)
        self._tell_change(state, old, new)
        number = self.numbers.get(event.queue_id)
        if number is None:
            return
        if new.lossy_promotions > old.lossy_promotions:
            self.lossy.setdefault(number, []).append(self._log.now_us())
        self._hold(number, new, is_interruption=new.is_down or (is_new_epoch and new.master == old.master))
        if is_new_epoch:
            self._log.record(Kind.PROMOTE, queue_id=number, epoch=new.epoch)

    def _elected(self, state: MetadataState, request: Request, old: MastershipRecord, new: MastershipRecord) -> None:
        """Whoever is elected has everything, or may do without."""
        command = request.command
        if new.master in old.complete or not old.complete or isinstance(command, ForcePromote | ForgetNode):
            return
        if isinstance(command, MirrorSynchronised) and command.node == new.master:
            return  # the last word of a master that is down
        reason = command.reason if isinstance(command, NodeDown) else "failure"
        queue = state.topology.queue_by_id(new.queue_id)
        policy = None if queue is None else state.policy_of_queue(queue)
        definition = {} if policy is None else policy.definition
        # Who waits for a complete copy after a failure waits for it after a stop, too; not so before protocol 3.
        asked = (reason, "failure") if state.protocol > FIRST_PROTOCOL else (reason,)
        answers = [definition.get(f"ha-promote-on-{each}", PROMOTE_BY_DEFAULT[each]) for each in asked]
        wanted = next((answer for answer in answers if answer != "always"), "always")
        text = f"queue {new.queue_id}: {new.master} takes over in epoch {new.epoch}, and {old.complete} are complete"
        if wanted != "always":
            self._violate("promotion", f"{text}; the policy says {wanted} on {reason}")
        elif new.master not in old.following:
            self._violate("promotion", f"{text}; it was not following the master ({old.following} were)")
        self._note("an incomplete copy was elected")

    def _tell_change(self, state: MetadataState, old: MastershipRecord, new: MastershipRecord) -> None:
        queue = state.topology.queue_by_id(new.queue_id)
        name = queue.name if queue is not None else f"queue {new.queue_id}"
        if new.is_down:
            what = f"is down, waits for {', '.join(new.complete) or 'nobody'}"
        elif new.epoch > old.epoch:
            what = f"elects {new.master} (was {old.master})"
        elif new.in_service and not old.in_service:
            what = f"is taken into service by {new.master}"
        else:
            what = f"has mirrors {' '.join(new.mirrors) or 'none'}, synchronised {' '.join(new.synchronised) or 'none'}"
        self.told(f"{name} epoch {new.epoch}: {what}", new.master)

    def _hold(self, number: int, record: MastershipRecord, *, is_interruption: bool) -> None:
        nodes = () if record.is_down else (record.master, *record.synchronised)
        entry = Holders(self._log.now_us(), record.master, nodes, is_interruption)
        self.holders.setdefault(number, []).append(entry)

    def _note_change(self, old: MastershipRecord, new: MastershipRecord) -> None:
        if new.is_down and not old.is_down:
            self._note("a queue went down")
        elif old.is_down and not new.is_down:
            self._note("a queue came back")
        if new.master != old.master and not new.is_down:
            self._note("a mirror was promoted")
        if new.lossy_promotions > old.lossy_promotions:
            self._note("a promotion lost something")
        if set(new.synchronised) - set(old.synchronised) and not set(new.mirrors) - set(old.mirrors):
            self._note("a mirror was synchronised")
        if set(old.mirrors) - set(new.mirrors) and new.master == old.master:
            self._note("a mirror left the record")

    # --- what a node knows ---

    def look(self, name: str, life: int, node: Node) -> None:
        """Cheap unless the node has applied something since the last look, or has begun or ended to serve clients. To
        be called whenever it has."""
        state = node.runtime.metadata.state
        if state.is_changing:
            self._changing_since.setdefault((name, life), self._log.now_us())
            return
        now = state.applied_index, node.clients.is_serving
        before = self._looked_at.get((name, life))
        if before == now or self.is_alone(name):
            return
        if before is not None and now[0] < before[0]:
            # It has given up its log for that of a cluster which goes on, and reads that from the beginning.
            self._epochs_of_lives.pop((name, life), None)
            self._queues_looked_at.pop((name, life), None)
        if (name, life) not in self._began:
            self._began[name, life] = self._log.now_us()
            self._end_ignorance(name)
        self._looked_at[name, life] = now
        epochs = self._epochs_of_lives.setdefault((name, life), {})
        for queue_id, record in state.masterships.items():
            epoch = epochs.get(queue_id, record.epoch)
            if record.epoch < epoch:
                self._violate("epoch", f"queue {queue_id} of {name} went from epoch {epoch} back to {record.epoch}")
            epochs[queue_id] = record.epoch
            if record.is_down:
                continue  # nobody is its master: the record names who is waited for, and that may change
            master = self._masters.setdefault((queue_id, record.epoch), record.master)
            if master != record.master:
                text = f"queue {queue_id}, epoch {record.epoch}: {name} has {record.master}, others {master}"
                self._violate("two masters", text)
        if node.clients.is_serving:
            self._look_at_queues((name, life), state, self._queues_looked_at.get((name, life), 0))
            self._queues_looked_at[name, life] = state.applied_index
        self._changing_since.pop((name, life), None)

    def _look_at_queues(self, life: tuple[str, int], state: MetadataState, before_index: int) -> None:
        """Which of the workload's queues this node's clients can reach, and which have gone or come since the node
        was looked at when it had applied ``before_index``."""
        now: dict[int, QueueId] = {}
        for queue in state.topology.all_queues():
            number = self._queue_number(queue.name)
            if number is not None:
                now[number] = queue.queue_id
        before = self._known.get(life)
        self._known[life] = now
        if before is None:  # it may have served for a while, and has lacked what it lacks since it began
            began_us = self._began[life]
            self._absent_since |= {(life, number): began_us for number in self._decisions if number not in now}
        if before is not None and before != now:
            for number in {**before, **now}:
                if before.get(number) != now.get(number):
                    self._learned(life, number, before_index, is_there=number in now)

    def _learned(self, life: tuple[str, int], number: int, before_index: int, *, is_there: bool) -> None:
        now_us = self._log.now_us()
        unheard = (at_us for at, at_us in self._decisions.get(number, ()) if at > before_index)
        from_us = self._absent_since.pop((life, number), None)
        if from_us is None:
            from_us = min(self._changing_since.get(life, now_us), next(unheard, now_us))
        if not is_there:
            self._absent_since[life, number] = now_us
        self.ignorance.setdefault(number, []).append(Ignorance(from_us, now_us, life[0]))

    def _end_ignorance(self, *names: str) -> None:
        """Of lives of these nodes that are over: what they lacked they lacked to their end."""
        now_us = self._log.now_us()
        for life, number in [key for key in self._absent_since if key[0][0] in names]:
            from_us = self._absent_since.pop((life, number))
            self.ignorance.setdefault(number, []).append(Ignorance(from_us, now_us, life[0]))

    def finish(self) -> None:
        """The run is over."""
        self._end_ignorance(*{life[0]: None for life, _ in self._absent_since})


def outlives(holders: Sequence[Holders], deaths: Iterable[tuple[int, str]], from_us: int) -> bool:
    """Whether something that all holders had in their memory at a moment has been in somebody's ever since.

    ``deaths``: when a life of which node ended. A node that becomes a holder while the master is one of those that have
    it gets it from that one.
    """
    at = bisect_right(holders, from_us, key=lambda entry: entry.at_us) - 1
    if at < 0:
        return False
    living = set(holders[at].nodes)
    before = holders[at]
    later: list[tuple[int, int, Holders | str]] = [(entry.at_us, 0, entry) for entry in holders[at + 1 :]]
    later += [(at_us, 1, node) for at_us, node in deaths if at_us >= from_us]
    for _, _, what in sorted(later, key=lambda item: item[:2]):
        if isinstance(what, str):
            living.discard(what)
        elif what.is_interruption:
            living = set()
        else:
            joined = set(what.nodes) - set(before.nodes)
            living &= set(what.nodes)
            if what.master in living:
                living |= joined
            before = what
        if not living:
            return False
    return bool(living)
