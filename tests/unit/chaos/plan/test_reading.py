"""Scenario files: what is read, what is refused and how, and those that come with the laboratory."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from chaos.plan.actions import ACTIONS, Capability, Subject
from chaos.plan.model import Expectation, LoadPlan, QueuePlan, Scenario
from chaos.plan.reading import catalogue, read_scenario, scenario
from chaos.plan.words import Condition, Nodes, PlanError, Quantity, Role

SMALLEST = """
id = "K99"
title = "The master is killed"
holds = "Nothing is lost"
[[queue]]
name = "orders"
[[round]]
[[round.step]]
when = "ready of orders >= 10"
do = "kill"
to = "master of orders"
"""


def read(text: str) -> Scenario:
    return scenario(tomllib.loads(text))


def test_the_smallest_scenario() -> None:
    smallest = read(SMALLEST)
    [step] = smallest.steps
    assert step.action is ACTIONS["kill"]
    assert step.nodes == Nodes(role=Role.MASTER, queue="orders")
    assert step.when == Condition(Quantity.READY, "orders", ">=", 10)
    assert smallest.needs() == {Capability.KILL, Capability.MASTER}
    assert (smallest.cluster.nodes, smallest.queues[0].consumers, smallest.rounds[0].times) == (3, 2, 1)


def with_step(**step: Any) -> Scenario:
    document = tomllib.loads(SMALLEST)
    document["round"][0]["step"] = [step]
    return scenario(document)


def test_what_is_said_of_the_load_and_the_queue_is_kept() -> None:
    document = tomllib.loads(SMALLEST)
    document["load"] = {"rate": 20, "body": "2 KB", "mandatory": True, "warm": "1 s", "requeued_share": 0.5}
    document["queue"][0] |= {"durable": False, "publishers": 3, "declared_at": 3}
    document["expect"] = {"loss": "why not", "publish_gap": "2 s", "at_risk": {"confirmed": 5}}
    document["round"][0]["times"] = 7
    wanted = scenario(document)
    assert wanted.load == LoadPlan(rate=20.0, body_bytes=2000, is_mandatory=True, warm_s=1.0, requeued_share=0.5)
    assert wanted.queues == [QueuePlan("orders", {}, False, publishers=3, consumers=2, declared_at=3)]
    assert wanted.expectation == Expectation("why not", {"confirmed": 5}, publish_gap_max_s=2.0)
    assert wanted.rounds[0].times == 7


def test_every_node_may_be_named() -> None:
    for to in ("n3", "3 random nodes", "n1, n2, n3"):
        assert str(with_step(do="kill", to=to).steps[0].nodes) == to


def test_a_target_that_cannot_do_it_is_told_why() -> None:
    cut = with_step(do="cut", to="clients <-> n1")
    assert cut.lacks(frozenset({Capability.CLIENT_LINES}), 3) == ""
    assert cut.lacks(frozenset({Capability.NODE_LINES}), 3) == "the target cannot do: client lines"
    assert "it needs 3 nodes, and there are 2" in cut.lacks(frozenset(Capability), 2)
    assert with_step(do="cut", to="n2 -> n1").needs() == {Capability.NODE_LINES}
    drawn = [{"do": "kill", "to": "master of orders", "for": "1 s"}]
    swarm = with_step(do="any of", every="1 s", draws=3, faults=drawn)
    assert swarm.needs() == {Capability.KILL, Capability.MASTER}


@pytest.mark.parametrize(
    ("arguments", "removes"),
    [
        ({}, False),
        ({"x-max-priority": 5}, False),
        ({"x-message-ttl": 100}, True),
        ({"x-expires": 100}, True),
        ({"x-max-length": 5}, True),
        ({"x-max-length": 5, "x-overflow": "reject-publish"}, False),
        ({"x-max-length-bytes": 5, "x-overflow": "reject-publish", "x-message-ttl": 1}, True),
    ],
)
def test_whether_a_queue_removes_messages_by_itself(arguments: dict[str, object], removes: bool) -> None:
    document = tomllib.loads(SMALLEST)
    document["queue"][0]["arguments"] = arguments
    assert scenario(document).queues[0].may_remove == removes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"title": None}, "title must be there"),
        ({"colour": "red"}, "nobody knows 'colour'"),
        ({"queue": []}, r"there is no \[\[queue\]\]"),
        ({"queue": [{"name": "a"}, {"name": "a"}]}, "two queues have one name"),
        ({"queue": [{"name": "orders", "declared_at": 4}]}, "there is no n4 among 3 nodes"),
        ({"cluster": {"nodes": 10}}, "not between 1 and 9"),
        ({"load": {"rate": "fast"}}, "load: rate = 'fast' is no number"),
        ({"load": {"mandatory": 1}}, "load: mandatory = 1 is no yes or no"),
        ({"load": {"body": 5}}, "load: body: 5 is no size"),
        ({"load": {"rate": -1}}, "less than nothing"),
        ({"load": {"speed": 1}}, "load: nobody knows 'speed'"),
        ({"needs": ["luck"]}, "nobody knows 'luck'"),
        ({"expect": {"gap": "1 s"}}, "expect: nobody knows 'gap'"),
        ({"queue": [{"name": "orders", "size": 1}]}, "queue 1: nobody knows 'size'"),
        ({"queue": [{"name": "orders", "consumers": True}]}, "queue 1: consumers = True is no number"),
        ({"round": [{"often": 3, "step": [{"do": "wait"}]}]}, "round 1: nobody knows 'often'"),
        ({"round": [{"step": [{"do": "wait"}, {"do": "run"}]}]}, "round 1, step 2: nobody knows how to do 'run'"),
        ({"expect": {"at_risk": {"fun": 1}}}, "expect.at_risk: nobody knows 'fun'"),
        ({"expect": {"publish_gap": "long"}}, "expect: publish_gap: 'long' is no duration"),
        ({"round": [{"step": []}]}, r"there is no \[\[round.step\]\]"),
        ({"round": [{"times": 0, "step": [{"do": "wait"}]}]}, "times = 0 is not between"),
        ({"round": {"step": []}}, "it must be a list of tables"),
    ],
)
def test_what_is_said_of_other_files(change: dict[str, object], said: str) -> None:
    document = tomllib.loads(SMALLEST) | change
    with pytest.raises(PlanError, match=said):
        scenario({name: value for name, value in document.items() if value is not None})


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"do": "explode"}, "nobody knows how to do 'explode'"),
        ({"do": "kill"}, 'say "to"'),
        ({"do": "kill", "to": "n4"}, "there is no n4 among 3 nodes"),
        ({"do": "kill", "to": "n1, n4"}, "there is no n4 among 3 nodes"),
        ({"do": "kill", "to": "4 random nodes"}, "there are not 4 nodes"),
        ({"do": "kill", "to": "master of letters"}, "there is no queue 'letters'"),
        ({"do": "wait", "when": "ready of letters >= 1"}, "there is no queue 'letters'"),
        ({"do": "purge", "to": "letters"}, "there is no queue 'letters'"),
        ({"do": "cut", "to": "n1 -> n7"}, "there is no n7"),
        ({"do": "wait", "to": "n1"}, 'leave out "to"'),
        ({"do": "wait", "for": "3 s"}, "and 'wait' is none"),
        ({"do": "kill", "to": "n1", "latency": "1 s"}, "nobody knows 'latency'"),
        ({"do": "delay", "to": "n1 -> n2"}, "'delay' must be told latency"),
        ({"do": "delay", "to": "n1 -> n2", "latency": 3}, "latency: 3 is no duration"),
        ({"do": "heal", "what": "it"}, "no step of this round has the name 'it'"),
        ({"do": "any of", "every": "1 s", "draws": 1, "faults": []}, "must be a list of faults"),
        ({"do": "any of", "every": "1 s", "draws": 1, "faults": [{"do": "wait"}]}, "a fault that ends by itself"),
        (
            {"do": "any of", "every": "1 s", "draws": -1, "faults": [{"do": "kill", "to": "n1", "for": "1 s"}]},
            "draws: -1 is no number",
        ),
        (
            {
                "do": "any of",
                "every": "1 s",
                "draws": 1,
                "quiet": 2,
                "faults": [{"do": "kill", "to": "n1", "for": "1 s"}],
            },
            "no share between 0 and 1",
        ),
    ],
)
def test_what_is_said_of_other_steps(step: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        with_step(**step)


def test_a_file_is_named_in_what_is_said_of_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    with pytest.raises(PlanError, match=r"mine.toml: No such file"):
        read_scenario(path)
    path.write_text("id = ")
    with pytest.raises(PlanError, match=r"mine.toml: this is no TOML"):
        read_scenario(path)
    path.write_text('id = "A"')
    with pytest.raises(PlanError, match=r"mine.toml: there is no \[\[queue\]\]"):
        read_scenario(path)
    path.write_text(SMALLEST)
    assert read_scenario(path).id == "K99"


def test_every_scenario_of_the_catalogue_says_what_must_have_been_at_risk() -> None:
    """Otherwise a run in which nothing happened would pass."""
    known = catalogue()
    assert len(known) >= 30
    assert [each.id for each in known.values() if not each.expectation.at_risk] == []
    assert {each.id[0] for each in known.values()} >= set("KPZDYQBAX")


def test_every_action_can_be_listed_and_told() -> None:
    """What a step can be told is read for each action; an action without a summary could not be listed."""
    for action in ACTIONS.values():
        assert action.summary
        assert action.required <= action.arguments.keys()
        assert not action.is_fault or action.subject in {Subject.NODES, Subject.LINES}
