"""What every target promises, on real clusters: one text for all kinds. Nodes are as they were when a test begins."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
import pytest_asyncio
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPConnectionError

from chaos.harm.journal import Journal
from chaos.harm.lines import CLIENTS, Line
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets import compose, rabbitmq
from chaos.targets.target import NodeFacts, NotNow, QueueView, Target, TargetError
from tests.support.begin_target import TARGETS
from tests.support.left_over import assert_nothing_left, listening, mark_of, mounts_in
from tests.support.pika_clients import drain

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

#: Far more than anything takes on an idle machine.
TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
MIRRORED = {"ha-mode": "all", "ha-sync-mode": "automatic"}
UNSYNCHRONISED = {"ha-mode": "all", "ha-sync-mode": "manual"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)  # type: ignore[no-untyped-call]


MAKERS: Mapping[str, Callable[[Path, Journal], Target]] = {**TARGETS, "compose": compose.ComposeTarget}


@pytest.fixture(scope="module", params=[*sorted(TARGETS), pytest.param("compose", marks=pytest.mark.docker)])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "rabbitmq" and (why := rabbitmq.why_none()):
        pytest.skip(why)
    if request.param == "compose" and (why := compose.why_none()):
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def begun(kind: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    """With all that it can have."""
    directory = tmp_path_factory.mktemp(kind)
    with Journal(directory) as journal:
        target = MAKERS[kind](directory / "cluster", journal)
        await target.start(ClusterPlan(nodes=3), target.capabilities)
        try:
            yield target
        finally:
            await target.close()


@pytest_asyncio.fixture(loop_scope="module")
async def target(begun: Target) -> Target:
    """Whatever a test that failed has left behind."""
    for node in (1, 2, 3):
        if not begun.is_running(node):
            await begun.resume(node)
        if not begun.is_running(node):
            await begun.start_node(node)
    await begun.wait_ready()
    return begun


def require(target: Target, capability: Capability) -> None:
    if capability not in target.capabilities:
        pytest.skip(target.missing[capability])


def has_log(facts: NodeFacts) -> bool:
    return Path(facts.log).is_file()


# --- clients


@contextmanager
def channel(target: Target, node: int) -> Iterator[BlockingChannel]:
    [url] = [each.url for each in target.endpoints if each.node == node]
    connection = BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        with suppress(AMQPConnectionError):
            connection.close()


async def publish(
    target: Target, queue: str, count: int, node: int = 1, arguments: dict[str, Any] | None = None
) -> None:
    """Declare it there if it is not, and have so many messages confirmed."""

    def publish_all() -> None:
        with channel(target, node) as there:
            there.queue_declare(queue, durable=True, arguments=arguments)
            there.confirm_delivery()
            for number in range(count):
                there.basic_publish("", queue, b"%d" % number, PERSISTENT)

    await asyncio.to_thread(publish_all)


async def taken(target: Target, queue: str, node: int) -> list[bytes]:
    def take_all() -> list[bytes]:
        with channel(target, node) as there:
            return drain(there, queue)

    return await asyncio.to_thread(take_all)


# --- operators


async def view(target: Target, queue: str, condition: Callable[[QueueView], object], node: int = 2) -> QueueView:
    """The first that fulfils it."""
    seen: object = None
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            seen = await target.operator(node).queues()
            for each in seen:
                if each.queue == queue and condition(each):
                    return each
        except NotNow as error:
            seen = error
        await asyncio.sleep(POLL_INTERVAL_S)
    raise AssertionError(f"queue {queue} is not as it should be; n{node} said {seen!r}")


async def wait_running(target: Target, numbers: list[int], seen_by: int) -> None:
    seen: object = None
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            seen = await target.operator(seen_by).running()
        except NotNow as error:
            seen = error
        if seen == numbers:
            return
        await asyncio.sleep(POLL_INTERVAL_S)
    raise AssertionError(f"n{seen_by} does not see {numbers}, but {seen!r}")


async def mirrored(target: Target, queue: str, policy: dict[str, str] = MIRRORED) -> QueueView:
    """A queue with 100 messages, its master on n1, synchronised mirrors on n2 and n3."""
    await target.operator(1).set_policy(queue, f"^{queue}$", policy)
    await publish(target, queue, 0)
    await view(target, queue, lambda seen: len(seen.synchronised) == 2)
    await publish(target, queue, 100)
    return await view(target, queue, lambda seen: len(seen.synchronised) == 2 and seen.ready == 100)


# --- what is promised


async def test_every_node_serves_clients_and_tells_of_queues(target: Target) -> None:
    assert [each.node for each in target.endpoints] == [facts.number for facts in target.nodes] == [1, 2, 3]
    assert all(map(has_log, target.nodes))
    await publish(target, "plain", 7)
    for node in (1, 2, 3):
        seen = await view(target, "plain", lambda seen: seen.ready == 7, node)
        assert seen.incarnation, "it names this life of the master"
        assert replace(seen, incarnation="") == QueueView("plain", master=1, ready=7, unacked=0)
    assert await taken(target, "plain", 3) == [b"%d" % number for number in range(7)]
    await wait_running(target, [1, 2, 3], 2)


async def test_policies_are_set_and_cleared(target: Target) -> None:
    seen = await mirrored(target, "policed")
    assert (seen.master, set(seen.mirrors), set(seen.synchronised)) == (1, {2, 3}, {2, 3})
    await target.operator(3).clear_policy("policed")
    await view(target, "policed", lambda seen: not seen.mirrors)
    with pytest.raises(TargetError):
        await target.operator(3).set_policy("policed", "^policed", {"ha-mode": "sometimes"})


async def test_another_node_leads_when_the_master_is_killed(target: Target) -> None:
    await mirrored(target, "failing")
    await target.kill([1])
    assert [node for node in (1, 2, 3) if target.is_running(node)] == [2, 3]
    seen = await view(target, "failing", lambda seen: seen.master not in (1, None) and seen.ready == 100)
    assert 1 not in seen.mirrors
    with pytest.raises(NotNow):
        await target.operator(1).queues()
    with pytest.raises(AMQPConnectionError):
        await publish(target, "failing", 1, node=1)
    await target.start_node(1)
    await target.wait_ready()
    await view(target, "failing", lambda seen: 1 in seen.synchronised)
    assert await taken(target, "failing", 1) == [b"%d" % number for number in range(100)]


async def test_all_are_killed_at_once(target: Target) -> None:
    """They come back, in whatever order. What they have kept is the broker's to promise."""
    await target.kill([1, 2, 3])
    assert not any(map(target.is_running, (1, 2, 3)))
    for node in (3, 2, 1):
        await target.start_node(node)
    await target.wait_ready()
    await wait_running(target, [1, 2, 3], 2)
    await publish(target, "after all", 1)


