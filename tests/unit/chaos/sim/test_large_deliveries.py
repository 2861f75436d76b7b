"""Consumers on one node of many queues mastered on another share a link, and what may wait for that is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from chaos.sim.client import Channel, Delivered
from tests.support.sim_lab import Lab
from tests.unit.chaos.sim.conftest import SMALLER

#: Of one message, which a link of these tests bears five of.
BODY = bytes(1_200_000)
#: As large as a message may be, made smaller as the links are.
LARGEST = 128 * 1024 * 1024 // SMALLER
QUEUES = [f"q{number}" for number in range(8)]


def found(lab: Lab) -> None:
    """n2 masters the queues, each with one message, and is slow to reach n1."""
    lab.found()
    lab.declare("n2", *QUEUES)

    async def publish(channel: Channel) -> None:
        confirmed: asyncio.Queue[int] = asyncio.Queue()
        channel.on_confirm = lambda seq, _is_multiple, _is_ack: confirmed.put_nowait(seq)
        await channel.confirm_select()
        for queue in QUEUES:
            channel.publish(queue, BODY)
            await confirmed.get()

    lab.use_channel("n2", publish)
    lab.cluster.slow_link("n2", "n1", 100)


def taken(lab: Lab, take: Callable[[str, Channel], Coroutine[Any, Any, tuple[int, bool]]]) -> list[tuple[int, bool]]:
    """By a client of n1 from each queue, at once: size and redelivered flag."""
    tasks = [lab.begin_to_use("n1", partial(take, queue)) for queue in QUEUES]
    end_s = lab.loop.now_s + 60
    while not all(task.done() for task in tasks) and lab.loop.now_s < end_s:
        lab.pass_time(0.1)
        lab.check_invariants()
    return [task.result() for task in tasks if task.done()]


def test_large_messages_of_some_queues_at_once_do_not_reset_the_link(lab: Lab, resets: list[str]) -> None:
    found(lab)

    async def consume(queue: str, channel: Channel) -> tuple[int, bool]:
        came: asyncio.Future[Delivered] = asyncio.get_running_loop().create_future()
        channel.on_deliver = came.set_result
        await channel.consume(queue, "tag")
        delivered = await came
        channel.ack(delivered.delivery_tag)
        return len(delivered.body), delivered.is_redelivered

    assert taken(lab, consume) == [(len(BODY), False)] * len(QUEUES)
    assert resets == []


def test_nor_do_answers_to_gets(lab: Lab, resets: list[str]) -> None:
    found(lab)

    async def get(queue: str, channel: Channel) -> tuple[int, bool]:
        delivered = await channel.get(queue, no_ack=True)
        assert delivered is not None
        return len(delivered.body), delivered.is_redelivered

    assert taken(lab, get) == [(len(BODY), False)] * len(QUEUES)
    assert resets == []


def test_the_largest_message_goes_to_a_mirror_and_to_a_consumer_on_one_node_at_once(
    lab: Lab, resets: list[str]
) -> None:
    lab.found()
    lab.set_policy("n2", {"ha-mode": "all"})
    lab.declare("n2", "q")
    came: list[int] = []

    async def consume(channel: Channel) -> None:
        channel.on_deliver = lambda delivered: came.append(len(delivered.body))
        await channel.consume("q", "tag")
        await asyncio.sleep(30)

    consumer = lab.begin_to_use("n1", consume)
    lab.pass_time(1)

    async def publish(channel: Channel) -> None:
        channel.publish("q", bytes(LARGEST))

    lab.use_channel("n2", publish)
    lab.pass_time(20)
    consumer.cancel()
    assert came == [LARGEST]
    assert resets == []
