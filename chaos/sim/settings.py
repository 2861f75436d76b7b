"""Settings of queues that policies change: how their files are, what they have in memory, how long they may be."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from chaos.sim.schedule import Step


def limit_lengths(steps: Iterable[Step]) -> bool:
    """Queues may be made shorter by a policy, those of which nobody keeps account among them."""
    return any(step.kind == "policy" and {"max-length", "max-length-bytes"} & step.args[0].keys() for step in steps)


def draw_setting(chance: Random) -> dict[str, Any]:
    """Some keys of a definition, to be added to those that are about mirrors."""
    setting: dict[str, Any] = {}
    if chance.random() < 0.7:
        setting["queue-version"] = chance.choice((1, 2))
    if chance.random() < 0.5:
        setting["queue-mode"] = chance.choice(("lazy", "default"))
    if chance.random() < 0.3:
        setting["max-length"] = chance.choice((3, 10, 40))
    if chance.random() < 0.15:
        setting["max-length-bytes"] = chance.choice((500, 5_000))
    return setting
