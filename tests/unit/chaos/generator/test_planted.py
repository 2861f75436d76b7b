"""What is planted is found, all of it, and nothing else; the reference is what it is held against."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.generator import History, Shape, read_planted
from chaos.generator.__main__ import main
from chaos.generator.anomalies import ANOMALIES
from chaos.generator.planted import PLANTED_FILE
from chaos.generator.planting import REPLICA_LOST
from chaos.judge.facts_file import FACTS_FILE, facts_of
from chaos.judge.findings import LEGAL, VIOLATIONS, Finding, Name, Place
from chaos.judge.reference import Reference
from chaos.record.reading import read_events
from tests.support.amounts import slow
from tests.support.generated_histories import SMALL, events_of

UNCOUNTED = {Name.MISORDERED_EXCUSED, Name.OVERTAKEN_EXCUSED}
#: Two of each of some forty classes, and room between them.
PLANTED = replace(SMALL, messages=6_000, block_messages=3_400, left=0.01, failovers=6, tap=True)
SHAPES = {
    "some of everything": replace(PLANTED, seed=1),
    "another seed": replace(PLANTED, seed=2),
    "a third": replace(PLANTED, seed=3),
    "one consumer": replace(PLANTED, seed=4, consumers=1, prefetch=4),
    "many consumers": replace(PLANTED, seed=5, consumers=6, prefetch=5),
    "one block": replace(PLANTED, seed=6, block_messages=6_000),
    "the broker does not tell": replace(PLANTED, seed=7, tap=False),
}
FAST = ("some of everything",)


class Judged:
    """A history with what was planted, and what the reference finds."""

    def __init__(self, shape: Shape, plant: int = 2) -> None:
        self.shape = shape
        self.history = History(shape, plant)
        self.reference = Reference(events_of(self.history), self.history.layout.facts())
        self.findings = self.reference.findings()
        self.generated = self.history.generated

    @property
    def violations(self) -> Counter[Finding]:
        return Counter(finding for finding in self.findings if finding.name in VIOLATIONS)

    @property
    def planted(self) -> Counter[Finding]:
        return Counter(label.finding for label in self.generated.planted)


@pytest.fixture(
    scope="module",
    params=[shape if name in FAST else slow(shape) for name, shape in SHAPES.items()],
    ids=list(SHAPES),
)
def judged(request: pytest.FixtureRequest) -> Judged:
    return Judged(request.param)


def test_exactly_what_is_planted_is_found(judged: Judged) -> None:
    assert not judged.reference.incomplete
    assert judged.violations - judged.planted == Counter()
    assert judged.planted - judged.violations == Counter()


def test_what_is_legal_is_counted(judged: Judged) -> None:
    """Some anomalies are a delivery too many behind one that is legal."""
    counts = Counter(finding.name for finding in judged.findings if finding.name in LEGAL - UNCOUNTED)
    assert counts == +judged.generated.legal


def test_as_many_of_each_class_are_planted_as_were_asked_for(judged: Judged) -> None:
    labels = {(label.anomaly, label.finding.message, label.finding.event) for label in judged.generated.planted}
    wanted = {each.name for each in ANOMALIES if judged.shape.tap or not each.needs_tap}
    wanted |= {REPLICA_LOST} if judged.shape.tap else set()
    assert len(wanted) > 30
    assert judged.generated.missing == Counter()
    assert Counter(anomaly for anomaly, _, _ in labels) == dict.fromkeys(wanted, 2)


def test_every_violation_is_planted() -> None:
    assert {each.finding for each in ANOMALIES} | {Name.REPLICA_LOST} == VIOLATIONS


def test_what_is_lost_is_lost_where_it_is_said() -> None:
    """Also where what comes first or last is not what anything can be planted in."""
    judged = Judged(replace(PLANTED, seed=9, discarded=0.4), 3)
    lost = {label.finding: label.anomaly for label in judged.generated.planted if label.finding.name is Name.LOST}
    places = judged.reference.places(lost)
    found = {(anomaly, places[finding.message]) for finding, anomaly in lost.items()}
    assert {place for anomaly, place in found if anomaly == "lost_prefix"} == {Place.PREFIX}
    assert {place for anomaly, place in found if anomaly == "lost_postfix"} == {Place.POSTFIX}
    others = {place for anomaly, place in found if anomaly not in ("lost_prefix", "lost_postfix")}
    assert others == {Place.MIDDLE}


def test_what_finds_no_place_is_told() -> None:
    judged = Judged(replace(PLANTED, failovers=0), 1)
    wanted = {"lost_over_failover": 1, "resurrected_everywhere": 1, "false_confirm": 1}
    assert judged.generated.missing == wanted
    assert judged.violations == judged.planted


@pytest.mark.slow
def test_many_are_planted_in_few_messages() -> None:
    """The more is planted, the nearer they are to each other; still they stay apart."""
    judged = Judged(replace(PLANTED, seed=10), 12)
    assert judged.violations == judged.planted
    assert len(judged.planted) > 400


def test_the_command_writes_what_a_checker_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = ["--messages", "3000", "--seed", "3", "--plant", "1", "--rate", "3000", "--prefetch", "10", "--tap"]
    assert main([*arguments, str(run)]) == 0
    assert "planted" in capsys.readouterr().out
    facts = facts_of(json.loads((run / FACTS_FILE).read_text(encoding="utf-8")))
    planted = read_planted(run / PLANTED_FILE)
    findings = Reference(read_events(run), facts).findings()
    assert len(planted) > 30
    assert {label.finding for label in planted} == {each for each in findings if each.name in VIOLATIONS}
    assert main([*arguments, str(run)]) == 2
    assert main(["--queues", "1", str(tmp_path / "other")]) == 2
