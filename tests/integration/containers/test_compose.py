"""The compose cluster, driven as an operator would: nothing confirmed is lost when a master's container is killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.support.compose_cluster import NODES, ComposeCluster, compose_cluster, docker_engine, eventually_answered
from tests.support.waiting import eventually_async

pytestmark = [pytest.mark.integration, pytest.mark.docker, pytest.mark.timeout(300)]

QUEUE = "orders"
#: Publishes that wait for their confirm at any moment, so that the kill interrupts many.
WINDOW = 64
#: Confirms seen before the kill, and again after the promotion.
CONFIRMED_COUNT = 1000
#: Deliveries that are held without an acknowledgement while the master dies.
PREFETCH_COUNT = 50
BODY_PADDING = b"." * 512
#: User id of the image's user.
WARREN_UID = "10001"
#: An orderly stop takes a second; what needs longer than this is killed by the engine and exits with 137.
STOP_GRACE_S = 10


@pytest.fixture
def cluster() -> Iterator[ComposeCluster]:
    with docker_engine() as engine, compose_cluster(engine) as running:
        yield running


class Publishers:
    """Numbered persistent messages, `WINDOW` of them on their way at a time."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self._numbers = itertools.count()
        self._is_stopping = False
        self._tasks = [asyncio.create_task(self._publish()) for _ in range(WINDOW)]
        self.published: set[int] = set()
        self.confirmed: set[int] = set()

    async def _publish(self) -> None:
        while not self._is_stopping:
            number = next(self._numbers)
            self.published.add(number)
            message = aio_pika.Message(
                BODY_PADDING, message_id=str(number), delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            # A refused message is not a lost one: it is simply not confirmed.
            with contextlib.suppress(aio_pika.exceptions.DeliveryError):
                await self._channel.default_exchange.publish(message, QUEUE, mandatory=False)
                self.confirmed.add(number)

    async def wait_confirmed(self, count: int) -> None:
        """Until ``count`` more are confirmed."""
        goal = len(self.confirmed) + count

        def has_come() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return len(self.confirmed) >= goal

        await eventually_async(has_come, f"{count} more confirms", 60)

    async def stop(self) -> None:
        """No new ones; every publish gets its answer."""
        self._is_stopping = True
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)


