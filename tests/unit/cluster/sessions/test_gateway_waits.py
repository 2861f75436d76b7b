"""How long a gateway waits before it asks again, and before it gives up: in virtual time. The master is this node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from chaos.sim.loop import simulated_loop
from cluster.sessions.gateway import ClusterGateway
from node.errors import ChannelError
from node.ids import Epoch, QueueId
from node.queues.backing_queue import NO_LIMIT_BYTES, Delivery
from tests.support.queue_bench import SteeredQueue
from tests.support.session_network import QUEUE, RecordingSink, SessionNetwork, message, record


class SlowQueue(SteeredQueue):
    """Its message is ready, and may be delivered only after so many tries."""

    def __init__(self, tries: float) -> None:
        super().__init__()
        self.tries_left = tries

    def fetch(self, count_max: int, ack_required: bool, bytes_max: int = NO_LIMIT_BYTES) -> list[Delivery]:
        self.tries_left -= 1
        return super().fetch(count_max, ack_required, bytes_max) if self.tries_left <= 0 else []


class LateMaster(SessionNetwork):
    """n2 is named the master, and takes service after it was asked so often for its epoch."""

    def __init__(self, asked: float) -> None:
        super().__init__("n2")
        self.current = record("n2", 1)
        self["n2"].serving_epoch = self.serving_epoch  # type: ignore[method-assign]
        self.asked_left = asked

    def serving_epoch(self, queue_id: QueueId) -> Epoch | None:
        self.asked_left -= 1
        return Epoch(1) if self.asked_left <= 0 else None


def seconds_of(
    question: Callable[[ClusterGateway], Awaitable[object]], queue: SteeredQueue, late: float = 0
) -> tuple[float, object]:
    """How long it took, and the answer or the refusal."""
    loop = simulated_loop()

    async def ask() -> object:
        network = LateMaster(late)
        network["n2"].master(queue)
        gateway = network["n2"].gateway
        gateway.publish(gateway.open_channel(RecordingSink()), QUEUE, [message(1, b"a")], [0])
        try:
            return await question(gateway)
        except ChannelError as error:
            return error

    try:
        begin_s = loop.time()
        answer = loop.run_until_complete(ask())
        return loop.time() - begin_s, answer
    finally:
        loop.close()


async def get(gateway: ClusterGateway) -> bytes | None:
    got = await gateway.get(gateway.open_channel(RecordingSink()), QUEUE, no_ack=True)
    return None if got is None else got[1].message.body


async def delete_if(gateway: ClusterGateway) -> object:
    return await gateway.delete_if(QUEUE, if_unused=False, if_empty=False)


def test_a_message_that_can_be_delivered_soon_is_got_soon() -> None:
    took_s, body = seconds_of(get, SlowQueue(tries=3))
    assert body == b"a"
    assert 0 < took_s <= 0.01, "a round trip to a mirror takes no longer"


def test_a_queue_from_which_nothing_can_be_got_is_called_empty_after_the_time_of_any_other_answer() -> None:
    took_s, body = seconds_of(get, SlowQueue(tries=float("inf")))
    assert body is None
    assert took_s == pytest.approx(15, abs=0.1)


def test_a_queue_whose_master_is_about_to_serve_is_deleted_when_it_does() -> None:
    took_s, answer = seconds_of(delete_if, SteeredQueue(), late=3)
    assert answer == (1, 1)
    assert 0 < took_s <= 0.1, "some commits"


def test_a_queue_whose_master_does_not_come_to_serve_is_not_deleted() -> None:
    took_s, refusal = seconds_of(delete_if, SteeredQueue(), late=float("inf"))
    assert isinstance(refusal, ChannelError)
    assert (refusal.reply_code, "try again" in refusal.reply_text) == (404, True)
    assert took_s == pytest.approx(10, abs=0.01)
