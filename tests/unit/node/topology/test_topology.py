"""Declarations, bindings and cascades of the topology, with the reply codes and texts that clients know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.errors import AmqpError, ChannelError, ConnectionFailure
from node.ids import QueueId
from node.topology.commands import (
    Bind,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    TopologyCommand,
    Unbind,
)
from node.topology.records import BindingRecord, ExchangeRecord, QueueRecord
from node.topology.topology import Topology, TopologyObserver
from tests.support.local_catalogue import LocalCatalogue


class Recorder(TopologyObserver):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def queue_added(self, queue: QueueRecord) -> None:
        self.heard.append(f"+queue {queue.name}")

    def queue_removed(self, queue: QueueRecord) -> None:
        self.heard.append(f"-queue {queue.name}")

    def exchange_added(self, exchange: ExchangeRecord) -> None:
        self.heard.append(f"+exchange {exchange.name}")

    def exchange_removed(self, exchange: ExchangeRecord) -> None:
        self.heard.append(f"-exchange {exchange.name}")

    def binding_added(self, binding: BindingRecord) -> None:
        self.heard.append(f"+binding {binding.source}>{binding.destination}")

    def binding_removed(self, binding: BindingRecord) -> None:
        self.heard.append(f"-binding {binding.source}>{binding.destination}")

    def topology_restored(self) -> None:
        self.heard.append("restored")


class Bench:
    """A topology whose invariants are checked after every command."""

    def __init__(self) -> None:
        self.catalogue = LocalCatalogue()
        self.topology = self.catalogue.topology
        self.recorder = Recorder()
        self.topology.observe(self.recorder)

    def apply(self, command: TopologyCommand) -> Any:
        """`Topology.apply` as the local catalogue calls it."""
        try:
            return self.catalogue.apply(command)
        finally:
            self.topology.check_invariants()

    def refused(self, command: TopologyCommand) -> str:
        before = self.topology.snapshot()
        with pytest.raises(AmqpError) as caught:
            self.apply(command)
        assert self.topology.snapshot() == before, "a refused command changes nothing"
        return caught.value.reply_text


@pytest.fixture
def bench() -> Bench:
    return Bench()


def queue(name: str, **fields: Any) -> DeclareQueue:
    return DeclareQueue("/", name, **fields)


def exchange(name: str, kind: str = "direct", **fields: Any) -> DeclareExchange:
    return DeclareExchange("/", name, kind, **fields)


def test_a_vhost_has_the_predeclared_exchanges(bench: Bench) -> None:
    types = {each.name: each.type for each in bench.topology.exchanges("/")}
    assert types == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }
    assert all(each.durable for each in bench.topology.exchanges("/"))


def test_declaring_a_queue_again_gives_the_same_life(bench: Bench) -> None:
    first: QueueRecord = bench.apply(queue("q", durable=True))
    assert bench.apply(queue("q", durable=True)) is first
    assert bench.topology.queue("/", "q") is first
    assert bench.topology.queue_by_id(first.queue_id) is first
    bench.apply(DeleteQueue("/", "q"))
    assert bench.apply(queue("q", durable=True)).queue_id != first.queue_id


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (queue("q"), "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
        (
            queue("q", durable=True, auto_delete=True),
            "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            queue("q", durable=True, arguments={"x-max-length": 10}),
            "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': "
            "received the value '10' of type 'signedint' but current is none",
        ),
    ],
)
def test_a_different_declaration_is_refused(bench: Bench, second: DeclareQueue, text: str) -> None:
    bench.apply(queue("q", durable=True))
    assert bench.refused(second) == f"PRECONDITION_FAILED - {text}"


def test_unknown_arguments_are_kept_and_not_compared(bench: Bench) -> None:
    record = bench.apply(queue("q", arguments={"x-custom": 1}))
    assert record.arguments == {"x-custom": 1}
    assert bench.apply(queue("q", arguments={"x-custom": 2})) is record


def test_saying_that_a_queue_is_classic_changes_nothing(bench: Bench) -> None:
    plain, said = bench.apply(queue("p")), bench.apply(queue("s", arguments={"x-queue-type": "classic"}))
    assert bench.apply(queue("p", arguments={"x-queue-type": "classic"})) is plain
    assert bench.apply(queue("s")) is said
    assert bench.refused(queue("p", arguments={"x-queue-type": "quorum"})) == (
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'p' in vhost '/': "
        "received the value 'quorum' of type 'longstr' but current is the value 'classic' of type 'longstr'"
    )


def test_an_exclusive_queue_is_locked_for_others_and_never_durable(bench: Bench) -> None:
    record = bench.apply(queue("q", durable=True, exclusive_owner="n1/a"))
    assert record.durable is False
    assert bench.apply(queue("q", durable=True, exclusive_owner="n1/a")) is record
    for other in ("n1/b", None):
        assert bench.refused(queue("q", exclusive_owner=other)).startswith(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'"
        )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x-message-ttl": -1}, "x-message-ttl"),
        ({"x-message-ttl": "5"}, "x-message-ttl"),
        ({"x-max-length": True}, "x-max-length"),
        ({"x-expires": 0}, "x-expires"),
        ({"x-queue-type": "quorum"}, "x-queue-type"),
        ({"x-queue-mode": "hungry"}, "x-queue-mode"),
        ({"x-queue-version": 3}, "x-queue-version"),
        ({"x-overflow": "explode"}, "x-overflow"),
        ({"x-max-priority": 256}, "x-max-priority"),
        ({"x-delivery-limit": 3}, "x-delivery-limit"),
        ({"x-single-active-consumer": "yes"}, "x-single-active-consumer"),
        ({"x-dead-letter-routing-key": "k"}, "x-dead-letter-routing-key"),
    ],
)
def test_a_bad_argument_is_named(bench: Bench, arguments: dict[str, Any], named: str) -> None:
    text = bench.refused(queue("q", arguments=arguments))
    assert text.startswith(f"PRECONDITION_FAILED - invalid arg '{named}' for queue 'q' in vhost '/'")


def test_arguments_for_features_of_queues_are_stored(bench: Bench) -> None:
    arguments = {
        "x-message-ttl": 0,
        "x-expires": 1000,
        "x-max-length": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "k",
        "x-max-priority": 10,
        "x-queue-mode": "lazy",
        "x-queue-type": "classic",
        "x-queue-version": 1,
        "x-overflow": "reject-publish",
    }
    assert bench.apply(queue("q", arguments=arguments)).arguments == arguments


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (queue("amq.mine"), 403),
        (exchange("amq.mine"), 403),
        (exchange(""), 403),
        (DeleteExchange("/", ""), 403),
        (DeleteExchange("/", "amq.topic"), 403),
        (Bind("/", "", "q", "queue", "k"), 403),
        (Unbind("/", "", "q", "queue", "q"), 403),
        (Bind("/", "amq.topic", "", "exchange", "k"), 403),
        (Bind("/", "missing", "q", "queue", "k"), 404),
        (Bind("/", "amq.topic", "missing", "queue", "k"), 404),
        (Bind("/", "amq.topic", "missing", "exchange", "k"), 404),
        (Bind("/", "amq.headers", "q", "queue", "", {"x-match": "some"}), 406),
        (exchange("amq.topic", "direct"), 406),
        (exchange("x", arguments={"alternate-exchange": 5}), 406),
        (exchange("x", "x-random"), 503),
        (DeclareQueue("nowhere", "q"), 530),
    ],
)
def test_what_is_refused(bench: Bench, command: TopologyCommand, code: int) -> None:
    bench.apply(queue("q"))
    with pytest.raises(AmqpError) as caught:
        bench.apply(command)
    assert caught.value.reply_code == code
    assert isinstance(caught.value, ConnectionFailure if code in (503, 530) else ChannelError)


def test_a_predeclared_exchange_may_be_declared_as_it_is(bench: Bench) -> None:
    assert bench.apply(exchange("amq.topic", "topic", durable=True)).name == "amq.topic"


def test_binding_twice_is_one_binding_and_arguments_make_another(bench: Bench) -> None:
    bench.apply(queue("q"))
    for arguments in ({}, {}, {"a": 1}, {"a": True}, {"a": 1}):
        bench.apply(Bind("/", "amq.direct", "q", "queue", "k", arguments))
    assert [each.arguments for each in bench.topology.bindings_from("/", "amq.direct")] == [{}, {"a": 1}, {"a": True}]
    bench.apply(Unbind("/", "amq.direct", "q", "queue", "k", {"a": True}))
    bench.apply(Unbind("/", "amq.direct", "q", "queue", "never bound"))
    assert len(bench.topology.bindings_from("/", "amq.direct")) == 2


def test_the_default_exchange_lists_a_binding_per_queue(bench: Bench) -> None:
    bench.apply(queue("q"))
    assert bench.topology.bindings("/") == [BindingRecord("/", "", "q", "queue", "q", {})]


def test_deleting_a_queue_removes_bindings_and_auto_delete_exchanges_in_a_chain(bench: Bench) -> None:
    bench.apply(queue("q"))
    bench.apply(exchange("far", auto_delete=True))
    bench.apply(exchange("near", auto_delete=True))
    bench.apply(exchange("idle", auto_delete=True))
    bench.apply(Bind("/", "far", "near", "exchange", "k"))
    bench.apply(Bind("/", "near", "q", "queue", "k"))
    bench.recorder.heard.clear()
    bench.apply(DeleteQueue("/", "q"))
    assert bench.recorder.heard == [
        "-binding near>q",
        "-binding far>near",
        "-exchange near",
        "-exchange far",
        "-queue q",
    ]
    assert bench.topology.exchange("/", "idle") is not None, "an exchange that never had a binding stays"


def test_a_chain_may_be_longer_than_the_stack(bench: Bench) -> None:
    """Whoever may declare exchanges can make one, and every node has to carry out what was committed."""
    before = list(bench.topology.exchanges("/"))
    topology = bench.catalogue.topology
    topology.apply(queue("q"), QueueId(1000))
    for number in range(2000):
        topology.apply(exchange(f"x{number}", auto_delete=True))
        to_queue = Bind("/", f"x{number}", "q", "queue", "")
        topology.apply(Bind("/", f"x{number}", f"x{number - 1}", "exchange", "") if number else to_queue)
    bench.apply(DeleteQueue("/", "q"))
    assert list(bench.topology.exchanges("/")) == before


def test_unbinding_the_last_binding_deletes_an_auto_delete_exchange(bench: Bench) -> None:
    bench.apply(queue("q"))
    bench.apply(exchange("x", auto_delete=True))
    bench.apply(Bind("/", "x", "q", "queue", "a"))
    bench.apply(Bind("/", "x", "q", "queue", "b"))
    bench.apply(Unbind("/", "x", "q", "queue", "a"))
    assert bench.topology.exchange("/", "x") is not None
    bench.apply(Unbind("/", "x", "q", "queue", "b"))
    assert bench.topology.exchange("/", "x") is None


def test_deleting_an_exchange_that_is_bound_to_itself(bench: Bench) -> None:
    bench.apply(exchange("x", auto_delete=True))
    bench.apply(Bind("/", "x", "x", "exchange", "k"))
    bench.recorder.heard.clear()
    bench.apply(DeleteExchange("/", "x"))
    assert bench.recorder.heard == ["-binding x>x", "-exchange x"]


def test_if_unused_protects_an_exchange_with_bindings(bench: Bench) -> None:
    bench.apply(queue("q"))
    bench.apply(exchange("x"))
    bench.apply(Bind("/", "x", "q", "queue", "k"))
    assert bench.refused(DeleteExchange("/", "x", if_unused=True)) == (
        "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    )
    bench.apply(DeleteExchange("/", "x"))
    assert bench.topology.bindings_to("/", "queue", "q") == []
    bench.apply(DeleteExchange("/", "x"))  # gone already: no error


def test_deleting_one_life_of_a_queue_spares_the_next(bench: Bench) -> None:
    first = bench.apply(queue("q"))
    assert bench.apply(DeleteQueue("/", "q", QueueId(first.queue_id + 99))) is None
    assert bench.apply(DeleteQueue("/", "q", first.queue_id)) is first
    assert bench.apply(DeleteQueue("/", "q")) is None


def test_deleting_a_vhost_returns_its_queues(bench: Bench) -> None:
    bench.apply(CreateVhost("v"))
    one = bench.apply(DeclareQueue("v", "one"))
    bench.apply(DeclareExchange("v", "x", "topic", auto_delete=True))
    bench.apply(Bind("v", "x", "one", "queue", "#"))
    kept = bench.apply(queue("kept"))
    assert bench.apply(DeleteVhost("v")) == (one,)
    assert bench.apply(DeleteVhost("v")) == ()
    assert bench.topology.vhosts() == ["/"]
    assert list(bench.topology.all_queues()) == [kept]


def test_a_snapshot_is_plain_and_restores_everything(bench: Bench) -> None:
    bench.apply(CreateVhost("v"))
    bench.apply(queue("q", exclusive_owner="n1/a", arguments={"x-max-length": 3}))
    bench.apply(exchange("x", "headers", auto_delete=True))
    bench.apply(Bind("/", "x", "q", "queue", "k", {"x-match": "any", "list": [1, "two", None]}))
    data = bench.topology.snapshot()
    copy = Topology()
    recorder = Recorder()
    copy.observe(recorder)
    copy.restore(json.loads(json.dumps(data, default=list)))
    copy.check_invariants()
    assert copy.snapshot() == data
    assert recorder.heard == ["restored"]
    copy.apply(Unbind("/", "x", "q", "queue", "k", {"x-match": "any", "list": [1, "two", None]}))
    assert copy.exchange("/", "x") is None
    assert LocalCatalogue(copy).apply(queue("next")).queue_id > bench.topology.queues("/")[0].queue_id
