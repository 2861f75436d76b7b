"""The clients of a run, as whoever conducts it sees them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from chaos.clients.client import Counts
from chaos.clients.fleet import Fleet, Member
from chaos.clients.options import Orders, Role
from chaos.clients.process import Command
from chaos.plan.words import Quantity

#: For an answer; who stands still gives none.
ANSWER_S = 1.0


class Crew:
    """Publishers and consumers."""

    def __init__(self, fleet: Fleet, on_consuming: Callable[[bool], None] = lambda _: None) -> None:
        """``on_consuming`` hears when consumers begin to want deliveries, and before they want none."""
        self._fleet = fleet
        self._on_consuming = on_consuming
        self._are_consumers_paused = False
        self._are_consumers_started = False
        self._are_consumers_holding = False
        self._is_consuming_wanted = False

    async def begin(self, orders: Iterable[Orders]) -> None:
        """Begin a process for each. Raises `FleetError`."""
        for each in orders:
            await self._fleet.begin(each)

    def members(self, role: Role) -> list[Member]:
        return [member for member in self._fleet.members if member.orders.role is role]

    async def command(self, command: Command, role: Role) -> None:
        """Tell all of them, if there are any."""
        if role is Role.CONSUMER:
            self._are_consumers_started = _after(command, Command.START, Command.CEASE, self._are_consumers_started)
            self._are_consumers_holding = _after(command, Command.HOLD, Command.RELEASE, self._are_consumers_holding)
            self._note_end()
        if members := self.members(role):
            await self._fleet.command(command, *members)
        self._note_begin()

    @property
    def _want_deliveries(self) -> bool:
        is_able = self._are_consumers_started and not self._are_consumers_holding
        return is_able and not self._are_consumers_paused

    def _note_end(self) -> None:
        if self._is_consuming_wanted and not self._want_deliveries:
            self._is_consuming_wanted = False
            self._on_consuming(False)

    def _note_begin(self) -> None:
        if self._want_deliveries and not self._is_consuming_wanted:
            self._is_consuming_wanted = True
            self._on_consuming(True)

    async def refresh(self) -> None:
        """Ask how all stand, and wait for the answers. Raises `FleetError` if one has failed."""
        asked = [member for member in self._fleet.members if member.is_running and not self._is_paused(member)]
        for member in asked:
            member.heard.clear()
        if asked:
            await self._fleet.command(Command.STATUS, *asked)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                for member in asked:
                    await member.heard.wait()
        self._fleet.check()

    def _is_paused(self, member: Member) -> bool:
        return self._are_consumers_paused and member.orders.role is Role.CONSUMER

    def counts(self, role: Role) -> Counts:
        """Of all of them together, as they said last."""
        total = Counts()
        for member in self.members(role):
            total.add(member.counts)
        return total

    @property
    def is_consuming(self) -> bool:
        """Every consumer is subscribed."""
        options = [member.orders.consumer for member in self.members(Role.CONSUMER)]
        wanted = sum(each.consumers * len(each.queues) for each in options if each is not None)
        return self.counts(Role.CONSUMER).connected == wanted

    def quantities(self) -> Mapping[Quantity, int]:
        """Of all clients, since they began, or now."""
        published, consumed = self.counts(Role.PUBLISHER), self.counts(Role.CONSUMER)
        return {
            Quantity.CONFIRMED: published.confirmed,
            Quantity.REFUSED: published.refused,
            Quantity.OUTSTANDING: published.outstanding,
            Quantity.DELIVERED: consumed.delivered,
            Quantity.REDELIVERED: consumed.redelivered,
            Quantity.HELD: consumed.held,
        }

    def pause_consumers(self) -> None:
        """SIGSTOP. Nothing of ours ends before they go on."""
        self._are_consumers_paused = True
        self._note_end()
        self._signal(signal.SIGSTOP)

    def resume_consumers(self) -> None:
        """SIGCONT; does no harm to who runs."""
        self._are_consumers_paused = False
        self._signal(signal.SIGCONT)
        self._note_begin()

    def _signal(self, number: signal.Signals) -> None:
        for member in self.members(Role.CONSUMER):
            if member.is_running:
                with suppress(ProcessLookupError):
                    member.child.send_signal(number)

    async def stop(self) -> None:
        """Let all come to their end. Raises `FleetError` if one does not."""
        self._are_consumers_started = False
        self._note_end()
        self.resume_consumers()
        await self._fleet.stop_all()
        self._fleet.check()


def _after(command: Command, begin: Command, end: Command, before: bool) -> bool:
    """Whether what the two begin and end holds behind a command."""
    return command is begin or (before and command is not end)
