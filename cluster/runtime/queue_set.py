"""`QueueSet`: every queue this node has a part in, and what it is to each.

Roles follow the mastership records, and nothing else: `follow` is called with each record that the metadata group
applied, and takes this node from whatever it was to whatever the record says. A promoted mirror becomes a master over
the same local queue; a fenced master becomes a mirror over the same local queue; a node that the record no longer
names drops its copy if the policy removed it, and keeps the files if it was merely declared down.

Calls into a queue only mark it (`touch`); it is drained at the end of the turn (`cluster.runtime.drain_turns`):
effects go to the sessions, operations to the mirrors, reports to the metadata group, acknowledgements to the master.

Whatever fails for one queue takes this node's copy of that queue out of service and nothing else
(`cluster.runtime.out_of_service`): process and sessions end, the files stay as they are, and the cluster is asked to go
on without this copy (`ClusterPort.storage_failed`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

from cluster.metadata.records import MastershipRecord
from cluster.mirroring.early import EarlyMessages
from cluster.mirroring.master import MirroredQueue, recovered
from cluster.mirroring.messages import Attach, MirrorMessage, Ops
from cluster.mirroring.mirror import MirrorReplica, demote
from cluster.mirroring.promotion import kept_end
from cluster.runtime.drain_turns import DrainTurns
from cluster.runtime.ended_masterships import EndedMasterships
from cluster.runtime.last_words import LastWords
from cluster.runtime.link_news import LinkNews
from cluster.runtime.out_of_service import OutOfService
from cluster.runtime.queue_paging import QueuePaging
from cluster.runtime.queue_ports import ClusterPort, EffectsPort, MirrorLinks, QueueFiles, QueueSettings
from cluster.runtime.queue_role import MasterRole, MirrorRole, Role
from cluster.runtime.queue_ticks import QueueTicks
from cluster.runtime.recoveries import Recoveries, RunJob
from cluster.runtime.role_files import close_files, delete_files
from node.errors import StorageError
from node.flow.credit import FlowControl
from node.ids import Epoch, Incarnation, NodeName, QueueId, numbers_of_life
from node.pieces import Pieces, at_once
from node.queues.local_replica import LocalReplica
from node.queues.queue_process import QueueProcess
from node.store.disk.group_commit import GroupCommit
from node.topology.records import QueueRecord

log = logging.getLogger(__name__)

#: Attach ids that a master may use between two openings of its copy; a restart has 4096 such lives.
ATTACH_IDS_PER_LIFE = 1 << 20


class QueueSet:
    """Roles of one node. Implements `cluster.sessions.ports.LocalQueues`."""

    def __init__(
        self,
        node: NodeName,
        files: QueueFiles,
        group_commit: GroupCommit,
        *,
        links: MirrorLinks,
        settings: QueueSettings,
        effects: EffectsPort,
        cluster: ClusterPort,
        request_sync: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], object],
        run_job: RunJob,
        clock: Callable[[], float],
        incarnation: Incarnation,
        flow: FlowControl,
        slice_pieces: int,
    ) -> None:
        """``request_sync`` asks for a group commit at the end of this turn; ``call_soon`` and ``clock`` are for what
        has turns of its own, ``run_job`` is for `Recoveries`, ``slice_pieces`` for `LinkNews` and `QueueTicks`."""
        self._node = node
        self._flow = flow
        #: A restarted node that masters the same epoch again must not repeat its attach ids.
        self._attach_id_base = numbers_of_life(incarnation)
        self._files = files
        self._links = links
        self._settings = settings
        self._effects = effects
        self._cluster = cluster
        self.roles: dict[QueueId, Role] = {}
        self._processes: dict[QueueId, QueueProcess] = {}
        self._failed = OutOfService(node)
        self.failure, self.starved = self._failed.get, self._failed.starved
        self._last_words = LastWords(links)
        #: What its copies hold in memory.
        self.paging = QueuePaging(self.roles, self._guarded, request_sync)
        self._turns = DrainTurns(self.roles, self._drain, group_commit, request_sync, call_soon, clock)
        #: The queue was called and may have written. (No method of ours: every batch of a client comes by here.)
        self.touch = self._turns.touch
        self._ticks = QueueTicks(
            self.roles, self._processes.keys(), self._guarded, self.touch, call_soon, clock, slice_pieces
        )
        #: What masters said that have applied more of the log than we.
        self._early = EarlyMessages()
        #: Told of sealed queues whose deletion nobody else brings to an end.
        self.on_deletion_open: Callable[[QueueRecord], None] = lambda _queue: None
        #: Masters whose copy went out of service: they may go on.
        self._ended = EndedMasterships()
        #: This node stops.
        self._is_ending = False
        self._link_news = LinkNews(self._link_changed, call_soon, clock, slice_pieces)
        #: What queues have yet to hear of links; mostly empty.
        self._unheard = self._link_news.pending
        self._recoveries = Recoveries(files, run_job, call_soon, clock)
        self.open_vhost, self.awaits_vhost = self._recoveries.open_vhost, self._recoveries.awaits
        #: Queues that are being opened, and what for; no record: the last one did not name this node any more.
        self._opening: dict[QueueId, tuple[QueueRecord, MastershipRecord | None]] = {}
        #: Of which a `follow` is under way: who called it goes on when it returns.
        self._followed: QueueId | None = None
        #: Opened, and not yet in a role.
        self._unclaimed: LocalReplica | None = None

    # --- LocalQueues ---

    def process(self, queue_id: QueueId) -> QueueProcess | None:
        """The queue process, if this node masters the queue."""
        return self._processes.get(queue_id)

    def run(self, queue_id: QueueId) -> None:
        """Drain one queue now: what it has to say goes before the answer that follows."""
        self._link_news.catch_up(queue_id)
        if isinstance(role := self.roles.get(queue_id), MasterRole):
            with self._guarded(queue_id):
                self._drain_master(role)

    def serving_epoch(self, queue_id: QueueId) -> Epoch | None:
        """The epoch in which this node serves the queue, if it does."""
        role = self.roles.get(queue_id)
        if not isinstance(role, MasterRole) or not role.record.in_service or role.mirrored.is_fenced:
            return None
        return role.record.epoch

    def settle_deletion(self, queue_id: QueueId) -> None:
        """Nobody waits for the outcome of a deletion for which this queue is sealed."""
        if isinstance(role := self.roles.get(queue_id), MasterRole) and role.process.is_sealed:
            self.on_deletion_open(role.queue)

    def out_of_service(self, queue_id: QueueId, error: Exception) -> None:
        """The storage of this queue, or the queue itself, failed in somebody's hands: its role here ends."""
        if (role := self.roles.get(queue_id)) is not None:
            self._fail(role.queue, role.record, error)
        elif not isinstance(error, StorageError):
            log.error("queue %d, of which this node has no copy in service: %r", queue_id, error, exc_info=error)

    def fail(self, queue: QueueRecord, record: MastershipRecord, error: Exception) -> None:
        """This node could not follow ``record``: its copy, if the record gives it one, goes out of service."""
        if self._node in record.mirrors or (self._node == record.master and not record.is_down):
            self._fail(queue, record, error)
        else:
            log.error("%s: its record could not be followed: %r", queue.queue_name, error, exc_info=error)

    @contextmanager
    def _guarded(self, queue_id: QueueId) -> Iterator[None]:
        """Whatever happens to one queue, the others go on."""
        try:
            yield
        except Exception as error:
            self.out_of_service(queue_id, error)

    def _fail(self, queue: QueueRecord, record: MastershipRecord, error: Exception) -> None:
        queue_id = queue.queue_id
        failure = self._failed.add(queue, record, error)
        unclaimed, self._unclaimed = self._unclaimed, None
        self._forget_opening(queue_id)
        if (role := self.roles.get(queue_id)) is not None:
            self._ended.keep(role)
            self._last_words.keep(role, error)
            self._close(role, delete=False)
        elif unclaimed is not None:
            close_files(queue, unclaimed, delete=False)
        self._cluster.storage_failed(record, is_damaged=failure.is_damaged)

    def is_failed(self, queue_id: QueueId) -> bool:
        """True while this node's copy is out of service."""
        return queue_id in self._failed

    def forgive(self, queue_id: QueueId) -> None:
        """Forget why this copy is out of service: the next `follow` opens it again."""
        self._failed.forgive(queue_id)
        self._last_words.forget(queue_id)
        # Its mirrors must not take what a master says in its second life for what it said in its first.
        self._attach_id_base += ATTACH_IDS_PER_LIFE

    # --- roles ---

    def follow(self, queue: QueueRecord, record: MastershipRecord, *, is_discarded: bool = False) -> None:
        """Take the role that a newly applied record gives this node; ``is_discarded``: by policy it holds no copy."""
        queue_id = record.queue_id
        self._link_news.catch_up(queue_id)
        role = self.roles.get(queue_id)
        known = role.record if role is not None else self._opening.get(queue_id, (queue, None))[1]
        if known is not None and record.epoch < known.epoch:
            return  # an older record cannot take a role away
        is_master = record.master == self._node and not record.is_down
        if not is_master:
            self._last_words.say(role, record)
        failure = self._failed.record_changed(record)
        if not is_master and self._node not in record.mirrors:
            # A damaged copy is of use only as long as no other has everything that it has.
            is_damaged = failure is not None and failure.is_damaged
            if not is_damaged or self._node not in record.complete:
                self._leave(queue, delete=is_discarded or is_damaged)
            return
        if failure is not None:
            if record != failure.record:
                self._cluster.storage_failed(record, is_damaged=failure.is_damaged)
            return
        if role is None:
            self._open(queue, record)
        else:
            self._take(queue, record, role)

    def _take(self, queue: QueueRecord, record: MastershipRecord, role: Role | None) -> None:
        """Become what the record says; without a role over the queue that was just opened."""
        try:
            if record.master == self._node:
                self._become_master(queue, record, role)
            else:
                self._become_mirror(queue, record, role)
        except Exception as error:
            self._fail(queue, record, error)
        finally:
            self._unclaimed = None

    # --- opening ---

    def _open(self, queue: QueueRecord, record: MastershipRecord) -> None:
        """Take the role when the queue is open: at once, or after its recovery."""
        queue_id = queue.queue_id
        is_opening = queue_id in self._opening
        self._opening[queue_id] = queue, record
        if not is_opening:
            self._followed = queue_id
            try:
                options = self._settings.queue_options(queue)
                self._recoveries.open(
                    queue,
                    options.index_version,
                    lambda result: self._opened(queue, result),
                    is_compared=bool(record.mirrors),
                )
            except Exception as error:
                self._fail(queue, record, error)
            finally:
                self._followed = None

    def _opened(self, queue: QueueRecord, result: LocalReplica | Exception) -> None:
        queue, record = self._opening.pop(queue.queue_id)
        if record is None:
            # The record left this node out meanwhile, and kept the files.
            if isinstance(result, LocalReplica):
                result.mark_delivered_below(result.next_seq_id)
                close_files(queue, result, delete=False)
            else:
                log.error("%s: its files could not be opened: %r", queue.queue_name, result)
            return
        if isinstance(result, Exception):
            self._fail(queue, record, result)
            return
        self._unclaimed = result
        self._take(queue, record, None)
        if self._followed != queue.queue_id and queue.queue_id in self._processes:
            with self._guarded(queue.queue_id):
                self._effects.role_began(record)

    def _forget_opening(self, queue_id: QueueId) -> None:
        if self._opening.pop(queue_id, None) is not None:
            self._recoveries.forget(queue_id)

    def mastered(self) -> list[QueueId]:
        """Queues that have their process here."""
        return list(self._processes)

    def held_queues(self) -> list[QueueRecord]:
        """Queues of which this node has a copy, in service or out of it, or is opening one."""
        opening = [queue for queue, _ in self._opening.values()]
        return [*(role.queue for role in self.roles.values()), *opening, *self._failed.queues()]

    def recovered_percent(self, queue_id: QueueId) -> int | None:
        """How far the recovery of a queue is; ``None`` if it is not under way."""
        return self._recoveries.progress(queue_id)

    def queue_deleted(self, queue: QueueRecord) -> None:
        """The queue no longer exists in the cluster: nothing of it stays here."""
        self._failed.deleted(queue.queue_id)
        self._ended.forget(queue.queue_id)
        self._last_words.forget(queue.queue_id)
        self._early.forget_queue(queue.queue_id)
        if queue.queue_id in self.roles or queue.queue_id in self._failed or queue.queue_id in self._opening:
            # Every entry node tells its own clients when it applies the deletion, so the last effects go nowhere.
            self._leave(queue, delete=True)
        else:
            delete_files(self._files, queue)

    def _become_master(self, queue: QueueRecord, record: MastershipRecord, role: Role | None) -> None:
        if isinstance(role, MasterRole) and record.epoch > role.record.epoch:
            # A snapshot skipped the commits between, in which another node may have been the master: what this
            # process knows of deliveries and consumers is of the past.
            role = self._demote(queue, record, role)
        if isinstance(role, MasterRole):
            role.record = record
            role.mirrored.set_record(record)
        elif isinstance(role, MirrorRole):
            if not role.replica.may_promote(record):
                return  # a later master has spoken to us already: its record is on the way
            log.info("%s: promoted to master in epoch %d, depth %d", queue.queue_name, record.epoch, role.local.ready)
            settings = self._settings.mirroring_settings(queue)
            mirrored = role.replica.promote(self._node, record, settings, self._attach_id_base, role.record)
            self._start_master(queue, record, role.local, mirrored)
        else:
            local = self._claim(queue)
            settings = self._settings.mirroring_settings(queue)
            resumed = self._ended.required_mirrors(record)
            mirrored = recovered(self._node, local, record, settings, self._attach_id_base, resumed)
            self._start_master(queue, record, local, mirrored)
        self.touch(record.queue_id)

    def _claim(self, queue: QueueRecord) -> LocalReplica:
        local = self._unclaimed
        assert local is not None, "a role begins over a queue that is open"
        options = self._settings.queue_options(queue)
        local.set_lazy(options.is_lazy)
        local.set_index_version(options.index_version)
        return local

    def _start_master(
        self, queue: QueueRecord, record: MastershipRecord, local: LocalReplica, mirrored: MirroredQueue
    ) -> None:
        options = self._settings.queue_options(queue)
        process = QueueProcess(queue, mirrored, options, self._flow, self._links.is_full_now)
        self.roles[record.queue_id] = MasterRole(queue, record, local, mirrored, process)
        self._processes[record.queue_id] = process
        for node in self._links.linked_nodes():
            mirrored.mirror_link_up(node)
        if self._settings.was_consumed(queue):
            process.was_consumed()  # by whom nobody may know any more
        if self._ended.take_seal(record):
            # The command of the deletion, under this epoch, may be on its way still.
            process.seal_for_delete(if_unused=False, if_empty=False)
            self.settle_deletion(record.queue_id)
        if self._is_ending:
            self._end_mastership(self.roles[record.queue_id])

    def _become_mirror(self, queue: QueueRecord, record: MastershipRecord, role: Role | None) -> None:
        if isinstance(role, MirrorRole):
            role.record = record
            role.replica.adopt_epoch(record.epoch)
            return
        if isinstance(role, MasterRole):
            log.warning("%s: fenced by epoch %d, now a mirror of %s", queue.queue_name, record.epoch, record.master)
            self._demote(queue, record, role)
        else:
            local = self._claim(queue)
            end = kept_end(local)
            local.mark_none_delivered()
            replica = MirrorReplica(record.queue_id, local, record.epoch, queue.durable, end)
            replica.set_settings(self._settings.mirroring_settings(queue))
            self.roles[record.queue_id] = MirrorRole(queue, record, local, replica)
        self._hear_early(record.queue_id)
        self.touch(record.queue_id)

    def _demote(self, queue: QueueRecord, record: MastershipRecord, role: MasterRole) -> MirrorRole:
        """End a mastership; its queue goes on as a mirror's."""
        self._end_process(record.queue_id)
        replica = demote(role.mirrored, record.epoch)
        replica.set_settings(self._settings.mirroring_settings(queue))
        self.roles[record.queue_id] = mirror = MirrorRole(queue, record, role.local, replica)
        return mirror

    def _leave(self, queue: QueueRecord, *, delete: bool) -> None:
        """This node holds no copy any more; the files stay unless ``delete``."""
        role = self.roles.get(queue.queue_id)
        # Nobody is left whom it was said to.
        self._early.take(queue.queue_id, self._settings.applied_index_of(queue.queue_id))
        was_failed = queue.queue_id in self._failed
        was_opening = queue.queue_id in self._opening
        self._failed.left(queue.queue_id)
        if role is not None:
            self._close(role, delete=delete)
        if was_opening and delete:
            self._forget_opening(queue.queue_id)
        elif was_opening:
            # It goes on: a mirror that was dropped because it needs long is taken back, and need not begin anew.
            self._opening[queue.queue_id] = queue, None
        if delete and (role is not None or was_failed or was_opening):
            delete_files(self._files, queue)

    def _close(self, role: Role, *, delete: bool) -> None:
        """End a role and its hold on the files, as far as the disk lets us."""
        queue_id = role.queue.queue_id
        del self.roles[queue_id]
        self._end_process(queue_id)
        self._turns.forget(queue_id)
        self._link_news.forget(queue_id)
        role.close_deliveries()
        close_files(role.queue, role.local, delete=delete)

    def _end_process(self, queue_id: QueueId) -> None:
        if self._processes.pop(queue_id, None) is not None:
            self._effects.role_ended(queue_id)

    # --- the mesh ---

    def receive(self, node: NodeName, message: MirrorMessage) -> None:
        """One mirroring message of another node."""
        queue_id = message.queue_id
        if self._unheard:
            self._link_news.catch_up(queue_id)
        role = self.roles.get(queue_id)
        if isinstance(role, MasterRole):
            # Attaches and operations are another master's: of the past, and refused, or of the future, and fence us.
            with self._guarded(queue_id):
                role.mirrored.receive(node, message)
            if isinstance(message, Attach | Ops) and message.epoch > role.record.epoch:
                self._early.keep(node, message)
        elif isinstance(message, Attach | Ops):
            is_early = self._early.is_early(message, self._settings.applied_index_of(queue_id))
            if role is None or is_early:
                if queue_id not in self._failed and (is_early or self._settings.is_mirror(queue_id)):
                    self._early.keep(node, message)
                return
            self._early.forget_queue(queue_id)
            with self._guarded(queue_id):
                role.replica.receive(node, message)
        else:
            return
        self.touch(queue_id)

    def _hear_early(self, queue_id: QueueId) -> None:
        for node, message in self._early.take(queue_id, self._settings.applied_index_of(queue_id)):
            self.receive(node, message)

    def log_applied(self) -> None:
        """This node has applied more of the metadata log: masters that were ahead are heard now."""
        for queue_id in self._early.due(self._settings.applied_index_of):
            if isinstance(self.roles.get(queue_id), MirrorRole):
                self._hear_early(queue_id)
            elif queue_id not in self.roles and not self._settings.is_mirror(queue_id):
                self._early.forget_queue(queue_id)  # it did not come early: this node was out of the record before

    def link_up(self, node: NodeName) -> None:
        self._link_news.came(node, self.roles, is_up=True)

    def link_down(self, node: NodeName) -> None:
        self._link_news.came(node, self.roles, is_up=False)
        self._early.forget_node(node)

    def records_skipped(self, queue_id: QueueId) -> None:
        """A snapshot is about to say what became of this queue; what it was in between nobody heard here."""
        if (role := self.roles.get(queue_id)) is not None:
            with self._guarded(queue_id):
                role.records_skipped(self._links.linked_nodes())
            self.touch(queue_id)

    def _link_changed(self, queue_id: QueueId, node: NodeName, is_up: bool) -> None:
        if (role := self.roles.get(queue_id)) is not None:
            with self._guarded(queue_id):
                role.link_changed(node, is_up=is_up)
        if isinstance(role, MasterRole):
            self.touch(queue_id)

    # --- the turn ---

    def _drain(self, queue_id: QueueId) -> None:
        if self._unheard:
            self._link_news.catch_up(queue_id)
        if (role := self.roles.get(queue_id)) is None:
            return  # it broke at what it has just heard
        try:  # what `_guarded` does, without its price: it comes once for each queue and turn
            if isinstance(role, MasterRole):
                self._drain_master(role)
            else:
                self._drain_mirror(role)
        except Exception as error:
            self.out_of_service(queue_id, error)

    def _drain_master(self, role: MasterRole) -> None:
        held_back = role.process.held_back
        effects = role.process.drain()
        if role.process.held_back < held_back:
            self.touch(role.queue.queue_id)  # nobody called it just now for what it has taken, and maybe written
        if role.process.has_more:
            self._turns.drain_soon(role.queue.queue_id)
        for node in role.process.waits_for:
            self._links.when_room(node, role.queue.queue_id, partial(self._room_came, role.queue.queue_id))
        if effects:
            self._effects.dispatch(role.queue, effects)
            if self.roles.get(role.queue.queue_id) is not role:
                return  # it broke in the hands of a channel, and has said its last word
        as_of_index = self._settings.applied_index_of(role.queue.queue_id)
        for node, message in role.mirrored.take_messages(as_of_index, self._links.is_congested_now):
            self._links.send(node, message)
        if role.mirrored.has_more:
            self._turns.drain_soon(role.queue.queue_id)
        for report in role.mirrored.take_reports():
            self._cluster.report(role.record, report)

    def _room_came(self, queue_id: QueueId) -> None:
        """Drained at once: who waits behind it knows what is left of the room then."""
        if queue_id in self._processes:
            self.run(queue_id)
            self._turns.drain_soon(queue_id)  # for what follows a turn of drains

    def _drain_mirror(self, role: MirrorRole) -> None:
        is_preparing = role.replica.is_preparing
        for node, message in role.replica.take_messages():
            self._links.send(node, message)
        if is_preparing:
            self.touch(role.queue.queue_id)  # nobody called it just now for what has waited, which it may have written
        elif role.replica.has_more:
            self._turns.drain_soon(role.queue.queue_id)

    def durable_advanced(self) -> None:
        """A group commit round is on disk: those who wrote in it may have confirms or acknowledgements to give."""
        self._turns.durable_advanced()

    def nothing_written(self) -> None:
        """There was nothing to put on disk: whoever waits for it need not."""
        self._turns.nothing_written()

    def tick(self, now_ms: int) -> None:
        """Time passes: throttled synchronisation goes on, stalled mirrors are noticed."""
        self._ticks.tick(now_ms)
        for failure in self._failed.to_repeat(now_ms):
            self._cluster.storage_failed(failure.record, is_damaged=failure.is_damaged)

    def policy_changed(self) -> Pieces[None]:
        """Policies may have changed what queues want: mode, limits and the way of synchronisation hold at once."""
        for queue_id in list(self.roles):
            if (role := self.roles.get(queue_id)) is None:
                continue
            with self._guarded(queue_id):
                options = self._settings.queue_options(role.queue)
                role.local.set_lazy(options.is_lazy)
                role.local.set_index_version(options.index_version)
                settings = self._settings.mirroring_settings(role.queue)
                if isinstance(role, MasterRole):
                    role.process.set_options(options)
                    self.touch(queue_id)
                (role.mirrored if isinstance(role, MasterRole) else role.replica).set_settings(settings)
            yield

    def begin_end(self) -> None:
        """This node stops: deliver nothing any more, and let the mirrors know how far that has come."""
        self._is_ending = True
        for role in list(self.roles.values()):
            self._end_mastership(role)

    def _end_mastership(self, role: Role) -> None:
        if isinstance(role, MasterRole):
            with self._guarded(role.queue.queue_id):
                role.process.hold()
                role.mirrored.end()
            self.touch(role.queue.queue_id)

    @property
    def is_end_known(self) -> bool:
        """True if the mirrors know the end of the masterships here, and the mirrors here that of their masters."""
        return all(role.is_end_known for role in self.roles.values())

    def close(self) -> None:
        """As `closing`, all at once."""
        at_once(self.closing())

    def closing(self) -> Pieces[None]:
        """Orderly stop: leave every local queue as clean recovery wants it. No role may begin any more."""
        self._recoveries.close()
        self._opening.clear()
        for queue_id in list(self.roles):
            if (role := self.roles.get(queue_id)) is not None:
                self._close(role, delete=False)
            yield

    def check_invariants(self, touched: Collection[QueueId] | None = None) -> None:
        """``touched``: the copies that are looked into; all if it is not given."""
        self._early.check_invariants()
        self._failed.check_invariants()
        self._last_words.check_invariants(self._failed)
        self._turns.check_invariants((each, role.local.awaited_generation) for each, role in self.roles.items())
        self._link_news.check_invariants()
        self._ticks.check_invariants()
        assert self._unheard.keys() <= self.roles.keys(), "who has no role hears nothing"
        self._recoveries.check_invariants()
        assert not self.roles.keys() & self._opening.keys(), "what is being opened plays no role"
        assert all(queue_id in self._recoveries for queue_id in self._opening), "what is waited for is on its way"
        masters = {queue_id for queue_id, role in self.roles.items() if isinstance(role, MasterRole)}
        assert masters == set(self._processes), "exactly the queues mastered here have a process"
        assert not self.roles.keys() & set(self._failed), "a copy out of service plays no role"
        for queue_id in self.roles if touched is None else touched:
            if (role := self.roles.get(queue_id)) is None:
                continue
            role.check_invariants()
