"""One client process: ``python -m chaos.clients.process``.

Its first line on standard input is its orders (`chaos.clients.options.Orders`). Further lines are commands,
``{"command": "start"}``; answers are lines on standard output, ``{"answer": "ready"}``.

=========  =============================================================================================================
command
=========  =============================================================================================================
start      publish, or subscribe. It is connected before.
cease      of a consumer: cancel (``start`` subscribes again)
hold       of a consumer: acknowledge nothing
release    of a consumer: acknowledge again
drain      a publisher begins no new messages (``start`` goes on); a consumer holds nothing and gives nothing back
status     answer ``counts`` now
stop       come to an orderly end. So do the end of standard input, SIGTERM and SIGINT
=========  =============================================================================================================

=========  =============================================================================================================
answer
=========  =============================================================================================================
ready      orders are understood, the record is begun
counts     the fields of `chaos.clients.client.Counts`, twice a second
refused    ``reason``: of a command. It goes on
ended      ``events``: in its record, which is closed and whole. The last answer, exit code 0
failed     ``reason``: its orders are not valid, or something happened that must not. What was recorded is written,
           without an end, so nothing will be concluded from what is not there. The last answer, exit code 1
=========  =============================================================================================================

Whoever does not read the answers misses some, and holds nothing up. No answer holds a password.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import traceback
from dataclasses import asdict
from enum import StrEnum
from typing import Any, cast

import uvloop

from chaos.clients.client import Counts
from chaos.clients.consuming import Consuming
from chaos.clients.options import Orders, Role
from chaos.clients.ports import ChannelNumbers
from chaos.clients.publishing import Publishing
from chaos.clients.stall_watch import TICK_S, StallWatch
from chaos.record.process_record import PART_AGE_MAX_US, ProcessRecord, RunClock
from chaos.record.schema import EventClass

LINE_BYTES_MAX = 4 * 1024 * 1024
COUNTS_EVERY_US = 500_000
#: Answers that nobody reads.
UNREAD_BYTES_MAX = 65_536
#: For the last answer.
LAST_ANSWER_S = 2.0


class Command(StrEnum):
    """See the module."""

    START = "start"
    CEASE = "cease"
    HOLD = "hold"
    RELEASE = "release"
    DRAIN = "drain"
    STATUS = "status"
    STOP = "stop"


class Answer(StrEnum):
    """See the module."""

    READY = "ready"
    COUNTS = "counts"
    REFUSED = "refused"
    ENDED = "ended"
    FAILED = "failed"


class Answers(asyncio.BaseProtocol):
    """Lines on standard output."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._is_closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's have all that it takes, and another ancestor.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._is_closed.set()

    def say(self, answer: Answer, **values: Any) -> None:
        if self._transport is not None and self._transport.get_write_buffer_size() < UNREAD_BYTES_MAX:
            self._transport.write(json.dumps({"answer": answer, **values}).encode() + b"\n")

    async def close(self) -> None:
        """Once what was said is written, or nobody takes it."""
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait((asyncio.ensure_future(self._is_closed.wait()),), timeout=LAST_ANSWER_S)


