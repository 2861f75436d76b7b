"""Each definition of `chaos.judge` by its smallest histories: what Spark finds in them, and in which of their rows.

All are judged at once, side by side. (The same is asked of the plain reference in tests/unit/chaos/judge.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest

from chaos.judge.findings import Finding, Name, Place, QueueFacts
from chaos.judge.judgement import EXAMPLES_MAX
from chaos.record.kinds import Flag, Kind, Stray
from chaos.record.message_key import unpack
from chaos.spark_judge.uncommon import DELIVERIES_MAX
from tests.spark.judge.conftest import Judge, JudgedBySpark
from tests.support.records_side_by_side import PUBLISHERS, SideBySide, SmallRecord
from tests.support.told import BROKER, HARNESS, PUBLISHER, PUBLISHING, QUEUE, SECOND_US, Told, key

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]

KEPT = QueueFacts(is_drained=False)
EXPIRING = QueueFacts(may_remove=True)


class Shown(NamedTuple):
    """A finding: of which message, and in which row of the history, from zero."""

    name: Name
    message: int
    row: int | None


class Case(NamedTuple):
    """A history, and all that it shows."""

    told: Told
    shown: list[Shown]
    queue: QueueFacts = QueueFacts()


def end(told: Told, *, on: str = "B") -> Told:
    """With its last delivery acknowledged, and proven."""
    return told.ack(1, on=on).prove(1, on=on)


def pause(told: Told) -> Told:
    """More than the slack."""
    return told.add(HARNESS, Kind.PHASE).add(HARNESS, Kind.PHASE)


def held(told: Told, *nodes_by_message: tuple[int, int]) -> Told:
    for message, node in nodes_by_message:
        told.add(BROKER, Kind.HELD, message=key(message), node=node)
    return told


def listed(told: Told, **flags_by_node: Flag) -> Told:
    for node, flags in flags_by_node.items():
        told.add(BROKER, Kind.LISTED, queue=QUEUE, node=int(node.removeprefix("node")), flags=flags)
    return told


CASES: dict[str, Case] = {
    "settled": Case(Told().confirmed(1).settled(1), []),
    # --- absences
    "lost": Case(Told().confirmed(1), [Shown(Name.LOST, 1, 0)]),
    "not confirmed": Case(Told().publish(1).answer(Kind.UNRESOLVED, 1), []),
    "confirmed without a publish": Case(Told().confirm(1), [Shown(Name.LOST, 1, None)]),
    "left": Case(Told().confirmed(1).left(1), [], KEPT),
    "expired": Case(Told().confirmed(1).broker(Kind.EXPIRED, 1), []),
    "perhaps expired": Case(Told().confirmed(1), [Shown(Name.REMOVED_UNPROVEN, 1, 0)], EXPIRING),
    "emptied behind": Case(
        Told().confirmed(1).add(HARNESS, Kind.EMPTIED, queue=QUEUE), [Shown(Name.REMOVED_UNPROVEN, 1, 0)]
    ),
    "emptied before": Case(Told().add(HARNESS, Kind.EMPTIED, queue=QUEUE).confirmed(1), [Shown(Name.LOST, 1, 1)]),
    "another emptied": Case(
        Told().confirmed(1).add(HARNESS, Kind.EMPTIED, queue=QUEUE + 1), [Shown(Name.LOST, 1, 0)]
    ),
    "returned": Case(Told().publish(1).answer(Kind.RETURN, 1).confirm(1), []),
    "vanished": Case(Told().confirmed(1).deliver(1).release(1), [Shown(Name.VANISHED, 1, 0)]),
    "vanished behind a requeue": Case(
        Told().confirmed(1).deliver(1).end(Kind.REQUEUE, 1), [Shown(Name.VANISHED, 1, 0)]
    ),
    "settled by itself": Case(Told().confirmed(1).deliver(1, flags=Flag.NO_ACK), []),
    "acknowledged perhaps": Case(
        Told().confirmed(1).deliver(1).ack(1).release(1), [Shown(Name.SETTLED_UNPROVEN, 1, 0)]
    ),
    "acknowledged says the broker": Case(Told().confirmed(1).deliver(1).ack(1).broker(Kind.SETTLED, 1), []),
    "one of two proven": Case(
        Told().confirmed(1).deliver(1).ack(1).release(1).again(1).release(1, on="B").prove(1, on="B"),
        [Shown(Name.SETTLED_UNPROVEN, 1, 0), Shown(Name.AFTER_ACK, 1, 5)],
    ),
    "phantom": Case(end(Told().deliver(1), on="A"), [Shown(Name.PHANTOM, 1, 0)]),
    "replica": Case(
        listed(
            held(Told().confirmed(1, 2).left(1, 2), (1, 1), (2, 1), (1, 2)),
            node1=Flag.SYNCHRONISED,
            node2=Flag.SYNCHRONISED,
            node3=Flag(0),
        ),
        [Shown(Name.REPLICA_LOST, 2, 10)],
        KEPT,
    ),
    # --- presences
    "foreign": Case(
        Told().add(2, Kind.DELIVER, channel=200, tag=1, queue=QUEUE, flags=Flag.CORRUPT),
        [Shown(Name.CORRUPT, 0, 0), Shown(Name.FOREIGN, 0, 0)],
    ),
    "corrupt": Case(
        end(Told().confirmed(1).deliver(1, flags=Flag.CORRUPT), on="A"), [Shown(Name.CORRUPT, 1, 2)]
    ),
    "misrouted": Case(
        Told().confirmed(1).settled(1).add(3, Kind.DELIVER, message=key(1), channel=300, tag=9, queue=2, flags=1),
        [Shown(Name.MISROUTED, 1, 5), Shown(Name.RESURRECTED, 1, 5)],
    ),
    "refused": Case(Told().publish(1).answer(Kind.REFUSE, 1).settled(1), [Shown(Name.REFUSED_DELIVERED, 1, 2)]),
    "returned and delivered": Case(
        Told().publish(1).answer(Kind.RETURN, 1).confirm(1).settled(1), [Shown(Name.RETURNED_DELIVERED, 1, 3)]
    ),
    "recovered": Case(Told().publish(1).answer(Kind.UNRESOLVED, 1).settled(1), [Shown(Name.RECOVERED, 1, 2)]),
    **{
        name: Case(
            Told().confirmed(1).answer(Kind.STRAY, 1, number=stray).settled(1)
            .add(PUBLISHING, Kind.STRAY, number=stray),
            [Shown(name, 0, 6), Shown(name, 1, 2)],
        )
        for stray, name in (
            (Stray.TWICE, Name.CONFIRM_TWICE),
            (Stray.CONTRADICTION, Name.CONFIRM_CONTRADICTION),
            (Stray.UNKNOWN, Name.CONFIRM_UNKNOWN),
        )
    },
    "false confirm": Case(
        Told().promote(2).publish(1).broker(Kind.ANSWERED, 1, epoch=1).confirm(1).promote(3).settled(1),
        [Shown(Name.FALSE_CONFIRM, 1, 2)],
    ),
    "confirm of its own epoch": Case(
        Told().promote(2).publish(1).broker(Kind.ANSWERED, 1, epoch=2).confirm(1).settled(1), []
    ),
    "confirm while another may be promoted": Case(
        Told().promote(2, during=(0, 9)).publish(1).broker(Kind.ANSWERED, 1, epoch=1).confirm(1).settled(1), []
    ),
    "stuck": Case(Told().confirmed(1).left(1), [Shown(Name.STUCK, 1, 2)]),
    # --- repeats
    "without the flag": Case(
        end(Told().confirmed(1).deliver(1).release(1).deliver(1, on="B")), [Shown(Name.UNFLAGGED, 1, 4)]
    ),
    "given back": Case(end(Told().confirmed(1).deliver(1).release(1).again(1)), [Shown(Name.CAUSED, 1, 4)]),
    "given back by itself": Case(
        Told().confirmed(1).deliver(1).ack(1).again(1).end(Kind.REQUEUE, 1, on="B", during=(1, 1)),
        [Shown(Name.SETTLED_UNPROVEN, 1, 0), Shown(Name.SPONTANEOUS, 1, 4)],
    ),
    "promoted": Case(
        end(Told().confirmed(1).deliver(1).promote(2).again(1).release(1)), [Shown(Name.CAUSED, 1, 4)]
    ),
    "promoted before": Case(
        end(Told().confirmed(1).promote(2).deliver(1).again(1).release(1)), [Shown(Name.DOUBLE_OWNER, 1, 4)]
    ),
    "a cause explains one": Case(
        end(Told().confirmed(1).deliver(1).release(1).again(1).ack(1, on="B").again(1)),
        [Shown(Name.CAUSED, 1, 4), Shown(Name.SPONTANEOUS, 1, 6)],
    ),
    "the earliest cause first": Case(
        end(
            Told().confirmed(1).deliver(1).release(1, during=(3, 9)).again(1, during=(5, 5))
            .end(Kind.REQUEUE, 1, on="B", during=(6, 6)).again(1, during=(8, 8))
        ),
        [Shown(Name.CAUSED, 1, 4), Shown(Name.CAUSED, 1, 6)],
    ),
    "acknowledged before it was given back": Case(
        end(Told().confirmed(1).deliver(1).ack(1).release(1).again(1)), [Shown(Name.AFTER_ACK, 1, 5)]
    ),
    "nothing": Case(end(Told().confirmed(1).deliver(1).ack(1).again(1)), [Shown(Name.SPONTANEOUS, 1, 4)]),
    "held by another": Case(
        end(Told().confirmed(1).deliver(1).again(1).release(1)), [Shown(Name.DOUBLE_OWNER, 1, 3)]
    ),
    "resurrected": Case(
        end(Told().confirmed(1).settled(1).release(1).again(1)), [Shown(Name.RESURRECTED, 1, 6)]
    ),
    "settled by itself and again": Case(
        end(Told().confirmed(1).deliver(1, flags=Flag.NO_ACK).again(1)), [Shown(Name.RESURRECTED, 1, 3)]
    ),
    "who follows has not heard": Case(
        end(Told().confirmed(1).settled(1).promote(2).again(1)), [Shown(Name.AFTER_ACK, 1, 6)]
    ),
    "everybody has heard": Case(
        end(Told().confirmed(1).settled(1).broker(Kind.SETTLED, 1, flags=Flag.EVERYWHERE).promote(2).again(1)),
        [Shown(Name.RESURRECTED, 1, 7)],
    ),
    "settled behind the repeat": Case(
        end(Told().confirmed(1).deliver(1).broker(Kind.SETTLED, 1).again(1)).ack(1),
        [Shown(Name.DOUBLE_OWNER, 1, 4)],
    ),
    "removed": Case(
        pause(Told().confirmed(1).broker(Kind.EXPIRED, 1)).settled(1), [Shown(Name.RESURRECTED, 1, 5)]
    ),
    "removed when it was on its way": Case(Told().confirmed(1).broker(Kind.EXPIRED, 1).settled(1), []),
    "removed and again": Case(
        end(pause(Told().confirmed(1).deliver(1).release(1).broker(Kind.EXPIRED, 1)).again(1)),
        [Shown(Name.RESURRECTED, 1, 7)],
    ),
    "a late look into a buffer": Case(
        end(Told().confirmed(1).again(1)).deliver(1).release(1, during=(1, 20)), [Shown(Name.CAUSED, 1, 2)]
    ),
    "all have the flag": Case(end(Told().confirmed(1).again(1)), [Shown(Name.FLAGGED_FIRST, 1, 2)]),
    "copies": Case(
        Told().publish(1).answer(Kind.UNRESOLVED, 1).publish(1, attempt=2).confirm(1, attempt=2).settled(1)
        .deliver(1, attempt=2).end(Kind.ACK, 1, attempt=2).end(Kind.ACK_PROVEN, 1, attempt=2),
        [Shown(Name.COPIES, 1, 2), Shown(Name.RECOVERED, 1, 4)],
    ),
    "one copy": Case(
        Told().publish(1).answer(Kind.UNRESOLVED, 1).publish(1, attempt=2).confirm(1, attempt=2)
        .deliver(1, attempt=2).end(Kind.ACK, 1, attempt=2).end(Kind.ACK_PROVEN, 1, attempt=2),
        [],
    ),
    # --- order
    "misordered": Case(
        Told().confirmed(1, 2, 3, 4, 5).settled(2).settled(1).settled(5).settled(3).settled(4),
        [Shown(Name.MISORDERED, 1, 13), Shown(Name.MISORDERED, 3, 19), Shown(Name.MISORDERED, 4, 22)],
    ),
    "of two channels": Case(Told().publish(1).publish(2, channel=101).confirm(1, 2).settled(2).settled(1), []),
    "misordered over a failover": Case(
        Told().confirmed(1, 2).settled(2).promote(2).settled(1), [Shown(Name.MISORDERED_EXCUSED, 1, 8)]
    ),
    "overtaken": Case(
        Told().confirmed(1, 2).settled(2, on="B").settled(1), [Shown(Name.OVERTAKEN, 1, 7)]
    ),
    "read late": Case(
        Told().confirmed(1, 2).deliver(2, on="B").deliver(1).ack(2, on="B").prove(2, on="B").ack(1).prove(1), []
    ),
    "overtaken over a failover": Case(
        Told().confirmed(1, 2).settled(2, on="B").promote(2).settled(1), [Shown(Name.OVERTAKEN_EXCUSED, 1, 8)]
    ),
    "the latest of two leads": Case(
        Told().confirmed(1, 2, 3).settled(2, on="B").promote(2).settled(3, on="B").settled(1),
        [Shown(Name.OVERTAKEN, 1, 13)],
    ),
    "requeued and overtaken": Case(
        pause(pause(Told().confirmed(1, 2).deliver(1).end(Kind.REQUEUE, 1).prove(1)).deliver(2, on="B"))
        .again(1, on="A").ack(1).prove(1).ack(2, on="B").prove(2, on="B"),
        [Shown(Name.CAUSED, 1, 12), Shown(Name.REQUEUE_OVERTAKEN, 1, 12)],
    ),
    "requeued and not known to be overtaken": Case(
        Told().confirmed(1, 2).deliver(1).end(Kind.REQUEUE, 1).prove(1).deliver(2, on="B")
        .again(1, on="A").ack(1).prove(1).ack(2, on="B").prove(2, on="B"),
        [Shown(Name.CAUSED, 1, 8)],
    ),
    # --- the rest
    "lost in three places": Case(
        Told().confirmed(*range(1, 41)).settled(13, 15),
        [Shown(Name.LOST, number, number - 1) for number in range(1, 41) if number not in (13, 15)],
    ),
    "delivered too often to be judged": Case(
        Told().confirmed(1).deliver(*[1] * DELIVERIES_MAX), []
    ),
}  # fmt: skip


def small(case: Case) -> SmallRecord:
    return SmallRecord(case.told.complete(), {PUBLISHING: frozenset({PUBLISHER})}, case.queue)


def expected(case: Case) -> list[Finding]:
    def finding(shown: Shown) -> Finding:
        row = None if shown.row is None else case.told.events[shown.row]
        message = row.message if row and row.message else shown.message and key(shown.message)
        assert not message or unpack(message).sequence == shown.message
        return Finding(shown.name, message, row.process if row else 0, row.event if row else 0)

    return sorted(finding(shown) for shown in case.shown)


@pytest.fixture(scope="module")
def records() -> SideBySide:
    return SideBySide([small(case) for case in CASES.values()], slack_us=2 * SECOND_US)


@pytest.fixture(scope="module")
def found(judge: Judge, records: SideBySide) -> JudgedBySpark:
    """What is found in all of the cases."""
    return judge(records.events(), records.facts())


@pytest.mark.parametrize("name", list(CASES))
def test_what_a_history_shows(found: JudgedBySpark, records: SideBySide, name: str) -> None:
    assert records.of(list(CASES).index(name), found.findings) == expected(CASES[name])


def test_where_the_lost_ones_were(found: JudgedBySpark, records: SideBySide) -> None:
    number = list(CASES).index("lost in three places")
    places = {Place.PREFIX: range(1, 13), Place.MIDDLE: [14], Place.POSTFIX: range(16, 41)}
    own = {message: place for message, place in found.places.items() if unpack(message).queue == number + 1}
    assert own == {records.key(number, key(lost)): place for place, those in places.items() for lost in those}


def test_all_is_counted_and_a_little_shown(found: JudgedBySpark) -> None:
    judgement = found.judgement
    assert judgement.counts == Counter(finding.name for finding in found.findings)
    assert judgement.places == Counter(found.places.values())
    assert judgement.places[Place.PREFIX] > EXAMPLES_MAX
    shown = [finding for finding in judgement.examples[Name.LOST] if found.places[finding.message] == Place.PREFIX]
    lost = [finding for finding in found.findings if found.places.get(finding.message) == Place.PREFIX]
    assert shown == [finding for finding in lost if finding.name == Name.LOST][:EXAMPLES_MAX]
    assert judgement.unjudged_messages == 1
    assert not judgement.incomplete
    assert not judgement.not_concluded


ABSENT = ("lost", "phantom", "vanished", "held by another", "nothing")
UNSURE = ("overtaken", "requeued and overtaken", "removed")
PRESENT = ("resurrected", "misordered", "stuck")


@pytest.fixture(scope="module")
def found_in_part(judge: Judge) -> JudgedBySpark:
    """Some of the cases, with a process missing that may have published anything, and without a slack."""
    cases = [CASES[name] for name in (*ABSENT, *UNSURE, *PRESENT)]
    records = SideBySide([small(case) for case in cases], slack_us=None)
    facts = records.facts()
    anybody = frozenset(range(1, 1 + len(cases) * PUBLISHERS))
    return judge(records.events(), replace(facts, processes={**facts.processes, 10_000: anybody}))


def test_nothing_is_concluded_from_what_is_not_there_if_something_is_missing(found_in_part: JudgedBySpark) -> None:
    names = {finding.name for finding in found_in_part.findings}
    assert names == {Name.RESURRECTED, Name.MISORDERED, Name.STUCK, Name.CAUSED}, "what is there proves what it proves"
    assert found_in_part.judgement.incomplete == {10_000}
    assert found_in_part.judgement.not_concluded > {Name.LOST, Name.PHANTOM}
