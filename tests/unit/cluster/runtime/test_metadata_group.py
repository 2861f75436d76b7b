"""How a change of the metadata is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, cast

import pytest

from cluster.metadata.codec import encode_request
from cluster.metadata.commands import (
    AddUser,
    ChangeTopology,
    Command,
    FoundCluster,
    NodeUp,
    Request,
    RequestId,
    SetPermissions,
    SetPolicy,
)
from cluster.metadata.errors import MalformedCommandError, RefusedChangeError
from cluster.metadata.records import PolicyRecord
from cluster.raft.config import ProposalRefusedError
from cluster.runtime.metadata_group import MetadataGroup
from cluster.transport.admin_port import ExitCode, exit_code_of
from node.auth import UserDirectory
from node.errors import ChannelError, ConnectionFailure
from node.ids import Incarnation, NodeName
from node.topology.commands import Bind, CreateVhost, DeclareExchange, DeclareQueue, DeleteExchange

N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")


class Log:
    """Commits at once; what the peers have applied is for the test to say."""

    def __init__(self) -> None:
        self.group = MetadataGroup(N1, Incarnation(1), UserDirectory())
        self.group.join(cast(Any, self))
        self.visible: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waited_for: Callable[[], Collection[NodeName]] | None = None
        self.index = 0
        self.has_quorum = True
        self.is_crowded = False

    async def propose(self, payload: bytes, request_id: RequestId) -> Any:
        if self.is_crowded:
            raise ProposalRefusedError("20000 proposals of this node wait already")
        if not self.has_quorum:
            raise TimeoutError("no leader")
        self.index += 1
        applied = self.group.apply(self.index, payload)
        if applied.error is not None:
            raise applied.error
        return applied.outcome

    def take_snapshot(self) -> None:
        self.group.snapshot_taken(self.index, b"".join(self.group.snapshot_pieces()))

    async def wait_visible(self, index: int, peers: Callable[[], Collection[NodeName]]) -> bool:
        self.waited_for = peers
        return await self.visible


@pytest.fixture
async def log() -> Log:
    log = Log()
    for node in (N1, N2):
        await log.group.change(NodeUp(node, Incarnation(1), f"{node}:1", f"{node}:2"))
    return log


async def test_a_client_is_answered_when_every_live_peer_has_applied_it(log: Log) -> None:
    answer = asyncio.create_task(log.group.submit(CreateVhost("/")))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not answer.done()
    assert log.waited_for is not None
    assert log.waited_for() == [N2], "the cluster does not know n3 as up"
    log.visible.set_result(True)
    await answer
    assert log.group.topology.vhosts() == ["/"]


async def test_a_peer_that_is_behind_delays_the_answer_and_does_not_refuse_it(log: Log) -> None:
    log.visible.set_result(False)
    await log.group.submit(CreateVhost("/"))
    assert log.group.topology.vhosts() == ["/"]


async def test_without_a_majority_the_client_is_told(log: Log) -> None:
    log.has_quorum = False
    with pytest.raises(ConnectionFailure, match="no leader") as caught:
        await log.group.submit(CreateVhost("/"))
    assert caught.value.reply_code == 541


@pytest.mark.parametrize("is_text", [False, True])
async def test_what_passes_for_a_part_of_the_log_never_gets_into_it(log: Log, is_text: bool) -> None:
    """A start after a crash could take it for one."""
    log.visible.set_result(True)
    await log.group.submit(CreateVhost("/"))
    before = log.index
    forged = "WRb1" + "\0" * 16
    arguments = {"x": forged if is_text else forged.encode()}
    with pytest.raises(ConnectionFailure, match="pass for a part of the log"):
        await log.group.submit(DeclareQueue("/", "q", arguments=arguments))
    assert log.index == before
    await log.group.submit(DeclareQueue("/", "q", arguments={"x": "of WRb1, a text"}))
    assert log.index == before + 1


async def test_a_client_is_told_of_a_change_that_cannot_be_written_down_or_carried_out(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectionFailure, match="INTERNAL_ERROR"):
        await log.group.submit(CreateVhost("\ud800"))
    with pytest.raises(ConnectionFailure, match="more than 255 bytes"):
        await log.group.submit(CreateVhost("v" * 256))

    def fail(_change: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(log.group.state, "_change_topology", fail)
    with pytest.raises(ConnectionFailure, match="a mistake of ours"):
        await log.group.submit(CreateVhost("v"))


async def test_what_cannot_be_written_down_uses_up_no_number(log: Log) -> None:
    """The numbers of proposals have no gaps: the state machine waits for those that are missing."""
    log.visible.set_result(True)
    with pytest.raises(ConnectionFailure):
        await log.group.submit(CreateVhost("\ud800"))
    await log.group.submit(CreateVhost("/"))
    log.group.state.check_invariants()
    assert log.group.state._requests.snapshot() == [["n1", 1, 3, []]]


async def test_what_is_refused_because_too_many_wait_uses_up_no_number(log: Log) -> None:
    """Else the numbers of what waits could be further apart than the state machine remembers."""
    log.visible.set_result(True)
    log.is_crowded = True
    for _ in range(3):
        with pytest.raises(ConnectionFailure, match="wait already"):
            await log.group.submit(CreateVhost("/"))
    log.is_crowded = False
    await log.group.submit(CreateVhost("/"))
    assert log.group.state._requests.snapshot() == [["n1", 1, 3, []]]


async def test_definitions_that_take_too_much_are_not_added_to(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that needs a snapshot gets it in one message."""
    log.visible.set_result(True)
    await log.group.submit(CreateVhost("/"))
    await log.group.submit(DeclareExchange("/", "old", "direct", True, False, False, {}))
    bind = Bind("/", "old", "amq.direct", "exchange", "key", {})
    await log.group.submit(bind)
    monkeypatch.setattr("cluster.runtime.metadata_size.SNAPSHOT_BYTES_MAX", 100)
    log.take_snapshot()
    await log.group.submit(bind)
    for growing in (
        ChangeTopology(CreateVhost("v"), N1),
        ChangeTopology(DeclareExchange("/", "new", "direct", True, False, False, {}), N1),
        AddUser("user", "hash"),
    ):
        with pytest.raises(ChannelError, match="delete queues, exchanges or bindings that nobody uses") as caught:
            await log.group.change(growing)
        assert caught.value.reply_code == 406
    await log.group.change(NodeUp(N3, Incarnation(1), "n3:1", "n3:2"))
    wanted = [log.group.wants_snapshot]
    await log.group.submit(DeleteExchange("/", "old"))
    wanted.append(log.group.wants_snapshot)
    monkeypatch.undo()
    log.take_snapshot()
    wanted.append(log.group.wants_snapshot)
    assert wanted == [False, True, False], "there may be room when something is gone"
    await log.group.submit(CreateVhost("v"))


