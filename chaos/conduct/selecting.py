"""Who is meant by the words of a step, at the moment at which it is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from chaos.harm.lines import CLIENTS, Line, directed
from chaos.plan.words import Lines, Nodes, Role, Which
from chaos.targets.target import QueueView


class NobodyMeant(Exception):
    """There is nobody like that now; the text says why."""


@dataclass(frozen=True, slots=True)
class Scene:
    """How a cluster stands, as far as it is known."""

    #: Numbers of all nodes.
    nodes: Sequence[int]
    running: frozenset[int]
    #: By name, of those that were seen.
    queues: Mapping[str, QueueView]


def select_nodes(wanted: Nodes, scene: Scene, chance: Random) -> tuple[int, ...]:
    """Ascending, but for mirrors: oldest first. Raises `NobodyMeant`."""
    if wanted.are_others:
        named = select_nodes(replace(wanted, are_others=False), scene, chance)
        return _somebody(tuple(node for node in scene.nodes if node not in named), wanted)
    if wanted.numbers:
        return wanted.numbers
    if wanted.role is not None:
        return _of_queue(wanted, scene)
    if wanted.random_count:
        running = sorted(scene.running)
        if len(running) < wanted.random_count:
            raise NobodyMeant(f"{wanted}: only {len(running)} run")
        return tuple(sorted(chance.sample(running, wanted.random_count)))
    if wanted.share:
        minority = (len(scene.nodes) - 1) // 2
        count = minority if wanted.share == "minority" else len(scene.nodes) - minority
        return _somebody(tuple(sorted(chance.sample(list(scene.nodes), count))), wanted)
    return tuple(scene.nodes)


def _somebody(nodes: tuple[int, ...], wanted: Nodes) -> tuple[int, ...]:
    if not nodes:
        raise NobodyMeant(f"{wanted}: there is nobody")
    return nodes


def _of_queue(wanted: Nodes, scene: Scene) -> tuple[int, ...]:
    view = scene.queues.get(wanted.queue or "")
    if view is None:
        raise NobodyMeant(f"{wanted}: nobody has told of the queue yet")
    if wanted.role is Role.MASTER:
        return _somebody((view.master,) if view.master is not None else (), wanted)
    mirrors = {
        Role.MIRROR: view.mirrors,
        Role.SYNCHRONISED: tuple(node for node in view.mirrors if node in view.synchronised),
        Role.UNSYNCHRONISED: tuple(node for node in view.mirrors if node not in view.synchronised),
    }[wanted.role or Role.MIRROR]
    _somebody(mirrors, wanted)
    if wanted.which is Which.EVERY:
        return mirrors
    return mirrors[:1] if wanted.which is Which.OLDEST else mirrors[-1:]


def select_lines(wanted: Lines, scene: Scene, chance: Random) -> list[Line]:
    """Directed lines of bytes. Raises `NobodyMeant`.

    What is drawn by chance is drawn once for the phrase: "a minority <-> a majority" are two parts of one whole, and
    "a random node -> all but a random node" leaves out the same.
    """
    drawn: dict[Nodes, tuple[int, ...]] = {}

    def side(nodes: Nodes | None) -> Sequence[int]:
        if nodes is None:
            return (CLIENTS,)
        bare = replace(nodes, are_others=False)
        if bare not in drawn:
            opposite = replace(bare, share="majority" if bare.share == "minority" else "minority")
            is_rest = bool(bare.share) and opposite in drawn
            drawn[bare] = _rest(drawn[opposite], scene) if is_rest else select_nodes(bare, scene, chance)
        return _somebody(_rest(drawn[bare], scene), nodes) if nodes.are_others else drawn[bare]

    lines = directed(side(wanted.sources), side(wanted.destinations), is_both_ways=wanted.is_both_ways)
    if not lines:
        raise NobodyMeant(f"{wanted}: there is no line from a node to itself")
    return lines


def _rest(nodes: Sequence[int], scene: Scene) -> tuple[int, ...]:
    return tuple(node for node in scene.nodes if node not in nodes)
