"""What publishers and consumers have in common: one channel after the other, at one endpoint after the other."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from chaos.clients.adapter import DeliveringChannel
from chaos.clients.link import Link, LinkError, Over
from chaos.clients.options import Orders
from chaos.clients.ports import ChannelNumbers
from chaos.record.kinds import Ending
from chaos.record.process_record import ProcessRecord

MS_PER_S = 1000


@dataclass(slots=True)
class Counts:
    """How a process, or a part of it, stands."""

    published: int = 0
    confirmed: int = 0
    #: Attempts that were.
    refused: int = 0
    given_up: int = 0
    delivered: int = 0
    #: Of those, the flagged ones.
    redelivered: int = 0
    acknowledged: int = 0
    proven: int = 0
    #: A publisher's attempts without an answer; a consumer's deliveries that are not settled, or not proven to be.
    outstanding: int = 0
    #: A consumer's deliveries that are not settled.
    held: int = 0
    #: Messages that are to be attempted again.
    waiting: int = 0
    #: Channels that are open.
    connected: int = 0
    lag_us: int = 0
    #: A publisher: all messages have come to their end, and no more are to come.
    is_drained: bool = True

    def add(self, other: Counts) -> None:
        """Both together."""
        self.published += other.published
        self.confirmed += other.confirmed
        self.refused += other.refused
        self.given_up += other.given_up
        self.delivered += other.delivered
        self.redelivered += other.redelivered
        self.acknowledged += other.acknowledged
        self.proven += other.proven
        self.outstanding += other.outstanding
        self.held += other.held
        self.waiting += other.waiting
        self.connected += other.connected
        self.lag_us = max(self.lag_us, other.lag_us)
        self.is_drained = self.is_drained and other.is_drained


class Core(Protocol):
    """What is told of channels."""

    def channel_opened(self, channel: int, node: int, since_us: int, now_us: int) -> None: ...

    def channel_over(self, ending: Ending, detail: str, since_us: int, now_us: int) -> None: ...

    def connect_failed(self, node: int, detail: str, now_us: int) -> None: ...

    def blocked(self, is_blocked: bool, now_us: int) -> None: ...


class Client(ABC):
    """Keeps a channel open until it is told to stop."""

    def __init__(
        self, orders: Orders, core: Core, record: ProcessRecord, numbers: ChannelNumbers, first_endpoint: int = 0
    ) -> None:
        self._orders = orders
        self._channels_of = core
        self._numbers = numbers
        self._endpoint = first_endpoint
        self._now_us = record.clock.now_us
        self._is_stopping = asyncio.Event()
        #: Something has happened that the loop of a channel should look at.
        self._woken = asyncio.Event()
        self._stop_timeout_s = orders.stop_timeout_ms / MS_PER_S
        self.link: Link | None = None

    def stop(self) -> None:
        """Come to an orderly end."""
        self._is_stopping.set()
        self._woken.set()

    async def run(self) -> None:
        """Until there is nothing left to do after `stop`."""
        orders = self._orders
        pause_ms = orders.reconnect_pause_ms
        since_us = self._now_us()
        while not self._is_stopping.is_set():
            if await self._live(since_us):
                pause_ms = orders.reconnect_pause_ms
                since_us = self._now_us()
            else:
                pause_ms = min(2 * pause_ms, orders.reconnect_pause_max_ms)
            self._endpoint += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / MS_PER_S):
                    await self._is_stopping.wait()
        self._end()

    async def _live(self, since_us: int) -> bool:
        """One connection, from its first try to its end. False if there was none."""
        orders = self._orders
        endpoint = orders.endpoints[self._endpoint % len(orders.endpoints)]
        link = Link(endpoint, orders.heartbeat_s, self._now_us, self._over, self._blocked)
        opening = asyncio.ensure_future(link.open(orders.connect_timeout_ms / MS_PER_S))
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        try:
            await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return False
            channel = opening.result()
        except LinkError as error:
            self._channels_of.connect_failed(endpoint.node, str(error), self._now_us())
            return False
        finally:
            stopping.cancel()
            if not opening.done():
                opening.cancel()
                await asyncio.wait((opening,))
        # Nobody has run between the opening and this.
        if not link.is_open:
            self._channels_of.connect_failed(endpoint.node, "closed as soon as it was open", self._now_us())
            await link.close(0)
            return False
        self.link = link
        self._channels_of.channel_opened(self._numbers.next(), endpoint.node, since_us, self._now_us())
        try:
            await self._serve(link, channel)
        finally:
            await link.close(self._stop_timeout_s)
            self.link = None
        return True

    def _over(self, over: Over) -> None:
        if self.link is not None:
            self._channels_of.channel_over(over.ending, over.detail, over.since_us, self._now_us())
        self._woken.set()

    def _blocked(self, is_blocked: bool) -> None:
        if self.link is not None:
            self._channels_of.blocked(is_blocked, self.link.read_us)
        self._woken.set()

    async def _pause(self, wait_us: int | None) -> None:
        """Until something happens, or so long."""
        if wait_us is None:
            await self._woken.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_us / 1_000_000):
                    await self._woken.wait()
        self._woken.clear()

    @abstractmethod
    async def _serve(self, link: Link, channel: DeliveringChannel) -> None:
        """Do what is to be done on this channel, until it is over or, after `stop`, all is done."""

    @abstractmethod
    def _end(self) -> None:
        """There will be no further channel."""

    @abstractmethod
    def counts(self) -> Counts:
        """How it stands."""
