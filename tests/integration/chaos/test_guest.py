"""A run on a cluster that others use, of which only AMQP is known: nothing of it is left, however it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pika.exceptions import ChannelClosedByBroker

from chaos.conduct.channel import opened_channel
from chaos.conduct.conductor import Conductor
from chaos.harm.journal import Journal, heal, outstanding
from chaos.judge.verdict import Verdict
from chaos.plan.reading import scenario
from chaos.suite.by_reference import PlainJudge
from chaos.suite.running import Setting, TargetKind, run_scenario
from chaos.suite.undoers import EVERY_UNDOER
from chaos.targets.external import ExternalTarget
from chaos.targets.guest import Guest
from chaos.targets.outside import read_outside
from tests.support.live_cluster import LiveCluster, run_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

CALM = scenario(
    {
        "id": "T01",
        "title": "Nothing is done",
        "holds": "Nothing at all is found",
        "cluster": {"nodes": 1},
        "queue": [{"name": "orders"}],
        "load": {"rate": 100, "warm": "500 ms", "calm": "500 ms"},
        "round": [{"step": [{"do": "wait", "when": "confirmed >= 100"}]}],
        "expect": {"at_risk": {"confirmed": 100}},
    }
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(Path(tmp_path_factory.mktemp("cluster")), node_count=1) as running:
        yield running


@pytest.fixture
def file(live: LiveCluster, tmp_path: Path) -> Path:
    path = tmp_path / "staging.toml"
    path.write_text(f'name = "staging"\n[[node]]\nname = "n1"\namqp = "{live.url("n1")}"\n', encoding="utf-8")
    return path


class Silent:
    """`chaos.suite.running.Watcher`."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def follow(self, conductor: Conductor | None) -> None:
        """Nobody looks."""


async def test_a_run_leaves_what_others_have_and_nothing_of_its_own(
    live: LiveCluster, file: Path, tmp_path: Path
) -> None:
    with opened_channel(live.url("n1")) as channel:
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"of somebody else")
    run = tmp_path / "T01-1"
    run.mkdir()
    cluster = read_outside(file)
    kind = TargetKind("staging", lambda directory, journal: ExternalTarget(cluster, journal, directory.parent.name))
    result = await run_scenario(CALM, run, 1, Setting(kind, PlainJudge(), Silent(), lambda seed: f"T01 {seed}"))
    assert (result.verdict, result.reasons, result.target) == (Verdict.PASS, (), "staging")
    sheet = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert [queue["name"] for queue in sheet["queues"]] == ["chaos.T01-1.orders"]
    assert outstanding(run) == []
    with opened_channel(live.url("n1")) as channel:
        assert channel.queue_declare("orders", passive=True).method.message_count == 1
        channel.queue_delete("orders")
        with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
            channel.queue_declare("chaos.T01-1.orders", passive=True)


def test_what_a_run_that_was_killed_has_made_is_removed_by_healing(
    live: LiveCluster, file: Path, tmp_path: Path
) -> None:
    with Journal(tmp_path) as journal:
        Guest(read_outside(file), journal, "T01-2").claim(["chaos.T01-2.orders", "chaos.T01-2.never-made"])
    with opened_channel(live.url("n1")) as channel:
        channel.queue_declare("chaos.T01-2.orders")
    assert [healed.problem for healed in heal(tmp_path, EVERY_UNDOER)] == [""]
    with opened_channel(live.url("n1")) as channel, pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
        channel.queue_declare("chaos.T01-2.orders", passive=True)


def test_what_nobody_can_remove_stays_in_the_journal(tmp_path: Path) -> None:
    file = tmp_path / "gone.toml"
    file.write_text('name = "gone"\n[[node]]\nname = "n1"\namqp = "amqp://127.0.0.1:1/"\n', encoding="utf-8")
    with Journal(tmp_path) as journal:
        Guest(read_outside(file), journal, "T01-3").claim(["chaos.T01-3.orders"])
    [healed] = heal(tmp_path, EVERY_UNDOER)
    assert "nobody deletes chaos.T01-3.orders on gone" in healed.problem
    assert "delete them by hand" in healed.problem
    assert len(outstanding(tmp_path)) == 1
    assert "guest" not in (tmp_path / "undo.jsonl").read_text(encoding="utf-8"), "no password gets there"