async def test_what_goes_while_they_are_measured_may_be_what_was_too_much(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.visible.set_result(True)
    await log.group.submit(CreateVhost("/"))
    for name, size in (("small", 1), ("large", 500)):
        await log.group.submit(DeclareExchange("/", name, "direct", True, False, False, {"x": "y" * size}))
    monkeypatch.setattr("cluster.runtime.metadata_size.SNAPSHOT_BYTES_MAX", 500)
    log.take_snapshot()
    await log.group.submit(DeleteExchange("/", "small"))
    assert log.group.wants_snapshot
    index, pieces = log.index, log.group.snapshot_pieces()
    await log.group.submit(DeleteExchange("/", "large"))
    log.group.snapshot_taken(index, b"".join(pieces))
    assert log.group.wants_snapshot


async def test_a_snapshot_that_came_to_nothing_is_wanted_still(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full: whether there is room for more is as doubtful as before."""
    log.visible.set_result(True)
    await log.group.submit(CreateVhost("/"))
    await log.group.submit(DeclareExchange("/", "old", "direct", True, False, False, {}))
    monkeypatch.setattr("cluster.runtime.metadata_size.SNAPSHOT_BYTES_MAX", 100)
    log.take_snapshot()
    await log.group.submit(DeleteExchange("/", "old"))
    log.group.snapshot_pieces()
    assert log.group.wants_snapshot
    log.take_snapshot()
    assert not log.group.wants_snapshot


async def test_what_takes_too_much_may_be_made_smaller(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def policy(name: str, pattern: str) -> SetPolicy:
        return SetPolicy(PolicyRecord("/", name, pattern, {"ha-mode": "all"}, 0, "queues"))

    log.visible.set_result(True)
    await log.group.submit(CreateVhost("/"))
    await log.group.change(AddUser("user", "hash"))
    await log.group.change(policy("ha", "long" * 50))
    await log.group.change(SetPermissions("/", "user", "long", "long", "long"))
    monkeypatch.setattr("cluster.runtime.metadata_size.SNAPSHOT_BYTES_MAX", 100)
    log.take_snapshot()
    wanted = [log.group.wants_snapshot]
    for smaller in (policy("ha", "short"), SetPermissions("/", "user", "a", "b", "c")):
        await log.group.change(smaller)
        wanted.append(log.group.wants_snapshot)
        log.take_snapshot()
    assert wanted == [False, True, True]
    too_large = policy("ha", "longer"), policy("new", ""), SetPermissions("/", "user", "a", "b", "cd")
    for larger in too_large:
        with pytest.raises(ChannelError, match="are too many"):
            await log.group.change(larger)


async def test_nor_if_too_much_came_since_they_were_measured(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.visible.set_result(True)
    monkeypatch.setattr("cluster.runtime.metadata_size.ALTOGETHER_BYTES_MAX", 200)
    for number in range(5):
        await log.group.submit(CreateVhost(f"v{number}"))
    with pytest.raises(ChannelError, match="too many"):
        await log.group.submit(CreateVhost("one more"))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (ChangeTopology(CreateVhost("v" * 300), N1), "vhost: more than 255 bytes (a name may have 255)"),
        (AddUser("u" * 70_000, "hash"), "name: text of more than 65536 bytes"),
        (ChangeTopology(CreateVhost(""), N1), "a virtual host needs a name; an empty one means none"),
        (AddUser("", "hash"), "a user needs a name; an empty one means none"),
        (FoundCluster("", "guest", "hash"), "a virtual host needs a name; an empty one means none"),
        (FoundCluster("/", "", "hash"), "a user needs a name; an empty one means none"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_would_be_refused_for_what_it_says_is_not_proposed(
    log: Log, command: Command, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator's mistake: nothing of it is in the log of the metadata, nor in that of a node."""
    before = log.index
    with pytest.raises(RefusedChangeError) as caught:
        await log.group.change(command)
    assert str(caught.value) == text
    assert exit_code_of(caught.value) is ExitCode.SOFTWARE
    assert log.index == before
    assert caplog.records == []


async def test_what_another_release_proposed_for_all_that_is_refused_and_said_without_a_traceback(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    request = Request(RequestId(N2, Incarnation(1), 1), ChangeTopology(CreateVhost("v" * 300), N2))
    applied = log.group.apply(7, encode_request(request))
    assert isinstance(applied.error, MalformedCommandError)
    (record,) = caplog.records
    assert record.getMessage() == (
        "entry 7 (ChangeTopology) is refused: vhost: more than 255 bytes (a name may have 255)"
    )
    assert record.exc_info is None


async def test_bytes_that_are_no_command_are_passed_over_and_said(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    applied = log.group.apply(7, b"nonsense")
    assert applied.request_id is None
    assert log.group.state.applied_index == 7
    assert "entry 7 of the metadata log is no command" in caplog.text
