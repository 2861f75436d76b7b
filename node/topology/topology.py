"""The topology: vhosts with their exchanges, queues and bindings.

Definitions. A *binding* joins a source exchange to a destination (queue or exchange); binding the same thing twice
changes nothing (`node.topology.bindings` says what is the same). The *default exchange* (name ``""``) has an implicit
binding to every queue by its name; those are not stored, cannot be made or removed, and `bindings` lists them as the
reference does.

Flow. `apply` carries out one `TopologyCommand` and is deterministic: the same commands on the same state give
the same state and the same answers on every node, so it can run inside a replicated state machine. It either
changes everything it should or raises and changes nothing. `TopologyObserver`s hear each elementary change
after it happened; that is how the router keeps its indexes without rebuilding them.

Cascades. Deleting a queue removes its bindings; removing the last binding of an auto-delete exchange as a
source deletes that exchange, which removes its bindings, and so on. An auto-delete exchange that never had a
binding stays.

Ownership. The caller chooses the `QueueId` of a new queue, because only it knows how to make one that the whole
cluster agrees on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from node.errors import ChannelError, ConnectionFailure
from node.ids import QueueId
from node.lazy_list import LazyList
from node.pieces import Pieces, at_once
from node.topology.arguments import (
    COMPARED_EXCHANGE_ARGUMENTS,
    COMPARED_QUEUE_ARGUMENTS,
    check_equivalent_arguments,
    check_equivalent_field,
    check_exchange_arguments,
    check_headers_binding,
    check_queue_arguments,
    describe_exchange,
    describe_queue,
)
from node.topology.commands import (
    Bind,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    DestinationKind,
    NoteConsumer,
    TopologyCommand,
    Unbind,
)
from node.topology.content import TopologyContent, VhostContent
from node.topology.names import (
    DEFAULT_EXCHANGE,
    EXCHANGE_TYPES,
    PREDECLARED_EXCHANGES,
    RESERVED_PREFIX,
    SERVER_NAMED_PREFIX,
    locked_queue,
    missing_exchange,
    missing_queue,
    refuse_default_exchange,
)
from node.topology.records import BindingRecord, ExchangeRecord, QueueRecord

#: Bindings that are removed in one piece, and with what they are of if they are not more: a fraction of a millisecond.
BINDINGS_PER_PIECE = 64


class TopologyObserver:
    """Hears of changes, after they happened. Override what matters."""

    def queue_added(self, queue: QueueRecord) -> None: ...

    def queue_removed(self, queue: QueueRecord) -> None: ...

    def exchange_added(self, exchange: ExchangeRecord) -> None: ...

    def exchange_removed(self, exchange: ExchangeRecord) -> None: ...

    def binding_added(self, binding: BindingRecord) -> None: ...

    def binding_removed(self, binding: BindingRecord) -> None: ...

    def topology_restored(self) -> None:
        """Everything may have changed (`Topology.restore`); the elementary changes are not told."""


class Topology:
    """See the top of this module."""

    def __init__(self) -> None:
        self._vhosts: dict[str, VhostContent] = {}
        self._queues_by_id: dict[QueueId, QueueRecord] = {}
        self._observers: list[TopologyObserver] = []

    # --- reading ---

    def vhosts(self) -> list[str]:
        return list(self._vhosts)

    def has_vhost(self, vhost: str) -> bool:
        return vhost in self._vhosts

    def made_at_index(self, vhost: str) -> int:
        """Index of the entry of the log that made the vhost; 0 if that is not known, or there is no such vhost."""
        content = self._vhosts.get(vhost)
        return content.made_at_index if content else 0

    def queues(self, vhost: str) -> list[QueueRecord]:
        """Queues of a vhost; none if the vhost is unknown."""
        content = self._vhosts.get(vhost)
        return list(content.queues.values()) if content else []

    def queue(self, vhost: str, name: str) -> QueueRecord | None:
        content = self._vhosts.get(vhost)
        return content.queues.get(name) if content else None

    def queue_by_id(self, queue_id: QueueId) -> QueueRecord | None:
        return self._queues_by_id.get(queue_id)

    def all_queues(self) -> Iterable[QueueRecord]:
        """Queues of every vhost."""
        return self._queues_by_id.values()

    def exchanges(self, vhost: str) -> list[ExchangeRecord]:
        content = self._vhosts.get(vhost)
        return list(content.exchanges.values()) if content else []

    def exchange(self, vhost: str, name: str) -> ExchangeRecord | None:
        content = self._vhosts.get(vhost)
        return content.exchanges.get(name) if content else None

    def bindings(self, vhost: str) -> list[BindingRecord]:
        """All bindings of a vhost: the implicit ones of the default exchange first, then the stored ones."""
        content = self._vhosts.get(vhost)
        if content is None:
            return []
        implicit = [BindingRecord(vhost, DEFAULT_EXCHANGE, name, "queue", name, {}) for name in content.queues]
        return [*implicit, *content.bindings]

    def has_binding(self, bind: Bind) -> bool:
        """True if there is this one."""
        content = self._vhosts.get(bind.vhost)
        return content is not None and content.bindings.find(bind) is not None

    def bindings_from(self, vhost: str, source: str) -> list[BindingRecord]:
        """Stored bindings with this exchange as source."""
        content = self._vhosts.get(vhost)
        return content.bindings.from_source(source) if content else []

    def bindings_to(self, vhost: str, kind: DestinationKind, name: str) -> list[BindingRecord]:
        """Stored bindings that lead to this queue or exchange."""
        content = self._vhosts.get(vhost)
        return content.bindings.to(kind, name) if content else []

    def observe(self, observer: TopologyObserver) -> None:
        """Tell ``observer`` of every later change."""
        self._observers.append(observer)

    def equivalent_queue(self, command: DeclareQueue) -> QueueRecord | None:
        """The existing queue that ``command`` declares again, or ``None`` if there is none.

        Raises `ChannelError` 405 if it belongs to another connection (or is not exclusive as asked), 406
        ``inequivalent arg`` if it differs.
        """
        existing = self.queue(command.vhost, command.name)
        if existing is None:
            return None
        what = describe_queue(command.vhost, command.name)
        if existing.exclusive_owner != command.exclusive_owner:
            raise locked_queue(existing)
        check_equivalent_field(what, "durable", _is_durable(command), existing.durable)
        check_equivalent_field(what, "auto_delete", command.auto_delete, existing.auto_delete)
        check_equivalent_arguments(what, COMPARED_QUEUE_ARGUMENTS, command.arguments, existing.arguments)
        return existing

    def equivalent_exchange(self, command: DeclareExchange) -> ExchangeRecord | None:
        """The existing exchange that ``command`` declares again, or ``None``. Raises `ChannelError` 406."""
        existing = self.exchange(command.vhost, command.name)
        if existing is None:
            return None
        what = describe_exchange(command.vhost, command.name)
        for field in ("type", "durable", "auto_delete", "internal"):
            check_equivalent_field(what, field, getattr(command, field), getattr(existing, field))
        check_equivalent_arguments(what, COMPARED_EXCHANGE_ARGUMENTS, command.arguments, existing.arguments)
        return existing

    # --- changing ---

    def apply(self, command: TopologyCommand, queue_id: QueueId | None = None, made_at_index: int = 0) -> Any:
        """Carry out a change; a new vhost keeps ``made_at_index``. Returns:

        `DeclareQueue`     the `QueueRecord`, new (with ``queue_id``) or existing;
        `DeclareExchange`  the `ExchangeRecord`, new or existing;
        `DeleteQueue`      the deleted `QueueRecord`, or ``None`` if there was none;
        `DeleteVhost`      tuple of the deleted `QueueRecord`s;
        `NoteConsumer`     the `QueueRecord`, or ``None`` if it is gone;
        `Bind`             the `BindingRecord`, new or existing;
        others             ``None``.

        Raises `ChannelError` or `ConnectionFailure` with RabbitMQ's codes and texts; then nothing has changed.
        """
        match command:
            case DeclareQueue():
                return self._declare_queue(command, queue_id)
            case DeleteQueue():
                return self._delete_queue(command)
            case NoteConsumer():
                return self._note_consumer(command)
            case DeclareExchange():
                return self._declare_exchange(command)
            case DeleteExchange():
                return self._delete_exchange(command)
            case Bind():
                return self._bind(command)
            case Unbind():
                return self._unbind(command)
            case CreateVhost():
                return self._create_vhost(command.vhost, made_at_index)
            case DeleteVhost():
                return self._delete_vhost(command.vhost)

    def _create_vhost(self, vhost: str, made_at_index: int) -> None:
        if vhost in self._vhosts:
            return
        self._vhosts[vhost] = VhostContent(made_at_index)
        for name, (kind, internal) in PREDECLARED_EXCHANGES.items():
            self._add_exchange(ExchangeRecord(vhost, name, kind, True, False, internal, {}))

    def _delete_vhost(self, vhost: str) -> tuple[QueueRecord, ...]:
        content = self._vhosts.get(vhost)
        if content is None:
            return ()
        deleted = tuple(content.queues.values())
        for queue in deleted:
            self._remove_queue(queue)
        for exchange in list(content.exchanges.values()):
            if content.exchanges.get(exchange.name) is exchange:  # a cascade may have been faster
                self._remove_exchange(exchange)
        assert not list(content.bindings), "bindings go with their ends"
        del self._vhosts[vhost]
        return deleted

    def _declare_queue(self, command: DeclareQueue, queue_id: QueueId | None) -> QueueRecord:
        content = self._content(command.vhost)
        existing = self.equivalent_queue(command)
        if existing is not None:
            return existing
        if command.name.startswith(RESERVED_PREFIX) and not command.name.startswith(SERVER_NAMED_PREFIX):
            raise ChannelError(403, f"queue name '{command.name}' contains reserved prefix 'amq.*'")
        check_queue_arguments(command.vhost, command.name, command.arguments)
        assert queue_id is not None, "the caller chooses the identity of a new queue"
        assert queue_id not in self._queues_by_id, "an identity is used once"
        queue = QueueRecord(
            queue_id,
            command.vhost,
            command.name,
            _is_durable(command),
            command.exclusive_owner,
            command.auto_delete,
            dict(command.arguments),
        )
        content.queues[queue.name] = queue
        self._queues_by_id[queue_id] = queue
        for observer in self._observers:
            observer.queue_added(queue)
        return queue

    def _delete_queue(self, command: DeleteQueue) -> QueueRecord | None:
        queue = self.queue(command.vhost, command.name)
        if queue is None or command.queue_id not in (None, queue.queue_id):
            return None
        self._remove_queue(queue)
        return queue

    def _note_consumer(self, command: NoteConsumer) -> QueueRecord | None:
        queue = self.queue(command.vhost, command.name)
        if queue is None or queue.queue_id != command.queue_id:
            return None
        noted = replace(queue, was_consumed=True)
        self._vhosts[queue.vhost].queues[queue.name] = self._queues_by_id[queue.queue_id] = noted
        return noted

    def _declare_exchange(self, command: DeclareExchange) -> ExchangeRecord:
        self._content(command.vhost)
        refuse_default_exchange(command.name)
        if command.type not in EXCHANGE_TYPES:
            raise ConnectionFailure(503, f"unknown exchange type '{command.type}'")
        existing = self.equivalent_exchange(command)
        if existing is not None:
            return existing
        if command.name.startswith(RESERVED_PREFIX):
            raise ChannelError(403, f"exchange name '{command.name}' contains reserved prefix 'amq.*'")
        check_exchange_arguments(command.vhost, command.name, command.arguments)
        exchange = ExchangeRecord(
            command.vhost,
            command.name,
            command.type,
            command.durable,
            command.auto_delete,
            command.internal,
            dict(command.arguments),
        )
        self._add_exchange(exchange)
        return exchange

    def _delete_exchange(self, command: DeleteExchange) -> None:
        exchange = self.check_exchange_deletion(command)
        if exchange is not None:
            self._remove_exchange(exchange)

    def check_exchange_deletion(self, command: DeleteExchange) -> ExchangeRecord | None:
        """The exchange that is to be deleted, if it exists. Raises what `apply` raises."""
        content = self._content(command.vhost)
        refuse_default_exchange(command.name)
        what = describe_exchange(command.vhost, command.name)
        if command.name.startswith(RESERVED_PREFIX):
            raise ChannelError(403, f"deletion of system {what} not allowed")
        exchange = content.exchanges.get(command.name)
        if exchange is None:
            return None
        if command.if_unused and content.bindings.has_source(command.name):
            raise ChannelError(406, f"{what} in use")
        return exchange

    def _bind(self, command: Bind) -> BindingRecord:
        content = self._content(command.vhost)
        refuse_default_exchange(command.source)
        source = content.exchanges.get(command.source)
        if source is None:
            raise missing_exchange(command.vhost, command.source)
        if command.destination_kind == "queue":
            if command.destination not in content.queues:
                raise missing_queue(command.vhost, command.destination)
        else:
            refuse_default_exchange(command.destination)
            if command.destination not in content.exchanges:
                raise missing_exchange(command.vhost, command.destination)
        if source.type == "headers":
            check_headers_binding(command.arguments)
        existing = content.bindings.find(command)
        if existing is not None:
            return existing
        binding = BindingRecord(
            command.vhost,
            command.source,
            command.destination,
            command.destination_kind,
            command.routing_key,
            dict(command.arguments),
        )
        content.bindings.add(binding)
        for observer in self._observers:
            observer.binding_added(binding)
        return binding

    def _unbind(self, command: Unbind) -> None:
        content = self._content(command.vhost)
        refuse_default_exchange(command.source)
        binding = content.bindings.find(command)
        if binding is not None:
            self._remove_bindings(content, [binding])

    # --- what is large, before it is deleted ---

    def unbind_all(self, command: DeleteExchange | DeleteQueue) -> Pieces[None]:
        """Remove the bindings of what is about to be deleted, if they are many. `apply` does the rest."""
        vhost, name = command.vhost, command.name
        if isinstance(command, DeleteQueue):
            queue = self.queue(vhost, name)
            if queue is None or command.queue_id not in (None, queue.queue_id):
                return
            bindings = self.bindings_to(vhost, "queue", name)
        else:
            bindings = [*self.bindings_from(vhost, name), *self.bindings_to(vhost, "exchange", name)]
        if len(bindings) <= BINDINGS_PER_PIECE:
            return
        for number, binding in enumerate(bindings, 1):
            content = self._vhosts[vhost]
            if content.bindings.find(binding) is binding:  # a cascade may have been faster
                self._remove_bindings(content, [binding])
            if number % BINDINGS_PER_PIECE == 0:
                yield

    def remove_exchanges(self, vhost: str) -> Pieces[None]:
        """All that were declared in a vhost that is about to be deleted; its queues are gone."""
        for exchange in self.exchanges(vhost):
            yield from self.unbind_all(DeleteExchange(vhost, exchange.name))
            is_there = self._vhosts[vhost].exchanges.get(exchange.name) is exchange
            if is_there and exchange.name not in PREDECLARED_EXCHANGES:
                self._remove_exchange(exchange)
            yield

    # --- elementary changes ---

    def _content(self, vhost: str) -> VhostContent:
        content = self._vhosts.get(vhost)
        if content is None:
            raise ConnectionFailure(530, f"vhost {vhost} not found")
        return content

    def _add_exchange(self, exchange: ExchangeRecord) -> None:
        self._vhosts[exchange.vhost].exchanges[exchange.name] = exchange
        for observer in self._observers:
            observer.exchange_added(exchange)

    def _remove_queue(self, queue: QueueRecord) -> None:
        content = self._vhosts[queue.vhost]
        del content.queues[queue.name]
        del self._queues_by_id[queue.queue_id]
        self._remove_bindings(content, self.bindings_to(queue.vhost, "queue", queue.name))
        for observer in self._observers:
            observer.queue_removed(queue)

    def _remove_exchange(self, exchange: ExchangeRecord) -> None:
        """With its bindings, and the auto-delete exchanges that go with those. One after the other: a client may have
        made a chain of them that is longer than the stack."""
        todo = [exchange]
        for each in todo:
            content = self._vhosts[each.vhost]
            if content.exchanges.get(each.name) is not each:
                continue  # two of its bindings have gone one after the other
            del content.exchanges[each.name]
            gone = self.bindings_from(each.vhost, each.name)
            # A loop back to itself is in both lists: removing it twice would tell observers twice.
            gone += [b for b in self.bindings_to(each.vhost, "exchange", each.name) if b.source != each.name]
            todo += self._drop_bindings(content, gone)
            for observer in self._observers:
                observer.exchange_removed(each)

    def _remove_bindings(self, content: VhostContent, gone: list[BindingRecord]) -> None:
        for source in self._drop_bindings(content, gone):
            if content.exchanges.get(source.name) is source:  # a cascade may have been faster
                self._remove_exchange(source)

    def _drop_bindings(self, content: VhostContent, gone: list[BindingRecord]) -> list[ExchangeRecord]:
        """Remove these. Returns the auto-delete exchanges that are to go with them."""
        for binding in gone:
            content.bindings.remove(binding)
            for observer in self._observers:
                observer.binding_removed(binding)
        sources = [content.exchanges.get(name) for name in dict.fromkeys(binding.source for binding in gone)]
        return [
            each
            for each in sources
            if each is not None and each.auto_delete and not content.bindings.has_source(each.name)
        ]

    # --- snapshot ---

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain data (dict, sequences, str, int, bytes, float, bool, None), for `restore`.

        Taken in the time that it takes to copy references: the sequences make their items when they are asked for.
        """
        return {
            "vhosts": [
                {
                    "name": name,
                    "exchanges": LazyList(content.exchanges.values(), _plain),
                    "queues": LazyList(content.queues.values(), _plain_queue),
                    "bindings": LazyList(content.bindings, _plain),
                    **({"made_at_index": content.made_at_index} if content.made_at_index else {}),
                }
                for name, content in self._vhosts.items()
            ]
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Replace the whole state by what `snapshot` gave. Observers hear `topology_restored`."""
        self.adopt(at_once(TopologyContent.read(data)))

    def adopt(self, content: TopologyContent) -> TopologyContent:
        """Replace the whole state; what it was is the caller's. Observers hear `topology_restored`."""
        old = TopologyContent(self._vhosts, self._queues_by_id)
        self._vhosts, self._queues_by_id = content.vhosts, content.queues_by_id
        for observer in self._observers:
            observer.topology_restored()
        return old

    def check_invariants(self) -> None:
        by_id = 0
        for vhost, content in self._vhosts.items():
            assert set(PREDECLARED_EXCHANGES) <= set(content.exchanges), "predeclared exchanges cannot be deleted"
            for name, queue in content.queues.items():
                assert (queue.vhost, queue.name) == (vhost, name), "a queue is filed under its own name"
                assert self._queues_by_id[queue.queue_id] is queue, "both indexes hold the same queues"
                by_id += 1
            content.bindings.check_invariants()
            for binding in content.bindings:
                assert binding.source in content.exchanges, "a binding goes with its source"
                ends = content.queues if binding.destination_kind == "queue" else content.exchanges
                assert binding.destination in ends, "a binding goes with its destination"
        assert by_id == len(self._queues_by_id), "no queue is known by its identity only"


def _is_durable(command: DeclareQueue) -> bool:
    """An exclusive queue dies with its connection, so it is never durable whatever the client says."""
    return command.durable and command.exclusive_owner is None


def _plain(record: ExchangeRecord | QueueRecord | BindingRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _FIELDS[type(record)]}


def _plain_queue(record: QueueRecord) -> dict[str, Any]:
    """Without what releases before it was there cannot read, as long as it says nothing."""
    plain = _plain(record)
    if not record.was_consumed:
        del plain["was_consumed"]
    return plain


_FIELDS: Mapping[type, tuple[str, ...]] = {
    record: tuple(each.name for each in fields(record) if each.name != "vhost")
    for record in (ExchangeRecord, QueueRecord, BindingRecord)
}