async def test_a_node_that_runs_is_not_begun_again(target: Target) -> None:
    with pytest.raises(TargetError, match="n2 runs already"):
        await target.start_node(2)


async def test_a_node_stands_still_and_goes_on(target: Target) -> None:
    await target.pause(3)
    assert not target.is_running(3)
    with pytest.raises(NotNow):
        await target.operator(3).queues()
    await target.resume(3)
    assert target.is_running(3)
    await target.wait_ready()


async def test_a_node_that_stands_still_can_be_stopped_and_killed(target: Target) -> None:
    await target.pause(2)
    await target.stop(2)
    assert not target.is_running(2)
    with pytest.raises(TargetError, match="n2 does not run"):
        await target.pause(2)
    await target.start_node(2)
    await target.wait_ready()
    await target.pause(2)
    await target.kill([2])
    await target.start_node(2)
    assert target.is_running(2)
    await target.wait_ready()


async def test_a_node_is_stopped_and_the_others_know_at_once(target: Target) -> None:
    await target.stop(3)
    assert not target.is_running(3)
    await wait_running(target, [1, 2], 1)
    await target.start_node(3)
    await target.wait_ready()
    await wait_running(target, [1, 2, 3], 1)


async def test_a_mirror_that_lacks_something_is_filled_when_it_is_told(target: Target) -> None:
    await mirrored(target, "filled", UNSYNCHRONISED)
    await target.kill([3])
    await publish(target, "filled", 1)
    await target.start_node(3)
    await target.wait_ready()
    await view(target, "filled", lambda seen: seen.mirrors == (2, 3) and seen.synchronised == (2,))
    await target.operator(2).sync("filled")
    await view(target, "filled", lambda seen: seen.synchronised == (2, 3))
    await target.operator(2).cancel_sync("filled")
    with pytest.raises(TargetError):
        await target.operator(2).sync("of nobody")


async def test_a_queue_is_purged(target: Target) -> None:
    await publish(target, "purged", 20)
    await view(target, "purged", lambda seen: seen.ready == 20)
    await target.operator(3).purge("purged")
    await view(target, "purged", lambda seen: seen.ready == 0)
    with pytest.raises(TargetError):
        await target.operator(3).purge("of nobody")


@pytest.mark.parametrize(
    ("fault", "capability", "arguments"),
    [
        ("memory alarm", Capability.MEMORY_ALARM, {}),
        # Less than the brokers' limit of free room.
        ("fill disk", Capability.FILL_DISK, {"leave": 10_000_000}),
    ],
)
async def test_publishers_are_blocked_by_an_alarm(
    target: Target, fault: str, capability: Capability, arguments: dict[str, Any]
) -> None:
    require(target, capability)
    await publish(target, "alarmed", 0)
    with channel(target, 1) as there:
        blocked: list[bool] = []
        there.connection.add_on_connection_blocked_callback(lambda *_: blocked.append(True))
        there.connection.add_on_connection_unblocked_callback(lambda *_: blocked.append(False))

        def publish_until(wanted: list[bool]) -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while blocked != wanted:
                assert time.monotonic() < deadline, f"it was {blocked}, and should be {wanted}"
                if not blocked:
                    there.basic_publish("", "alarmed", b"")
                there.connection.process_data_events(POLL_INTERVAL_S)

        await target.hurt(fault, 2, arguments)
        await asyncio.to_thread(publish_until, [True])
        await target.unhurt(fault, 2)
        await asyncio.to_thread(publish_until, [True, False])