class ClientProcess:
    """The clients of one process and their record."""

    def __init__(self, orders: Orders, answers: Answers) -> None:
        self._answers = answers
        self._clock = RunClock(orders.clock_offset_us)
        self.record = ProcessRecord(orders.run_directory, orders.run, orders.process, EventClass.CLIENT, self._clock)
        self._watch = StallWatch(self.record, self._clock.now_us())
        self._clients: list[Publishing | Consuming] = list(self._make_clients(orders))
        #: Something that nobody expected, in a callback of the loop.
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(self._unexpected)

    def _make_clients(self, orders: Orders) -> list[Publishing] | list[Consuming]:
        numbers = ChannelNumbers(orders.process)
        if orders.role is Role.PUBLISHER:
            return [Publishing(orders, self.record, numbers)]
        assert orders.consumer is not None, "orders of a consumer have its options"
        queues = [queue for queue in orders.consumer.queues for _ in range(orders.consumer.consumers)]
        return [Consuming(orders, queue, self.record, numbers, place) for place, queue in enumerate(queues)]

    def _unexpected(self, _loop: object, context: dict[str, Any]) -> None:
        if not self._failed.done():
            self._failed.set_exception(context.get("exception") or RuntimeError(context["message"]))

    async def run(self, commands: asyncio.StreamReader) -> None:
        """Until told to stop. Raises what must not happen."""
        running: asyncio.Future[Any] = asyncio.gather(*(client.run() for client in self._clients))
        listening = asyncio.ensure_future(self._listen(commands))
        tasks: list[asyncio.Future[Any]] = [running, asyncio.ensure_future(self._tick()), self._failed, listening]
        try:
            while not running.done():
                await asyncio.wait([each for each in tasks if not each.done()], return_when=asyncio.FIRST_COMPLETED)
                for each in tasks:
                    if each.done():
                        each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        counted_us = flushed_us = self._clock.now_us()
        while True:
            await asyncio.sleep(TICK_S)
            now_us = self._clock.now_us()
            self._watch.tick(now_us)
            if now_us - counted_us >= COUNTS_EVERY_US:
                counted_us = now_us
                self._say_counts()
            if now_us - flushed_us >= PART_AGE_MAX_US:
                # An idle process adds nothing, and so would not write what it has.
                flushed_us = now_us
                self.record.flush()

    async def _listen(self, commands: asyncio.StreamReader) -> None:
        while line := await commands.readline():
            self._obey(line)
        self.stop()

    def _obey(self, line: bytes) -> None:
        try:
            command = Command(json.loads(line)["command"])
        except (ValueError, KeyError, TypeError):
            self._answers.say(Answer.REFUSED, reason="not a command")
            return
        match command:
            case Command.START:
                for client in self._clients:
                    client.start()
            case Command.CEASE | Command.HOLD | Command.RELEASE:
                self._command_consumers(command)
            case Command.DRAIN:
                for client in self._clients:
                    client.drain()
            case Command.STATUS:
                self._say_counts()
            case Command.STOP:
                self.stop()

    def _command_consumers(self, command: Command) -> None:
        consumers = [client for client in self._clients if isinstance(client, Consuming)]
        if not consumers:
            self._answers.say(Answer.REFUSED, reason=f"{command} is for consumers")
        for client in consumers:
            match command:
                case Command.CEASE:
                    client.cease()
                case Command.HOLD:
                    client.hold()
                case _:
                    client.release()

    def stop(self) -> None:
        """Come to an orderly end."""
        for client in self._clients:
            client.stop()

    def _say_counts(self) -> None:
        total = Counts()
        for client in self._clients:
            total.add(client.counts())
        self._answers.say(Answer.COUNTS, **asdict(total))


async def _main() -> int:
    loop = asyncio.get_running_loop()
    # Copies: closing the transports closes the files, and whoever reports a failure later needs them.
    commands = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    _, answers = await loop.connect_write_pipe(Answers, os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0))
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), os.fdopen(os.dup(sys.stdin.fileno()), "rb", 0)
    )
    try:
        orders = Orders.from_json(await commands.readline())
    except ValueError as error:
        answers.say(Answer.FAILED, reason=str(error))
        await answers.close()
        return 1
    process = None
    try:
        process = ClientProcess(orders, answers)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop)
        answers.say(Answer.READY)
        await process.run(commands)
        process.record.close()
        answers.say(Answer.ENDED, events=len(process.record))
        return 0
    except Exception as error:
        sys.stderr.write(orders.scrub("".join(traceback.format_exception(error))))
        answers.say(Answer.FAILED, reason=orders.scrub(f"{type(error).__name__}: {error}"))
        if process is not None:
            process.record.flush()
        return 1
    finally:
        await answers.close()


def main() -> int:
    """Until the end. The exit code."""
    # What pika has to say is in the record, as far as it matters.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main())


if __name__ == "__main__":
    sys.exit(main())