class Consumer:
    """Notes every delivery; acknowledges none before `release`, and then all."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[int, bool]] = []
        #: Set when as much is held as the prefetch count permits.
        self.prefetched = asyncio.Event()
        self._held: list[AbstractIncomingMessage] | None = []

    async def on_message(self, message: AbstractIncomingMessage) -> None:
        assert message.message_id is not None
        self.deliveries.append((int(message.message_id), bool(message.redelivered)))
        if self._held is None:
            await message.ack()
        else:
            self._held.append(message)
            if len(self._held) == PREFETCH_COUNT:
                self.prefetched.set()

    async def release(self) -> None:
        held, self._held = self._held or [], None
        for message in held:
            await message.ack()

    @property
    def delivered(self) -> set[int]:
        return {number for number, _ in self.deliveries}

    def unflagged_repetitions(self) -> list[int]:
        """Messages that came more than once without the flag."""
        counts = Counter(number for number, redelivered in self.deliveries if not redelivered)
        return [number for number, count in counts.items() if count > 1]


@contextlib.asynccontextmanager
async def open_channel(cluster: ComposeCluster, node: str, prefetch_count: int = 0) -> AsyncIterator[AbstractChannel]:
    """A channel with publisher confirms through one node."""
    async with await aio_pika.connect(cluster.amqp_url(node)) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=prefetch_count)
        yield channel


def mirror_by_age(cluster: ComposeCluster) -> None:
    """n3 becomes a mirror before n2, so that the oldest mirror is not also the first by name."""
    sync = {"ha-sync-mode": "automatic"}
    cluster.set_policy("n2", {"ha-mode": "nodes", "ha-params": ["n1", "n3"], **sync})
    eventually_answered(lambda: cluster.queue("n2", QUEUE).synchronised == ("n3",), "n3 is a synchronised mirror")
    cluster.set_policy("n2", {"ha-mode": "all", **sync})
    eventually_answered(
        lambda: cluster.queue("n2", QUEUE).synchronised == ("n3", "n2"), "n2 is one, too, and the younger"
    )
    assert cluster.queue("n2", QUEUE).master == "n1"


async def test_a_killed_masters_container_is_replaced_and_resynchronises(cluster: ComposeCluster) -> None:
    async with open_channel(cluster, "n1") as channel:
        await channel.declare_queue(QUEUE, durable=True)
    await asyncio.to_thread(mirror_by_age, cluster)

    consumer = Consumer()
    async with open_channel(cluster, "n2") as outgoing, open_channel(cluster, "n2", PREFETCH_COUNT) as incoming:
        publishers = Publishers(outgoing)
        await publishers.wait_confirmed(CONFIRMED_COUNT)
        queue = await incoming.get_queue(QUEUE)
        await queue.consume(consumer.on_message)
        async with asyncio.timeout(30):
            await consumer.prefetched.wait()

        await asyncio.to_thread(cluster.container("n1").kill, "SIGKILL")
        await asyncio.to_thread(
            eventually_answered, lambda: cluster.queue("n2", QUEUE).master != "n1", "somebody is promoted"
        )
        promoted = await asyncio.to_thread(cluster.queue, "n2", QUEUE)
        assert (promoted.master, promoted.synchronised) == ("n3", ("n2",))
        await publishers.wait_confirmed(CONFIRMED_COUNT)

        await asyncio.to_thread(cluster.container("n1").start)
        await asyncio.to_thread(
            eventually_answered,
            lambda: cluster.queue("n2", QUEUE).synchronised == ("n2", "n1"),
            "n1 is synchronised again",
        )
        await asyncio.to_thread(cluster.wait_ready)
        assert cluster.start_count("n1") == 2
        assert cluster.queue("n1", QUEUE).master == "n3"
        await publishers.wait_confirmed(CONFIRMED_COUNT)
        await publishers.stop()

        await consumer.release()
        await asyncio.to_thread(eventually_answered, lambda: depth(cluster) == 0, "the queue is drained")

    assert publishers.confirmed <= consumer.delivered, "confirmed and never delivered"
    assert consumer.delivered <= publishers.published
    assert consumer.unflagged_repetitions() == []
    assert any(redelivered for _, redelivered in consumer.deliveries), "what n1 had delivered is delivered again"


def depth(cluster: ComposeCluster) -> int:
    sample = cluster.queue("n1", QUEUE)
    return sample.messages_ready + sample.messages_unacked


async def test_a_node_stops_in_good_order_and_a_new_container_takes_over_its_volume(cluster: ComposeCluster) -> None:
    for node in NODES:
        processes = cluster.container(node).top()
        user_column = processes["Titles"].index("UID")
        assert {process[user_column] for process in processes["Processes"]} == {WARREN_UID}

    async with open_channel(cluster, "n3") as channel:
        await channel.declare_queue(QUEUE, durable=True)
        message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, QUEUE)

    old = cluster.container("n3")
    old.stop(timeout=STOP_GRACE_S)
    assert old.wait()["StatusCode"] == 0
    eventually_answered(lambda: sorted(cluster.running_nodes("n1")) == ["n1", "n2"], "n1 sees that n3 stopped")

    old.remove()
    cluster.compose("up", "--detach", "--no-deps", "n3")
    assert cluster.container("n3").id != old.id
    cluster.wait_ready()
    assert cluster.start_count("n3") == 2
    async with open_channel(cluster, "n1") as channel:
        received = await (await channel.get_queue(QUEUE)).get()
        assert received.body == b"kept"
        await received.ack()
