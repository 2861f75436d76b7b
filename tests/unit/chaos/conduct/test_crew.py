"""When consumers want deliveries, by what they were told."""

from __future__ import annotations

import asyncio

import pytest

from chaos.clients.fleet import Fleet
from chaos.clients.options import Role
from chaos.clients.process import Command
from chaos.conduct.crew import Crew


def wanted(*told: Command | str) -> list[bool]:
    """What was heard of consumers that were told so; nobody is there to be told."""
    heard: list[bool] = []

    async def tell() -> None:
        crew = Crew(Fleet(lambda _: None), heard.append)
        for each in told:
            if isinstance(each, Command):
                await crew.command(each, Role.CONSUMER)
            elif each == "pause":
                crew.pause_consumers()
            elif each == "resume":
                crew.resume_consumers()
            else:
                await crew.stop()

    asyncio.run(tell())
    return heard


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        ([Command.START], [True]),
        ([Command.START, Command.START], [True]),
        ([Command.START, Command.CEASE, Command.CEASE, Command.START], [True, False, True]),
        ([Command.START, Command.HOLD, Command.RELEASE], [True, False, True]),
        ([Command.START, Command.HOLD, Command.CEASE, Command.RELEASE, Command.START], [True, False, True]),
        ([Command.HOLD, Command.START, Command.RELEASE], [True]),
        ([Command.START, "pause", Command.HOLD, "resume", Command.RELEASE], [True, False, True]),
        ([Command.START, Command.STATUS, Command.DRAIN, "stop"], [True, False]),
        (["stop"], []),
    ],
)
def test_consumers_want_deliveries_when_they_are_started_and_neither_hold_nor_stand_still(
    told: list[Command | str], heard: list[bool]
) -> None:
    assert wanted(*told) == heard


def test_what_publishers_are_told_says_nothing_of_consumers() -> None:
    heard: list[bool] = []
    asyncio.run(Crew(Fleet(lambda _: None), heard.append).command(Command.START, Role.PUBLISHER))
    assert heard == []
