"""A command that is carried out in pieces does what it does at once, and readers in between see whole queues."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from cluster.metadata.codec import CodecError, decode, decode_in_pieces, encode
from cluster.metadata.commands import ChangeTopology, Command, NodeDown, NodeUp, Request, RequestId, SetPolicy
from cluster.metadata.events import Applied
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.mastership import check_record
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from node.ids import Incarnation, NodeName
from node.pieces import Pieces, at_once
from node.topology.commands import Bind, CreateVhost, DeclareExchange, DeclareQueue, DeleteExchange, DeleteVhost
from tests.support.amounts import few_examples
from tests.support.hostile import well_formed_commands

N1, N2 = NodeName("n1"), NodeName("n2")
QUEUES = [f"q{number}" for number in range(12)]
BEGINNING: list[Command] = [
    ChangeTopology(CreateVhost("/"), N1),
    *(NodeUp(NodeName(node), Incarnation(1), "h:1", "h:2", NEWEST_PROTOCOL) for node in ("n1", "n2", "n3")),
    SetPolicy(PolicyRecord("/", "p", "^", {"ha-mode": "exactly", "ha-params": 2}, 0, "all")),
    *(
        ChangeTopology(DeclareQueue("/", name, durable=number % 3 > 0), NodeName(f"n{number % 3 + 1}"))
        for number, name in enumerate(QUEUES)
    ),
    ChangeTopology(DeclareExchange("/", "x", "topic", auto_delete=True), N1),
    *(ChangeTopology(Bind("/", "x", QUEUES[key % 12], "queue", f"k{key}", {}), N1) for key in range(200)),
]


def request(index: int, command: Command) -> Request:
    return Request(RequestId(N1, Incarnation(1), index), command)


def state_of(commands: list[Command]) -> MetadataState:
    state = MetadataState()
    for index, command in enumerate(commands, 1):
        state.apply(index, request(index, command))
    return state


def read_between(state: MetadataState, pieces: Pieces[Applied]) -> tuple[Applied, int]:
    """Carries it out, looks at everything between two pieces; returns what came of it, and how many there were."""
    count = 0
    while True:
        before = dict(state.masterships)
        try:
            next(pieces)
        except StopIteration as end:
            applied: Applied = end.value
            return applied, count
        count += 1
        state.check_invariants()
        for record in state.masterships.values():
            check_record(record)
        after = dict(state.masterships)
        changed = [queue_id for queue_id in before | after if before.get(queue_id) is not after.get(queue_id)]
        assert len(changed) <= 1, "a piece is about one queue"


@few_examples(15, 200, st.lists(well_formed_commands, max_size=15), st.integers(0, 2**32))
def test_in_pieces_is_the_same_as_at_once(commands: list[Command], seed: int) -> None:
    chance = Random(seed)
    large: list[Command] = [
        NodeDown(N2, Incarnation(1), chance.choice(("failure", "shutdown"))),
        NodeUp(N2, Incarnation(chance.randint(1, 2)), "h:1", "h:2", NEWEST_PROTOCOL),
        SetPolicy(PolicyRecord("/", "other", "^q1", {"ha-mode": "nodes", "ha-params": ["n3"]}, 3, "queues")),
        ChangeTopology(DeleteExchange("/", "x"), N1),
        ChangeTopology(DeleteVhost("/"), N1),
    ]
    cut, whole = state_of(BEGINNING), state_of(BEGINNING)
    history = [*commands, *chance.sample(large, 2)]
    chance.shuffle(history)
    for index, command in enumerate(history, len(BEGINNING) + 1):
        applied, _ = read_between(cut, cut.apply_in_pieces(index, request(index, command)))
        expected = whole.apply(index, request(index, command))
        assert (applied.result, str(applied.error), applied.events) == (
            expected.result,
            str(expected.error),
            expected.events,
        )
        assert cut.snapshot() == whole.snapshot()


def test_what_concerns_all_queues_has_a_piece_for_each() -> None:
    for command in (NodeDown(N2, Incarnation(1)), SetPolicy(PolicyRecord("/", "z", "^", {"max-length": 5}, 9, "all"))):
        state = state_of(BEGINNING)
        index = state.applied_index + 1
        _, count = read_between(state, state.apply_in_pieces(index, request(index, command)))
        assert count >= len(QUEUES)


def test_what_has_many_bindings_is_deleted_in_pieces() -> None:
    for command in (DeleteExchange("/", "x"), DeleteVhost("/")):
        state = state_of(BEGINNING)
        index = state.applied_index + 1
        _, count = read_between(state, state.apply_in_pieces(index, request(index, ChangeTopology(command, N1))))
        assert count >= 3
        assert state.topology.exchange("/", "x") is None
        assert not state.topology.bindings_from("/", "x")


def test_a_snapshot_is_read_beside_the_state_that_readers_see() -> None:
    source, target = state_of(BEGINNING), state_of(BEGINNING[:3])
    before, data = target.snapshot(), source.snapshot()
    pieces, count = target.restore_in_pieces(data), 0
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            leftovers = end.value
            break
        count += 1
        assert target.snapshot() == before
    assert count >= 2
    assert target.snapshot() == data
    for _ in leftovers:
        assert target.snapshot() == data
    target.check_invariants()


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=3000),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=6),
    max_leaves=60,
)


@few_examples(30, 300, values)
def test_what_is_decoded_in_pieces_is_what_was_encoded(value: object) -> None:
    data = encode(value)
    assert at_once(decode_in_pieces(data)) == decode(data) == value


@few_examples(30, 300, values, st.integers(0, 2**16), st.integers(0, 255))
def test_spoilt_bytes_are_refused_alike(value: object, at: int, byte: int) -> None:
    data = bytearray(encode(value))
    data[at % len(data)] = byte
    outcomes = []
    for read in (decode, lambda data: at_once(decode_in_pieces(data))):
        try:
            outcomes.append(repr(read(bytes(data))))
        except CodecError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]
