"""One mirrored queue on some nodes under a seeded adversary, in one process, on simulated disks and without a clock.

Nodes crash (losing what they had not synced) and restart, all of them at once or one by one, seen to be gone or not;
links break (losing a suffix) and heal; commits of the metadata group, whose state machine is the real one, reach the
nodes late and one by one; nodes are declared dead that are not. One publisher sends again what was not confirmed
whenever it changes masters; one consumer fetches and settles. `check` states what must always hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from cluster.metadata.commands import AddMirror, Command, DropMirror, MirrorFollows, MirrorSynchronised, TakeService
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import Attach, MirrorMessage, Ops
from cluster.mirroring.mirror import MirrorReplica, demote
from cluster.mirroring.promotion import kept_end, knows_deliveries
from cluster.mirroring.reports import ReportFollows, ReportSynchronised, ReportTakesService
from node.ids import Epoch, Incarnation, MsgId, NodeName, OriginId, SeqId
from node.message import Message
from node.queues.backing_queue import Publication
from tests.support.messages import make_msg_id
from tests.support.mirrored_nodes import Metadata, Node


class World:
    def __init__(
        self,
        seed: int,
        settings: MirroringSettings,
        node_count: int = 3,
        policy: dict[str, Any] | None = None,
    ) -> None:
        self.chance = Random(seed)
        self.settings = settings
        #: Otherwise mirrors that came back stay incomplete for long.
        self.is_sync_eager = seed % 8 >= 4
        self.names = names = tuple(NodeName(f"n{number}") for number in range(1, node_count + 1))
        self.metadata = Metadata(names, policy or {"ha-mode": "all", "ha-promote-on-failure": "when-synced"})
        self.nodes = {name: Node(name) for name in names}
        self.links: dict[tuple[NodeName, NodeName], deque[MirrorMessage]] = {
            (a, b): deque() for a in names for b in names if a != b
        }
        self.broken: set[frozenset[NodeName]] = set()
        self.events: list[Callable[[], None]] = []  # commits on their way, in order
        self.proposals: list[tuple[NodeName, Incarnation, Command]] = []
        self.now_ms = 0
        # The publisher and the consumer.
        self.counter = 0
        self.session = 0
        self.session_with: tuple[NodeName, Epoch] | None = None
        #: Every transient message there ever was.
        self.transient: set[MsgId] = set()
        self.unconfirmed: dict[MsgId, Message] = {}
        self.confirmed: dict[MsgId, Message] = {}
        self.returned_tokens: set[tuple[int, MsgId]] = set()
        self.settled: set[MsgId] = set()
        self.delivered: set[MsgId] = set()
        #: What was confirmed when nodes stopped last in an orderly way.
        self.confirmed_before_stop: set[MsgId] = set()
        self.unflagged_after_stop = 0
        self.held: dict[SeqId, MsgId] = {}
        self.counts = dict.fromkeys(
            (
                "promotions",
                "duplicates",
                "redelivered",
                "fills",
                "confirms",
                "lagging",
                "power_losses",
                "stale_elections",
            ),
            0,
        )
        for node in self.nodes.values():
            self._learn(node)

    # --- nodes and metadata -------------------------------------------------------------------------------------------

    def _learn(self, node: Node) -> None:
        """The node applies the next commit."""
        if not node.is_running or node.learned == len(self.metadata.log):
            return
        record, applied_index = self.metadata.log[node.learned]
        node.learned += 1
        self._follow(node, record)
        if isinstance(node.role, MirrorReplica):
            for sender, message in node.early.take(record.queue_id, applied_index):
                node.role.receive(sender, message)

    def _follow(self, node: Node, record: MastershipRecord) -> None:
        role = node.role
        if record.master == node.name and not record.is_down:
            if isinstance(role, MirroredQueue):
                if role.record.epoch == record.epoch:
                    role.set_record(record)
                    return
                role = demote(role, record.epoch)
            if role is not None and not role.may_promote(record):
                return
            node.role = self._become_master(node, role, record)
            self._announce_links(node)
        elif node.name not in record.mirrors:
            if role is not None:
                self._leave(node)
        elif isinstance(role, MirroredQueue):
            node.role = demote(role, record.epoch)
        elif role is None:
            end = kept_end(node.local)
            node.local.mark_none_delivered()
            node.role = MirrorReplica(record.queue_id, node.local, record.epoch, end=end)
        else:
            role.adopt_epoch(record.epoch)

    def _become_master(self, node: Node, replica: MirrorReplica | None, record: MastershipRecord) -> MirroredQueue:
        attach_id_base = node.incarnation << 32
        if record.epoch == 1:
            return MirroredQueue(node.name, node.local, record, self.settings)
        self.counts["promotions"] += 1
        if replica is not None:
            return replica.promote(node.name, record, self.settings, attach_id_base)
        if not knows_deliveries(node.local, node.name, record):
            node.local.mark_delivered_below(node.local.next_seq_id)
        return MirroredQueue(
            node.name,
            node.local,
            record,
            self.settings,
            delivered_below=node.local.next_seq_id,
            trusted_origins={},
            attach_id_base=attach_id_base,
        )

    def _leave(self, node: Node) -> None:
        """The record has no part for this node: its copy is closed, and stays on its disk."""
        node.close_copy()

    def _announce_links(self, node: Node) -> None:
        assert isinstance(node.role, MirroredQueue)
        for peer in self.names:
            if peer != node.name and self._is_connected(node.name, peer):
                node.role.mirror_link_up(peer)

    def _is_connected(self, a: NodeName, b: NodeName) -> bool:
        return frozenset((a, b)) not in self.broken and self.nodes[a].is_running and self.nodes[b].is_running

    def crash(self, node: Node) -> None:
        """The process is gone; that it is may be noted soon, or when it is back already."""
        node.is_starting = False
        if not node.is_running:
            return
        for peer in self.names:
            if peer != node.name:
                self._cut(node.name, peer)
        node.crash(self.chance)

    def lose_power(self) -> None:
        self.counts["power_losses"] += 1
        for node in self.nodes.values():
            self.crash(node)

    @property
    def has_quorum(self) -> bool:
        running = sum(node.is_running or node.is_starting for node in self.nodes.values())
        return 2 * running > len(self.nodes)

    def notice(self, node: Node) -> None:
        """Somebody says that a dead node is dead."""
        if not node.is_running and self.metadata.is_up(node.name):
            incarnation = node.incarnation

            def declare_down() -> None:
                if node.incarnation == incarnation and not node.is_running:
                    self._change(lambda: self.metadata.node_down(node.name))

            self.events.append(declare_down)

    def _change(self, change: Callable[[], None]) -> None:
        """A commit. What a change of masters may cost: transient messages, if nobody has them in memory any more, and
        what a master lacks that was not complete."""
        before = self.metadata.record
        change()
        after = self.metadata.record
        if after.epoch != before.epoch:
            self.counts["stale_elections"] += not before.in_service and not before.is_down
            if after.master not in before.synchronised:
                self._forgive(lambda message: not message.persistent)
        if after.lossy_promotions > before.lossy_promotions:
            live = set(self.nodes[after.master].live_ids)
            self._forgive(lambda message: message.msg_id not in live)

    def _forgive(self, is_lost: Callable[[Message], bool]) -> None:
        for msg_id in [msg_id for msg_id, message in self.confirmed.items() if is_lost(message)]:
            del self.confirmed[msg_id]

    def restart(self, node: Node) -> None:
        if node.is_running or node.is_starting:
            return
        node.is_starting = True
        node.incarnation = incarnation = Incarnation(node.incarnation + 1)

        def up() -> None:
            if node.incarnation != incarnation or not node.is_starting:
                return
            self._change(lambda: self.metadata.node_up(node.name, incarnation))
            node.is_starting = False
            node.is_running = True
            node.learned = len(self.metadata.log) - 1
            self._learn(node)
            for peer in self.names:
                if peer != node.name:
                    self._connect(node.name, peer)

        self.events.append(up)

    def suspect(self, node: Node) -> None:
        """The group believes a living node dead; when that one hears of it, it says that it lives."""
        incarnation = node.incarnation

        def declare_down() -> None:
            if self.metadata.is_up(node.name) and node.incarnation == incarnation:
                self._change(lambda: self.metadata.node_down(node.name))
                self.events.append(lambda: self._announce(node, len(self.metadata.log)))

        if node.is_running and not self.events:
            self.events.append(declare_down)

    def _announce(self, node: Node, declared_at: int) -> None:
        if not node.is_running or node.learned < declared_at:
            if node.is_running:
                self.events.append(lambda: self._announce(node, declared_at))
            return
        self._change(lambda: self.metadata.node_up(node.name, node.incarnation))

    # --- links --------------------------------------------------------------------------------------------------------

    def _cut(self, a: NodeName, b: NodeName) -> None:
        """Both directions break: a prefix of what is in flight still arrives."""
        for sender, receiver in ((a, b), (b, a)):
            link = self.links[sender, receiver]
            for _ in range(self.chance.randint(0, len(link))):
                self._arrive(sender, receiver, link.popleft())
            link.clear()
        for one, other in ((a, b), (b, a)):
            self.nodes[one].early.forget_node(other)
            role = self.nodes[one].role
            if isinstance(role, MirroredQueue):
                role.mirror_link_down(other)

    def break_link(self, a: NodeName, b: NodeName) -> None:
        if self._is_connected(a, b):
            self.broken.add(frozenset((a, b)))
            self._cut(a, b)

    def _connect(self, a: NodeName, b: NodeName) -> None:
        if self._is_connected(a, b):
            for one, other in ((a, b), (b, a)):
                role = self.nodes[one].role
                if isinstance(role, MirroredQueue):
                    role.mirror_link_up(other)

    def heal_link(self, a: NodeName, b: NodeName) -> None:
        if frozenset((a, b)) in self.broken:
            self.broken.discard(frozenset((a, b)))
            self._connect(a, b)

    def _arrive(self, sender: NodeName, receiver: NodeName, message: MirrorMessage) -> None:
        node = self.nodes[receiver]
        role = node.role
        if isinstance(role, MirrorReplica) and isinstance(message, Attach | Ops):
            if node.early.is_early(message, self._applied_index(node)):
                node.early.keep(sender, message)
                return
            node.early.forget_queue(message.queue_id)
        if role is not None:
            role.receive(sender, message)

    def _applied_index(self, node: Node) -> int:
        return self.metadata.log[node.learned - 1][1] if node.learned else 0

    def transmit(self, a: NodeName, b: NodeName, count: int) -> None:
        link = self.links[a, b]
        for _ in range(min(count, len(link))):
            self._arrive(a, b, link.popleft())

    def turn(self, node: Node) -> None:
        """The node's loop sends what it has to send."""
        role = node.role
        if role is None:
            return
        node.write()
        as_of_index = self._applied_index(node)
        messages = role.take_messages(as_of_index) if isinstance(role, MirroredQueue) else role.take_messages()
        for receiver, message in messages:
            if self._is_connected(node.name, receiver):
                self.links[node.name, receiver].append(message)
        if isinstance(role, MirroredQueue):
            self._collect(node, role)
            for state in role.mirror_states().values():
                self.counts["lagging"] += state.value == "lagging"
            for report in role.take_reports():
                record = role.record
                if isinstance(report, ReportSynchronised):
                    self._propose(node, MirrorSynchronised(record.queue_id, record.epoch, report.node, as_of_index))
                    self.counts["fills"] += 1
                elif isinstance(report, ReportFollows):
                    self._propose(node, MirrorFollows(record.queue_id, record.epoch, report.node, as_of_index))
                elif isinstance(report, ReportTakesService):
                    self._propose(node, TakeService(node.name, ((record.queue_id, record.epoch),)))

    def _propose(self, node: Node, command: Command) -> None:
        self.proposals.append((node.name, node.incarnation, command))

    def drop_or_take_back(self, mirror: Node) -> None:
        """The master finds that a mirror does not answer, or that one it had dropped does again."""
        record = self.metadata.record
        node = self.nodes[record.master]
        if isinstance(node.role, MirroredQueue) and node.role.record == record and mirror is not node:
            if mirror.name in record.mirrors:
                self._propose(node, DropMirror(record.queue_id, record.epoch, mirror.name))
            self._propose(node, AddMirror(record.queue_id, record.epoch, mirror.name))

    def sync_disk(self, node: Node) -> None:
        if node.is_running:
            node.sync(self.transient)
            if isinstance(node.role, MirrorReplica):
                node.role.durable_advanced()

    # --- clients ------------------------------------------------------------------------------------------------------

    def _master(self) -> MirroredQueue | None:
        """The node that the clients believe is the master, with a session in order."""
        record = self.metadata.record
        role = self.nodes[record.master].role
        if not isinstance(role, MirroredQueue) or role.record.epoch != record.epoch:
            old = self.session_with
            if old is None:
                return None
            role = self.nodes[old[0]].role  # the old master may still believe in itself
            return role if isinstance(role, MirroredQueue) and role.record.epoch == old[1] else None
        if self.session_with != (record.master, record.epoch):
            self.session_with = (record.master, record.epoch)
            self.open_session(role)
        return role

    def open_session(self, master: MirroredQueue | None = None) -> None:
        """Consumers are attached anew, unconfirmed publishes sent again."""
        master = master or self._master()
        if master is None:
            return
        self.session += 1
        master.requeue(list(self.held))
        self.held.clear()
        for message in list(self.unconfirmed.values()):
            self._send(master, message)

    def _send(self, master: MirroredQueue, message: Message) -> None:
        token = (self.session, message.msg_id)
        if master.is_duplicate(message.msg_id):
            self.counts["duplicates"] += 1
            master.confirm_when_safe(message.msg_id, token)
        else:
            self.delivered.discard(message.msg_id)  # a new copy
            master.publish([Publication(message, token)])

    def _new_message(self) -> Message:
        self.counter += 1
        msg_id = make_msg_id(OriginId(b"origin-p"), self.counter)
        message = Message(msg_id, "", "q", b"", b"x" * self.chance.randint(0, 40), self.chance.random() < 0.8)
        self.unconfirmed[msg_id] = message
        if not message.persistent:
            self.transient.add(msg_id)
        return message

    def publish(self, count: int) -> None:
        master = self._master()
        for _ in range(count):
            message = self._new_message()
            if master is not None:
                self._send(master, message)

    def publish_to_consumer(self) -> None:
        """A publish while a consumer waits at the empty queue: delivered at once, with or without ack."""
        master = self._master()
        if master is None or master.ready:
            return
        message = self._new_message()
        assert not master.is_duplicate(message.msg_id)
        publication = Publication(message, (self.session, message.msg_id))
        if self.chance.random() < 0.5:
            master.discard([publication])
            self.settled.add(message.msg_id)
        else:
            for delivery in master.publish_delivered([publication]):
                self.held[delivery.seq_id] = message.msg_id
                self.delivered.add(message.msg_id)

    def fetch(self, count: int, ack_required: bool) -> None:
        master = self._master()
        if master is None:
            return
        for seq_id, message, redelivered in master.fetch(count, ack_required):
            if message.msg_id in self.delivered:
                assert redelivered, f"{seq_id} was delivered before and is not flagged"
                self.counts["redelivered"] += 1
            elif message.msg_id in self.confirmed_before_stop:
                self.unflagged_after_stop += not redelivered
            self.delivered.add(message.msg_id)
            if ack_required:
                self.held[seq_id] = message.msg_id
            else:
                self.settled.add(message.msg_id)

    def settle(self, requeue: bool) -> None:
        master = self._master()
        if master is None or not self.held:
            return
        chosen = self.chance.sample(sorted(self.held), self.chance.randint(1, len(self.held)))
        if requeue:
            assert master.requeue(chosen) == len(chosen)
        else:
            assert master.ack(chosen) == len(chosen)
            self.settled.update(self.held[seq_id] for seq_id in chosen)
        for seq_id in chosen:
            del self.held[seq_id]

    def remove(self, purge: bool) -> None:
        master = self._master()
        record = self.metadata.record
        if master is None or master.record.epoch != record.epoch:
            return
        before = set(self.nodes[master.node].live_ids)
        if purge:
            master.purge()
        else:
            master.drop(2)
        self.settled.update(before.difference(self.nodes[master.node].live_ids))

    def _collect(self, node: Node, master: MirroredQueue) -> None:
        for token in master.drain_confirmed():
            assert isinstance(token, tuple)
            assert token not in self.returned_tokens, "a token came back twice"
            self.returned_tokens.add(token)
            if token[0] != self.session or self.session_with != (node.name, master.record.epoch):
                continue  # a straggler of an earlier session
            message = self.unconfirmed.pop(token[1], None)
            if message is not None:
                self.counts["confirms"] += 1
                self.confirmed[message.msg_id] = message

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        record = self.metadata.record
        for node in self.nodes.values():
            if node.role is not None:
                node.role.check_invariants()
        for name in record.complete:
            self._check_holds_on_disk(self.nodes[name])
        if record.is_down:
            return
        master = self.nodes[record.master]
        if isinstance(master.role, MirroredQueue) and master.role.record.epoch == record.epoch and record.in_service:
            self._check_holds(master)
            ids = master.live_ids
            assert len(ids) == len(set(ids)), "a publish sent again was enqueued twice"
        for name in record.synchronised:
            if isinstance(self.nodes[name].role, MirrorReplica):
                self._check_holds(self.nodes[name])

    def _check_holds(self, node: Node) -> None:
        live = set(node.live_ids)
        for msg_id in self.confirmed:
            assert msg_id in live or msg_id in self.settled, f"{node.name} lacks confirmed {msg_id.hex()}"

    def _check_holds_on_disk(self, node: Node) -> None:
        for msg_id, message in self.confirmed.items():
            if message.persistent and msg_id not in self.settled:
                assert msg_id in node.on_disk, f"{node.name} counts as complete and may lose confirmed {msg_id.hex()}"

    # --- the adversary ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.chance
        node = self.nodes[chance.choice(self.names)]
        a, b = chance.sample(self.names, 2)
        actions: list[tuple[float, Callable[[], None]]] = [
            (30, self.run_on),
            (10, lambda: self.turn(node)),
            (10, lambda: self.transmit(a, b, chance.randint(1, 4))),
            (8, lambda: self.sync_disk(node)),
            (12, lambda: self.publish(chance.randint(1, 4))),
            (3, self.publish_to_consumer),
            (8, lambda: self.fetch(chance.randint(1, 4), chance.random() < 0.8)),
            (6, lambda: self.settle(requeue=False)),
            (2, lambda: self.settle(requeue=True)),
            (1, lambda: self.remove(purge=chance.random() < 0.5)),
            (6, lambda: self._learn(node)),
            (10, self.commit_next),
            (12, self.commit_proposal),
            (1, lambda: self.break_link(a, b)),
            (6, lambda: self.heal_link(a, b)),
            (2, lambda: self.crash(node)),
            (0.4, self.lose_power),
            (8, lambda: self.notice(node)),
            (1, lambda: self.drop_or_take_back(node)),
            (6, lambda: self.restart(node)),
            (1, lambda: self.suspect(node)),
            (1, self.open_session),
            (2 if self.is_sync_eager else 0.1, self.change_sync),
            (4, self.tick),
        ]
        chance.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()

    def run_on(self) -> None:
        """Everybody makes progress, some more than others."""
        chance = self.chance
        for node in self.nodes.values():
            self.turn(node)
        for a, b in self.links:
            self.transmit(a, b, chance.randint(0, 6))
        for node in self.nodes.values():
            if chance.random() < 0.4:
                self.sync_disk(node)

    def commit_next(self) -> None:
        if self.events and self.has_quorum:
            self.events.pop(0)()

    def commit_proposal(self) -> None:
        """Proposals commit in any order and late."""
        if self.proposals and self.has_quorum:
            proposal = self.proposals.pop(self.chance.randrange(len(self.proposals)))
            self._change(lambda: self.metadata.propose(*proposal))

    def change_sync(self) -> None:
        master = self._master()
        if master is not None:
            if self.chance.random() < 0.7:
                master.start_sync()
            else:
                master.cancel_sync()

    def tick(self) -> None:
        self.now_ms += 500
        for node in self.nodes.values():
            if isinstance(node.role, MirroredQueue):
                node.role.tick(self.now_ms)

    def settle_down(self) -> None:
        """Every fault ends; then run until nothing happens any more."""
        for node in self.nodes.values():
            self.restart(node)
        for pair in list(self.broken):
            a, b = sorted(pair)
            self.heal_link(a, b)
        quiet = 0
        for _ in range(600):
            record = self.metadata.record
            is_quiet = not self.unconfirmed and {record.master, *record.synchronised} == set(self.names)
            quiet = quiet + 1 if is_quiet else 0
            if quiet > 5:
                return
            master = self._master()
            if master is not None:
                master.start_sync()
            for node in self.nodes.values():
                if node.name not in (record.master, *record.mirrors) and node.is_running:
                    self.drop_or_take_back(node)
            self.run_round()

    def run_round(self) -> None:
        """Everything that is under way arrives, is applied, synced and committed."""
        while self.events and self.has_quorum:
            self.commit_next()
            for node in self.nodes.values():
                self._learn(node)
        for node in self.nodes.values():
            while node.is_running and node.learned < len(self.metadata.log):
                self._learn(node)
        self._master()
        self.tick()
        for node in self.nodes.values():
            self.sync_disk(node)
            self.turn(node)
        for a, b in self.links:
            self.transmit(a, b, len(self.links[a, b]))
        while self.proposals and self.has_quorum:
            self.commit_proposal()
        self.check()