async def test_what_a_node_has_not_cannot_be_hurt(target: Target) -> None:
    with pytest.raises(TargetError, match="nobody here knows how to do 'sing'"):
        await target.hurt("sing", 1, {})


async def test_a_fault_of_a_node_that_is_down_can_end(target: Target) -> None:
    require(target, Capability.MEMORY_ALARM)
    await target.hurt("memory alarm", 3, {})
    await target.kill([3])
    await target.unhurt("memory alarm", 3)
    await target.start_node(3)
    await target.wait_ready()


async def test_syncs_are_slow_until_they_are_not(target: Target) -> None:
    """A confirm of what is written cannot come before the sync that took so long."""
    require(target, Capability.SLOW_DISK)
    await publish(target, "slow", 1)
    await target.hurt("slow disk", 1, {"latency": 0.5})
    begun_s = time.monotonic()
    await publish(target, "slow", 1)
    assert time.monotonic() - begun_s >= 0.5
    await target.unhurt("slow disk", 1)
    await publish(target, "slow", 1)


async def test_clients_are_cut_off_from_one_node(target: Target) -> None:
    require(target, Capability.CLIENT_LINES)
    assert target.lines is not None
    assert {Line(CLIENTS, node) for node in (1, 2, 3)} <= target.lines.lines
    await target.lines.lay(1, "cut", [Line(CLIENTS, 1)], {})
    with pytest.raises(AMQPConnectionError):
        await publish(target, "cut off", 1, node=1)
    await publish(target, "cut off", 1, node=2)
    await target.lines.lift(1)
    await publish(target, "cut off", 1, node=1)


async def test_a_node_is_cut_off_from_the_others(target: Target) -> None:
    require(target, Capability.NODE_LINES)
    assert target.lines is not None
    lines = [Line(*ends) for ends in ((3, 1), (1, 3), (3, 2), (2, 3))]
    await target.lines.lay(2, "black hole", lines, {})
    await wait_running(target, [1, 2], 1)
    await publish(target, "of the majority", 1, node=2)
    await target.lines.lift(2)
    await wait_running(target, [1, 2, 3], 1)
    await target.wait_ready()


async def test_a_node_is_disconnected_and_connected(target: Target) -> None:
    require(target, Capability.DISCONNECT)
    await mirrored(target, "connected")
    await target.hurt("disconnect", 1, {})
    seen = await view(target, "connected", lambda seen: seen.master not in (1, None) and seen.ready == 100, 2)
    assert 1 not in seen.synchronised
    with pytest.raises(AMQPConnectionError):
        await publish(target, "connected", 1, node=1)
    await target.unhurt("disconnect", 1)
    await target.wait_ready()
    await view(target, "connected", lambda seen: 1 in seen.synchronised, 2)
    assert len(await taken(target, "connected", 1)) == 100


async def test_a_node_without_its_disk_joins_as_a_new_one(target: Target) -> None:
    require(target, Capability.WIPE_DISK)
    await mirrored(target, "rejoined")
    await publish(target, "alone", 1, node=3)
    agreed = {1, 2, 3} if target.kind == "rabbitmq" else set()
    if agreed:
        await publish(target, "agreed", 5, arguments={"x-queue-type": "quorum"})
        seen = await view(target, "agreed", lambda seen: len(seen.synchronised) == 2 and seen.ready == 5)
        assert {seen.master, *seen.mirrors} == agreed
    await target.wipe(3)
    assert target.is_running(3)
    await target.wait_ready()
    if agreed:
        await view(target, "agreed", lambda seen: {seen.master, *seen.synchronised} == agreed and seen.ready == 5)
    await wait_running(target, [1, 2, 3], 1)
    seen = await view(target, "rejoined", lambda seen: 3 in seen.synchronised)
    assert (seen.master, seen.mirrors) == (1, (2, 3))
    assert "alone" not in [each.queue for each in await target.operator(1).queues()], "nobody else had it"
    await target.kill([1, 2])
    await target.start_node(1)
    await target.start_node(2)
    await target.wait_ready()
    assert len(await taken(target, "rejoined", 3)) == 100


# --- the end


def containers_left() -> list[str]:
    """Of clusters that were begun by the laboratory."""
    engine = compose.engine()
    if isinstance(engine, str):
        return []
    try:
        found = engine.containers.list(all=True, filters={"name": "warren-chaos-"})
        return [str(container.name) for container in found]
    finally:
        engine.close()


async def test_closing_leaves_nothing(begun: Target) -> None:
    """The last of those on this cluster."""
    directory = Path(begun.nodes[0].log).parents[1]
    mark = mark_of(directory)
    ports = listening(mark)
    assert len(ports) >= 6 or begun.kind == "compose", "two of each node, if it is a process"
    assert len(mounts_in(directory)) == (3 if Capability.FILL_DISK in begun.capabilities else 0)
    await begun.close()
    assert_nothing_left(directory, mark, ports)
    assert containers_left() == []
    await begun.close()
