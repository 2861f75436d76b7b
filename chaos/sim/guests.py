"""Clients with ways of their own: transactions, and queues that belong to a connection or end with their consumers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from chaos.history import Kind, ProcKind
from chaos.sim.client import Channel, ClosedError
from chaos.sim.consumers import Visitor
from chaos.sim.workload import TROUBLE, Client, Surroundings
from chaos.workload.message_id import MIN_BODY_BYTES, MessageId, encode_body

#: Publisher numbers of those who publish in transactions begin here.
FIRST_TRANSACTOR = 100
#: A guest keeps what it has for so long before it hangs up.
STAY_S = 1.5
#: In a transaction of which some message was refused: what came of the others nobody knows.
PARTIAL_COMPLETION = 406


class Transaction(NamedTuple):
    """Messages that are published together or not at all."""

    queue: int
    first_seq: int
    size: int
    body_bytes: int
    is_persistent: bool
    is_committed: bool
    attempt: int = 1


class Transactor(Client):
    """Publishes in transactions, one after the other. What was not committed must never be delivered."""

    def __init__(self, number: int, world: Surroundings, queue_name: Callable[[int], str]) -> None:
        super().__init__(f"t{number}", world, ProcKind.PUBLISHER)
        self.number = FIRST_TRANSACTOR + number
        self._queue_name = queue_name
        self._last_seq = 0
        self._due: deque[Transaction] = deque()
        self._is_working = False

    def tell(self, queue: int, count: int, body_bytes: int, is_persistent: bool, is_committed: bool) -> None:
        self._due.append(Transaction(queue, self._last_seq + 1, count, body_bytes, is_persistent, is_committed))
        self._last_seq += count
        self._go_on()

    @property
    def is_idle(self) -> bool:
        return not self._due

    async def begin(self, channel: Channel) -> None:
        await channel.tx_select()
        self.channel = channel
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_working and self.channel is not None and self.channel.closed is None and self._due:
            self._is_working = True
            self.process.create_task(self._work(self.channel))

    async def _work(self, channel: Channel) -> None:
        while self._due and channel.closed is None:
            done = await self._try(channel, self._due[0])
            if done:
                self._due.popleft()
            else:
                self._due[0] = self._due[0]._replace(attempt=self._due[0].attempt + 1)
        self._is_working = False
        self._go_on()

    async def _try(self, channel: Channel, transaction: Transaction) -> bool:
        """Whether that is all that is to be done about it."""
        kind, is_done = Kind.NACK, True  # what was never committed is nothing
        channel_id, sent_us = self.channel_id, None
        try:
            self._publish(channel, channel_id, transaction)
            if transaction.is_committed:
                kind = Kind.PUB_UNKNOWN
                sent_us = await channel.tx_commit()
                kind = Kind.CONFIRM
                self.world.note("a transaction was committed")
            else:
                await channel.tx_rollback()
                self.world.note("a transaction was rolled back")
        except ClosedError as error:
            is_done = not transaction.is_committed or error.code == PARTIAL_COMPLETION
        self._record(kind, channel_id, transaction, sent_us)
        return is_done

    def _publish(self, channel: Channel, channel_id: int, transaction: Transaction) -> None:
        self._record(Kind.PUB_INVOKE, channel_id, transaction)
        for seq in range(transaction.first_seq, transaction.first_seq + transaction.size):
            message = MessageId(self.number, seq, transaction.attempt)
            body = encode_body(self.world.run_tag, message, max(transaction.body_bytes, MIN_BODY_BYTES))
            attempt = (transaction.queue, self.number, seq, transaction.attempt)
            if not transaction.is_persistent:
                self.world.transient.add(attempt)
            if transaction.size > 1:
                self.world.joint.add(attempt)
            channel.publish(self._queue_name(transaction.queue), body, is_persistent=transaction.is_persistent)

    def _record(self, kind: Kind, channel_id: int, transaction: Transaction, sent_us: int | None = None) -> None:
        for seq in range(transaction.first_seq, transaction.first_seq + transaction.size):
            self.log.record(
                kind,
                t_lo_us=sent_us,
                queue_id=transaction.queue,
                pub_id=self.number,
                seq=seq,
                attempt=transaction.attempt,
                channel_id=channel_id,
                body_bytes=transaction.body_bytes,
            )


class Guest(Visitor):
    """Declares a queue that must not outlive its connection, or its last consumer, uses it and hangs up."""

    def __init__(
        self,
        number: int,
        world: Surroundings,
        queue_name: Callable[[int], str],
        *,
        is_remembered: bool,
        may_skip: Callable[[str], bool],
    ) -> None:
        """``is_remembered``: the cluster has that a queue was consumed committed; no member is of a release before
        that, where a queue may stay if everybody who knew of its consumer ends. ``may_skip``: of a queue,
        a policy may drop what is at its head, or a disk may have ended the copy that had it."""
        super().__init__(f"g{number}", world, queue_name)
        self._is_remembered = is_remembered
        self._may_skip = may_skip
        self._visits = 0
        self._staying = 0
        #: Queues whose end nobody has been promised: they may be left.
        self.may_stay: dict[str, None] = {}

    @property
    def is_gone(self) -> bool:
        return not self._staying

    def visit(self, kind: str) -> None:
        """``kind``: "exclusive", "auto_delete", or "paged": exclusive, not durable, and its messages are on the
        disk before somebody consumes them."""
        self._visits += 1
        is_paged = kind == "paged"
        self.process.create_task(self._visit(f"{self.name}.{self._visits}", is_paged or kind == "exclusive", is_paged))

    async def _visit(self, name: str, is_exclusive: bool, is_paged: bool) -> None:
        self._staying += 1

        async def use(channel: Channel) -> None:
            if not is_exclusive:
                self.may_stay[name] = None  # until it has had a consumer
            sent = [b"%d" % number for number in range(5)]
            arguments = {"x-queue-mode": "lazy"} if is_paged else {}
            await channel.declare(
                name, durable=not is_paged, arguments=arguments, exclusive=is_exclusive, auto_delete=not is_exclusive
            )
            if is_paged:
                for body in sent:
                    channel.publish(name, body)
                await asyncio.sleep(STAY_S)
            got: list[bytes] = []
            channel.on_deliver = lambda delivered: got.append(delivered.body)  # the first may come with the answer
            await channel.consume(name, "tag", no_ack=True)
            if self._is_remembered:
                self.may_stay.pop(name, None)
            self.world.note("an exclusive queue was used" if is_exclusive else "an auto-delete queue was used")
            for body in () if is_paged else sent:
                channel.publish(name, body)
            await asyncio.sleep(STAY_S)
            # Without acknowledgements a failover loses what was on its way; the master of an exclusive queue has none.
            is_in_order = got == sorted(set(got)) if self._may_skip(name) else got == sent[: len(got)]
            is_right = set(got) <= set(sent) and (is_in_order or not is_exclusive)
            if not is_right:
                raise AssertionError(f"{name}: sent {sent}, got {got}")

        try:
            await self.request(use)
        except TROUBLE:
            pass
        finally:
            self._staying -= 1
