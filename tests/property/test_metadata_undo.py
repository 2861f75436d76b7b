"""A command that breaks off at any point leaves what was before: a twin that never met the mistake stays equal."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from cluster.metadata.commands import ChangeTopology, Command, ForgetNode, NodeUp, Request, RequestId, SetPolicy
from cluster.metadata.errors import ChangeFailedError
from cluster.metadata.kinds import NEWEST_PROTOCOL
from cluster.metadata.records import PolicyRecord
from cluster.metadata.state import MetadataState
from node.ids import Incarnation, NodeName
from node.topology.commands import CreateVhost, DeclareQueue
from tests.support.amounts import few_examples
from tests.support.hostile import BreakingEvents, well_formed_commands

N1 = NodeName("n1")
#: What every history begins with, so that the commands of the strategies find something.
BEGINNING: list[Command] = [
    ChangeTopology(CreateVhost("/"), N1),
    *(NodeUp(NodeName(node), Incarnation(1), "h:1", "h:2", NEWEST_PROTOCOL) for node in ("n1", "n2", "n3")),
    SetPolicy(PolicyRecord("/", "p", "^", {"ha-mode": "all", "max-length": 5}, 0, "all")),
    *(ChangeTopology(DeclareQueue("/", name, durable=True), N1) for name in ("a", "b")),
]


class Twins:
    """Two states with one log; the first meets the mistakes."""

    def __init__(self) -> None:
        self.first, self.second = MetadataState(), MetadataState()
        self.index = 0
        for command in BEGINNING:
            self.apply(command)

    def _request(self, command: Command) -> Request:
        return Request(RequestId(N1, Incarnation(1), self.index), command)

    def apply(self, command: Command) -> None:
        self.index += 1
        one, other = (state.apply(self.index, self._request(command)) for state in (self.first, self.second))
        assert str(one.error) == str(other.error)

    def break_off(self, command: Command, takes: int) -> None:
        """The mistake strikes after so many events of ``command``, if it has as many."""
        self.index += 1
        self.first._events = BreakingEvents(takes)
        applied = self.first.apply(self.index, self._request(command))
        self.first._events = []
        is_broken = isinstance(applied.error, ChangeFailedError)
        # To the twin the broken command is one that is refused: its id is used up, and nothing else happens.
        harmless = ForgetNode(NodeName("nobody"))
        self.second.apply(self.index, self._request(harmless if is_broken else command))
        self.first.check_invariants()


@few_examples(
    20,
    200,
    st.lists(well_formed_commands, max_size=20),
    well_formed_commands,
    st.lists(well_formed_commands, max_size=8),
    st.integers(0, 2),
    st.integers(0, 20),
    st.integers(0, 5),
)
def test_a_command_that_breaks_off_anywhere_has_changed_nothing(
    before: list[Command], breaking: Command, after: list[Command], takes: int, snapshot_at: int, snapshot_takes: int
) -> None:
    """A snapshot is begun at some entry, and in force some entries later."""
    twins = Twins()
    snapshot = b""
    for position, command in enumerate(before):
        if position == snapshot_at:
            snapshot = twins.first.snapshot()
            begun = twins.index
        if position == snapshot_at + snapshot_takes:
            twins.first.begin_history(snapshot, begun)
        twins.apply(command)
    twins.break_off(breaking, takes)
    for command in after:
        twins.apply(command)
    twins.break_off(breaking, takes)
    assert twins.first.snapshot() == twins.second.snapshot()


@pytest.mark.parametrize("takes", range(6))
def test_a_node_up_that_breaks_off_between_its_events(takes: int) -> None:
    """`NodeUp` of a returning node changes the member and both queues: four events, one after the other."""
    twins = Twins()
    twins.break_off(NodeUp(NodeName("n2"), Incarnation(2), "h:1", "h:2", NEWEST_PROTOCOL), takes)
    twins.apply(ChangeTopology(DeclareQueue("/", "c", durable=True), N1))
    assert twins.first.snapshot() == twins.second.snapshot()


def test_what_is_kept_of_the_past_are_the_bytes_of_the_log() -> None:
    twins = Twins()
    payloads = [past.payload for past in twins.first._history.past]
    assert all(isinstance(payload, bytes) for payload in payloads)
    twins.apply(ForgetNode(NodeName("nobody")))
    assert twins.first._history.past[-1].payload is None, "of a refused request only the id is needed"
