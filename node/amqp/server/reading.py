"""Whether a connection's socket is read.

Reading stops for four reasons, each undone separately: the time that connections have in a turn is used up
(`node.amqp.server.turns`), the broker asks for it (nested), a channel has too much waiting behind a cold call, or the
client lets an absurd amount of answers pile up. Only the first counts once the connection is ending: then its close-ok
must get through, whoever else does not want to read.
"""

from __future__ import annotations

import asyncio

from node.amqp.connection import ConnectionMachine


class Reading:
    """The reasons of one connection. Whoever changes one calls `update`."""

    __slots__ = (
        "_is_paused",
        "_machine",
        "_transport",
        "awaits_turn",
        "broker_pauses",
        "is_over",
        "output_is_excessive",
        "waiting_channels",
    )

    def __init__(self, transport: asyncio.Transport, machine: ConnectionMachine) -> None:
        self._transport = transport
        self._machine = machine
        self._is_paused = False
        #: There is more to do than this turn had time for.
        self.awaits_turn = False
        #: How often the broker has asked for a pause and not taken it back.
        self.broker_pauses = 0
        #: Channels with too much waiting behind a cold call.
        self.waiting_channels: set[int] = set()
        #: The client does not read its answers.
        self.output_is_excessive = False
        #: The socket is gone.
        self.is_over = False

    def update(self) -> None:
        """Pause or resume, if that is called for."""
        pause = self._keeps_from_talking()
        if pause == self._is_paused or self.is_over or self._transport.is_closing():
            return
        self._is_paused = self._machine.is_reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _keeps_from_talking(self) -> bool:
        """We have enough to do with what the client has sent."""
        if self.awaits_turn or self._machine.is_ending:
            return self.awaits_turn
        return self.broker_pauses > 0 or bool(self.waiting_channels) or self.output_is_excessive
