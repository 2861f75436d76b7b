"""What nodes tell each other about themselves, apart from being there."""

from __future__ import annotations

from dataclasses import dataclass

from node.alarms.registry import Alarm


@dataclass(frozen=True, slots=True)
class NodeAlarms:
    """All alarms of the sender, in place of what it said before. Sent at link up and on every change."""

    alarms: tuple[Alarm, ...]
