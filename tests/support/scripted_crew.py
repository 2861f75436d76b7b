"""Clients that are only numbers, for tests of whoever conducts a run."""

from __future__ import annotations

from dataclasses import replace

from chaos.clients.client import Counts
from chaos.clients.options import Role
from chaos.clients.process import Command
from chaos.conduct.crew import Crew


class ScriptedCrew(Crew):
    """As many as the test says, and what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.published = Counts()
        self.consumed = Counts()
        self.are_all_subscribed = True
        self.refreshed = 0

    @property
    def is_consuming(self) -> bool:
        return self.are_all_subscribed

    async def command(self, command: Command, role: Role) -> None:
        self.told.append((str(command), str(role)))

    async def refresh(self) -> None:
        self.refreshed += 1

    def counts(self, role: Role) -> Counts:
        return replace(self.published if role is Role.PUBLISHER else self.consumed)

    def pause_consumers(self) -> None:
        self.told.append(("pause", "consumer"))

    def resume_consumers(self) -> None:
        self.told.append(("resume", "consumer"))

    async def stop(self) -> None:
        self.told.append(("stop", "all"))
